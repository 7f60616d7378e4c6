"""Trends, levels and profiles of series: pure functions on NumPy arrays, one-dimensional float64 and finite.

What counts as too much is brought by checks from the rule files.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np

from gradforensics import signals

_PAIRS = 300  # points of which all pairs are compared
_POINTS = 1200  # points, or medians of so many blocks, in which growth is looked for
_LEAST = 30  # points of which growth is read


def block_medians(values: np.ndarray, count: int) -> np.ndarray:
    """Medians of `count` neighbouring blocks of nearly equal size, or the values themselves where they are fewer.

    Large blocks are all taken as long as the shortest one, so that they can be sorted together.
    """
    if len(values) <= count:
        return values.astype(float)
    edges = np.linspace(0, len(values), count + 1).astype(int)
    size = len(values) // count
    if size > 20:
        rows = np.lib.stride_tricks.sliding_window_view(values, size)[edges[:-1]]
        together: np.ndarray = np.median(rows, axis=1).astype(float)
        return together
    return np.array([np.median(values[a:b]) for a, b in itertools.pairwise(edges)])


def block_starts(points: int, count: int) -> np.ndarray:
    """Index of the first point of every block of `block_medians`, int64."""
    starts: np.ndarray = np.arange(points) if points <= count else np.linspace(0, points, count + 1).astype(int)[:-1]
    return starts


def theil_sen(x: np.ndarray, y: np.ndarray) -> float:
    """Median slope of all pairs of points (Theil 1950, Sen 1968), of block medians where there are many points.

    0 for fewer than two distinct x.
    """
    x, y = block_medians(x, _PAIRS), block_medians(y, _PAIRS)
    dx = x[None, :] - x[:, None]
    upper = np.triu(dx > 0, 1)
    if not upper.any():
        return 0.0
    dy = y[None, :] - y[:, None]
    return float(np.median(dy[upper] / dx[upper]))


@dataclass(frozen=True, slots=True)
class Trend:
    """How a series rises: slope per step (Theil-Sen), R^2 of the straight line through it, share of steps upwards.

    rise: slope times span; early, late: Theil-Sen slopes of the two halves. A flat series has R^2 0.
    """

    slope: float
    r2: float
    upwards: float
    rise: float
    early: float
    late: float


def trend(x: np.ndarray, y: np.ndarray, tolerance: float = 0.0) -> Trend:
    """The trend of y over x; a change down to -tolerance counts as no fall. Needs four points, else all is 0."""
    if len(x) < 4:
        return Trend(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    bx, by = block_medians(x, _PAIRS), block_medians(y, _PAIRS)
    total = float(np.var(by))
    r2 = float(np.corrcoef(bx, by)[0, 1] ** 2) if total > 0 and np.var(bx) > 0 else 0.0
    steepness = theil_sen(bx, by)
    half = len(bx) // 2
    return Trend(
        steepness,
        r2,
        float(np.mean(np.diff(by) >= -tolerance)),
        steepness * float(bx[-1] - bx[0]),
        theil_sen(bx[: half + 1], by[: half + 1]),
        theil_sen(bx[half:], by[half:]),
    )


@dataclass(frozen=True, slots=True)
class Growth:
    """A steady growth: index of its first point, level there and at the end, trend of that part."""

    start: int
    first: float
    last: float
    trend: Trend

    @property
    def share(self) -> float:
        """Rise as a fraction of the first level."""
        return (self.last - self.first) / max(abs(self.first), 1e-12)


def steady_growth(
    steps: np.ndarray, values: np.ndarray, begin: int, fit: float, upwards: float, growth: float
) -> Growth | None:
    """The longest part up to the end over which values rise steadily by `growth` of their first level, or None.

    Parts: all from index `begin` on, the last three quarters of it, its last half; 30 points at least. Steadily: a
    straight line explains `fit` of the variance, `upwards` of the changes are no falls, and the second half rises at
    least half as fast as the first: a cache that fills up, or the highest value so far, levels off.
    """
    x, y = (block_medians(v[begin:].astype(float), _POINTS) for v in (steps, values))
    places = begin + block_starts(len(values) - begin, _POINTS)
    for start in (0, len(y) // 4, len(y) // 2):
        if len(y) - start < _LEAST:
            return None
        found = _steady(x[start:], y[start:], fit, upwards, growth)
        if found is not None:
            return Growth(int(places[start]), *found)
    return None


def _steady(
    x: np.ndarray, y: np.ndarray, fit: float, upwards: float, growth: float
) -> tuple[float, float, Trend] | None:
    """(first level, last level, trend) of a part that rises steadily; None of any other."""
    # a fall by less than what a point usually gains is noise around the line
    gain = max(theil_sen(np.arange(float(len(y))), y), 0.0)
    found = trend(x, y, tolerance=max(gain, 1e-4 * abs(float(np.median(y)))))
    steady = found.r2 >= fit and found.upwards >= upwards and found.late >= 0.5 * found.early > 0
    width = max(1, len(y) // 20)
    first, last = float(np.median(y[:width])), float(np.median(y[-width:]))
    return (first, last, found) if steady and found.rise >= growth * abs(first) > 0 else None


def ranks_of(values: np.ndarray) -> np.ndarray:
    """Ranks 0 ... n-1 along the last axis, float64; equal values keep their order."""
    ranks: np.ndarray = np.argsort(np.argsort(values, axis=-1, kind="stable"), axis=-1, kind="stable").astype(float)
    return ranks


def high_pass(values: np.ndarray, width: int = 5) -> np.ndarray:
    """What is left of values when the mean of `width` points around each is taken off.

    Slow shapes (a trend, a stair, a warm-up) go; what belongs to single points stays. The ends use what is there.
    Points beyond three standard deviations of the noise are pulled in first: they must not bend their neighbours.
    """
    middle = signals.rolling_median(values, width)
    reach = 3 * signals.noise_sd(values)
    tame = np.clip(values, middle - reach, middle + reach)
    kernel = np.ones(width)
    rest: np.ndarray = tame - np.convolve(tame, kernel, "same") / np.convolve(np.ones(len(values)), kernel, "same")
    return rest


@dataclass(frozen=True, slots=True)
class Likeness:
    """How alike profiles are: mean rank correlation of all pairs, and that in standard errors of unrelated noise."""

    correlation: float
    errors: float


def likeness(profiles: np.ndarray) -> Likeness:
    """Mean pairwise rank correlation of the high-pass residuals of profiles, float64 (profiles, points).

    Ranks, because a single point that is odd in every profile (a short last batch) must not make them alike. Under
    independence one coefficient of n points varies by 1 / sqrt(n - 1), and the mean of m pairs by sqrt(m) less.
    """
    count, points = profiles.shape
    if count < 2 or points < 8:
        return Likeness(0.0, 0.0)
    ranks = ranks_of(np.stack([high_pass(row) for row in profiles]))
    found = np.corrcoef(ranks)[np.triu_indices(count, 1)]
    mean = float(np.mean(found))
    return Likeness(mean, mean * math.sqrt((points - 1) * len(found)))


@dataclass(frozen=True, slots=True)
class Jump:
    """A step between two neighbouring points: its height (later minus earlier), in standard errors, level before."""

    height: float
    errors: float
    before: float


def jump_at(steps: np.ndarray, values: np.ndarray, index: int, width: int) -> Jump | None:
    """The step of the series between points index - 1 and index: straight lines through `width` points on each side.

    None where a side has fewer than eight points. The lines are continued to the middle of the gap; the standard error
    is that of the two continued lines under white noise.
    """
    left = slice(max(0, index - width), index)
    right = slice(index, index + width)
    if index < 8 or len(values[right]) < 8:
        return None
    middle = 0.5 * float(steps[index - 1] + steps[index])
    levels: list[tuple[float, float]] = []
    for side in (left, right):
        x, y = steps[side].astype(float), values[side]
        away = x - float(np.mean(x))
        sxx = float(away @ away)
        gradient = float(away @ y) / sxx if sxx > 0 else 0.0
        reach = middle - float(np.mean(x))
        rest = y - float(np.mean(y)) - gradient * away
        variance = float(rest @ rest) / max(len(y) - 2, 1)
        levels.append((float(np.mean(y)) + gradient * reach, variance * (1 / len(y) + reach * reach / max(sxx, 1e-12))))
    (before, var_before), (after, var_after) = levels
    error = math.sqrt(var_before + var_after)
    height = after - before
    return Jump(height, height / error if error > 0 else math.copysign(math.inf, height) if height else 0.0, before)
