"""Axes of charts: their range, where a value lies in it, and round ticks. The script of the page does the same."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gradforensics.report.charts import Panel
from gradforensics.report.words import number

_HUGE = 1e300  # the range of two values near the largest double would be infinite


def ticks(low: float, high: float, count: int, *, whole: bool = False) -> list[float]:
    """Round numbers within [low, high], about `count` of them."""
    raw = (high - low) / max(1, count)
    if not raw > 0 or not math.isfinite(raw):
        return [low]
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * (1 - 1e-9))
    if whole:
        step = max(1.0, round(step))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [k * step for k in range(first, last + 1)]


def tick_labels(values: Sequence[float]) -> list[str]:
    """Labels of one axis, all with the same number of decimals."""
    if len(values) < 2:
        return [number(v) for v in values]
    step = values[1] - values[0]
    top = max(abs(v) for v in values)
    if top >= 1e6 or top < 1e-3:
        power = math.floor(math.log10(top) + 1e-9)
        decimals = max(0, power - math.floor(math.log10(step) + 1e-9))
        return ["0" if v == 0 else _scientific(v, power, decimals) for v in values]
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    return [f"{v:,.{decimals}f}" if abs(v) >= 1e4 else f"{v:.{decimals}f}" for v in values]


def _scientific(value: float, power: int, decimals: int) -> str:
    return f"{value / 10.0**power:.{decimals}f}e{power}"


class Axis:
    """The value axis of one panel: its range and where a value lies in it (0 bottom, 1 top)."""

    def __init__(self, panel: Panel) -> None:
        values = np.concatenate([line.values for line in panel.lines] or [np.empty(0)])
        values = np.clip(values, -_HUGE, _HUGE)
        self.log = panel.log
        self.empty = not len(values)
        if self.log:
            values = np.log10(values[values > 0])
        low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
        if self.log:
            pad = 0.04 * (high - low)
            self.low, self.high = low - pad, high + pad
            return
        constant = high - low <= 1e-9 * max(abs(low), abs(high))
        pad = (0.5 * abs(high) or 1.0) if constant else 0.06 * (high - low)
        head = 2.5 * pad if panel.bad else pad  # the strokes of non-finite points lie along the top
        self.low, self.high = low - pad, high + head
        if 0 <= low <= 0.25 * high:
            self.low = 0.0 if low > 0 else -0.03 * high

    def at(self, values: np.ndarray) -> np.ndarray:
        """Where values lie; values that a log axis cannot show lie on its bottom."""
        values = np.clip(values, -_HUGE, _HUGE)
        if self.log:
            floor = 10.0 ** max(self.low, -300)
            values = np.log10(np.maximum(values, floor))
        return (values - self.low) / (self.high - self.low)

    def ticks(self, count: int) -> list[tuple[float, str]]:
        """Positions (0 to 1) and labels of the ticks."""
        if self.empty:
            return []
        if not self.log:
            values = ticks(self.low, self.high, count)
            return [
                ((v - self.low) / (self.high - self.low), t) for v, t in zip(values, tick_labels(values), strict=True)
            ]
        powers = list(range(math.ceil(self.low), math.floor(self.high) + 1))
        powers = powers[:: max(1, -(-len(powers) // (count + 1)))]
        return [((p - self.low) / (self.high - self.low), f"{10.0**p:g}" if -4 < p < 5 else f"1e{p}") for p in powers]
