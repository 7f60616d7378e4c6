"""NaN as a filler: writers that give every row every column put NaN where nothing was measured.

A column is given as its states over the rows of the file, uint8 (n,): ABSENT, MEASURED (number or infinity) or NAN.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

ABSENT, MEASURED, NAN = 0, 1, 2

_OVERLAP = 0.1  # share of the rows of either column that may hold both and still count as "one or the other"
_OFTEN = 0.8  # share of the pauses between two evaluations that hold NaN, where NaN is the filler
_TRAILING = 1.5  # NaN for longer than this many pauses after the last value is no pause


def complementary(states: np.ndarray, others: Sequence[np.ndarray]) -> np.ndarray:
    """bool (n,): the NaNs of a column that stand where one of the other columns is measured instead.

    The two must be measured by turns: a column that ends in NaN while another one begins is no such pair.
    """
    filler = np.zeros(len(states), dtype=bool)
    own = states == MEASURED
    for other in others:
        theirs = other == MEASURED
        fewer = min(int(own.sum()), int(theirs.sum()))
        if fewer < 2 or int((own & theirs).sum()) > _OVERLAP * fewer:
            continue
        explained = (states == NAN) & theirs
        if explained.any() and np.flatnonzero(own)[-1] > np.flatnonzero(explained)[0]:
            filler |= explained
    return filler


def pauses(states: np.ndarray) -> np.ndarray:
    """bool (n,): the NaNs of an evaluation between its values, where it is measured at intervals only.

    NaN from the first evaluation that is missing on stays: an evaluation that ends in NaN is a finding.
    """
    filler = np.zeros(len(states), dtype=bool)
    held = np.flatnonzero(states != ABSENT)
    values = np.flatnonzero(states[held] == MEASURED)
    if len(values) < 2:
        return filler
    gaps = np.diff(values) - 1
    longest = int(gaps.max())
    if np.mean(gaps > 0) < _OFTEN or (longest < 2 and len(gaps) < 3):
        return filler
    trailing = len(held) - 1 - int(values[-1])
    end = len(held) if trailing <= _TRAILING * longest else int(values[-1]) + 1 + longest
    rows = held[:end]
    filler[rows[states[rows] == NAN]] = True
    return filler
