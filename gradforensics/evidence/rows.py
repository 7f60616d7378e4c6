"""Rows of named values, collected one by one, as a table of columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from gradforensics.evidence.log_table import Column, LogTable, Settled, settle
from gradforensics.evidence.readings import Track
from gradforensics.tables import Phase, StepUnit

_SPELLINGS = 4096  # values of a column whose texts are kept


@dataclass
class _Collected:
    hint: Phase | None
    tag: str
    rows: list[int] = field(default_factory=list)
    values: list[float | None] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def column(self) -> Column:
        """The column as arrays."""
        return Column(
            self.tag,
            pl.Series("value", self.values, dtype=pl.Float64, strict=False),
            np.array(self.rows, dtype=np.int64),
            self.hint,
            np.array(self.lines, dtype=np.uint32) if self.lines else None,
            self.texts,
        )


class RowLog:
    """Collects rows in file order and turns them into tracks.

    After finish(), `stands` holds (line, step) of every row and `notices` what was remarkable about the steps. `period`
    is the number of steps per epoch, where the log itself tells it.
    """

    def __init__(self, columns: Mapping[str, str] | None = None, unit: StepUnit = "step") -> None:
        self._mapping = columns or {}
        self._unit: StepUnit = unit
        self._lines: list[int] = []
        self._steps: list[int | None] = []
        self._epochs: list[float | None] = []
        self._times: list[float | None] = []
        self._ranks: list[int | None] = []
        self._columns: dict[tuple[Phase | None, str], _Collected] = {}
        self._settled = Settled()
        self.period: int | None = None

    def __len__(self) -> int:
        return len(self._lines)

    def add(
        self,
        line: int,
        values: Mapping[str, float | None],
        *,
        step: int | None = None,
        epoch: float | None = None,
        time: float | None = None,
        rank: int | None = None,
        phase: Phase | None = None,
        lines: Mapping[str, int] | None = None,
        texts: Mapping[str, str] | None = None,
    ) -> None:
        """Append a row; `lines` gives single values' lines, `texts` their spelling where it tells the resolution."""
        row = len(self._lines)
        self._lines.append(line)
        self._steps.append(step)
        self._epochs.append(epoch)
        self._times.append(time)
        self._ranks.append(rank)
        for tag, value in values.items():
            column = self._columns.get((phase, tag))
            if column is None:
                column = self._columns[phase, tag] = _Collected(phase, tag)
            column.rows.append(row)
            column.values.append(value)
            if lines is not None:
                column.lines.append(lines.get(tag, line))
            if texts is not None and len(column.texts) < _SPELLINGS:
                column.texts.append(texts[tag])

    def table(self) -> LogTable:
        """The rows as columns."""
        return LogTable(
            height=len(self._lines),
            columns=[column.column() for column in self._columns.values()],
            lines=np.array(self._lines, dtype=np.uint32),
            steps=pl.Series(self._steps, dtype=pl.Int64, strict=False),
            epochs=pl.Series(self._epochs, dtype=pl.Float64, strict=False),
            times=pl.Series(self._times, dtype=pl.Float64, strict=False),
            ranks=None if all(rank is None for rank in self._ranks) else pl.Series(self._ranks, dtype=pl.UInt32),
            unit=self._unit,
            period=self.period,
        )

    def finish(self) -> list[Track]:
        """The tracks of all columns that hold at least one value."""
        self._settled = settle(self.table(), self._mapping)
        return self._settled.tracks

    @property
    def stands(self) -> list[tuple[int, int]]:
        """(line, step) of every row."""
        return list(zip(self._lines, self._settled.steps.tolist(), strict=False))

    @property
    def notices(self) -> list[tuple[int | None, str]]:
        """(line, text) of what was remarkable about the steps."""
        return self._settled.notices
