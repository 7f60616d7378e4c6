"""MLflow's file store: one small text per metric, parameter and tag, and a meta.yaml per run.

A metric has one line per value: Unix milliseconds, value, step; the first versions wrote no step, later ones may add
the name and digest of a data set. Source of the format: mlflow.store.tracking.file_store.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import chain

import numpy as np

from gradforensics.evidence.files import LINE_LIMIT, File
from gradforensics.evidence.mlflow import layout, runs
from gradforensics.evidence.readings import Reading
from gradforensics.tables import Fact

name = "mlflow-store"

_TEXT_BYTES = 64 << 10  # of a parameter or a tag, which MLflow limits to 8000 characters
_DIGITS = 15  # of a time in milliseconds, at most
_SPACE, _BREAK = 32, 10
_BARE = 2  # fields of a line without a step
_FIELDS = (_BARE, 3, 5)


def sniff(file: File) -> bool:
    """By the path, for metrics also by the first line."""
    return layout.place(file) is not None


def read(file: File) -> Reading:
    """What one file of a run tells."""
    place = layout.place(file)
    if place is None:
        return Reading(claimed=False)
    return _READ[place.kind](file, place.key)


def _param(file: File, key: str) -> Reading:
    reading = Reading()
    runs.add_params(reading, [(key, _text(file))], file.name)
    return reading


def _tag(file: File, key: str) -> Reading:
    fact = runs.FACTS.get(key)
    return Reading(facts=[Fact(fact, _text(file).strip(), file.name)] if fact else [])


def _text(file: File) -> str:
    return file.start[:_TEXT_BYTES]


def _meta(file: File, _: str) -> Reading:
    """The status and whether the run was deleted; the file is a flat mapping, and the name of the run is also a tag."""
    reading = Reading()
    fields: dict[str, str] = {}
    lines: dict[str, int] = {}
    for number, line in enumerate(file.start.splitlines(), start=1):
        key, mark, value = line.partition(":")
        if mark and key.isidentifier():
            fields[key], lines[key] = _scalar(value.strip()), number
    if fields.get("lifecycle_stage") == "deleted":
        reading.notices.append((lines["lifecycle_stage"], "this run was deleted in MLflow"))
    status = runs.STATUS.get(fields.get("status", ""), fields.get("status", ""))
    if status not in runs.STATUS.values():
        reading.notices.append((lines.get("status"), "no status that MLflow knows"))
        return reading
    ended = fields.get("end_time", "")
    known = ended.isdecimal() and len(ended) <= _DIGITS
    runs.add_status(reading, status, file.name, lines["status"], int(ended) if known else None)
    return reading


def _scalar(text: str) -> str:
    """A plain or quoted scalar of one line of YAML."""
    if len(text) > 1 and text[0] == text[-1] == "'":
        return text[1:-1].replace("''", "'")
    if len(text) > 1 and text[0] == text[-1] == '"':
        try:
            return str(json.loads(text))
        except ValueError:
            return text[1:-1]
    return text


# -- metrics ---------------------------------------------------------------------------------------------------------


class _Values:
    """The values of one metric, chunk by chunk."""

    def __init__(self) -> None:
        self.times: list[np.ndarray] = []
        self.values: list[np.ndarray] = []
        self.steps: list[np.ndarray] = []
        self.lines: list[np.ndarray] = []
        self.bare: list[int] = []  # lines without a step
        self.bad: list[int] = []
        self.last = 0

    def add(self, data: bytes) -> None:
        """Whole lines: at once where every one has three fields, else one by one."""
        count = data.count(b"\n")
        fields = data.split()
        if _regular(data, count, len(fields)):
            try:
                columns = [
                    np.array(list(map(of, fields[at::3])), dtype=dtype)
                    for at, of, dtype in ((0, int, np.int64), (1, float, np.float64), (2, int, np.int64))
                ]
            except (ValueError, OverflowError):
                pass
            else:
                self._store(columns, np.arange(self.last + 1, self.last + 1 + count))
                self.last += count
                return
        self._one_by_one(data)

    def _one_by_one(self, data: bytes) -> None:
        rows: list[tuple[int, float, int]] = []
        lines: list[int] = []
        whole = data.removesuffix(b"\n").split(b"\n")
        for number, line in enumerate(whole, start=self.last + 1):
            self.last = number
            parts = line.split()
            if not parts:
                continue
            row = _record(parts)
            if row is None:
                self.bad.append(number)
                continue
            if len(parts) == _BARE:
                self.bare.append(number)
            rows.append(row)
            lines.append(number)
        if rows:
            times, values, steps = zip(*rows, strict=True)
            columns = [np.array(times, np.int64), np.array(values, np.float64), np.array(steps, np.int64)]
            self._store(columns, np.array(lines, dtype=np.int64))

    def check_end(self) -> None:
        """A last line without its end may have lost a part of its step: it counts only where it goes on."""
        if not self.lines or int(self.lines[-1][-1]) != self.last:
            return
        steps = np.concatenate(self.steps[-2:])
        if len(steps) < 2:
            return
        torn = len(self.bare) == 1 if self.bare[-1:] == [self.last] else bool(steps[-1] <= steps[-2])
        if torn:
            self.bad.append(self.last)
            for column in (self.times, self.values, self.steps, self.lines):
                column[-1] = column[-1][:-1]

    def _store(self, columns: list[np.ndarray], lines: np.ndarray) -> None:
        for kept, column in zip((self.times, self.values, self.steps), columns, strict=True):
            kept.append(column)
        self.lines.append(lines)


def _record(parts: list[bytes]) -> tuple[int, float, int] | None:
    """(time, value, step) of one line, None where it is none."""
    if len(parts) not in _FIELDS:
        return None
    try:
        row = int(parts[0]), float(parts[1]), 0 if len(parts) == _BARE else int(parts[2])
    except ValueError:
        return None
    return row if max(abs(row[0]), abs(row[2])) < 2**63 else None


def _regular(data: bytes, lines: int, fields: int) -> bool:
    """Whether every line has two single spaces, and there are three fields per line."""
    if fields != 3 * lines:
        return False
    marks = np.frombuffer(data, dtype=np.uint8)
    marks = marks[(marks == _SPACE) | (marks == _BREAK)]
    if len(marks) != 3 * lines:
        return False
    rows = marks.reshape(-1, 3)
    return bool((rows[:, :2] == _SPACE).all() and (rows[:, 2] == _BREAK).all())


def _metric(file: File, key: str) -> Reading:
    reading = Reading()
    found = _Values()
    whole = True
    for data in _whole_lines(file):
        found.add(data)
        whole = data.endswith(b"\n")
    if not whole:
        found.check_end()
    if found.bad and found.bad[-1] == found.last:
        reading.notices.append((found.bad.pop(), "the last line is torn: no time, value and step"))
    if found.bad:
        reading.notices.append(
            (found.bad[0], f"{len(found.bad)} lines have no time, value and step: the first is this")
        )
    if not found.times:
        return reading
    times = np.concatenate(found.times)
    stepless = len(found.bare) == len(times)
    points = runs.Points(
        names=[key],
        keys=np.zeros(len(times), dtype=np.int64),
        times=times,
        steps=None if stepless else np.concatenate(found.steps),
        values=np.concatenate(found.values),
        lines=np.concatenate(found.lines),
    )
    runs.add_points(reading, points, file.columns)
    return reading


def _whole_lines(file: File) -> Iterator[bytes]:
    """The content in pieces that end with a line; the last line may have no end."""
    rest = b""
    for chunk in chain(file.chunks(), (b"",)):
        cut = chunk.rfind(b"\n") + 1
        if cut:
            yield rest + chunk[:cut]
            rest = chunk[cut:]
        else:
            rest = (rest + chunk)[:LINE_LIMIT]
    if rest:
        yield rest


_READ: dict[layout.Kind, Callable[[File, str], Reading]] = {
    "metrics": _metric,
    "params": _param,
    "tags": _tag,
    "meta": _meta,
}
