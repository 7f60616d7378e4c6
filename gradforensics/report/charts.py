"""What the charts show: which series, which window, which points. Selection and decimation; no drawing, no judging."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from gradforensics.diagnosis.judge import Verdict
from gradforensics.diagnosis.vocabulary import label
from gradforensics.tables import Evidence, Phase, Series

TIMELINE_POINTS = 800  # two points (minimum and maximum) per 2 px of an 800 px plot
ZOOM_POINTS = 300
ZOOM_SIDE = 25  # logged points shown before and after the onset
BAD_RUNS = 120  # stretches of non-finite points that a panel shows apart; more are joined
CHARTS_PER_FINDING = 3
ATTEMPTS = 8  # earlier attempts whose redone points a chart shows

# (panel, its series as (phase, name)); in this order, where logged.
_PANELS: tuple[tuple[tuple[Phase, str], ...], ...] = (
    (("train", "loss"), ("eval", "loss")),
    (("train", "grad_norm"),),
    (("train", "lr"),),
    (("train", "loss_scale"),),
)
_LINEAR = {"lr"}  # a schedule is read by its shape; on a log axis a linear decay to zero looks like a cliff


@dataclass(frozen=True, eq=False)
class Line:
    """The finite points of one series, decimated; `segment` changes where non-finite points interrupt the line.

    attempt: None for the series as it stands in the end, else the (earlier) attempt whose points a later one redid.
    """

    name: str
    steps: np.ndarray
    values: np.ndarray
    segment: np.ndarray
    attempt: int | None = None


@dataclass(frozen=True)
class Bad:
    """A stretch of consecutive non-finite points: first and last step, number of points, their kinds."""

    first: int
    last: int
    count: int
    kinds: tuple[str, ...]


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


@dataclass(frozen=True, eq=False)
class Panel:
    """One plot: lines that share a value axis."""

    lines: tuple[Line, ...]
    bad: tuple[Bad, ...]
    log: bool


@dataclass(frozen=True, eq=False)
class Chart:
    """Panels above each other on one step axis."""

    panels: tuple[Panel, ...]
    unit: str
    bands: tuple[Band, ...] = ()
    attempts: tuple[int, ...] = ()
    marks: tuple[Mark, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all lines, top to bottom."""
        return tuple(line.name for panel in self.panels for line in panel.lines if line.attempt is None)


def decimate(values: np.ndarray, limit: int) -> np.ndarray:
    """Indices of at most about `limit` of the finite `values`: the minimum and the maximum of equal stretches."""
    n = len(values)
    if n <= limit:
        return np.arange(n)
    size = -(-n // max(1, limit // 2))
    rows = -(-n // size)
    pad = rows * size - n
    low = np.pad(values, (0, pad), constant_values=np.inf).reshape(rows, size).argmin(axis=1)
    high = np.pad(values, (0, pad), constant_values=-np.inf).reshape(rows, size).argmax(axis=1)
    base = np.arange(rows) * size
    return np.unique(np.concatenate([[0], base + low, base + high, [n - 1]]))


def line_of(series: Series, limit: int, attempt: int | None = None) -> Line:
    """The finite points of a series as a line of at most about `limit` points."""
    keep = np.flatnonzero(series.finite)
    keep = keep[decimate(series.values[keep], limit)]
    return Line(label(series), series.steps[keep], series.values[keep], np.cumsum(series.bad)[keep], attempt)


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


def bad_of(series: Series) -> tuple[Bad, ...]:
    """The non-finite points of a series as stretches, at most BAD_RUNS of them."""
    index = np.flatnonzero(series.bad)
    if not len(index):
        return ()
    breaks = np.flatnonzero(np.diff(index) > 1) + 1
    if len(breaks) >= BAD_RUNS:
        widest = np.argsort(np.diff(index)[breaks - 1], kind="stable")[::-1][: BAD_RUNS - 1]
        breaks = np.sort(breaks[widest])
    return tuple(
        Bad(int(series.steps[p[0]]), int(series.steps[p[-1]]), len(p), tuple(dict.fromkeys(map(series.kind, p))))
        for p in np.split(index, breaks)
    )


def panel_of(evidence: Evidence, many: Sequence[Series], limit: int, window: tuple[int, int] | None = None) -> Panel:
    """One panel of series that share a value axis, within a window of steps."""
    lines: list[Line] = []
    bad: list[Bad] = []
    for series in many:
        for attempt, part in [*redone(evidence, series), (None, series)]:
            seen = part if window is None else part.where((part.steps >= window[0]) & (part.steps <= window[1]))
            lines.append(line_of(seen, limit, attempt))
            bad += bad_of(seen)
    return Panel(tuple(lines), tuple(bad), _spans_decades(lines) and all(s.name not in _LINEAR for s in many))


def _share_axis(many: Sequence[Series]) -> bool:
    """Whether no series would be flattened by the others: their ranges overlap, or none is narrow beside the whole."""
    spans = [(float(s.good.values.min()), float(s.good.values.max())) for s in many if len(s.good)]
    if len(spans) < 2:
        return True
    low, high = min(a for a, _ in spans), max(b for _, b in spans)
    disjoint = max(a for a, _ in spans) > min(b for _, b in spans)
    return not (disjoint and min(b - a for a, b in spans) < 0.1 * (high - low))


def _spans_decades(lines: Iterable[Line]) -> bool:
    """Whether the values span more than three decades and a log axis can show (nearly) all of them."""
    values = np.concatenate([line.values for line in lines] or [np.empty(0)])
    positive = values[values > 0]
    if not len(positive) or bool((values < 0).any()) or len(positive) < 0.9 * len(values):
        return False
    return bool(positive.max() > 1e3 * positive.min())


def _boundaries(series: Series) -> tuple[int, ...]:
    """Steps at which a later attempt takes over."""
    index = np.flatnonzero(np.diff(series.attempts) != 0) + 1
    return tuple(int(s) for s in series.steps[index][:40])


def bands_of(findings: Sequence[Verdict], primary: Verdict | None) -> tuple[Band, ...]:
    """The onset interval of the primary case and those of the other alarms."""
    return tuple(
        Band(v.onset_after, v.onset, v.rule.id, v is primary)
        for v in findings
        if v.onset is not None and (v is primary or v.alarm)
    )


def timeline(
    evidence: Evidence, findings: Sequence[Verdict], primary: Verdict | None, points: int = TIMELINE_POINTS
) -> tuple[Chart, ...]:
    """Loss, gradient norm, learning rate and loss scale above each other; one chart per step unit.

    Where none of them is logged, the first four series of the record stand in.
    """
    groups = [[s for phase, name in panel if (s := evidence.series(name, phase)) is not None] for panel in _PANELS]
    groups = [g for g in groups if g]
    if not groups:
        phases: tuple[Phase, ...] = ("train", "eval", "test")
        found = [evidence.series(name, phase) for phase in phases for name in evidence.names(phase)]
        groups = [[s] for s in found if s is not None][:4]
    groups = [g for group in groups for g in ([group] if _share_axis(group) else [[s] for s in group])]
    by_unit: dict[str, list[list[Series]]] = {}
    for group in groups:
        for unit in dict.fromkeys(s.step_unit for s in group):
            by_unit.setdefault(unit, []).append([s for s in group if s.step_unit == unit])
    bands = bands_of(findings, primary)
    return tuple(
        Chart(tuple(panel_of(evidence, g, points) for g in panels), unit, bands, _boundaries(panels[0][0]))
        for unit, panels in by_unit.items()
    )


def zooms(evidence: Evidence, verdict: Verdict, points: int = ZOOM_POINTS) -> tuple[Chart, ...]:
    """For each series that the hits of a verdict name: the points around the onset."""
    named = dict.fromkeys(h.series for holding in verdict.holdings for h in holding.hits if h.series)
    charts = []
    for name in named:
        series = _named(evidence, name)
        if series is None or len(series) < 2:
            continue
        hits = [h for holding in verdict.holdings for h in holding.hits if h.series == name and h.step is not None]
        window = _window(series, verdict, [h.step for h in hits if h.step is not None])
        panel = panel_of(evidence, [series], points, window)
        marks = [
            Mark(label(series), h.step, h.value)
            for h in hits
            if h.step is not None and h.value is not None and np.isfinite(h.value)
        ]
        edges = tuple(step for step in _boundaries(series) if window[0] <= step <= window[1])
        charts.append(Chart((panel,), series.step_unit, bands_of([verdict], verdict), edges, tuple(marks[:40])))
        if len(charts) == CHARTS_PER_FINDING:
            break
    return tuple(charts)


def _named(evidence: Evidence, name: str) -> Series | None:
    """The series that a hit names, its phase in front unless that is train; other slashes belong to the name."""
    phases: dict[str, Phase] = {"eval": "eval", "test": "test"}
    first, _, rest = name.partition("/")
    found = evidence.series(rest, phases[first]) if first in phases else None
    return found or evidence.series(name)


def _window(series: Series, verdict: Verdict, hits: Sequence[int]) -> tuple[int, int]:
    """First and last step of the zoom: ZOOM_SIDE logged points either side of the onset and of the first hits here."""
    anchors = [s for s in (verdict.onset_after, verdict.onset) if s is not None] + sorted(hits)[:3]
    if not anchors:
        return int(series.steps[0]), int(series.steps[-1])
    low = max(0, int(np.searchsorted(series.steps, min(anchors))) - ZOOM_SIDE)
    high = min(len(series) - 1, int(np.searchsorted(series.steps, max(anchors), side="right")) + ZOOM_SIDE)
    return int(series.steps[low]), int(series.steps[high])
