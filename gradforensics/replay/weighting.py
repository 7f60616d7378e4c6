"""What a micro-batch counts in the whole batch: its share of the valid labels, of the samples, or one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch

from gradforensics.replay.batches import fields_of, size, take, with_batch
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
    """Find out what the loss divides by, and from that the weights; runs at most two steps, forward only.

    A mean does not change when every sample is there twice, a sum doubles. Means over tokens and over samples are told
    apart by two halves of a micro-batch with unequal numbers of labels: the loss of both is the mean of their losses,
    weighted with the labels or with the samples.
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
    divisor: Divisor | None = "samples"
    if tokens:
        divisor = _by_halves(runner, [one for one in labels if one is not None])
    if divisor is None:
        return Weighting(None, counts, None, "the loss is a mean neither over labels nor over samples")
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


def _by_halves(runner: StepRunner, labels: list[torch.Tensor]) -> Divisor | None:
    """Tokens or samples; tokens where no micro-batch can tell them apart, None where neither fits."""
    spread = [int(one.max() - one.min()) if one.numel() > 1 else 0 for one in labels]
    index = max(range(len(labels)), key=spread.__getitem__)
    micro, valid = runner.step.micros[index], labels[index]
    order = [s for s in valid.argsort().tolist() if valid[s]]
    halves = order[: len(order) // 2], order[len(order) // 2 :]
    if not spread[index] or not halves[0]:
        return "tokens"
    whole, low, high = (_loss(runner, with_batch(micro, take(micro.batch, part))) for part in (order, *halves))
    n, m = (int(valid[part].sum()) for part in halves)
    by_tokens = (n * low + m * high) / (n + m)
    by_samples = (len(halves[0]) * low + len(halves[1]) * high) / len(order)
    if abs(by_tokens - by_samples) <= _SAME / 5 * abs(whole):
        return "tokens"
    apart = {"tokens": abs(by_tokens - whole), "samples": abs(by_samples - whole)}
    best: Divisor = "tokens" if apart["tokens"] <= apart["samples"] else "samples"
    return best if apart[best] <= _SAME * abs(whole) else None
