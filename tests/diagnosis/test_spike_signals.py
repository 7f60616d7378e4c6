"""Spikes of a loss and its gradient norm: how high, what led, and whether the loss came back."""

import math

import numpy as np
import pytest

from gradforensics.spike_signals import recent_level, rising, spikes

WINDOW = 64


def found(steps, loss, norm, first=WINDOW):
    """The spikes as the rule asks for them."""
    levels = recent_level(loss, WINDOW), recent_level(norm, WINDOW)
    return spikes(steps, loss, norm, first, levels, 7.0, 3.0)


def quiet(n=300, seed=0):
    """Loss and gradient norm of a healthy run, white noise around 2.2 and 0.5."""
    generator = np.random.default_rng(seed)
    return np.arange(1, n + 1), generator.normal(2.2, 0.03, n), generator.normal(0.5, 0.03, n)


def test_the_recent_level_is_the_median_of_the_points_before():
    values = np.random.default_rng(0).normal(size=200)
    level = recent_level(values, WINDOW)
    assert np.isnan(level.median[:WINDOW]).all()
    for at in (WINDOW, 100, 199):
        before = values[at - WINDOW : at]
        assert level.median[at] == np.median(before)
        assert level.spread[at] == pytest.approx(1.4826 * np.median(np.abs(before - np.median(before))))


def test_a_long_series_has_nearly_the_same_level():
    values = np.random.default_rng(0).normal(5.0, 1.0, 100_000)
    level = recent_level(values, WINDOW)
    assert np.isfinite(level.median[WINDOW:]).all()
    exact = np.median(values[99_936:])
    assert level.median[-1] == pytest.approx(exact, abs=0.5)


def test_a_constant_series_has_a_spread_of_a_thousandth_of_its_level():
    level = recent_level(np.full(100, 4.0), WINDOW)
    assert level.spread[-1] == pytest.approx(0.004)


@pytest.mark.parametrize("seed", range(5))
def test_noise_has_no_spikes(seed):
    assert found(*quiet(2000, seed)) == []


def test_one_of_the_two_alone_is_no_spike():
    steps, loss, norm = quiet()
    for changed in (loss, norm):
        kept = changed[150]
        changed[150] = 9.0
        assert found(steps, loss, norm) == []
        changed[150] = kept


def test_what_led_is_told_in_steps():
    steps, loss, norm = quiet()
    norm[150:158] = 9.0
    loss[154:158] = 5.0
    (spike,) = found(steps, loss, norm)
    assert (spike.start, spike.lead) == (150, 4)
    assert spike.end is not None
    assert 154 <= spike.end <= 158
    assert spike.peak == 5.0


def test_a_gradient_long_before_the_loss_does_not_belong_to_it():
    steps, loss, norm = quiet()
    norm[140] = 9.0
    loss[154:158] = 5.0
    assert found(steps, loss, norm) == []


def test_a_new_level_is_steady_and_a_wild_one_is_not():
    steps, loss, norm = quiet(600)
    norm[300] = 9.0
    loss[300:] += 0.7
    (spike,) = found(steps, loss, norm)
    assert spike.end is None
    assert spike.steady
    assert spike.level == pytest.approx(2.9, abs=0.02)
    loss[300::2] += 1.0
    (wild,) = found(steps, loss, norm)
    assert not wild.steady


def test_nothing_counts_before_the_first_place():
    steps, loss, norm = quiet()
    norm[100] = loss[100] = 9.0
    assert len(found(steps, loss, norm)) == 1
    assert found(steps, loss, norm, first=120) == []


def test_a_spike_in_the_last_point_has_not_come_back():
    steps, loss, norm = quiet()
    norm[-1] = loss[-1] = 9.0
    (spike,) = found(steps, loss, norm)
    assert spike.end is None


def test_short_series_have_no_spikes():
    assert found(*quiet(10)) == []


def test_the_thirds_follow_the_binomial_distribution():
    counts, chance = rising(np.array([5.0, 50.0, 70.0, 75.0, 80.0, 85.0, 90.0, 99.0]), 100.0)
    assert counts == (1, 1, 6)
    assert chance == pytest.approx(sum(math.comb(8, k) * 2 ** (8 - k) for k in (6, 7, 8)) / 3**8)
    assert rising(np.array([]), 100.0) == ((0, 0, 0), 1.0)
