"""When a step is worth a capsule."""

import math
import random

import pytest

from gradforensics.recorder.judge import Finding, Judge, Spikes, nonfinite


def healthy(count, seed=0):
    noise = random.Random(seed)
    return [2.0 + 3.0 * math.exp(-step / 200) + noise.gauss(0.0, 0.1) for step in range(count)]


def test_the_score_is_the_distance_from_the_median_in_robust_deviations():
    spikes = Spikes(window=4, fewest=4, silent=4)
    for value in (1.0, 2.0, 3.0, 4.0):
        assert spikes.score(value) == 0.0
    assert spikes.score(10.0) == pytest.approx((10.0 - 2.5) / (1.4826 * 1.0))
    assert spikes.score(3.5) == 0.0  # the window is now 2, 3, 4, 10, its median 3.5


def test_noise_around_a_constant_is_measured_at_a_thousandth_of_it_at_least():
    spikes = Spikes(window=64, fewest=4, silent=4)
    for _ in range(64):
        spikes.score(2.0)
    assert spikes.score(2.01) == pytest.approx(5.0)


def test_two_thousand_healthy_steps_are_silent_and_one_spike_among_them_is_told():
    for step in (None, 50, 1500):
        judge = Judge()
        values = healthy(2000)
        if step is not None:
            values[step] *= 4.0
        told = [i for i, v in enumerate(values) if judge.look([v], 1.0, skipped=False, scaled=False)]
        assert told == ([1500] if step == 1500 else [])


def test_ten_spikes_in_the_window_do_not_hide_the_next_and_a_level_that_stays_high_is_told_once():
    spikes = Spikes()
    for index, value in enumerate(healthy(1000)[500:628]):
        spikes.score(value * 4.0 if index % 12 == 0 and index > 100 else value)
    assert spikes.score(12.0) > 7
    judge, told = Judge(), []
    for step, value in enumerate(healthy(300)):
        found = judge.look([value], 5.0 if step < 200 else 50.0, skipped=False, scaled=False)
        told += [step] if found else []
    assert told == [200]


def test_a_fault_that_lasts_is_told_at_its_first_step_and_again_after_a_good_one():
    judge = Judge()
    values = [1.0, math.nan, math.nan, 1.0, math.inf]
    told = [judge.look([1.0, v], v, skipped=False, scaled=False) for v in values]
    assert [finding is not None for finding in told] == [False, True, False, False, True]
    assert told[1] == Finding("nonfinite_loss", "the loss of micro-batch 1 is nan")


def test_an_infinite_gradient_is_a_fault_only_without_a_scaler():
    found = Judge().look([1.0], math.inf, skipped=False, scaled=False)
    assert found is not None
    assert found.reason == "nonfinite_gradient"
    assert Judge().look([1.0], math.inf, skipped=True, scaled=True) is None
    assert nonfinite([None, 1.0], None) is None
