"""A JSON file that holds series as a whole: a Keras history, a list of rows, Megatron-LM's golden values."""

from __future__ import annotations

from typing import Any

from gradforensics.evidence import names, numbers, rounding
from gradforensics.evidence.cells import Record
from gradforensics.evidence.files import File
from gradforensics.evidence.located_json import Cursor, TornJsonError
from gradforensics.evidence.readings import Reading
from gradforensics.evidence.records import flat, looks_like_metrics, read_records
from gradforensics.evidence.rows import RowLog

name = "json-series"


def sniff(file: File) -> bool:
    """A .json file that starts with an array of objects, or in which a metric has an array or golden values."""
    if file.suffix != ".json":
        return False
    start = file.start.lstrip()
    if start.startswith("["):
        return start[1:].lstrip().startswith("{")
    if not start.startswith("{"):
        return False
    try:
        cursor = Cursor(start)
        for key in cursor.members():
            if cursor.skip() == "[" or (cursor.text.startswith("{", cursor.pos) and '"values"' in start):
                return names.is_metric(key)
            cursor.value()
    except TornJsonError:
        return False
    return False


def read(file: File) -> Reading:
    """Decide by the first value which of the three shapes it is."""
    try:
        cursor = Cursor(file.text())
    except ValueError as error:
        return Reading(notices=[(None, f"not read: {error}")])
    if cursor.skip() == "[":
        return _rows(file, cursor)
    return _columns(file, cursor)


def _rows(file: File, cursor: Cursor) -> Reading:
    records: list[Record] = []
    notices: list[tuple[int | None, str]] = []
    try:
        for first in cursor.elements():
            line, value = cursor.line, cursor.value()
            if first == "{":
                records.append((line, flat(value)))
    except TornJsonError as error:
        notices.append((error.line, f"{error}; {len(records)} rows were read before"))
    if not looks_like_metrics({key for _, record in records[:50] for key in record}):
        return Reading(claimed=False)
    reading = read_records(records, file.columns)
    reading.notices = notices + reading.notices
    return reading


def _columns(file: File, cursor: Cursor) -> Reading:
    """One track per key; a value's place in its array is its row, a key of golden values is its step."""
    reading = Reading(speaks_of_training=True)
    try:
        for key in cursor.members():
            line = cursor.line
            if cursor.skip() == "[":
                _add(reading, file, key, [(None, *_element(cursor)) for _ in cursor.elements()])
            elif cursor.skip() == "{":
                _golden(reading, file, key, cursor)
            else:
                cursor.value()
    except TornJsonError as error:
        reading.notices.append((error.line, f"{error}; {len(reading.tracks)} series were read before"))
    except ValueError:
        reading.notices.append((line, f'"{key}" holds something else than numbers'))
    reading.tracks = rounding.settled(reading.tracks)
    reading.claimed = bool(reading.tracks)
    return reading


def _element(cursor: Cursor) -> tuple[int, Any]:
    line = cursor.line
    return line, cursor.value()


def _golden(reading: Reading, file: File, tag: str, cursor: Cursor) -> None:
    points: list[tuple[int | None, int, Any]] = []
    for key in cursor.members():
        if key == "values" and cursor.skip() == "{":
            points.extend((numbers.whole(numbers.parse_number(step)), *_element(cursor)) for step in cursor.members())
        else:
            cursor.value()
    _add(reading, file, tag, points)


def _add(reading: Reading, file: File, tag: str, points: list[tuple[int | None, int, Any]]) -> None:
    if any(isinstance(value, (list, dict)) for _, _, value in points):
        return
    log = RowLog(file.columns, unit="step" if points and points[0][0] is not None else "row")
    for step, line, value in points:
        log.add(line, {tag: numbers.scalar(value)}, step=step)
        reading.trail.last_step = max(step or 0, reading.trail.last_step or 0)
        reading.trail.last_line = line
    reading.tracks += log.finish()
    reading.notices += log.notices
