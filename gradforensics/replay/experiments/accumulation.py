"""Whether the accumulated gradient is that of the whole batch.

The gradient of the step, as its backward passes started and its clearing went, against the gradient of the mean loss
over all samples of the step: the sum of the micro-batches' gradients, each weighted with its share of the valid labels.
Both before clipping, with the same random states, under the same loss scale.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import torch

from gradforensics.experiments import Quantity, Result
from gradforensics.replay.experiment import Context, Experiment
from gradforensics.replay.gradients import CLIPPED, Comparison, Gradients, compare
from gradforensics.replay.recording import Micro
from gradforensics.replay.step import Outcome, StepRunner, told
from gradforensics.replay.weighting import Weighting, weighting

Kind: TypeAlias = Literal["agrees", "missing-division", "cleared-each", "mean-of-means", "other"]
# A micro-batch's gradient in bfloat16 is rounded to 0.4 %; one that is scaled otherwise agrees within 1 %.
_EQUAL = 0.01
_FACTOR = 0.1  # a norm within 10 % of a factor shows that factor (8 micro-batches undivided: measured 8.0)
_PARALLEL = 0.99
_SAME_DIRECTION = 0.9999
_UNITS = {"tokens": "valid labels", "given": "valid labels", "samples": "samples", "none": "labels or samples"}


@dataclass(frozen=True, slots=True)
class _Step:
    """The step's gradient before clipping, where it is from, and what speaks against judging a mere factor by it."""

    gradients: Gradients
    source: str
    doubt: str = ""


@dataclass(frozen=True, slots=True)
class _Finding:
    kind: Kind
    against: Comparison  # with the gradient of the whole batch
    words: str


def _run(context: Context) -> Iterator[Result]:
    runner = context.runner
    count = len(runner.step.micros)
    if count < 2:
        yield _undecided(context, f"{count} micro-batch", "Nothing is accumulated in this step: one micro-batch.")
        return
    computed = runner.compute()
    if computed.failure:
        what = told(computed.error) if computed.error else "its loss or gradient is not finite"
        yield _undecided(context, f"{count} micro-batches; {what}", "No finite gradient to compare.")
        return
    clipped = runner.clipped()
    weights = weighting(runner)
    if weights.weights is None:
        yield _undecided(context, f"{count} micro-batches", f"No gradient of the whole batch: {weights.reason}.")
        return
    whole = _weighted(runner, weights.weights)
    if whole.failure or not whole.norm or not computed.norm:
        yield _undecided(context, f"{count} micro-batches", "A gradient is zero or not finite: nothing to compare.")
        return
    step = _step_gradient(context, computed, whole, clipped)
    finding = _judged(runner, step, whole.gradients, weights)
    yield _result(context, weights, step, finding, whole)
    if finding.kind not in ("agrees", "other") and not step.doubt:
        yield _cure(context, weights, finding, whole)


def _undecided(context: Context, result: str, conclusion: str) -> Result:
    quantities = [Quantity("micro_batches", float(len(context.runner.step.micros)))]
    return context.result("accumulation", "nothing", result, conclusion, "inconclusive", quantities)


# -- gradients --------------------------------------------------------------------------------------------------------


def _weighted(runner: StepRunner, weights: Sequence[float], among: Sequence[Micro] | None = None) -> Outcome:
    """The gradient of the weighted sum of the micro-batches' losses, under the step's loss scale, nothing cleared."""
    scale = runner.step.scale or 1.0
    micros = [
        replace(micro, backward=torch.tensor(weight * scale, dtype=torch.float64), cleared=False)
        for micro, weight in zip(among or runner.step.micros, weights, strict=True)
    ]
    return runner.compute(micros)


def _step_gradient(context: Context, computed: Outcome, whole: Outcome, clipped: Gradients) -> _Step:
    """The recorded gradient where it was not clipped, else the replayed one.

    A loop may divide the gradients after the backward passes, which does not show in how these started. Where clipping
    has hidden the norm, the replayed gradient counts only if clipping would not have touched that of the whole batch,
    or if the logged norm (before clipping) says the same.
    """
    runner, step = context.runner, context.runner.step
    if _other_losses(runner, computed):
        return _Step(computed.gradients, "replayed", "the replayed losses are not the recorded ones")
    replayed = _Step(computed.gradients, "replayed")
    logged = context.logged.get("grad_norm")
    divided = f"the logs say a gradient norm of {logged:.4g}: the gradients may be divided after the backward" if (
        logged is not None
        and not _near(logged / computed.norm, 1.0)
        and _near(logged / whole.norm, 1.0)
    ) else ""  # fmt: skip
    if step.gradients is None and all(m.backward is None for m in step.micros):
        return _as_logged(context, computed)
    if step.gradients is None or runner.recording.world_size > 1:
        return replace(replayed, doubt=divided)
    recorded: Gradients = dict(step.gradients)
    norm = math.sqrt(sum(float(g.double().norm()) ** 2 for g in step.gradients.values()))
    limit = step.max_grad_norm
    if not limit or norm < CLIPPED * limit:
        return _Step(recorded, "recorded")
    if not compare(recorded, clipped).cosine > _PARALLEL:
        return _Step(recorded, "recorded", "it was clipped, so that only its direction is known")
    known = logged is not None and _near(logged / computed.norm, 1.0)
    if not known and whole.norm >= limit:
        divided = divided or (
            "clipping hides by which factor the gradients were divided after the backward, if at all, and gives the "
            "optimizer the same gradient in this step"
        )
    return replace(replayed, doubt=divided)


def _other_losses(runner: StepRunner, computed: Outcome) -> bool:
    """Whether a recorded loss was another one: not this program's, or recorded after it had been divided."""
    pairs = zip(computed.losses, (m.loss for m in runner.step.micros), strict=True)
    return any(loss is not None and not abs(own - loss) <= _EQUAL * abs(loss) for own, loss in pairs)


def _as_logged(context: Context, computed: Outcome) -> _Step:
    """How the losses were divided is the program's word only: the logged norm is better, if the logged loss fits."""
    loss, norm = context.logged.get("loss"), context.logged.get("grad_norm")
    if loss is None or norm is None or not abs(computed.loss - loss) <= _EQUAL * abs(loss) or not math.isfinite(norm):
        return _Step(computed.gradients, "replayed, divided as the program says")
    factor = norm / computed.norm
    return _Step({n: None if g is None else g * factor for n, g in computed.gradients.items()}, "norm from the logs")


def _near(value: float, factor: float) -> bool:
    return abs(value / factor - 1) <= _FACTOR


# -- judging ----------------------------------------------------------------------------------------------------------


def _judged(runner: StepRunner, step: _Step, whole: Gradients, weights: Weighting) -> _Finding:
    micros, count = runner.step.micros, len(runner.step.micros)
    against = compare(step.gradients, whole)
    if against.relative <= _EQUAL:
        return _Finding("agrees", against, "it is the gradient of the whole batch")
    cleared = [i for i, m in enumerate(micros) if m.cleared and i]
    if cleared:
        which = ", ".join(map(str, cleared[:8]))
        return _Finding("cleared-each", against, f"the gradients were cleared again before micro-batch {which}")
    ranks = runner.recording.world_size
    if ranks > 1 and against.cosine > _PARALLEL and (_near(against.ratio, ranks) or _near(against.ratio, 1 / ranks)):
        return _Finding("agrees", against, f"up to the number of ranks ({ranks}), which averaging over them undoes")
    uneven = weights.divisor in ("tokens", "samples") and len(set(weights.counts)) > 1
    means = compare(step.gradients, _weighted(runner, [1 / count] * count).gradients) if uneven else against
    for one in (against, means):
        if one.cosine > _PARALLEL and _near(one.ratio, count) and weights.divisor != "none":
            words = f"it is {one.ratio:.3g} times too large: the losses were not divided by their number ({count})"
            return _Finding("missing-division", against, words)
    if uneven and means.relative <= _EQUAL:
        words = f"every micro-batch counts the same, whatever number of {_UNITS[weights.divisor or 'none']} it has"
        return _Finding("mean-of-means", against, words)
    last = _weighted(runner, [1.0], [micros[-1]]).gradients
    if compare(step.gradients, last).cosine > _SAME_DIRECTION:
        return _Finding("cleared-each", against, "it is the gradient of the last micro-batch alone")
    return _Finding("other", against, _said_of_other(runner, step, against, weights))


def _said_of_other(runner: StepRunner, step: _Step, against: Comparison, weights: Weighting) -> str:
    if against.cosine > _PARALLEL:
        if weights.divisor == "none":
            return f"the loss is a sum over samples, and the step's gradient {against.ratio:.3g} times its gradient"
        return f"it has the right direction and {against.ratio:.3g} times the norm"
    if step.source == "recorded" and runner.recording.world_size == 1:
        return (
            "the recorded gradient is not made of these micro-batches by one factor each: gradients of an earlier step "
            "that were never cleared would do that, and so would a change of the gradients before the optimizer"
        )
    return "neither a missing division nor a clearing between the micro-batches explains it"


# -- results ----------------------------------------------------------------------------------------------------------


def _result(context: Context, weights: Weighting, step: _Step, finding: _Finding, whole: Outcome) -> Result:
    against, micros = finding.against, context.runner.step.micros
    unit = _UNITS[weights.divisor or "none"]
    fault = finding.kind not in ("agrees", "other")
    ends = f"{min(weights.counts)} to {max(weights.counts)}" if len(set(weights.counts)) > 1 else f"{weights.counts[0]}"
    outcome: Literal["clean", "fault", "inconclusive"] = "clean" if finding.kind == "agrees" else "inconclusive"
    if fault and not step.doubt:
        outcome = "fault"
    return context.result(
        "accumulation",
        f"{len(micros)} micro-batches weighted with their share of the {unit}",
        f"gradient norm of the step {against.ratio * whole.norm:.4g} ({step.source}), of the whole batch "
        f"{whole.norm:.4g}: ratio {against.ratio:.4g}, cosine {against.cosine:.5f}; {ends} {unit} each",
        f"The step's gradient: {finding.words}."
        + (f" Not certain: {step.doubt}." if step.doubt and finding.kind != "agrees" else "")
        + (_harm(context.runner, finding, unit) if fault else ""),
        outcome,
        [
            Quantity("ratio", against.ratio),
            Quantity("cosine", against.cosine),
            Quantity("relative_difference", against.relative),
            Quantity("micro_batches", float(len(micros))),
            Quantity("kind", text=finding.kind),
            Quantity("grad_norm", against.ratio * whole.norm, "", "recorded"),
            Quantity("grad_norm", whole.norm, "", "whole batch"),
        ],
    )  # fmt: skip


def _harm(runner: StepRunner, finding: _Finding, unit: str) -> str:
    """What the fault does with the optimizer at hand."""
    if finding.kind == "cleared-each":
        return " Only a part of the batch is trained on, with more noise."
    if finding.kind == "mean-of-means":
        return f" {unit.capitalize()} of small micro-batches count more than others."
    name = runner.recording.optimizer_class.rpartition(".")[2]
    if "adam" in name.lower():
        return (
            f" With {name} a constant factor is nearly harmless: it cancels out, except through clipping, eps and a "
            "weight decay that is added to the gradient."
        )
    return " The learning rate is in effect as many times too large."


def _cure(context: Context, weights: Weighting, finding: _Finding, whole: Outcome) -> Result:
    """The token-weighted gradient; that its weights are right was checked on the loss itself."""
    how = {"tokens": "n_i/N, n_i valid labels of N", "samples": "n_i/N, n_i samples of N"}
    return context.result(
        "accumulation",
        f"every backward started from {how.get(weights.divisor or '', 'its weight')}, nothing cleared in between",
        f"relative difference to the gradient of the whole batch {finding.against.relative:.3g} without, 0 with it",
        "With these weights the step has the gradient of the whole batch.",
        "verified",
        [
            Quantity("relative_difference", finding.against.relative, "", "recorded"),
            Quantity("relative_difference", 0.0, "", "token-weighted"),
            Quantity("grad_norm", whole.norm, "", "token-weighted"),
        ],
    )


# the step, the whole batch, the mean of means, the last micro-batch; for the weights a micro-batch, it twice over, in
# halves, forward only, and four times one of its samples
EXPERIMENT = Experiment("accumulation", lambda _: 12.0, _run)
