"""Spikes of a loss and of its gradient norm: how far above the recent level, what led, and whether it came back.

Pure functions on NumPy arrays, like `signals`. All arrays are one-dimensional, finite and of one length.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradforensics.signals import MAD_TO_SD

_FLOOR = 1e-3  # least spread, as a fraction of the level: a series that hardly moves has no noise to be measured in
_MOST = 20_000  # places at which the recent level is measured anew
_SMOOTH = 5  # points whose median decides whether a value has come back
_STRETCH = 64  # points among which a return is looked for first
_LEAD = 8  # a gradient that leads does so by 1 to 8 steps (Molybog et al., arXiv 2304.09871)


@dataclass(frozen=True, slots=True)
class Level:
    """The recent level of every point, without the point itself: median and robust spread, NaN in the first window."""

    median: np.ndarray
    spread: np.ndarray

    def z(self, values: np.ndarray) -> np.ndarray:
        """How many standard deviations each value lies above its recent level (detector D01), float64 (n,)."""
        scores: np.ndarray = (values - self.median) / self.spread
        return scores


def recent_level(values: np.ndarray, window: int) -> Level:
    """Median and spread of the `window` points before each point; NaN for the first `window` points.

    The spread is 1.4826 times the median absolute deviation, and at least a thousandth of the level. In long series the
    level is measured at 20 000 evenly spaced points and held in between.
    """
    n = len(values)
    median, spread = np.full(n, np.nan), np.full(n, np.nan)
    if n <= window:
        return Level(median, spread)
    stride = 1 + n // _MOST
    windows = np.lib.stride_tricks.sliding_window_view(values, window)[: n - window : stride]
    middle = np.median(windows, axis=1)
    wide = MAD_TO_SD * np.median(np.abs(windows - middle[:, None]), axis=1)
    wide = np.maximum(np.maximum(wide, _FLOOR * np.abs(middle)), np.finfo(float).tiny)
    which = np.arange(n - window) // stride
    median[window:], spread[window:] = middle[which], wide[which]
    return Level(median, spread)


@dataclass(frozen=True, slots=True)
class Spike:
    """A loss and a gradient norm that rose far above their recent levels together.

    start, end: index of its first point and of the first one at which the loss is back (None: it never came back).
    lead: steps by which the gradient norm was ahead of the loss, 0 = in the same step, negative = behind it.
    base, peak: the loss before, and at its highest until it is back; level: median of the later half of that time.
    steady: whether that later half is hardly noisier than the loss was before, and without a trend.
    """

    start: int
    end: int | None
    lead: int
    z_loss: float
    z_norm: float
    base: float
    peak: float
    level: float
    norm_base: float
    norm_peak: float
    steady: bool


def spikes(
    steps: np.ndarray,
    loss: np.ndarray,
    norm: np.ndarray,
    first: int,
    levels: tuple[Level, Level],
    high: float,
    back: float,
) -> list[Spike]:
    """The spikes of a run, in order (detectors D01, D03 and D04).

    steps, loss, norm: (n,), the common points of both series; first: index before which nothing counts. levels: the
    recent ones of loss and norm. high: robust z
    that both must reach, the loss 0 to 8 steps after the norm or one point before it; back: the loss has come back
    where the median of five points lies less than `back` standard deviations above the level before.
    """
    high_norm = np.flatnonzero(levels[1].z(norm) >= high)
    found: list[Spike] = []
    free = first
    for at in np.flatnonzero(levels[0].z(loss) >= high).tolist():
        if at < free:
            continue
        earliest = min(max(at - 1, 0), int(np.searchsorted(steps, steps[at] - _LEAD)))
        place = int(np.searchsorted(high_norm, max(earliest, free)))
        if place == len(high_norm) or high_norm[place] > at + 1:
            continue
        spike = _follow(steps, loss, norm, levels, at, int(high_norm[place]), back)
        found.append(spike)
        if spike.end is None:
            break
        free = spike.end + _SMOOTH  # what follows at once belongs to it
    return found


def _follow(
    steps: np.ndarray, loss: np.ndarray, norm: np.ndarray, levels: tuple[Level, Level], at: int, led: int, back: float
) -> Spike:
    start = min(at, led)
    base, spread = float(levels[0].median[start]), float(levels[0].spread[start])
    norm_base, norm_spread = float(levels[1].median[start]), float(levels[1].spread[start])
    end = _comes_back(loss, at, base + back * spread)
    here = slice(start, len(loss) if end is None else max(end, at + 1))
    peak, norm_peak = float(loss[here].max()), float(norm[start : here.stop + 1].max())
    tail = loss[at + (here.stop - at) // 2 : here.stop]
    return Spike(
        start=start,
        end=end,
        lead=int(steps[at] - steps[led]),
        z_loss=(peak - base) / spread,
        z_norm=(norm_peak - norm_base) / norm_spread,
        base=base,
        peak=peak,
        level=float(np.median(tail)),
        norm_base=norm_base,
        norm_peak=norm_peak,
        steady=_steady(tail, spread),
    )


def _comes_back(loss: np.ndarray, at: int, level: float) -> int | None:
    """First index from `at` on at which the median of five points lies below this level; None where there is none."""
    begin, stretch = at, _STRETCH
    while begin + _SMOOTH <= len(loss):
        part = loss[begin : begin + stretch + _SMOOTH - 1]
        calm = np.median(np.lib.stride_tricks.sliding_window_view(part, _SMOOTH), axis=1) < level
        if calm.any():
            return begin + int(np.argmax(calm))
        begin, stretch = begin + stretch, 8 * stretch  # most come back at once, some never
    return None


def _steady(tail: np.ndarray, spread: float) -> bool:
    """Whether the tail is at most three times as noisy as before, and its two halves lie at one level."""
    if len(tail) < 2 * _SMOOTH:
        return False
    noise = float(MAD_TO_SD * np.median(np.abs(tail - np.median(tail))))
    halves = np.array_split(tail, 2)
    moved = abs(float(np.median(halves[1]) - np.median(halves[0])))
    return noise <= 3 * spread and moved <= 3 * spread


def rising(places: np.ndarray, total: float) -> tuple[tuple[int, int, int], float]:
    """How many of these places lie in each third of 0..total, and the probability of so many in the last by chance.

    places: float64 (k,), anywhere in 0..total. Given k events, Poisson events of a constant rate fall into the last
    third with probability 1/3 each, so that their number is binomial; the probability is that of as many or more.
    """
    # scipy is slow to import, and only runs with many spikes need it; it ships no types
    from scipy import stats  # type: ignore[import-untyped]  # noqa: PLC0415

    third = np.clip((3 * places / max(total, 1e-12)).astype(int), 0, 2)
    counts = np.bincount(third, minlength=3)
    chance = float(stats.binom.sf(counts[2] - 1, counts.sum(), 1 / 3)) if counts.sum() else 1.0
    return (int(counts[0]), int(counts[1]), int(counts[2])), chance
