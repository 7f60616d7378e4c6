"""The value lines of one log, read one by one or in blocks, as one table in the order of the file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from gradforensics.evidence.console.lines import Line
from gradforensics.evidence.console.templates import Block
from gradforensics.evidence.log_table import Column, LogTable
from gradforensics.tables import Phase, StepUnit

_SPELLINGS = 4096  # values of a column whose texts are kept


@dataclass
class Row:
    """One line that was read by itself.

    drawn: it is a state of a progress bar; before, after: the states of the bars around a dict, whose step they tell;
    task: its rank is a bare number at the front, which may be something else.
    """

    line: int
    said: Line
    rank: int | None
    drawn: bool = False
    before: dict[int, int] = field(default_factory=dict)
    after: tuple[int, int] | None = None
    task: bool = False


@dataclass
class Places:
    """Where all lines stand, in the order of the file.

    lines: int64 (n,); steps, epochs, times: float64 (n,), NaN where a line does not say it; totals, last_epochs: int64
    (n,), 0 where a line does not say it; ranks: int64 (n,), -1 unknown; order: int64 (n,), which line, counted through
    rows and blocks, stands there.
    """

    lines: np.ndarray
    steps: np.ndarray
    epochs: np.ndarray
    times: np.ndarray
    totals: np.ndarray
    last_epochs: np.ndarray
    ranks: np.ndarray
    order: np.ndarray

    def most_common(self, what: np.ndarray) -> tuple[int, int]:
        """(value, how often it stands) of the most frequent entry of totals or last_epochs; the first of equals."""
        values, firsts, counts = np.unique(what, return_index=True, return_counts=True)
        best = max(range(len(values)), key=lambda i: (counts[i], -firsts[i]))
        return int(values[best]), int(counts[best])


class Gathered:
    """The value lines of one kind (one dialect, the generic pairs, the dicts)."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.blocks: list[Block] = []

    def __len__(self) -> int:
        return len(self.rows) + sum(len(block.lines) for block in self.blocks)

    def _settle_tasks(self) -> None:
        """A number at the front of every line is no rank where nearly every line has its own: it counts epochs."""
        tasks = [row.rank for row in self.rows if row.task]
        if tasks and len(set(tasks)) * 2 > len(tasks):
            for row in self.rows:
                row.rank = None if row.task else row.rank
            for block in self.blocks:
                block.rank = None if block.task else block.rank

    def places(self) -> Places:
        """Where all lines stand."""
        self._settle_tasks()
        rows, blocks = self.rows, self.blocks
        sizes = [len(block.lines) for block in blocks]

        def of_all(mine: Iterable[float | None], theirs: Iterable[np.ndarray | float | None]) -> np.ndarray:
            parts = [np.array([np.nan if v is None else v for v in mine], dtype=np.float64)]
            for size, part in zip(sizes, theirs, strict=True):
                parts.append(
                    part
                    if isinstance(part, np.ndarray)
                    else np.full(size, np.nan if part is None else part, dtype=np.float64)
                )
            return np.concatenate(parts)[order]

        lines = np.concatenate([np.array([row.line for row in rows], dtype=np.int64), *(b.lines for b in blocks)])
        order = np.argsort(lines, kind="stable")
        said = [row.said for row in rows]
        return Places(
            lines=lines[order].astype(np.int64),
            steps=of_all((s.step for s in said), (b.said.step if b.steps is None else b.steps for b in blocks)),
            epochs=of_all((s.epoch for s in said), (b.said.epoch if b.epochs is None else b.epochs for b in blocks)),
            times=of_all((s.time for s in said), (b.times for b in blocks)),
            totals=of_all((s.total or 0 for s in said), (b.said.total or 0 for b in blocks)).astype(np.int64),
            last_epochs=of_all((s.epochs or 0 for s in said), (b.said.epochs or 0 for b in blocks)).astype(np.int64),
            ranks=of_all((_rank(row.rank) for row in rows), (_rank(b.rank) for b in blocks)).astype(np.int64),
            order=order,
        )

    def table(self, places: Places, steps: np.ndarray, unit: StepUnit) -> LogTable:
        """The lines as columns. steps: float64 (n,), where they stand in the end, NaN where that is not known."""
        height = len(places.order)
        place = np.empty(height, dtype=np.int64)
        place[places.order] = np.arange(height)
        known = places.ranks >= 0
        nothing = pl.Series([None], dtype=pl.Int64)
        return LogTable(
            height=height,
            columns=self._columns(place),
            lines=places.lines.astype(np.uint32),
            steps=pl.Series(steps).fill_nan(None).cast(pl.Int64),
            epochs=pl.Series(places.epochs).fill_nan(None),
            times=pl.Series(places.times).fill_nan(None),
            ranks=pl.Series(places.ranks).zip_with(pl.Series(known), nothing) if known.any() else None,
            unit=unit,
        )

    def _columns(self, place: np.ndarray) -> list[Column]:
        found: dict[tuple[Phase | None, str], list[tuple[np.ndarray, pl.Series]]] = {}
        texts: dict[tuple[Phase | None, str], list[str]] = {}
        singles: dict[tuple[Phase | None, str], tuple[list[int], list[float | None]]] = {}
        for index, row in enumerate(self.rows):
            for tag, value in row.said.values.items():
                key = (row.said.phase, tag)
                where, values = singles.setdefault(key, ([], []))
                where.append(index)
                values.append(value)
                spelt = texts.setdefault(key, [])
                if tag in row.said.texts and len(spelt) < _SPELLINGS:
                    spelt.append(row.said.texts[tag])
        for key, (where, values) in singles.items():
            found[key] = [(place[where], pl.Series(values, dtype=pl.Float64, strict=False))]
        at = len(self.rows)
        for block in self.blocks:
            rows = place[at : at + len(block.lines)]
            at += len(block.lines)
            for tag, numbers in block.values.items():
                found.setdefault((block.said.phase, tag), []).append((rows, pl.Series(numbers)))
        columns = []
        for (phase, tag), parts in found.items():
            where_ = np.concatenate([rows for rows, _ in parts])
            order = np.argsort(where_, kind="stable")
            values_ = pl.concat([values.rename("value") for _, values in parts])[order]
            columns.append(Column(tag, values_, where_[order], phase, None, texts.get((phase, tag), ())))
        return columns


def _rank(rank: int | None) -> int:
    return -1 if rank is None else rank


def planned_totals(rows: Sequence[Row]) -> Counter[int]:
    """How often each total of a bar stands behind a dict with a loss."""
    return Counter(row.after[1] for row in rows if row.after and "loss" in row.said.values)
