"""A comparison of two runs on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from gradforensics.diagnosis.two_runs.contrast import Contrast
from gradforensics.report.comparison import told
from gradforensics.report.comparison.model import Comparison, Side
from gradforensics.report.pen import Cell, Column, Pen, flat
from gradforensics.report.words import Words, number

_SERIES, _CHANGES, _CAUSES = 20, 20, 8  # rows that the terminal shows; the other outputs have more


def render(found: Comparison, *, color: bool, width: int, written: Sequence[str] = ()) -> str:
    """The summary, ending in a newline. `written`: where the outputs lie."""
    words = Words(found.language)
    pen = Pen(color=color, width=width, words=words)
    for letter, side in (("A", found.here), ("B", found.there)):
        _side(pen, letter, side)
    contrast = found.contrast
    colour = "yellow" if contrast.parted else "green"
    pen.lines.append(
        pen.paint(flat(told.bare(told.headline(words, contrast))), colour if contrast.result else "yellow")
    )
    for line in told.details(words, contrast):
        pen.row("", told.bare(line))
    pen.row(
        words("t_what"),
        told.bare(told.verdict(words, contrast.changes)),
        colour="yellow" if contrast.changes.confounded else "",
    )
    if unknown := told.unknown(words, contrast.changes):
        pen.row("", unknown)
    if weights := told.checkpoints(words, contrast):
        pen.row(words("t_weights"), weights)
    for i, candidate in enumerate(contrast.candidates[:_CAUSES]):
        signs = "; ".join(told.signs(words, candidate))
        label = words("t_causes") if i == 0 else ""
        pen.row(label, f"{told.bare(told.cause(words, candidate))} [{words(f'cmp_{candidate.weight}')}] {signs}")
    _series(pen, contrast)
    _changes(pen, contrast)
    pen.lines += [flat(words("report_at", path=path)) for path in written]
    return pen.text()


def _side(pen: Pen, letter: str, side: Side) -> None:
    words = pen.words
    span = words("no_steps") if side.steps is None else words("steps", first=side.steps[0], last=side.steps[1])
    attempts, ending = words.count("attempts", side.attempts), words(side.ending.kind)
    pen.lines.append(f"{letter}  {pen.paint(flat(side.name), 'bold')} ({span}, {attempts}, {ending})")


def _series(pen: Pen, found: Contrast) -> None:
    words = pen.words
    if not found.partings:
        return
    heads = (
        Column(words("series")), Column(words("cmp_course"), 3, numeric=False), Column(words("cmp_shared"), 1),
        Column(words("cmp_noise"), 2, numeric=False),
    )  # fmt: skip
    rows: list[list[Cell]] = [
        [one.label, told.course(words, one), number(one.points), told.noise(words, one)]
        for one in found.partings[:_SERIES]
    ]
    pen.lines.append("")
    pen.table(heads, rows)
    _more(pen, len(found.partings) - _SERIES)


def _changes(pen: Pen, found: Contrast) -> None:
    words, differ = pen.words, (*found.changes.counted, *found.changes.uncertain)
    if not differ:
        return
    heads = (
        Column(words("key")), Column("A", 4, numeric=False), Column("B", 5, numeric=False),
        Column(words("cmp_kind"), 1, numeric=False),
    )  # fmt: skip
    counted = len(found.changes.counted)
    rows: list[list[Cell]] = [
        [
            told.bare(told.changed(words, one)), told.value(one.here), told.value(one.there),
            words(f"cmp_kind_{one.kind}") + ("" if i < counted else f" ({words('cmp_uncertain')})"),
        ]
        for i, one in enumerate(differ[:_CHANGES])
    ]  # fmt: skip
    pen.lines.append("")
    pen.table(heads, rows)
    _more(pen, len(differ) - _CHANGES)


def _more(pen: Pen, count: int) -> None:
    if count > 0:
        pen.lines.append("  " + pen.words("and_more", n=count))
