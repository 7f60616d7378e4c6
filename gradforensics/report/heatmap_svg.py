"""Heatmaps as SVG text: one map for each quantity of a grid.

Colours are presentation attributes, so that a map survives a blocked style sheet; the style sheet has a dark twin for
each class. Neighbouring cells of one colour in a row are one stroke; the cells of a small map tell their values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import groupby
from typing import NamedTuple

from gradforensics.languages import LANGUAGES, Language
from gradforensics.report.heatmaps import Column, Grid, Quantity
from gradforensics.report.palette import LIGHT, RAMPS
from gradforensics.report.pen import middle
from gradforensics.report.words import Words, columns, compact, printable

FONT = "system-ui,'Segoe UI',Roboto,'Noto Sans','Noto Sans CJK SC','PingFang SC','Microsoft YaHei',sans-serif"
CLASSES = 9
INK = 5  # the first class on which text has the colour of the paper
_TELLING = 600  # cells up to which each tells its value; in a larger map rows tell their range
_PLOT, _HIGH = 760, 420  # pixels of the cells together, at most
_WIDE, _TALL = (4, 76), (4, 17)  # least and most pixels of a cell
_NUMBERS = 70  # pixels of a cell from which on its number stands in it
_BANNER, _AXIS, _KEY = 20, 24, 26
_LETTER = 6.8
_SWATCH = 13  # pixels of a colour in the key
_LABEL = 34  # letters of a layer's name


class Scale(NamedTuple):
    """Classes of colour on a log axis from `low` to `high`, which are a decade apart at least."""

    low: float
    high: float

    def place(self, value: float) -> int:
        """The class of a positive value."""
        where = math.log(value / self.low) / math.log(self.high / self.low)
        return min(CLASSES - 1, max(0, int(where * CLASSES)))


def scale_of(values: Iterable[float | None]) -> Scale | None:
    """The scale of some values; None where none is positive. Less than a decade would show noise as a fault."""
    positive = [value for value in values if value is not None and 0 < value < math.inf]
    if not positive:
        return None
    low, high = min(positive), max(positive)
    if high < 10 * low:
        middle_ = math.sqrt(low) * math.sqrt(high)
        low, high = middle_ / math.sqrt(10), middle_ * math.sqrt(10)
    return Scale(low, high)


def safe(text: str) -> str:
    """A text as content or attribute of markup."""
    return escape(printable(text))


_HIDDEN = ' display="none"'


def both(key: str, first: Language, **facts: object) -> str:
    """A label in both languages as content of an SVG text; the one that is not `first` is not displayed."""
    texts = {language: safe(Words(language)(key, **facts)) for language in LANGUAGES}
    if len(set(texts.values())) == 1:
        return texts[first]
    return "".join(
        f'<tspan lang="{language}"{"" if language == first else _HIDDEN}>{said}</tspan>'
        for language, said in texts.items()
    )


def text(x: float, y: float, content: str, *, kind: str = "t2", **look: object) -> str:
    """A text element; `content` is markup."""
    look = {"fill": LIGHT["soft"], "font_size": 11.5, **look}
    told = "".join(f' {key.replace("_", "-")}="{value}"' for key, value in look.items())
    return f'<text class="{kind}" x="{x:.0f}" y="{y:.0f}"{told}>{content}</text>'


def frame(width: float, height: float, name: str, content: str, kind: str) -> str:
    """A whole drawing; `name`: id of the element that names it."""
    return (
        f'<svg class="heat {kind}" xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}"'
        f' viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-labelledby="{name}" font-family="{FONT}">'
        f'<rect class="paper" width="{width:.0f}" height="{height:.0f}" fill="{LIGHT["paper"]}"/>{content}</svg>'
    )


def hatch(name: str) -> str:
    """The pattern of cells that were not measured."""
    return (
        f'<pattern id="{name}" width="6" height="6" patternUnits="userSpaceOnUse">'
        f'<path class="tick" d="M0 6L6 0" stroke="{LIGHT["tick"]}"/></pattern>'
    )


def draw(grid: Grid, quantity: Quantity, name: str, first: Language) -> str:
    """One quantity as an <svg> element; `name`: id of its heading, unique in the page."""
    return _Map(grid, quantity, name, first).render()


def scale_key(scale: Scale, ramp: Sequence[str], x: float, y: float) -> tuple[list[str], float]:
    """The colours of a scale from its lowest to its highest value, and where that ends."""
    low, high = compact(scale.low), compact(scale.high)
    out = [text(x, y, low)]
    x += _LETTER * len(low) + 6
    for place in range(CLASSES):
        stroke = f'stroke="{ramp[place]}" stroke-width="11"'
        out.append(f'<path class="h{place}" d="M{x + _SWATCH * place:.0f} {y - 4:.0f}h{_SWATCH}" {stroke}/>')
    x += _SWATCH * CLASSES + 6
    out.append(text(x, y, high))
    return out, x + _LETTER * len(high) + 18


class _Map:
    def __init__(self, grid: Grid, quantity: Quantity, name: str, first: Language) -> None:
        self.grid, self.quantity, self.name, self.first = grid, quantity, name, first
        self.rows = grid.values[quantity]
        self.counts = quantity == "nonfinite"
        self.ramp = RAMPS["n" if self.counts else "h"]
        self.scale = scale_of(value for row in self.rows for value in row)
        self.labels = [middle(layer, _LABEL) for layer in grid.layers]
        self.left = round(14 + _LETTER * max(map(columns, self.labels), default=0))
        self.wide = max(_WIDE[0], min(_WIDE[1], _PLOT // len(grid.columns)))  # whole pixels keep the paths short
        self.tall = max(_TALL[0], min(_TALL[1], _HIGH // len(grid.layers)))
        self.right = self.left + self.wide * len(grid.columns)
        self.bottom = _BANNER + self.tall * len(grid.layers)

    def render(self) -> str:
        height = self.bottom + _AXIS + _KEY
        key, end = self.key(height - 8)
        parts = (*self.cells(), *self.crosses(), *self.numbers(), *self.row_names(), *self.axis(), *key)
        content = f"<defs>{hatch(f'{self.name}-x')}</defs>{''.join(parts)}"
        return frame(max(end, self.right + 60), height, self.name, content, "counts" if self.counts else "sizes")

    # -- cells --------------------------------------------------------------------------------------------------------

    def kind(self, value: float | None) -> str:
        """The class of a cell: h0 to h8, hz for a zero (and what a log axis cannot show), hx for not measured."""
        if value is None:
            return "hx"
        return f"h{self.scale.place(value)}" if self.scale is not None and 0 < value < math.inf else "hz"

    def colour(self, kind: str) -> str:
        """The light colour of a class."""
        return {"hx": f"url(#{self.name}-x)", "hz": LIGHT["line"]}.get(kind) or self.ramp[int(kind[1:])]

    def cells(self) -> Iterator[str]:
        telling = len(self.grid.layers) * len(self.grid.columns) <= _TELLING
        strokes: dict[str, list[str]] = {}
        for i, row in enumerate(self.rows):
            if telling:
                for j, value in enumerate(row):
                    told = f'<path d="{self.stroke(i, j)}">{self.hint(i, j)}</path>'
                    strokes.setdefault(self.kind(value), []).append(told)
                continue
            place = 0
            for kind, many in groupby(row, self.kind):
                run = len(list(many))
                strokes.setdefault(kind, []).append(self.stroke(i, place, run))
                place += run
        for kind, parts in sorted(strokes.items()):
            content = "".join(parts) if telling else f'<path d="{"".join(parts)}"/>'
            yield f'<g class="{kind}" stroke="{self.colour(kind)}" stroke-width="{self.tall}">{content}</g>'
        if not telling:
            yield from map(self.range, range(len(self.rows)))
        gap = "".join(f"M{self.x(j)} {_BANNER}V{self.bottom}" for j in range(1, len(self.grid.columns)))
        if self.wide > 8:
            yield f'<path class="rule" d="{gap}" stroke="{LIGHT["paper"]}" fill="none"/>'

    def x(self, column: float) -> float:
        """Where a column begins."""
        return self.left + self.wide * column

    def hint(self, row: int, column: int) -> str:
        """What a cell tells: names and numbers, no words."""
        value, bad = self.rows[row][column], self.grid.bad[row][column]
        told = "–" if value is None else compact(value, 4)
        more = f", {bad:,.0f} NaN/Inf" if bad and not self.counts else ""
        return f"<title>{safe(self.grid.layers[row])} @ {safe(named(self.grid.columns[column]))}: {told}{more}</title>"

    def range(self, row: int) -> str:
        """A row that tells its range, over its cells."""
        known = [value for value in self.rows[row] if value is not None]
        told = f"{compact(min(known), 4)} – {compact(max(known), 4)}" if known else "–"
        y, width = _BANNER + self.tall * row, self.wide * len(self.grid.columns)
        return (
            f'<rect x="{self.left}" y="{y}" width="{width}" height="{self.tall}" fill="none"'
            f' pointer-events="all"><title>{safe(self.grid.layers[row])}: {told}</title></rect>'
        )

    def crosses(self) -> Iterator[str]:
        """A cross on each cell that holds a NaN or infinity: a symbol as well as a colour."""
        parts = []
        for i, row in enumerate(self.grid.bad):
            place = 0
            for bad, many in groupby(row, bool):
                run = len(list(many))
                if bad:
                    parts.append(self.stroke(i, place, run))
                place += run
        if parts:
            at = 8 if self.numbered else self.wide / 2
            size = max(1.5, min(self.tall, self.wide) * 0.24)
            yield (
                f'<pattern id="{self.name}-n" x="{self.left}" y="{_BANNER}" width="{self.wide}" height="{self.tall}"'
                f' patternUnits="userSpaceOnUse">{cross(at, self.tall / 2, size)}</pattern><path d="{"".join(parts)}"'
                f' stroke="url(#{self.name}-n)" stroke-width="{self.tall}" pointer-events="none"/>'
            )

    def stroke(self, row: int, column: int, run: int = 1) -> str:
        """The path over some neighbouring cells of a row."""
        return f"M{self.x(column)} {_BANNER + self.tall * (row + 0.5):g}h{run * self.wide}"

    @property
    def numbered(self) -> bool:
        """Whether cells are large enough for their numbers."""
        return self.wide >= _NUMBERS and self.tall >= _TALL[1]

    def numbers(self) -> Iterator[str]:
        """The values in the cells of a small map."""
        for i, row in enumerate(self.rows if self.numbered else ()):
            for j, value in enumerate(row):
                if value is None:
                    continue
                kind = self.kind(value)
                dark = kind != "hz" and int(kind[1:]) >= INK
                look = {"fill": LIGHT["paper" if dark else "ink"], "text_anchor": "end", "font_size": 10.5}
                y = _BANNER + self.tall * (i + 0.5) + 4
                yield text(
                    self.x(j + 1) - 5, y, _value(value), kind="tp" if dark else "ti", pointer_events="none", **look
                )

    # -- around them --------------------------------------------------------------------------------------------------

    def row_names(self) -> Iterator[str]:
        every = max(1, math.ceil(12 / self.tall))
        for i in range(0, len(self.labels), every):
            y = _BANNER + self.tall * (i + 0.5) + 4
            yield text(self.left - 7, y, safe(self.labels[i]), text_anchor="end", translate="no")

    def axis(self) -> Iterator[str]:
        """Steps below the cells; marks of the last good and the first bad checkpoint above them."""
        taken = -1.0
        for j, column in enumerate(self.grid.columns):
            label = _short(column)
            half = 3.3 * columns(label)
            if self.x(j + 0.5) - half > taken:
                yield text(self.x(j + 0.5), self.bottom + 15, safe(label), text_anchor="middle", translate="no")
                taken = self.x(j + 0.5) + half + 8
        for place, key, colour, kind, anchor in (
            (self.grid.last_good, "heat_good", "green", "tg", "end"),
            (self.grid.first_bad, "heat_bad", "red", "tb", "start"),
        ):
            if place is not None:
                yield text(self.x(place + 0.5), _BANNER - 2, "▾", kind=kind, fill=LIGHT[colour], text_anchor="middle")
                shift = -7 if anchor == "end" else 7
                told = both(key, self.first)
                yield text(
                    self.x(place + 0.5) + shift, _BANNER - 5, told, kind=kind, fill=LIGHT[colour], text_anchor=anchor
                )

    def key(self, y: float) -> tuple[list[str], float]:
        """What the colours and symbols mean, as far as they are used, and where that ends."""
        x, out = 8.0, []
        if self.scale is not None:
            drawn, x = scale_key(self.scale, self.ramp, x, y)
            out += drawn
        used = {self.kind(value) for row in self.rows for value in row}
        for kind, label in (("hz", "heat_zero"), ("hx", "heat_none")):
            if kind in used:
                stroke = f'stroke="{self.colour(kind)}" stroke-width="11"'
                out.append(f'<path class="{kind}" d="M{x:.0f} {y - 4:.0f}h16" {stroke}/>')
                out.append(text(x + 22, y, both(label, self.first)))
                x += 22 + _LETTER * _width(label) + 16
        if any(bad for row in self.grid.bad for bad in row):
            out.append(cross(x + 5, y - 4, 3.5))
            out.append(text(x + 15, y, both("heat_nonfinite", self.first)))
            x += 15 + _LETTER * _width("heat_nonfinite")
        return out, x


def cross(x: float, y: float, size: float) -> str:
    """A cross that stands out on every colour."""
    full, width = 2 * size, max(1.2, size * 0.45)
    d = f"M{x - size:.1f} {y - size:.1f}l{full:.1f} {full:.1f}m0-{full:.1f}l-{full:.1f} {full:.1f}"
    return (
        f'<path class="halo" d="{d}" stroke="{LIGHT["paper"]}" stroke-width="{2.4 * width:.1f}" fill="none"/>'
        f'<path class="cross" d="{d}" stroke="{LIGHT["red"]}" stroke-width="{width:.1f}" fill="none"/>'
    )


def _value(value: float) -> str:
    whole = f"{value:,.0f}"
    return whole if value == int(value) and len(whole) < 9 else compact(value)


def _width(key: str) -> int:
    return max(columns(Words(language)(key)) for language in LANGUAGES)


def named(column: Column) -> str:
    """A column in a hint: its steps, or the name of a checkpoint that tells none."""
    return column.name if column.first is None else _short(column)


def _short(column: Column) -> str:
    if column.first is None:
        return middle(column.name, 14)
    return str(column.first) if column.last in (column.first, None) else f"{column.first}–{column.last}"


def picked(count: int, most: int, kept: Sequence[int | None]) -> list[int]:
    """At most about `most` of `count` places, spread evenly, with the first, the last and those to be kept."""
    spread = range(count) if count <= most else [round(i * (count - 1) / (most - 1)) for i in range(most)]
    return sorted({*spread, *(place for place in kept if place is not None)})
