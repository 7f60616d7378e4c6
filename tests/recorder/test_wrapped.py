"""Models that are wrapped: distributed, sharded, compiled."""

import logging
from typing import cast

import pytest
import torch
from torch import nn

from gradforensics import Recorder, capsule
from gradforensics.recorder.names import Names, is_compiled, sharded, unwrapped
from gradforensics.replay.program import Program
from gradforensics.replay.recording import from_capsule
from gradforensics.replay.step import StepRunner


@pytest.fixture
def alone(tmp_path):
    """A process group of one."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.3), nn.Linear(4, 2))


def train(model, folder, steps=3, **options):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    with Recorder(model, optimizer, folder, **options) as recorder:
        for _ in range(steps):
            for _ in range(2):
                loss = recorder.loss(model(recorder.batch(torch.randn(5, 3))).square().mean())
                (loss / 2).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("check", ["now", "late"])
def test_a_distributed_model_is_recorded_as_the_model_inside(alone, tmp_path, check):
    model = nn.parallel.DistributedDataParallel(small())
    train(model, tmp_path, max_grad_norm=0.1, accumulation=2, at_steps=(3,), check=check)
    (folder,) = capsule.find(tmp_path)
    header = capsule.read_header(folder)
    found = StepRunner(
        from_capsule(folder), Program(small(), lambda model, x: model(x).square().mean()), "cpu"
    ).compute()
    assert found.loss == header.steps[0].loss
    assert found.clipped_norm == header.steps[0].grad_norm


@pytest.mark.filterwarnings("ignore")  # of torch.distributed
def test_sharded_parameters_are_logged_but_not_recorded(alone, tmp_path, caplog):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = small()
    assert sharded(model) == ""
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    assert sharded(model) == "DTensor"
    with caplog.at_level(logging.WARNING):
        train(model, tmp_path, at_steps=(2,), pair_at=(2,))
    assert capsule.find(tmp_path) == []
    assert not list(tmp_path.glob("*.pt"))
    assert len((tmp_path / "gradforensics-steps.jsonl").read_text().splitlines()) == 3
    assert sum("sharded (DTensor)" in record.message for record in caplog.records) == 1


@pytest.mark.filterwarnings("ignore")  # of torch's compiler
def test_a_compiled_model_is_compiled_once_and_recorded_as_the_model_inside(tmp_path):
    calls = []

    def backend(graph, _inputs):
        calls.append(graph)
        return graph.forward

    torch.compiler.reset()
    inner = small()
    model = cast("nn.Module", torch.compile(inner, backend=backend))
    assert is_compiled(model)
    assert unwrapped(model) is inner
    train(model, tmp_path, accumulation=2, at_steps=(3,))
    assert len(calls) == 1
    header = capsule.read_header(capsule.find(tmp_path)[0])
    assert header.groups == (("0.weight", "0.bias", "2.weight", "2.bias"),)
    assert header.steps[0].micro_batches[0].autocast == capsule.Autocast("cpu", False, "bfloat16")


def test_names_leave_out_what_wrappers_put_in():
    inner = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    outer = nn.ModuleDict({"_orig_mod": inner, "head": inner[0]})
    names = Names(outer)
    assert list(names.parameters) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert names.tied == {"head.weight": "0.weight", "head.bias": "0.bias"}
    assert list(names.buffers) == ["1.running_mean", "1.running_var", "1.num_batches_tracked"]
