"""Protobuf's wire format: where the fields of one message stand, without a schema. Nothing is copied."""

from __future__ import annotations

from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 10


class MalformedError(ValueError):
    """The bytes are no protocol buffer of the kind that was expected."""


def varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """(the unsigned number at `at`, where it ends)."""
    found, shift = 0, 0
    for place in range(at, min(end, at + _LONGEST_VARINT)):
        byte = data[place]
        found |= (byte & 127) << shift
        if byte < 128:
            return found & 0xFFFFFFFFFFFFFFFF, place + 1
        shift += 7
    raise MalformedError("a number does not end")


def signed(number: int) -> int:
    """An unsigned 64-bit number as the int64 with the same bits."""
    return number - (1 << 64) if number >> 63 else number


def fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """(field number, wire type, from, to) of every field of the message between two places."""
    while at < end:
        key, at = varint(data, at, end)
        wire = key & 7
        if wire == VARINT:
            size = varint(data, at, end)[1] - at
        elif wire == BYTES:
            size, at = varint(data, at, end)
        elif wire in (FIXED64, FIXED32):
            size = 8 if wire == FIXED64 else 4
        else:
            raise MalformedError(f"a field of the wire type {wire}")
        if size > end - at or not key >> 3:
            raise MalformedError("a field that is longer than its message, or has the number 0")
        yield key >> 3, wire, at, at + size
        at += size
