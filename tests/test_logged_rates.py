"""What a log tells of the learning rate around a step, between two steps and at every step."""

from typing import Any

import pytest

from gradforensics import logged_rates
from gradforensics.tables import Evidence, SeriesFrame, SeriesKey, series_frame


def log(step_unit="step"):
    """A log of every tenth step up to 100, whose rate is a hundredth of the step."""
    steps = list(range(10, 101, 10))
    columns: dict[str, list[Any]] = {"attempt": [0] * 10, "rank": [None] * 10, "step": steps, "epoch": [None] * 10}
    frame = series_frame(columns, [step / 100 for step in steps])
    return Evidence("run", frames={SeriesKey("run", "train", "lr", "lr", "log"): SeriesFrame(frame, step_unit)})


def test_a_logged_rate_is_looked_up_around_the_step():
    lr = log().series("lr")
    assert lr is not None
    assert logged_rates.around(lr, 45) == pytest.approx((0.4, 0.5))
    assert logged_rates.around(lr, 50) == pytest.approx((0.4, 0.6))  # some logs hold the rate of the next step
    assert logged_rates.around(lr, 100) == pytest.approx((0.9, 1.0))
    assert logged_rates.around(lr, 150) is None


def test_the_rates_between_two_steps_are_those_after_the_first_up_to_the_last():
    assert logged_rates.between(log(), 20, 40).tolist() == [0.3, 0.4]
    assert not len(logged_rates.between(log(), 40, 49))
    assert not len(logged_rates.between(Evidence("run"), 20, 40))


def test_rates_are_interpolated_over_the_steps_that_the_log_reaches():
    assert logged_rates.at_every_step(log(), 20, 30) == pytest.approx([step / 100 for step in range(21, 31)])
    assert logged_rates.at_every_step(log(), 80, 120) is None
    assert logged_rates.at_every_step(Evidence("run"), 20, 30) is None


def test_a_log_that_counts_something_else_tells_nothing():
    assert not len(logged_rates.between(log("micro_step"), 20, 40))
    assert logged_rates.at_every_step(log("micro_step"), 20, 30) is None
