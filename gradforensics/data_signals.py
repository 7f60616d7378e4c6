"""Series -> what points at the data: isolated spikes, steps at the ends of epochs, a loss that follows the padding.

Pure functions on NumPy arrays, as in signals.py: one-dimensional float64 and finite unless a docstring says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradforensics import spike_signals
from gradforensics.signals import MAD_TO_SD


def spike_scores(values: np.ndarray, window: int) -> np.ndarray:
    """Detector D01: by how many robust standard deviations every value exceeds the `window` values before it.

    float64 (n,), 0 for the first `window` values; see spike_signals.recent_level.
    """
    scores: np.ndarray = np.nan_to_num(spike_signals.recent_level(values, window).z(values))
    return scores


def spikes(values: np.ndarray, window: int, score: float, within: int) -> np.ndarray:
    """Places of the first points of all spikes of `score` or more that are over after at most `within` points.

    A level that stays is no spike. int64 (k,).
    """
    scores = spike_scores(values, window)
    high = np.flatnonzero(scores >= score)
    if not len(high):
        return high
    firsts = high[np.concatenate(([True], np.diff(high) > within))]
    before = np.array([float(np.median(values[max(0, i - 8) : i])) for i in firsts])
    found = []
    for place, level in zip(firsts.tolist(), before.tolist(), strict=True):
        later = values[place + within : place + within + 5]
        if len(later) and abs(float(np.median(later)) - level) < 0.5 * abs(float(values[place]) - level):
            found.append(place)
    return np.array(found, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class EpochStep:
    """A loss that steps down where an epoch begins.

    index: the first point of that epoch; drop: as a fraction of the level before; score: in robust standard deviations
    of the same difference at all other places.
    """

    index: int
    drop: float
    score: float


def epoch_steps(values: np.ndarray, epochs: np.ndarray, least: int) -> list[EpochStep] | None:
    """The step of the loss at every beginning of an epoch after the first; None for fewer than `least` points in one.

    epochs: float64 (n,), how many epochs were done, rising. The levels are medians over a quarter of an epoch (3 to 20
    points) on both sides.
    """
    number = np.floor(epochs - 1e-9)
    starts = np.flatnonzero(np.diff(number) > 0) + 1
    sizes = np.diff(np.concatenate(([0], starts)))
    if not len(starts) or int(sizes.min()) < least:
        return None
    width = int(np.clip(sizes.min() // 4, 3, 20))
    starts = starts[(starts >= width) & (starts + width <= len(values))]
    places = np.arange(width, len(values) - width + 1)
    if not len(starts) or len(places) <= 4 * width:
        return None
    medians = np.median(np.lib.stride_tricks.sliding_window_view(values, width), axis=-1)
    differences = medians[places] - medians[places - width]
    near = np.min(np.abs(places[:, None] - starts[None, :]), axis=1) < width
    rest = differences[~near]
    if len(rest) < 8:
        return None
    usual = float(np.median(rest))
    spread = max(MAD_TO_SD * float(np.median(np.abs(rest - usual))), 1e-12)
    found = []
    for start in starts.tolist():
        change = float(differences[start - width]) - usual
        level = abs(float(medians[start - width]))
        found.append(EpochStep(start, -change / max(level, 1e-12), -change / spread))
    return found


@dataclass(frozen=True, slots=True)
class PaddingTie:
    """How the loss goes with the share of padding: the correlation of their changes, and slope over level.

    ratio: slope / (the loss at no padding); -1 where every pad counts as a label that costs nothing.
    """

    correlation: float
    ratio: float


def padding_tie(loss: np.ndarray, share: np.ndarray) -> PaddingTie | None:
    """Whether the loss falls as padding rises; None where the share hardly varies.

    Both are compared by their changes from point to point, so that the fall of the loss over the training cancels out.
    """
    steps = np.diff(share)
    if len(steps) < 20 or float(np.std(steps)) < 0.01:
        return None
    changes = np.diff(loss)
    if float(np.std(changes)) == 0.0:
        return None
    correlation = float(np.corrcoef(steps, changes)[0, 1])
    slope = float(steps @ changes) / float(steps @ steps)
    at_none = float(np.median(loss - slope * share))
    return PaddingTie(correlation, slope / at_none) if at_none > 0 else None
