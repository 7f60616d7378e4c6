"""What the parts of a batch are: samples along the first dimension, tokens along the second, ids, labels and masks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from gradforensics.replay.recording import Micro
from gradforensics.torch_state import tensors_of

_IDS = ("input_ids", "ids", "tokens", "token_ids", "inputs", "input", "x", "src", "source")
_LABELS = ("labels", "label", "targets", "target", "y", "tgt")
_MASKS = ("attention_mask", "mask", "padding_mask")
_POSITIONS = ("position_ids", "positions")


def size(batch: Any) -> int:
    """The number of samples: the first dimension that most tensors share; 0 without a tensor that has one."""
    firsts = Counter(t.shape[0] for t in tensors_of(batch) if t.dim() >= 1)
    return firsts.most_common(1)[0][0] if firsts else 0


def length(batch: Any) -> int:
    """The number of tokens per sample: the second dimension that most tensors of all samples share; 0 without."""
    count = size(batch)
    seconds = Counter(t.shape[1] for t in tensors_of(batch) if t.dim() >= 2 and t.shape[0] == count)
    return seconds.most_common(1)[0][0] if seconds else 0


def take(batch: Any, samples: Sequence[int]) -> Any:
    """The batch with these samples only, in this order."""
    count = size(batch)
    index = torch.tensor(list(samples), dtype=torch.long)

    def chosen(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.index_select(0, index.to(tensor.device)) if tensor.dim() and tensor.shape[0] == count else tensor

    return _mapped(batch, chosen, lambda items: [items[i] for i in samples] if len(items) == count else None)


def cut(batch: Any, tokens: int) -> Any:
    """The batch with the first `tokens` tokens of every sample; square masks lose rows and columns."""
    count, full = size(batch), length(batch)

    def chosen(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() >= 2 and tensor.shape[0] == count and tensor.shape[1] == full:
            tensor = tensor[:, :tokens]
        if tensor.dim() == 4:
            if tensor.shape[2] == full:
                tensor = tensor[:, :, :tokens]
            if tensor.shape[3] == full:
                tensor = tensor[:, :, :, :tokens]
        return tensor

    return _mapped(batch, chosen, lambda _: None)


def graft(batch: Any, token: int) -> Any:
    """Of a batch of two samples the first one, with this token of the second in its place."""
    full = length(batch)

    def chosen(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.dim() or tensor.shape[0] != 2:
            return tensor
        first = tensor[:1].clone()
        if tensor.dim() >= 2 and tensor.shape[1] == full:
            first[:, token] = tensor[1:, token]
        return first

    return _mapped(batch, chosen, lambda items: items[:1] if len(items) == 2 else None)


def _mapped(
    value: Any,
    on_tensor: Callable[[torch.Tensor], torch.Tensor],
    on_items: Callable[[list[Any]], list[Any] | None],
) -> Any:
    """A batch of the same containers; on_items may replace a list of plain values, one per sample."""
    if isinstance(value, torch.Tensor):
        return on_tensor(value)
    if isinstance(value, Mapping):
        return {key: _mapped(item, on_tensor, on_items) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        plain = None if any(True for _ in tensors_of(value)) else on_items(list(value))
        items = plain if plain is not None else [_mapped(item, on_tensor, on_items) for item in value]
        return tuple(items) if isinstance(value, tuple) else items
    return value


def with_batch(micro: Micro, batch: Any) -> Micro:
    """The micro-batch with other data; random state, autocast and weight stay."""
    return replace(micro, batch=batch)


@dataclass(frozen=True, slots=True)
class Fields:
    """The parts of a batch of tokens, each int64 (samples, tokens) or None where the batch has no such part.

    Labels are None as well where they are one class per sample. keys: under which name or position each was found.
    """

    ids: torch.Tensor | None
    labels: torch.Tensor | None
    mask: torch.Tensor | None
    positions: torch.Tensor | None
    keys: Mapping[str, str | int]


def fields_of(batch: Any) -> Fields:
    """Find ids, labels, mask and positions by the names that training code uses; in a pair, by order."""
    found: dict[str, torch.Tensor] = {}
    keys: dict[str, str | int] = {}
    if isinstance(batch, Mapping):
        for part, names in (("ids", _IDS), ("labels", _LABELS), ("mask", _MASKS), ("positions", _POSITIONS)):
            name = next((n for n in names if isinstance(batch.get(n), torch.Tensor)), None)
            if name is not None and batch[name].dim() == 2:
                found[part], keys[part] = batch[name], name
    elif isinstance(batch, (list, tuple)):
        for part, index in (("ids", 0), ("labels", 1), ("mask", 2)):
            if index < len(batch) and isinstance(batch[index], torch.Tensor) and batch[index].dim() == 2:
                found[part], keys[part] = batch[index], index
    elif isinstance(batch, torch.Tensor) and batch.dim() == 2:
        found["ids"], keys["ids"] = batch, 0
    for part in ("ids", "labels", "positions"):
        if part in found and found[part].dtype.is_floating_point:
            del found[part], keys[part]
    return Fields(found.get("ids"), found.get("labels"), found.get("mask"), found.get("positions"), keys)


def replaced(batch: Any, key: str | int, tensor: torch.Tensor) -> Any:
    """The batch with another tensor under one of the `keys` of its `Fields`."""
    if isinstance(batch, Mapping):
        return {**batch, key: tensor}
    if isinstance(batch, (list, tuple)):
        return type(batch)(tensor if place == key else item for place, item in enumerate(batch))
    return tensor
