"""The step log as a run: what `analyze` reads of it, and the pair of checkpoints that its exact detectors want."""

import json

import pytest
import torch
from torch import nn

from gradforensics import Recorder
from gradforensics.evidence.gather import gather
from gradforensics.recorder.log import StepLog, by_module
from gradforensics.recorder.steps import MicroRecord, StepRecord, kept
from gradforensics.tables import KINDS
from gradforensics.torch_state import RandomState


def train(folder, steps=40, check="now", pair_at=(), schedule=False, **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(50, 32), nn.Flatten(), nn.Linear(128, 64), nn.BatchNorm1d(64), nn.Linear(64, 5))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
    with Recorder(model, optimizer, folder, check=check, pair_at=pair_at, **options) as recorder:
        for step in range(1, steps + 1):
            if schedule:
                optimizer.param_groups[0]["lr"] = 3e-3 * step / steps
            ids, labels = recorder.batch((torch.randint(50, (16, 4)), torch.randint(5, (16,))))
            loss = recorder.loss(nn.functional.cross_entropy(model(ids), labels))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model, optimizer


def read(folder):
    (evidence,) = gather([folder])
    assert evidence.notices == []
    return evidence


@pytest.mark.parametrize("check", ["now", "late"])
def test_analyze_reads_loss_gradient_norm_rate_and_the_norm_of_every_module(check, tmp_path):
    train(tmp_path, check=check, schedule=True)
    evidence = read(tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "gradforensics-steps.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, 41))
    for name in ("loss", "grad_norm", "lr"):
        series = evidence.series(name)
        assert series.steps.tolist() == list(range(1, 41))
        assert series.values.tolist() == [row[name] for row in rows]
    assert evidence.series("grad_norm/2").steps.tolist() == [10, 20, 30, 40]
    modules = [value for name, value in rows[9].items() if name.startswith("grad_norm/")]
    assert sum(value**2 for value in modules) ** 0.5 == pytest.approx(rows[9]["grad_norm"], rel=1e-6)


@pytest.mark.parametrize("check", ["now", "late"])
def test_the_norm_of_a_short_group_is_not_mixed_with_norms_from_before_clipping(check, tmp_path):
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder(model, optimizer, tmp_path, max_grad_norm=1e-3, accumulation=3, check=check) as recorder:
        for count in (3, 1):  # the last group of an epoch is short
            for _ in range(count):
                x, y = recorder.batch((torch.randn(16, 8), torch.randint(4, (16,))))
                recorder.loss(nn.functional.cross_entropy(model(x), y)).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
            optimizer.step()
            optimizer.zero_grad()
    whole, short = [json.loads(line) for line in (tmp_path / "gradforensics-steps.jsonl").read_text().splitlines()]
    assert whole["grad_norm"] > 0.1
    assert "grad_norm_clipped" not in whole
    assert short["grad_norm_clipped"] == pytest.approx(1e-3, rel=1e-3)
    assert "grad_norm" not in short


def test_what_is_not_finite_is_read_as_such(tmp_path):
    log = StepLog(tmp_path, 0, 1)
    for step, loss in enumerate([1.0, float("nan"), float("inf"), 2.0], 1):
        log.write(record(step, loss), scaled=False)
    log.close()
    codes = read(tmp_path).series("loss").codes
    assert [KINDS[code] for code in codes] == ["finite", "nan", "posinf", "finite"]


def test_memory_at_fixed_phases_is_read_as_series(tmp_path):
    log = StepLog(tmp_path, 3, 8)
    for step in range(1, 4):
        one = record(step, 1.0)
        one.memory = {
            "memory_allocated": step << 30,
            "memory_allocated/after_forward": 5 << 30,
            "memory_reserved": 7 << 30,
        }
        log.write(one, scaled=True)
    log.close()
    assert (tmp_path / "gradforensics-steps-rank3.jsonl").exists()
    evidence = read(tmp_path)
    assert evidence.series("memory_allocated").values.tolist() == [step << 30 for step in (1, 2, 3)]
    assert evidence.series("memory_reserved").values.tolist() == [7 << 30] * 3
    assert evidence.series("loss_scale").values.tolist() == [1024.0] * 3
    assert evidence.series("memory_allocated/after_forward").values.tolist() == [5 << 30] * 3


def record(step, loss):
    micro = MicroRecord(kept(torch.ones(2)), RandomState.capture(), loss=loss)
    return StepRecord(step, [micro], [{"lr": 0.1}], scale=1024.0, norm=1.0)


def test_norms_of_a_module_add_up_as_squares():
    assert by_module({"a.weight": 3.0, "a.bias": 4.0, "b.c.weight": 1.0, "d": 2.0}) == {"a": 5.0, "b.c": 1.0, "d": 2.0}


@pytest.mark.parametrize("check", ["now", "late"])
def test_the_exact_detectors_recover_the_rate_from_the_pair(check, tmp_path):
    model, _ = train(tmp_path, steps=31, check=check, pair_at=(30,), schedule=True)
    assert sorted(path.name for path in tmp_path.glob("*.pt")) == ["checkpoint-29.pt", "checkpoint-30.pt"]
    evidence = read(tmp_path)
    recovered = evidence.table("travels")["recovered_lr"].drop_nulls().to_list()
    assert recovered
    assert recovered == pytest.approx([3e-3 * 30 / 31] * len(recovered), rel=2e-3)
    saved = torch.load(tmp_path / "checkpoint-30.pt", weights_only=True)
    assert saved["step"] == 30
    assert set(saved["model"]) == set(model.state_dict())
    assert not list(tmp_path.glob(".*.partial"))


def test_the_checkpoint_before_has_the_buffers_of_before(tmp_path):
    model, _ = train(tmp_path, steps=3, pair_at=(3,))
    before, after = (torch.load(tmp_path / f"checkpoint-{step}.pt", weights_only=True)["model"] for step in (2, 3))
    assert int(before["3.num_batches_tracked"]) == 2
    assert int(after["3.num_batches_tracked"]) == 3
    assert torch.equal(after["3.running_mean"], model[3].running_mean)
    assert not torch.equal(before["3.running_mean"], after["3.running_mean"])
