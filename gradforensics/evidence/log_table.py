"""A log as columns -> series frames: attempts, repeated steps and epochs whose steps start again are settled here.

Every reader ends here: those that read row by row collect their rows in a `rows.RowLog`, those that read whole columns
build the table themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl

from gradforensics.evidence import names, numbers, placeholders
from gradforensics.evidence.readings import Track
from gradforensics.tables import KIND, SERIES_SCHEMA, Phase, SeriesFrame, StepUnit

_SMALLEST_SCALE = 128  # a highest loss scale below this is rather something else
_ALTERNATIONS = 10  # times that the rows of two writers take turns, as two launches one after the other do not
_WRITERS = 8
_SHORTEST = 10  # rows of a writer
_GAP = 3  # distances between two of its rows, from which on a row is another writer's
_DISORDER = 50  # more backward steps than this, and in a tenth of the rows, are no restarts


@dataclass
class Column:
    """One named column of a log.

    values: Float64 (m,), NaN and infinities as read, null where the value is missing; rows: int64 (m,), ascending, the
    rows of the table that hold them, None where every row does; hint: the phase where the name does not tell it;
    lines: uint32 (m,), where single values have lines of their own; texts: the spelling of the first values, where it
    tells the resolution.
    """

    tag: str
    values: pl.Series
    rows: np.ndarray | None = None
    hint: Phase | None = None
    lines: np.ndarray | None = None
    texts: Sequence[str] = ()

    def at(self, every: np.ndarray) -> np.ndarray:
        """int64 (m,): the rows that hold the values of this column. every: int64 (n,), all rows of the table."""
        return every if self.rows is None else self.rows

    def states(self, every: np.ndarray) -> np.ndarray:
        """What every row of the table holds of this column, in the terms of `placeholders`."""
        found = np.full(len(every), placeholders.ABSENT, dtype=np.uint8)
        rows = self.at(every)
        found[rows] = np.where(self.values.is_nan().fill_null(value=False), placeholders.NAN, placeholders.MEASURED)
        found[rows[self.values.is_null().to_numpy()]] = placeholders.ABSENT
        return found

    def present(self, every: np.ndarray) -> np.ndarray:
        """The rows that hold a value: an empty cell of a sparse column says nothing about the steps."""
        rows = self.at(every)
        return rows[self.values.is_not_null().to_numpy()] if self.values.null_count() else rows


@dataclass
class LogTable:
    """The rows of one file in file order; every row column has n entries, or is None where the file has none of it.

    lines: uint32 (n,); steps: Int64; epochs, times: Float64, Unix seconds; ranks: UInt32; nulls are allowed in all but
    the lines. period: the number of steps per epoch, where the log itself tells it; first_epoch: the number of the
    first epoch, where steps are known to count within one; sparse: whether a row holds only what was measured, so that
    NaN never stands for nothing.
    """

    height: int
    columns: list[Column]
    lines: np.ndarray | None = None
    steps: pl.Series | None = None
    epochs: pl.Series | None = None
    times: pl.Series | None = None
    ranks: pl.Series | None = None
    unit: StepUnit = "step"
    period: int | None = None
    first_epoch: int | None = None
    sparse: bool = False


@dataclass
class Settled:
    """What a table became.

    steps: int64 (n,), where every row stands; starts: the rows at which later attempts begin; notices: what was
    remarkable about the steps.
    """

    tracks: list[Track] = field(default_factory=list)
    steps: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    starts: list[int] = field(default_factory=list)
    notices: list[tuple[int | None, str]] = field(default_factory=list)


def settle(table: LogTable, mapping: Mapping[str, str] | None = None) -> Settled:
    """The tracks of all columns that hold at least one value. mapping: the user's --map."""
    return _Settling(table, mapping or {}).result() if table.height else Settled()


class _Settling:
    """The state of settling one table."""

    def __init__(self, table: LogTable, mapping: Mapping[str, str]) -> None:
        self.table = table
        self.height = table.height
        self.every = np.arange(table.height, dtype=np.int64)
        self.mapping = mapping
        self.unit: StepUnit = table.unit
        self.ranks = None if table.ranks is None else table.ranks.cast(pl.Int64).fill_null(-1).to_numpy()
        self.found = Settled()
        self.written_by_several = False

    def result(self) -> Settled:
        self.fillers()
        steps, attempts = self.placed()
        self.every = self.every[:0].copy()  # of a large log the memory is needed
        self.found.steps = steps
        shared = self.shared(steps, attempts)
        self.found.tracks = [self.track(column, shared) for column in self.table.columns if len(column.values)]
        return self.found

    def placed(self) -> tuple[np.ndarray, np.ndarray]:
        """(steps, attempts) of all rows."""
        steps = self.standing()
        groups = [(column.present(self.every), column) for column in self.table.columns]
        # an evaluation may count its own steps from 0 every time: only the training's series tell a restart
        trained = [g for g in groups if (g[1].hint or names.series_of(g[1].tag)[0]) not in ("eval", "test")] or groups
        attempts = np.zeros(self.height, dtype=np.uint16)
        if self.unit != "row":
            steps = self.count_through(steps, [rows for rows, _ in trained])
            attempts = self.attempts(steps, [rows for rows, _ in trained])
            if not self.written_by_several:
                self.count_repeats(steps, attempts, [rows for rows, column in trained if names.is_metric(column.tag)])
        return steps, attempts

    def shared(self, steps: np.ndarray, attempts: np.ndarray) -> pl.DataFrame:
        """The columns that all series of the table have in common."""
        table = self.table
        given = {"rank": table.ranks, "epoch": table.epochs, "time": table.times}
        columns = [pl.Series("attempt", attempts, dtype=pl.UInt16), pl.Series("step", steps, dtype=pl.Int64)]
        for name, column in given.items():
            columns.append(
                pl.Series(name, [None], dtype=SERIES_SCHEMA[name]).new_from_index(0, self.height)
                if column is None
                else column.cast(SERIES_SCHEMA[name]).alias(name)
            )
        lines = table.lines
        columns.append(
            pl.Series("line", [None], dtype=pl.UInt32).new_from_index(0, self.height)
            if lines is None
            else pl.Series("line", lines.astype(np.uint32), dtype=pl.UInt32)
        )
        return pl.DataFrame(columns)

    def line(self, row: int) -> int | None:
        """The line that a row stands on."""
        return None if self.table.lines is None else int(self.table.lines[row])

    def phase(self, column: Column) -> Phase:
        named = names.mapped(column.tag, self.mapping) or names.series_of(column.tag)
        return named[0] or column.hint or "train"

    # -- where the rows stand ----------------------------------------------------------------------------------------

    def fillers(self) -> None:
        """NaN where nothing was measured becomes a missing value."""
        columns = self.table.columns
        suspects = [] if self.table.sparse else [c for c in columns if c.values.is_nan().any()]
        if not suspects:
            return
        states = {id(c): c.states(self.every) for c in columns}
        for column in suspects:
            phase, own = self.phase(column), states[id(column)]
            others = [
                states[id(c)] for c in columns if c is not column and (self.phase(c) != phase or names.is_loss(c.tag))
            ]
            filler = placeholders.complementary(own, others)
            if phase != "train":
                filler |= placeholders.pauses(np.where(filler, placeholders.ABSENT, own))
            if not filler.any():
                continue
            gone = pl.Series(filler[column.at(self.every)])
            column.values = column.values.zip_with(~gone, pl.Series([None], dtype=pl.Float64))
            first, count = self.line(int(np.flatnonzero(filler)[0])), int(filler.sum())
            text = f'column "{column.tag}": {count} NaN where nothing was measured: read as missing'
            self.found.notices.append((first, text))

    def standing(self) -> np.ndarray:
        """A step for every row: as logged, else the epoch, else the row number; sets the unit."""
        steps = self.table.steps
        if steps is not None and steps.null_count() < self.height:
            # a row without a step belongs to the last one that was named
            return steps.cast(pl.Int64).fill_null(strategy="forward").fill_null(0).to_numpy().astype(np.int64)
        numbered = np.arange(1, self.height + 1, dtype=np.int64)
        if self.unit == "row":
            return numbered
        epochs = self.whole_epochs()
        if epochs is not None:
            repeats = int((np.diff(epochs) == 0).sum())
            if repeats * 2 <= self.height or self.unit == "epoch":
                self.unit = "epoch"
                return epochs
        self.unit = "row"
        return numbered

    def whole_epochs(self) -> np.ndarray | None:
        """int64 (n,): the epoch of every row where all of them are known and whole."""
        epochs = self.table.epochs
        if epochs is None or epochs.null_count():
            return None
        values = epochs.to_numpy()
        if not np.isfinite(values).all() or (np.abs(values) >= 2**53).any() or (values != np.floor(values)).any():
            return None
        return values.astype(np.int64)

    def pairs(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(earlier, later): consecutive rows of one rank among these."""
        if self.ranks is None or len(rows) < 2:
            return rows[:-1], rows[1:]
        ordered = rows[np.argsort(self.ranks[rows], kind="stable")]
        same = self.ranks[ordered[1:]] == self.ranks[ordered[:-1]]
        return ordered[:-1][same], ordered[1:][same]

    def count_through(self, steps: np.ndarray, groups: Sequence[np.ndarray]) -> np.ndarray:
        """Steps that begin anew in every epoch, counted through: epoch x steps per epoch + step."""
        epochs = self.whole_epochs() if self.unit == "step" else None
        if epochs is None:
            return steps
        first = self.table.first_epoch
        if (first is None or self.table.period is None) and not self.restarts_in_epochs(steps, epochs, groups):
            return steps
        low, high = int(steps.min()), int(steps.max())
        period = self.table.period or (high if low >= 1 else high + 1)
        base = first if first is not None else int(epochs.min() == 1)
        text = f"steps begin anew in every epoch: counted through with {period} steps per epoch"
        self.found.notices.append((None, text))
        return np.asarray((epochs - base) * period + steps, dtype=np.int64)

    def restarts_in_epochs(self, steps: np.ndarray, epochs: np.ndarray, groups: Sequence[np.ndarray]) -> bool:
        """Whether steps go back, and only where an epoch ends."""
        found = False
        for rows in groups:
            earlier, later = rows[:-1], rows[1:]
            back = steps[later] < steps[earlier]
            if bool((epochs[later[back]] <= epochs[earlier[back]]).any()):
                return False
            found = found or bool(back.any())
        return found

    def attempts(self, steps: np.ndarray, groups: Sequence[np.ndarray]) -> np.ndarray:
        """Attempt of every row: a series whose steps go back begins a new one."""
        backs: set[tuple[int, int]] = set()
        for rows in {id(rows): rows for rows in groups}.values():  # columns without gaps share their rows
            earlier, later = self.pairs(rows)
            back = steps[later] < steps[earlier]
            backs |= set(zip(later[back].tolist(), earlier[back].tolist(), strict=True))
        starts: list[int] = []
        for row, before in sorted(backs):
            if not starts or before >= starts[-1]:
                starts.append(row)  # else this series goes back because the attempt that began at starts[-1] did
        if len(starts) >= _ALTERNATIONS and self.ranks is None:
            ids = writers(steps[max(groups, key=len)])
            if ids is not None:
                text = f"{int(ids.max()) + 1} writers interleave in this file"
                self.found.notices.append((self.line(starts[0]), text))
                self.written_by_several = True
                starts = []
        if len(starts) > max(_DISORDER, self.height // 10):
            text = f"steps go back {len(starts)} times: read as out of order"
            self.found.notices.append((self.line(starts[0]), text))
            starts = []
        self.found.starts = starts
        attempts = np.zeros(self.height, dtype=np.uint16)
        attempts[starts] = 1
        if starts:
            text = f"steps go back {_times(len(starts))}: {len(starts) + 1} attempts in this file"
            self.found.notices.append((self.line(starts[0]), text))
        return np.cumsum(attempts, dtype=np.uint16)

    def count_repeats(self, steps: np.ndarray, attempts: np.ndarray, groups: Sequence[np.ndarray]) -> None:
        worst, first = 0, 0
        for rows in {id(rows): rows for rows in groups}.values():
            earlier, later = self.pairs(rows)
            same = later[(steps[later] == steps[earlier]) & (attempts[later] == attempts[earlier])]
            if not len(same):
                continue
            count = len(same) if self.ranks is None else int(np.unique(self.ranks[same], return_counts=True)[1].max())
            if count > worst:
                worst, first = count, int(same.min())
        if worst:
            said = f"{worst} points repeat" if worst > 1 else "one point repeats"
            text = f"{said} a step that was logged before: the last line counts"
            self.found.notices.append((self.line(first), text))

    # -- tracks ------------------------------------------------------------------------------------------------------

    def track(self, column: Column, shared: pl.DataFrame) -> Track:
        tag = column.tag
        given = names.mapped(tag, self.mapping)
        phase, series = given or names.series_of(tag)
        if given is None and series == "loss_scale" and names.is_bare_scale(tag) and not _is_loss_scale(column.values):
            series = tag
        frame = shared if column.rows is None or len(column.rows) == self.height else shared[column.rows]
        value, kind = value_columns(column.values)
        if column.lines is not None:
            frame = frame.with_columns(pl.Series("line", column.lines, dtype=pl.UInt32))
        frame = frame.with_columns(value, kind).select(list(SERIES_SCHEMA))
        resolution = numbers.text_resolution(column.texts) if column.texts else 0.0
        return Track(phase or column.hint or "train", series, tag, SeriesFrame(frame, self.unit, resolution))


def _is_loss_scale(raw: pl.Series) -> bool:
    """Whether values move by powers of two and reach those of a loss scale."""
    values = raw.drop_nulls().to_numpy()
    values = values[np.isfinite(values) & (values > 0)]
    if not len(values) or values.max() < _SMALLEST_SCALE:
        return False
    mantissas, _ = np.frexp(values[1:] / values[:-1])
    return bool((mantissas == 0.5).all())


def writers(steps: np.ndarray) -> np.ndarray | None:
    """Which of several processes that append to one file wrote each row, int64 (n,) from 0, or None for one process.

    steps: int64 (n,), in file order. A row continues the sequence that stands closest below it; the parting counts only
    where it explains every row by at most 8 strictly increasing sequences that take turns.
    """
    grid = np.diff(np.unique(steps))
    if not len(grid):
        return None
    gap = _GAP * float(np.median(grid))
    ids = np.zeros(len(steps), dtype=np.int64)
    last: list[int] = []
    for row, step in enumerate(steps.tolist()):
        open_ = [(end, -number) for number, end in enumerate(last) if 0 < step - end <= gap]
        if open_:
            number = -max(open_)[1]
            last[number] = step
        elif len(last) < _WRITERS:
            number = len(last)
            last.append(step)
        else:
            return None
        ids[row] = number
    if not len(last) > 1 or not _are_apart(steps, ids):
        return None
    turns = int((np.diff(ids) != 0).sum())
    shortest = int(np.bincount(ids).min())
    return ids if shortest >= _SHORTEST and turns >= max(_ALTERNATIONS, len(steps) // 10) else None


def _are_apart(steps: np.ndarray, ids: np.ndarray) -> bool:
    """Whether sequences log the same steps, or ranges of their own: else they are one, written out of order."""
    parts = sorted((steps[ids == number] for number in range(int(ids.max()) + 1)), key=lambda part: int(part[0]))
    repeated = len(steps) - len(np.unique(steps))
    return 2 * repeated >= min(map(len, parts)) or all(a[-1] < b[0] for a, b in pairwise(parts))


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def value_columns(raw: pl.Series) -> tuple[pl.Series, pl.Series]:
    """The columns `value` (null wherever not finite) and `kind` for values as they were read (Float64)."""
    array = raw.to_numpy()
    finite = np.isfinite(array)
    codes = np.zeros(len(array), dtype=np.uint8)
    value = raw.alias("value")
    if not finite.all():
        codes[np.isnan(array)] = 1
        codes[np.isposinf(array)] = 2
        codes[np.isneginf(array)] = 3
        codes[raw.is_null().to_numpy()] = 4
        value = pl.Series("value", np.where(finite, array, np.nan)).fill_nan(None)
    kind: Any = pl.Series("kind", codes).cat.to(KIND)
    return value, kind
