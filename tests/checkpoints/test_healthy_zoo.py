"""The healthy sample runs with checkpoints are read as they are: steps, optimizers, names, moments, no complaint."""

import tomllib
from pathlib import Path

import polars as pl
import pytest

from gradforensics.evidence.gather import gather

SAMPLES = Path(__file__).parents[2] / "sample_runs"
ZOO = sorted(
    path.parent.name
    for path in SAMPLES.glob("healthy-*/expected.toml")
    if tomllib.loads(path.read_text()).get("checkpoints")
)
ADAM = {"adam", "adamw", "amsgrad"}
KINDS = {
    "healthy-8bit": {"adam-8bit"}, "healthy-adafactor": {"adafactor"}, "healthy-adafactor-torch": {"adafactor"},
    "healthy-amsgrad": {"amsgrad"}, "healthy-bf16-export": set(), "healthy-gan-checkpoints": {"adam"},
    "healthy-kahan": {""}, "healthy-last-only": set(),
    "healthy-lightning-gan": {"adam"}, "healthy-lion": {"lion"}, "healthy-muon": {"muon", "adamw"},
    "healthy-rmsprop": {"rmsprop"}, "healthy-sgd": {"sgd"}, "healthy-stochastic-rounding": {""},
    "healthy-target-network": {"adam"},
}  # fmt: skip
"""All others: {"adamw"}."""
STEPS = {
    "healthy-autocast": [120, 121], "healthy-batchnorm": [60, 61, 120], "healthy-bf16-export": [120, 121, 240],
    "healthy-fine-tuned": [1, 40, None], "healthy-first-steps": [0, 1], "healthy-fsdp1": [60],
    "healthy-gan-checkpoints": [500, 501, 600], "healthy-kahan": [120, 121], "healthy-last-only": [None],
    "healthy-lightning-gan": [400, 402],
    "healthy-lora": [1, 40, 41], "healthy-onecycle": [71, 72], "healthy-plateau": [120, 240],
    "healthy-sequential-lr": [20, 21], "healthy-stochastic-rounding": [120, 121],
    "healthy-target-network": [200, 201, 400], "healthy-unfreezing": [40, 41, 80], "healthy-zero-init": [1, 2],
}  # fmt: skip
"""All others: [60, 61]."""
NOT_CERTAIN = {"healthy-fine-tuned", "healthy-unfreezing"}
"""Of these, states of equal shapes cannot all be told apart: no file has the order, or groups joined in between."""
KEEPING = {"healthy-frozen-config", "healthy-sharded"}
"""Of these, some of 8 elements keep their ids."""
RATES = {
    "healthy-accelerate": {3e-3}, "healthy-amsgrad": {3e-3}, "healthy-autocast": {1e-3}, "healthy-batchnorm": {3e-3},
    "healthy-ema": {3e-3}, "healthy-frozen": {1e-3}, "healthy-frozen-config": {1e-3}, "healthy-fsdp2": {3e-3},
    "healthy-fused": {3e-3}, "healthy-gan-checkpoints": {5e-4}, "healthy-lightning-gan": {5e-4},
    "healthy-lora": {1e-3}, "healthy-muon": {3e-3},
    "healthy-layer-decay": {4e-3 * 0.7**level for level in range(4)}, "healthy-pruned": {1e-3},
    "healthy-resumed": {3e-3}, "healthy-sequential-lr": {4e-3}, "healthy-target-network": {1e-3},
    "healthy-unseen-rows": {3e-3}, "healthy-zero2": {1e-3},
}  # fmt: skip
"""What the optimizer applied in the one step between two checkpoints, by the recipes."""


def evidence(name):
    (found,) = gather([SAMPLES / name / "run"])
    return found


def test_the_zoo_is_there():
    assert len(ZOO) >= 40
    assert {*KINDS, *STEPS, *NOT_CERTAIN, *RATES} <= set(ZOO)


@pytest.mark.parametrize("name", ZOO)
def test_a_healthy_run_is_read_as_it_is(name):
    found = evidence(name)
    checkpoints, groups, moments = (found.table(table) for table in ("checkpoints", "groups", "moments"))
    paths = set(checkpoints["path"])

    assert [notice for notice in found.notices if Path(notice.source).parts[0] in paths] == []
    assert sorted(checkpoints["step"].to_list(), key=lambda step: (step is None, step)) == STEPS.get(name, [60, 61])
    assert checkpoints["complete"].all()
    assert checkpoints["nonfinite"].sum() == 0
    kinds = set(groups.filter(pl.col("names").list.len() > 0)["optimizer"])
    assert kinds == KINDS.get(name, {"adamw"})
    if name not in NOT_CERTAIN:
        certain = checkpoints.filter(pl.col("path").is_in(groups["checkpoint"].to_list()))
        assert certain["naming_sure"].is_in(["exact", "confirmed"]).all()
        states = found.table("tensors").filter(pl.col("role").is_in(["exp_avg", "exp_avg_sq", "momentum"]))
        assert states["name"].str.contains(r"(?:^|\.)state\.").any() == (name in KEEPING)
    if moments is not None:
        assert moments["bound_violations"].sum() == moments["nonfinite"].sum() == moments["v_negative"].sum() == 0
    if kinds and kinds <= ADAM:
        assert moments.height == found.table("tensors").filter(pl.col("role") == "exp_avg_sq").height
        assert (moments["bound_violations"].null_count() > 0) == (name == "healthy-onecycle")


@pytest.mark.parametrize("name", RATES)
def test_the_rate_of_the_step_between_two_checkpoints_is_recovered(name):
    rates = evidence(name).table("travels").drop_nulls("recovered_lr")["recovered_lr"].to_list()
    assert rates
    for rate in rates:
        assert any(rate == pytest.approx(applied, rel=1e-3) for applied in RATES[name])
    assert all(any(rate == pytest.approx(applied, rel=1e-3) for rate in rates) for applied in RATES[name])


@pytest.mark.parametrize(
    "name", ["healthy-kahan", "healthy-stochastic-rounding", "healthy-onecycle", "healthy-lion", "healthy-8bit"]
)
def test_where_adams_formulas_do_not_hold_nothing_is_recovered(name):
    travels = evidence(name).table("travels")
    assert travels.height > 0
    assert travels["recovered_lr"].null_count() == travels["recovered_wd"].null_count() == travels.height
