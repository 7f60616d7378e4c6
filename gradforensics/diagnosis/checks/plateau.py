"""Checks on a training that has settled: flat, at a learning rate that is still high, above what could be expected."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gradforensics import signals
from gradforensics.diagnosis.checks.loss import classes, descending_loss
from gradforensics.diagnosis.vocabulary import Answer, Check, Fact, Hit, Missing, check, hit_at
from gradforensics.tables import Evidence, Series

_LEAST = 40  # points of a loss that can be called flat


@dataclass(frozen=True, slots=True)
class _Settled:
    """A flat end of the training loss: where it begins, its level, the level of the evaluation (None: none logged)."""

    loss: Series
    start: int
    level: float
    held_out: float | None
    rate: float | None

    @property
    def gap(self) -> float | None:
        """Distance of the evaluation from the training loss, as a fraction of the latter."""
        return None if self.held_out is None else abs(self.held_out - self.level) / max(abs(self.level), 1e-12)


_STILL = 0.005  # change of a loss over its last part, as a fraction, that is no progress however sure it is
_MOVES = 0.02  # and one that is, however noisy


def _settled(evidence: Evidence, share: float, errors: float, high: float) -> _Settled | Missing | None:
    """The flat end of the loss; None where it still falls (or rises), or where the learning rate had been let down."""
    return evidence.once(("settled", share, errors, high), lambda: _flat_end(evidence, share, errors, high))


def _flat_end(evidence: Evidence, share: float, errors: float, high: float) -> _Settled | Missing | None:
    loss = descending_loss(evidence)
    if isinstance(loss, Missing):
        return loss
    if len(loss) < _LEAST:
        return Missing(f"series:loss:points>={_LEAST}")
    start = int(len(loss) * (1 - share))
    tail = signals.slope(loss.steps[start:], loss.values[start:])
    level = float(np.median(loss.values[start:]))
    change = abs(tail.per_step * float(loss.steps[-1] - loss.steps[start])) / max(abs(level), 1e-12)
    if change > _MOVES or (abs(tail.significant) > errors and change > _STILL):
        return None
    lr = evidence.series("lr")
    if lr is None or len(lr.good) < 2:
        return Missing("series:lr")
    peak, now = float(lr.good.values.max()), float(np.median(lr.good.values[-max(3, len(lr.good) // 50) :]))
    if peak <= 0 or now < high * peak:
        return None
    held_out = evidence.series("loss", "eval")
    last = float(np.median(held_out.good.values[-3:])) if held_out is not None and len(held_out.good) else None
    return _Settled(loss, start, level, last, now / peak)


def _flat_from(found: _Settled) -> int:
    """Index of the first point of the flat end: the loss (rolling median) stays near its level from there on."""
    values = signals.rolling_median(found.loss.values, max(3, len(found.loss) // 50) | 1)
    margin = max(0.02 * abs(found.level), 2 * signals.noise_sd(found.loss.values))
    near = np.abs(values - found.level) <= margin
    return min(found.start, len(near) - int(np.argmin(near[::-1])) if not near.all() else 0)


_FACTS = ("level", "held_out", "reference", "excess", "rate")


def _hit(found: _Settled, reference: float) -> Hit:
    facts: dict[str, Fact] = {
        "level": found.level,
        "held_out": found.held_out,
        "reference": reference,
        "excess": found.level / reference - 1,
        "rate": found.rate,
    }
    return hit_at(found.loss, _flat_from(found), facts)


def _above(found: _Settled, reference: float, excess: float, most: float, gap: float) -> Answer:
    """The verdict on a settled loss: above its reference by `excess` to `most`, evaluation within `gap`."""
    if found.gap is None:
        return Missing("series:eval/loss")
    if found.gap > gap or reference <= 0 or not excess <= found.level / reference - 1 < most:
        return []
    return [_hit(found, reference)]


@check(needs=["series:loss:points>=40"], facts=_FACTS)
def settles_above_reference(
    evidence: Evidence, *, share: float, errors: float, high: float, gap: float, excess: float, most: float
) -> Answer:
    """The loss is flat at a high learning rate, like the evaluation, and above the loss that the user gave to expect.

    share: last part of the record that is flat within `errors` standard errors of its slope; high: least learning rate
    there, as a fraction of its peak; gap: largest distance of the evaluation loss, as a fraction; excess, most: how far
    above the reference.
    """
    found = _settled(evidence, share, errors, high)
    if found is None or isinstance(found, Missing):
        return found or []
    reference = evidence.number("reference_loss")
    if reference is None:
        return Missing("settings:reference_loss")
    return _above(found, reference, excess, most, gap)


@check(needs=["series:loss:points>=40", "baseline:series:loss:points>=20"], facts=_FACTS)
def settles_above_baseline(
    evidence: Evidence, *, share: float, errors: float, high: float, gap: float, excess: float, most: float
) -> Answer:
    """The same above the end of the run of --baseline."""
    found = _settled(evidence, share, errors, high)
    if found is None or isinstance(found, Missing):
        return found or []
    theirs = None if evidence.baseline is None else descending_loss(evidence.baseline)
    if theirs is None or isinstance(theirs, Missing) or not len(theirs):
        return Missing("baseline:series:loss:points>=20")
    reference = float(np.median(theirs.values[-max(5, len(theirs) // 10) :]))
    return _above(found, reference, excess, most, gap)


@check(needs=["series:loss:points>=40"], facts=["level", "reference", "classes"])
def never_leaves_chance(evidence: Evidence, *, near: float, steps: int) -> Answer:
    """Over `steps` steps or more every tenth of the loss lies within `near` of ln C, whatever the rate did meanwhile.

    Not asked where the logged rate is 0 throughout, which is a cause of its own.
    """
    loss, lr = descending_loss(evidence), evidence.series("lr")
    if isinstance(loss, Missing):
        return loss
    count = classes(evidence)
    if count is None:
        return Missing("settings:num_classes")
    if len(loss) < _LEAST or loss.steps[-1] - loss.steps[0] < steps or (lr is not None and not (lr.values > 0).any()):
        return []
    chance = math.log(count)
    levels = np.array([float(np.median(part)) for part in np.array_split(loss.values, 10)])
    if (np.abs(levels / chance - 1) > near).any():
        return []
    level = float(np.median(loss.values))
    return [hit_at(loss, 0, level=level, reference=chance, classes=int(count))]


@check(needs=["series:loss:points>=40"], facts=[*_FACTS, "classes"])
def settles_at_chance(evidence: Evidence, *, share: float, errors: float, high: float, near: float) -> Answer:
    """The loss is flat at a high learning rate within `near` of ln C, the loss of guessing among C classes."""
    found = _settled(evidence, share, errors, high)
    if found is None or isinstance(found, Missing):
        return found or []
    count = classes(evidence)
    if count is None:
        return Missing("settings:num_classes")
    chance = math.log(count)
    if abs(found.level / chance - 1) > near:
        return []
    hit = _hit(found, chance)
    return [Hit(hit.step, hit.after, hit.series, hit.tag, hit.value, hit.source, hit.line, None,
                {**hit.facts, "classes": int(count)})]  # fmt: skip


CHECKS: tuple[Check, ...] = (
    settles_above_reference,
    settles_above_baseline,
    settles_at_chance,
    never_leaves_chance,
)
