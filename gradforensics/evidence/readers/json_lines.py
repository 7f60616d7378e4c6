"""JSON lines of any logger: one object per line, nested objects flattened, keys that come late included."""

from __future__ import annotations

import json
import re
from typing import Any

from gradforensics.evidence import names
from gradforensics.evidence.files import File
from gradforensics.evidence.records import Record, flat, looks_like_metrics, read_records
from gradforensics.evidence.rows import Reading

name = "json-lines"

_SUFFIXES = frozenset({".jsonl", ".ndjson", ".json", ".log", ".txt", ".jsonlines", ""})
_LONG_TEXT = 300
_BARE_WORD = re.compile(r"(?<=[:\[,\s])([+-]?)(nan|inf(?:inity)?)(?=\s*[,}\]])", re.IGNORECASE)


def sniff(file: File) -> bool:
    """Whether the head is lines of JSON objects whose keys are those of a training log."""
    if file.suffix not in _SUFFIXES:
        return False
    heads = head_records(file)
    if not heads:
        return False
    columns = list(dict.fromkeys(key for record in heads for key in record))
    if file.alone or any(column in file.columns for column in columns):
        return any(isinstance(v, (int, float)) and not isinstance(v, bool) for record in heads for v in record.values())
    if looks_like_metrics(columns):
        return True
    wordy = any(isinstance(v, str) and len(v) > _LONG_TEXT for record in heads for v in record.values())
    return not wordy and any(names.is_loss(c) or "fid" in c.lower() or "reward" in c.lower() for c in columns)


def head_records(file: File) -> list[dict[str, Any]]:
    """The records of the head, empty where two thirds of its lines are no JSON objects."""
    if not file.start.lstrip().startswith("{"):
        return []
    lines = [line for line in file.start.splitlines() if line.strip()]
    if len(lines) > 1:
        lines = lines[:-1] if len(file.head) >= 65536 else lines
    found = [record for line in lines[:50] if (record := _decode(line)) is not None]
    return found if found and len(found) * 3 >= min(len(lines), 50) else []


def read(file: File) -> Reading:
    """All records; lines that are no JSON objects are counted in one notice, a torn last line has its own."""
    records, notices = read_lines(file)
    if not records:
        return Reading(claimed=False)
    reading = read_records(records, file.columns)
    reading.notices = notices + reading.notices
    return reading


def read_lines(file: File) -> tuple[list[Record], list[tuple[int | None, str]]]:
    """(line, flattened record) of every line, and what was wrong with the others."""
    records: list[Record] = []
    bad: list[int] = []
    last = 0
    for number, line in file.lines():
        if not line.strip():
            continue
        last = number
        record = _decode(line)
        if record is None:
            bad.append(number)
        else:
            records.append((number, record))
    notices: list[tuple[int | None, str]] = []
    if bad and bad[-1] == last:
        notices.append((bad.pop(), "the last line is torn: not complete JSON"))
    if bad:
        notices.append((bad[0], f"{len(bad)} lines are no JSON objects, this is the first"))
    return records, notices


def _decode(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except RecursionError:
        return None
    except ValueError:
        found = _decode_bare_words(line)
    return flat(found) if isinstance(found, dict) else None


def _decode_bare_words(line: str) -> Any:
    """Lines that were formatted by hand write nan and inf as C and Python do, which no JSON reader takes."""
    mended = _BARE_WORD.sub(lambda m: "NaN" if m[2].lower() == "nan" else f"{m[1]}Infinity".lstrip("+"), line)
    if mended == line:
        return None
    try:
        return json.loads(mended)
    except (ValueError, RecursionError):
        return None
