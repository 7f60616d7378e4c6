"""The length of a schedule is read off the rates that it made."""

import math

import numpy as np
import pytest

from gradforensics.schedule_signals import fit

STEPS = np.arange(1, 401)


def rates(shape, warmup, total, floor=0.0, peak=3e-4):
    """The slow obvious computation: one step after the other."""
    values = []
    for step in STEPS.tolist():
        done = min(1.0, max(0.0, (step - warmup) / (total - warmup)))
        down = {"linear": 1 - done, "cosine": 0.5 * (1 + math.cos(math.pi * done)), "root": 1 - math.sqrt(done)}[shape]
        values.append(peak * step / warmup if step < warmup else floor + (peak - floor) * down)
    return np.array(values)


def fitted(steps, values, resolution, tolerance):
    found = fit(steps, values, resolution, tolerance)
    assert found is not None
    return found


@pytest.mark.parametrize("shape", ["linear", "cosine", "root"])
@pytest.mark.parametrize(("warmup", "total"), [(40, 400), (1, 400), (40, 200), (40, 1600)])
def test_the_total_and_the_warm_up_are_recovered(shape, warmup, total):
    found = fitted(STEPS, rates(shape, warmup, total), 0.0, 0.01)
    assert (found.shape, found.floor) == (shape, 0.0)
    assert found.total == pytest.approx(total, rel=0.01)
    assert found.begin == pytest.approx(warmup, abs=5)


def test_a_floor_is_recovered():
    found = fitted(STEPS, rates("cosine", 20, 300, floor=3e-5), 0.0, 0.01)
    assert found.floor == pytest.approx(3e-5)
    assert found.total == pytest.approx(300, rel=0.01)


def test_a_printed_rate_is_read_through_its_rounding():
    values = np.round(rates("cosine", 20, 400), 6)
    assert fitted(STEPS, values, 1e-6, 0.01).total == pytest.approx(400, rel=0.01)


def test_a_constant_rate_has_no_length():
    found = fitted(STEPS, np.full(400, 1e-3), 0.0, 0.01)
    assert (found.shape, found.total) == ("constant", math.inf)


def test_a_rate_that_rises_to_its_last_point_is_no_plateau():
    assert fitted(STEPS, STEPS * 1e-6, 0.0, 0.01).shape == "rising"


@pytest.mark.parametrize(
    "values",
    [
        np.concatenate([rates("cosine", 20, 400)[:200], rates("cosine", 20, 400)[:200]]),
        np.repeat([1e-3, 1e-4, 1e-5, 1e-6], 100),
        np.zeros(400),
        np.full(3, 1e-3),
    ],
    ids=["begun anew", "stairs", "zero", "three points"],
)
def test_what_is_no_single_decay_is_not_read(values):
    assert fit(STEPS[: len(values)], values, 0.0, 0.01) is None
