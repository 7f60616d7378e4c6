"""Series -> signals: pure functions on NumPy arrays. What counts as too much is brought by checks from the rule files.

All arrays are one-dimensional float64 and finite unless a docstring says otherwise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

MAD_TO_SD = 1.4826  # the standard deviation of a normal sample is 1.4826 times its median absolute deviation


def common_places(first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where each of two ascending arrays without repeats holds the values that both hold: two int64 (k,) of indices."""
    if np.array_equal(first, second):  # two series of one log, nearly always
        return np.arange(len(first)), np.arange(len(first))
    _, left, right = np.intersect1d(first, second, assume_unique=True, return_indices=True)
    return left, right


def rolling_median(values: np.ndarray, window: int) -> np.ndarray:
    """Centred rolling median, float64 (n,); at the ends the window shrinks to what is there.

    window: points, at least 1; an even window is widened by one so that it has a middle.
    """
    half = window // 2
    if half == 0 or len(values) < 2:
        return values.astype(float)
    found = pl.Series(values, dtype=pl.Float64).rolling_median(2 * half + 1, min_samples=1, center=True)
    medians: np.ndarray = found.to_numpy(writable=True)
    return medians


def noise_sd(values: np.ndarray) -> float:
    """Standard deviation of the noise around a smooth curve, from the median absolute second difference.

    The second difference of white noise with variance s^2 has variance 6 s^2; a smooth trend cancels out, and the
    median ignores single jumps. 0 for fewer than three points.
    """
    if len(values) < 3:
        return 0.0
    return float(MAD_TO_SD * np.median(np.abs(np.diff(values, 2))) / math.sqrt(6.0))


@dataclass(frozen=True, slots=True)
class Slope:
    """A least-squares slope per step and its standard error (Newey and West 1987, Bartlett kernel)."""

    per_step: float
    error: float

    @property
    def significant(self) -> float:
        """Slope in standard errors; 0 where the error is 0 and so is the slope."""
        if self.error > 0:
            return self.per_step / self.error
        return math.copysign(math.inf, self.per_step) if self.per_step else 0.0


def slope(steps: np.ndarray, values: np.ndarray) -> Slope:
    """Least-squares slope with a standard error that allows for autocorrelated noise.

    The lag window is the usual floor(4 (n/100)^(2/9)). Needs at least three points with distinct steps, else 0 +- 0.
    """
    n = len(steps)
    x = steps.astype(float) - float(np.mean(steps))
    sxx = float(x @ x)
    if n < 3 or sxx == 0.0:
        return Slope(0.0, 0.0)
    centred = values - float(np.mean(values))
    per_step = float(x @ centred) / sxx
    moment = x * (centred - per_step * x)
    lags = int(4 * (n / 100) ** (2 / 9))
    total = float(moment @ moment)
    for lag in range(1, min(lags, n - 1) + 1):
        total += 2 * (1 - lag / (lags + 1)) * float(moment[lag:] @ moment[:-lag])
    return Slope(per_step, math.sqrt(max(total, 0.0)) / sxx)


def lag1_of_differences(values: np.ndarray) -> np.ndarray:
    """Lag-1 autocorrelation of the first differences: -0.5 for white noise, -1 for bouncing with period 2.

    values: float64 (..., n), many series of one length at a time; the result is float64 (...), 0 for n below 4 and
    where the differences do not vary.
    """
    d = np.diff(values, axis=-1)
    if d.shape[-1] < 3:
        return np.zeros(d.shape[:-1])
    d = d - d.mean(axis=-1, keepdims=True)
    power = np.einsum("...i,...i->...", d, d)
    lagged = np.einsum("...i,...i->...", d[..., 1:], d[..., :-1])
    found: np.ndarray = np.divide(lagged, power, out=np.zeros_like(power), where=power > 0)
    return found


def first_run(mask: np.ndarray, length: int) -> int | None:
    """Index at which the first run of at least `length` consecutive True values starts, or None."""
    if length <= 0 or len(mask) < length:
        return None
    sums = np.convolve(mask.astype(int), np.ones(length, dtype=int), mode="valid")
    found = np.flatnonzero(sums == length)
    return int(found[0]) if len(found) else None


def levels_around(steps: np.ndarray, values: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Level of a positive series around given steps, and how fast it changes there; both float64 (len(at),).

    The level is the geometric mean of the medians before (the step itself included) and after, each over a quarter of
    the distance between two of the given steps, one point at least: a log that averages over its last window stands for
    the middle of that window. The change is |ln(after / before)|. Where nothing follows, the points before and those
    before them are taken. NaN where there is nothing before.
    """
    levels, changes = np.full(len(at), np.nan), np.full(len(at), np.nan)
    if not len(steps):
        return levels, changes
    reach = float(np.median(np.diff(at))) / 4 if len(at) > 1 else 0.0
    places = [np.searchsorted(steps.astype(float), at + shift, side="right").tolist() for shift in (-reach, 0.0, reach)]
    for i, (from_place, end, to_place) in enumerate(zip(*places, strict=True)):
        if not end:
            continue
        first, last = min(end - 1, from_place), max(end + 1, to_place)
        before = float(np.median(values[first:end]))
        if end < len(steps):
            after = float(np.median(values[end:last]))
            levels[i] = math.sqrt(before * after)
            changes[i] = abs(math.log(after / before))
        else:
            levels[i] = before
            earlier = values[max(0, 2 * first - end) : first]
            changes[i] = abs(math.log(before / float(np.median(earlier)))) if len(earlier) else math.inf
    return levels, changes


@dataclass(frozen=True, slots=True)
class Departure:
    """A loss that was at its best and left that level until the end of the record.

    best, end: levels (rolling median) at the best place and over the last tenth; start: index of the first point above
    the level for good; best_index: where the best level lies; share, points: part and number of the points from `start`
    on; initial: the level that the record begins with; peak: the highest level from `start` on.
    """

    best: float
    end: float
    best_index: int
    start: int
    share: float
    points: int
    initial: float
    peak: float

    @property
    def rise(self) -> float:
        """Rise as a fraction of the best level."""
        return (self.end - self.best) / max(abs(self.best), 1e-12)


_MANY = 20_000  # points beyond which a departure is looked for among medians of blocks


def _thinned_departure(
    steps: np.ndarray, values: np.ndarray, noise: float, rise: float, far: float
) -> Departure | None:
    """The departure among the medians of equal blocks; its indices are those of the first points of the blocks."""
    block = -(-len(values) // _MANY)
    count = len(values) // block
    medians = np.median(values[: count * block].reshape(count, block), axis=1)
    found = departure(steps[: count * block : block], medians, noise, rise, far)
    if found is None:
        return None
    return replace(found, best_index=found.best_index * block, start=found.start * block)


def departure(steps: np.ndarray, values: np.ndarray, noise: float, rise: float, far: float) -> Departure | None:
    """Find a lasting departure upwards from the best level, or None.

    noise: how many standard deviations of the noise around a smooth curve the rise must exceed; rise: the least rise as
    a fraction of the larger of |best level| and the improvement from the first level to the best; far: a loss that ends
    at so many times its first and best level, and stays away for half of the record (20 points at least), needs no
    comparison with its noise. The departure starts after the last point (rolling median of 3) within the margin.
    """
    if len(values) > _MANY:
        return _thinned_departure(steps, values, noise, rise, far)
    n = len(values)
    if n < 8:
        return None
    window = max(3, min(101, n // 20)) | 1
    level = rolling_median(values, window)
    start = float(np.median(values[:window]))
    # a fine-tune that is destroyed at once was at its best in the very first point; but a first point that covers
    # fewer steps than the others (logging_first_step) is noisier than they are, and one that is as good as a few later
    # ones is a draw of the noise: they prove nothing
    alone = 2 * steps[0] >= steps[1] - steps[0] and float(np.mean(values[n // 2 :] <= 1.1 * values[0])) < 0.01
    if alone:
        level[0] = start = min(level[0], values[0])
    best_index = int(np.argmin(level))
    best = float(level[best_index])
    end = float(np.median(values[-max(3, n // 10) :]))
    # the noise of the two places that are compared: a wild time in between is no noise of theirs
    spread = max(
        noise_sd(values[: max(8, best_index + 1)]) if best_index >= 8 else 0.0, noise_sd(values[-max(8, n // 4) :])
    )
    # slow noise hides from second differences; it shows in how far levels usually wander
    wander = float(MAD_TO_SD * np.median(np.abs(level[window:] - level[:-window]))) if n > 4 * window else 0.0
    scale = max(abs(best), start - best)
    margin = max(noise * spread, rise * scale)
    wild = end - best <= max(margin, noise * wander)
    if wild:  # no level to compare, but a loss may be so far away that its own noise is no excuse
        margin = rise * scale
    if margin <= 0 or end - best <= margin:
        return None
    smooth = rolling_median(values, 3)
    if alone:
        smooth[0] = min(smooth[0], values[0])
    within = np.flatnonzero(smooth <= best + margin)
    if not len(within):
        return None
    left = int(within[-1]) + 1
    away = n - left >= max(20, n // 2) and end > far * max(best, start) > 0
    if left >= n or (wild and not away):
        return None
    return Departure(best, end, best_index, left, (n - left) / n, n - left, start, float(level[left:].max()))
