"""The series of two runs drawn over each other, with the step at which they part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gradforensics.diagnosis.two_runs.contrast import Contrast
from gradforensics.diagnosis.two_runs.partings import Parting
from gradforensics.report.charts import Band, Chart, Panel, bad_of, line_of
from gradforensics.tables import Evidence, Series, StepUnit

POINTS = 600  # of each line
_PANELS = 4
_FIRST = ("loss", "eval/loss", "grad_norm", "lr")
_DECADES = 1e3  # a span of values beyond which an axis is logarithmic
_MARK = "A ≠ B"


def overlay(here: Evidence, there: Evidence, found: Contrast) -> tuple[Chart, ...]:
    """One chart for each unit of steps: the shared series, loss first, A and B in each panel."""
    drawn = [one for one in found.partings if one.course != "not_judged" and one.points > 1]
    ranked = sorted(drawn, key=lambda one: _FIRST.index(one.label) if one.label in _FIRST else len(_FIRST))
    units: dict[StepUnit, list[Parting]] = {}
    for one in ranked[:_PANELS]:
        units.setdefault(one.unit, []).append(one)
    return tuple(
        Chart(tuple(_panel(here, there, one) for one in those), unit, "two_runs", _bands(found, unit))
        for unit, those in units.items()
    )


def _bands(found: Contrast, unit: str) -> tuple[Band, ...]:
    """The step at which the runs part: the first difference after equal points, or that beyond the noise."""
    result = found.result
    if result is None or result.unit != unit:
        return ()
    step = result.step if result.course == "parts" else result.beyond
    return () if step is None else (Band(result.until, step, _MARK, primary=False),)


def _panel(here: Evidence, there: Evidence, one: Parting) -> Panel:
    pair = [(letter, evidence.series(one.name, one.phase)) for letter, evidence in (("A", here), ("B", there))]
    known = [(letter, series) for letter, series in pair if series is not None]
    lines = tuple(replace(line_of(series, POINTS), name=f"{letter}: {one.label}") for letter, series in known)
    bad = tuple(stretch for _, series in known for stretch in bad_of(series))
    return Panel(lines, bad, not one.scheduled and _spans_decades([series for _, series in known]))


def _spans_decades(many: Sequence[Series]) -> bool:
    """Whether a log axis shows all values, and is needed."""
    values = [series.good.values for series in many if len(series.good)]
    low, high = min((float(v.min()) for v in values), default=0.0), max((float(v.max()) for v in values), default=0.0)
    return low > 0 and high > _DECADES * low
