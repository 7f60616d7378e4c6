"""What a log tells of the learning rate that was applied in a step, and between two checkpoints.

Some loggers write the rate of a step beside it, others that of the next step, and many do not log every step. Logs that
are not counted in optimizer steps tell nothing here.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gradforensics.tables import Evidence, Series


def between(evidence: Evidence, first: int, last: int) -> np.ndarray:
    """The logged rates of the steps first < step <= last, float64 (n,); empty where there are none."""
    series = evidence.series("lr")
    if series is None or series.step_unit != "step":
        return np.zeros(0)
    good = series.good
    rates: np.ndarray = good.values[(good.steps > first) & (good.steps <= last)]
    return rates


def at_every_step(evidence: Evidence, first: int, last: int) -> np.ndarray | None:
    """The rates of the steps first < step <= last, float64 (last - first,), interpolated between logged ones.

    None where the log does not reach over them, up to the distance of its points.
    """
    series = evidence.series("lr")
    if series is None or series.step_unit != "step" or len(series.good) < 2:
        return None
    good = series.good
    reach = max(1.0, good.cadence)
    if good.steps[0] > first + 1 + reach or good.steps[-1] < last - reach:
        return None
    rates: np.ndarray = np.interp(np.arange(first + 1, last + 1), good.steps, good.values)
    return rates


class Window(NamedTuple):
    """The logged rates around a step: the lowest and highest one, widened by the digits of the log."""

    low: float
    high: float

    def holds(self, rate: float, tolerance: float, peak: float) -> bool:
        """Whether a rate lies in it, up to a fraction of itself and a hundredth of the highest rate of the log."""
        slack = 0.01 * peak
        return self.low * (1.0 - tolerance) - slack <= rate <= self.high * (1.0 + tolerance) + slack


def around(series: Series, step: int) -> Window | None:
    """What a log tells of the rate that was applied in a step, None where it has no point near it.

    From the last point before the step to the first after it: some loggers write the rate of the next step.
    """
    good = series.good
    if not len(good):
        return None
    reach = max(2.0 * good.cadence, 2.0)
    before = max(int(np.searchsorted(good.steps, step - 1, side="right")) - 1, 0)
    after = min(int(np.searchsorted(good.steps, step + 1, side="left")), len(good) - 1)
    if good.steps[before] > step + reach or good.steps[after] < step - reach:
        return None
    part = good.values[before : after + 1]
    return Window(float(part.min()) - good.resolution, float(part.max()) + good.resolution)
