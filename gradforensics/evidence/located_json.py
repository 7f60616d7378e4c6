"""JSON with positions: walk an object or array and know the line of everything in it.

Containers are walked here, their leaves are decoded by the standard library's scanner: that keeps the lines exact for
any formatting, reads what precedes a torn end, and accepts NaN and Infinity.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

_SPACE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()


class TornJsonError(ValueError):
    """The text stops being JSON at `line`."""

    def __init__(self, line: int, text: str) -> None:
        self.line = line
        super().__init__(text)


class Cursor:
    """A position in a JSON text. Lines are counted forward only, so the whole walk stays linear."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.pos = 0
        self._counted = 0
        self._line = 1
        self.skip()

    def skip(self) -> str:
        """Step over white space; the next character, "" at the end."""
        self.pos = _SPACE.match(self.text, self.pos).end()  # type: ignore[union-attr]  # the pattern matches anywhere
        return self.text[self.pos : self.pos + 1]

    @property
    def line(self) -> int:
        """1-based line of the current position."""
        if self.pos > self._counted:
            self._line += self.text.count("\n", self._counted, self.pos)
            self._counted = self.pos
        return self._line

    def torn(self, what: str) -> TornJsonError:
        """The error to raise at the current position."""
        return TornJsonError(self.line, what)

    def value(self) -> Any:
        """Decode the value at the current position, whatever it is, and step over it."""
        try:
            found, self.pos = _DECODER.raw_decode(self.text, self.pos)
        except (ValueError, RecursionError) as error:
            raise self.torn("the JSON text ends or breaks here") from error
        return found

    def members(self) -> Iterator[str]:
        """Keys of the object at the current position; the caller must consume each value before the next key."""
        self._open("{")
        while True:
            if self.skip() == "}":
                self.pos += 1
                return
            key = self.value()
            if not isinstance(key, str) or self.skip() != ":":
                raise self.torn("a key and a colon were expected here")
            self.pos += 1
            self.skip()
            yield key
            self._comma("}")

    def elements(self) -> Iterator[str]:
        """First characters of the elements of the array at the current position; each must be consumed likewise."""
        self._open("[")
        while True:
            first = self.skip()
            if first == "]":
                self.pos += 1
                return
            yield first
            self._comma("]")

    def _open(self, bracket: str) -> None:
        if self.skip() != bracket:
            raise self.torn(f"{bracket} was expected here")
        self.pos += 1

    def _comma(self, closing: str) -> None:
        found = self.skip()
        if found == ",":
            self.pos += 1
        elif found != closing:
            raise self.torn("the JSON text ends or breaks here")

    def located_object(self) -> tuple[dict[str, Any], dict[str, int]]:
        """The object at the current position and the line of each of its keys.

        Where every key stands on a line of its own, which is checked, one call of the scanner reads the whole object.
        """
        start, line = self.pos, self.line
        try:
            whole, end = _DECODER.raw_decode(self.text, start)
        except (ValueError, RecursionError):
            whole, end = {}, start  # torn somewhere inside: the walk below tells where
        pieces = self.text[start:end].split("\n")
        if len(pieces) == len(whole) + 2 and all(
            piece.lstrip().startswith(f'"{key}":') for piece, key in zip(pieces[1:], whole, strict=False)
        ):
            self.pos = end
            return whole, dict(zip(whole, range(line + 1, line + 1 + len(whole)), strict=True))
        values: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for key in self.members():
            lines[key] = self.line
            values[key] = self.value()
        return values, lines


def flatten(cursor: Cursor, limit: int = 5000, prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Any, int]]:
    """(dotted name, value, line) of every leaf of the object at the cursor; lists of scalars are leaves."""
    for key in cursor.members():
        name = f"{prefix}{key}"
        line = cursor.line
        if cursor.skip() == "{" and depth < 20:
            yield from flatten(cursor, limit, f"{name}.", depth + 1)
        else:
            yield name, cursor.value(), line
