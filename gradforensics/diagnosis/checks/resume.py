"""Checks on what a resume brought back: rate, step counter, optimizer, loss scaler, level of the loss (D19)."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from typing import Any

import numpy as np

from gradforensics import signals
from gradforensics.diagnosis.checks.learning_rate import rates
from gradforensics.diagnosis.checks.loss import descending_loss
from gradforensics.diagnosis.checks.schedule import restarts, schedule_begun_anew, schedule_repeats_at_resume
from gradforensics.diagnosis.resumes import Resume, named, resumes
from gradforensics.diagnosis.vocabulary import Answer, Check, Hit, Missing, check, hit_at
from gradforensics.patterns import lazy
from gradforensics.tables import Evidence, Series

_UPDATES = lazy(r"(?:^|[/_.])(?:param_)?(?:update|delta|step)_?(?:norm|rms|l2|size|ratio)s?$", re.IGNORECASE)
_NO_RESUME = "a resume in the record"


def _split(series: Series, resume: Resume) -> tuple[Series, Series]:
    """The points that the resumed launch builds on, and those from it on."""
    return series.where(series.steps <= resume.last), series.where(series.steps >= resume.step)


@check(needs=["series:loss:points>=40"], facts=["level", "initial", "first", "before", "count"])
def counters_restart_with_trained_weights(evidence: Evidence, *, fall: float, back: float, said: str) -> Answer:
    """A later launch counts its steps from the beginning, but its loss goes on at the level of the one before.

    The weights were loaded, the counters were not, and what hangs on them (schedule, optimizer) was not either. fall:
    the least improvement of the launch before, as a fraction of its first level; back: part of that improvement which
    the new launch may have lost. said: "yes" asks for a line of the log that names a resume, "no" for its absence (a
    fine-tune that starts from those weights on purpose looks the same).
    """
    parts = evidence.attempts("loss")
    if isinstance(whole := descending_loss(evidence), Missing):
        return whole
    found: list[Hit] = []
    for before, part in pairwise(parts):
        old, new = before.good, part.good
        if len(old) < 20 or len(new) < 5 or int(new.steps[0]) > int(old.steps[0]):
            continue
        initial, level = float(np.median(old.values[:3])), float(np.median(old.values[-10:]))
        noise = signals.noise_sd(old.values)
        if initial - level <= max(fall * abs(initial), 7.0 * noise):
            continue
        first = float(np.median(new.values[:3]))
        spoken = named(evidence, old, new)
        if first <= level + back * (initial - level) and spoken == (said == "yes"):
            facts: dict[str, Any] = {"level": level, "initial": initial, "first": first}
            found.append(hit_at(new, 0, facts, before=int(old.steps[-1]), count=int(new.steps[0])))
    return found


def _updates(evidence: Evidence) -> Series | Missing:
    """A logged norm of the updates."""
    names = [n for n in evidence.names("train") if _UPDATES.search(n)]
    if not names:
        return Missing("series:update_norm")
    series = evidence.series(names[0])
    return series.good if series is not None else Missing("series:update_norm")


@check(needs=["series:loss"], facts=["ratio", "first", "usual", "before"])
def updates_jump_at_resume(evidence: Evidence, *, ratio: float, within: int, points: int) -> Answer:
    """The first update after a resume is `ratio` times the later ones and those before: the moments were empty.

    Norms are taken per unit of learning rate where one is logged. within: logged points after the resume among which
    the large one lies; points: that are compared on either side.
    """
    updates = _updates(evidence)
    if isinstance(updates, Missing):
        return updates
    lr = evidence.series("lr")
    values = updates.values
    if lr is not None and len(lr.good) > 1:
        rate = np.interp(updates.steps, lr.good.steps, lr.good.values)
        values = np.divide(values, rate, out=np.full_like(values, np.nan), where=rate > 0)
    judged = 0
    for resume in resumes(evidence):
        index = int(np.searchsorted(updates.steps, resume.step))
        new, old = values[index : index + within + points], values[max(0, index - points) : index]
        old, later = old[np.isfinite(old)], new[within:][np.isfinite(new[within:])]
        near = index < len(updates) and int(updates.steps[index]) <= resume.step + 2
        if len(old) < points // 2 or len(later) < points // 2 or not near:
            continue
        judged += 1
        first = float(np.nanmax(new[:within]))
        usual, before = float(np.median(later)), float(np.median(old))
        if usual > 0 and first >= ratio * max(usual, before):
            facts: dict[str, Any] = {"ratio": first / usual, "first": float(updates.values[index])}
            later_norm = float(np.median(updates.values[index + within : index + within + points]))
            return [hit_at(updates, index, facts, usual=later_norm, before=resume.last)]
    return [] if judged else Missing(_NO_RESUME)


@check(needs=["series:loss_scale:points>=20"], facts=["was", "became", "before"])
def scaler_restarts_at_resume(evidence: Evidence, *, jump: float) -> Answer:
    """At a resume the loss scale is back at the value with which the run began, `jump` times away from the last one."""
    scale = evidence.series("loss_scale")
    if scale is None or len(scale.good) < 20:
        return Missing("series:loss_scale:points>=20")
    scale, judged = scale.good, 0
    begun = float(scale.values[0])
    for resume in resumes(evidence):
        old, new = _split(scale, resume)
        if len(old) < 5 or len(new) < 2 or float(old.values[-1]) <= 0:
            continue
        judged += 1
        was, became = float(old.values[-1]), float(new.values[0])
        factor = max(became / was, was / became) if became > 0 else 0.0
        # the search may already have halved it a few times in its first steps; it does not lead back to where it was
        near = begun / 8 <= became <= begun
        if factor >= jump and near and int(new.steps[0]) <= resume.step + 2 * max(1.0, scale.cadence):
            return [hit_at(new, 0, after=int(old.steps[-1]), was=was, became=became, before=resume.last)]
    return [] if judged else Missing(_NO_RESUME)


@check(needs=["series:lr:points>=20"], facts=["before", "fell_to", "again", "scheduler"])
def lr_restarts_at_resume(
    evidence: Evidence,
    *,
    fall: float,
    again: float,
    start: float,
    jump: float,
    tolerance: float,
    moved: float,
    points: int,
    deviation: float,
    share: float,
) -> Answer:
    """The learning rate begins anew: it falls and warms up again, or runs through its first values once more.

    The arguments are those of schedule_restarted and schedule_repeats_at_resume; deviation and share are those of
    schedule_begun_anew. A rate that goes on acquits: the scheduler was restored at every resume, marked or not.
    """
    lr = rates(evidence)
    if isinstance(lr, Missing):
        return lr
    repeated = schedule_repeats_at_resume(evidence, tolerance=tolerance, moved=moved, points=points)
    if repeated:  # hits, or what is missing
        return repeated
    anew = schedule_begun_anew(evidence, tolerance=deviation, share=share)
    if isinstance(anew, list) and anew:
        return anew
    found = restarts(lr, fall, again, start, jump)
    if len(found) > 2:
        return Missing("a schedule that does not restart regularly")
    for index, high in found[:1]:
        facts: dict[str, Any] = {"before": float(lr.values[index - 1]), "fell_to": float(lr.values[index])}
        return [hit_at(lr, index, facts, again=high, scheduler=str(evidence.setting("lr_scheduler_type") or ""))]
    return []


@check(needs=["series:loss:points>=40"], facts=["before", "after", "rise", "later"])
def loss_jumps_at_resume(
    evidence: Evidence, *, noise: float, rise: float, window: int, points: int, recovery: int
) -> Answer:
    """Right after a resume the loss lies above its level and comes back slowly.

    noise, rise: the jump in standard errors and as a fraction of the level; window: logged points
    before the resume that give the level; points: right after it that are high; recovery: after so many it must have
    lost at least half of the jump.
    """
    loss, judged = descending_loss(evidence), 0
    if isinstance(loss, Missing):
        return loss
    for resume in resumes(evidence):
        if resume.again:
            continue
        old, new = _split(loss, resume)
        if len(old) < window or len(new) < recovery:
            continue
        judged += 1
        level = float(np.median(old.values[-window:]))
        spread = max(signals.noise_sd(old.values[-4 * window :]), signals.noise_sd(new.values[points:]))
        # the first loss of a launch was computed before its first update
        opening = new.values[1 : points + 1]
        jump = float(np.median(opening)) - level
        # standard error of the difference of two medians of normal noise
        doubt = spread * math.sqrt(math.pi / 2 * (1 / points + 1 / window))
        later = float(np.median(new.values[recovery - points : recovery])) - level
        high = bool((opening > level).all())
        if high and jump > max(noise * doubt, rise * abs(level)) and later < 0.5 * jump:
            facts: dict[str, Any] = {"before": level, "after": level + jump, "rise": jump / abs(level)}
            first = int(float(new.values[0]) <= level + 0.5 * jump)
            after = int(new.steps[0]) if first else resume.last
            return [hit_at(new, first, facts, after=after, later=level + later)]
    return [] if judged else Missing(_NO_RESUME)


CHECKS: tuple[Check, ...] = (
    counters_restart_with_trained_weights,
    updates_jump_at_resume,
    scaler_restarts_at_resume,
    lr_restarts_at_resume,
    loss_jumps_at_resume,
)
