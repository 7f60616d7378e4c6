"""The framing of a .wandb file: LevelDB's log format with a plain CRC-32, and how to go on behind damage.

A header of 7 bytes (":W&B", 0xBEE1 as uint16, a zero), then blocks of 32 KiB of fragments: CRC-32 of type and data
(uint32), length (uint16), type (1 a whole record, 2 its first, 3 a middle, 4 its last part), data; all little-endian.
Less than 7 bytes at the end of a block are padding. Source: LevelDB's doc/log_format.md and wandb's writer, checked on
files of wandb 0.15, 0.19 and 0.31.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple
from zlib import crc32

import numpy as np

from gradforensics.evidence.files import File

FILE_HEADER = b":W&B\xe1\xbe\x00"
BLOCK = 32 << 10
RECORD_LIMIT = 32 << 20
_READ = 32 * BLOCK  # bytes that are read at once
_FRAGMENT = struct.Struct("<IHB")
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_SEEDS = (0, *(crc32(bytes([kind])) for kind in (_WHOLE, _FIRST, _MIDDLE, _LAST)))
_TORN = "the file ends inside of a record"
_TRIED = 4 << 20  # bytes of one block whose checksum is computed in search of the next sound fragment
_TRIED_IN_VAIN = 64 << 20  # such bytes since the last sound one, after which only the beginnings of blocks are tried
_TRIAL = 512  # what one trial costs beside its bytes, in bytes


class Record(NamedTuple):
    """One record as it was written. offset: byte at which its first fragment begins."""

    offset: int
    data: bytes


class Gap(NamedTuple):
    """A place where bytes are no record: one record or more are lost here, unless only padding is damaged."""

    offset: int
    bytes: int
    text: str


def records(file: File) -> Iterator[Record | Gap]:
    """Every sound record in the order of the file, and every gap between them. Holds one MiB and one record."""
    return _Frames().of(file)


class _Frames:
    """The state between two fragments: the parts of a record that is not complete yet."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.begun = 0  # offset of the first part
        self.held = 0  # bytes of the parts
        self.tried = 0  # bytes that were tried in vain
        self.lost = False  # whether the parts before the next fragment are lost, which a gap has told

    def of(self, file: File) -> Iterator[Record | Gap]:
        """Walk over the file block by block."""
        done = 0
        for chunk in file.chunks(_READ):
            for start in range(0, len(chunk), BLOCK):
                yield from self.block(chunk[start : start + BLOCK], done + start)
            done += len(chunk)
        if self.parts:
            yield self.broken(_TORN, done)

    def block(self, block: bytes, base: int) -> list[Record | Gap]:
        """The records that end in one block, and its gaps; base: its offset in the file."""
        found: list[Record | Gap] = []
        place, end = 0, len(block)
        if not base:
            if not block.startswith(FILE_HEADER):
                found.append(Gap(0, min(end, len(FILE_HEADER)), "the header of the file is not W&B's"))
            place = len(FILE_HEADER)
        while end - place >= _FRAGMENT.size:
            crc, length, kind = _FRAGMENT.unpack_from(block, place)
            begin = place + _FRAGMENT.size
            stop = begin + length
            if 1 <= kind <= _LAST and stop <= end:
                data = block[begin:stop]
                if crc32(data, _SEEDS[kind]) == crc:
                    self.tried = 0
                    if kind == _WHOLE and not self.parts:
                        self.lost = False
                        found.append(Record(base + place, data))
                    else:
                        found += self.fragment(kind, data, base + place)
                    place = stop
                    continue
            following, tried = _next_sound(block, place + 1, _TRIED if self.tried < _TRIED_IN_VAIN else 0)
            self.tried += tried
            text = _why(block[place:following], kind, stop > end == following, end < BLOCK)
            found.append(self.broken(text, base + following, base + place))
            place = following
        if place < end < BLOCK and BLOCK - place >= _FRAGMENT.size:
            found.append(self.broken(_TORN, base + end, base + place))
        return found

    def fragment(self, kind: int, data: bytes, offset: int) -> Iterator[Record | Gap]:
        """A sound fragment that is not a whole record, or one that follows an unfinished record."""
        if kind in (_WHOLE, _FIRST):
            if self.parts:
                yield self.broken("a record has no end", offset)
            self.lost = False
            if kind == _WHOLE:
                yield Record(offset, data)
            else:
                self.parts, self.begun, self.held = [data], offset, len(data)
            return
        if not self.parts:
            if not self.lost:
                yield self.broken("a record has no beginning", offset + _FRAGMENT.size + len(data), offset)
            return
        self.held += len(data)
        if self.held > RECORD_LIMIT:
            yield self.broken(f"a record is larger than {RECORD_LIMIT >> 20} MiB", offset)
            return
        self.parts.append(data)
        if kind == _LAST:
            whole, self.parts = b"".join(self.parts), []
            yield Record(self.begun, whole)

    def broken(self, text: str, end: int, offset: int | None = None) -> Gap:
        """Give up the record at hand: the gap from its first part, or from `offset` where there is none, to `end`."""
        start = self.begun if self.parts else (end if offset is None else offset)
        self.parts, self.lost = [], True
        return Gap(start, end - start, text)


def _why(skipped: bytes, kind: int, beyond: bool, last: bool) -> str:
    if not any(skipped):
        return "zeros instead of a record"
    if last and beyond and 1 <= kind <= _LAST:
        return _TORN
    return "the checksum of a record is wrong"


def _next_sound(block: bytes, start: int, budget: int) -> tuple[int, int]:
    """(place of the next fragment whose checksum is right, else the end of the block; bytes that were tried for it).

    The length of a damaged fragment may be damaged, too: every place is tried at which a type and a length could stand.
    """
    end = len(block)
    if not budget or end - start < _FRAGMENT.size or not any(block[start:]):
        return end, 0
    view = np.frombuffer(block, dtype=np.uint8).astype(np.int64)
    places = np.arange(start, end - _FRAGMENT.size + 1)
    kinds = view[places + 6]
    stops = places + _FRAGMENT.size + view[places + 4] + 256 * view[places + 5]
    fits = (kinds >= 1) & (kinds <= _LAST) & (stops <= end) & (stops > places + _FRAGMENT.size)
    tried = 0
    for place, stop in zip(places[fits].tolist(), stops[fits].tolist(), strict=True):
        crc, _, kind = _FRAGMENT.unpack_from(block, place)
        if crc32(block[place + _FRAGMENT.size : stop], _SEEDS[kind]) == crc:
            return place, tried
        tried += stop - place + _TRIAL
        if tried > budget:
            break
    return end, tried
