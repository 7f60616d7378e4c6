"""Rows of named values -> the numbers of every key, with what is no number counted by its kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from gradforensics.evidence import numbers
from gradforensics.evidence.wandb_log.items import Items, Value

_PENDING = 1 << 16  # values that are kept as text before they become numbers
_TYPE = "._type"  # how the name of the member ends that tells what an object is
_KINDS = {"[": "lists", "{": "objects", "t": "booleans", "f": "booleans", '"': "texts"}
_MOST_KINDS = 50


@dataclass
class Numbers:
    """The numbers of one key. rows: int64 (m,), ascending; values: float64 (m,), NaN and infinities as logged."""

    rows: np.ndarray
    values: np.ndarray

    def spread(self, height: int) -> pl.Series:
        """Float64 (height,): null where the key has no value."""
        found, known = np.zeros(height), np.zeros(height, dtype=bool)
        found[self.rows] = self.values
        known[self.rows] = True
        return pl.Series(found).zip_with(pl.Series(known), pl.Series([None], dtype=pl.Float64))


@dataclass
class _Column:
    name: str
    rows: list[np.ndarray] = field(default_factory=list)
    values: list[np.ndarray] = field(default_factory=list)
    others: Counter[str] = field(default_factory=Counter)

    @property
    def is_series(self) -> bool:
        """Whether most of the values are numbers: a word may happen to be "NaN"."""
        return sum(map(len, self.values)) > self.others.total()

    def add(self, rows: np.ndarray, values: Sequence[Value]) -> None:
        """Append what is a number, count what is none."""
        try:
            found = np.array(list(map(float, values)))
        except ValueError:
            read = [self.number(value) for value in values]
            kept = [place for place, number in enumerate(read) if number is not None]
            rows, found = rows[kept], np.array([read[place] for place in kept], dtype=np.float64)
        if len(rows):
            self.rows.append(rows.astype(np.uint32))
            self.values.append(found)

    def number(self, value: Value) -> float | None:
        """The number that a JSON value is, or a text that spells one such as "NaN"; None, counted, for all others."""
        said = value.decode("utf-8", "replace") if isinstance(value, bytes) else repr(value)
        try:
            return numbers.parse_number(said.strip('"'))
        except ValueError:
            typed = self.name.endswith(_TYPE) and said.startswith('"')
            kind = f"of the type {said[:60]}" if typed else _KINDS.get(said[:1], "no JSON")
            if len(self.others) < _MOST_KINDS:
                self.others[kind] += 1
            return None


class Rows:
    """Collects one row of values per record. items: what reads the records; height: the number of rows."""

    def __init__(self, tag: bytes = b"\n") -> None:
        self.items = Items(tag)
        self.height = 0
        self._columns: dict[int, _Column] = {}
        self._codes: list[int] = []
        self._values: list[Value] = []
        self._counts: list[int] = []

    def append(self, codes: Sequence[int], values: Sequence[Value]) -> None:
        """Append a row of values by the numbers of their keys."""
        self._codes += codes
        self._values += values
        self._counts.append(len(codes))
        self.height += 1
        if len(self._codes) >= _PENDING:
            self._settle()

    def _settle(self) -> None:
        """Turn what is kept as text into the numbers of every key."""
        rows = np.repeat(np.arange(self.height - len(self._counts), self.height), self._counts)
        codes = np.array(self._codes, dtype=np.int64)
        order = np.argsort(codes, kind="stable")
        for part in np.split(order, np.flatnonzero(np.diff(codes[order])) + 1) if len(codes) else ():
            code = int(codes[part[0]])
            column = self._columns.setdefault(code, _Column(self.items.names[code]))
            column.add(rows[part], [self._values[place] for place in part.tolist()])
        self._codes, self._values, self._counts = [], [], []

    def finish(self) -> dict[str, Numbers]:
        """The numbers of every key that has some; the members of media and other typed objects are left out."""
        self._settle()
        media = self._media()
        return {
            column.name: Numbers(np.concatenate(column.rows).astype(np.int64), np.concatenate(column.values))
            for column in self._columns.values()
            if column.is_series and not column.name.startswith(media)
        }

    def others(self) -> Iterator[str]:
        """After finish(): one sentence per kind of value that is no series."""
        media = self._media()
        counts: Counter[str] = Counter()
        keys: dict[str, list[str]] = {}
        for column in self._columns.values():
            if column.name.startswith(media) and not column.name.endswith(_TYPE):
                continue
            for kind, count in column.others.items():
                counts[kind] += count
                keys.setdefault(kind, []).append(column.name.removesuffix(_TYPE))
        for kind, count in counts.items():
            first, *more = keys[kind]
            several = f" and {len(more)} more keys" if len(more) > 1 else " and one more key" if more else ""
            said = f"{count} values are {kind}" if count > 1 else f"one value is {kind}"
            yield f'{said}: no series (key "{first[:100]}"{several})'
        if self.items.dropped:
            yield f"more than {len(self.items.names)} keys: {self.items.dropped} values of the others were not read"

    def _media(self) -> tuple[str, ...]:
        """What the keys of the members of typed objects begin with."""
        typed = (c.name for c in self._columns.values() if c.name.endswith(_TYPE) and c.others)
        return tuple(name.removesuffix("_type") for name in typed)
