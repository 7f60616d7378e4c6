"""Trends, profiles and jumps against the slow, obvious computation and on noise of known size."""

import itertools

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from gradforensics import trend_signals

FLOATS = st.floats(-1e6, 1e6, allow_nan=False)


@given(arrays(float, st.integers(2, 40), elements=FLOATS))
def test_theil_sen_is_the_median_slope_of_all_pairs(values):
    x = np.arange(float(len(values)))
    slow = np.median([(values[j] - values[i]) / (j - i) for i, j in itertools.combinations(range(len(values)), 2)])
    assert trend_signals.theil_sen(x, values) == pytest.approx(slow, abs=1e-6)


@given(arrays(float, st.integers(1, 60), elements=FLOATS), st.integers(1, 70))
@example(np.arange(51.0), 2)
def test_blocks_cover_every_point_once_but_large_ones_are_as_long_as_the_shortest(values, count):
    medians = trend_signals.block_medians(values, count)
    starts = trend_signals.block_starts(len(values), count)
    assert len(medians) == len(starts) == min(len(values), count)
    assert starts[0] == 0
    parts = np.split(values, starts[1:])
    shortest = min(map(len, parts))
    cut = [part[:shortest] if shortest > 20 else part for part in parts]
    assert [np.median(part) for part in cut] == pytest.approx(list(medians))


def test_a_line_is_a_trend_and_noise_is_none():
    rng = np.random.default_rng(0)
    x = np.arange(1000.0)
    line = trend_signals.trend(x, 5 + 0.01 * x)
    assert [line.r2, line.upwards, line.rise] == pytest.approx([1, 1, 9.99], rel=1e-2)
    noise = trend_signals.trend(x, rng.normal(0, 1, 1000))
    assert noise.r2 < 0.1
    assert noise.upwards < 0.7


def test_what_fills_up_is_steeper_early_than_late():
    x = np.arange(200.0)
    found = trend_signals.trend(x, np.log1p(x))
    assert found.late < 0.5 * found.early


def test_growth_is_found_from_where_it_begins_and_not_where_it_ends():
    steps = np.arange(400)
    late = np.concatenate([np.full(180, 100.0), np.linspace(100, 200, 220)])
    found = trend_signals.steady_growth(steps, late, 0, 0.9, 0.95, 0.1)
    assert found is not None
    assert found.start in (100, 200)
    assert found.last == pytest.approx(200, rel=0.05)
    full = np.concatenate([np.linspace(100, 200, 200), np.full(200, 200.0)])
    assert trend_signals.steady_growth(steps, full, 0, 0.9, 0.95, 0.1) is None


def test_many_points_grow_as_their_blocks_do():
    steps = np.arange(100_000)
    found = trend_signals.steady_growth(steps, 1e9 + 100.0 * steps, 50, 0.9, 0.95, 0.005)
    assert found is not None
    assert found.start == 50
    assert found.trend.slope == pytest.approx(100, rel=1e-3)


def test_epochs_in_one_order_are_alike_and_shuffled_ones_are_not():
    rng = np.random.default_rng(0)
    order = rng.normal(0, 1, 40)
    same = np.stack([order + rng.normal(0, 0.2, 40) - 0.1 * e for e in range(6)])
    assert trend_signals.likeness(same).correlation > 0.9
    shuffled = np.stack([rng.permutation(order) for _ in range(6)])
    assert abs(trend_signals.likeness(shuffled).correlation) < 0.2


def test_slow_shapes_and_one_odd_point_do_not_make_epochs_alike():
    rng = np.random.default_rng(1)
    stair = np.exp(-np.arange(40) / 10)
    profiles = stair + rng.normal(0, 0.05, (8, 40))
    profiles[:, -1] += 5
    assert trend_signals.likeness(profiles).correlation < 0.3


def test_the_error_of_a_jump_covers_the_truth():
    rng = np.random.default_rng(2)
    steps = np.arange(60)
    heights, away = [], []
    for _ in range(300):
        values = 0.01 * steps + (steps >= 30) * 0.5 + rng.normal(0, 0.2, 60)
        found = trend_signals.jump_at(steps, values, 30, 30)
        assert found is not None
        heights.append(found.height)
        away.append((found.height - 0.5) * found.errors / found.height)
    assert np.mean(heights) == pytest.approx(0.5, abs=0.03)
    assert np.std(away) == pytest.approx(1, abs=0.25)


def test_a_jump_needs_points_on_both_sides():
    steps = np.arange(40)
    assert trend_signals.jump_at(steps, steps.astype(float), 5, 20) is None
    assert trend_signals.jump_at(steps, steps.astype(float), 36, 20) is None
    flat = trend_signals.jump_at(steps, np.ones(40), 20, 20)
    assert flat is not None
    assert flat.height == pytest.approx(0)
