"""Checks on NaN and infinities: where they show first, and where a log hides them."""

from __future__ import annotations

import numpy as np

from gradforensics import signals
from gradforensics.diagnosis.checks.loss import descending_loss, lasting_bad, loss_and_norm, of_trainer
from gradforensics.diagnosis.vocabulary import Answer, Check, Fact, Hit, Missing, check, hit_at
from gradforensics.own_files import is_step_log
from gradforensics.tables import KINDS, Evidence, Series

_COARSE = 1e-3  # a loss printed with fewer than three decimals may show 0 without being near it


def _by_attempt(evidence: Evidence) -> list[tuple[dict[str, Fact], Series | None, Series | None]]:
    """(its number, loss, gradient norm) of every attempt: a failed one shows even where a later one went on."""
    losses = {int(s.attempts[0]): s for s in evidence.attempts("loss") if len(s)}
    norms = {int(s.attempts[0]): s for s in evidence.attempts("grad_norm") if len(s)}
    attempts = sorted({*losses, *norms})
    count = len(attempts)
    return [({"attempt": i, "attempts": count}, losses.get(a), norms.get(a)) for i, a in enumerate(attempts, 1)]


def _step_of(series: Series | None) -> tuple[int, int] | None:
    """(index, step) of the first lasting non-finite point."""
    if series is None:
        return None
    index = lasting_bad(series)
    return None if index is None else (index, int(series.steps[index]))


@check(needs=["series:loss", "series:grad_norm"], facts=["kind", "points", "attempt", "attempts"])
def loss_nonfinite_first(evidence: Evidence) -> Answer:
    """The loss is NaN or infinite for good, and the gradient norm of the step before was finite.

    Then the forward pass came first. Only a log of every step can tell: in a mean over several steps, and without a
    gradient norm, a NaN gradient may have come first.
    """
    return _loss_first(evidence, certain=True)


@check(needs=["series:loss"], facts=["kind", "points", "attempt", "attempts"])
def loss_nonfinite(evidence: Evidence) -> Answer:
    """The loss is NaN or infinite for good, and the log does not show which pass came first."""
    return _loss_first(evidence, certain=False)


def _loss_first(evidence: Evidence, *, certain: bool) -> Answer:
    for which, loss, norm in _by_attempt(evidence):
        bad, bad_norm = _step_of(loss), _step_of(norm)
        if loss is None or bad is None or (bad_norm is not None and bad_norm[1] < bad[1]):
            continue
        before = bool(norm is not None and norm.finite[norm.steps == bad[1] - 1].any())
        if (before and loss.step_unit == "step") == certain:
            return [hit_at(loss, bad[0], which, kind=_word(loss.kind(bad[0])), points=int(loss.bad.sum()))]
    return []


@check(needs=["series:grad_norm"], facts=["kind", "points", "loss_there", "attempt", "attempts"])
def gradient_nonfinite_first(evidence: Evidence, *, points: int) -> Answer:
    """The gradient norm is NaN or infinite for good and the loss became so later: the backward pass came first."""
    return _gradient_first(evidence, points, masked=False)


@check(needs=["series:grad_norm"], facts=["kind", "points", "loss_there", "attempt", "attempts"])
def gradient_nonfinite_beside_finite_loss(evidence: Evidence, *, points: int) -> Answer:
    """The gradient norm is NaN or infinite for good and the loss stays finite beside it for `points` points or more.

    Weights cannot take such gradients and give a finite loss: the loss is masked, or the steps are skipped. Where the
    value was made cannot be told from this log.
    """
    return _gradient_first(evidence, points, masked=True)


@check(needs=["series:grad_norm", "series:loss"], facts=["kind", "points", "loss_there", "attempt", "attempts"])
def first_gradient_nonfinite(evidence: Evidence, *, points: int) -> Answer:
    """The very first gradient of an attempt is NaN or infinite for good, and the loss beside it is a sound number.

    No update had been made: neither the learning rate nor a divergence can be the cause. Only where the first logged
    point is the first step, or a line of a log without steps.
    """
    answer = _gradient_first(evidence, points, masked=True)
    if isinstance(answer, Missing):
        return answer
    norms: dict[Fact, Series | None] = {i: norm for i, (_, _, norm) in enumerate(_by_attempt(evidence), 1)}
    return [
        hit
        for hit in answer
        if (norm := norms.get(hit.facts["attempt"])) is not None
        and hit.step == norm.steps[0]
        and hit.facts["loss_there"]
        and (norm.steps[0] <= 1 or norm.cadence <= 1)
    ]


@check(needs=["series:loss"], facts=["kind", "points", "attempt", "attempts"])
def first_loss_nonfinite(evidence: Evidence) -> Answer:
    """The very first loss of an attempt is NaN or infinite, and so are all that follow: no update had been made."""
    for which, loss, _ in _by_attempt(evidence):
        if loss is None or lasting_bad(loss) != 0 or (loss.steps[0] > 1 and loss.cadence > 1):
            continue
        return [hit_at(loss, 0, which, kind=_word(loss.kind(0)), points=int(loss.bad.sum()))]
    return []


@check(needs=["series:grad_norm"], facts=["kind", "points", "loss_there", "attempt", "attempts"])
def gradient_nonfinite_under_overlap(evidence: Evidence, *, points: int) -> Answer:
    """As gradient_nonfinite_beside_finite_loss, under DeepSpeed's ZeRO-2 with overlap_comm."""
    if not _overlaps(evidence):
        return []
    return _gradient_first(evidence, points, masked=True)


def _overlaps(evidence: Evidence) -> bool:
    """Whether the settings say ZeRO stage 1 or 2 with overlap_comm, whose reduction has corrupted gradients."""
    stage = evidence.number("zero_optimization.stage")
    return stage in (1, 2) and evidence.setting("zero_optimization.overlap_comm") is True


def _gradient_first(evidence: Evidence, points: int, *, masked: bool) -> Answer:
    for which, loss, norm in _by_attempt(evidence):
        bad, bad_loss = _step_of(norm), _step_of(loss)
        if norm is None or bad is None or (bad_loss is not None and bad_loss[1] <= bad[1]):
            continue
        until = bad_loss[1] if bad_loss is not None else np.inf
        if loss is None:
            beside = int(norm.bad.sum())
        else:
            beside = int(((loss.steps >= bad[1]) & (loss.steps < until) & loss.finite).sum())
        holds = beside >= points if masked else bad_loss is not None and beside < points
        if not holds:
            continue
        if masked and _trained_on(loss, bad[1]):
            continue  # the norm, not the loss, is logged wrongly
        there = None
        if loss is not None and len(loss.good):
            before = np.flatnonzero(loss.good.steps <= bad[1])
            there = float(loss.good.values[before[-1]]) if len(before) else None
        kind, count = _word(norm.kind(bad[0])), int(norm.bad.sum())
        return [hit_at(norm, bad[0], which, kind=kind, points=count, loss_there=there)]
    return []


@check(needs=["series:loss"], facts=["kind", "points", "attempt", "attempts"])
def nonfinite_isolated(evidence: Evidence) -> Answer:
    """Single NaN or infinite losses with finite values after them, where the gradient norm is not known to be 0.

    Infinite gradient norms alone are not counted: a loss scaler meets them while it searches its scale.
    """
    return _single_bad_losses(evidence, gradient_zero=False)


@check(needs=["series:loss", "series:grad_norm"], facts=["kind", "points", "attempt", "attempts"])
def batch_without_labels(evidence: Evidence) -> Answer:
    """Single NaN losses at which the gradient norm is exactly 0: the mean over no label is 0/0 (detector D35)."""
    return _single_bad_losses(evidence, gradient_zero=True)


@check(needs=["series:loss:points>=20"], facts=["share", "points", "attempt", "attempts"])
def nonfinite_often(evidence: Evidence, *, share: float) -> Answer:
    """`share` or more of the losses of an attempt are non-finite although finite ones follow."""
    for which, loss, _ in _by_attempt(evidence):
        if loss is None or len(loss) < 20 or lasting_bad(loss) is not None or float(loss.bad.mean()) < share:
            continue
        first = int(np.argmax(loss.bad))
        return [hit_at(loss, first, which, share=float(loss.bad.mean()), points=int(loss.bad.sum()))]
    return []


def _single_bad_losses(evidence: Evidence, *, gradient_zero: bool) -> list[Hit]:
    hits: list[Hit] = []
    for which, loss, norm in _by_attempt(evidence):
        if loss is None or not loss.bad.any():
            continue
        lasting = lasting_bad(loss)
        still = set() if norm is None else set(norm.steps[norm.values == 0].tolist())
        single = [int(i) for i in np.flatnonzero(loss.bad[:lasting]) if (int(loss.steps[i]) in still) == gradient_zero]
        hits += [hit_at(loss, i, which, kind=_word(loss.kind(i)), points=len(single)) for i in single]
    return hits


@check(needs=["series:eval/loss:points>=2", "series:loss"], facts=["kind", "points"])
def eval_nonfinite_only(evidence: Evidence) -> Answer:
    """The evaluation loss is NaN or infinite for good while the training loss stays finite."""
    loss, held_out = evidence.series("loss"), evidence.series("loss", "eval")
    if loss is None or held_out is None:
        return Missing("series:eval/loss", "series:loss")
    start = lasting_bad(held_out)
    if start is None or len(held_out) - start < 2 or loss.bad.any() or not (loss.good.values != 0).any():
        return []  # a training loss that is all 0 hides the same NaN (GF35)
    return [hit_at(held_out, start, kind=_word(held_out.kind(start)), points=int(held_out.bad.sum()))]


@check(needs=["series:grad_norm:points>=3"])
def gradient_nonfinite_from_start(evidence: Evidence) -> Answer:
    """No gradient norm of the run was ever finite."""
    norm = evidence.series("grad_norm")
    return [hit_at(norm, 0)] if norm is not None and norm.bad.all() else []


def _word(kind: str) -> str:
    return {"nan": "NaN", "posinf": "Infinity", "neginf": "-Infinity"}.get(kind, kind)


def _nan_gradients(evidence: Evidence) -> tuple[Series, Series] | Missing | None:
    """Loss and gradient norm at their common steps from the first lasting NaN norm on; None where there is none."""
    loss, norm = evidence.series("loss"), evidence.series("grad_norm")
    if loss is None or norm is None:
        return Missing("series:loss", "series:grad_norm")
    if is_step_log(loss.source):
        return None  # the recorder writes the loss that was computed: nothing is hidden there
    start = signals.first_run(norm.codes == KINDS.index("nan"), 3)
    if start is None:
        return None
    common = np.intersect1d(loss.steps[loss.steps >= norm.steps[start]], norm.steps[start:])
    return loss.where(np.isin(loss.steps, common)), norm.where(np.isin(norm.steps, common))


def _trained_on(loss: Series | None, since: int) -> bool:
    """Whether the loss goes on falling from this step, or moves as ever beside a norm that was never a number.

    A model that took NaN gradients cannot do so, and a masked loss is 0 or a repeated mean.
    """
    if loss is None:
        return False
    part = loss.where((loss.steps >= since) & loss.finite)
    if len(part) < 4 or (part.values == 0).any() or (np.diff(part.values) == 0).mean() > 0.5:
        return False
    trend = signals.slope(part.steps, part.values)
    return bool(len(part) >= 8 and trend.significant < -2) or len(part) == len(loss.good)


@check(needs=["series:loss:points>=3", "series:grad_norm:points>=3"], facts=["points", "loss_there"])
def zero_loss_nan_gradient(evidence: Evidence, *, points: int) -> Answer:
    """While the gradient norm is NaN the logged loss is exactly 0 or exactly repeated for `points` points."""
    pair = _nan_gradients(evidence)
    if pair is None or isinstance(pair, Missing):
        return [] if pair is None else pair
    loss, norm = pair
    if loss.resolution > _COARSE:
        return Missing("series:loss with more digits")
    # rounded digits repeat by themselves, but 0.0000 is no loss of a model that has just seen NaN gradients
    repeated = (
        np.concatenate([[False], np.diff(loss.values) == 0]) if loss.resolution == 0 else np.zeros(len(loss), bool)
    )
    still = repeated | (loss.values == 0)
    start = signals.first_run(still & loss.finite & norm.bad, points)
    if start is None:
        return []
    return [
        hit_at(
            loss,
            start,
            after=_before(evidence, loss, start),
            points=int(still.sum()),
            loss_there=float(loss.values[start]),
        )
    ]


def _before(evidence: Evidence, part: Series, index: int) -> int | None:
    """Last step of the whole gradient norm series before this point at which it was finite."""
    norm = evidence.series("grad_norm")
    if norm is None:
        return None
    good = norm.steps[norm.finite & (norm.steps < part.steps[index])]
    return int(good[-1]) if len(good) else None


@check(needs=["series:loss:points>=3", "series:grad_norm:points>=3"], facts=["points", "loss_there"])
def finite_loss_nan_gradient(evidence: Evidence, *, points: int) -> Answer:
    """The gradient norm is NaN for `points` points in a row, the loss beside it finite and not falling."""
    pair = _nan_gradients(evidence)
    if pair is None or isinstance(pair, Missing):
        return [] if pair is None else pair
    loss, norm = pair
    if len(loss) < points or not loss.finite.all() or not norm.bad.all():
        return []
    if _trained_on(evidence.series("loss"), int(loss.steps[0])):
        return []  # the norm, not the loss, is logged wrongly
    return [hit_at(loss, 0, after=_before(evidence, loss, 0), points=len(loss), loss_there=float(loss.values[0]))]


@check(needs=["series:loss:points>=10"], facts=["points", "before"])
def loss_exactly_zero(evidence: Evidence, *, points: int, before: float, log: str) -> Answer:
    """The loss drops from above `before` to exactly 0 from one logged point to the next, for good.

    log: "trainer" judges only logs of the Hugging Face Trainer, which masks NaN in this way; "any" all others too.
    """
    if log == "trainer" and not of_trainer(evidence):
        return Missing("a log of the Hugging Face Trainer")
    loss = descending_loss(evidence)
    if isinstance(loss, Missing):
        return loss
    nonzero = np.flatnonzero(loss.values != 0)
    start = int(nonzero[-1]) + 1 if len(nonzero) else 0
    if start == 0 or len(loss) - start < points:
        return []
    level = float(np.median(loss.values[max(0, start - 5) : start]))
    if level <= before:
        return []
    if loss.resolution > _COARSE:
        return Missing("series:loss with more digits")
    return [hit_at(loss, start, points=len(loss) - start, before=level)]


@check(needs=["series:loss:points>=3", "series:grad_norm:points>=3"], facts=["points"])
def zero_loss_zero_gradient(evidence: Evidence, *, points: int, before: float) -> Answer:
    """In a Trainer log loss and gradient norm are both exactly 0 for `points` points and to the end: nothing to learn.

    From its first point on, or after a loss above `before`: a loss that was learned away comes down gradually. The mean
    over no label is 0/0, which the Trainer logs as 0, and its gradient is 0. Of other logs nothing is said: some write
    a gradient norm of 0 that was read after the gradients had been cleared.
    """
    if not of_trainer(evidence) and not _prints_as_trainer(evidence):
        return Missing("a log of the Hugging Face Trainer")
    both = loss_and_norm(evidence, finite=False)
    if isinstance(both, Missing):
        return both
    loss, norm = both
    if loss.resolution > _COARSE:
        return Missing("series:loss with more digits")
    start = _for_good((loss.values == 0) & (norm.values == 0))
    if start is None or len(loss) - start < points or (start and float(loss.values[start - 1]) <= before):
        return []
    return [hit_at(loss, start, points=len(loss) - start)]


@check(needs=["series:loss:points>=3", "series:grad_norm:points>=3"], facts=["points", "norm"])
def zero_loss_constant_gradient(evidence: Evidence, *, points: int) -> Answer:
    """The loss is exactly 0 to the end beside a gradient norm that is above 0 and the same to the last digit.

    No batch gives the gradient of another one: what is reduced is not what was computed.
    """
    both = loss_and_norm(evidence, finite=False)
    if isinstance(both, Missing):
        return both
    loss, norm = both
    if loss.resolution > _COARSE:
        return Missing("series:loss with more digits")
    start = _for_good((loss.values == 0) & norm.finite & (norm.values > 0) & (norm.values == norm.values[-1]))
    if start is None or len(loss) - start < points:
        return []
    return [hit_at(loss, start, points=len(loss) - start, norm=float(norm.values[-1]))]


def _for_good(mask: np.ndarray) -> int | None:
    """Index from which on a mask holds to its end, or None where it does not hold at its end."""
    if not mask[-1]:
        return None
    fails = np.flatnonzero(~mask)
    return int(fails[-1]) + 1 if len(fails) else 0


def _prints_as_trainer(evidence: Evidence) -> bool:
    """Whether the loss comes from the dict lines that the Trainer prints: they hold its epoch beside its loss."""
    loss, rate = evidence.series("loss"), evidence.series("lr")
    return (
        loss is not None and rate is not None and rate.tag == "learning_rate" and bool(np.isfinite(loss.epochs).all())
    )


@check(needs=["series:loss:points>=10", "series:lr"], facts=["points"])
def loss_always_zero(evidence: Evidence) -> Answer:
    """Every loss of a Trainer log is exactly 0 although the learning rate is not: nothing else masks like that."""
    loss, lr = descending_loss(evidence), evidence.series("lr")
    if isinstance(loss, Missing) or lr is None:
        return loss if isinstance(loss, Missing) else Missing("series:lr")
    if not of_trainer(evidence):
        return Missing("a log of the Hugging Face Trainer")  # it masks NaN so (logging_nan_inf_filter)
    if (loss.values != 0).any() or not (lr.good.values > 0).any():
        return []
    return [hit_at(loss, 0, points=len(loss))]


CHECKS: tuple[Check, ...] = (
    loss_nonfinite_first,
    loss_nonfinite,
    gradient_nonfinite_first,
    gradient_nonfinite_beside_finite_loss,
    nonfinite_isolated,
    nonfinite_often,
    loss_always_zero,
    batch_without_labels,
    eval_nonfinite_only,
    gradient_nonfinite_from_start,
    first_gradient_nonfinite,
    first_loss_nonfinite,
    gradient_nonfinite_under_overlap,
    zero_loss_zero_gradient,
    zero_loss_constant_gradient,
    zero_loss_nan_gradient,
    finite_loss_nan_gradient,
    loss_exactly_zero,
)
