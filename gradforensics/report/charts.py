"""What the charts show: which series, which window, which points. Selection and decimation; no drawing, no judging."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from gradforensics.diagnosis.judge import Verdict
from gradforensics.diagnosis.vocabulary import Hit, label
from gradforensics.tables import Evidence, Phase, Series, StepUnit

LINE_POINTS = 800  # of one line: two points (minimum and maximum) per 2 px of an 800 px plot
ZOOM_POINTS = 200  # of one line
BESIDE = 10  # of a window: so small a part of it beside it is still shown where an onset or a checkpoint lies there
ZOOM_SIDE = 25  # logged points shown before and after the onset
BAD_RUNS = 120  # stretches of non-finite points that a panel shows apart; more are joined
CHARTS_PER_FINDING = 3
ATTEMPTS = 8  # earlier attempts whose redone points a chart shows

_AS_LOGGED = {"memory_allocated", "memory_reserved", "memory_host"}  # bytes, GB or percent: the logged name says it
_LINEAR = {"lr"}  # a schedule is read by its shape; on a log axis a linear decay to zero looks like a cliff


Kind: TypeAlias = Literal["whole", "onset", "finding", "two_runs"]
"""What a chart is of: a whole run, all its panels around the onset of the primary case, a series that a hit names."""


LaneName: TypeAlias = Literal["checkpoints", "evaluations"]


class Point(NamedTuple):
    """A value and the step at which it was logged."""

    step: int
    value: float


@dataclass(frozen=True)
class Extent:
    """What a line is of, before it was decimated: finite and non-finite points, and the finite ones to be told."""

    points: int
    nonfinite: int
    first: Point
    last: Point
    low: Point
    high: Point


@dataclass(frozen=True, eq=False)
class Line:
    """The finite points of one series, decimated; `segment` changes where non-finite points interrupt the line.

    attempt: None for the series as it stands in the end, else the (earlier) attempt whose points a later one redid.
    tag: the logged name where the canonical one does not tell the unit. extent: None without a finite point; onset: the
    first point at or after the onset, NaN where it is not finite.
    """

    name: str
    steps: np.ndarray
    values: np.ndarray
    segment: np.ndarray
    attempt: int | None = None
    tag: str = ""
    extent: Extent | None = None
    onset: Point | None = None


@dataclass(frozen=True)
class Bad:
    """A stretch of consecutive non-finite points of a line: first and last step, number of points, their kinds."""

    first: int
    last: int
    count: int
    kinds: tuple[str, ...]
    name: str = ""
    attempt: int | None = None


@dataclass(frozen=True)
class Mark:
    """A point that a hit names."""

    series: str
    step: int
    value: float


@dataclass(frozen=True)
class Band:
    """An onset interval: after `first` (None: open), not after `last`."""

    first: int | None
    last: int
    label: str
    primary: bool = True


@dataclass(frozen=True)
class Lane:
    """What happened at some steps, of which there are `total`; good: the step that is marked apart."""

    name: LaneName
    steps: tuple[int, ...]
    total: int
    good: int | None = None


@dataclass(frozen=True, eq=False)
class Panel:
    """One plot: lines that share a value axis."""

    lines: tuple[Line, ...]
    bad: tuple[Bad, ...]
    log: bool


@dataclass(frozen=True, eq=False)
class Chart:
    """Panels above each other on one step axis; reach: steps beside the logged ones that the axis covers, too."""

    panels: tuple[Panel, ...]
    unit: StepUnit
    kind: Kind = "whole"
    bands: tuple[Band, ...] = ()
    attempts: tuple[int, ...] = ()
    marks: tuple[Mark, ...] = ()
    lanes: tuple[Lane, ...] = ()
    reach: tuple[int, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all lines, top to bottom."""
        return tuple(line.name for panel in self.panels for line in panel.lines if line.attempt is None)


def decimate(steps: np.ndarray, values: np.ndarray, limit: int) -> np.ndarray:
    """Indices of at most about `limit` points: the first, the last, the minimum and the maximum of equal widths.

    The widths are equal in steps, as the columns of a plot are: where a run logged seldom, every point is kept.
    """
    n = len(values)
    if n <= limit:
        return np.arange(n)
    width = max(1, limit // 2)
    column = (steps - steps[0]).astype(float) / max(1.0, float(steps[-1] - steps[0])) * width
    edges = np.flatnonzero(np.diff(np.floor(column), prepend=-1.0, append=width + 2.0))
    parts = list(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True))
    low = [a + int(values[a:b].argmin()) for a, b in parts]
    high = [a + int(values[a:b].argmax()) for a, b in parts]
    return np.unique(np.array([0, n - 1, *low, *high]))


def line_of(series: Series, limit: int, attempt: int | None = None, onset: int | None = None) -> Line:
    """The finite points of a series as a line of at most about `limit` points; onset: a step to tell the value at."""
    finite = np.flatnonzero(series.finite)
    keep = finite[decimate(series.steps[finite], series.values[finite], limit)]
    at = len(series) if onset is None else int(np.searchsorted(series.steps, onset))
    return Line(
        label(series),
        series.steps[keep],
        series.values[keep],
        np.cumsum(series.bad)[keep],
        attempt,
        series.tag if series.name in _AS_LOGGED and series.tag != series.name else "",
        _extent(series, finite) if len(finite) else None,
        _point(series, at) if at < len(series) else None,
    )


def _point(series: Series, index: int) -> Point:
    return Point(int(series.steps[index]), float(series.values[index]))


def _extent(series: Series, finite: np.ndarray) -> Extent:
    values = series.values[finite]
    ends = (finite[0], finite[-1], finite[values.argmin()], finite[values.argmax()])
    return Extent(len(finite), int(series.bad.sum()), *(_point(series, int(i)) for i in ends))


def redone(evidence: Evidence, series: Series) -> list[tuple[int, Series]]:
    """Earlier attempts' points that a later attempt superseded: (attempt, its points)."""
    stored = (evidence.frames[key].frame["attempt"] for key in evidence.keys(series.name, series.phase))
    if all(column.n_unique() < 2 for column in stored):
        return []
    out = []
    for part in evidence.attempts(series.name, series.phase)[-ATTEMPTS:]:
        at = np.minimum(np.searchsorted(series.steps, part.steps), len(series) - 1)
        stands = (series.steps[at] == part.steps) & (series.attempts[at] == part.attempts)
        lost = part.where(~stands)  # logged again by a later attempt, or lost because that one began before
        if len(lost):
            out.append((int(lost.attempts[0]), lost))
    return out


def bad_of(series: Series, attempt: int | None = None) -> tuple[Bad, ...]:
    """The non-finite points of a series as stretches, at most BAD_RUNS of them."""
    index = np.flatnonzero(series.bad)
    if not len(index):
        return ()
    breaks = np.flatnonzero(np.diff(index) > 1) + 1
    if len(breaks) >= BAD_RUNS:
        widest = np.argsort(np.diff(index)[breaks - 1], kind="stable")[::-1][: BAD_RUNS - 1]
        breaks = np.sort(breaks[widest])
    return tuple(
        Bad(
            int(series.steps[p[0]]),
            int(series.steps[p[-1]]),
            len(p),
            tuple(dict.fromkeys(map(series.kind, p))),
            label(series),
            attempt,
        )
        for p in np.split(index, breaks)
    )


def panel_of(
    evidence: Evidence,
    many: Sequence[Series],
    limit: int,
    window: tuple[int, int] | None = None,
    onset: int | None = None,
) -> Panel:
    """One panel of series that share a value axis, within a window of steps; each gets about `limit` points."""
    lines: list[Line] = []
    bad: list[Bad] = []
    for series in many:
        parts = [(attempt, _within(part, window)) for attempt, part in [*redone(evidence, series), (None, series)]]
        total = sum(len(part) for _, part in parts)
        for attempt, part in parts:
            share = limit * len(part) // max(1, total)
            lines.append(line_of(part, max(20, share), attempt, onset))
            bad += bad_of(part, attempt)
    return Panel(tuple(lines), tuple(bad), _spans_decades(lines) and all(s.name not in _LINEAR for s in many))


def _within(series: Series, window: tuple[int, int] | None) -> Series:
    return series if window is None else series.where((series.steps >= window[0]) & (series.steps <= window[1]))


def _spans_decades(lines: Iterable[Line]) -> bool:
    """Whether the values span more than three decades and a log axis can show (nearly) all of them."""
    values = np.concatenate([line.values for line in lines] or [np.empty(0)])
    positive = values[values > 0]
    if not len(positive) or bool((values < 0).any()) or len(positive) < 0.9 * len(values):
        return False
    return bool(positive.max() > 1e3 * positive.min())


def boundaries(series: Series, window: tuple[int, int]) -> tuple[int, ...]:
    """Steps within a window at which a later attempt takes over."""
    steps = series.steps[np.flatnonzero(np.diff(series.attempts) != 0) + 1].tolist()
    return tuple(s for s in steps if window[0] <= s <= window[1])[:40]


def bands_of(findings: Sequence[Verdict], primary: Verdict | None) -> tuple[Band, ...]:
    """The onset interval of the primary case and those of the other alarms."""
    return tuple(
        Band(v.onset_after, v.onset, v.rule.id, v is primary)
        for v in findings
        if v.onset is not None and (v is primary or v.alarm)
    )


def zooms(evidence: Evidence, verdict: Verdict, points: int = ZOOM_POINTS) -> tuple[Chart, ...]:
    """For each series that the hits of a verdict name: the points around the onset."""
    charts = []
    for name in dict.fromkeys(h.series for h in hits_of(verdict) if h.series):
        series = named(evidence, name)
        if series is None or len(series) < 2:
            continue
        window = window_of(series, verdict, [h.step for h in hits_of(verdict) if h.series == name])
        bands = bands_of([verdict], verdict) if series.step_unit == unit_of(evidence, verdict) else ()
        charts.append(
            Chart(
                (panel_of(evidence, [series], points, window, verdict.onset if bands else None),),
                series.step_unit,
                "finding",
                bands,
                boundaries(series, window),
                marks_of(series, hits_of(verdict)),
                reach=beside(window, [verdict.onset if bands else None]),
            )
        )
        if len(charts) == CHARTS_PER_FINDING:
            break
    return tuple(charts)


def beside(window: tuple[int, int], steps: Iterable[int | None]) -> tuple[int, ...]:
    """Those of the steps that lie a little outside of a window: the step that ends a run is often not logged."""
    low, high = window
    margin = max(1, (high - low) // BESIDE)
    near = {s for s in steps if s is not None and (low - margin <= s < low or high < s <= high + margin)}
    return tuple(sorted(near))


def hits_of(verdict: Verdict) -> list[Hit]:
    """All hits of a verdict."""
    return [h for holding in verdict.holdings for h in holding.hits]


def marks_of(series: Series, hits: Iterable[Hit]) -> tuple[Mark, ...]:
    """The finite values of a series that hits name."""
    names = {label(series), series.name} if series.phase == "train" else {label(series)}
    return tuple(
        Mark(label(series), h.step, h.value)
        for h in hits
        if h.series in names and h.step is not None and h.value is not None and np.isfinite(h.value)
    )[:40]


def unit_of(evidence: Evidence, verdict: Verdict) -> StepUnit | None:
    """What the onset of a verdict counts: the unit of the series that shows it; None where no series does."""
    for hit in sorted(hits_of(verdict), key=lambda h: h.step != verdict.onset):
        series = None if hit.series is None else named(evidence, hit.series)
        if series is not None:
            return series.step_unit
    return None


def named(evidence: Evidence, name: str) -> Series | None:
    """The series that a hit names, its phase in front unless that is train; other slashes belong to the name."""
    phases: dict[str, Phase] = {"eval": "eval", "test": "test"}
    first, _, rest = name.partition("/")
    found = evidence.series(rest, phases[first]) if first in phases else None
    return found or evidence.series(name)


def window_of(series: Series, verdict: Verdict, hits: Iterable[int | None]) -> tuple[int, int]:
    """First and last step of the zoom: ZOOM_SIDE logged points either side of the onset and of the first hits here."""
    anchors = [s for s in (verdict.onset_after, verdict.onset) if s is not None]
    anchors += sorted(s for s in hits if s is not None)[:3]
    if not anchors:
        return int(series.steps[0]), int(series.steps[-1])
    low = max(0, int(np.searchsorted(series.steps, min(anchors))) - ZOOM_SIDE)
    high = min(len(series) - 1, int(np.searchsorted(series.steps, max(anchors), side="right")) + ZOOM_SIDE)
    return int(series.steps[low]), int(series.steps[high])
