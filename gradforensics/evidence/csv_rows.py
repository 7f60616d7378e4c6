"""The rows of a text table -> cells: simple blocks are cut by polars, all others row by row by the csv module."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl

from gradforensics.evidence import numbers
from gradforensics.evidence.blocks import Block, Plain, blocks, plain, split
from gradforensics.evidence.cells import Part, Record, Table, from_texts
from gradforensics.evidence.files import LINE_LIMIT, File, shorten
from gradforensics.evidence.records import looks_like_metrics

_DECIMAL_COMMA = r"-?\d+,\d+(?:[eE][-+]?\d+)?$"
_MATCHES_COMMA = re.compile(_DECIMAL_COMMA).match
_MOST_COLUMNS = 4096
_QUOTE, _NEWLINE = b'"\n'


@dataclass(slots=True)
class Marked:
    """Rows of one remarkable kind: the line of the first and of the last, and how many there are."""

    first: int = 0
    last: int = 0
    count: int = 0

    def add(self, line: int) -> None:
        """Count a row."""
        self.first = self.first or line
        self.last = line
        self.count += 1


class _Source:
    """The lines of a file: whole blocks, or one by one for the csv module, which takes as many as a row needs."""

    def __init__(self, file: File) -> None:
        self._blocks = blocks(file)
        self._block = Block(1, b"")
        self._at = 0
        self.line = 1  # the next one's number

    @property
    def spent(self) -> bool:
        """Whether the current block was taken to its end."""
        return self._at >= len(self._block.data)

    def block(self) -> Block | None:
        """What is left of the current block, else the next one; it is not taken by this. None at the end."""
        if self.spent:
            found = next(self._blocks, None)
            if found is None:
                return None
            self._block, self._at, self.line = found, 0, found.line
        return self._block.after(self._at, self.line)

    def take(self, lines: int) -> None:
        """Take the whole block, which has so many lines."""
        self._at = len(self._block.data)
        self.line += lines

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        if self.spent and self.block() is None:
            raise StopIteration
        end = self._block.data.index(b"\n", self._at)
        line = self._block.data[self._at : end].decode("utf-8", errors="replace")
        self._at = end + 1
        self.line += 1
        return (line if len(line) <= LINE_LIMIT else shorten(line)).rstrip("\r") + "\n"


class TextTable:
    """One reading of a file as a table.

    table: its rows; header: the names of its columns; unnamed: the line of the first row, where that is no header;
    refused: the header is not that of a log; torn: the last line, where it is shorter than the header (it is no row);
    short, long, repeated: rows with fewer or more cells than the header, and copies of the header.
    """

    def __init__(self, file: File, separator: str | None, quoting: int) -> None:
        self.table = Table(file.columns)
        self.header: list[str] = []
        self.unnamed = 0
        self.refused = False
        self.torn = 0
        self.short, self.long, self.repeated = Marked(), Marked(), Marked()
        self._file = file
        self._separator = separator
        self._quoting = quoting
        self._source = _Source(file)
        self._held: Record | None = None  # a short row: torn, if no other follows

    def read(self) -> None:
        """Read all rows; csv.Error where a cell has no end."""
        while (block := self._source.block()) is not None:
            if not self.header or not self._cut(block):
                self._row_by_row()
            if self.refused:
                return
        if self._held is not None:
            self.torn = self._held[0]
            self.short.count -= 1

    # -- row by row --------------------------------------------------------------------------------------------------

    def _row_by_row(self) -> None:
        """Take the rows that begin in this block, or no more than the header."""
        records: list[Record] = []
        headless = not self.header
        line = self._source.line
        for cells in self._rows():
            row = [cell.strip() for cell in cells]
            record = self._record(line, row) if self.header else self._begin(line, row)
            if record is not None:
                records.append((line, record))
            line = self._source.line
            if self._source.spent or (headless and self.header):
                break
        self._take_records(records)

    def _rows(self) -> Iterator[list[str]]:
        if self._separator is None:
            return (line.split() for line in self._source)
        return csv.reader(self._source, delimiter=self._separator, quoting=self._quoting)  # type: ignore[arg-type]  # a csv.QUOTE_ constant

    def _begin(self, line: int, row: list[str]) -> dict[str, str] | None:
        """Take the first row that is not empty as the header, or as a record where it holds numbers."""
        if not any(row):
            return None
        self.header = _header(row)
        if is_numeric(row):
            self.unnamed = line
            return dict(zip(self.header, row, strict=True))
        mapped = any(name in self._file.columns for name in self.header)
        self.refused = not (self._file.alone or mapped or looks_like_metrics(self.header, loose=True))
        return None

    def _record(self, line: int, row: list[str]) -> dict[str, str] | None:
        """A row by the names of its columns; None for an empty one and for a copy of the header."""
        width = len(self.header)
        if not any(row):
            return None
        if len(row) > width and not any(row[width:]):
            row = row[:width]
        if len(row) != width:
            (self.long if len(row) > width else self.short).add(line)
        if row[0] == self.header[0] and row == self.header:
            self.repeated.add(line)
            return None
        if self._separator == ";":
            row = [cell.replace(",", ".") if _MATCHES_COMMA(cell) else cell for cell in row]
        return dict(zip(self.header, row, strict=False))

    def _take_records(self, records: list[Record]) -> None:
        if not records:
            return
        self._release()
        if records[-1][0] == self.short.last:
            self._held = records.pop()
        self.table.take_records(records)

    def _release(self) -> None:
        """Another row follows: the one held back is no torn end."""
        if self._held is not None:
            held, self._held = self._held, None
            self.table.take_records([held])

    # -- whole blocks ------------------------------------------------------------------------------------------------

    def _cut(self, block: Block) -> bool:
        """Take a whole block as columns; False where the csv module might read it differently."""
        separator = self._separator or "\t"
        cut = plain(block.data if self._separator else _tabbed(block))
        if cut is not None and self._separator and self._quoting == csv.QUOTE_MINIMAL:
            cut = _unquoted(cut, separator)
        if cut is None:
            return False
        width = len(self.header)
        counts = _counts(cut, separator, width)
        frame = split(cut.data, separator, width + (counts is not None))
        if b" " in cut.data or (b"\t" in cut.data and separator != "\t"):
            frame = frame.select(pl.all().str.strip_chars())
        usual = ~(frame["0"] == self.header[0]).fill_null(value=False).to_numpy()
        if counts is not None:
            usual &= (counts == width - 1) | ((counts == width) & frame[str(width)].is_null().to_numpy())
            frame = frame.drop(str(width))
        records = self._records(block.line, cut, separator, np.flatnonzero(~usual))
        usual &= ~_empty(frame)
        self._take_parts(block.line, frame, usual, records)
        self._source.take(len(cut.ends))
        return True

    def _records(self, first: int, cut: Plain, separator: str, places: np.ndarray) -> dict[int, dict[str, str]]:
        """The rows at these places of a block, one by one."""
        rows = {at: [cell.strip() for cell in cut.line(at).split(separator)] for at in places.tolist()}
        found = {at: self._record(first + at, row) for at, row in rows.items()}
        return {at: record for at, record in found.items() if record is not None}

    def _take_parts(
        self, first: int, frame: pl.DataFrame, usual: np.ndarray, records: dict[int, dict[str, str]]
    ) -> None:
        """Add the rows of a block: those that are usual as columns, the others one by one."""
        at = np.flatnonzero(usual)
        if not len(at) and not records:
            return
        self._release()
        last = max(records, default=-1)
        if last > int(at.max(initial=-1)) and first + last == self.short.last:
            self._held = (first + last, records.pop(last))
        if self._separator == ";":
            comma = pl.all().str.contains(f"^{_DECIMAL_COMMA}")
            frame = frame.with_columns(
                pl.when(comma).then(pl.all().str.replace(",", ".", literal=True)).otherwise(pl.all())
            )
        cells = from_texts(frame if len(at) == frame.height else frame.filter(pl.Series(usual)))
        columns = dict(zip(self.header, cells, strict=True))  # of two columns of one name the last counts
        lines = np.arange(first, first + len(usual), dtype=np.uint32)
        others = Part(np.array(list(records), dtype=np.int64), records=list(records.values()))
        self.table.take(lines, [Part(at, list(columns.items())), others])


def _tabbed(block: Block) -> bytes:
    """The lines with single tabs for their white space."""
    return "".join("\t".join(line.split()) + "\n" for line in block.lines()).encode()


def _unquoted(cut: Plain, separator: str) -> Plain | None:
    """The block without its quotes, where all of them stand around whole cells that need none."""
    if b'"' not in cut.data:
        return cut
    array = cut.array
    quotes = np.flatnonzero(array == _QUOTE)
    if len(quotes) % 2:
        return None
    opening, closing = quotes[::2], quotes[1::2]
    edge = (array == ord(separator)) | (array == _NEWLINE)
    if not (edge[opening - 1] & edge[closing + 1]).all():  # before the first byte is the last one, a newline
        return None
    edges = np.flatnonzero(edge)
    if (np.searchsorted(edges, opening) != np.searchsorted(edges, closing)).any():
        return None
    return Plain(cut.data.replace(b'"', b""), cut.ends - np.searchsorted(quotes, cut.ends))


def _counts(cut: Plain, separator: str, width: int) -> np.ndarray | None:
    """int64 (lines,): the separators in every line; None where all lines have those of `width` cells."""
    marks = np.flatnonzero(cut.array == ord(separator))
    ends = cut.ends
    if len(marks) == len(ends) * (width - 1):
        if width == 1:
            return None
        rows = marks.reshape(len(ends), width - 1)
        if (rows[:, -1] < ends).all() and (rows[1:, 0] > ends[:-1]).all():
            return None
    return np.diff(np.searchsorted(marks, ends), prepend=0)


def _empty(frame: pl.DataFrame) -> np.ndarray:
    """bool (lines,): the lines in which no cell holds anything."""
    first = frame["0"]
    if not first.null_count() and not (first == "").any():
        return np.zeros(frame.height, dtype=bool)
    nothing = pl.all_horizontal(pl.all().is_null() | (pl.all() == ""))
    return frame.select(nothing).to_series().to_numpy()


def _header(row: list[str]) -> list[str]:
    """Names of the columns; those of a table without a header are column_1 (or step, where it counts), column_2 ..."""
    if is_numeric(row):
        first = "step" if len(row) > 1 and numbers.whole(numbers.parse_number(row[0])) is not None else "column_1"
        return [first, *(f"column_{i}" for i in range(2, len(row) + 1))]
    row = [row[0].lstrip("# "), *row[1:]][:_MOST_COLUMNS]
    found: list[str] = []
    for index, cell in enumerate(row, start=1):
        title_ = cell or f"column_{index}"
        found.append(title_ if title_ not in found else f"{title_}#{index}")
    return found


def is_numeric(cells: list[str]) -> bool:
    """Whether all cells are numbers or empty, and one is a number at least."""
    found = 0
    for cell in cells:
        try:
            found += numbers.parse_number(cell) is not None
        except ValueError:
            return False
    return found > 0
