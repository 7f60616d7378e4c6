"""Lines that differ in their numbers only, as one compiled expression: the thousandth line of a log is read with it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Generic, TypeVar

MOMENT = r"\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?"
CLOCK = r"\d{1,4}:\d\d(?::\d\d)?(?:[.,]\d+)?"
DATE = r"(?<![\d/-])\d\d[-/]\d\d(?:[-/]\d{2,4})?[T ](?=\d\d:\d\d:\d\d)"
UNIT_NAN = r"[:=]\s?nan(?:ms|s)\b"

_NUMBER = r"[-+.\w]+"
_THOUSANDS = r"[-+.,\w]+"
_MOST = 8  # shapes that are tried before a line is taken apart

Span = tuple[int, int]
Plan = TypeVar("Plan")


class Shape:
    """The expression of one kind of line, and which of its groups is which number of the line."""

    def __init__(
        self, line: str, blanks: Sequence[tuple[Span, str]], spans: Sequence[Span], wanted: Sequence[int]
    ) -> None:
        items = [(span, pattern, -1) for span, pattern in blanks]
        for index, (start, stop) in enumerate(spans):
            pattern = _THOUSANDS if "," in line[start:stop] else _NUMBER
            items.append(((start, stop), f"({pattern})" if index in wanted else pattern, index))
        items.sort()
        parts: list[str] = []
        self.order: list[int] = []
        self.has_moment = False
        end = 0
        for (start, stop), pattern, index in items:
            parts.append(_literal(line[end:start]))
            if pattern == MOMENT and not self.has_moment:
                self.has_moment = True
                parts.append(f"(?P<moment>{MOMENT})")
                self.order.append(-1)
            else:
                parts.append(pattern)
                if index in wanted:
                    self.order.append(index)
            end = stop
        parts.append(_literal(line[end:]))
        self.pattern = re.compile("".join(parts))

    def read(self, line: str) -> tuple[dict[int, str], str | None] | None:
        """(number's index -> text, text of the date and time), or None for a line of another shape."""
        match = self.pattern.fullmatch(line)
        if match is None:
            return None
        found = dict(zip(self.order, match.groups(), strict=True))
        return found, found.pop(-1, None)


def _literal(text: str) -> str:
    """The text between two numbers; the white space of aligned columns may be any, but some where it parts words."""
    parts = re.split(r"(\s+)", text)
    for place in range(1, len(parts), 2):
        parts[place] = r"\s+" if parts[place - 1][-1:].isalnum() else r"\s*"
    return "".join(part if place % 2 else re.escape(part) for place, part in enumerate(parts))


class Recent(Generic[Plan]):
    """The shapes that were met last, each with what its numbers mean."""

    def __init__(self) -> None:
        self._shapes: list[tuple[Shape, Plan]] = []

    def read(self, line: str) -> tuple[Plan, dict[int, str], str | None] | None:
        """The meaning and the numbers of a line of a known shape."""
        for place, (shape, plan) in enumerate(self._shapes):
            found = shape.read(line)
            if found is not None:
                if place:
                    self._shapes.insert(0, self._shapes.pop(place))
                return plan, *found
        return None

    def add(self, shape: Shape, plan: Plan) -> None:
        """Remember a shape; the one that was not met for longest is forgotten."""
        self._shapes.insert(0, (shape, plan))
        del self._shapes[_MOST:]
