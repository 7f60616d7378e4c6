"""Texts as Markdown that shows them and does nothing more: no markup, link, mention or image of the evidence's own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from gradforensics.report.words import printable, shorten

_BREAK = "\u200b"  # invisible; parts what would become a link, a mention or a reference
_SPECIAL = re.compile(r"[\\`*\[\]<>|~$]|&(?=[#\w])|(?<![^\W_])_|_(?![^\W_])")
_OPENING = re.compile(r"^(#+|[-+=]|\d+[.)])(?=\s|$|[-=])")
_LINKED = re.compile(r"@(?=\w)|#(?=\d)|(?i:\bGH-)(?=\d)|:(?=//)|(?i:\bwww)(?=\.)|(?i:\b(?:mailto|xmpp)):(?=\w)")
_PIPE = re.compile(r"\\*\|")


def prose(text: str, limit: int = 2000) -> str:
    """A text as one line of Markdown that shows it literally; at most `limit` characters of it."""
    line = shorten(" ".join(printable(text).split()), limit)
    line = _LINKED.sub(lambda m: m[0] + _BREAK, line)
    line = _SPECIAL.sub(lambda m: f"\\{m[0]}", line)
    return _OPENING.sub(lambda m: f"{m[0][:-1]}\\{m[0][-1]}", line)


def code(text: str, limit: int = 200) -> str:
    """A text as a code span, whatever it holds; nothing for an empty one."""
    line = shorten(" ".join(printable(text).split()), limit)
    if not line:
        return ""
    fence = "`" * (_longest_run(line) + 1)
    pad = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{pad}{line}{pad}{fence}"


def block(text: str, language: str = "", limit: int = 4000) -> str:
    """A text as a fenced block of code, line for line."""
    lines = shorten(printable(text), limit).splitlines() or [""]
    fence = "`" * max(3, _longest_run(text) + 1)
    return "\n".join([f"{fence}{language}", *lines, fence])


def code_cell(text: str, limit: int = 200) -> str:
    """A text as a code span in a cell of a table: there a pipe is escaped even in code.

    A backslash before a pipe would undo that, so it is doubled, and shows twice.
    """
    return _PIPE.sub(lambda m: "\\" * (2 * len(m[0]) - 1) + "|", code(text, limit))


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; cells are made by `prose` and `code_cell`."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in lines)


def within(blocks: Sequence[str], limit: int, cut: str) -> str:
    """The blocks, parted by empty lines, in at most `limit` characters: whole blocks, `cut` where some were left out.

    The first block always stays.
    """
    whole = "\n\n".join(blocks) + "\n"
    if len(whole) <= limit:
        return whole
    kept, room = [blocks[0]], limit - len(blocks[0]) - len(cut) - 3
    for one in blocks[1:]:
        room -= len(one) + 2
        if room < 0:
            break
        kept.append(one)
    return "\n\n".join([*kept, cut]) + "\n"


def _longest_run(text: str) -> int:
    return max((len(run) for run in re.findall("`+", text)), default=0)
