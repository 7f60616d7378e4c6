"""JSON lines one by one, for logs in which a row means something only beside the rows before it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from gradforensics.evidence import numbers
from gradforensics.evidence.files import File
from gradforensics.evidence.records import flat


def head(file: File, most: int = 20) -> list[dict[str, Any]]:
    """The first records, of whole lines that start with an object; empty where the first is none."""
    found: list[dict[str, Any]] = []
    for line in file.start.split("\n")[:most]:
        record = _decode(line)
        if record is None:
            break
        found.append(record)
    return found


def rows(file: File, notices: list[tuple[int | None, str]], first: int = 1) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line, flattened object) of every line from `first` on; what is no object is said in `notices` at the end."""
    wrong: list[int] = []
    final = 0
    for number, line in file.lines():
        if number < first or not line.strip():
            continue
        final = number
        record = _decode(line)
        if record is None:
            wrong.append(number)
        else:
            yield number, record
    if wrong and wrong[-1] == final:
        notices.append((wrong.pop(), "the last line is torn: not complete JSON"))
    if wrong:
        notices.append((wrong[0], f"{len(wrong)} lines are no JSON objects, this is the first"))


def values(record: dict[str, Any], without: frozenset[str]) -> dict[str, float | None]:
    """The numbers of a record under their names."""
    found: dict[str, float | None] = {}
    for key, value in record.items():
        if key not in without:
            try:
                found[key] = numbers.scalar(value)
            except ValueError:
                continue
    return found


def _decode(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return flat(found) if isinstance(found, dict) else None
