"""Many records at once: those that are alike but for a few bytes are decoded as columns.

A template is one record, taken apart by `protos`, and which of its bits may differ: those of the wall time, the step,
the tags and the values. Every record of the same length whose other bits are the same has the same parts in the same
places. Its CRC is that of the template, but for what the differing bytes contribute.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gradforensics.evidence import protobuf
from gradforensics.evidence.event_files import crc, protos
from gradforensics.evidence.event_files.columns import Columns
from gradforensics.evidence.event_files.framing import Window, numbers_at, payloads_fit

LONGEST = 2048  # bytes of a record that may be one of many alike
FEW = 8  # fewer records than this are not worth a template
_MOST = 64  # templates of one length
_FAILURES = 4  # records of one length and window that make no template

_WORD = 8


class Scalar(NamedTuple):
    """Where the tag and the number of one value stand, and how the number is stored."""

    tag: protos.Span
    code: str
    place: int


@dataclass(frozen=True, slots=True)
class Template:
    """One record and which bits of it are fixed; places are relative to its first byte.

    time, step: as in protos.Event; words, fixed: uint64 (w,), its bytes and the bits that all records share; moving:
    the places of all bytes with other bits but those of tags; checksum: its CRC.
    """

    time: int
    step: protos.Span
    values: tuple[Scalar, ...]
    words: np.ndarray
    fixed: np.ndarray
    moving: tuple[int, ...]
    checksum: np.uint32


def template_of(record: bytes) -> Template | None:
    """The template that a payload makes, or None where it holds anything but scalars."""
    try:
        event = protos.event(record, 0, len(record))
    except protobuf.MalformedError:
        return None
    values = tuple(Scalar(value.tag, *value.scalar) for value in event.values if value.scalar is not None)
    if not values or len(values) < len(event.values):
        return None
    size = -(-len(record) // _WORD) * _WORD
    fixed = np.zeros(size, dtype=np.uint8)
    fixed[: len(record)] = 255
    fixed[event.step[0] : event.step[1]] = 128  # which bytes of a varint are followed by more
    if event.time >= 0:
        fixed[event.time : event.time + 8] = 0
    for value in values:
        fixed[value.place : value.place + protos.width(value.code)] = 0
    moving = tuple(np.flatnonzero(fixed[: len(record)] != 255).tolist())
    for value in values:
        fixed[value.tag[0] : value.tag[1]] = 0
    words = np.frombuffer(record.ljust(size, b"\0"), dtype="<u8")
    whole = np.frombuffer(record, dtype=np.uint8)
    checksum = crc.of_ranges(whole, np.array([0]), np.array([len(record)]))[0]
    return Template(event.time, event.step, values, words, fixed.view("<u8"), moving, checksum)


class Templates:
    """Reads windows with the templates that were met so far."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._known: dict[int, list[Template]] = {}

    def read(self, window: Window) -> np.ndarray:
        """Read what has or makes a template; int64 (m,), the indices of the window's other records, ascending.

        Records whose checksums do not fit are among the others.
        """
        rest = [np.flatnonzero(window.lengths > LONGEST)]
        short = np.flatnonzero(window.lengths <= LONGEST)
        short = short[np.argsort(window.lengths[short], kind="stable")]
        borders = np.flatnonzero(np.diff(window.lengths[short])) + 1
        for indices in np.split(short, borders):
            rest += self._alike(window, indices) if len(indices) >= FEW else [indices]
        return np.sort(np.concatenate(rest))

    def _alike(self, window: Window, indices: np.ndarray) -> Iterable[np.ndarray]:
        """Read what is possible of records of one length; gives what is left of them."""
        length = int(window.lengths[indices[0]])
        words = _rows(window, indices, length)
        known = self._known.setdefault(length, [])
        tried, failures = 0, 0
        while len(indices):
            if tried == len(known):
                if len(indices) < FEW or len(known) == _MOST or failures == _FAILURES:
                    break
                made = self._made(window, indices[:1])
                if made is None:
                    yield indices[:1]
                    indices, words, failures = indices[1:], words[1:], failures + 1
                    continue
                known.append(made)
            template = known[tried]
            tried += 1
            differing = words ^ template.words
            off = differing[:, 0] & template.fixed[0]
            for place in range(1, words.shape[1]):
                off |= differing[:, place] & template.fixed[place]
            hits = off == 0
            if hits.any():
                yield self._decode(window, template, indices[hits], words[hits], differing[hits])
                indices, words = indices[~hits], words[~hits]
        yield indices

    def _made(self, window: Window, index: np.ndarray) -> Template | None:
        start, length = int(window.starts[index[0]]), int(window.lengths[index[0]])
        if not payloads_fit(window.data, window.starts[index], window.lengths[index])[0]:
            return None
        return template_of(window.data[start : start + length])

    def _decode(
        self, window: Window, template: Template, indices: np.ndarray, words: np.ndarray, differing: np.ndarray
    ) -> np.ndarray:
        """Read the records that match a template; the indices of those whose checksums do not fit."""
        length = int(window.lengths[indices[0]])
        moved = differing.view(np.uint8)
        checksums = template.checksum ^ _contributed(moved, template.moving, length)
        marks = [_contributed(moved, range(*value.tag), length) for value in template.values]
        for mark in marks:
            checksums ^= mark
        good = crc.masked(checksums) == numbers_at(window.data, "<u4", window.starts[indices] + length)
        bad: np.ndarray = indices[~good]
        if len(bad):
            indices, words, marks = indices[good], words[good], [mark[good] for mark in marks]
        starts = window.starts[indices]
        steps = _varints(words.view(np.uint8), template.step)
        times = numbers_at(window.data, "<f8", starts + template.time) if template.time >= 0 else np.zeros(len(starts))
        tags = np.empty((len(starts), len(template.values)), dtype=np.int32)
        values = np.empty(tags.shape)
        for column, (value, mark) in enumerate(zip(template.values, marks, strict=True)):
            tags[:, column] = self._tags(window.data, starts, value.tag, mark)
            raw = numbers_at(window.data, protos.storage(value.code), starts + value.place)
            values[:, column] = protos.decoded(value.code, raw.view(np.uint8))
        self._columns.add(window.numbers[indices], steps, times, tags, values)
        return bad

    def _tags(self, data: bytes, starts: np.ndarray, span: protos.Span, marks: np.ndarray) -> np.ndarray:
        """int32 (n,): the number of each record's tag. marks: uint32 (n,), alike where the tags are alike."""
        width = span[1] - span[0]
        if not width:
            return np.full(len(starts), self._columns.tag(b""), dtype=np.int32)
        _, first, inverse = np.unique(marks, return_index=True, return_inverse=True)
        raw = numbers_at(data, f"S{width}", starts + span[0])
        names = raw[first]
        known = [data[start : start + width] for start in (starts[first] + span[0]).tolist()]
        found = np.array([self._columns.tag(name) for name in known], dtype=np.int32)[inverse]
        for index in np.flatnonzero(raw != names[inverse]).tolist():  # another tag with the same mark
            start = int(starts[index]) + span[0]
            found[index] = self._columns.tag(data[start : start + width])
        return found


def _rows(window: Window, indices: np.ndarray, length: int) -> np.ndarray:
    """uint64 (n, w): the bytes of records of one length; the last word may hold bytes that follow."""
    width = -(-length // _WORD)
    raw = numbers_at(window.data, f"V{max(width, 1) * _WORD}", window.starts[indices])
    words: np.ndarray = raw.view("<u8").reshape(len(indices), -1)
    return words


def _contributed(moved: np.ndarray, places: Iterable[int], length: int) -> np.ndarray:
    """uint32 (n,): what differing bytes at these places (uint8, (n, length)) change in the CRCs of n records."""
    tables = crc.contributions(LONGEST)
    found = np.zeros(len(moved), dtype=np.uint32)
    for place in places:
        found ^= tables[length - 1 - place].take(moved[:, place], mode="clip")
    return found


def _varints(raw: np.ndarray, span: protos.Span) -> np.ndarray:
    """int64 (n,): the numbers that these bytes (uint8, (n, length)) hold, seven bits in each."""
    found = np.zeros(len(raw), dtype=np.uint64)
    for shift, place in enumerate(range(*span)):
        found |= (raw[:, place] & np.uint8(127)).astype(np.uint64) << np.uint64(7 * shift)
    return found.view(np.int64)
