"""Protobuf's wire format: the fields of one message, without a schema."""

from __future__ import annotations

import struct
from collections.abc import Iterator

_DOUBLE = struct.Struct("<d")
_FLOAT = struct.Struct("<f")
_LONGEST = 10  # bytes of a varint

Value = int | float | bytes


class WireError(ValueError):
    """The bytes are no message."""


def varint(data: bytes, place: int) -> tuple[int, int]:
    """(value, place behind it) of the unsigned varint at `place`."""
    value = shift = 0
    try:
        while True:
            byte = data[place]
            place += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, place
            shift += 7
            if shift >= 7 * _LONGEST:
                raise WireError("a varint has no end")
    except IndexError as error:
        raise WireError("the message ends inside of a varint") from error


def signed(value: int) -> int:
    """The int32 or int64 that a varint stands for."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >= 1 << 63 else value


def zigzag(value: int) -> int:
    """The sint32 or sint64 that a varint stands for."""
    return (value >> 1) ^ -(value & 1)


def fields(data: bytes) -> Iterator[tuple[int, Value]]:
    """(field number, value) in the order of the message.

    A varint is an unsigned int, 8 and 4 bytes are a float, everything with a length is bytes. WireError where the bytes
    are no message.
    """
    place, end = 0, len(data)
    while place < end:
        tag, place = varint(data, place)
        number, kind = tag >> 3, tag & 7
        value: Value
        if not number:
            raise WireError("a field has the number 0")
        if kind == 2:
            length, place = varint(data, place)
            value = data[place : place + length]
            place += length
        elif kind == 0:
            value, place = varint(data, place)
        elif kind in (1, 5):
            unpack = _DOUBLE if kind == 1 else _FLOAT
            if place + unpack.size > end:
                raise WireError("the message ends inside of a number")
            value = unpack.unpack_from(data, place)[0]
            place += unpack.size
        else:
            raise WireError(f"a field of the unknown kind {kind}")
        if place > end:
            raise WireError("a field is longer than its message")
        yield number, value


def text(value: Value) -> str:
    """A string field; bytes that are no UTF-8 become replacement characters."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""


def seconds(value: Value) -> float | None:
    """Unix seconds of a google.protobuf.Timestamp."""
    if not isinstance(value, bytes):
        return None
    found = {number: part for number, part in fields(value) if isinstance(part, int)}
    return signed(found.get(1, 0)) + signed(found.get(2, 0)) / 1e9
