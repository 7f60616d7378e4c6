"""Checks on fp16 loss scaling: what the scale does, and what the framework says of it."""

from __future__ import annotations

import itertools
import math

import numpy as np

from gradforensics.diagnosis.checks.precision import known_precision, trains_in_bf16, trains_in_fp16
from gradforensics.diagnosis.vocabulary import Answer, Check, Hit, Missing, check, hit_at
from gradforensics.tables import Evidence, Series

_HALVINGS = 32  # from 2^32, the highest start in use, down to 1
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
    judged = False
    for part in evidence.attempts("loss_scale"):  # every attempt may search anew
        scale = part.good
        if len(scale) < 10:
            continue
        judged = True
        if hit := _collapse(scale, floor, backoffs):
            return [hit]
    return [] if judged else Missing("series:loss_scale:points>=10")


def _collapse(scale: Series, floor: float, backoffs: int) -> Hit | None:
    settled = _search_end(scale, floor)
    values, steps = scale.values[settled:], scale.steps[settled:]
    if len(values) < 2 or float(values.max()) <= 0:
        return None
    below = np.flatnonzero(values < floor)
    pinned = np.flatnonzero(values <= floor)  # DeepSpeed's scale stops at 1 and overflows there for ever
    if not len(below) and len(pinned) >= 3 and float(values.max()) >= floor * 2**backoffs and values[-1] <= floor:
        below = pinned
    end = int(below[0]) if len(below) else _fall(values, steps, backoffs)
    if end is None:
        return None
    first = _fall_begins(values, end)
    top = float(values[max(0, first - 1)])
    lowest = float(values[end:].min())
    halvings = round(math.log2(top / lowest)) if lowest > 0 else None
    return hit_at(scale, settled + first, lowest=lowest, from_scale=top, backoffs=halvings)


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
    judged, wrong_unit = False, ""
    for part in evidence.attempts("loss_scale"):
        scale = part.good
        if len(scale) < 50:
            continue
        if scale.step_unit != "step":
            wrong_unit = f"series:loss_scale over optimizer steps (this log counts {scale.step_unit}s)"
            continue
        judged = True
        if hits := _unprovoked(scale, rate, least, grace):
            return hits
    return [] if judged else Missing(wrong_unit or "series:loss_scale:points>=50")


def _unprovoked(scale: Series, rate: float, least: int, grace: int) -> list[Hit]:
    change = np.sign(np.diff(scale.values))
    settled = _search_end(scale)
    cuts = [int(i) for i in np.flatnonzero(change < 0) if i >= settled]
    unprovoked = [i + 1 for i in cuts if not (change[max(0, i - grace) : i] > 0).any()]
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


@check(needs=["series:skipped_steps:points>=20"], facts=["count", "rate", "steps"])
def skipped_steps_counted(evidence: Evidence, *, rate: float, least: int, opening: float) -> Answer:
    """The log's own counter tells of more than `rate` skipped steps per step, `least` of them at the least.

    A counter that never falls counts from the start of an attempt (DeepSpeed, the recorder); one that does counts anew
    in each logged interval (Megatron). Left out is the opening search: what is counted in the first `opening` of an
    attempt, and what follows with no rest of 10 points in between, up to the 32 halvings from 2^32 to 1.
    """
    total, span, first = 0.0, 0, None
    for part in evidence.attempts("skipped_steps"):
        skipped = part.good
        if len(skipped) < 2 or skipped.step_unit != "step":
            continue
        cumulative = bool((np.diff(skipped.values) >= 0).all())
        fresh = np.diff(skipped.values) if cumulative else skipped.values[1:]
        length = int(skipped.steps[-1] - skipped.steps[0])
        begins = _counted_search_end(fresh)
        late = np.flatnonzero((skipped.steps[1:] - skipped.steps[0] > opening * length) & (fresh > 0))
        late = late[late >= begins]
        total, span = total + float(fresh[late].sum()), span + length
        if len(late) and first is None:
            first = skipped, int(late[0]) + 1
    if not span:
        return Missing("series:skipped_steps over optimizer steps")
    if first is None or total < least or total / span < rate:
        return []
    return [hit_at(*first, count=int(total), rate=total / span, steps=span)]


def _counted_search_end(fresh: np.ndarray) -> int:
    """Index after the opening search, of which a counter tells only how many steps it skipped at every point."""
    end, total = 0, 0.0
    for i in np.flatnonzero(fresh > 0).tolist():
        total += float(fresh[i])
        if i - end > _REST or total > _HALVINGS:
            break
        end = i + 1
    return end


@check(needs=["events:console"], facts=["message"])
def loss_scale_at_minimum(evidence: Evidence) -> Answer:
    """The framework gave up because the loss scale was at its minimum and gradients overflowed still."""
    events = [e for e in evidence.events_of("loss_scale") if e.data.get("error") == "minimum" and "type" in e.data]
    return [Hit(e.step, source=e.source, line=e.line, facts={"message": e.text.strip()[:200]}) for e in events[:5]]


@check(needs=["events:console"], facts=["message"])
def scaler_refused(evidence: Evidence, *, error: str) -> Answer:
    """torch.amp.GradScaler raised an error.

    error: "weights" is its refusal of gradients in fp16, "order" stands for calls in a wrong order.
    """
    events = [
        e
        for e in evidence.events_of("gradscaler")
        if "type" in e.data and (e.data.get("error") == "fp16_gradients") == (error == "weights")
    ]
    return [Hit(e.step, source=e.source, line=e.line, facts={"message": e.text.strip()[:200]}) for e in events[:5]]


@check(
    needs=["series:loss_scale:points>=20", "series:grad_norm:points>=20", "settings:max_grad_norm"],
    facts=["norm", "clip", "scale", "ratio", "changes"],
)
def clipped_before_unscaling(evidence: Evidence, *, least: float, tolerance: float, points: int) -> Answer:
    """The logged gradient norm is far above the clipping threshold and follows the loss scale.

    least: multiple of max_grad_norm that its median reaches; tolerance: how far, in powers of 2, the norm may miss a
    change of the scale, in the median over all changes; points: of the norm that are compared on each side of one.
    """
    scale, norm, clip = evidence.series("loss_scale"), evidence.series("grad_norm"), evidence.number("max_grad_norm")
    if scale is None or norm is None or clip is None:
        return Missing("series:loss_scale", "series:grad_norm", "settings:max_grad_norm")
    if any(s.reader == "deepspeed-config" for s in evidence.sources):
        return Missing("a norm from clip_grad_norm_ (DeepSpeed unscales and clips in one step)")
    scale, norm = scale.good, norm.good
    level = float(np.median(norm.values)) if len(norm) else 0.0
    if clip <= 0 or level < least * clip:
        return []
    at = np.clip(np.searchsorted(scale.steps, norm.steps), 0, len(scale) - 1)
    units = np.log2(np.maximum(scale.values[at], 1e-30))
    logs = np.log2(np.maximum(norm.values, 1e-30))
    changes = np.flatnonzero(np.abs(np.diff(units)) >= 1) + 1
    misses = []
    for change in changes.tolist():
        before, after = logs[max(0, change - points) : change], logs[change : change + points]
        moved = float(np.median(units[change : change + points]) - np.median(units[max(0, change - points) : change]))
        if len(before) >= points // 2 and len(after) >= points // 2 and abs(moved) >= 1:
            misses.append(abs(float(np.median(after) - np.median(before)) - moved))
    if not misses:
        return Missing("series:loss_scale that changes")
    if float(np.median(misses)) > tolerance:
        return []
    typical = float(np.median(scale.values))
    return [hit_at(norm, 0, norm=level, clip=clip, scale=typical, ratio=level / clip, changes=len(misses))]


@check(needs=["series:loss_scale:points>=20"], facts=["before", "again", "search"])
def scaler_reset_at_resume(evidence: Evidence, *, times: float) -> Answer:
    """A resumed attempt begins with the loss scale that the first attempt began with, and has to search again.

    times: how far that lies from the scale at which the attempt before had arrived.
    """
    parts = [part.good for part in evidence.attempts("loss_scale") if len(part.good)]
    if len(parts) < 2:
        return []
    initial = float(parts[0].values[0])
    for before, after in itertools.pairwise(parts):
        known, again = before.where(before.steps < after.steps[0]).values, float(after.values[0])
        if not len(known) or known[-1] <= 0 or len(before) < _REST:
            continue
        if again == initial and max(again / known[-1], known[-1] / again) >= times:
            facts = {"before": float(known[-1]), "again": again, "search": _search_end(after)}
            return [hit_at(after, 0, facts, after=int(before.steps[-1]))]
    return []


@check(needs=[], facts=["scale"])
def static_loss_scale(evidence: Evidence) -> Answer:
    """The settings fix the loss scale of an fp16 run, so that it cannot adapt."""
    if not trains_in_fp16(evidence):
        return [] if known_precision(evidence) else Missing("settings:fp16")
    fixed = [
        s
        for s in evidence.settings or []
        if s.key == "loss_scale" and "init" not in s.name.lower() and isinstance(s.value, (int, float)) and s.value > 0
    ]
    logged = evidence.series("loss_scale")
    if not fixed or (logged is not None and len(logged.good) and float(np.ptp(logged.good.values)) > 0):
        return []
    return [Hit(None, source=fixed[0].source, line=fixed[0].line, facts={"scale": float(fixed[0].value)})]


@check(needs=["series:loss_scale"], facts=["scale"])
def scaler_in_bf16(evidence: Evidence) -> Answer:
    """A loss scale other than 1 is at work in a bf16 run, which has no use for it."""
    if not known_precision(evidence):
        return Missing("settings:precision")
    scale = evidence.series("loss_scale")
    if scale is None or not trains_in_bf16(evidence) or not len(scale.good) or float(scale.good.values.max()) <= 1:
        return []
    return [hit_at(scale.good, 0, scale=float(scale.good.values.max()))]


CHECKS: tuple[Check, ...] = (
    loss_scale_collapsed,
    backoffs_unprovoked,
    overflow_lines,
    skipped_steps_counted,
    loss_scale_at_minimum,
    scaler_refused,
    clipped_before_unscaling,
    scaler_reset_at_resume,
    static_loss_scale,
    scaler_in_bf16,
)
