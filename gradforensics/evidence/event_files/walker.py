"""Records one by one: what no template fits, and everything but scalars."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

import numpy as np

from gradforensics.evidence import protobuf
from gradforensics.evidence.event_files import protos
from gradforensics.evidence.event_files.columns import Columns
from gradforensics.evidence.event_files.framing import HEADER, Window
from gradforensics.evidence.event_files.summaries import Summaries

_float_at = struct.Struct("<f").unpack_from
_double_at = struct.Struct("<d").unpack_from


@dataclass
class _Alike:
    """Records with the same number of values."""

    records: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    tags: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)


class Walker:
    """Reads single records; `malformed` counts those that are no events, `first` tells where the first of them is."""

    def __init__(self, columns: Columns, summaries: Summaries) -> None:
        self.malformed = 0
        self.first = ""
        self._columns = columns
        self._summaries = summaries

    def read(self, window: Window, indices: np.ndarray) -> None:
        """Read these records of a window (int64, (m,)); their checksums are known to fit."""
        found: dict[int, _Alike] = {}
        for index in indices.tolist():
            start = int(window.starts[index])
            number = int(window.numbers[index])
            try:
                event = protos.event(window.data, start, start + int(window.lengths[index]))
                pairs = self._pairs(window.data, event)
            except protobuf.MalformedError:
                self.malformed += 1
                self.first = self.first or f"record {number} at byte {window.base + start - HEADER}"
                continue
            if not pairs:
                continue
            alike = found.setdefault(len(pairs), _Alike())
            alike.records.append(number)
            alike.steps.append(protobuf.signed(protobuf.varint(window.data, *event.step)[0]) if event.step[1] else 0)
            alike.times.append(_double_at(window.data, event.time)[0] if event.time >= 0 else 0.0)
            for tag, value in pairs:
                alike.tags.append(self._columns.tag(tag))
                alike.values.append(value)
        for count, alike in found.items():
            self._columns.add(
                np.array(alike.records, dtype=np.int64),
                np.array(alike.steps, dtype=np.int64),
                np.array(alike.times, dtype=np.float64),
                np.array(alike.tags, dtype=np.int32).reshape(-1, count),
                np.array(alike.values, dtype=np.float64).reshape(-1, count),
            )

    def _pairs(self, data: bytes, event: protos.Event) -> list[tuple[bytes, float]]:
        pairs: list[tuple[bytes, float]] = []
        for value in event.values:
            if value.scalar is None:
                pairs += self._summaries.add(data, value)
            else:
                pairs.append((data[slice(*value.tag)], _number(data, *value.scalar)))
        return pairs


def _number(data: bytes, code: str, place: int) -> float:
    if code == "<f4":
        single: float = _float_at(data, place)[0]
        return single
    raw = np.frombuffer(data, dtype=np.uint8, count=protos.width(code), offset=place)
    return float(protos.decoded(code, raw)[0])
