"""Which sample and which token carry the loss or the gradient of a step that is finite.

Every sample runs alone and is compared with the others, in a model with dropout in evaluation mode: its masks would be
others for fewer samples. A sample is accused only where the micro-batch without it is at the level of the others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, median

import torch
from torch import nn

from gradforensics.experiments import Quantity, Result
from gradforensics.replay.batches import fields_of, size, take, with_batch
from gradforensics.replay.experiment import Context
from gradforensics.replay.losses import Watched, grid, run
from gradforensics.replay.recording import Micro
from gradforensics.replay.step import Outcome, StepRunner, told

PARTS = 32  # into so many parts a micro-batch is split at a time: up to 32 samples run one by one
MOST = 4  # samples that are looked for in a micro-batch, and micro-batches
_Z = 7.0  # CATALOGUE D01: robust z from which a value is an outlier
_SHARE = 0.5
_GAP = 3.0  # times the largest of the others: 1.9 at most in 72 healthy steps of tiny models, 8 texts of 1 to 15 labels
_GAP_OF_CLASSES = 100.0  # with one label per sample a hard one has 30 times the loss of the others in a trained model
_LEVEL = 1.5  # of a single sample's mean; the loss of a mean is the mean of the losses, its gradient's norm no more
_FEWEST = 4  # samples below which no one of them can stand out
_LIKE = 2.0  # a mean or a sum over samples is that of the samples alone, but for a batch's statistics


@dataclass(slots=True)
class _Measured:
    """A part of a micro-batch that was run alone."""

    index: int
    samples: list[int]
    watched: Watched
    labels: int

    def value(self, what: str, mean: float) -> float:
        """Its loss or gradient norm, weighted with its labels; mean: labels of a part on average, 0 for no weight."""
        outcome = self.watched.outcome
        return (abs(outcome.loss) if what == "loss" else outcome.norm) * (self.labels / mean if mean else 1.0)


@dataclass(frozen=True, slots=True)
class _Alone:
    """The parts, and how they were run. summed: whether a batch's loss is the sum of its samples', not the mean."""

    parts: list[_Measured]
    total: int
    evaluating: bool
    summed: bool = False

    @property
    def note(self) -> str:
        return note_of(random=self.evaluating, evaluating=self.evaluating, searched="Compared")


def carriers(context: Context, micros: Sequence[Micro], whole: Sequence[Watched]) -> Iterator[Result]:
    """Compare the samples of these micro-batches; whole: what each of them gave."""
    runner = context.runner
    total = sum(size(m.batch) for m in micros)
    if total < _FEWEST:
        yield _undecided(context, "nothing", f"the step is finite; {total} samples",
                         "Among so few samples none can stand out.", total)  # fmt: skip
        return
    evaluating = any(one.seen.dropout for one in whole) or drops(runner.model)
    parts = [
        _measured(runner, i, m, s, evaluating=evaluating)
        for i, m in enumerate(micros)
        for s in _split(list(range(size(m.batch))))
    ]
    broken = next((p.watched.outcome for p in parts if p.watched.outcome.failure), None)
    if broken is not None and not all(p.watched.unlabelled for p in parts if p.watched.outcome.failure):
        yield _undecided(context, "one sample at a time", f"the step is finite; alone a sample gives "
                         f"{failure_of(broken)}", "The loss does not work with fewer samples; they cannot be compared.",
                         total)  # fmt: skip
        return
    together = [runner.compute([m], evaluating=True, backward=False) if evaluating else w.outcome
                for m, w in zip(micros, whole, strict=True)]  # fmt: skip
    summed = _summed(parts, [one.loss for one in together])
    if summed is None:
        yield _undecided(
            context, "one sample at a time", f"the step is finite; loss of the batch "
            f"{fmean(one.loss for one in together):.4g}, of single samples "
            f"{fmean(p.watched.outcome.loss for p in parts if not p.watched.outcome.failure):.4g} (mean)",
            "The loss of a batch is neither the mean nor the sum of that of its samples alone, as where it compares "
            "samples with each other: they cannot be judged one at a time.", total,
        )  # fmt: skip
        return
    yield from _compared(context, micros, _Alone(parts, total, evaluating, summed))


def _undecided(context: Context, changed: str, result: str, conclusion: str, total: int) -> Result:
    return context.result("batch", changed, result, conclusion, "inconclusive", [Quantity("samples", float(total))])


def _summed(parts: Sequence[_Measured], losses: Sequence[float]) -> bool | None:
    """Whether the losses of micro-batches are the sums (else means) of their parts' losses; None where neither."""
    sums, means = 0.0, 0.0
    for index in range(len(losses)):
        own = [p for p in parts if p.index == index and not p.watched.outcome.failure]
        sums += sum(p.watched.outcome.loss for p in own)
        labels = sum(p.labels for p in own)
        means += sum(p.watched.outcome.loss * p.labels for p in own) / labels if labels else 0.0
    found = sum(losses)
    for summed, expected in ((False, means), (True, sums)):
        if expected and 1 / _LIKE <= found / expected <= _LIKE:
            return summed
    return None


def _compared(context: Context, micros: Sequence[Micro], alone: _Alone) -> Iterator[Result]:
    tokens = any(p.labels > len(p.samples) for p in alone.parts)
    for what in ("gradient", "loss"):
        found, shares = _outlying(context.runner, micros, alone, what, _GAP if tokens else _GAP_OF_CLASSES)
        if found:
            proof = _without(context, micros, alone, found, what)
            yield _carrier(context, found, shares, what, alone, proof)
            yield proof
            return
    beyond = "" if tokens else " beyond what a hard or wrongly labelled one does"
    yield context.result(
        "batch", "one sample at a time", f"the step is finite; of {alone.total} samples the largest has "
        f"{shares[0]:.0%} of the loss", f"No sample stands out{beyond}.{alone.note}", "clean",
        [Quantity("share", shares[0]), Quantity("samples", float(alone.total))],
    )  # fmt: skip


def _split(samples: Sequence[int]) -> list[list[int]]:
    step = math.ceil(len(samples) / PARTS) or 1
    return [list(samples[i : i + step]) for i in range(0, len(samples), step)]


def _measured(runner: StepRunner, index: int, micro: Micro, samples: Sequence[int], *, evaluating: bool) -> _Measured:
    watched = run(runner, [taken(micro, samples)], weights=[1.0], evaluating=evaluating)
    calls = watched.seen.losses
    labels = max((int(c.counted.sum()) for c in calls), default=len(samples))
    return _Measured(index, list(samples), watched, labels)


def _outlying(
    runner: StepRunner, micros: Sequence[Micro], alone: _Alone, what: str, gap: float
) -> tuple[list[_Measured], list[float]]:
    """The samples whose loss or gradient stands out, and their shares (of the largest where none does)."""
    measured = list(alone.parts)
    while True:
        usable = [p for p in measured if not p.watched.outcome.failure]
        mean = 0.0 if alone.summed else sum(p.labels for p in usable) / max(len(usable), 1)
        values = [p.value(what, mean) for p in usable]
        order = sorted(range(len(usable)), key=lambda i: -values[i])
        count = _standing_out([values[i] for i in order], gap)
        found = [usable[i] for i in order[:count]]
        groups = [p for p in found if len(p.samples) > 1]
        if not groups:
            total = sum(values) or 1.0
            return found, [values[i] / total for i in order[: max(count, 1)]]
        measured = [p for p in measured if p not in groups]
        measured += [
            _measured(runner, p.index, micros[p.index], s, evaluating=alone.evaluating)
            for p in groups
            for s in _split(p.samples)
        ]


def _standing_out(values: Sequence[float], gap: float) -> int:
    """How many of these values, largest first, stand apart from the others; 0 for none.

    Apart: `gap` times the largest of the others, and a robust z of at least 7 (D01) or more than half of the sum.
    """
    if len(values) < _FEWEST:
        return 0
    middle = median(values)
    spread = max(1.4826 * median([abs(v - middle) for v in values]), 1e-3 * abs(middle), 1e-300)
    for count in range(1, min(MOST, len(values) // 4) + 1):
        least, others = values[count - 1], values[count]
        if least >= gap * others and ((least - middle) / spread >= _Z or sum(values[:count]) > _SHARE * sum(values)):
            return count
    return 0


def _carrier(
    context: Context, found: Sequence[_Measured], shares: Sequence[float], what: str, alone: _Alone, proof: Result
) -> Result:
    """The samples that stand out. Where the micro-batch is no better without them, they are not to blame."""
    first = found[0]
    sample = first.samples[0]
    quantities = [
        Quantity("micro_batch", float(first.index)), Quantity("sample", float(sample)),
        Quantity("share", shares[0]), Quantity("bad_samples", float(len(found))),
        Quantity("samples", float(alone.total)),
    ]  # fmt: skip
    token, why = _heaviest(context, first)
    where = ""
    if token is not None:
        quantities.append(Quantity("token", float(token)))
        where = f" In it token {token} {why}."
    many = f" {len(found)} samples stand out." if len(found) > 1 else ""
    said = (
        f"One sample carries the {what}.{many}{where} A hard or wrongly labelled sample does that as well as a broken "
    )
    said += "one: look at it."
    if proof.outcome == "unverified":
        said = f"One sample stands out, but the micro-batch is not at the level of the others without it.{many}{where}"
    return context.result(
        "batch", "one sample at a time", f"the step is finite; micro-batch {first.index}, sample {sample} has "
        f"{shares[0]:.0%} of the {what} of {alone.total} samples", said + alone.note,
        "inconclusive" if proof.outcome == "unverified" else "fault", quantities,
    )  # fmt: skip


def _heaviest(context: Context, part: _Measured) -> tuple[int | None, str]:
    """The token that stands out by its loss, else by the gradient of its embedding."""
    seen = part.watched.seen
    batch = take(context.runner.step.micros[part.index].batch, part.samples)
    fields = fields_of(batch)
    references = [one for one in (fields.labels, fields.ids) if one is not None]
    call = max(seen.losses, key=lambda c: c.target.numel(), default=None)
    laid = None if call is None else grid(call.target, 1, call.shape, references)
    if call is not None and laid is not None and laid.columns > 1:
        place, share = _top(call.shares.abs())
        if place is not None:
            return laid.place(place)[1], f"has {share:.0%} of the loss"
    for one in seen.lookups:
        if one.norms is not None and one.ids.dim() == 2 and one.ids.shape[0] == 1:
            place, share = _top(one.norms)
            if place is not None:
                return place, f"has {share:.0%} of the gradient that reaches {one.module or 'the embedding'}"
    return None, ""


def _top(values: torch.Tensor) -> tuple[int | None, float]:
    """The place and share of the largest value, None where it does not stand out."""
    if values.numel() < _FEWEST or not bool(torch.isfinite(values).all()):
        return None, 0.0
    place = int(values.argmax())
    if _standing_out(values.sort(descending=True).values.tolist(), _GAP) != 1:
        return None, 0.0
    return place, float(values[place] / values.sum())


def _without(context: Context, micros: Sequence[Micro], alone: _Alone, found: Sequence[_Measured], what: str) -> Result:
    """The micro-batch without the samples that stand out, against the level of the others."""
    index = found[0].index
    out = {s for p in found if p.index == index for s in p.samples}
    left = [s for s in range(size(micros[index].batch)) if s not in out]
    changed = f"{listed(sorted(out))} of micro-batch {index} left out"
    others = [
        p for p in alone.parts
        if not p.watched.outcome.failure and not (p.index == index and out & set(p.samples))
        and (p.index == index or not alone.summed)
    ]  # fmt: skip
    if not left or not others:
        return context.result("batch", changed, "nothing is left of the micro-batch", "It cannot be tried without it.",
                              "inconclusive")  # fmt: skip
    before, after = (
        run(context.runner, [micro], weights=[1.0], evaluating=alone.evaluating).outcome
        for micro in (micros[index], taken(micros[index], left))
    )
    old, new = (before.norm, after.norm) if what == "gradient" else (abs(before.loss), abs(after.loss))
    values = [p.value(what, 0.0 if alone.summed else fmean(o.labels for o in others)) for p in others]
    level = sum(values) if alone.summed else fmean(values)
    gone = not after.failure and new <= _LEVEL * level < old
    name = "gradient norm" if what == "gradient" else "loss"
    return context.result(
        "batch", changed,
        f"{name} of the micro-batch {old:.4g} -> {new:.4g}; the other samples alone give {level:.4g} "
        f"({'sum' if alone.summed else 'mean'})",
        f"Without it the {name} is at the level of the others.{alone.note}" if gone else
        f"Without it the {name} is not at the level of the others, or was not above it.{alone.note}",
        "verified" if gone else "unverified",
        [Quantity("grad_norm" if what == "gradient" else "loss", old, "", "recorded"),
         Quantity("grad_norm" if what == "gradient" else "loss", new, "", "left out")],
    )  # fmt: skip


# -- shared ------------------------------------------------------------------------------------------------------------


def taken(micro: Micro, samples: Sequence[int]) -> Micro:
    """The micro-batch with these samples only."""
    return with_batch(micro, take(micro.batch, samples))


def note_of(*, random: bool, evaluating: bool, searched: str) -> str:
    """What must be said of dropout. searched: what was done with the samples, in a word."""
    if not random:
        return ""
    if evaluating:
        there = ", where the failure is, too" if searched == "Searched" else ""
        return f" {searched} in evaluation mode{there}: dropout draws other masks for fewer samples."
    return " The model draws dropout masks, which are others with fewer samples."


def failure_of(outcome: Outcome) -> str:
    """How a step failed, in words."""
    if outcome.error is not None:
        return told(outcome.error)
    return {"nonfinite_loss": "the loss is not finite", "nonfinite_gradient": "the gradient is not finite"}.get(
        outcome.failure, "the step is finite"
    )


def listed(samples: Sequence[int]) -> str:
    """The numbers of samples, at most 8 of them."""
    shown = ", ".join(map(str, samples[:8])) + (" ..." if len(samples) > 8 else "")
    return f"sample{'s' if len(samples) > 1 else ''} {shown}"


def drops(model: nn.Module) -> bool:
    """Whether a module in training mode has a dropout that PyTorch applies inside of a larger call."""
    kinds = (nn.MultiheadAttention, nn.RNNBase)
    return any(isinstance(m, kinds) and m.training and m.dropout > 0 for m in model.modules())
