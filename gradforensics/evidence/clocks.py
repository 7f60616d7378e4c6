"""How far the clocks of the processes of one job are apart, by the steps that they log together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

COMMON = 5  # steps that two processes must both have logged
_NORMAL = 1.4826  # median absolute deviation -> standard deviation of a normal distribution
_CLEAR = 3.0  # spreads by which an offset must differ from 0 to be told from noise
_SMALLEST = 1.0  # seconds: logs are written, and times printed, with a jitter of this size


@dataclass(frozen=True, slots=True)
class Offset:
    """How far a clock is ahead of the reference (seconds), the spread of the differences, and of how many steps."""

    seconds: float
    spread: float
    steps: int

    @property
    def is_clear(self) -> bool:
        """Whether the clock is ahead or behind by more than the differences scatter."""
        return abs(self.seconds) > max(_SMALLEST, _CLEAR * self.spread)


def offsets(clocks: Mapping[int, tuple[np.ndarray, np.ndarray]], reference: int | None = None) -> dict[int, Offset]:
    """The offset of every process from the reference, the lowest rank by default.

    clocks: rank -> (steps, int64 (n,), ascending and different; Unix seconds, float64 (n,), NaN where unknown). The
    steps of synchronous training end on all ranks together, so the median of the differences at common steps is the
    offset of the clock; the spread is 1.4826 times the median absolute deviation, and grows with a drift. A rank with
    fewer than 5 common steps is left out.
    """
    if not clocks:
        return {}
    reference = min(clocks) if reference is None else reference
    steps, times = clocks[reference]
    known = np.isfinite(times)
    steps, times = steps[known], times[known]
    found: dict[int, Offset] = {}
    for rank, (others, read) in clocks.items():
        valid = np.isfinite(read)
        _, here, there = np.intersect1d(steps, others[valid], assume_unique=True, return_indices=True)
        if len(here) < COMMON:
            continue
        differences = read[valid][there] - times[here]
        middle = float(np.median(differences))
        spread = _NORMAL * float(np.median(np.abs(differences - middle)))
        found[rank] = Offset(middle, spread, len(here))
    return found
