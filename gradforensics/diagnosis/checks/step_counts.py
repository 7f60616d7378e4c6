"""Checks on what the parts of a checkpoint counted: steps that a loss scaler skipped, an optimizer that began anew."""

from __future__ import annotations

import math
from collections.abc import Iterator

from gradforensics import checkpoint_signals as cs
from gradforensics.diagnosis.checks.precision import trains_in_fp16
from gradforensics.diagnosis.resumes import resumes
from gradforensics.diagnosis.vocabulary import Answer, Check, Fact, Hit, Missing, check
from gradforensics.step_counters import Counters, counters, counts_updates, most_skipped, neighbours
from gradforensics.tables import Evidence

_NO_SCALER = "a checkpoint with a loss scaler, the optimizer's step counter and the step of the run"
_NO_PAIR = "two checkpoints of one optimizer with its step counter and the step of the run"


def _skipped(one: Counters) -> int | None:
    """Steps that the loss scaler skipped up to a checkpoint: counted by DeepSpeed, else what the optimizer lacks."""
    if one.scaler is None or one.step is None:
        return None
    return one.skipped if one.skipped is not None else one.behind


@check(needs=["checkpoints", "facts"], facts=["count", "rate", "steps", "made", "scale"])
def optimizer_skipped_steps(
    evidence: Evidence, *, rate: float, least: int, opening: int, highest: float, span: int
) -> Answer:
    """The optimizer has made fewer steps than the run: its loss scaler skipped the others (detector D27).

    rate: skipped steps per step that count; least: how many there must be. Left out are `opening` skips (halvings of
    the search with which a scale begins) before the first checkpoint, and one skip for every interval of good steps
    after which the scale is tried upwards. highest: largest scale that a scaler may begin with: what exceeds the skips
    that lead from it to the scale of the checkpoint was not skipped by the scaler. span: steps that the checkpoints
    must cover to acquit.
    """
    found = counters(evidence) or []
    told = [one for one in found if _skipped(one) is not None]
    if not told:
        return Missing(_NO_SCALER)
    if counts_updates(evidence, found) is not True:
        return Missing("whether the step of the checkpoints counts optimizer steps or micro-batches")
    doubt = False
    for before, after in zip([None, *told], told, strict=False):
        count, first = _skipped(after) or 0, 0 if before is None else _skipped(before) or 0
        since = 0 if before is None else before.step or 0
        steps, fresh = (after.step or 0) - since, count - first
        good = max(steps - fresh, 0)
        interval = after.scaler.interval if after.scaler is not None else None
        tried = 0 if not interval else int(good // interval) + 1
        beyond = fresh - tried - (opening if before is None else 0)
        if steps <= 0 or beyond < least or beyond < rate * steps:
            continue
        if after.skipped is None and count > most_skipped(after, highest) + 1:
            doubt = True
            continue
        return [_skips(after, before, beyond, steps)]
    if doubt:
        return Missing("skips that explain how far the optimizer is behind (its loss scale stands too high for them)")
    last = told[-1].step or 0
    return [] if last >= span else Missing(f"a checkpoint with a loss scaler after {span} steps or more")


def _skips(after: Counters, before: Counters | None, beyond: int, steps: int) -> Hit:
    scale = after.scaler.scale if after.scaler is not None else None
    facts: dict[str, Fact] = {
        "count": beyond, "steps": steps, "rate": beyond / steps, "made": after.made, "scale": scale,
    }  # fmt: skip
    return Hit(
        after.step, None if before is None else before.step, "checkpoints", value=scale, source=after.saved.source,
        facts=facts,
    )  # fmt: skip


@check(needs=["checkpoints", "facts"], facts=["lowest", "from_scale", "backoffs"])
def saved_scale_below_floor(evidence: Evidence, *, floor: float, backoffs: int) -> Answer:
    """A checkpoint's loss scale stands below `floor`, where gradients overflow even unscaled (detectors D27, D33).

    It must have been halved `backoffs` times at least (a scaler may begin at 1): seen in an earlier checkpoint or in
    the log, or told by the steps that the optimizer lacks.
    """
    found = [one for one in counters(evidence) or [] if one.scaler is not None]
    if not found:
        return Missing("a checkpoint with a loss scaler")
    logged = evidence.series("loss_scale")
    top = float(logged.good.values.max()) if logged is not None and len(logged.good) else 0.0
    known = counts_updates(evidence, counters(evidence) or []) is True
    for index, one in enumerate(found):
        assert one.scaler is not None
        scale = one.scaler.scale
        before = found[index - 1].step if index else None
        if scale < floor:
            begun = top if top >= floor * 2.0**backoffs or not known else _began_at(one)
            if begun >= floor * 2.0**backoffs:
                facts: dict[str, Fact] = {"lowest": scale, "from_scale": begun, "backoffs": one.behind}
                return [Hit(one.step, before, "checkpoints", value=scale, source=one.saved.source, facts=facts)]
        top = max(top, scale)
    return []


def _began_at(one: Counters) -> float:
    """The scale from which the skipped steps of a checkpoint led down to the one that it holds, at the least."""
    scaler, skips = one.scaler, _skipped(one)
    if scaler is None or scaler.backoff is None or scaler.growth is None or not scaler.interval or not skips:
        return 0.0
    raised = (one.made or 0) // scaler.interval
    return math.ldexp(scaler.scale, round(-skips * math.log2(scaler.backoff) - raised * math.log2(scaler.growth)))


def _neighbours(evidence: Evidence) -> Iterator[tuple[Counters, Counters]]:
    """Neighbours of one training, as far as can be told."""
    return (
        (before, after)
        for before, after in neighbours(counters(evidence) or [])
        if not cs.apart(evidence, before.saved.path, after.saved.path)
    )


# -- resumes ----------------------------------------------------------------------------------------------------------


def _explained(one: Counters, highest: float) -> bool:
    """Whether a loss scaler can have skipped all the steps that the optimizer lacks."""
    return one.scaler is not None and (one.behind or 0) <= most_skipped(one, highest)


def _may_have_skipped(evidence: Evidence, one: Counters) -> bool:
    """Whether a loss scaler of which the checkpoint tells nothing may have skipped steps."""
    return one.scaler is None and (trains_in_fp16(evidence) or evidence.series("loss_scale") is not None)


def _same_moments(evidence: Evidence, before: Counters, after: Counters) -> bool:
    """Whether the first moments of two checkpoints are the same bytes: no step was made in between."""
    first, last = (
        {key: row["fingerprint"] for key, row in cs.states_of(evidence, "exp_avg", one.saved.path).items()}
        for one in (before, after)
    )
    return bool(first) and first == last


@check(needs=["checkpoints", "groups"], facts=["made", "at", "before", "count"])
def optimizer_counter_restarts(evidence: Evidence, *, least: int, highest: float) -> Answer:
    """Between two checkpoints the optimizer's step counter began anew, and that of the run went on (detector D27).

    The earlier checkpoint's counters agree, so both count one thing. The optimizer of the later one made no more steps
    than the run did in between: it is a new one, whose moments began empty. least: steps that the earlier optimizer had
    made; highest: as in optimizer_skipped_steps.
    """
    judged = False
    for before, after in _neighbours(evidence):
        if before.step is None or after.step is None or not before.made or after.made is None:
            continue
        if before.behind != 0 or before.made < least:
            continue
        if after.made >= before.made and (_may_have_skipped(evidence, after) or _same_moments(evidence, before, after)):
            continue
        judged = True
        if after.made > after.step - before.step or _explained(after, highest):
            continue
        begun = after.step - after.made
        facts: dict[str, Fact] = {"made": after.made, "at": after.step, "before": begun, "count": before.made}
        return [Hit(begun + 1, begun, "checkpoints", value=after.made, source=after.saved.source, facts=facts)]
    return [] if judged else Missing(_NO_PAIR)


@check(needs=["checkpoints", "groups"], facts=["made", "at", "before", "count"])
def optimizer_counter_behind(evidence: Evidence, *, least: int, highest: float, said: str) -> Answer:
    """The optimizer of the first checkpoint has made fewer steps than the run.

    It was created in between, without the state of the one before. A loss scaler must not explain it by skipped steps.
    least: steps that are missing; highest: as in optimizer_skipped_steps. said: "yes" asks for a resume in the log
    at just that step; "no" for its absence, and for a trainer whose step counts optimizer steps.
    """
    told = [one for one in counters(evidence) or [] if one.behind is not None]
    found = [one for one in told if one.trainer or said == "yes"]
    if not found:
        return Missing("a checkpoint of a trainer that counts optimizer steps, with the optimizer's step counter")
    first = found[0]
    if first.scaler is None and trains_in_fp16(evidence) and first.skipped is None:
        return Missing("the steps that the loss scaler skipped")
    behind = (first.behind or 0) - (first.skipped or 0)
    if behind < least or not first.made or (first.skipped is None and _explained(first, highest)):
        return []
    named = any(abs(resume.last - behind) <= 1 for resume in resumes(evidence))
    if named != (said == "yes"):
        return []
    facts: dict[str, Fact] = {"made": first.made, "at": first.step, "before": behind, "count": behind}
    return [Hit(behind + 1, behind, "checkpoints", value=first.made, source=first.saved.source, facts=facts)]


@check(needs=["checkpoints", "facts"], facts=["counted", "at", "before", "count"])
def scheduler_counter_restarts(evidence: Evidence, *, least: int) -> Answer:
    """Between two checkpoints the scheduler's counter began anew before its end, and that of the run went on.

    In the earlier one the scheduler had been stepped once per step of the run. One that had come to its end, or that
    another one of another length follows, was the schedule of a stage. least: steps that it had made.
    """
    judged = False
    for before, after in _neighbours(evidence):
        old, new = before.scheduler, after.scheduler
        if before.step is None or after.step is None or old is None or new is None or old.plateau or new.plateau:
            continue
        if max(before.schedulers, after.schedulers) > 1 or old.counted < least or abs(old.counted - before.step) > 1:
            continue
        if new.counted == old.counted:  # begun anew, or not stepped any more
            continue
        judged = True
        if new.counted > after.step - before.step or after.scaler is not None:
            continue
        begun, planned = after.step - new.counted, evidence.number("max_steps")
        length = planned if old.length is None else old.length
        if length is None or old.length != new.length:
            return Missing("the length of the schedule that began anew")
        if begun >= length:
            continue
        facts: dict[str, Fact] = {"counted": new.counted, "at": after.step, "before": begun, "count": old.counted}
        return [Hit(begun + 1, begun, "checkpoints", value=new.counted, source=after.saved.source, facts=facts)]
    return [] if judged else Missing("two checkpoints with a scheduler that is stepped with the optimizer")


CHECKS: tuple[Check, ...] = (
    optimizer_skipped_steps,
    saved_scale_below_floor,
    optimizer_counter_restarts,
    optimizer_counter_behind,
    scheduler_counter_restarts,
)
