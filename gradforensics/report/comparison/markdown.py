"""A comparison of two runs as Markdown, for issues and chats. Everything that a log wrote stands in code."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gradforensics.diagnosis.two_runs.changes import Change
from gradforensics.report.comparison import told
from gradforensics.report.comparison.model import Comparison, Side
from gradforensics.report.markdown import code, code_cell, prose, table
from gradforensics.report.words import Words, number, printable

_ROWS = 40  # of each table
_LONGEST = 120  # characters of a name or value


def render(found: Comparison) -> str:
    """The whole comparison, ending in a newline."""
    words = Words(found.language)
    contrast = found.contrast
    lines = [f"<!-- {found.tool} -->", f"## {words('comparison')}", ""]
    lines += [_side(words, letter, side) for letter, side in (("A", found.here), ("B", found.there))]
    lines += ["", f"**{_plain(told.headline(words, contrast))}**", ""]
    rest = [*told.details(words, contrast), told.verdict(words, contrast.changes)]
    rest += [told.unknown(words, contrast.changes), told.checkpoints(words, contrast)]
    lines += [f"- {_plain(line)}" for line in rest if line]
    if contrast.candidates:
        lines += ["", f"### {words('cmp_causes')}", ""]
        for one in contrast.candidates:
            signs = "; ".join(told.signs(words, one))
            lines.append(f"- {_plain(told.cause(words, one))} ({words(f'cmp_{one.weight}')}): {_plain(signs)}")
        lines += ["", words("cmp_caution")]
    if contrast.partings:
        heads = (words("series"), words("cmp_course"), words("cmp_shared"), words("cmp_noise"))
        rows = [
            (code_cell(one.label, _LONGEST), told.course(words, one), number(one.points), told.noise(words, one))
            for one in contrast.partings
        ]
        lines += ["", f"### {words('cmp_series')}", "", *_table(words, heads, rows)]
    if differ := (*contrast.changes.counted, *contrast.changes.uncertain):
        heads = (words("key"), "A", "B", words("cmp_kind"))
        counted = len(contrast.changes.counted)
        rows = [_change(words, one, counted=i < counted) for i, one in enumerate(differ)]
        lines += ["", f"### {words('cmp_changes')}", "", *_table(words, heads, rows)]
    return "\n".join(lines) + "\n"


def _side(words: Words, letter: str, side: Side) -> str:
    span = words("no_steps") if side.steps is None else words("steps", first=side.steps[0], last=side.steps[1])
    return f"- **{letter}**: {code(side.name, _LONGEST)} ({span}, {words(side.ending.kind)})"


def _change(words: Words, one: Change, *, counted: bool) -> tuple[str, str, str, str]:
    named = words("cmp_logged_rate") if told.logged(one) else code_cell(one.key, _LONGEST)
    kind = words(f"cmp_kind_{one.kind}") + ("" if counted else f" ({words('cmp_uncertain')})")
    return named, code_cell(told.value(one.here), _LONGEST), code_cell(told.value(one.there), _LONGEST), kind


def _table(words: Words, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [table(heads, rows[:_ROWS])]
    return lines + (["", words("more_rows", n=len(rows) - _ROWS)] if len(rows) > _ROWS else [])


def _plain(text: str) -> str:
    """A sentence: what stems from the runs as code, the rest as plain text."""
    parts = re.split("[{}{}]".format(*told.QUOTES), " ".join(printable(text).split()))
    return "".join(code(part, _LONGEST) if i % 2 else _spaced(part) for i, part in enumerate(parts))


def _spaced(part: str) -> str:
    """A piece of a sentence as prose, with the blanks that part it from its neighbours."""
    return f"{' ' * part.startswith(' ')}{prose(part)}{' ' * part.endswith(' ')}" if part.strip() else part
