"""Checks on the warm-up of the learning rate: left out, never ended, missing where it was needed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradforensics.diagnosis.checks.learning_rate import Recipe, is_adam, rates, recipe_bound
from gradforensics.diagnosis.checks.loss import descending_loss
from gradforensics.diagnosis.checks.schedule import DECLARED, declared_and_rates, is_constant
from gradforensics.diagnosis.schedules import Schedule, declared, planned_steps
from gradforensics.diagnosis.vocabulary import Answer, Check, Missing, check, hit_at
from gradforensics.tables import Evidence


@check(needs=["series:lr:points>=10", "settings:learning_rate"], facts=["reached", "peak", "part", "warmup"])
def warmup_never_ends(evidence: Evidence, *, reach: float, done: float) -> Answer:
    """The rate rises to the last point of a run that is over, and ends below `reach` of the configured rate.

    done: part of the planned steps, or of the declared warm-up, that the record must cover to count as over.
    """
    lr, peak = rates(evidence, steps=True), evidence.number("learning_rate")
    if isinstance(lr, Missing):
        return lr
    if peak is None or peak <= 0:
        return Missing("settings:learning_rate")
    values, top = lr.values, float(lr.values.max())
    rising = values[-1] == top and bool((np.diff(values) >= 0).all()) and values[-1] > values[len(values) // 2]
    if not rising or top <= 0 or top >= reach * peak:
        return []
    plan = planned_steps(evidence)
    if plan is None and evidence.ending.kind != "completed":
        return Missing("settings:max_steps")
    if plan is not None and float(lr.steps[-1]) < done * plan[0]:
        return []  # still warming up
    schedule = declared(evidence)
    if isinstance(schedule, Schedule) and 0 < schedule.warmup < 0.5 * float(lr.steps[-1]):
        return []  # a schedule that is stepped too rarely, which is another variant
    facts: dict[str, Any] = {"reached": top, "peak": peak, "part": top / peak}
    return [hit_at(lr, 0, facts, warmup=float(lr.steps[-1]) * peak / top)]


@check(needs=DECLARED, facts=["scheduler", "warmup", "value", "part"])
def warmup_skipped(evidence: Evidence, *, high: float, points: int) -> Answer:
    """A warm-up is declared, but in its first half the rate already stands at `high` of the peak or above.

    points: how many logged points there must be in that half.
    """
    both = declared_and_rates(evidence)
    if isinstance(both, Missing):
        return both
    schedule, lr = both
    if schedule.warmup <= 1 or is_constant(schedule, lr):
        return []
    early = lr.where((lr.steps <= schedule.warmup / 2) & (lr.steps >= 0))
    if len(early) < points:
        return Missing(f"series:lr with {points} points in the first half of the warm-up")
    full = schedule.peak if schedule.shape != "inverse_sqrt" else float(lr.values.max())
    if float(early.values.min()) < high * full or early.steps[0] > schedule.warmup / 4 or early.attempts[0] > 0:
        return []
    value = float(np.median(early.values))
    return [hit_at(early, 0, scheduler=schedule.name, warmup=schedule.warmup, value=value, part=value / schedule.peak)]


_POST_NORM: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("norm_first", (False,)), ("normalize_before", (False,)), ("encoder_normalize_before", (False,)),
    ("decoder_normalize_before", (False,)), ("post_norm", (True,)), ("post_ln", (True,)), ("postln", (True,)),
    ("norm_position", ("post", "post-ln", "post_ln", "postln")),
)  # fmt: skip


def _post_norm(evidence: Evidence) -> bool:
    """Whether the settings state that layers are normalised after the residual sum."""
    stated = {s.key.rsplit(".", 1)[-1].lower(): s.value for s in evidence.settings or []}
    return any(stated.get(key) in values for key, values in _POST_NORM if key in stated)


@check(
    needs=["series:lr", "series:loss:points>=50", "settings:optim", "settings:vocab_size"],
    facts=["peak", "highest", "chance", "level", "best"],
)
def damaged_without_warmup(
    evidence: Evidence,
    *,
    high: float,
    opening: float,
    excess: float,
    park: float,
    tolerance: float,
    bound: float,
    pretrain: float,
    width: float,
    layers: str,
) -> Answer:
    """Adam starts at its full rate, and the loss lies flat near chance ever after.

    Either the first steps throw it above chance, or it ends at the unigram entropy (within `tolerance` of it). high:
    part of the peak that counts as full; opening: part of the run (three points at least) in which the loss must exceed
    `excess` x ln V; park: the last third must lie above this part of ln V. bound: a rate above so many times the
    recipe's (`pretrain` at `width`) is too high with any warm-up, and another case. layers: "post-norm" asks that the
    settings state normalisation after the residual sum, which needs the warm-up; "any" does not.
    """
    loss, lr = descending_loss(evidence), rates(evidence, steps=True)
    if isinstance(loss, Missing) or isinstance(lr, Missing):
        return loss if isinstance(loss, Missing) else lr  # type: ignore[return-value]  # one of them is Missing
    vocabulary, peak = evidence.number("vocab_size") or 0.0, float(lr.values.max())
    if vocabulary < 2:
        return Missing("settings:vocab_size")
    if layers == "post-norm" and not _post_norm(evidence):
        return []
    limit = recipe_bound(evidence, Recipe(peak, peak, math.inf, pretrain, width, 1.0))
    if not is_adam(evidence) or float(lr.values[0]) < high * peak or lr.attempts[0] > 0:
        return []
    if not isinstance(limit, Missing) and peak > bound * limit:
        return []
    chance = math.log(vocabulary)
    first = loss.values[: max(3, int(opening * len(loss)))]
    tail = float(np.median(loss.values[-(len(loss) // 3) :]))
    # a loss that is above chance before the first step was not thrown there
    thrown, entropy = first > excess * max(chance, float(first[0])), evidence.number("unigram_entropy")
    parked = entropy is not None and abs(tail / entropy - 1) <= tolerance
    if tail <= park * chance or not (parked or thrown.any()):
        return []
    facts: dict[str, Any] = {"peak": peak, "highest": float(first.max()), "chance": chance, "level": tail}
    return [hit_at(loss, int(np.argmax(thrown)) if thrown.any() else 0, facts, best=float(loss.values.min()))]


CHECKS: tuple[Check, ...] = (
    warmup_never_ends,
    warmup_skipped,
    damaged_without_warmup,
)
