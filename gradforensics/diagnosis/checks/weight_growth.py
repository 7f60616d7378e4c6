"""Checks on how far the weights grew from the first checkpoint to the last."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gradforensics import checkpoint_signals
from gradforensics.checkpoint_signals import Weight
from gradforensics.diagnosis.checks.loss import descending_loss, parked
from gradforensics.diagnosis.vocabulary import Answer, Check, Fact, Hit, Missing, check
from gradforensics.tables import Evidence, Series

_SMALL = 0.5  # of the median over the matrices: those that start smaller are meant to grow (zero init, 1/sqrt(2L), muP)
_FEW = 10  # a step that is early in any run
_FEWEST = 3  # matrices whose median speaks for a model
_EARLY = "a checkpoint of the first tenth of the run, and a later one"


@dataclass(frozen=True, slots=True)
class _Growth:
    """Median growth of the matrices between two checkpoints, and the one that grew most."""

    first: Weight
    last: Weight
    times: float
    matrices: int


def _growth(evidence: Evidence, early: float) -> _Growth | Missing:
    return evidence.once(("weight growth", early), lambda: _measured(evidence, early))


def _measured(evidence: Evidence, early: float) -> _Growth | Missing:
    if checkpoint_signals.weights(evidence) is None:
        return Missing("tensors")
    held = checkpoint_signals.weights_by_checkpoint(evidence).values()
    parts = [part for part in held if part[0].step is not None]
    end = max((one.step or 0 for part in parts for one in part[:1]), default=0)
    logged = evidence.steps
    end = max(end, logged[1] if logged else 0)
    if len(parts) < 2 or (parts[0][0].step or 0) > max(_FEW, early * end):
        return Missing(_EARLY)
    before = {(one.name, one.rank, one.shape): one for one in parts[0] if one.kind == "matrix" and one.l2}
    after = {(one.name, one.rank, one.shape): one for one in parts[-1] if one.kind == "matrix" and one.l2}
    sizes = {key: (one.l2 or 0.0) / one.count**0.5 for key, one in before.items()}
    usual = float(np.median(list(sizes.values()))) if sizes else 0.0
    both = [key for key in before if key in after and sizes[key] >= _SMALL * usual]
    if len(both) < _FEWEST:
        return Missing(_EARLY)
    times = {key: (after[key].l2 or 0.0) / (before[key].l2 or 1.0) for key in both}
    top = max(both, key=lambda key: times[key])
    return _Growth(before[top], after[top], float(np.median(list(times.values()))), len(both))


def _hit(found: _Growth, step: int | None, **more: Fact) -> Hit:
    facts: dict[str, Fact] = {
        "grown": found.times, "matrices": found.matrices, "first_step": found.first.step, "last_step": found.last.step,
        **more,
    }  # fmt: skip
    onset = found.last.step if step is None else step
    after = found.first.step if found.first.step is not None and found.first.step < (onset or 0) else None
    return Hit(onset, after, "tensors", None, found.times, found.last.source, None, found.last.name, facts)


@check(
    needs=["tensors", "series:loss:points>=20"],
    facts=["grown", "matrices", "first_step", "last_step", "level", "fell"],
)
def weights_grew_while_loss_stood(
    evidence: Evidence, *, times: float, early: float, share: float, still: float
) -> Answer:
    """The matrices grew `times` or more since the first checkpoint, and the loss of the last `share` is flat (D29).

    early: fraction of the run within which the first checkpoint lies. still: largest difference between the halves of
    the last `share` of the loss, as a fraction of it. What starts small is left out, it is meant to grow.
    """
    found, loss = _growth(evidence, early), descending_loss(evidence)
    if isinstance(found, Missing):
        return found
    if isinstance(loss, Missing):
        return loss
    flat = _flat(loss, share)
    if found.times < times or flat is None or flat[1] > still:
        return []
    return [_hit(found, None, level=flat[0], fell=flat[1])]


def _flat(loss: Series, share: float) -> tuple[float, float] | None:
    """Level of the last part of the loss, and by which fraction its halves differ; None where it is too short."""
    tail = loss.values[int(len(loss) * (1 - share)) :]
    if len(tail) < 8:
        return None
    half = len(tail) // 2
    first, second, level = (float(np.median(part)) for part in (tail[:half], tail[half:], tail))
    return level, abs(first - second) / max(abs(level), 1e-12)


@check(
    needs=["tensors", "series:loss:points>=20", "settings:unigram_entropy", "settings:vocab_size"],
    facts=["grown", "matrices", "level", "entropy", "chance"],
)
def parks_at_unigram_with_grown_weights(
    evidence: Evidence, *, tolerance: float, share: float, times: float, early: float
) -> Answer:
    """As parks_at_unigram, and the matrices grew `times` or more since a checkpoint of the first part `early`."""
    at_unigram, found = parked(evidence, tolerance, share), _growth(evidence, early)
    if isinstance(at_unigram, Missing):
        return at_unigram
    if isinstance(found, Missing):
        return found
    more: dict[str, Fact] = {"grown": found.times, "matrices": found.matrices}
    return [replace(hit, facts={**hit.facts, **more}) for hit in at_unigram] if found.times >= times else []


CHECKS: tuple[Check, ...] = (
    weights_grew_while_loss_stood,
    parks_at_unigram_with_grown_weights,
)
