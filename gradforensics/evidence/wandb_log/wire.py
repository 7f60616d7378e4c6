"""The fields of one protobuf message as values, without a schema."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from gradforensics.evidence import protobuf
from gradforensics.evidence.protobuf import signed

_DOUBLE = struct.Struct("<d")
_FLOAT = struct.Struct("<f")

Value = int | float | bytes


def zigzag(value: int) -> int:
    """The sint32 or sint64 that a varint stands for."""
    return (value >> 1) ^ -(value & 1)


def fields(data: bytes) -> Iterator[tuple[int, Value]]:
    """(field number, value) in the order of the message.

    A varint is an unsigned int, 8 and 4 bytes are a float, everything with a length is bytes. MalformedError where the
    bytes are no message.
    """
    for number, kind, start, end in protobuf.fields(data, 0, len(data)):
        if kind == protobuf.BYTES:
            yield number, data[start:end]
        elif kind == protobuf.VARINT:
            yield number, protobuf.varint(data, start, end)[0]
        else:
            yield number, (_DOUBLE if kind == protobuf.FIXED64 else _FLOAT).unpack_from(data, start)[0]


def text(value: Value) -> str:
    """A string field; bytes that are no UTF-8 become replacement characters."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""


def seconds(value: Value) -> float | None:
    """Unix seconds of a google.protobuf.Timestamp."""
    if not isinstance(value, bytes):
        return None
    found = {number: part for number, part in fields(value) if isinstance(part, int)}
    return signed(found.get(1, 0)) + signed(found.get(2, 0)) / 1e9
