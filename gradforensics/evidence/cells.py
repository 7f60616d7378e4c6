"""The cells of a table with any columns, collected block by block: what every column holds, and its numbers.

Readers of rows and of whole columns end here alike. Memory is taken for numbers only, 8 bytes each; texts are looked
at and dropped with their block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from gradforensics.evidence import names, numbers

Record = tuple[int, Mapping[str, Any]]

SPELLINGS = 4096  # rows whose texts are kept
NUMBER, CLOCK, ABSENT, OTHER, FLAG = range(5)  # what a cell is; a clock ("0:01:48") counts as a number of seconds
_LONGEST_NUMBER = 64
_SAMPLE = 40
_ROLES = ("time", "phase")


def judge(value: object) -> tuple[int, float | None]:
    """What a cell is, and its number."""
    try:
        number = value if type(value) is float else numbers.scalar(value)
    except ValueError:
        if isinstance(value, bool):
            return FLAG, None
        number = numbers.clock_seconds(str(value)[:_SAMPLE])
        return (OTHER if number is None else CLOCK), number
    return (ABSENT if number is None else NUMBER), number


def unix_seconds(value: Any) -> float | None:
    """Unix seconds of a time column's value; None for relative times and for texts that are no dates."""
    try:
        number = numbers.scalar(value)
    except ValueError:
        number = None
    if number is not None:
        if 1e9 < number < 4e9:
            return number
        return number / 1000 if 1e12 < number < 4e12 else None
    if not isinstance(value, str) or len(value) > 40 or len(value) < 16:
        return None
    try:
        moment = datetime.fromisoformat(value.strip())
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


@dataclass(slots=True)
class Cells:
    """The cells of one column over some rows.

    values: Float64 (m,), null where there is no number; states: uint8 (m,), None where all are numbers; value: the cell
    as it was written, by its index; texts: the cells as far as they are texts, None elsewhere, of the first n.
    """

    values: pl.Series
    states: np.ndarray | None
    value: Callable[[int], Any]
    texts: Callable[[int], list[str | None]]


def from_objects(objects: Sequence[Any]) -> Cells:
    """Cells that were decoded one by one."""
    judged = [judge(value) for value in objects]
    return Cells(
        pl.Series([number for _, number in judged], dtype=pl.Float64),
        np.array([state for state, _ in judged], dtype=np.uint8),
        objects.__getitem__,
        lambda count: [value if isinstance(value, str) else None for value in objects[:count]],
    )


def from_texts(frame: pl.DataFrame) -> list[Cells]:
    """The columns of a table of texts (String), white space taken off; null is an empty cell."""
    numbers_ = frame.select(pl.all().cast(pl.Float64, strict=False))
    longest = frame.select(pl.all().str.len_bytes().max()).row(0)
    return [
        _from_texts(texts, values, long=(length or 0) > _LONGEST_NUMBER)
        for texts, values, length in zip(frame, numbers_, longest, strict=True)
    ]


def _from_texts(texts: pl.Series, values: pl.Series, *, long: bool) -> Cells:
    if long:
        values = values.set(texts.str.len_chars() > _LONGEST_NUMBER, None)
    states: np.ndarray | None = None
    if values.null_count():
        values, states = settled(values, values.is_null(), texts, lambda text: text or "")
    return Cells(values, states, lambda i: texts[i] or "", lambda count: texts.head(count).fill_null("").to_list())


def settled(
    values: pl.Series, odd: pl.Series, texts: pl.Series, decode: Callable[[str | None], Any]
) -> tuple[pl.Series, np.ndarray]:
    """(values, states) where the cells marked `odd` are decoded and judged one by one, each spelling once."""
    held = texts.filter(odd)
    at = np.flatnonzero(odd.to_numpy())
    states = np.zeros(len(values), dtype=np.uint8)
    if held.null_count() == len(held):
        states[at] = ABSENT
        return values, states
    spelled = held.to_list()
    known = {text: judge(decode(text)) for text in set(spelled)}
    states[at] = [known[text][0] for text in spelled]
    return values.scatter(at, pl.Series([known[text][1] for text in spelled], dtype=pl.Float64)), states


@dataclass(slots=True)
class Part:
    """Some rows of a block. at: int64 (m,), their places in the block, ascending.

    Either `fields`, the columns in the order of the row, or `records`, one mapping per row.
    """

    at: np.ndarray
    fields: Sequence[tuple[str, Cells]] = ()
    records: Sequence[Mapping[str, Any]] = ()

    def columns(self) -> Iterator[tuple[str, np.ndarray | None, int | np.ndarray, Cells]]:
        """(name, which of the rows hold it or None for all, its place in these rows, its cells) of every column."""
        for place, (name, cells) in enumerate(self.fields):
            yield name, None, place, cells
        found: dict[str, tuple[list[int], list[int], list[Any]]] = {}
        for index, record in enumerate(self.records):
            for place, (name, value) in enumerate(record.items()):
                column = found.get(name)
                if column is None:
                    column = found[name] = ([], [], [])
                column[0].append(index)
                column[1].append(place)
                column[2].append(value)
        for name, (rows, places, objects) in found.items():
            yield name, np.array(rows, dtype=np.int64), np.array(places, dtype=np.int64), from_objects(objects)


@dataclass(slots=True)
class _First:
    """The cell of the first row that was offered."""

    row: int = -1
    line: int = 0
    place: int = 0
    value: Any = None

    def offer(self, row: int, line: int, place: int, value: Any) -> None:
        if self.row < 0 or row < self.row:
            self.row, self.line, self.place, self.value = row, line, place, value

    def __bool__(self) -> bool:
        return self.row >= 0


@dataclass(eq=False)
class CellColumn:
    """One column: how many cells are what, and its numbers.

    others: texts that are no numbers; whole: whether everything in it is a whole number; spelled: what stands in
    spelled_rows, the first rows of the table, as far as it is a text. All is kept in the order in which it came.
    """

    name: str
    roles: frozenset[str]
    numbers: int = 0
    others: int = 0
    absent: int = 0
    whole: bool = True
    cell: _First = field(default_factory=_First)
    number: _First = field(default_factory=_First)
    clock: _First = field(default_factory=_First)
    other: _First = field(default_factory=_First)
    spelled_rows: list[int] = field(default_factory=list)
    spelled: list[str | None] = field(default_factory=list)
    _rows: list[np.ndarray] = field(default_factory=list)
    _values: list[pl.Series] = field(default_factory=list)
    _places: list[int | np.ndarray] = field(default_factory=list)
    _roles: dict[str, list[tuple[np.ndarray, np.ndarray | list[Any]]]] = field(default_factory=dict)

    @property
    def sample(self) -> str:
        """The beginning of the first text that is no number."""
        return str(self.other.value)[:_SAMPLE] if self.other else ""

    @property
    def line(self) -> int:
        """The line of `sample`."""
        return self.other.line

    @property
    def first(self) -> Any:
        """The first number, unless a clock came before it: then what the first row holds."""
        counted = self.number and (not self.clock or self.number.row < self.clock.row)
        return (self.number if counted else self.cell).value

    def take(self, rows: np.ndarray, lines: np.ndarray, places: int | np.ndarray, cells: Cells) -> None:
        """Add cells of these rows (uint32, ascending) on these lines."""

        def place(index: int) -> int:
            return places if isinstance(places, int) else int(places[index])

        def offer(first: _First, index: int) -> None:
            if not first or rows[index] < first.row:
                first.offer(int(rows[index]), int(lines[index]), place(index), cells.value(index))

        if not len(rows):
            return
        offer(self.cell, 0)
        states, values = cells.states, cells.values
        if states is None:
            self.numbers += len(rows)
            offer(self.number, 0)
        else:
            counts = np.bincount(states, minlength=5)
            self.numbers += int(counts[NUMBER] + counts[CLOCK])
            self.others += int(counts[OTHER])
            self.absent += int(counts[ABSENT])
            self.whole = self.whole and not counts[CLOCK] + counts[OTHER] + counts[FLAG]
            for state, first in ((NUMBER, self.number), (CLOCK, self.clock), (OTHER, self.other)):
                if counts[state]:
                    offer(first, int(np.argmax(states == state)))
        self.whole = self.whole and _whole(values)
        for role in self.roles:
            self._take_role(role, rows, cells)
        self._spell(rows, cells)
        if states is not None and (states == FLAG).any():
            kept = np.flatnonzero(states != FLAG)
            rows, values = rows[kept], values.gather(kept)
            places = places if isinstance(places, int) else places[kept]
        self._rows.append(rows)
        self._values.append(values)
        self._places.append(places)

    def _take_role(self, role: str, rows: np.ndarray, cells: Cells) -> None:
        """Keep the moments or the phases that the cells name."""
        read: Callable[[Any], Any] = unix_seconds if role == "time" else _phase
        found = self._roles.setdefault(role, [])
        if role == "time":
            values = cells.values.to_numpy()
            moments = np.where((values > 1e9) & (values < 4e9), values, np.nan)
            late = (values > 1e12) & (values < 4e12)
            moments[late] = values[late] / 1000
            if cells.states is not None:
                moments[cells.states != NUMBER] = np.nan
            found.append((rows, moments))
        if cells.states is None or not (odd := np.flatnonzero(cells.states == OTHER)).size:
            return
        known: dict[Any, Any] = {}
        told: list[Any] = []
        for index in odd.tolist():
            value = cells.value(index)
            key = value if isinstance(value, str) else str(value)
            if key not in known:
                known[key] = read(value)
            told.append(known[key])
        found.append((rows[odd], told))

    def _spell(self, rows: np.ndarray, cells: Cells) -> None:
        """Keep the texts of the first rows of the table."""
        if int(rows[0]) >= SPELLINGS:
            return
        count = int(np.searchsorted(rows, SPELLINGS))
        texts, rows = cells.texts(count), rows[:count]
        if cells.states is not None and (flags := cells.states[:count] == FLAG).any():
            rows = rows[~flags]
            texts = [text for text, flag in zip(texts, flags.tolist(), strict=True) if not flag]
        self.spelled_rows += rows.tolist()
        self.spelled += texts

    # -- the whole column --------------------------------------------------------------------------------------------

    @cached_property
    def _ordered(self) -> tuple[np.ndarray, pl.Series]:
        rows = np.concatenate([np.empty(0, dtype=np.uint32), *self._rows])
        values = pl.concat([pl.Series([], dtype=pl.Float64), *self._values])
        self._values.clear()
        if (rows[1:] < rows[:-1]).any():
            order = np.argsort(rows, kind="stable")
            rows, values = rows[order], values.gather(order)
        return rows, values.rechunk()

    @property
    def rows(self) -> np.ndarray:
        """uint32 (m,), ascending: the rows that hold it, truth values apart."""
        return self._ordered[0]

    @property
    def values(self) -> pl.Series:
        """Float64 (m,): the numbers in these rows, null where there is none."""
        return self._ordered[1]

    def place_at(self, row: int) -> int:
        """Which key of its row the column is, in a row that holds it."""
        for rows, places in zip(self._rows, self._places, strict=True):
            index = int(np.searchsorted(rows, row))
            if index < len(rows) and int(rows[index]) == row:
                return places if isinstance(places, int) else int(places[index])
        return -1

    def moments(self, height: int) -> pl.Series:
        """Float64 (height,): Unix seconds of every row, null where the column tells none."""
        found = np.full(height, np.nan)
        for rows, moments in self._roles.get("time", ()):
            found[rows] = np.array(moments, dtype=np.float64)
        return pl.Series(found).fill_nan(None)

    def phases(self, height: int) -> np.ndarray:
        """uint8 (height,): 0 where a row names no phase, else its place in names.PHASES, counted from 1."""
        found = np.zeros(height, dtype=np.uint8)
        for rows, phases in self._roles.get("phase", ()):
            found[rows] = phases
        return found


def _phase(value: Any) -> int:
    word = names.phase_word(str(value))
    return 0 if word is None else names.PHASES.index(word) + 1


def _whole(values: pl.Series) -> bool:
    """Whether all numbers are whole (NaN and the infinities are not)."""
    found = values.drop_nulls().to_numpy()
    return all((np.isfinite(part) & (np.floor(part) == part)).all() for part in (found[:64], found))


class Table:
    """Columns of any names, collected block by block. columns: the user's --map, which may give a column its role."""

    def __init__(self, columns: Mapping[str, str] | None = None) -> None:
        self._mapping = columns or {}
        self._columns: dict[str, CellColumn] = {}
        self._lines: list[np.ndarray] = []
        self.height = 0

    def take(self, lines: np.ndarray, parts: Iterable[Part]) -> None:
        """Add the rows of a block: lines: uint32, of every place that the parts speak of."""
        parts = [part for part in parts if len(part.at)]
        if not parts:
            return
        held = parts[0].at if len(parts) == 1 else np.sort(np.concatenate([part.at for part in parts]))
        for part in parts:
            rows = (np.searchsorted(held, part.at) + self.height).astype(np.uint32)
            where = lines[part.at]
            for name, some, places, cells in part.columns():
                column = self._columns.get(name)
                if column is None:
                    column = self._columns[name] = CellColumn(name, self._roles(name))
                column.take(rows if some is None else rows[some], where if some is None else where[some], places, cells)
        self._lines.append(lines[held].astype(np.uint32))
        self.height += len(held)

    def take_records(self, records: Sequence[Record]) -> None:
        """Add rows one by one."""
        lines = np.array([line for line, _ in records], dtype=np.uint32)
        self.take(lines, [Part(np.arange(len(records)), records=[record for _, record in records])])

    @property
    def lines(self) -> np.ndarray:
        """uint32 (height,): the line of every row."""
        return np.concatenate([np.empty(0, dtype=np.uint32), *self._lines])

    def columns(self) -> dict[str, CellColumn]:
        """The columns in the order in which the rows name them."""
        return {c.name: c for c in sorted(self._columns.values(), key=lambda c: (c.cell.row, c.cell.place))}

    def _roles(self, name: str) -> frozenset[str]:
        mapped = self._mapping.get(name.strip())
        return frozenset(r for r in _ROLES if mapped == r or names.column_rank(r, name) is not None)
