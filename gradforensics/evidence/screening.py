"""Which runs of a folder a file contradicts at first sight: a few values of the loss, compared with all runs at once.

A folder may hold thousands of logs, and the number of their pairs is the square of that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from gradforensics.evidence.agreement import AGREE, Curve
from gradforensics.evidence.pieces import Piece
from gradforensics.tables import Phase

_LOSS: tuple[Phase, str] = ("train", "loss")
_PROBES = 64  # steps at which the curves are compared
_ENOUGH = 16  # of them that two curves must share


class Screen:
    """The losses of the files of one folder at the steps that most of them log.

    kinds: of every file, a number for those that a different loss is enough to tell from each other, else -1.
    """

    def __init__(self, pieces: Sequence[Piece], kinds: Sequence[int]) -> None:
        curves = [
            found if kind >= 0 and (found := piece.curves.get(_LOSS)) is not None and found.unit != "row" else None
            for piece, kind in zip(pieces, kinds, strict=True)
        ]
        counts: Counter[int] = Counter()
        for curve in curves:
            if curve is not None:
                counts.update(curve.steps[:: max(1, len(curve.steps) // _PROBES)].tolist())
        self._probes = np.array(sorted(step for step, _ in counts.most_common(_PROBES)), dtype=np.int64)
        self._values = np.zeros((len(curves), len(self._probes)))
        self._known = np.zeros((len(curves), len(self._probes)), dtype=bool)
        self._first = np.zeros(len(curves), dtype=np.int64)
        self._grain = np.zeros(len(curves))
        self._runs = np.full(len(curves), -1, dtype=np.int64)
        units = [None if curve is None else curve.unit for curve in curves]
        pairs = list(zip(kinds, units, strict=True))
        known = {pair: place for place, pair in enumerate(dict.fromkeys(pairs))}
        self._kinds = np.array([known[pair] for pair in pairs], dtype=np.int64)
        for number, curve in enumerate(curves):
            if curve is not None and len(curve.steps):
                self._probe(number, curve)

    def _probe(self, number: int, curve: Curve) -> None:
        places = np.minimum(np.searchsorted(curve.steps, self._probes), len(curve.steps) - 1)
        self._values[number] = curve.values[places]
        self._known[number] = curve.steps[places] == self._probes
        self._first[number] = curve.steps[0]
        self._grain[number] = curve.grain

    def put(self, number: int, run: int) -> None:
        """Remember that a file became a part of a run (counted from 0)."""
        self._runs[number] = run

    def open(self, number: int, runs: int) -> list[int]:
        """Of so many runs those that the file does not contradict: it begins at the same step with other values."""
        both = self._known & self._known[number]
        with np.errstate(invalid="ignore"):  # infinities
            apart = np.abs(self._values - self._values[number])
        tolerance = 0.6 * np.maximum(self._grain, self._grain[number])[:, None] + 1e-6 * np.abs(self._values[number])
        same = (apart <= tolerance) | (np.isnan(self._values) & np.isnan(self._values[number]))
        shared = both.sum(axis=1)
        other = (shared >= _ENOUGH) & ((same & both).sum(axis=1) < AGREE / 2 * shared)
        other &= (self._first == self._first[number]) & (self._runs >= 0) & (self._kinds == self._kinds[number])
        left = np.ones(runs, dtype=bool)
        left[self._runs[other]] = False
        return np.flatnonzero(left).tolist()
