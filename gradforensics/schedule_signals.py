"""Learning rates over steps -> the shape, length and warm-up of the schedule that made them (detector D17).

Pure functions on NumPy arrays: they know no configuration. Every shape becomes a straight line under its own transform,
so that two numbers of a regression are its length.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

_FLAT = 1e-4  # relative: a rate within so much of its peak stands on its plateau
_FEW = 8  # points that a decay must have before its length is read off it
_FLOORS = (0.0, 0.01, 0.05, 0.1, 0.2)  # of the peak: the ends of decays that recipes use


@dataclass(frozen=True, slots=True)
class Fitted:
    """A schedule read off a log. shape: linear, cosine, root, constant, or rising (to its last point); steps as logged.

    warmup: last step of the warm-up (the first point where there is none); begin, total: where the decay begins and
    where it would reach `floor` (infinity for a constant one); error: the worst residual as a fraction of the peak.
    """

    shape: str
    peak: float
    warmup: float
    begin: float
    total: float
    floor: float
    error: float


def _linear(part: np.ndarray) -> np.ndarray:
    return 1.0 - part


def _cosine(part: np.ndarray) -> np.ndarray:
    angle: np.ndarray = np.arccos(np.clip(2.0 * part - 1.0, -1.0, 1.0)) / np.pi
    return angle


def _root(part: np.ndarray) -> np.ndarray:
    return (1.0 - part) ** 2


# the part of the way from floor to peak that is left -> the fraction of the decay that is done, and back
_DONE: dict[str, tuple[Callable[[np.ndarray], np.ndarray], Callable[[np.ndarray], np.ndarray]]] = {
    "linear": (_linear, lambda done: 1.0 - done),
    "cosine": (_cosine, lambda done: 0.5 * (1.0 + np.cos(np.pi * done))),
    "root": (_root, lambda done: 1.0 - np.sqrt(np.maximum(done, 0.0))),
}


def fit(steps: np.ndarray, values: np.ndarray, resolution: float, tolerance: float) -> Fitted | None:
    """The schedule of one warm-up, a plateau and one decay that explains every point, or None.

    steps, values: (n,), sorted; resolution: of the printed values; tolerance: worst residual, fraction of the peak.
    """
    peak = float(values.max()) if len(values) else 0.0
    if peak <= 0 or len(values) < _FEW:
        return None
    x = steps.astype(float)
    top = np.flatnonzero(values >= peak - max(_FLAT * peak, 2.0 * resolution))
    first, last = int(top[0]), int(top[-1])
    if bool((np.diff(values[: first + 1]) < -resolution).any()):
        return None
    if first == len(x) - 1:
        return Fitted("rising", peak, float(x[-1]), float("inf"), float("inf"), peak, 0.0)
    slack = tolerance * peak + resolution
    if bool((np.abs(values[first:] - peak) <= max(_FLAT * peak, resolution)).all()):
        return Fitted("constant", peak, float(x[first]), float(x[-1]), float("inf"), peak, 0.0)
    if bool((np.abs(values[first : last + 1] - peak) > slack).any()):
        return None  # it left the plateau and came back
    found = []
    end = float(values[-1])
    for floor in sorted({f * peak for f in _FLOORS} | {end}):
        if floor <= end + resolution:
            found += [f for name in _DONE if (f := _decay(name, x[last:], values[last:], peak, floor, resolution))]
    # a floor that was not reached is a guess: of decays that explain the log as well, that down to 0 comes first
    fitting = [f for f in found if f.error <= tolerance]
    best = min(fitting, key=lambda f: (round(f.error / tolerance, 1), f.floor), default=None)
    if best is None:
        return None
    return Fitted(best.shape, peak, float(x[first]), best.begin, best.total, best.floor, best.error)


def _decay(
    shape: str, x: np.ndarray, values: np.ndarray, peak: float, floor: float, resolution: float
) -> Fitted | None:
    """The decay of one shape down to `floor`, by a regression over the points on its way."""
    part = (values - floor) / (peak - floor) if peak > floor else np.zeros_like(values)
    moving = (part > 0.02 + resolution / peak) & (part < 0.98)
    if int(moving.sum()) < _FEW:
        return None
    transform, back = _DONE[shape]
    done = transform(part[moving])
    slope, offset = np.polyfit(x[moving], done, 1)
    if slope <= 0:
        return None
    begin, total = -offset / slope, (1.0 - offset) / slope
    expected = floor + (peak - floor) * back(np.clip(slope * x + offset, 0.0, 1.0))
    error = float(np.max(np.maximum(np.abs(expected - values) - resolution, 0.0))) / peak
    return Fitted(shape, peak, float(x[0]), float(begin), float(total), floor, error)
