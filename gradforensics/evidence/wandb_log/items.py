"""The named values of history, summary, statistics and configuration records, which share one form.

An item is {key 1 or nested_key 2 (repeated), value_json 16}; in histories a value may also be typed: none 3, boolean 4,
integer 5 (sint64), number 6 (double), text 7, json 8. Keys of nested objects are joined with ".".
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any

from gradforensics.evidence import numbers, protobuf
from gradforensics.evidence.wandb_log import wire

Value = bytes | float

KEY_LIMIT = 10_000
_HEAD_LIMIT = 200_000  # beginnings of items that are remembered
_LONG = 512  # of a longer value only the kind is kept
_DEPTH = 8
_DOUBLE_TAG = 49  # field 6 (number), 8 bytes
_DOUBLE = struct.Struct("<d").unpack_from
_LENGTH = itemgetter(1)  # of the beginning of an item: how long the item is


class Items:
    """Reads the items of records and numbers their keys.

    tag: the byte before every item; names: the keys by their numbers; dropped: how many values were left out because
    there were too many keys.
    """

    def __init__(self, tag: bytes = b"\n") -> None:
        self.names: list[str] = []
        self.dropped = 0
        self._tag = tag
        self._codes: dict[str, int] = {}
        self._doubles: dict[bytes, int] = {}  # the keys of items with a double, by their bytes before it
        self._heads = _Heads(self)
        # An item with a value of at most 127 bytes that is no object: JSON holds no control characters, and no item and
        # no field behind the items begins with another byte. What does not fit is walked field by field.
        head = re.escape(tag) + rb"[\x05-\x7f][\n\x12][^\x82]*+\x82\x01[\x01-\x7f]"
        self._short = re.compile(rb"(" + head + rb")([ -z|-\xff][ -\xff]*+)")

    def read(self, message: bytes) -> tuple[Sequence[int], Sequence[Value], bytes]:
        """(numbers of the keys, values, what follows the items) of a message that begins with its items.

        A value is a number, or the JSON text of a value, of a long one its beginning. WireError where the bytes are no
        message.
        """
        if self._short.match(message):
            found = self._short.findall(message)
            heads, values = zip(*found, strict=True)
            rest = message[2 * len(heads) + sum(map(_LENGTH, heads)) :]
            if not rest or (len(rest) > 1 and rest[:1] != self._tag and len(rest) == 2 + rest[1]):
                codes = list(map(self._heads.__getitem__, heads))
                if min(codes) >= 0:
                    return codes, values, rest
        return self._walk(message)

    def code(self, name: str) -> int | None:
        """The number of a key, None where there are too many."""
        code = self._codes.get(name)
        if code is None:
            if len(self.names) >= KEY_LIMIT:
                return None
            code = self._codes[name] = len(self.names)
            self.names.append(name)
        return code

    def _walk(self, message: bytes) -> tuple[list[int], list[Value], bytes]:
        """Item by item; the beginnings of items with a double are constant, so that they need not be taken apart."""
        codes: list[int] = []
        values: list[Value] = []
        tag, place, end = self._tag[0], 0, len(message)
        known = self._doubles
        while place < end and message[place] == tag:
            stop = place + 2 + message[place + 1] if place + 1 < end else end
            if place + 11 < stop <= end and (code := known.get(message[place + 1 : stop - 8])) is not None:
                codes.append(code)
                values.append(_DOUBLE(message, stop - 8)[0])
                place = stop
            else:
                place = self._one(message, place, codes, values)
        return codes, values, message[place:]

    def _one(self, message: bytes, place: int, codes: list[int], values: list[Value]) -> int:
        """Append what the item at `place` holds; the place behind it."""
        length, begin = protobuf.varint(message, place + 1, len(message))
        stop = begin + length
        if stop > len(message):
            raise protobuf.MalformedError("an item is longer than its record")
        name, value = item(message[begin:stop])
        for key, one in _leaves(name, value):
            code = self.code(key)
            if code is None:
                self.dropped += 1
                continue
            codes.append(code)
            values.append(one)
            double = 11 < length < 128 and message[stop - 9] == _DOUBLE_TAG and message[place + 3] == length - 11
            if double and len(self._doubles) < _HEAD_LIMIT:
                self._doubles[message[place + 1 : stop - 8]] = code
        return stop


class _Heads(dict[bytes, int]):
    """The number of the key for the beginning of an item; -1 where its lengths do not fit."""

    def __init__(self, items: Items) -> None:
        super().__init__()
        self._items = items

    def __missing__(self, head: bytes) -> int:
        if len(self) >= _HEAD_LIMIT:
            self.clear()
        self[head] = code = self._code(head)
        return code

    def _code(self, head: bytes) -> int:
        if head[1] != len(head) - 2 + head[-1]:
            return -1
        try:
            name, value = item(head[2:] + b" " * head[-1])
        except protobuf.MalformedError:
            return -1
        code = self._items.code(name) if value == b" " * head[-1] else None
        return -1 if code is None else code


def item(data: bytes) -> tuple[str, Value]:
    """The key and the value of one item."""
    key = ""
    nested: list[str] = []
    value: Value = b"null"
    for number, part in wire.fields(data):
        if number in (8, 16) and isinstance(part, bytes):
            value = part
        elif number == 2:
            nested.append(wire.text(part))
        elif number == 1:
            key = wire.text(part)
        elif number == 6 and isinstance(part, float):
            value = part
        elif number == 5 and isinstance(part, int):
            value = float(wire.zigzag(part))
        elif number == 4:
            value = b"true" if part else b"false"
        elif number == 7 and isinstance(part, bytes):
            value = b'"' + part + b'"'
    return key or ".".join(nested), value


def _leaves(name: str, value: Value) -> Iterator[tuple[str, Value]]:
    """The value, or the members of an object: wandb writes those as items of their own since it is written in Go."""
    if not isinstance(value, bytes):
        yield name, value
    elif value.startswith(b"{"):
        try:
            found = json.loads(value)
        except (ValueError, RecursionError):
            yield name, b"{"
            return
        yield from _members(name, found, _DEPTH)
    else:
        yield name, value if len(value) <= _LONG else value[:1]


def _members(name: str, value: Any, depth: int) -> Iterator[tuple[str, Value]]:
    if isinstance(value, dict):
        if not depth:
            yield name, b"{"
            return
        for key, member in value.items():
            yield from _members(f"{name}.{key}", member, depth - 1)
    elif isinstance(value, bool):
        yield name, b"true" if value else b"false"
    elif isinstance(value, (int, float)):
        yield name, numbers.scalar(value) or 0.0
    elif isinstance(value, str):
        yield name, f'"{value[:_LONG]}"'.encode("utf-8", "replace")
    else:
        yield name, b"null" if value is None else b"["
