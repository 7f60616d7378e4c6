"""What a micro-batch counts in the whole batch: its share of the valid labels, of the samples, or one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import nn

from gradforensics.replay.batches import fields_of, replaced, size, take, with_batch
from gradforensics.replay.gradients import Gradients, compare
from gradforensics.replay.losses import run
from gradforensics.replay.recording import Micro
from gradforensics.replay.step import StepRunner

# What the loss divides its sum by: the valid labels of the micro-batch, its samples, the number of valid labels that
# the batch brings along (Hugging Face's num_items_in_batch), or nothing.
Divisor: TypeAlias = Literal["tokens", "samples", "given", "none"]
_ITEMS = "num_items_in_batch"
_SAME = 0.01  # relative; losses of one batch in other shapes differ by rounding only (bfloat16: 0.004)


@dataclass(frozen=True, slots=True)
class Weighting:
    """weights: of the micro-batches' losses in the loss of the whole batch, None where they cannot be told (reason).

    counts: valid labels of every micro-batch, or its samples where labels are no tokens.
    """

    weights: tuple[float, ...] | None
    counts: tuple[int, ...] = ()
    divisor: Divisor | None = None
    reason: str = ""


def valid_labels(batch: Any, ignore_index: int = -100) -> torch.Tensor | None:
    """The number of labels that each sample's loss is over, int64 (samples,); None without labels per token.

    Labels that repeat the ids are shifted inside the model (as Hugging Face models do): the first has no prediction.
    """
    fields = fields_of(batch)
    if fields.labels is None:
        return None
    valid = fields.labels != ignore_index
    if repeats_ids(batch, ignore_index):
        valid = valid[:, 1:]
    return valid.sum(dim=1)


def repeats_ids(batch: Any, ignore_index: int = -100) -> bool:
    """Whether every valid label is the id at its own position."""
    fields = fields_of(batch)
    if fields.ids is None or fields.labels is None or fields.ids.shape != fields.labels.shape:
        return False
    valid = fields.labels != ignore_index
    return bool(valid.any()) and bool((fields.labels == fields.ids)[valid].all())


def weighting(runner: StepRunner) -> Weighting:
    """Find out what the loss divides by, and from that the weights; runs at most four steps and four samples.

    A mean does not change when every sample is there twice, a sum doubles. What a mean is over shows in the gradient of
    a micro-batch, which is that of two halves of it, weighted with their labels or with their samples.
    """
    micros = runner.step.micros
    ignore = int(runner.settings.get("ignore_index", -100))
    labels = [valid_labels(m.batch, ignore) for m in micros]
    tokens = all(one is not None for one in labels)
    samples = tuple(size(m.batch) for m in micros)
    counts = tuple(int(one.sum()) for one in labels if one is not None) if tokens else samples
    total = sum(counts)
    if not all(counts):
        return Weighting(None, counts, None, "a micro-batch has no valid label, or no samples that could be counted")
    given = [_given(m.batch) for m in micros]
    if tokens and all(given):
        if len(set(given)) == 1 and total <= given[0] <= total + sum(samples):  # it may count labels before the shift
            total = int(given[0])
        return Weighting(tuple(items / total for items in given), counts, "given")
    factor = _doubled(runner, micros[0])
    if abs(factor - 2) <= 2 * _SAME:
        return Weighting((1.0,) * len(micros), counts, "none")
    if not abs(factor - 1) <= _SAME:
        what = f"changes by a factor of {factor:.4g}" if math.isfinite(factor) else "could not be computed"
        return Weighting(None, counts, None, f"the loss of the first micro-batch with every sample twice {what}: it is "
                         "neither a mean nor a sum over samples")  # fmt: skip
    divisor = _divisor(runner, [one for one in labels if one is not None] if tokens else None, ignore)
    if divisor is None:
        return Weighting(None, counts, None, "the loss is a mean neither over labels nor over samples, as where "
                         "samples or classes weigh differently")  # fmt: skip
    parts = counts if divisor == "tokens" else samples
    return Weighting(tuple(n / sum(parts) for n in parts), parts, divisor)


def _given(batch: Any) -> float:
    """num_items_in_batch, 0 without one."""
    value = batch.get(_ITEMS) if isinstance(batch, Mapping) else None
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        value = value.item()
    return float(value) if isinstance(value, (int, float)) else 0.0


def _doubled(runner: StepRunner, micro: Micro) -> float:
    """The factor by which the loss changes when every sample is there twice, in evaluation mode."""
    twice = with_batch(micro, take(micro.batch, list(range(size(micro.batch))) * 2))
    once, both = (_loss(runner, m) for m in (micro, twice))
    return both / once if once else math.nan


def _loss(runner: StepRunner, micro: Micro) -> float:
    found = runner.compute([micro], evaluating=True, backward=False)
    return found.loss if found.error is None else math.nan


@dataclass(frozen=True, slots=True)
class _Trial:
    """A batch in two parts, and how many labels and samples each of them has."""

    micro: Micro
    parts: tuple[Micro, Micro]
    labels: tuple[int, int]
    samples: tuple[int, int]

    def weights(self, divisor: Divisor) -> list[float]:
        """Of the parts' losses in that of the batch."""
        counts = self.labels if divisor == "tokens" else self.samples
        return [count / sum(counts) for count in counts]


def _divisor(runner: StepRunner, labels: list[torch.Tensor] | None, ignore: int) -> Divisor | None:
    """What the mean is over: labels, where there are any per token and nothing speaks against it; None for neither.

    Where no trial can tell, every micro-batch must have as many labels as the others.
    """
    both: list[Divisor] = ["samples"] if labels is None else ["tokens", "samples"]
    possible = _fitting(runner, _halves(runner, labels), both)
    if possible == []:
        return None
    if labels is not None and (possible is None or len(possible) > 1):
        micro = runner.step.micros[_most_spread(labels)]
        trial = _shortened(micro, ignore) if _ignores(runner, micro, ignore) else None
        narrowed = _fitting(runner, trial, possible or both)
        possible = narrowed or possible
    if possible is None or (len(possible) > 1 and not _alike(runner, labels)):
        return both[0] if _alike(runner, labels) else None
    return possible[0]


def _ignores(runner: StepRunner, micro: Micro, ignore: int) -> bool:
    """Whether the loss takes the ignored label: the step has it, or a cross-entropy call of the step leaves it out.

    To another kernel it is an index out of range: ctc_loss writes outside of its memory, CUDA asserts.
    """
    found = (fields_of(one.batch).labels for one in runner.step.micros)
    if any(labels is not None and bool((labels == ignore).any()) for labels in found):
        return True
    return any(call.ignored == ignore for call in run(runner, [micro], backward=False, evaluating=True).seen.losses)


def _alike(runner: StepRunner, labels: list[torch.Tensor] | None) -> bool:
    """Whether every micro-batch has as many samples and labels as the others."""
    samples = {size(m.batch) for m in runner.step.micros}
    return len(samples) == 1 and (labels is None or len({int(one.sum()) for one in labels}) == 1)


def _fitting(runner: StepRunner, trial: _Trial | None, among: list[Divisor]) -> list[Divisor] | None:
    """With which of these the gradients of the parts give that of the batch; None without a trial that could be run."""
    whole = None if trial is None else _gradients(runner, [trial.micro], [1.0])
    if trial is None or whole is None:
        return None
    found: list[Divisor] = []
    for divisor in among:
        parts = _gradients(runner, trial.parts, trial.weights(divisor))
        if parts is None:
            return None
        if compare(parts, whole).relative <= _SAME:
            found.append(divisor)
    return found


def _most_spread(labels: list[torch.Tensor]) -> int:
    """The micro-batch whose samples have the most unequal numbers of labels; one sample has no halves."""
    return max(range(len(labels)), key=lambda i: int(labels[i].max() - labels[i].min()) + (len(labels[i]) > 1))


def _halves(runner: StepRunner, labels: list[torch.Tensor] | None) -> _Trial | None:
    """A micro-batch and its halves, samples with few labels in one and with many in the other."""
    micros = runner.step.micros
    valid = labels if labels is not None else [torch.ones(size(m.batch), dtype=torch.int64) for m in micros]
    index = _most_spread(valid)
    order = [s for s in valid[index].argsort().tolist() if valid[index][s]]
    if len(order) < 2:
        return None
    halves = order[: len(order) // 2], order[len(order) // 2 :]
    whole, low, high = (with_batch(micros[index], take(micros[index].batch, part)) for part in (order, *halves))
    counts = int(valid[index][halves[0]].sum()), int(valid[index][halves[1]].sum())
    return _Trial(whole, (low, high), counts, (len(halves[0]), len(halves[1])))


def _shortened(micro: Micro, ignore: int) -> _Trial | None:
    """The sample with the most labels beside itself without the second half of them."""
    counts = valid_labels(micro.batch, ignore)
    fields = fields_of(take(micro.batch, [int(counts.argmax())] * 2)) if counts is not None else None
    if counts is None or fields is None or fields.labels is None:
        return None
    sample, labels = int(counts.argmax()), fields.labels
    places = (labels[1] != ignore).nonzero().reshape(-1)
    labels[1, places[len(places) // 2 :]] = ignore
    both = replaced(take(micro.batch, [sample] * 2), fields.keys["labels"], labels)
    each = valid_labels(both, ignore)
    if each is None or not bool(each.all()) or int(each[0]) == int(each[1]):
        return None
    parts = with_batch(micro, take(both, [0])), with_batch(micro, take(both, [1]))
    return _Trial(with_batch(micro, both), parts, (int(each[0]), int(each[1])), (1, 1))


def _gradients(runner: StepRunner, micros: Sequence[Micro], weights: Sequence[float]) -> Gradients | None:
    """Of the weighted losses in evaluation mode; None where that fails."""
    scale = runner.step.scale or 1.0  # without it gradients of half precision may be too small
    found = runner.compute(
        micros, weights=[weight * scale for weight in weights], evaluating=True, watch=_without_cudnn
    )
    return None if found.failure else found.gradients


def _without_cudnn(_: nn.Module) -> AbstractContextManager[None]:
    """Its recurrent networks have no backward in evaluation mode."""
    return torch.backends.cudnn.flags(enabled=False)
