"""Tables as text: CSV, TSV, semicolons, padded names, and bare columns of numbers."""

from __future__ import annotations

import csv

from gradforensics.evidence import numbers
from gradforensics.evidence.csv_rows import TextTable, is_numeric
from gradforensics.evidence.files import File
from gradforensics.evidence.readings import Reading
from gradforensics.evidence.records import looks_like_metrics, read_table

name = "csv"

_TABLES = frozenset({".csv", ".tsv", ".tab"})
_TEXTS = frozenset({".txt", ".dat", ".log", ".out", ""})


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
    if len(cells[0]) != len(cells[1]) or len(cells[0]) < 2 or not is_numeric(cells[1]):
        return False
    if is_numeric(cells[0]):
        return numbers.whole(numbers.parse_number(cells[0][0])) is not None
    return separator is not None and looks_like_metrics(cells[0], loose=True)


def read(file: File) -> Reading:
    """All rows with the line on which each begins, also where quoted cells run over several lines."""
    lines = [line for line in file.start.splitlines()[:8] if line.strip()]
    if not lines:
        return Reading(claimed=False)
    separator = _separator(lines[0])
    for quoting in (csv.QUOTE_MINIMAL, csv.QUOTE_NONE):
        text = TextTable(file, separator, quoting)
        try:
            text.read()
        except csv.Error:  # a quote that never closes swallows the rest of the file: read again without quotes
            continue
        return _reading(file, text)
    return Reading(notices=[(None, "not read as a table: a cell is longer than any number")])


def _reading(file: File, text: TextTable) -> Reading:
    if text.refused:
        return Reading(claimed=False)
    notices = _notices(file, text)
    if not text.table.height:
        return Reading(notices=[*notices, (None, "a table without rows")])
    reading = read_table(text.table, file.columns)
    if not reading.tracks and not file.alone:
        return Reading(claimed=False)
    reading.notices = notices + reading.notices
    reading.speaks_of_training = bool(reading.tracks)
    return reading


def _notices(file: File, text: TextTable) -> list[tuple[int | None, str]]:
    """What was remarkable about the rows."""
    notices: list[tuple[int | None, str]] = []
    unnamed = next((h for h in text.header if h.startswith("column_") and h not in file.columns), None)
    if text.unnamed and unnamed:
        notices.append((text.unnamed, f"no header: say what the columns are, for example --map {unnamed}=loss"))
    if text.torn:
        notices.append((text.torn, "the last line is torn: it has fewer cells than the header"))
    for found, what in ((text.short, "fewer"), (text.long, "more")):
        if found.count:
            notices.append((found.first, f"{found.count} rows have {what} cells than the header, this is the first"))
    if text.repeated.count:
        said = f"the header is repeated {text.repeated.count} times: several launches wrote this file"
        notices.append((text.repeated.first, said))
    return notices


def _separator(line: str) -> str | None:
    """The separator of a header line; None stands for white space."""
    counts = {mark: line.count(mark) for mark in ("\t", ";", ",")}
    best = max(counts, key=lambda mark: counts[mark])
    if counts[best]:
        return best
    return None if len(line.split()) > 1 and is_numeric(line.split()) else ","


def _split(line: str, separator: str | None) -> list[str]:
    return [cell.strip() for cell in (line.split() if separator is None else line.split(separator))]
