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


def block_medians(values: np.ndarray, count: int) -> np.ndarray:
    """Medians of `count` neighbouring blocks of nearly equal size, or the values themselves where they are fewer."""
    if len(values) <= count:
        return values.astype(float)
    edges = np.linspace(0, len(values), count + 1).astype(int)
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
