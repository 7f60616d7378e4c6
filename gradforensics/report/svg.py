"""Charts as SVG text, with the words of both languages.

Colours are presentation attributes, so that a chart survives a blocked style sheet; the style sheet overrides them.
What the script needs to zoom stands in data attributes: of the drawing its axis and its place (`data-x`), of a panel
its place and its kind of axis (`data-p`), of a line its points (`data-s`, `data-v`), of marks their steps (`data-m`)
with the place and the shape to be drawn at each (`data-y`, `data-t`), of stretches their ends (`data-b`) and what is
logged there (`data-k`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from markupsafe import Markup

from gradforensics.languages import Text
from gradforensics.report.axes import Axis, tick_labels, ticks
from gradforensics.report.charts import Band, Chart, Lane, Line, Panel
from gradforensics.report.markup import PageWords, tag
from gradforensics.report.packing import packed_steps, packed_values, relative_path
from gradforensics.report.palette import LIGHT, LINES
from gradforensics.report.words import Words, columns, shorten

WIDTH, LEFT, RIGHT = 880, 76, 14
_PLOT = WIDTH - LEFT - RIGHT
_HEAD, _GAP, _LANE, _FOOT, _BANNER = 24, 10, 16, 38, 17
_FONT = "system-ui,'Segoe UI',Roboto,'Noto Sans','Noto Sans CJK SC','PingFang SC','Microsoft YaHei',sans-serif"
_ALL_DOTS = 40  # up to so many points of a line are dots, too

# Class suffix and colour of a line; the style sheet has a dark twin for each class.
_ROLES = {"loss": 0, "eval/loss": 1, "grad_norm": 2, "lr": 3, "loss_scale": 4, "memory_allocated": 5}
_DASHES = (None, "8 3", "8 3 2 3", "12 4")  # of the lines of one panel: they are told apart without their colours, too
REDONE = "2 3"
_COLOURS = tuple(LIGHT[f"l{i}"] for i in range(LINES))
_RED, _GREEN, _INK, SOFT, _GRID, _TICK, _PAPER = (
    LIGHT[c] for c in ("red", "green", "ink", "soft", "line", "tick", "paper")
)
SHAPES = {"checkpoint": "m0-4 4 4-4 4-4-4z", "good": "m0-5.5 5.5 5.5-5.5 5.5-5.5-5.5z", "evaluation": "m0-4v8"}
"""What stands at a step of a lane, as a path from the middle of the lane."""
LOOKS: dict[str, dict[str, object]] = {
    "checkpoint": {"stroke": SOFT, "fill": "none", "stroke_width": 1.3},
    "good": {"stroke": _GREEN, "fill": _GREEN},
    "evaluation": {"stroke": SOFT, "fill": "none", "stroke_width": 1.5},
    "attempt": {"stroke": SOFT, "fill": "none", "stroke_dasharray": "5 4"},
    "other": {"stroke": _RED, "fill": "none", "stroke_dasharray": "2 3"},
    "held": {"stroke": _GREEN, "fill": "none", "stroke_opacity": 0.55},
    "band": {"fill": _RED, "fill_opacity": 0.16},
    "onset": {"stroke": _RED, "fill": "none", "stroke_opacity": 0.75},
    "bad": {"stroke": _RED, "fill": "none", "stroke_width": 7},
    "ring": {"stroke": _RED, "fill": "none", "stroke_width": 1.8},
}
"""Presentation attributes of marks by their class; the key under a chart draws them once more."""


def colour_of(name: str, position: int) -> int:
    """Index of the colour of a line: by its name, else by its position in the chart."""
    return _ROLES.get(name, position % len(_COLOURS))


def element(name: str, kind: str, *children: object, **attributes: object) -> Markup:
    """An element of a drawing; `_` in names of attributes is `-`."""
    return tag(name, *children, kind=kind, **{key.replace("_", "-"): value for key, value in attributes.items()})


def span_of(chart: Chart) -> tuple[float, float]:
    """The ends of the step axis."""
    ends = [float(line.steps[i]) for panel in chart.panels for line in panel.lines if len(line.steps) for i in (0, -1)]
    ends += [float(s) for panel in chart.panels for b in panel.bad for s in (b.first, b.last)]
    ends += [float(s) for s in chart.reach]
    if not ends:
        return 0.0, 1.0
    low, high = min(ends), max(ends)
    return (low, high) if high > low else (low - 1, high + 1)


class _Drawing:
    def __init__(self, chart: Chart, words: PageWords) -> None:
        self.chart, self.words = chart, words
        self.low, self.high = span_of(chart)
        self.out: list[Markup] = []

    def x(self, step: float) -> float:
        """Horizontal position of a step, kept inside the plot."""
        where = (step - self.low) / (self.high - self.low)
        return LEFT + _PLOT * min(1.0, max(0.0, where))

    def seen(self, steps: Iterable[int]) -> list[int]:
        """Those of the steps that the axis covers, in order."""
        return sorted(s for s in steps if self.low <= s <= self.high)

    def shape(self, name: str, kind: str, *children: object, **attributes: object) -> None:
        self.out.append(element(name, kind, *children, **attributes))

    def text(self, x: float, y: float, content: object, *, kind: str = "t2", **look: object) -> None:
        look = {"fill": SOFT, "font_size": 11.5, **look}
        self.shape("text", kind, content, x=f"{x:.1f}", y=f"{y:.1f}", **look)

    def told(self, say: Callable[[Words], str]) -> Markup:
        return self.words.drawn(self.words.told(say))

    def render(self, label: str) -> Markup:
        chart = self.chart
        plots = [_plot_height(chart, i) for i in range(len(chart.panels))]
        banner = _BANNER if chart.bands or chart.attempts else 0
        bottom = banner + sum(_HEAD + p + _GAP for p in plots) - _GAP
        height = bottom + _LANE * len(chart.lanes) + _FOOT
        frames: list[tuple[int, int]] = []
        y = banner
        for plot in plots:
            frames.append((y + _HEAD, plot))
            y += _HEAD + plot + _GAP
        self.shape("rect", "paper", width=WIDTH, height=height, fill=_PAPER)
        for band in chart.bands:
            self.band(band, frames)
        for panel, (top, plot) in zip(chart.panels, frames, strict=True):
            self.panel(panel, top, plot)
        self.verticals(frames)
        for row, lane in enumerate(chart.lanes):
            self.lane(lane, bottom + _LANE * row + _LANE // 2 + 4)
        self.foot(height - _FOOT, frames)
        self.banner(banner)
        return element(
            "svg",
            "chart",
            *self.out,
            xmlns="http://www.w3.org/2000/svg",
            width=WIDTH,
            height=height,
            viewBox=f"0 0 {WIDTH} {height}",
            role="img",
            aria_labelledby=label,
            font_family=_FONT,
            data_x=f"{self.low:.0f},{self.high:.0f},{LEFT},{_PLOT}",
        )

    def band(self, band: Band, frames: Sequence[tuple[int, int]]) -> None:
        """The onset interval of the primary case through all panels."""
        if not band.primary or not self.low <= band.last <= self.high:
            return
        first = band.last if band.first is None else band.first
        right = self.x(band.last)
        width = max(2.5, right - self.x(first))
        for top, plot in frames:
            place = {"x": f"{right - width:.1f}", "y": top, "width": f"{width:.1f}", "height": plot}
            self.shape("rect", "band", **place, **LOOKS["band"], data_b=packed_steps(np.array([first, band.last])))

    def panel(self, panel: Panel, top: int, plot: int) -> None:
        axis = Axis(panel)
        outer, self.out = self.out, []
        bottom = top + plot
        grid = []
        for where, label in axis.ticks(5 if plot > 150 else 3):
            y = bottom - where * plot
            grid.append(f"M{LEFT} {y:.1f}h{_PLOT}")
            self.text(LEFT - 8, y + 4, label, text_anchor="end", kind="t2 yt")
        d = f"{''.join(grid)}M{LEFT} {bottom}h{_PLOT}"
        self.shape("path", "grid", d=d, stroke=_GRID, fill="none")
        self.legend(panel, top - 8)
        names = [line.name for line in panel.lines if line.attempt is None]
        for line in sorted(panel.lines, key=lambda line: line.attempt is None):
            self.line(line, axis, bottom, plot, names.index(line.name))
            if line.attempt is None:
                self.rings(line, axis, bottom, plot)
        self.bad(panel, top)
        place = f"{top},{plot},{int(panel.log)},{int(bool(panel.bad))}"
        self.out = [*outer, element("g", "", *self.out, data_p=place)]

    def legend(self, panel: Panel, y: int) -> None:
        x = LEFT
        for position, line in enumerate(line for line in panel.lines if line.attempt is None):
            index = colour_of(line.name, position)
            name = shorten(line.name, 60)
            look = {
                "stroke": _COLOURS[index],
                "stroke_width": 2.5,
                "stroke_dasharray": _DASHES[position % len(_DASHES)],
            }
            self.shape("path", f"l{index}", d=f"M{x} {y - 4}h26", fill="none", **look)
            self.text(x + 32, y, name, kind="t1", fill=_INK, font_size=12.5, translate="no")
            x += 32 + int(8.4 * columns(name)) + 14
            if line.tag:
                logged = shorten(line.tag, 40)
                self.text(x, y, logged, translate="no")
                x += int(6.4 * columns(logged)) + 14
        if panel.log:
            self.text(x, y, self.told(lambda words: words("log_scale")))
        if panel.bad:
            counts: dict[str, int] = {}
            for bad in panel.bad:
                name = _kinds(bad.kinds)
                counts[name] = counts.get(name, 0) + bad.count
            told = ", ".join(f"{n} × {name}" for name, n in counts.items())
            self.text(WIDTH - RIGHT, y, told, text_anchor="end", kind="tb", fill=_RED, font_size=12)

    def line(self, line: Line, axis: Axis, bottom: int, plot: int, position: int) -> None:
        if not len(line.steps):
            return
        index = colour_of(line.name, position)
        x = LEFT + _PLOT * (line.steps - self.low) / (self.high - self.low)
        y = bottom - plot * axis.at(line.values)
        starts = np.diff(line.segment, prepend=-1) != 0
        few = len(x) <= _ALL_DOTS and line.attempt is None
        dotted = np.full(len(x), True) if few else starts & np.append(starts[1:], True)  # else the isolated ones
        look: dict[str, object] = {"stroke": _COLOURS[index], "fill": "none", "stroke_linecap": "round"}
        if line.attempt is None:
            look["stroke_dasharray"] = _DASHES[position % len(_DASHES)]
        else:
            look |= {"stroke_dasharray": REDONE, "stroke_opacity": "0.65"}
        told = {
            "data_n": line.name,
            "data_a": None if line.attempt is None else line.attempt + 1,
            "data_s": packed_steps(line.steps, line.segment),
            "data_v": packed_values(line.values),
        }
        path = relative_path(x, y, starts)
        self.shape("path", f"l{index}", d=path, stroke_width=1.6, stroke_linejoin="round", **look, **told)
        dots = "".join(f"M{x[i]:.1f} {y[i]:.1f}h.01" for i in np.flatnonzero(dotted).tolist())
        look = {"stroke": _COLOURS[index], "stroke_linecap": "round", "stroke_width": 4.5}
        self.shape("path", f"l{index} dots", d=dots, fill="none", **look)

    def rings(self, line: Line, axis: Axis, bottom: int, plot: int) -> None:
        """Rings around the points that the hits name."""
        for mark in self.chart.marks:
            if mark.series != line.name or not self.low <= mark.step <= self.high:
                continue
            y = bottom - plot * float(axis.at(np.array([mark.value]))[0])
            if bottom - plot - 1 <= y <= bottom + 1:
                point = {"data_m": mark.step, "data_v": packed_values(np.array([mark.value]))}
                place = {"cx": f"{self.x(mark.step):.1f}", "cy": f"{y:.1f}", "r": 5.5}
                self.shape("circle", "ring", **place, **LOOKS["ring"], **point)

    def bad(self, panel: Panel, top: int) -> None:
        """Non-finite points as red strokes along the top of the plot."""
        for name, attempt in dict.fromkeys((b.name, b.attempt) for b in panel.bad):
            those = sorted((b for b in panel.bad if (b.name, b.attempt) == (name, attempt)), key=lambda b: b.first)
            path = "".join(f"M{self.x(b.first) - 1.5:.1f} {top + 4}H{self.x(b.last) + 1.5:.1f}" for b in those)
            told = {
                "data_n": name,
                "data_a": None if attempt is None else attempt + 1,
                "data_b": packed_steps(np.array([(b.first, b.last) for b in those]).ravel()),
                "data_k": " ".join(_kinds(b.kinds) for b in those),
                "data_y": top + 4,
            }
            self.shape("path", "bad", d=path, **LOOKS["bad"], **told)

    def marks(self, kind: str, steps: Iterable[int], y: int, form: str) -> None:
        """A shape at each of the steps."""
        seen = self.seen(steps)
        if seen:
            path = "".join(f"M{self.x(s):.1f} {y}{form}" for s in seen)
            place = {"data_m": packed_steps(np.array(seen)), "data_y": y, "data_t": form}
            self.shape("path", kind, d=path, **LOOKS[kind], **place)

    def verticals(self, frames: Sequence[tuple[int, int]]) -> None:
        """Attempt boundaries, the last good checkpoint and the ends of the onset intervals through all panels."""
        good = [lane.good for lane in self.chart.lanes if lane.good is not None]
        onset, others = ([b.last for b in self.chart.bands if b.primary == which] for which in (True, False))
        kinds = (("attempt", self.chart.attempts), ("held", good), ("onset", onset), ("other", others))
        for kind, steps in kinds:
            for top, plot in frames:
                self.marks(kind, steps, top, f"v{plot}")

    def lane(self, lane: Lane, y: int) -> None:
        """A row of marks under the panels."""
        self.text(
            LEFT - 8, y + 4, self.told(lambda words: words(f"lane_{lane.name}")), text_anchor="end", font_size=10.5
        )
        kind = "checkpoint" if lane.name == "checkpoints" else "evaluation"
        self.marks(kind, [s for s in lane.steps if s != lane.good], y, SHAPES[kind])
        if lane.good is not None:
            self.marks("good", [lane.good], y, SHAPES["good"])

    def banner(self, top: int) -> None:
        """Names of the onsets and attempts above the first panel; one that would run into another is left out."""
        bands = sorted(self.chart.bands, key=lambda b: not b.primary)
        labels = [(b.last, Text(f"{b.label} ▾"), "tb", _RED) for b in bands]
        for index, step in enumerate(self.chart.attempts):
            labels.append((step, self.words.told(_attempt(index + 2)), "t2", SOFT))
        taken: list[tuple[float, float]] = []
        for step, text, kind, colour in labels:
            if not self.low <= step <= self.high:
                continue
            half = 3.6 * max(map(columns, text))
            x = min(WIDTH - RIGHT - half, max(LEFT + half, self.x(step)))
            if all(x + half + 6 < a or x - half - 6 > b for a, b in taken):
                taken.append((x - half, x + half))
                told = self.words.drawn(text)
                self.text(x, top - 3, told, text_anchor="middle", kind=kind, fill=colour, data_m=step)

    def foot(self, bottom: int, frames: Sequence[tuple[int, int]]) -> None:
        values = [v for v in ticks(self.low, self.high, 8, whole=True) if self.low <= v <= self.high]
        grid = "".join(f"M{self.x(v):.1f} {top + plot}v4" for v in values for top, plot in frames)
        self.shape("path", "tick", d=grid, stroke=_TICK, fill="none")
        for value, label in zip(values, tick_labels(values), strict=True):
            x = min(self.x(value), WIDTH - 2 - 3.5 * len(label))  # the last one must not run out of the drawing
            self.text(x, bottom + 17, label, text_anchor="middle", kind="t2 xt")
        unit = self.told(lambda words: words(self.chart.unit))
        self.text(LEFT + _PLOT / 2, bottom + 33, unit, text_anchor="middle", kind="t2 unit")


def _kinds(kinds: Iterable[str]) -> str:
    return "/".join({"nan": "NaN", "posinf": "inf", "neginf": "-inf"}[kind] for kind in kinds)


def _attempt(n: int) -> Callable[[Words], str]:
    return lambda words: words("attempt_n", n=n)


def draw(chart: Chart, words: PageWords, label: str) -> Markup:
    """One chart as an <svg> element; `label` is the id of the element that names it."""
    return _Drawing(chart, words).render(label)


def _plot_height(chart: Chart, index: int) -> int:
    if len(chart.panels) == 1:
        return 190
    return 170 if index == 0 else 84
