"""Checks on fp16 loss scaling."""

from __future__ import annotations

import math

import numpy as np

from gradforensics.diagnosis.vocabulary import Answer, Check, Hit, Missing, check, hit_at
from gradforensics.tables import Evidence, Series

_REST = 10  # logged points without a cut that end the opening search


def _search_end(scale: Series, floor: float = 0.0) -> int:
    """Index of the first point after the opening search, in which the scale starts high and is halved until it fits.

    0 where the scale was not cut in its beginning, and where the cuts led below `floor` without a rest: no search.
    """
    change = np.diff(scale.values)
    end = 0
    for i in np.flatnonzero(change < 0).tolist():
        if i - end > _REST or (change[:i] > 0).any():
            break
        end = i + 1
    return 0 if float(scale.values[end]) < floor else end


@check(needs=["series:loss_scale:points>=10"], facts=["lowest", "from_scale", "backoffs"])
def loss_scale_collapsed(evidence: Evidence, *, floor: float, backoffs: int) -> Answer:
    """The loss scale falls below `floor`, or is halved `backoffs` times in a row after its opening search (D33)."""
    scale = evidence.series("loss_scale")
    if scale is None or len(scale.good) < 10:
        return Missing("series:loss_scale:points>=10")
    scale = scale.good
    settled = _search_end(scale, floor)
    values, steps = scale.values[settled:], scale.steps[settled:]
    if len(values) < 2 or float(values.max()) <= 0:
        return []
    below = np.flatnonzero(values < floor)
    pinned = np.flatnonzero(values <= floor)  # DeepSpeed's scale stops at 1 and overflows there for ever
    if not len(below) and len(pinned) >= 3 and float(values.max()) >= floor * 2**backoffs and values[-1] <= floor:
        below = pinned
    end = int(below[0]) if len(below) else _fall(values, steps, backoffs)
    if end is None:
        return []
    first = _fall_begins(values, end)
    top = float(values[max(0, first - 1)])
    lowest = float(values[end:].min())
    halvings = round(math.log2(top / lowest)) if lowest > 0 else None
    return [hit_at(scale, settled + first, lowest=lowest, from_scale=top, backoffs=halvings)]


def _fall_begins(values: np.ndarray, end: int) -> int:
    """Index of the first cut of the unbroken fall that holds `end`: no raise and no rest of _REST points in between."""
    change = np.diff(values[: end + 1])
    start = end
    for cut in (np.flatnonzero(change < 0) + 1)[::-1].tolist():
        if start - cut > _REST or (change[cut:start] > 0).any():
            break
        start = cut
    return start


def _fall(values: np.ndarray, steps: np.ndarray, backoffs: int) -> int | None:
    """Index at which the scale had been halved `backoffs` times within twice as many steps, or None."""
    since = np.minimum(np.searchsorted(steps, steps - 2 * backoffs), np.maximum(np.arange(len(steps)) - 1, 0))
    fallen = np.flatnonzero((values > 0) & (values[since] >= values * 2.0**backoffs))
    return int(fallen[0]) if len(fallen) else None


@check(needs=["series:loss_scale:points>=50"], facts=["count", "rate", "steps"])
def backoffs_unprovoked(evidence: Evidence, *, rate: float, least: int, grace: int) -> Answer:
    """The loss scale is cut again and again although it had not just been raised.

    Then gradients leave the range of fp16 by themselves: a healthy scaler backs off only in its opening search and
    right after it doubled the scale (within `grace` logged points). rate: cuts per step that count; least: how many
    there must be.
    """
    scale = evidence.series("loss_scale")
    if scale is None or len(scale.good) < 50:
        return Missing("series:loss_scale:points>=50")
    scale = scale.good
    change = np.sign(np.diff(scale.values))
    settled = _search_end(scale)
    cuts = [int(i) for i in np.flatnonzero(change < 0) if i >= settled]
    unprovoked = [i + 1 for i in cuts if not (change[max(0, i - grace) : i] > 0).any()]
    if scale.step_unit != "step":
        return Missing(f"series:loss_scale over optimizer steps (this log counts {scale.step_unit}s)")
    steps = int(scale.steps[-1] - scale.steps[settled])
    # in its balance a scale is raised as often as it is cut, whatever its interval
    raised = int((change[settled:] > 0).sum())
    if len(cuts) - raised < least and len(unprovoked) <= 2 * raised:
        return []
    if len(unprovoked) < least or steps <= 0 or len(unprovoked) / steps < rate:
        return []
    return [hit_at(scale, i, count=len(unprovoked), rate=len(unprovoked) / steps, steps=steps) for i in unprovoked[:20]]


@check(needs=["events:console"], facts=["count", "rate", "steps"])
def overflow_lines(evidence: Evidence, *, rate: float, least: int, search: float, opening: float) -> Answer:
    """The console names more than `rate` skipped steps per step for overflow, `least` of them at the least.

    Left out are the opening search (the first lines, each halving the scale of the one before, down to `search`; where
    no scale is named, those in the first `opening` of the run) and overflows right after the scale had been raised.
    """
    events = evidence.events_of("overflow")
    if evidence.steps is None:
        return Missing("series:loss")
    span = evidence.steps[1] - evidence.steps[0]
    unprovoked, last, searching, attempt = [], None, True, None
    ranks = sorted({e.rank for e in events if e.rank is not None})
    for event in (e for e in events if e.rank is None or e.rank == ranks[0]):  # every rank prints the same overflow
        if event.attempt != attempt:
            attempt, last, searching = event.attempt, None, True
        was, to = event.data.get("from"), event.data.get("to")
        if was is not None and to is None:  # DeepSpeed's hysteresis: the step is skipped, the scale stays
            continue
        raised = was is not None and last is not None and was > last
        since = 0 if event.step is None else event.step - evidence.steps[0]
        begins = since <= opening * span if to is None else to >= search
        searching = searching and not raised and begins
        if not searching and not raised:
            unprovoked.append(event)
        last = to if to is not None else last
    if len(unprovoked) < least or span <= 0 or len(unprovoked) / span < rate:
        return []
    facts = {"count": len(unprovoked), "rate": len(unprovoked) / span, "steps": span}
    return [Hit(e.step, source=e.source, line=e.line, facts=facts) for e in unprovoked[:20]]


@check(needs=[], facts=["precision"])
def pure_half_precision(evidence: Evidence) -> Answer:
    """The settings say fp16 for weights and gradients alike, without a loss scale.

    bf16 and fp32 runs are acquitted: they have no fp16 range to leave. Mixed fp16 is judged by its loss scale only.
    """
    precision = str(evidence.setting("precision") or "").lower()
    if precision in ("16-true", "fp16-true", "float16-true", "pure_fp16"):
        return [] if evidence.series("loss_scale") else _hit(precision)
    if evidence.setting("bf16") is True or precision.startswith(("bf16", "32", "64", "fp32", "float32", "bfloat16")):
        return []
    if evidence.setting("fp16") is True or precision.startswith(("16", "fp16", "float16")):
        return Missing("series:loss_scale")
    if evidence.setting("fp16") is False and evidence.setting("bf16") is False:
        return []
    return Missing("settings:precision")


def _hit(precision: str) -> Answer:
    return [Hit(None, facts={"precision": precision})]


CHECKS: tuple[Check, ...] = (
    loss_scale_collapsed,
    backoffs_unprovoked,
    overflow_lines,
    pure_half_precision,
)
