"""Whether two files show the same numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl

from gradforensics.evidence import names
from gradforensics.evidence.rows import Track

AGREE = 0.7  # share of common points that must agree for two files to show the same series
_SHIFTS = (0, -1, 1)  # a bar counts the batches that are done, a logger numbers them from 0
_ENOUGH = 3  # different values that do not agree by chance


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
        if not all(t.stored.step_unit == long[0].stored.step_unit != "row" for t in long):
            return same_values(*long)
        return any(len(np.unique(x)) >= _ENOUGH and _alike(x, y) >= AGREE for x, y in _aligned(*long))
    found = [(x, y) for a, b in pairs for x, y in _aligned(a, b) if len(x) and max(map(_digits, x)) >= _ENOUGH]
    return bool(found) and all(_alike(x, y) == 1 for x, y in found)


def _aligned(a: Track, b: Track) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The values of both at their common steps, for every way to count that a bar may have."""
    one, two = clean(a), clean(b)
    for shift in _SHIFTS:
        both = one.with_columns(pl.col("step") + shift).join(two, on="step", suffix="_b")
        yield both["value"].to_numpy(), both["value_b"].to_numpy()


def _alike(printed: np.ndarray, values: np.ndarray) -> float:
    """Share of the values that are those printed, to the decimals or to the significant digits of the printing."""
    digits = max(map(_digits, printed), default=0)
    size = np.floor(np.log10(np.maximum(np.abs(np.nan_to_num(printed)), 1e-300)))
    tolerance = 0.6 * np.maximum(10.0 ** (size + 1 - digits), _grain(printed))
    equal = (np.abs(printed - values) <= tolerance) | (np.isnan(printed) & np.isnan(values))
    return float(equal.mean()) if len(printed) else 0.0


def _digits(value: float) -> int:
    return len(repr(float(value)).partition("e")[0].replace(".", "").strip("-0")) if math.isfinite(value) else 0


def clean(track: Track) -> pl.DataFrame:
    """step and value of a track, sorted, the last of every step, NaN where it is not finite."""
    frame = track.stored.frame.filter(pl.col("kind") != "missing").select(
        "attempt", "step", pl.col("value").fill_null(float("nan"))
    )
    return frame.unique("step", keep="last", maintain_order=True).select("step", "value").sort("step")


def same_values(a: Track, b: Track) -> bool:
    """Whether the rows of two tracks agree in their order."""
    x, y = (t.stored.frame["value"].fill_null(float("nan")).to_numpy() for t in (a, b))
    count = min(len(x), len(y))
    return count > 2 and agreement(x[:count], y[:count]) >= AGREE


def agreement(x: np.ndarray, y: np.ndarray) -> float:
    """Share of the pairs that are equal up to the coarser printing of the two."""
    tolerance = 0.6 * max(_grain(x), _grain(y)) + 1e-6 * np.abs(np.where(np.isfinite(x), x, 0.0))
    equal = (np.abs(x - y) <= tolerance) | (np.isnan(x) & np.isnan(y))
    return float(equal.mean()) if len(x) else 0.0


def _grain(values: np.ndarray) -> float:
    """Distance of two neighbours in the printing of these values, 0 where they look exact."""
    decimals = 0
    for value in values[np.isfinite(values)][:200].tolist():
        text = repr(value)
        if "e" in text:
            return 0.0
        decimals = max(decimals, len(text) - text.find(".") - 1)
    return 10.0**-decimals if 0 < decimals <= 6 else 0.0
