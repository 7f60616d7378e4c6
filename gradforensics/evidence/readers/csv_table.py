"""Tables as text: CSV, TSV, semicolons, padded names, and bare columns of numbers."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator

from gradforensics.evidence import numbers
from gradforensics.evidence.files import File
from gradforensics.evidence.records import Record, looks_like_metrics, read_records
from gradforensics.evidence.rows import Reading

name = "csv"

_TABLES = frozenset({".csv", ".tsv", ".tab"})
_TEXTS = frozenset({".txt", ".dat", ".log", ".out", ""})
_DECIMAL_COMMA = re.compile(r"-?\d+,\d+(?:[eE][-+]?\d+)?$")
_MOST_COLUMNS = 4096


def sniff(file: File) -> bool:
    """A table by its suffix, or a text whose first two lines are a header and numbers, or numbers only."""
    if file.suffix in _TABLES:
        return True
    if file.suffix not in _TEXTS:
        return False
    lines = [line for line in file.start.splitlines()[:4] if line.strip()]
    if len(lines) < 2:
        return False
    separator = _separator(lines[0])
    cells = [_split(line, separator) for line in lines[:2]]
    if len(cells[0]) != len(cells[1]) or len(cells[0]) < 2 or not _numeric(cells[1]):
        return False
    if _numeric(cells[0]):
        return numbers.whole(numbers.parse_number(cells[0][0])) is not None
    return separator is not None and looks_like_metrics(cells[0], loose=True)


def read(file: File) -> Reading:
    """All rows with the line on which each begins, also where quoted cells run over several lines."""
    lines = [line for line in file.start.splitlines()[:8] if line.strip()]
    if not lines:
        return Reading(claimed=False)
    separator = _separator(lines[0])
    for quoting in (csv.QUOTE_MINIMAL, csv.QUOTE_NONE):
        try:
            return _read(file, _rows(file, separator, quoting), comma=separator == ";")
        except csv.Error:  # a quote that never closes swallows the rest of the file: read again without quotes
            continue
    return Reading(notices=[(None, "not read as a table: a cell is longer than any number")])


def _rows(file: File, separator: str | None, quoting: int) -> Iterator[tuple[int, list[str]]]:
    if separator is None:
        for number, line in file.lines():
            yield number, line.split()
        return
    source = (line.rstrip("\r") + "\n" for _, line in file.lines())
    table = csv.reader(source, delimiter=separator, quoting=quoting)  # type: ignore[arg-type]  # a csv.QUOTE_ constant
    first = 1
    for row in table:
        yield first, [cell.strip() for cell in row]
        first = table.line_num + 1


def _read(file: File, rows: Iterator[tuple[int, list[str]]], *, comma: bool) -> Reading:
    header: list[str] = []
    records: list[Record] = []
    notices: list[tuple[int | None, str]] = []
    long: list[int] = []
    short: list[int] = []
    repeated: list[int] = []
    width = 0
    for line, cells in rows:
        row = cells
        if not any(row):
            continue
        if not header:
            header = _header(row)
            width = len(header)
            if _numeric(row):
                records.append((line, dict(zip(header, row, strict=True))))
                unnamed = next((h for h in header if h.startswith("column_") and h not in file.columns), None)
                if unnamed:
                    notices.append((line, f"no header: say what the columns are, for example --map {unnamed}=loss"))
            elif not (file.alone or looks_like_metrics(header, loose=True) or any(h in file.columns for h in header)):
                return Reading(claimed=False)
            continue
        if len(row) > width and not any(row[width:]):
            row = row[:width]
        if len(row) != width:
            (long if len(row) > width else short).append(line)
        if row[0] == header[0] and row == header:
            repeated.append(line)
            continue
        if comma:
            row = [cell.replace(",", ".") if _DECIMAL_COMMA.match(cell) else cell for cell in row]
        records.append((line, dict(zip(header, row, strict=False))))
    if short and records and records[-1][0] == short[-1]:
        notices.append((short.pop(), "the last line is torn: it has fewer cells than the header"))
        records.pop()
    for found, what in ((short, "fewer"), (long, "more")):
        if found:
            notices.append((found[0], f"{len(found)} rows have {what} cells than the header, this is the first"))
    if repeated:
        notices.append((repeated[0], f"the header is repeated {len(repeated)} times: several launches wrote this file"))
    if not records:
        return Reading(notices=[*notices, (None, "a table without rows")])
    reading = read_records(records, file.columns)
    if not reading.tracks and not file.alone:
        return Reading(claimed=False)
    reading.notices = notices + reading.notices
    reading.speaks_of_training = bool(reading.tracks)
    return reading


def _header(row: list[str]) -> list[str]:
    """Names of the columns; those of a table without a header are column_1 (or step, where it counts), column_2 ..."""
    if _numeric(row):
        first = "step" if len(row) > 1 and numbers.whole(numbers.parse_number(row[0])) is not None else "column_1"
        return [first, *(f"column_{i}" for i in range(2, len(row) + 1))]
    row = [row[0].lstrip("# "), *row[1:]][:_MOST_COLUMNS]
    found: list[str] = []
    for index, cell in enumerate(row, start=1):
        title_ = cell or f"column_{index}"
        found.append(title_ if title_ not in found else f"{title_}#{index}")
    return found


def _separator(line: str) -> str | None:
    """The separator of a header line; None stands for white space."""
    counts = {mark: line.count(mark) for mark in ("\t", ";", ",")}
    best = max(counts, key=lambda mark: counts[mark])
    if counts[best]:
        return best
    return None if len(line.split()) > 1 and _numeric(line.split()) else ","


def _split(line: str, separator: str | None) -> list[str]:
    return [cell.strip() for cell in (line.split() if separator is None else line.split(separator))]


def _numeric(cells: list[str]) -> bool:
    """Whether all cells are numbers or empty, and one is a number at least."""
    found = 0
    for cell in cells:
        try:
            found += numbers.parse_number(cell) is not None
        except ValueError:
            return False
    return found > 0
