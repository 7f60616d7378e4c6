"""Pure functions on the tokens of a batch: which are pads, which end a text, which repeat."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gradforensics.replay.batches import Fields

LONGEST_NGRAM = 13  # OLMo 2 (arXiv 2501.00656) looks for repeated n-grams of 1 to 13 tokens
MOST_REPEATS = 32  # and leaves out documents with this many repeats of one


def ids_of(value: Any) -> frozenset[int]:
    """The ids of a setting such as eos_token_id: a number, a list of them, or none."""
    listed = value if isinstance(value, (list, tuple)) else [value]
    return frozenset(v for v in listed if isinstance(v, int) and not isinstance(v, bool) and v >= 0)


def pads_of(fields: Fields, settings: Mapping[str, Any]) -> tuple[torch.Tensor | None, str]:
    """Which tokens are pads, bool (samples, tokens), and how that is known; None where it is not.

    attention_mask 0 marks a pad whatever its id. A mask of another name may mean something else and is left alone. A
    pad id that also ends texts marks the run of it at the end (or the start) of a sample, but for the one that ends it.
    """
    if fields.ids is None:
        return None, "the batch has no ids"
    if (
        fields.mask is not None
        and fields.keys.get("mask") == "attention_mask"
        and fields.mask.shape == fields.ids.shape
    ):
        return (fields.mask == 0).cpu(), "attention_mask 0"
    known = ids_of(settings.get("pad_token_id"))
    if not known:
        return None, "neither an attention_mask nor a pad_token_id is known"
    ids = fields.ids.cpu()
    pads = torch.isin(ids, torch.tensor(sorted(known)))
    if not known & ids_of(settings.get("eos_token_id")):
        return pads, f"id {min(known)}"
    return _outer_runs(pads), f"id {min(known)}, which is the EOS as well, at the edge of a sample"


def _outer_runs(pads: torch.Tensor) -> torch.Tensor:
    """The runs at the end of every sample without their first token, and those at the start without their last."""
    at_end = pads.flip(1).long().cumprod(1).flip(1).bool()
    at_start = pads.long().cumprod(1).bool()
    behind = torch.zeros_like(pads)
    behind[:, 1:] = at_end[:, 1:] & at_end[:, :-1]
    before = torch.zeros_like(pads)
    before[:, :-1] = at_start[:, :-1] & at_start[:, 1:]
    return behind | before


@dataclass(frozen=True, slots=True)
class Repeat:
    """An n-gram that follows itself: n tokens, how often in a row, from which token on."""

    length: int
    times: int
    start: int


def longest_repeat(ids: Sequence[int] | np.ndarray[Any, Any]) -> Repeat:
    """The n-gram of 1 to 13 tokens that stands most often in a row; the shortest where several do."""
    row = np.asarray(ids)
    best = Repeat(1, min(len(row), 1), 0)
    for length in range(1, min(LONGEST_NGRAM, len(row) // 2) + 1):
        same = row[length:] == row[:-length]
        edges = np.flatnonzero(np.diff(np.concatenate(([False], same, [False])).astype(np.int8)))
        starts, ends = edges[::2], edges[1::2]
        if not len(starts):
            continue
        longest = int(np.argmax(ends - starts))
        times = int(ends[longest] - starts[longest]) // length + 1
        if times > best.times:
            best = Repeat(length, times, int(starts[longest]))
    return best


def single_token_share(ids: Sequence[int] | np.ndarray[Any, Any]) -> float:
    """The share of the most frequent token; 0 for none."""
    counts = np.unique(np.asarray(ids), return_counts=True)[1]
    return float(counts.max() / counts.sum()) if len(counts) else 0.0


def at_least(successes: int, trials: int, chance: float) -> float:
    """The probability of at least so many successes (binomial)."""
    return sum(math.comb(trials, k) * chance**k * (1 - chance) ** (trials - k) for k in range(successes, trials + 1))
