"""Lines for a terminal: plain ANSI, no library, and nothing in a text that could steer the terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from gradforensics.report.words import Words, columns, printable

_CODES = {"red": "31;1", "yellow": "33", "green": "32", "dim": "2", "bold": "1", "cyan": "36"}
_LABEL = 11
_LEAST = 16  # columns that the first column of a table keeps, as far as its texts need them
_GAP = "  "

Cell: TypeAlias = str | tuple[str, str]
"""A text, or a text and its colour."""


class Column(NamedTuple):
    """A column of a table. keep: of those that do not fit into the width, the lowest goes first; 0 always stays."""

    head: str
    keep: int = 0
    numeric: bool = True


class Pen:
    """Collects the lines of one output; `width` in columns, at least 40."""

    def __init__(self, *, color: bool, width: int, words: Words) -> None:
        self.color, self.width, self.words = color, max(40, width), words
        self.lines: list[str] = []

    def paint(self, text: str, colour: str) -> str:
        """The text in a colour of _CODES, where colours are wanted."""
        return f"\x1b[{_CODES[colour]}m{text}\x1b[0m" if self.color and text else text

    def row(self, label: str, text: str, *, wrap: bool = True, colour: str = "") -> None:
        """An indented line with a label, wrapped to the width (not where it is to be copied)."""
        head = f"  {label}{' ' * (_LABEL - columns(label))} "
        body = flat(text)
        parts = (
            textwrap.wrap(body, max(20, self.width - columns(head)), break_long_words=False, break_on_hyphens=False)
            if wrap
            else [body]
        )
        for i, part in enumerate(parts or [""]):
            told = self.paint(part, colour) if colour else part
            self.lines.append((self.paint(head, "dim") if i == 0 else " " * columns(head)) + told)

    def table(self, heads: Sequence[Column], rows: Sequence[Sequence[Cell]], indent: str = "  ") -> None:
        """Rows under heads. The first column is shortened, then others are left out until the width holds the rest."""
        texts = [[flat(cell if isinstance(cell, str) else cell[0]) for cell in row] for row in rows]
        widths = [max([columns(head.head), *(columns(row[i]) for row in texts)]) for i, head in enumerate(heads)]
        shown = list(range(len(heads)))

        def taken() -> int:
            return len(indent) + sum(widths[i] + len(_GAP) for i in shown[1:])

        while taken() + min(widths[0], _LEAST) > self.width:
            optional = [i for i in shown[1:] if heads[i].keep]
            if not optional:
                break
            shown.remove(min(optional, key=lambda i: heads[i].keep))
        widths[0] = min(widths[0], max(self.width - taken(), min(widths[0], _LEAST)))
        head = [_padded(heads[i].head, widths[i], left=i == 0 or not heads[i].numeric) for i in shown]
        self.lines.append(self.paint(f"{indent}{_GAP.join(head)}".rstrip(), "dim"))
        for row, given in zip(texts, rows, strict=True):
            cells = []
            for i in shown:
                cell = given[i]
                text = _padded(middle(row[i], widths[i]), widths[i], left=i == 0 or not heads[i].numeric)
                cells.append(text if isinstance(cell, str) else self.paint(text, cell[1]))
            self.lines.append(f"{indent}{_GAP.join(cells)}".rstrip())

    def text(self) -> str:
        """All lines, ending in a newline."""
        return "\n".join(self.lines) + "\n"


def flat(text: str) -> str:
    """One harmless line: no control characters (they could steer the terminal), no line breaks."""
    return printable(text).replace("\n", " ").replace("\t", " ")


def middle(text: str, width: int) -> str:
    """The text in at most `width` columns: its middle left out where it is longer, since names differ at both ends."""
    if columns(text) <= width:
        return text
    head, tail = text[: width // 3], text[-(width - width // 3 - 1) :]
    while columns(head) + columns(tail) + 1 > width and (head or tail):
        head, tail = (head[:-1], tail) if columns(head) > width // 3 or not tail else (head, tail[1:])
    return f"{head}…{tail}"


def _padded(text: str, width: int, *, left: bool) -> str:
    space = " " * (width - columns(text))
    return text + space if left else space + text
