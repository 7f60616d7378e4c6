"""The value lines of one log, read one by one or in blocks, as one table in the order of the file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import polars as pl

from gradforensics.evidence.console.bulk import Bulk
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

    lines: uint32 (n,); steps, epochs, times: float64 (n,), NaN where a line does not say it; totals, last_epochs,
    ranks: float64 (n,), whole, 0 or of ranks -1 where a line does not say it; order: uint32 (n,), which line, counted
    through rows and blocks, stands there.
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
        self._bulks: dict[tuple[object, ...], Bulk] = {}

    def __len__(self) -> int:
        return len(self.rows) + sum(bulk.lines.size for bulk in self._bulks.values())

    def add(self, block: Block) -> None:
        """Keep the lines that a template read."""
        key = Bulk.key(block)
        if key not in self._bulks:
            self._bulks[key] = Bulk(block)
        self._bulks[key].add(block)

    @cached_property
    def blocks(self) -> list[Block]:
        """All lines that templates read, once there are no more of them."""
        return [bulk.block() for bulk in self._bulks.values()]

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
        lines = np.concatenate([np.array([row.line for row in rows], dtype=np.uint32), *(b.lines for b in blocks)])
        order = np.argsort(lines, kind="stable").astype(np.uint32)
        sizes = [len(block.lines) for block in blocks]

        def of_all(mine: Iterable[float | None], theirs: Iterable[np.ndarray | float | None]) -> np.ndarray:
            single = [np.nan if v is None else v for v in mine]
            parts = [np.nan if part is None else part for part in theirs]
            kinds = {repr(value) for value in (*single, *parts) if not isinstance(value, np.ndarray)}
            if len(kinds) == 1 and not any(isinstance(part, np.ndarray) for part in parts):
                return np.broadcast_to(np.float64((*single, *parts)[0]), len(lines))  # takes no memory
            arrays = [
                part if isinstance(part, np.ndarray) else np.full(n, part) for n, part in zip(sizes, parts, strict=True)
            ]
            return np.concatenate([np.array(single, dtype=np.float64), *arrays])[order]

        said = [row.said for row in rows]
        return Places(
            lines=lines[order],
            steps=of_all((s.step for s in said), (b.said.step if b.steps is None else b.steps for b in blocks)),
            epochs=of_all((s.epoch for s in said), (b.said.epoch if b.epochs is None else b.epochs for b in blocks)),
            times=of_all((s.time for s in said), (b.times for b in blocks)),
            totals=of_all((float(s.total or 0) for s in said), (float(b.said.total or 0) for b in blocks)),
            last_epochs=of_all((float(s.epochs or 0) for s in said), (float(b.said.epochs or 0) for b in blocks)),
            ranks=of_all((_rank(row.rank) for row in rows), (_rank(b.rank) for b in blocks)),
            order=order,
        )

    def table(self, places: Places, steps: np.ndarray, unit: StepUnit) -> LogTable:
        """The lines as columns; the blocks are given up for them, as both together would need twice the memory.

        steps: float64 (n,), where the lines stand in the end, NaN where that is not known.
        """
        height = len(places.order)
        place = np.empty(height, dtype=np.uint32)
        place[places.order] = np.arange(height, dtype=np.uint32)
        known = places.ranks >= 0
        nothing = pl.Series([None], dtype=pl.Int64)
        ranks = pl.Series(places.ranks.astype(np.int64)).zip_with(pl.Series(known), nothing) if known.any() else None
        columns = self._columns(place)
        self.blocks.clear()
        return LogTable(
            height=height,
            columns=columns,
            lines=places.lines,
            steps=pl.Series(steps).fill_nan(None).cast(pl.Int64),
            epochs=_known(places.epochs),
            times=_known(places.times),
            ranks=ranks,
            unit=unit,
        )

    def _columns(self, place: np.ndarray) -> list[Column]:
        """All values by phase and name."""
        rows: dict[tuple[Phase | None, str], list[int]] = {}
        values: dict[tuple[Phase | None, str], list[float | None]] = {}
        texts: dict[tuple[Phase | None, str], list[str]] = {}
        for index, row in enumerate(self.rows):
            for tag, value in row.said.values.items():
                key = (row.said.phase, tag)
                rows.setdefault(key, []).append(index)
                values.setdefault(key, []).append(value)
                spelt = texts.setdefault(key, [])
                if tag in row.said.texts and len(spelt) < _SPELLINGS:
                    spelt.append(row.said.texts[tag])
        starts = len(self.rows) + np.cumsum([0, *(len(block.lines) for block in self.blocks)])
        keys = dict.fromkeys([*rows, *((block.said.phase, tag) for block in self.blocks for tag in block.values)])
        found = []
        for phase, tag in keys:
            single = values.get((phase, tag), [])
            scattered = _Scattered(len(place))
            scattered.put(place[rows.get((phase, tag), [])], np.array(single, dtype=np.float64))
            scattered.missing(place[[i for i, v in zip(rows.get((phase, tag), []), single, strict=True) if v is None]])
            for start, block in zip(starts.tolist(), self.blocks, strict=False):
                if block.said.phase == phase and tag in block.values:
                    scattered.put(place[start : start + len(block.lines)], block.values.pop(tag))
            found.append(scattered.column(tag, phase, texts.get((phase, tag), ())))
        return found


class _Scattered:
    """Values that are put into the rows of a table in any order."""

    def __init__(self, height: int) -> None:
        self._values = np.zeros(height)
        self._held = np.zeros(height, dtype=bool)
        self._missing = np.zeros(0, dtype=np.int64)

    def put(self, rows: np.ndarray, values: np.ndarray) -> None:
        """values: float64 (m,), NaN as read; rows: int64 (m,)."""
        self._values[rows] = values
        self._held[rows] = True

    def missing(self, rows: np.ndarray) -> None:
        """The rows whose value is missing, of those that were put."""
        self._missing = rows

    def column(self, tag: str, phase: Phase | None, texts: Sequence[str]) -> Column:
        """What was put, in the order of the rows."""
        rows = None if self._held.all() else np.flatnonzero(self._held)
        values = pl.Series("value", self._values if rows is None else self._values[rows])
        if len(self._missing):
            gone = np.zeros(len(self._held), dtype=bool)
            gone[self._missing] = True
            kept = pl.Series(~(gone if rows is None else gone[rows]))
            values = values.zip_with(kept, pl.Series([None], dtype=pl.Float64))
        return Column(tag, values, rows, phase, None, texts)


def _known(values: np.ndarray) -> pl.Series | None:
    """The values, null for NaN; None where there is nothing else."""
    return None if np.isnan(values).all() else pl.Series(values).fill_nan(None)


def _rank(rank: int | None) -> float:
    return -1.0 if rank is None else float(rank)


def planned_totals(rows: Sequence[Row]) -> Counter[int]:
    """How often each total of a bar stands behind a dict with a loss."""
    return Counter(row.after[1] for row in rows if row.after and "loss" in row.said.values)
