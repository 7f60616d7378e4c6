"""The callback in a real Lightning Trainer, and the loss of a training_step without one."""

import logging
import math

import pytest
import torch
from torch import nn

lightning = pytest.importorskip("lightning")

from gradforensics import capsule  # noqa: E402  after the skip
from gradforensics.recorder.lightning import RecorderCallback, training_loss  # noqa: E402
from gradforensics.replay.program import Program  # noqa: E402
from gradforensics.replay.recording import from_capsule  # noqa: E402
from gradforensics.replay.step import StepRunner  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # of the framework


class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]  # no type checker sees the skip
    def __init__(self, bad=None):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.2), nn.ReLU(), nn.Linear(8, 3))
        self.bad, self.losses = bad, []

    def training_step(self, batch, batch_idx):
        x, y = batch
        if self.bad is not None and batch_idx == self.bad:
            raise LookupError("a bad batch")
        loss = nn.functional.cross_entropy(self.net(x).float(), y)
        self.log("train_loss", loss)
        self.losses.append(loss.item())
        return {"loss": loss, "logits": None}

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def train(folder, callback=None, precision="32-true", bad=None, **options):
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.manual_seed(0)
    module = Module(bad)
    data = torch.utils.data.TensorDataset(torch.randn(44, 6), torch.randint(3, (44,)))
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", precision=precision, accumulate_grad_batches=2, gradient_clip_val=0.5,
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[] if callback is None else [callback], default_root_dir=folder, **options,
    )  # fmt: skip
    trainer.fit(module, torch.utils.data.DataLoader(data, 4, shuffle=True))
    return module


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed"])
def test_a_step_of_lightning_is_replayed_bit_by_bit_and_the_training_is_unchanged(precision, tmp_path):
    bare = train(tmp_path / "bare", precision=precision)
    recorded = train(tmp_path, RecorderCallback(tmp_path, at_steps=(3, 6)), precision)
    assert recorded.losses == bare.losses
    assert all(torch.equal(a, b) for a, b in zip(bare.parameters(), recorded.parameters(), strict=True))
    assert "training_step" not in vars(recorded)
    for step, micros in ((3, 2), (6, 1)):  # 11 batches: the last step has one
        folder = tmp_path / "capsules" / capsule.folder_name(step, 0, 1)
        header = capsule.read_header(folder)
        assert len(header.steps[0].micro_batches) == micros
        autocast = header.steps[0].micro_batches[0].autocast
        assert autocast is not None
        assert autocast.enabled is (precision != "32-true")
        assert header.steps[0].max_grad_norm == 0.5
        found = StepRunner(from_capsule(folder), Program(Module(), training_loss), "cpu").compute()
        assert found.losses == bare.losses[2 * step - 2 : 2 * step]
        assert found.clipped_norm == header.steps[0].grad_norm


def test_an_exception_in_training_step_is_recorded(tmp_path):
    with pytest.raises(LookupError):
        train(tmp_path, RecorderCallback(tmp_path), bad=5)
    header = capsule.read_header(next(iter(capsule.find(tmp_path))))
    assert (header.step, header.reason, header.text) == (3, "exception", "LookupError: a bad batch")


def test_the_loss_of_a_training_step_needs_no_trainer():
    module = Module().eval()
    loss = training_loss(module, (torch.zeros(2, 6), torch.tensor([0, 1])))
    assert math.isfinite(loss.item())
    assert "log" not in vars(module)
    module.training_step = lambda _batch: None
    with pytest.raises(TypeError, match="no loss"):
        training_loss(module, ())
