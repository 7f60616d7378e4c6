"""The recorder in a loop of Accelerate, with accumulation and mixed precision."""

import pytest
import torch
from torch import nn

accelerate = pytest.importorskip("accelerate")

from gradforensics import capsule  # noqa: E402  after the skip
from gradforensics.recorder.accelerate import make_recorder  # noqa: E402
from gradforensics.replay.program import Program  # noqa: E402
from gradforensics.replay.recording import from_capsule  # noqa: E402
from gradforensics.replay.step import StepRunner  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # of the framework


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_a_step_of_accelerate_is_replayed_bit_by_bit(precision, tmp_path):
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = accelerate.Accelerator(cpu=True, mixed_precision=precision, gradient_accumulation_steps=2)
    torch.manual_seed(0)
    model, optimizer = accelerator.prepare(*made())
    losses = []
    with make_recorder(accelerator, model, optimizer, tmp_path, max_grad_norm=0.1, at_steps=(3,)) as recorder:
        for _ in range(8):
            with accelerator.accumulate(model):
                x = recorder.batch(torch.randn(5, 4))
                loss = recorder.loss(model(x).square().mean())
                losses.append(loss.item())
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 0.1)
                optimizer.step()
                optimizer.zero_grad()
    header = capsule.read_header(next(iter(capsule.find(tmp_path))))
    assert header.settings["gradient_accumulation_steps"] == 2
    assert header.optimizer == "torch.optim.AdamW"
    autocast = header.steps[0].micro_batches[1].autocast
    assert autocast is not None
    assert autocast.enabled is (precision == "bf16")
    program = Program(made()[0], lambda model, x: model(x).float().square().mean())
    found = StepRunner(from_capsule(next(iter(capsule.find(tmp_path)))), program, "cpu").compute()
    assert found.losses == losses[4:6]
    assert found.clipped_norm == header.steps[0].grad_norm


def made():
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.Linear(8, 2))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)
