"""Samples that occur several times in one file, or in the files of training and of evaluation alike, by hash."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl

from gradforensics.audit.measures import Measure

_MOST = 20_000_000  # samples whose hashes are kept: 160 MB
_HELD_OUT = re.compile(r"(?:^|[^a-z])(?:eval(?:uation)?|valid(?:ation)?|val|dev|test|held[-_]?out)(?:[^a-z]|$)")


class Copies:
    """The hashes of the samples of one file: of the text, else of the ids. Empty samples are left out."""

    def __init__(self) -> None:
        self._hashes: list[np.ndarray] = []
        self._rows: list[np.ndarray] = []
        self._kept = 0
        self.seen = 0

    def add(self, block: pl.DataFrame) -> None:
        """Take in a block of the schema BLOCK."""
        text = pl.col("text").str.strip_chars()
        ids = pl.col("ids").list.eval(pl.element().cast(pl.String)).list.join(" ")
        both = block.select("row", pl.coalesce(text, ids).alias("sample")).filter(pl.col("sample").str.len_bytes() > 0)
        self.seen += both.height
        if self._kept < _MOST:
            self._hashes.append(both["sample"].hash().to_numpy())
            self._rows.append(both["row"].to_numpy())
            self._kept += both.height

    @property
    def complete(self) -> bool:
        """Whether the hashes of all samples were kept."""
        return self._kept == self.seen

    def _arrays(self) -> tuple[np.ndarray, np.ndarray]:
        if not self._hashes:
            return np.zeros(0, dtype=np.uint64), np.zeros(0, dtype=np.uint32)
        return np.concatenate(self._hashes), np.concatenate(self._rows)

    def measures(self, column: str) -> Iterator[Measure]:
        """The samples that repeat an earlier one."""
        hashes, rows = self._arrays()
        if not len(hashes):
            return
        _, first, counts = np.unique(hashes, return_index=True, return_counts=True)
        copies = len(hashes) - len(first)
        row, text = None, ""
        if copies:
            again = np.ones(len(hashes), dtype=bool)
            again[first] = False
            place = int(np.flatnonzero(again)[0])
            origin = int(np.flatnonzero(hashes == hashes[place])[0])
            row, text = int(rows[place]), f"as row {int(rows[origin])}; the most frequent one {int(counts.max())} times"
        yield Measure(column, "duplicates", copies / len(hashes), "share of samples", copies, row, None, text)

    def overlap(self, other: Copies, name: str, column: str) -> Measure | None:
        """The samples of this file that the file `name` holds, too."""
        (mine, rows), (theirs, _) = self._arrays(), other._arrays()
        if not len(mine) or not len(theirs):
            return None
        there = np.isin(mine, theirs)
        count = int(there.sum())
        row = int(rows[int(np.argmax(there))]) if count else None
        return Measure(column, "overlap", count / len(mine), "share of samples", count, row, None, name)


def is_held_out(name: str) -> bool:
    """Whether the name of a file says that it is for evaluation."""
    return _HELD_OUT.search(name.lower()) is not None


def pairs(names: Sequence[str]) -> list[tuple[int, int]]:
    """(file of the evaluation, file of the training), as places in `names`: all files by their names."""
    held = [i for i, name in enumerate(names) if is_held_out(name)]
    trained = [i for i in range(len(names)) if i not in held]
    return [(h, t) for h in held for t in trained]
