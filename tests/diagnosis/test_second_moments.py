"""Gradients over depth and over time, by the second moments that real training saved."""

import math
from functools import partial

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

from gradforensics.diagnosis.checks import second_moments as checks
from gradforensics.diagnosis.vocabulary import Missing
from gradforensics.evidence.gather import gather
from gradforensics.tables import TABLES, Evidence, SeriesFrame, SeriesKey, series_frame

FADES = partial(
    checks.second_moment_fades_with_depth,
    slope=0.3, ratio=1e-4, layers=4, settled=0, apart=20, checkpoints=1, below=0.0,
)  # fmt: skip


def hit_of(answer):
    """The one hit of an answer."""
    assert isinstance(answer, list)
    (hit,) = answer
    return hit


class Deep(nn.Module):
    def __init__(self, activation, depth=7, width=6):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.activation = activation

    def weights(self):
        return [weight for name, weight in self.named_parameters() if name.endswith("weight")]

    def forward(self, x):
        for layer in self.layers:
            x = self.activation(layer(x))
        return x


def trained(folder, activation, *, betas=(0.9, 0.95), saved=(30,), steps=30):
    """Train, save; the running means of the true squared gradients of each layer's weight."""
    torch.manual_seed(0)
    model = Deep(activation)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=betas, eps=1e-15)
    squares = np.zeros(len(model.layers))
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        model(torch.randn(16, 6)).square().mean().backward()
        true = [float(weight.grad.double().square().mean()) for weight in model.weights()]
        squares = betas[1] * squares + (1 - betas[1]) * np.array(true)
        optimizer.step()
        if step in saved:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, folder / f"checkpoint-{step}.pt")
    (evidence,) = gather([folder])
    return evidence, np.sqrt(squares / (1 - betas[1] ** steps))


def certain(evidence):
    """As if the names of the states were confirmed: short runs of small layers move too little for that."""
    evidence.tables["checkpoints"] = evidence.table("checkpoints").with_columns(naming_sure=pl.lit("confirmed"))
    return evidence


@pytest.mark.parametrize("beta2", [0.95, 0.999])
def test_the_slope_over_depth_is_that_of_the_true_gradients(tmp_path, beta2):
    evidence, rms = trained(tmp_path, torch.sigmoid, betas=(0.9, beta2))
    hit = hit_of(FADES(certain(evidence)))
    expected = np.polyfit(np.arange(len(rms)), np.log10(rms), 1)[0]
    assert hit.facts["slope"] == pytest.approx(expected, rel=1e-4)
    assert hit.facts["ratio"] == pytest.approx(rms[0] / rms[-1], rel=1e-4)
    assert hit.facts["first"] == pytest.approx(rms[0], rel=1e-4)
    assert hit.facts["last"] == pytest.approx(rms[-1], rel=1e-4)
    assert hit.tensor == "layers.0.weight"


def test_a_healthy_stack_does_not_fade_and_two_checkpoints_must_lie_apart(tmp_path):
    evidence, _ = trained(tmp_path, nn.functional.silu)
    assert FADES(certain(evidence), slope=1.0) == []
    assert isinstance(FADES(evidence, checkpoints=2), Missing)


def test_two_checkpoints_in_a_row_are_one_state_of_affairs(tmp_path):
    evidence, _ = trained(tmp_path, torch.sigmoid, saved=(29, 30))
    certain(evidence)
    assert FADES(evidence, checkpoints=2) == []
    assert hit_of(FADES(evidence, checkpoints=2, apart=1)).facts["checkpoints"] == 2


# -- tables --------------------------------------------------------------------------------------------------------


def table(name, rows):
    return pl.DataFrame([{c: row.get(c) for c in TABLES[name]} for row in rows], schema=TABLES[name])


def deep(means, *, dtype="float32", optimizer="adamw", naming="exact", kind="layers.{}.weight", first=None):
    """One checkpoint at step 500 whose layers have these means of v (and, where given, this norm of m)."""
    names = [kind.format(number) for number in range(len(means))]
    common = {"checkpoint": "c", "step": 500, "shape": [4, 4], "count": 16, "nan": 0, "posinf": 0, "neginf": 0}
    rows = [
        {**common, "role": "exp_avg_sq", "name": name, "dtype": dtype, "mean": mean}
        for name, mean in zip(names, means, strict=True)
    ]
    if first is not None:
        rows += [{**common, "role": "exp_avg", "name": name, "dtype": dtype, "l2": first} for name in names]
    group = {"checkpoint": "c", "group": 0, "optimizer": optimizer, "betas": [0.9, 0.95], "names": names}
    tables = {
        "checkpoints": table("checkpoints", [{"path": "c", "step": 500, "naming_sure": naming}]),
        "groups": table("groups", [{**group, "step_max": 500}]),
        "tensors": table("tensors", rows),
    }
    return Evidence("run", tables=tables)


FADING = [1e-20, 1e-16, 1e-12, 1e-8, 1e-4]


def test_a_fading_stack_is_found():
    hit = hit_of(FADES(deep(FADING)))
    assert (hit.step, hit.facts["layers"]) == (500, 5)
    assert hit.facts["slope"] == pytest.approx(2.0)


@pytest.mark.parametrize(
    "changes",
    [
        {"dtype": "float16"},  # cannot hold such squares
        {"optimizer": "adafactor"},
        {"naming": "likely"},
        {"kind": "layers.{}.norm.bias"},
    ],
)
def test_where_the_second_moments_do_not_say_it_nothing_is_judged(changes):
    assert isinstance(FADES(deep(FADING, **changes)), Missing)


def test_exact_zeros_are_no_fading_but_underflow_beside_a_first_moment_is():
    assert isinstance(FADES(deep([0.0, *FADING[1:]])), Missing)
    hit = hit_of(FADES(deep([0.0, 0.0, 0.0, 0.0, 1e-4], first=1e-22)))
    assert hit.facts["first"] < 1e-20


def test_gradients_that_fade_towards_the_last_layer_are_another_matter():
    assert FADES(deep(FADING[::-1])) == []


# -- over time -----------------------------------------------------------------------------------------------------


def chain(totals, *, beta2=0.99, every=50, spike=None, points=260):
    """Checkpoints every `every` steps from 50 on whose second moments have these means; a spike at a step."""
    steps = [50 + every * index for index in range(len(totals))]
    names = ["w"]
    group = {"group": 0, "optimizer": "adamw", "betas": [0.9, beta2], "names": names}
    common = {"role": "exp_avg_sq", "name": "w", "shape": [4, 4], "count": 16, "nan": 0, "posinf": 0, "neginf": 0}
    rows = [{**common, "checkpoint": f"c{s}", "step": s, "mean": v} for s, v in zip(steps, totals, strict=True)]
    tables = {
        "checkpoints": table("checkpoints", [{"path": f"c{s}", "step": s, "naming_sure": "exact"} for s in steps]),
        "groups": table("groups", [{**group, "checkpoint": f"c{s}", "step_max": s} for s in steps]),
        "tensors": table("tensors", rows),
    }
    evidence = Evidence("run", tables=tables)
    noise = np.random.default_rng(0).normal(0.0, 0.01, (2, points))
    values = {"loss": 3.0 + noise[0], "grad_norm": 1.0 + noise[1]}
    for name, series in values.items():
        if spike is not None:
            series[spike - 1 : spike + 2] += 3.0
        key = SeriesKey("run", "train", name, name, "log")
        evidence.frames[key] = SeriesFrame(series_frame({"step": list(range(1, points + 1))}, series.tolist()))
    return evidence


DECAYS = partial(
    checks.second_moment_decays_until_spike,
    near=0.8, fall=2.0, checkpoints=3, within=8, window=64, score=7.0, back=3.0, rise=0.1,
)  # fmt: skip
FREE = [1.0, math.exp(50 * math.log(0.99)), math.exp(100 * math.log(0.99))]


def test_free_decay_over_three_checkpoints_and_a_spike_right_after_is_found():
    hit = hit_of(DECAYS(chain(FREE, spike=154)))
    assert (hit.step, hit.after, hit.facts["lead"]) == (150, 50, 4)
    assert hit.facts["pace"] == pytest.approx(1.0)


@pytest.mark.parametrize("spike", [None, 140, 170])
def test_free_decay_without_a_spike_right_after_is_no_finding(spike):
    assert DECAYS(chain(FREE, spike=spike)) == []


def test_gradients_that_shrink_with_a_decaying_rate_are_no_free_decay():
    assert DECAYS(chain([1.0, 0.8, 0.64], spike=154)) == []
    assert isinstance(DECAYS(chain([1.0, 0.6])), Missing)
