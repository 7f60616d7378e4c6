"""Signals against the slow, obvious computation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from gradforensics import signals

FLOATS = st.floats(-1e6, 1e6, allow_nan=False)


@given(arrays(float, st.integers(1, 60), elements=FLOATS), st.integers(1, 15))
def test_rolling_median_is_the_median_of_each_window(values, window):
    half = window // 2
    slow = [np.median(values[max(0, i - half) : i + half + 1]) for i in range(len(values))]
    assert signals.rolling_median(values, window) == pytest.approx(slow)


def test_noise_sd_of_noise_on_a_trend():
    rng = np.random.default_rng(0)
    values = np.linspace(5, 1, 5000) + rng.normal(0, 0.3, 5000)
    assert signals.noise_sd(values) == pytest.approx(0.3, rel=0.05)
    assert signals.noise_sd(np.array([1.0, 2.0])) == 0.0


def test_slope_agrees_with_least_squares_and_covers_the_truth():
    rng = np.random.default_rng(1)
    steps = np.arange(500) * 10
    values = 4.0 - 1e-4 * steps + rng.normal(0, 0.05, 500)
    found = signals.slope(steps, values)
    assert found.per_step == pytest.approx(np.polyfit(steps, values, 1)[0])
    assert abs(found.per_step + 1e-4) < 4 * found.error


def test_standard_error_grows_with_autocorrelation():
    rng = np.random.default_rng(2)
    white = rng.normal(0, 1, 1000)
    red = np.convolve(white, np.ones(5) / np.sqrt(5), mode="same")  # the same variance, correlated over five points
    steps = np.arange(1000)
    assert signals.slope(steps, red).error > 1.5 * signals.slope(steps, white).error


@pytest.mark.parametrize(
    ("values", "expected"),
    [(np.array([1.0, -1.0] * 50), -1.0), (np.random.default_rng(3).normal(0, 1, 5000), -0.5), (np.ones(10), 0.0)],
)
def test_lag1_of_differences(values, expected):
    assert signals.lag1_of_differences(values) == pytest.approx(expected, abs=0.05)


@given(st.lists(st.booleans(), max_size=40), st.integers(1, 6))
def test_first_run(mask, length):
    slow = next((i for i in range(len(mask) - length + 1) if all(mask[i : i + length])), None)
    assert signals.first_run(np.array(mask, dtype=bool), length) == slow


def test_departure_finds_where_the_loss_left_for_good():
    values = np.concatenate([np.linspace(2, 1, 50), np.linspace(1, 5, 20), np.full(30, 5.0)])
    found = signals.departure(np.arange(1, len(values) + 1), values, 7, 0.25, 3)
    assert found is not None
    assert (found.best, found.end) == pytest.approx((1.0, 5.0), abs=0.1)
    assert 50 <= found.start <= 54
    assert found.share == pytest.approx(0.48, abs=0.03)


def test_a_spike_that_comes_back_is_no_departure():
    values = np.concatenate([np.linspace(2, 1, 50), np.full(5, 50.0), np.full(45, 1.0)])
    assert signals.departure(np.arange(1, len(values) + 1), values, 7, 0.25, 3) is None


@pytest.mark.parametrize("seed", range(20))
def test_noise_alone_is_no_departure(seed):
    rng = np.random.default_rng(seed)
    assert signals.departure(np.arange(1, 201), 1.0 + rng.normal(0, 0.2, 200), 7, 0.25, 3) is None
