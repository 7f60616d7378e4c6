"""What readers remark, and how far they are: two types that need no library (a leaf; tables.py offers them too)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Notice:
    """A reader's remark on a source: a torn line, a column it could not parse."""

    source: str
    line: int | None
    text: str


READING = "reading"
"""The phase in which files are read: its progress counts bytes."""

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with (what, done, total) while files are read; the command line draws a bar from it."""
