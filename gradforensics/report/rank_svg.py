"""Ranks x steps as SVG text: a row per rank, its times as colours, errors as crosses. Colours as in heatmaps."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from gradforensics.languages import Language
from gradforensics.report.heatmap_svg import both, cross, frame, hatch, safe, scale_key, scale_of, text
from gradforensics.report.palette import LIGHT, RAMPS
from gradforensics.report.pen import middle
from gradforensics.report.ranks import RankRow, Ranks, State
from gradforensics.report.words import columns, compact

_TALL, _TOP, _FOOT, _HOST = 17, 22, 50, 18
_PLOT, _STATE = 620, 120  # pixels of the cells, and of the states behind them
_LETTER = 6.8
_LOOK: dict[State, tuple[str, str]] = {
    "silent": ("tb", "red"), "parted": ("tb", "red"), "failed": ("tb", "red"), "slow": ("ta", "amber"),
    "waiting": ("t2", "soft"), "": ("t2", "soft"),
}  # fmt: skip


def draw(found: Ranks, name: str, first: Language) -> str:
    """The ranks as an <svg> element; `name`: id of the heading that names it, unique in the page."""
    return _Drawing(found, name, first).render()


class _Drawing:
    def __init__(self, found: Ranks, name: str, first: Language) -> None:
        self.found, self.name, self.first = found, name, first
        self.rows = [*found.rows, *([found.rest] if found.rest else [])]
        self.scale = scale_of(value for row in self.rows for value in row.cells)
        self.wide = max(6, _PLOT // len(found.windows))
        self.left = 90
        self.right = self.left + self.wide * len(found.windows)

    def render(self) -> str:
        out: list[str] = [text(self.left - 8, _TOP - 7, both("rank", self.first), text_anchor="end")]
        y, host = float(_TOP), None
        for row in self.rows:
            if row.host is not None and row.host != host:
                y += _HOST
                out.append(text(8, y - 5, safe(middle(row.host, 60)), kind="t1", fill=LIGHT["ink"], translate="no"))
                host = row.host
            out += self.row(row, y)
            y += _TALL
        out += self.axis(y)
        key, end = self.key(y + _FOOT - 8)
        out += key
        content = f"<defs>{hatch(f'{self.name}-x')}</defs>{''.join(out)}"
        return frame(max(self.right + _STATE, end), y + _FOOT, self.name, content, "sizes")

    def row(self, row: RankRow, y: float) -> Iterator[str]:
        label = both("ranks_rest", self.first, n=f"{len(row.ranks):,}") if row is self.found.rest else str(row.ranks[0])
        yield text(self.left - 8, y + 12, label, text_anchor="end")
        told = [
            ("hx" if not seen else self.kind(cell), i)
            for i, (cell, seen) in enumerate(zip(row.cells, row.seen, strict=True))
        ]
        for kind, many in groupby(told, lambda one: one[0]):
            places = [place for _, place in many]
            d = f"M{self.x(places[0])} {y + _TALL / 2:g}h{self.wide * len(places)}"
            known = [value for value in (row.cells[place] for place in places) if value is not None]
            values = f": {compact(min(known))} – {compact(max(known))}" if known else ""
            steps = f"{self.found.windows[places[0]][0]}–{self.found.windows[places[-1]][1]}"
            hint = f"<title>{safe(_names(row))} @ {steps}{values}</title>"
            yield f'<path class="{kind}" d="{d}" stroke="{self.colour(kind)}" stroke-width="{_TALL - 2}">{hint}</path>'
        for error in row.errors:
            at = self.right - 6 if error.step is None else self.x(self.window(error.step)) + self.wide / 2
            where = f"{error.source}:{error.line}" if error.line else error.source
            yield f"<g>{cross(at, y + _TALL / 2, 4)}<title>{safe(f'{error.kind}: {where}')}</title></g>"
        if row.state:
            kind, colour = _LOOK[row.state]
            told_state = both(f"rank_{row.state}", self.first)
            yield text(self.right + 8, y + 12, f"◂ {told_state}", kind=kind, fill=LIGHT[colour])

    def window(self, step: int) -> int:
        """The window of a step, the last one for a step behind it."""
        return next((i for i, (_, last) in enumerate(self.found.windows) if step <= last), len(self.found.windows) - 1)

    def x(self, window: int) -> int:
        """Where a window begins."""
        return self.left + self.wide * window

    def kind(self, value: float | None) -> str:
        """The class of a window in which something was logged."""
        return "hz" if value is None or self.scale is None or value <= 0 else f"h{self.scale.place(value)}"

    def colour(self, kind: str) -> str:
        """The light colour of a class."""
        special = {"hx": f"url(#{self.name}-x)", "hz": LIGHT["tick"]}
        return special.get(kind) or RAMPS["h"][int(kind[1:])]

    def axis(self, y: float) -> Iterator[str]:
        taken = -1.0
        for place, (step, _) in enumerate(self.found.windows):
            half = 3.6 * columns(str(step))
            if self.x(place) - half > taken:
                yield text(self.x(place), y + 14, str(step), text_anchor="middle")
                taken = self.x(place) + half + 26
        yield text(self.right + 8, y + 14, both(self.found.unit, self.first))

    def key(self, y: float) -> tuple[list[str], float]:
        """What the colours mean, and where that ends."""
        x, out = 8.0, []
        if self.scale is not None:
            name = safe(middle(self.found.series, 24))
            out.append(text(x, y, name, kind="t1", fill=LIGHT["ink"], translate="no"))
            x += _LETTER * len(name) + 14
            drawn, x = scale_key(self.scale, RAMPS["h"], x, y)
            out += drawn
        logged = any(seen and cell is None for row in self.rows for cell, seen in zip(row.cells, row.seen, strict=True))
        absent = any(not seen for row in self.rows for seen in row.seen)
        for kind, label, used in (("hz", "ranks_logged", logged), ("hx", "ranks_absent", absent)):
            if used:
                out.append(
                    f'<path class="{kind}" d="M{x:.0f} {y - 4:.0f}h16" stroke="{self.colour(kind)}" stroke-width="11"/>'
                )
                out.append(text(x + 22, y, both(label, self.first)))
                x += 120
        if any(row.errors for row in self.rows):
            out.append(cross(x + 5, y - 4, 4))
            out.append(text(x + 15, y, both("ranks_errors", self.first)))
            x += 80
        return out, x


def _names(row: RankRow) -> str:
    return str(row.ranks[0]) if len(row.ranks) == 1 else f"{row.ranks[0]}–{row.ranks[-1]}"
