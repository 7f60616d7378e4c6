"""Zip archives as torch writes them: stored records, located and bounded without trusting a size; nothing is extracted.

Layout: APPNOTE.TXT of PKWARE, sections 4.3.7 (local header), 4.3.9 (data descriptor), 4.3.12 to 4.3.16 (directory).
"""

from __future__ import annotations

import struct
import zlib
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

from gradforensics.untrusted.files import DamagedError, Opened, RefusedError

LOCAL, CENTRAL, END = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"
DESCRIPTOR = b"PK\x07\x08"
_END64, _LOCATOR64 = b"PK\x06\x06", b"PK\x06\x07"
_HEADER = struct.Struct("<4s4xHH4xIIIHHH8xI")  # of the directory: signature, flags, method, CRC, sizes, lengths, offset
_MAX_ENTRIES = 200_000
_MAX_DIRECTORY = 24 << 20
_MAX_NAME = 1000
_MAX_INFLATED = 32 << 20
_MAX_RATIO = 100
_BLOCK = 1 << 20
_STORED, _DEFLATED = 0, 8
_ENCRYPTED, _UTF8 = 1, 1 << 11
_WIDE = 0xFFFFFFFF  # stands for a 64-bit number in the extra field


class CutError(DamagedError):
    """An archive without a directory at its end: a file that was cut, which no program opens."""

    def __init__(self, text: str) -> None:
        super().__init__("cut", text)


@dataclass(frozen=True, slots=True)
class Entry:
    """One record by the central directory. header: byte of its local header.

    crc: CRC-32 of its content; None where it is 0: torch writes that where it was told to compute none.
    """

    name: str
    header: int
    size: int
    packed: int
    method: int
    crc: int | None
    encrypted: bool


@dataclass(slots=True)
class Archive:
    """The records of an archive by name; `headers`: all local headers in order, with the end of the last record."""

    entries: dict[str, Entry]
    headers: list[int] = field(default_factory=list)

    def locate(self, opened: Opened, entry: Entry) -> int:
        """First byte of an entry's content. Raises RefusedError where local header and directory disagree."""
        head = opened.read(entry.header, 30)
        if head[:4] != LOCAL:
            raise DamagedError("changed", f"zip record {entry.name!r}: no local header at byte {entry.header}")
        flags, method = struct.unpack_from("<HH", head, 6)
        name_length, extra_length = struct.unpack_from("<HH", head, 26)
        if entry.encrypted or flags & _ENCRYPTED:
            raise RefusedError(f"zip record {entry.name!r} is marked as encrypted")
        if method != entry.method or _name(opened.read(entry.header + 30, name_length), flags) != entry.name:
            raise DamagedError("changed", f"zip record {entry.name!r}: its local header tells otherwise")
        start: int = entry.header + 30 + name_length + extra_length
        if start + entry.packed > self._limit(entry.header):
            raise RefusedError(f"zip record {entry.name!r} reaches into the next one")
        return start

    def stored(self, opened: Opened, entry: Entry) -> int:
        """First byte of the content of an entry that is not compressed. Raises RefusedError otherwise."""
        if entry.method != _STORED or entry.packed != entry.size:
            raise RefusedError(f"zip record {entry.name!r} is compressed, which torch never does to a storage")
        return self.locate(opened, entry)

    def is_sound(self, opened: Opened, entry: Entry, start: int) -> bool:
        """Whether the bytes of a stored entry from `start` on have the CRC-32 that the directory states, if any."""
        if entry.crc is None:
            return True
        crc, at, end = 0, start, start + entry.size
        while at < end:
            count = min(_BLOCK, end - at)
            crc = zlib.crc32(opened.read(at, count), crc)
            at += count
        return crc == entry.crc

    def content(self, opened: Opened, entry: Entry, limit: int = _MAX_INFLATED) -> bytes:
        """The content of a small entry, inflated where it is compressed, its CRC checked. Raises RefusedError."""
        start = self.locate(opened, entry)
        if entry.size > limit or (entry.method == _DEFLATED and entry.size > _MAX_RATIO * max(entry.packed, 64)):
            raise RefusedError(f"zip record {entry.name!r} would be {entry.size} bytes from {entry.packed}")
        data = opened.read(start, entry.packed)
        if entry.method == _DEFLATED:
            try:
                data = zlib.decompressobj(-15).decompress(data, entry.size + 1)
            except zlib.error as error:
                raise RefusedError(f"zip record {entry.name!r}: {error}") from None
        elif entry.method != _STORED:
            raise RefusedError(f"zip record {entry.name!r}: compression method {entry.method} is not known here")
        if len(data) != entry.size:
            raise RefusedError(f"zip record {entry.name!r} has not the size that the directory states")
        if entry.crc is not None and zlib.crc32(data) != entry.crc:
            text = f"zip record {entry.name!r}: its CRC-32 is wrong: the content was changed or damaged"
            raise DamagedError("changed", text)
        return data

    def _limit(self, header: int) -> int:
        limit: int = self.headers[bisect_right(self.headers, header)]
        return limit


def _name(raw: bytes, flags: int) -> str:
    return raw.decode("utf-8" if flags & _UTF8 else "cp437", "replace")


def read_directory(opened: Opened) -> Archive:
    """The archive's central directory. Raises CutError where it is missing or torn, RefusedError where it lies."""
    start, size, count = _find_directory(opened)
    if count > _MAX_ENTRIES or size > _MAX_DIRECTORY:
        raise RefusedError(f"a zip archive of {count} records")
    entries: dict[str, Entry] = {}
    for entry in _entries(opened.read(start, size), count):
        if entry.name in entries:
            raise RefusedError(f"two zip records are called {entry.name!r}")
        entries[entry.name] = entry
    places = sorted((e.header, e.packed) for e in entries.values())
    headers = [header for header, _ in places] + [start]
    for (header, packed), following in zip(places, headers[1:], strict=True):
        if header + 30 + packed > following:
            raise RefusedError("zip records overlap, or lie outside of the file")
    return Archive(entries, headers)


def _find_directory(opened: Opened) -> tuple[int, int, int]:
    """Start, size and number of entries of the central directory."""
    tail_start = max(0, opened.size - (1 << 16) - 22)
    tail = opened.read(tail_start, opened.size - tail_start)
    at = tail.rfind(END)
    if at < 0 or at + 22 > len(tail):
        raise CutError("the zip archive has no end record: the file is cut")
    count, size, start = struct.unpack_from("<HII", tail, at + 10)
    end = tail_start + at
    locator = opened.read(end - 20, 20) if end >= 20 else b""
    if locator[:4] == _LOCATOR64:  # torch writes the 64-bit records whether they are needed or not
        (place,) = struct.unpack_from("<Q", locator, 8)
        record = opened.read(place, 56) if place + 56 <= opened.size else b""
        if record[:4] != _END64:
            raise CutError("the zip64 end record is not where the archive says")
        count, size, start = struct.unpack_from("<QQQ", record, 32)
        end = place
    if start + size > end:
        raise CutError("the zip directory lies outside of the file")
    if start + size < end:
        raise RefusedError("bytes that belong to no record stand before or inside of the zip archive")
    return start, size, count


def _entries(directory: bytes, count: int) -> Iterator[Entry]:
    at = 0
    for _ in range(count):
        if at + 46 > len(directory):
            raise CutError("the zip directory is torn")
        signature, flags, method, crc, packed, size, name_length, extra_length, comment_length, header = (
            _HEADER.unpack_from(directory, at)
        )
        if signature != CENTRAL:
            raise CutError("the zip directory is torn")
        if name_length > _MAX_NAME:
            raise RefusedError(f"a zip record with a name of {name_length} bytes")
        name = _name(directory[at + 46 : at + 46 + name_length], flags)
        if _WIDE in (size, packed, header):
            extra = directory[at + 46 + name_length : at + 46 + name_length + extra_length]
            size, packed, header = _wide(extra, size, packed, header)
        yield Entry(name, header, size, packed, method, crc or None, bool(flags & _ENCRYPTED))
        at += 46 + name_length + extra_length + comment_length


def _wide(extra: bytes, size: int, packed: int, header: int) -> tuple[int, int, int]:
    """Sizes and offset with the 64-bit values of the zip64 extra field in place of those that are all ones."""
    values = [size, packed, header]
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        if kind == 1:
            field_at = at + 4
            for index, value in enumerate(values):
                if value == _WIDE and field_at + 8 <= at + 4 + length and field_at + 8 <= len(extra):
                    (values[index],) = struct.unpack_from("<Q", extra, field_at)
                    field_at += 8
            break
        at += 4 + length
    return values[0], values[1], values[2]


@dataclass(frozen=True, slots=True)
class LocalRecord:
    """A record found by its local header alone. start: first byte of its content; name as written there."""

    name: str
    header: int
    start: int


def local_record(opened: Opened, at: int) -> LocalRecord | None:
    """The record whose local header stands at byte `at`, or None: how a cut archive is walked."""
    if at + 30 > opened.size:
        return None
    head = opened.read(at, 30)
    flags, method = struct.unpack_from("<HH", head, 6)
    name_length, extra_length = struct.unpack_from("<HH", head, 26)
    start = at + 30 + name_length + extra_length
    if head[:4] != LOCAL or method != _STORED or flags & _ENCRYPTED or start > opened.size:
        return None
    return LocalRecord(_name(opened.read(at + 30, name_length), flags), at, start)


def descriptor(opened: Opened, at: int) -> tuple[int | None, int]:
    """CRC-32 of the record that ends at byte `at` by the data descriptor there, and its end.

    None where the descriptor is cut, or states none (see Entry.crc).
    """
    head = opened.read(at, min(24, opened.size - at))
    if head[:4] != DESCRIPTOR or len(head) < 16:
        return None, at
    (crc,) = struct.unpack_from("<I", head, 4)
    for length in (16, 24):  # 4-byte or 8-byte sizes: only what follows tells
        end = at + length
        if end == opened.size or (end + 2 < opened.size and opened.read(end, 2) == b"PK"):
            return crc or None, end
    return crc or None, at + 16
