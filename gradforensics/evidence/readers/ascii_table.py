"""Console logs of OpenAI baselines and Stable-Baselines3: blocks of "| name | value |" between lines of dashes.

    -----------------------------          ---------------------------------
    | loss           | 10.812586 |         | rollout/           |          |
    | num episodes   | 4         |         |    ep_rew_mean     | 30       |
    -----------------------------          ---------------------------------

Everything else in such a log is read as of any other console log. Sources of the format: HumanOutputFormat in
baselines.logger and stable_baselines3.common.logger.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import replace

import numpy as np
import polars as pl

from gradforensics.evidence import names, numbers
from gradforensics.evidence.files import File, plain
from gradforensics.evidence.log_table import Column, LogTable, settle
from gradforensics.evidence.readers import console
from gradforensics.evidence.readings import Reading
from gradforensics.evidence.rows import RowLog

name = console.name

_RULE = re.compile(r"-{5,}\s*$")
_INDENTED = 2  # spaces before a name that stands below the name of its section
_FEWEST = 2  # rows of a table
_PLACES = ("step", "epoch")


def sniff(file: File) -> bool:
    """A console log in whose head one whole table stands."""
    if "\n|" not in file.start or not console.sniff(file):
        return False
    rows = -1  # of a table that was begun
    for line in file.start.split("\n"):
        if _RULE.match(line):
            if rows >= _FEWEST:
                return True
            rows = 0
        elif rows >= 0:
            rows = rows + 1 if _cells(line) is not None else -1
    return False


def read(file: File) -> Reading:
    """One row per table, and what the lines between the tables say."""
    reading = console.read(file)
    tables = _Tables(file)
    for number, line in file.lines():
        tables.take(number, line)
    tables.end()
    table = tables.log.table()
    _place(table)
    settled = settle(table, file.columns)
    if not settled.tracks:
        return reading
    reading.claimed = reading.speaks_of_training = True
    reading.tracks = settled.tracks
    reading.columns |= {column.tag for column in table.columns}
    reading.notices += [*settled.notices, *tables.notices]
    reading.trail.last_line = tables.last
    if table.steps is not None:
        reading.trail.last_step = int(settled.steps.max())
    starts = [table.lines[row] for row in settled.starts] if table.lines is not None else []
    if reading.events is not None:
        reading.events = [replace(e, attempt=bisect_right(starts, e.line or 0)) for e in reading.events]
    return reading


class _Tables:
    """The tables of a log, line by line."""

    def __init__(self, file: File) -> None:
        self.log = RowLog(file.columns)
        self.notices: list[tuple[int | None, str]] = []
        self.last: int | None = None
        self._section = ""
        self._values: dict[str, float | None] = {}
        self._lines: dict[str, int] = {}
        self._texts: dict[str, str] = {}

    def take(self, number: int, line: str) -> None:
        """One line of the log; those that are no part of a table are passed over."""
        if line[:1] not in ("-", "|", "\x1b"):
            return
        bare = plain(line)
        if _RULE.match(bare):
            self._close()
        elif (cells := _cells(bare)) is not None:
            indent = len(cells[0]) - len(cells[0].lstrip())
            self._row(number, cells[0].strip(), cells[1].strip(), indented=indent > _INDENTED)

    def end(self) -> None:
        """The end of the log: a table without its closing line was cut."""
        if self._values:
            self.notices.append((self.last, "the last table is torn: it has no end"))
        self._close()

    def _row(self, number: int, key: str, text: str, *, indented: bool) -> None:
        if not text and key.endswith("/"):
            self._section = key
            return
        tag = self._section + key if indented else key
        if tag in self._values:
            self._close()  # the end of one table and the begin of the next are missing
        try:
            value = numbers.parse_number(text)
        except ValueError:
            return
        self._values[tag], self._lines[tag], self._texts[tag] = value, number, text
        self.last = number

    def _close(self) -> None:
        if self._values:
            first = next(iter(self._lines.values()))
            self.log.add(first, self._values, lines=self._lines, texts=self._texts)
        self._section, self._values, self._lines, self._texts = "", {}, {}, {}


def _cells(line: str) -> tuple[str, str] | None:
    """(name, value) of "| name | value |", with the spaces around them."""
    parts = line.split("|", 4)
    if len(parts) != 4 or parts[0] or parts[3].strip() or not parts[1].strip():
        return None
    return parts[1], parts[2]


def _place(table: LogTable) -> None:
    """Take the step and the epoch out of the columns where tables have them."""
    for kind in _PLACES:
        ranked = [
            (rank, place, column)
            for place, column in enumerate(table.columns)
            if (rank := names.column_rank(kind, column.tag)) is not None and 2 * len(column.values) >= table.height
        ]
        if not ranked:
            continue
        found = min(ranked, key=lambda r: r[:2])[2]
        values = np.full(table.height, np.nan)
        values[found.at(np.arange(table.height))] = found.values.fill_null(float("nan")).to_numpy()
        if kind == "epoch":
            table.epochs = pl.Series(values).fill_nan(None)
        elif _whole(found):
            table.steps = pl.Series(values).fill_nan(None).cast(pl.Int64)
        else:
            continue
        table.columns.remove(found)


def _whole(column: Column) -> bool:
    values = column.values.drop_nulls().to_numpy()
    return bool(len(values) and (np.abs(values) < 2**53).all() and (values == np.floor(values)).all())
