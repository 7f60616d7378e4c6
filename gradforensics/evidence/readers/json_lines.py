"""JSON lines of any logger: one object per line, nested objects flattened, keys that come late included."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradforensics.evidence import names
from gradforensics.evidence.blocks import Block, blocks, plain
from gradforensics.evidence.cells import Part, Record, Table
from gradforensics.evidence.files import File
from gradforensics.evidence.json_shapes import Shapes
from gradforensics.evidence.readings import Reading
from gradforensics.evidence.records import flat, looks_like_metrics, read_table

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
    lines = read_lines(file)
    if not lines.table.height:
        return Reading(claimed=False)
    reading = read_table(lines.table, file.columns)
    reading.notices = lines.notices() + reading.notices
    return reading


@dataclass
class Lines:
    """The records of a file of JSON lines.

    last: the last record; final: the last line that is not empty; wrong: how many lines are no JSON objects, the first
    and the last of them.
    """

    table: Table
    last: Record | None = None
    final: int = 0
    wrong: int = 0
    first_wrong: int = 0
    last_wrong: int = 0

    def refuse(self, line: int) -> None:
        """Count a line that is no JSON object."""
        self.first_wrong = self.first_wrong or line
        self.last_wrong = line
        self.wrong += 1

    def notices(self) -> list[tuple[int | None, str]]:
        """What was wrong with the lines that are no records."""
        found: list[tuple[int | None, str]] = []
        torn = self.wrong > 0 and self.last_wrong == self.final
        if torn:
            found.append((self.final, "the last line is torn: not complete JSON"))
        if self.wrong > torn:
            found.append((self.first_wrong, f"{self.wrong - torn} lines are no JSON objects, this is the first"))
        return found


def read_lines(file: File) -> Lines:
    """The records of every line."""
    found = Lines(Table(file.columns))
    shapes = Shapes(_decode)
    for block in blocks(file):
        _take(found, shapes, block)
    return found


def _take(found: Lines, shapes: Shapes, block: Block) -> None:
    """Add the lines of a block: those that have a shape as columns, the others one by one."""
    cut = plain(block.data)
    if cut is not None:
        parts, others = shapes.take(cut)
        count, rest = len(cut.ends), [(place, cut.line(place)) for place in others]
    else:
        parts, rest = [], list(enumerate(block.lines()))
        count = len(rest)
    at: list[int] = []
    records: list[dict[str, Any]] = []
    for place, text in rest:
        if not text.strip():
            continue
        found.final = block.line + place
        record = _decode(text)
        if record is None:
            found.refuse(found.final)
        else:
            at.append(place)
            records.append(record)
    lines = np.arange(block.line, block.line + count, dtype=np.uint32)
    shaped = max((int(part.at[-1]) for part in parts), default=-1)
    if cut is not None and shaped > (at[-1] if at else -1):
        found.last = (block.line + shaped, _decode(cut.line(shaped)) or {})
    elif at:
        found.last = (block.line + at[-1], records[-1])
    found.final = max(found.final, block.line + shaped)
    found.table.take(lines, [*parts, Part(np.array(at, dtype=np.int64), records=records)])


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
