"""The timeline of a run: its known series on one step axis, whole and around the onset. Selection; no judging."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gradforensics.diagnosis.judge import Verdict
from gradforensics.report.charts import (
    LINE_POINTS,
    ZOOM_POINTS,
    Chart,
    Lane,
    LaneName,
    bands_of,
    beside,
    boundaries,
    hits_of,
    marks_of,
    named,
    panel_of,
    unit_of,
    window_of,
)
from gradforensics.tables import Evidence, Phase, Series, StepUnit

TIMELINE_POINTS = 3000  # in all lines of a run's timeline together
LANE_MARKS = 200  # checkpoints or evaluations that a chart marks; of more, as many evenly chosen ones
NAMED_BESIDES = 2  # panels of series that only the leading case names
_SAME = 0.7  # a zoom onto more than this share of the whole is left out
_PHASES: tuple[Phase, ...] = ("train", "eval", "test")

# (panel, its series as (phase, name)); in this order, where logged.
_PANELS: tuple[tuple[tuple[Phase, str], ...], ...] = (
    (("train", "loss"), ("eval", "loss")),
    (("train", "grad_norm"),),
    (("train", "lr"),),
    (("train", "loss_scale"),),
    (("train", "memory_allocated"), ("train", "memory_reserved")),
    (("train", "memory_host"),),
)


def timeline(
    evidence: Evidence,
    findings: Sequence[Verdict],
    primary: Verdict | None,
    points: int = TIMELINE_POINTS,
    last_good: str | None = None,
) -> tuple[Chart, ...]:
    """Loss, gradient norm, learning rate, loss scale and memory above each other; one chart per step unit.

    Where none of them is logged, the first four series of the record stand in; what was logged at one step is not drawn
    unless a finding speaks of it. What the leading case (the primary one, else the first finding) names besides stands
    below. The onset of the primary case gets a chart of its own where that is a part of the whole. points: of all lines
    of the whole; last_good: the path of the last good checkpoint.
    """
    lead = primary or next((v for v in findings if v.onset is not None), None)
    groups = _groups(evidence)
    groups += [[s] for s in _named_besides(evidence, lead, groups)]
    limit = min(LINE_POINTS, points // max(1, sum(map(len, groups))))
    by_unit: dict[StepUnit, list[list[Series]]] = {}
    for group in groups:
        for unit in dict.fromkeys(s.step_unit for s in group):
            by_unit.setdefault(unit, []).append([s for s in group if s.step_unit == unit])
    units = {id(v): unit_of(evidence, v) or next(iter(by_unit), None) for v in findings}
    charts: list[Chart] = []
    for unit, panels in by_unit.items():
        seen = [v for v in findings if units[id(v)] == unit]
        main = next((v for v in seen if v is lead and v.onset is not None), None)
        whole = _span(panels)
        if whole[0] == whole[1] and not seen:  # a single step: the table of the series tells it better
            continue
        charts.append(_chart(evidence, panels, whole, limit, seen, main, last_good))
        if main is None or main is not primary:
            continue
        window = window_of(panels[0][0], main, [h.step for h in hits_of(main)])
        if window[1] - window[0] < _SAME * (whole[1] - whole[0]):
            charts.append(_chart(evidence, panels, window, min(limit, ZOOM_POINTS), seen, main, last_good, around=True))
    return tuple(charts)


def _groups(evidence: Evidence) -> list[list[Series]]:
    """The series of the timeline, those in one list that share a panel."""
    groups = [[s for phase, name in panel if (s := evidence.series(name, phase)) is not None] for panel in _PANELS]
    groups = [g for g in groups if g]
    if not groups:
        found = [evidence.series(name, phase) for phase in _PHASES for name in evidence.names(phase)]
        groups = [[s] for s in found if s is not None][:4]
    return [g for group in groups for g in ([group] if _share_axis(group) else [[s] for s in group])]


def _named_besides(evidence: Evidence, lead: Verdict | None, groups: Sequence[Sequence[Series]]) -> list[Series]:
    """The first series that the hits of the leading case name and that no panel shows yet."""
    shown = {(s.phase, s.name) for group in groups for s in group}
    found = {}
    for name in dict.fromkeys(h.series for h in hits_of(lead) if h.series) if lead is not None else ():
        series = named(evidence, name)
        if series is not None and len(series) > 1 and (series.phase, series.name) not in shown:
            found[series.phase, series.name] = series
    return list(found.values())[:NAMED_BESIDES]


def _share_axis(many: Sequence[Series]) -> bool:
    """Whether no series would be flattened by the others: their ranges overlap, or none is narrow beside the whole."""
    spans = [(float(s.good.values.min()), float(s.good.values.max())) for s in many if len(s.good)]
    if len(spans) < 2:
        return True
    low, high = min(a for a, _ in spans), max(b for _, b in spans)
    disjoint = max(a for a, _ in spans) > min(b for _, b in spans)
    return not (disjoint and min(b - a for a, b in spans) < 0.1 * (high - low))


def _span(panels: Sequence[Sequence[Series]]) -> tuple[int, int]:
    ends = [int(s.steps[i]) for group in panels for s in group if len(s) for i in (0, -1)]
    return min(ends, default=0), max(ends, default=0)


def _chart(
    evidence: Evidence,
    panels: Sequence[Sequence[Series]],
    window: tuple[int, int],
    limit: int,
    findings: Sequence[Verdict],
    primary: Verdict | None,
    last_good: str | None,
    *,
    around: bool = False,
) -> Chart:
    """The whole, or all panels that have a point around the onset; there the values that hits name are marked."""
    onset = None if primary is None else primary.onset
    drawn = [panel_of(evidence, group, limit, window if around else None, onset) for group in panels]
    unit = panels[0][0].step_unit
    reach = beside(window, [onset, *(_checkpoint_steps(evidence, last_good)[0] if unit == "step" else ())])
    window = min(window[0], *reach) if reach else window[0], max(window[1], *reach) if reach else window[1]
    return Chart(
        tuple(p for p in drawn if not around or p.bad or any(len(line.steps) for line in p.lines)),
        unit,
        "onset" if around else "whole",
        bands_of(findings, primary),
        boundaries(panels[0][0], window),
        tuple(m for group in panels for s in group for m in marks_of(s, hits_of(primary)))
        if around and primary is not None
        else (),
        _lanes(evidence, unit, last_good, window),
        reach,
    )


def _checkpoint_steps(evidence: Evidence, last_good: str | None) -> tuple[list[int], int | None]:
    """The steps of the checkpoints, and that of the last good one."""
    table = evidence.table("checkpoints")
    if table is None:
        return [], None
    known = table.filter(table["step"].is_not_null())
    good = known.filter(known["path"] == (last_good or ""))["step"].to_list()
    return known["step"].unique().to_list(), good[0] if good else None


def _lanes(evidence: Evidence, unit: StepUnit, last_good: str | None, window: tuple[int, int]) -> tuple[Lane, ...]:
    """The checkpoints (which count optimizer steps) and evaluations within a window."""
    lanes = []
    steps, good = _checkpoint_steps(evidence, last_good)
    if unit == "step":
        lanes.append(_lane("checkpoints", np.array(steps, dtype=np.int64), window, good))
    series = [s for name in evidence.names("eval") if (s := evidence.series(name, "eval")) and s.step_unit == unit]
    if series:
        lanes.append(_lane("evaluations", np.unique(np.concatenate([s.steps for s in series])), window))
    return tuple(lane for lane in lanes if lane.total)


def _lane(name: LaneName, steps: np.ndarray, window: tuple[int, int], good: int | None = None) -> Lane:
    seen = np.sort(steps[(steps >= window[0]) & (steps <= window[1])])
    chosen = seen if len(seen) <= LANE_MARKS else seen[np.linspace(0, len(seen) - 1, LANE_MARKS).astype(int)]
    inside = good is not None and window[0] <= good <= window[1]
    return Lane(name, tuple(chosen.tolist()), len(seen), good if inside else None)
