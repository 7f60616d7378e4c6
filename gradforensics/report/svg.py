"""Charts as SVG text.

Colours are presentation attributes, so that a chart survives a blocked style sheet; the style sheet overrides them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape

import numpy as np

from gradforensics.report.charts import Bad, Band, Chart, Line, Panel
from gradforensics.report.palette import LIGHT, LINES
from gradforensics.report.words import Words, columns, number, printable

WIDTH, LEFT, RIGHT = 880, 64, 14
_PLOT = WIDTH - LEFT - RIGHT
_HEAD, _GAP, _FOOT, _BANNER = 24, 10, 38, 17
_FONT = "system-ui,'Segoe UI',Roboto,'Noto Sans','Noto Sans CJK SC','PingFang SC','Microsoft YaHei',sans-serif"

# Class suffix and colour of a line; the style sheet has a dark twin for each class.
_ROLES = {"loss": 0, "eval/loss": 1, "grad_norm": 2, "lr": 3, "loss_scale": 4}
_COLOURS = tuple(LIGHT[f"l{i}"] for i in range(LINES))
_RED, _INK, _SOFT, _GRID, _TICK, _PAPER = (LIGHT[c] for c in ("red", "ink", "soft", "line", "tick", "paper"))


def colour_of(name: str, position: int) -> int:
    """Index of the colour of a line: by its name, else by its position in the chart."""
    return _ROLES.get(name, position % len(_COLOURS))


def ticks(low: float, high: float, count: int, *, whole: bool = False) -> list[float]:
    """Round numbers within [low, high], about `count` of them."""
    raw = (high - low) / max(1, count)
    if not raw > 0 or not math.isfinite(raw):
        return [low]
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * (1 - 1e-9))
    if whole:
        step = max(1.0, round(step))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [k * step for k in range(first, last + 1)]


def tick_labels(values: Sequence[float]) -> list[str]:
    """Labels of one axis, all with the same number of decimals."""
    if len(values) < 2:
        return [number(v) for v in values]
    step = values[1] - values[0]
    top = max(abs(v) for v in values)
    if top >= 1e6 or top < 1e-3:
        power = math.floor(math.log10(top) + 1e-9)
        decimals = max(0, power - math.floor(math.log10(step) + 1e-9))
        return ["0" if v == 0 else _scientific(v, power, decimals) for v in values]
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    return [f"{v:,.{decimals}f}" if abs(v) >= 1e4 else f"{v:.{decimals}f}" for v in values]


def _scientific(value: float, power: int, decimals: int) -> str:
    return f"{value / 10.0**power:.{decimals}f}e{power}"


class _Axis:
    """The value axis of one panel: its range and where a value lies in it (0 bottom, 1 top)."""

    def __init__(self, panel: Panel) -> None:
        values = np.concatenate([line.values for line in panel.lines] or [np.empty(0)])
        values = np.clip(values, -1e300, 1e300)  # the range of two values near the largest double would be infinite
        self.log = panel.log
        self.empty = not len(values)
        if self.log:
            values = np.log10(values[values > 0])
        low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
        if self.log:
            pad = 0.04 * (high - low)
            self.low, self.high = low - pad, high + pad
            return
        constant = high - low <= 1e-9 * max(abs(low), abs(high))
        pad = (0.5 * abs(high) or 1.0) if constant else 0.06 * (high - low)
        head = 2.5 * pad if panel.bad else pad  # the strokes of non-finite points lie along the top
        self.low, self.high = low - pad, high + head
        if 0 <= low <= 0.25 * high:
            self.low = 0.0 if low > 0 else -0.03 * high

    def at(self, values: np.ndarray) -> np.ndarray:
        """Where values lie; values that a log axis cannot show lie on its bottom."""
        if self.log:
            floor = 10.0 ** max(self.low, -300)
            values = np.log10(np.maximum(values, floor))
        return (values - self.low) / (self.high - self.low)

    def ticks(self, count: int) -> list[tuple[float, str]]:
        """Positions (0 to 1) and labels of the ticks."""
        if self.empty:
            return []
        if not self.log:
            values = ticks(self.low, self.high, count)
            return [
                ((v - self.low) / (self.high - self.low), t) for v, t in zip(values, tick_labels(values), strict=True)
            ]
        powers = list(range(math.ceil(self.low), math.floor(self.high) + 1))
        powers = powers[:: max(1, -(-len(powers) // (count + 1)))]
        return [((p - self.low) / (self.high - self.low), f"{10.0**p:g}" if -4 < p < 5 else f"1e{p}") for p in powers]


class _Drawing:
    def __init__(self, chart: Chart, words: Words, name: str) -> None:
        self.chart, self.words, self.name = chart, words, name
        self.low, self.high = _span(chart)
        self.out: list[str] = []

    def x(self, step: float) -> float:
        """Horizontal position of a step, kept inside the plot."""
        where = (step - self.low) / (self.high - self.low)
        return LEFT + _PLOT * min(1.0, max(0.0, where))

    def shape(self, name: str, kind: str, content: str = "", /, **attributes: object) -> None:
        """Append an element; `content` is markup, attribute values are text."""
        told = "".join(f' {key.replace("_", "-")}="{_safe(str(value))}"' for key, value in attributes.items())
        self.out.append(f'<{name} class="{kind}"{told}>{content}</{name}>')

    def path(self, kind: str, d: str, stroke: str, **attributes: object) -> None:
        self.shape("path", kind, d=d, stroke=stroke, fill="none", **attributes)

    def text(self, x: float, y: float, content: str, *, kind: str = "t2", **look: object) -> None:
        look = {"fill": _SOFT, "font_size": 11.5, **look}
        self.shape("text", kind, _safe(content), x=f"{x:.1f}", y=f"{y:.1f}", **look)

    def render(self) -> str:
        chart = self.chart
        plots = [_plot_height(chart, i) for i in range(len(chart.panels))]
        banner = _BANNER if chart.bands or chart.attempts else 0
        height = banner + sum(_HEAD + p + _GAP for p in plots) + _FOOT - _GAP
        unit = self.words(chart.unit)
        title = self.words("chart_of", series=", ".join(chart.names), unit=unit)
        bottom = height - _FOOT
        self.out.append(
            f'<svg class="chart" xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}"'
            f' viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="{self.name}-t" font-family="{_FONT}"'
            f' data-u="{_safe(unit)}" data-x="{self.low!r},{self.high!r},{LEFT},{_PLOT}">'
            f'<title id="{self.name}-t">{_safe(title)}</title>'
        )
        self.shape("rect", "paper", width=WIDTH, height=height, fill=_PAPER)
        frames: list[tuple[Panel, int, int]] = []
        y = banner
        for panel, plot in zip(chart.panels, plots, strict=True):
            frames.append((panel, y + _HEAD, plot))
            y += _HEAD + plot + _GAP
        for band in sorted(chart.bands, key=lambda b: b.primary):
            self.band(band, [(t, h) for _, t, h in frames])
        for panel, plot_top, plot in frames:
            self.panel(panel, plot_top, plot)
        self.verticals(frames)
        self.foot(bottom, frames, unit)
        self.banner(banner)
        self.out.append("</svg>")
        return "".join(self.out)

    def band(self, band: Band, frames: Sequence[tuple[int, int]]) -> None:
        if not band.primary or not self.low <= band.last <= self.high:
            return
        right = self.x(band.last)
        left = self.x(band.first) if band.first is not None else right
        width = max(2.5, right - left)
        since = "≤ " if band.first is None else f"{band.first}–"
        told = f"{band.label}: {self.words('fault')} {since}{band.last}"
        hint = f"<title>{_safe(told)}</title>"
        for top, plot in frames:
            place = {"x": f"{right - width:.1f}", "y": f"{top:.1f}", "width": f"{width:.1f}", "height": plot}
            self.shape("rect", "band", hint, **place, fill=_RED, fill_opacity=0.14)

    def panel(self, panel: Panel, top: float, plot: float) -> None:
        axis = _Axis(panel)
        bottom = top + plot
        grid = []
        for where, label in axis.ticks(5 if plot > 150 else 3):
            y = bottom - where * plot
            grid.append(f"M{LEFT} {y:.1f}h{_PLOT}")
            self.text(LEFT - 8, y + 4, label, text_anchor="end")
        self.path("grid", f"{''.join(grid)}M{LEFT} {bottom:.1f}h{_PLOT}", _GRID)
        self.legend(panel, top - 8)
        names = list(dict.fromkeys(line.name for line in panel.lines))
        for line in sorted(panel.lines, key=lambda line: line.attempt is None):
            self.line(line, axis, bottom, plot, colour_of(line.name, names.index(line.name)))
            if line.attempt is None:
                self.marks(line, axis, bottom, plot)
        self.bad(panel.bad, top)

    def legend(self, panel: Panel, y: float) -> None:
        x = float(LEFT)
        for position, line in enumerate(line for line in panel.lines if line.attempt is None):
            index = colour_of(line.name, position)
            name = line.name if len(line.name) <= 60 else line.name[:59] + "…"
            self.path(f"l{index}", f"M{x:.1f} {y - 4:.1f}h16", _COLOURS[index], stroke_width=2.5)
            self.text(x + 22, y, name, kind="t1", fill=_INK, font_size=12.5)
            x += 22 + 7.2 * columns(name) + 22
        if panel.log:
            self.text(x, y, self.words("log_scale"))
        if panel.bad:
            counts: dict[str, int] = {}
            for bad in panel.bad:
                name = "/".join({"nan": "NaN", "posinf": "inf", "neginf": "-inf"}[k] for k in bad.kinds)
                counts[name] = counts.get(name, 0) + bad.count
            told = ", ".join(f"{n} × {name}" for name, n in counts.items())
            self.text(WIDTH - RIGHT, y, told, text_anchor="end", kind="tb", fill=_RED, font_size=12)

    def line(self, line: Line, axis: _Axis, bottom: float, plot: float, index: int) -> None:
        if not len(line.steps):
            return
        xs = LEFT + _PLOT * (line.steps - self.low) / (self.high - self.low)
        ys = bottom - plot * axis.at(line.values)
        points = [f"{x:.1f} {y:.1f}" for x, y in zip(xs.tolist(), ys.tolist(), strict=True)]
        starts = np.diff(line.segment, prepend=-1) != 0
        parts = [("M" if new else "L") + point for point, new in zip(points, starts.tolist(), strict=True)]
        few = len(points) <= 40 and line.attempt is None
        dotted = np.full(len(points), True) if few else starts & np.append(starts[1:], True)  # else the isolated ones
        look = {"stroke_linejoin": "round", "stroke_linecap": "round"}
        name = line.name
        if line.attempt is not None:
            name = f"{name}, {self.words('attempt_n', n=line.attempt + 1)}"
            look |= {"stroke_dasharray": "4 3.5", "stroke_opacity": "0.65"}
        told = {
            "data_n": name,
            "data_s": " ".join(map(str, line.steps.tolist())),
            "data_v": " ".join(f"{v:.6g}" for v in line.values.tolist()),
        }
        self.path(f"l{index}", "".join(parts), _COLOURS[index], stroke_width=1.6, **look, **told)
        dots = "".join(f"M{points[i]}h.01" for i in np.flatnonzero(dotted).tolist())
        if dots:
            self.path(f"l{index}", dots, _COLOURS[index], stroke_width=4.5, **look)

    def marks(self, line: Line, axis: _Axis, bottom: float, plot: float) -> None:
        """Rings around the points that the hits name."""
        for mark in self.chart.marks:
            if mark.series != line.name or not self.low <= mark.step <= self.high:
                continue
            y = bottom - plot * float(axis.at(np.array([mark.value]))[0])
            if not bottom - plot - 1 <= y <= bottom + 1:
                continue
            hint = f"<title>{mark.step}: {number(mark.value)}</title>"
            place = {"cx": f"{self.x(mark.step):.1f}", "cy": f"{y:.1f}", "r": 5.5}
            self.shape("circle", "ring", hint, **place, fill="none", stroke=_RED, stroke_width=1.8)

    def bad(self, stretches: Iterable[Bad], top: float) -> None:
        """Non-finite points as red strokes along the top of the plot."""
        path = "".join(f"M{self.x(b.first) - 1.5:.1f} {top + 4:.1f}H{self.x(b.last) + 1.5:.1f}" for b in stretches)
        if path:
            self.path("bad", path, _RED, stroke_width=7)

    def verticals(self, frames: Sequence[tuple[Panel, int, int]]) -> None:
        """Attempt boundaries and the onsets of the other alarms through all panels."""
        for kind, colour, dash, steps in (
            ("attempt", _SOFT, "5 4", self.chart.attempts),
            ("other", _RED, "2 3", [b.last for b in self.chart.bands if not b.primary]),
        ):
            path = "".join(
                f"M{self.x(s):.1f} {top:.1f}v{plot}"
                for s in steps
                if self.low <= s <= self.high
                for _, top, plot in frames
            )
            if path:
                self.path(kind, path, colour, stroke_dasharray=dash)

    def banner(self, top: float) -> None:
        """Names of the onsets and attempts above the first panel; one that would run into another is left out."""
        labels = [(b.last, f"{b.label} ▾", "tb", _RED) for b in sorted(self.chart.bands, key=lambda b: not b.primary)]
        labels += [(s, self.words("attempt_n", n=i + 2), "t2", _SOFT) for i, s in enumerate(self.chart.attempts)]
        taken: list[tuple[float, float]] = []
        for step, content, kind, colour in labels:
            if not self.low <= step <= self.high:
                continue
            half = 3.6 * columns(content)
            x = min(WIDTH - RIGHT - half, max(LEFT + half, self.x(step)))
            if all(x + half + 6 < a or x - half - 6 > b for a, b in taken):
                taken.append((x - half, x + half))
                self.text(x, top - 3, content, text_anchor="middle", kind=kind, fill=colour)

    def foot(self, bottom: float, frames: Sequence[tuple[Panel, int, int]], unit: str) -> None:
        values = [v for v in ticks(self.low, self.high, 8, whole=True) if self.low <= v <= self.high]
        grid = "".join(f"M{self.x(v):.1f} {top + plot:.1f}v4" for v in values for _, top, plot in frames)
        self.path("tick", grid, _TICK)
        for value, label in zip(values, tick_labels(values), strict=True):
            self.text(self.x(value), bottom + 17, label, text_anchor="middle")
        self.text(LEFT + _PLOT / 2, bottom + 33, unit, text_anchor="middle")


def draw(chart: Chart, words: Words, name: str) -> str:
    """One chart as an <svg> element; `name` is unique in the page."""
    return _Drawing(chart, words, name).render()


def _safe(text: str) -> str:
    return escape(printable(text))


def _plot_height(chart: Chart, index: int) -> int:
    if len(chart.panels) == 1:
        return 190
    return 170 if index == 0 else 84


def _span(chart: Chart) -> tuple[float, float]:
    ends = [float(line.steps[i]) for panel in chart.panels for line in panel.lines if len(line.steps) for i in (0, -1)]
    ends += [float(s) for panel in chart.panels for b in panel.bad for s in (b.first, b.last)]
    if not ends:
        return 0.0, 1.0
    low, high = min(ends), max(ends)
    return (low, high) if high > low else (low - 1, high + 1)
