"""Whether two files show the same numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from gradforensics.evidence import names
from gradforensics.evidence.readings import Track
from gradforensics.tables import StepUnit

AGREE = 0.7  # share of common points that must agree for two files to show the same series
_SHIFTS = (0, -1, 1)  # a bar counts the batches that are done, a logger numbers them from 0
_ENOUGH = 3  # different values that do not agree by chance


@dataclass(frozen=True, eq=False)
class Curve:
    """A track as arrays. steps: int64 (n,), ascending and different; values: float64 (n,), the last of every step, NaN
    where it is not finite; rows: float64 (m,), every value in file order.
    """  # noqa: D205  one sentence per array

    steps: np.ndarray
    values: np.ndarray
    rows: np.ndarray
    times: np.ndarray
    unit: StepUnit

    @cached_property
    def grain(self) -> float:
        """Distance of two neighbours in the printing of the values, 0 where they look exact."""
        return _grain(self.rows)


def curve(track: Track) -> Curve:
    """The points of a track."""
    frame = track.stored.frame
    value, step = frame["value"], frame["step"]
    rows = _floats(value)
    kept = np.ones(len(rows), dtype=bool)
    if value.null_count():
        kept &= (frame["kind"] != "missing").to_numpy()
    if step.null_count():
        kept &= step.is_not_null().to_numpy()
        step = step.fill_null(0)
    steps = step.to_numpy()[kept]
    order = np.argsort(steps, kind="stable")
    steps = steps[order]
    last = np.ones(len(steps), dtype=bool)
    last[:-1] = steps[1:] != steps[:-1]
    return Curve(
        steps[last], rows[kept][order][last], rows, _floats(frame["time"])[kept][order][last], track.stored.step_unit
    )


def _floats(column: pl.Series) -> np.ndarray:
    """A column of Float64 with NaN for its nulls."""
    return np.full(len(column), np.nan) if column.null_count() == len(column) else column.to_numpy()


def common(a: Curve, b: Curve, shift: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """The positions in `a` and in `b` of their common steps; `shift` is added to those of `a`."""
    steps = a.steps + shift if shift else a.steps
    if len(steps) == len(b.steps) and bool((steps == b.steps).all()):
        every = np.arange(len(steps))
        return every, every
    if not len(steps) or not len(b.steps):
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    places = np.minimum(np.searchsorted(b.steps, steps), len(b.steps) - 1)
    found = b.steps[places] == steps
    return np.flatnonzero(found), places[found]


def agreed(a: Curve, b: Curve) -> int:
    """The number of common steps where two curves show the same values, 0 where they do not."""
    one, two = common(a, b)
    return len(one) if len(one) and agreement(a.values[one], b.values[two], max(a.grain, b.grain)) >= AGREE else 0


def same_rows(a: Curve, b: Curve) -> bool:
    """Whether the rows of two tracks agree in their order."""
    count = min(len(a.rows), len(b.rows))
    return count > 2 and agreement(a.rows[:count], b.rows[:count], max(a.grain, b.grain)) >= AGREE


def agreement(x: np.ndarray, y: np.ndarray, grain: float) -> float:
    """Share of the pairs that are equal up to the coarser printing of the two, whose last place is worth `grain`."""
    tolerance = 0.6 * grain + 1e-6 * np.abs(np.where(np.isfinite(x), x, 0.0))
    equal = (np.abs(x - y) <= tolerance) | (np.isnan(x) & np.isnan(y))
    return float(equal.mean()) if len(x) else 0.0


def tells_the_same(printed: Sequence[Track], stored: Sequence[Track]) -> bool:
    """Whether a console log prints the metrics that a file holds; the loss decides where both have it."""
    pairs = [
        (a, b)
        for a in printed
        for b in stored
        if (a.phase, a.series) == (b.phase, b.series) and names.is_metric(a.tag) and a.series != "lr"
    ]
    pairs.sort(key=lambda pair: (pair[0].series != "loss", pair[0].phase != "train"))
    long = next((pair for pair in pairs if min(t.stored.frame["value"].n_unique() for t in pair) >= _ENOUGH), None)
    if long is not None:
        one, two = map(curve, long)
        if not one.unit == two.unit != "row":
            return same_rows(one, two)
        return any(len(np.unique(x)) >= _ENOUGH and _alike(x, y) >= AGREE for x, y in _aligned(one, two))
    found = [(x, y) for a, b in pairs for x, y in _aligned(curve(a), curve(b)) if len(x)]
    found = [(x, y) for x, y in found if max(map(_digits, x)) >= _ENOUGH]
    return bool(found) and all(_alike(x, y) == 1 for x, y in found)


def _aligned(a: Curve, b: Curve) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The values of both at their common steps, for every way to count that a bar may have."""
    for shift in _SHIFTS:
        one, two = common(a, b, shift)
        yield a.values[one], b.values[two]


def _alike(printed: np.ndarray, values: np.ndarray) -> float:
    """Share of the values that are those printed, to the decimals or to the significant digits of the printing."""
    digits = max(map(_digits, printed), default=0)
    size = np.floor(np.log10(np.maximum(np.abs(np.nan_to_num(printed)), 1e-300)))
    tolerance = 0.6 * np.maximum(10.0 ** (size + 1 - digits), _grain(printed))
    equal = (np.abs(printed - values) <= tolerance) | (np.isnan(printed) & np.isnan(values))
    return float(equal.mean()) if len(printed) else 0.0


def _digits(value: float) -> int:
    return len(repr(float(value)).partition("e")[0].replace(".", "").strip("-0")) if math.isfinite(value) else 0


def _grain(values: np.ndarray) -> float:
    """Distance of two neighbours in the printing of these values, 0 where they look exact."""
    decimals = 0
    for value in values[np.isfinite(values)][:200].tolist():
        text = repr(value)
        if "e" in text:
            return 0.0
        decimals = max(decimals, len(text) - text.find(".") - 1)
    return 10.0**-decimals if 0 < decimals <= 6 else 0.0
