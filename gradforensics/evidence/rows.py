"""Rows of a log -> series frames: attempts, repeated steps and epochs whose steps start again are settled here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl

from gradforensics.evidence import names, numbers, placeholders
from gradforensics.tables import KIND, SERIES_SCHEMA, Event, Phase, SeriesFrame, Setting, StepUnit

_SMALLEST_SCALE = 128  # a highest loss scale below this is rather something else
_DISORDER = 50  # more backward steps than this, and in a tenth of the rows, are no restarts


@dataclass
class Track:
    """One series of one file, not yet attributed to a run."""

    phase: Phase
    series: str
    tag: str
    stored: SeriesFrame


@dataclass
class Trail:
    """What the end of a log tells about how the run ended.

    last_line: of the last row or movement of a progress bar; planned: optimizer steps in all; seconds_left: the log's
    own estimate at its last row; launch_line: where the last launch began; finished: words that say it is complete.
    """

    last_step: int | None = None
    last_line: int | None = None
    planned: int | None = None
    seconds_left: float | None = None
    launch_line: int | None = None
    finished: str = ""
    finished_line: int | None = None


@dataclass
class Reading:
    """Everything a reader got out of one file. `settings` and `events` are None where the format has none.

    columns: the names of a table's columns, also of those that are no series.
    """

    tracks: list[Track] = field(default_factory=list)
    settings: list[Setting] | None = None
    events: list[Event] | None = None
    notices: list[tuple[int | None, str]] = field(default_factory=list)
    trail: Trail = field(default_factory=Trail)
    speaks_of_training: bool = False
    claimed: bool = True
    columns: set[str] = field(default_factory=set)

    def known_columns(self) -> set[str]:
        """The columns that --map can speak of: those of a table, and the names of all series."""
        return self.columns | {track.tag.strip() for track in self.tracks}


@dataclass
class _Column:
    hint: Phase | None
    tag: str
    rows: list[int] = field(default_factory=list)
    values: list[float | None] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def states(self, rows: int) -> np.ndarray:
        """What every row of the file holds of this column, in the terms of `placeholders`."""
        found = np.full(rows, placeholders.ABSENT, dtype=np.uint8)
        raw = self.raw()
        found[self.rows] = np.where(raw.is_nan().fill_null(value=False), placeholders.NAN, placeholders.MEASURED)
        found[np.array(self.rows, dtype=np.int64)[raw.is_null().to_numpy()]] = placeholders.ABSENT
        return found

    def raw(self) -> pl.Series:
        """The values as they were read."""
        return pl.Series("value", self.values, dtype=pl.Float64, strict=False)

    def present(self) -> np.ndarray:
        """The rows that hold a value: an empty cell of a sparse column says nothing about the steps."""
        return np.array(
            [row for row, value in zip(self.rows, self.values, strict=True) if value is not None], dtype=np.int64
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
        self._columns: dict[tuple[Phase | None, str], _Column] = {}
        self._starts: list[int] = []
        self.stands: list[tuple[int, int]] = []
        self.period: int | None = None
        self.notices: list[tuple[int | None, str]] = []

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
                column = self._columns[phase, tag] = _Column(phase, tag)
            column.rows.append(row)
            column.values.append(value)
            if lines is not None:
                column.lines.append(lines.get(tag, line))
            if texts is not None and len(column.texts) < 4096:
                column.texts.append(texts[tag])

    # -- where the rows stand ----------------------------------------------------------------------------------------

    def finish(self) -> list[Track]:
        """The tracks of all columns that hold at least one value."""
        if not self._lines:
            return []
        self._fillers()
        steps = self._standing()
        groups = [(column.present(), column) for column in self._columns.values()]
        # an evaluation may count its own steps from 0 every time: only the training's series tell a restart
        trained = [g for g in groups if (g[1].hint or names.series_of(g[1].tag)[0]) not in ("eval", "test")] or groups
        attempts = np.zeros(len(self._lines), dtype=np.uint16)
        if self._unit != "row":
            steps = self._count_through(steps, [rows for rows, _ in trained])
            attempts = self._attempts(steps, trained)
            self._count_repeats(steps, attempts, self._by_rank([g for g in trained if names.is_metric(g[1].tag)]))
        self.stands = list(zip(self._lines, steps.tolist(), strict=True))
        shared = pl.DataFrame(
            {
                "attempt": pl.Series(attempts, dtype=pl.UInt16),
                "rank": pl.Series(self._ranks, dtype=pl.UInt32),
                "step": pl.Series(steps),
                "epoch": pl.Series(self._epochs, dtype=pl.Float64, strict=False),
                "time": pl.Series(self._times, dtype=pl.Float64, strict=False),
                "line": pl.Series(self._lines, dtype=pl.UInt32),
            }
        )
        return [self._track(key, column, shared) for key, column in self._columns.items() if column.values]

    def _phase(self, column: _Column) -> Phase:
        named = names.mapped(column.tag, self._mapping) or names.series_of(column.tag)
        return named[0] or column.hint or "train"

    def _fillers(self) -> None:
        """NaN where nothing was measured becomes a missing value."""
        suspects = [c for c in self._columns.values() if c.raw().is_nan().any()]
        if not suspects:
            return
        states = {id(c): c.states(len(self._lines)) for c in self._columns.values()}
        for column in suspects:
            phase, own = self._phase(column), states[id(column)]
            others = [
                states[id(c)]
                for c in self._columns.values()
                if c is not column and (self._phase(c) != phase or names.is_loss(c.tag))
            ]
            filler = placeholders.complementary(own, others)
            if phase != "train":
                filler |= placeholders.pauses(np.where(filler, placeholders.ABSENT, own))
            if not filler.any():
                continue
            column.values = [None if filler[r] else v for r, v in zip(column.rows, column.values, strict=True)]
            first, count = self._lines[int(np.flatnonzero(filler)[0])], int(filler.sum())
            text = f'column "{column.tag}": {count} NaN where nothing was measured: read as missing'
            self.notices.append((first, text))

    def _standing(self) -> np.ndarray:
        """A step for every row: as logged, else the epoch, else the row number; sets the unit."""
        if any(step is not None for step in self._steps):
            last, filled = 0, []
            for step in self._steps:  # a row without a step belongs to the last one that was named
                last = last if step is None else step
                filled.append(last)
            return np.array(filled, dtype=np.int64)
        if self._unit == "row":
            return np.arange(1, len(self._lines) + 1, dtype=np.int64)
        epochs = [numbers.whole(e) for e in self._epochs]
        known = [e for e in epochs if e is not None]
        repeats = sum(a == b for a, b in pairwise(known))
        if known and len(known) == len(epochs) and (repeats * 2 <= len(known) or self._unit == "epoch"):
            self._unit = "epoch"
            return np.array(known, dtype=np.int64)
        self._unit = "row"
        return np.arange(1, len(self._lines) + 1, dtype=np.int64)

    def _count_through(self, steps: np.ndarray, groups: Sequence[np.ndarray]) -> np.ndarray:
        """Steps that begin anew in every epoch, counted through: epoch x steps per epoch + step."""
        if self._unit != "step" or any(e is None or e != int(e) for e in map(_finite, self._epochs)):
            return steps
        epochs = np.array(self._epochs, dtype=np.float64).astype(np.int64)
        resets = 0
        for rows in groups:
            back = np.flatnonzero(np.diff(steps[rows]) < 0)
            if not len(back):
                continue
            if bool((epochs[rows[back + 1]] <= epochs[rows[back]]).any()):
                return steps
            resets = max(resets, len(back))
        if not resets:
            return steps
        low, high = int(steps.min()), int(steps.max())
        period = self.period or (high if low >= 1 else high + 1)
        base = 1 if int(epochs.min()) == 1 else 0
        self.notices.append((None, f"steps begin anew in every epoch: counted through with {period} steps per epoch"))
        return np.asarray((epochs - base) * period + steps, dtype=np.int64)

    def _attempts(self, steps: np.ndarray, groups: Sequence[tuple[np.ndarray, _Column]]) -> np.ndarray:
        """Attempt of every row: a series whose steps go back begins a new one."""
        parts = self._by_rank(groups)
        backs: list[tuple[int, int]] = []
        for rows in parts:
            at = np.flatnonzero(np.diff(steps[rows]) < 0)
            backs += zip(rows[at + 1].tolist(), rows[at].tolist(), strict=True)
        starts: list[int] = []
        for row, before in sorted(backs):
            if not starts or before >= starts[-1]:
                starts.append(row)  # else this series goes back because the attempt that began at starts[-1] did
        if len(starts) > max(_DISORDER, len(self._lines) // 10):
            self.notices.append((self._lines[starts[0]], f"steps go back {len(starts)} times: read as out of order"))
            starts = []
        self._starts = starts
        attempts = np.zeros(len(self._lines), dtype=np.uint16)
        for row in starts:
            attempts[row:] += 1
        if starts:
            self.notices.append(
                (
                    self._lines[starts[0]],
                    f"steps go back {_times(len(starts))}: {len(starts) + 1} attempts in this file",
                )
            )
        return attempts

    def _by_rank(self, groups: Sequence[tuple[np.ndarray, _Column]]) -> Sequence[np.ndarray]:
        if all(rank is None for rank in self._ranks):
            return [rows for rows, _ in groups]
        ranks = np.array([-1 if rank is None else rank for rank in self._ranks], dtype=np.int64)
        return [rows[ranks[rows] == rank] for rows, _ in groups for rank in np.unique(ranks[rows])]

    def _count_repeats(self, steps: np.ndarray, attempts: np.ndarray, parts: Sequence[np.ndarray]) -> None:
        worst, first = 0, None
        for rows in parts:
            same = np.flatnonzero((np.diff(steps[rows]) == 0) & (np.diff(attempts[rows].astype(np.int64)) == 0))
            if len(same) > worst:
                worst, first = len(same), self._lines[int(rows[same[0] + 1])]
        if worst:
            said = f"{worst} points repeat" if worst > 1 else "one point repeats"
            self.notices.append((first, f"{said} a step that was logged before: the last line counts"))

    # -- tracks ------------------------------------------------------------------------------------------------------

    def _track(self, key: tuple[Phase | None, str], column: _Column, shared: pl.DataFrame) -> Track:
        hint, tag = key
        given = names.mapped(tag, self._mapping)
        phase, series = given or names.series_of(tag)
        if given is None and series == "loss_scale" and names.is_bare_scale(tag) and not _is_loss_scale(column.raw()):
            series = tag
        frame = shared if len(column.rows) == len(self._lines) else shared[column.rows]
        value, kind = value_columns(column.values)
        if column.lines:
            frame = frame.with_columns(pl.Series("line", column.lines, dtype=pl.UInt32))
        frame = frame.with_columns(value, kind).select(list(SERIES_SCHEMA))
        resolution = numbers.text_resolution(column.texts) if column.texts else 0.0
        return Track(phase or hint or "train", series, tag, SeriesFrame(frame, self._unit, resolution))

    def attempt_at(self, line: int) -> int:
        """The attempt that a line of the file belongs to (after finish())."""
        return sum(1 for row in self._starts if self._lines[row] <= line)


def _is_loss_scale(raw: pl.Series) -> bool:
    """Whether values move by powers of two and reach those of a loss scale."""
    values = raw.drop_nulls().to_numpy()
    values = values[np.isfinite(values) & (values > 0)]
    if not len(values) or values.max() < _SMALLEST_SCALE:
        return False
    mantissas, _ = np.frexp(values[1:] / values[:-1])
    return bool((mantissas == 0.5).all())


def _finite(value: float | None) -> float | None:
    return value if value is not None and abs(value) < 2**53 else None


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def value_columns(values: Sequence[float | None]) -> tuple[pl.Series, pl.Series]:
    """The columns `value` (null wherever not finite) and `kind` for values as they were read."""
    raw = pl.Series("value", values, dtype=pl.Float64, strict=False)
    array = raw.to_numpy()
    finite = np.isfinite(array)
    codes = np.zeros(len(array), dtype=np.uint8)
    if not finite.all():
        codes[np.isnan(array)] = 1
        codes[np.isposinf(array)] = 2
        codes[np.isneginf(array)] = 3
        codes[raw.is_null().to_numpy()] = 4
        raw = pl.Series("value", np.where(finite, array, np.nan)).fill_nan(None)
    kind: Any = pl.Series("kind", codes).cat.to(KIND)
    return raw, kind
