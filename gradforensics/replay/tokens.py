"""Pure functions on the tokens of a batch: which are pads, which end a text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from gradforensics.replay.batches import Fields
from gradforensics.token_ids import ids_of


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


def at_least(successes: int, trials: int, chance: float) -> float:
    """The probability of at least so many successes (binomial)."""
    return sum(math.comb(trials, k) * chance**k * (1 - chance) ** (trials - k) for k in range(successes, trials + 1))
