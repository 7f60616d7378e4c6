"""The chain of consequences as a drawing: a box per alarm, causes left of their effects, an arrow per edge.

Alarms that no edge touches stand below, apart. Colours are presentation attributes, so that the drawing survives a
blocked style sheet; the style sheet overrides them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from gradforensics.languages import LANGUAGES, Text
from gradforensics.report.markup import PageWords, tag
from gradforensics.report.model import RunReport, VerdictRow
from gradforensics.report.palette import LIGHT
from gradforensics.report.words import columns, shorten

_WIDTH, _HEIGHT, _AWAY, _BETWEEN, _EDGE = 216, 92, 48, 16, 2
_LINE, _FONT_SIZE, _COLUMNS = 16, 12, 27
_PER_ROW = 4  # boxes apart that stand beside each other
_FONT = "system-ui,'Segoe UI',Roboto,'Noto Sans','Noto Sans CJK SC','PingFang SC','Microsoft YaHei',sans-serif"
_RED, _WASH, _INK, _SOFT, _TICK, _GREY = (LIGHT[c] for c in ("red", "red-wash", "ink", "soft", "tick", "grey-wash"))

Edge = tuple[str, str]


@dataclass(frozen=True)
class Layout:
    """Where the boxes stand, counted in boxes: (column, row) by rule; `drawn`: the edges that get an arrow."""

    places: Mapping[str, tuple[int, float]]
    drawn: tuple[Edge, ...]
    apart: tuple[str, ...]


def layout(rules: Sequence[str], edges: Iterable[Edge]) -> Layout:
    """Columns by the longest way from a root, rows so that effects stand near their causes.

    An edge that a longer way replaces gets no arrow, and one that would close a circle counts for no column.
    """
    known = dict.fromkeys((a, b) for a, b in edges if a != b and {a, b} <= set(rules))
    forward = _acyclic(rules, list(known))
    tied = [rule for rule in rules if any(rule in edge for edge in known)]
    columns_ = _columns(tied, forward)
    drawn = tuple(edge for edge in known if edge not in forward or not _replaced(edge, forward))
    return Layout(_rows(tied, forward, columns_), drawn, tuple(rule for rule in rules if rule not in tied))


def _acyclic(rules: Sequence[str], edges: Sequence[Edge]) -> list[Edge]:
    """The edges without those that close a circle, in the order of the rules."""
    kept: list[Edge] = []
    for edge in sorted(edges, key=lambda e: (rules.index(e[0]), rules.index(e[1]))):
        if not _reaches(edge[1], edge[0], kept):
            kept.append(edge)
    return kept


def _reaches(start: str, goal: str, edges: Sequence[Edge]) -> bool:
    waiting, seen = [start], {start}
    while waiting:
        here = waiting.pop()
        if here == goal:
            return True
        following = {b for a, b in edges if a == here} - seen
        seen |= following
        waiting += following
    return False


def _replaced(edge: Edge, edges: Sequence[Edge]) -> bool:
    """Whether a longer way leads from the cause to the effect."""
    return _reaches(edge[0], edge[1], [one for one in edges if one != edge])


def _columns(rules: Sequence[str], edges: Sequence[Edge]) -> dict[str, int]:
    """The length of the longest way to each rule; roots then move up to their nearest effect."""
    column = dict.fromkeys(rules, 0)
    for _ in rules:
        for cause, effect in edges:
            column[effect] = max(column[effect], column[cause] + 1)
    effects = {rule: [b for a, b in edges if a == rule] for rule in rules}
    caused = {b for _, b in edges}
    return {
        rule: min((column[e] for e in effects[rule]), default=1) - 1 if rule not in caused and effects[rule] else at
        for rule, at in column.items()
    }


def _rows(rules: Sequence[str], edges: Sequence[Edge], column: Mapping[str, int]) -> dict[str, tuple[int, float]]:
    places: dict[str, tuple[int, float]] = {}
    members = [[rule for rule in rules if column[rule] == at] for at in range(max(column.values(), default=-1) + 1)]
    tallest = max(map(len, members), default=0)
    for at, those in enumerate(members):

        def near(rule: str) -> float:
            rows = [places[a][1] for a, b in edges if b == rule and a in places]
            return sum(rows) / len(rows) if rows else float(rules.index(rule))

        first = (tallest - len(those)) / 2
        for row, rule in enumerate(sorted(those, key=near)):
            places[rule] = (at, first + row)
    return places


class ChainDrawing:
    """Draws the chain of one run; anchor: the prefix of the ids of its findings."""

    def __init__(self, words: PageWords, run: RunReport, anchor: str) -> None:
        self.words, self.run, self.anchor = words, run, anchor

    def svg(self) -> Markup:
        """The whole drawing. Its links repeat those of the list of edges that stands beside it, hence aria-hidden."""
        found = layout([v.rule for v in self.run.alarms], self.run.chain)
        spots = {rule: self._spot(*place) for rule, place in found.places.items()}
        rows = max((y + _HEIGHT for _, y in spots.values()), default=0)
        top = rows + (2 * _LINE if rows else _EDGE)
        spots |= {rule: self._spot_apart(i, top) for i, rule in enumerate(found.apart)}
        width = max(x + _WIDTH for x, _ in spots.values()) + _EDGE
        height = max(y + _HEIGHT for _, y in spots.values()) + _EDGE
        parts = [self._arrow(spots[a], spots[b]) for a, b in found.drawn]
        if found.apart and found.places:
            parts.append(self._text(_EDGE, top - 7, self.words("apart"), "soft"))
        parts += [self._box(v, spots[v.rule]) for v in self.run.alarms]
        return tag(
            "svg", *parts, kind="chain-drawing", xmlns="http://www.w3.org/2000/svg", width=width, height=height,
            viewBox=f"0 0 {width} {height}", aria_hidden="true", font_family=_FONT, font_size=_FONT_SIZE,
        )  # fmt: skip

    def _spot(self, column: int, row: float) -> tuple[float, float]:
        return _EDGE + column * (_WIDTH + _AWAY), _EDGE + row * (_HEIGHT + _BETWEEN)

    def _spot_apart(self, index: int, top: float) -> tuple[float, float]:
        x, y = self._spot(index % _PER_ROW, index // _PER_ROW)
        return x, y + top

    def _arrow(self, start: tuple[float, float], end: tuple[float, float]) -> Markup:
        x, y = start[0] + _WIDTH, start[1] + _HEIGHT / 2
        goal, level = end[0], end[1] + _HEIGHT / 2
        bend = max(_AWAY / 2, (goal - x) / 2)
        way = f"M{x:g} {y:g}C{x + bend:g} {y:g} {goal - bend:g} {level:g} {goal - 7:g} {level:g}"
        head = f"M{goal - 9:g} {level - 5:g}L{goal - 1:g} {level:g}L{goal - 9:g} {level + 5:g}Z"
        return tag("path", kind="way", d=way, fill="none", stroke=_SOFT, stroke_width=1.6) + tag(
            "path", kind="head", d=head, fill=_SOFT
        )

    def _box(self, verdict: VerdictRow, spot: tuple[float, float]) -> Markup:
        x, y = spot
        first = verdict is self.run.primary
        frame = tag(
            "rect", kind="box first" if first else "box", x=f"{x:g}", y=f"{y:g}", width=_WIDTH, height=_HEIGHT, rx=8,
            fill=_WASH if first else _GREY, stroke=_RED if first else _TICK, stroke_width=2 if first else 1,
        )  # fmt: skip
        left = x + 12
        name = tag("tspan", verdict.rule, font_weight=650, fill=_INK, kind="ink")
        lines = [self._text(left, y + 20, tag("tspan", name, " ", shorten(verdict.slug, 22), translate="no"), "soft")]
        lines += self._title(verdict.title, left, y + 39)
        step = self.words("step_n", n=verdict.onset) if verdict.onset is not None else self.words("onset_none")
        role = Markup(" · ") + self.words("primary") if first else ""
        lines.append(self._text(left, y + _HEIGHT - 11, _tspans(step) + _tspans(role), "soft"))
        return tag("a", frame, *lines, href=f"#{self.anchor}-{verdict.rule}", tabindex=-1)

    def _title(self, title: Text, x: float, y: float) -> list[Markup]:
        """The title in two lines, in both languages one over the other."""
        told = {language: wrapped(title.in_(language), _COLUMNS, 2) for language in LANGUAGES if title.in_(language)}
        if not title.zh or title.zh == title.en:
            return [self._text(x, y + i * _LINE, line, "ink") for i, line in enumerate(told["en"])]
        rows = []
        for i in range(max(map(len, told.values()))):
            each = [
                tag("tspan", lines[i], lang=language, display=None if language == self.words.first else "none")
                for language, lines in told.items()
                if i < len(lines)
            ]
            rows.append(self._text(x, y + i * _LINE, Markup("").join(each), "ink"))
        return rows

    def _text(self, x: float, y: float, content: object, kind: str) -> Markup:
        told = _tspans(content) if isinstance(content, Markup) else content
        return tag("text", told, x=f"{x:g}", y=f"{y:g}", kind=kind, fill=_INK if kind == "ink" else _SOFT)


def _tspans(content: Markup | str) -> Markup:
    """The words of a page as they stand in a drawing, where `hidden` means nothing."""
    swapped = (
        str(content)
        .replace("<span ", "<tspan ")
        .replace("</span>", "</tspan>")
        .replace(' hidden=""', ' display="none"')
    )
    return Markup(swapped)  # noqa: S704  # markup of PageWords, escaped there


def wrapped(text: str, limit: int, most: int) -> list[str]:
    """A text in at most `most` lines of `limit` letters; CJK texts break anywhere, what is left over shows as "…"."""
    lines = [""]
    for piece in _pieces(text):
        if lines[-1] and columns((lines[-1] + piece).rstrip()) > limit:
            lines.append("")
        lines[-1] += piece.lstrip() if not lines[-1] else piece
    lines = [line.rstrip() for line in lines if line.strip()]
    if len(lines) > most:
        lines[most - 1] = lines[most - 1][: limit - 1].rstrip("，。,. ") + "…"
    return lines[:most]


def _pieces(text: str) -> list[str]:
    """Words with the blanks before them; CJK characters one by one."""
    found: list[str] = []
    for character in text:
        wide = columns(character) == 2
        joins = found and not wide and not character.isspace() and columns(found[-1][-1]) == 1
        if joins:
            found[-1] += character
        else:
            found.append(character)
    return found
