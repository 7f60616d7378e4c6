"""Charts with all that explains them: what they show, a key of the marks, and the same as a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from markupsafe import Markup

from gradforensics.report import svg
from gradforensics.report.charts import Band, Chart, Lane, Line, Point
from gradforensics.report.markup import Tables, cell, joined, soft, tag
from gradforensics.report.words import Words, number

_BOX = (26, 12)  # width and height of a symbol of the key


class Figures(Tables):
    """The charts of one page."""

    def figure(self, chart: Chart, name: str) -> Markup:
        """A chart under its caption; `name` is unique in the page."""
        label = f"{name}-t"
        return tag(
            "figure",
            tag("figcaption", self._caption(chart), id=label),
            tag("div", svg.draw(chart, self.words, label), kind="drawing"),
            self._key(chart),
            self._decimated(chart),
            self._table(chart),
            kind="chart-figure",
        )

    def tools(self) -> Markup:
        """What the script puts beside a chart, once in the page and unseen without it: all of its words."""
        buttons = [tag("button", self.words(f"zoom_{kind}"), type="button") for kind in ("reset", "out", "in")]
        hint = tag("span", self.words("zoom_hint"), kind="soft")
        attempt = tag("span", self.words("attempt"), kind="attempt", hidden="")
        return tag("template", tag("p", *buttons, " ", hint, attempt, kind="tools"), id="chart-tools")

    def _caption(self, chart: Chart) -> Markup:
        first, last = (f"{end:.0f}" for end in svg.span_of(chart))
        if all(line.extent is None for panel in chart.panels for line in panel.lines):
            return self.words("chart_empty")
        key = {"whole": "chart_whole", "two_runs": "chart_two_runs"}.get(chart.kind, "chart_onset")
        told = self.words.of(lambda words: words(key, unit=words(chart.unit), first=first, last=last))
        if chart.kind != "finding":
            return told
        return joined([joined([tag("code", n) for n in chart.names], ", "), told], ": ")

    def _decimated(self, chart: Chart) -> Markup:
        """Says so where not every point is drawn: a chart must not look more exact than it is."""
        lines = [line for panel in chart.panels for line in panel.lines if line.extent is not None]
        total, shown = sum(line.extent.points for line in lines if line.extent), sum(len(line.steps) for line in lines)
        if shown >= total:
            return Markup("")
        return tag("p", self.words("chart_decimated", shown=f"{shown:,}", total=f"{total:,}"), kind="soft")

    def _key(self, chart: Chart) -> Markup:
        items = [tag("li", _symbol(kind), " ", text) for kind, text in self._marks(chart)]
        return tag("ul", *items, kind="key") if items else Markup("")

    def _marks(self, chart: Chart) -> Iterator[tuple[str, Markup]]:
        """What is drawn beside the lines: kind of mark and what it means."""
        low, high = svg.span_of(chart)
        for band in chart.bands:
            if band.primary and low <= band.last <= high:
                yield "band", self.words.of(_onset(band))
        if any(not b.primary and low <= b.last <= high for b in chart.bands):
            yield "other", self.words("key_parting" if chart.kind == "two_runs" else "key_other")
        if any(panel.bad for panel in chart.panels):
            yield "bad", self.words("key_bad")
        if chart.marks:
            yield "ring", self.words("key_ring")
        if chart.attempts:
            yield "attempt", self.words("key_attempt")
        if any(line.attempt is not None for panel in chart.panels for line in panel.lines):
            yield "redone", self.words("key_redone")
        for lane in chart.lanes:
            yield from self._lane(lane)

    def _lane(self, lane: Lane) -> Iterator[tuple[str, Markup]]:
        kind = "checkpoint" if lane.name == "checkpoints" else "evaluation"
        few = len(lane.steps) == lane.total
        yield kind, self.words(f"key_{kind}" if few else f"key_{kind}_some", n=lane.total, shown=len(lane.steps))
        if lane.good is not None:
            yield "good", self.words("key_good", step=lane.good)

    def _table(self, chart: Chart) -> Markup:
        lines = [line for panel in chart.panels for line in panel.lines if line.attempt is None]
        onset = any(b.primary for b in chart.bands)
        heads = ["series", "points", "chart_nonfinite", "chart_first", "chart_last", "min", "max"]
        heads += ["chart_at_onset"] if onset else []
        rows = [_row(line, onset=onset) for line in lines]
        unit = self.words.of(lambda words: words("chart_table_at", unit=words(chart.unit)))
        return tag(
            "details",
            tag("summary", self.words("chart_table")),
            tag("p", unit, kind="soft"),
            self.table(heads, rows, numeric=range(1, len(heads))),
            kind="fold",
        )


def _onset(band: Band) -> Callable[[Words], str]:
    if band.first is None:
        return lambda words: words("key_onset_open", rule=band.label, last=band.last)
    if band.last - band.first <= 1:
        return lambda words: words("key_onset_at", rule=band.label, last=band.last)
    return lambda words: words("key_onset", rule=band.label, first=band.first, last=band.last)


def _row(line: Line, *, onset: bool) -> Markup:
    told = line.extent
    points: list[Point | None] = [None] * 4 if told is None else [told.first, told.last, told.low, told.high]
    cells = [cell("" if p is None else joined([number(p.value), soft(f"@{p.step}")])) for p in points]
    if onset:
        at = line.onset
        cells.append(cell("" if at is None else joined([number(at.value), soft(f"@{at.step}")])))
    name = tag("th", tag("code", line.name), scope="row")
    return tag("tr", name, cell(told.points if told else 0), cell(told.nonfinite if told else ""), *cells)


def _symbol(kind: str) -> Markup:
    """One mark as it stands in the chart."""
    width, height = _BOX
    middle = f"M{width // 2} {height // 2}"
    if kind == "band":
        drawn = svg.element("rect", kind, x=4, y=0, width=width - 8, height=height, **svg.LOOKS[kind])
    elif kind == "ring":
        drawn = svg.element("circle", kind, cx=width // 2, cy=height // 2, r=4.5, **svg.LOOKS[kind])
    elif kind == "redone":
        look = {"stroke": svg.SOFT, "stroke_width": 1.6, "stroke_dasharray": svg.REDONE, "stroke_linecap": "round"}
        drawn = svg.element("path", kind, d=f"M0 {height // 2}h{width}", fill="none", **look)
    elif kind == "bad":
        drawn = svg.element("path", kind, d=f"M4 {height // 2}h{width - 8}", **svg.LOOKS[kind])
    else:
        form = svg.SHAPES.get(kind, f"m0-{height // 2}v{height}")
        drawn = svg.element("path", kind, d=middle + form, **svg.LOOKS[kind])
    place = {"width": width, "height": height, "viewBox": f"0 0 {width} {height}"}
    return svg.element("svg", "symbol", drawn, aria_hidden="true", **place)
