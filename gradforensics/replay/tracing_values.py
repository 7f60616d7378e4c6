"""Looking at single tensors: is there a NaN or an Inf, in which range are they, whose sample and token is it."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeGuard

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

Kind: TypeAlias = Literal["", "nan", "posinf", "neginf"]  # of the worst value in a tensor; "" where all are finite


def traceable(value: Any) -> TypeGuard[torch.Tensor]:
    """Whether it is a tensor of real floating-point numbers that can be looked at."""
    return (
        isinstance(value, torch.Tensor)
        and value.dtype.is_floating_point
        and value.layout == torch.strided
        and value.numel() > 0
        and value.device.type != "meta"
        and not is_traceable_wrapper_subclass(value)
    )


def kind_of(tensor: torch.Tensor) -> Kind:
    """The worst value of a tensor: NaN before +Inf before -Inf. Reads it once and waits for its device once."""
    held = tensor.detach()
    if held.dtype.itemsize == 1:  # of float8 there is no minimum
        held = held.float()
    low, high = torch.stack(torch.aminmax(held)).tolist()
    if math.isnan(high):
        return "nan"
    if high == math.inf:
        return "posinf"
    return "neginf" if low == -math.inf else ""


@dataclass(frozen=True, slots=True)
class Summary:
    """One input of an operation. smallest, largest: of its finite values, None without one."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    smallest: float | None
    largest: float | None
    nonfinite: int
    zeros: int

    def __str__(self) -> str:
        span = "no finite value" if self.smallest is None else f"{self.smallest:.4g} to {self.largest:.4g}"
        counts = [f"not finite: {self.nonfinite}"] if self.nonfinite else []
        counts += [f"exactly 0: {self.zeros}"] if self.zeros else []
        return ", ".join([f"{self.name} {self.dtype} {list(self.shape)}: {span}", *counts])


def summary_of(name: str, tensor: torch.Tensor) -> Summary:
    """Range, zeros and non-finite values of a tensor of numbers; an empty one has none of them."""
    held = tensor.detach()
    if held.dtype.itemsize == 1:
        held = held.float()
    finite = torch.isfinite(held)
    good = held[finite]
    low, high = (float(x) for x in torch.aminmax(good)) if good.numel() else (None, None)
    return Summary(
        name=name,
        dtype=str(tensor.dtype).removeprefix("torch."),
        shape=tuple(tensor.shape),
        smallest=low,
        largest=high,
        nonfinite=int(finite.numel() - good.numel()),
        zeros=int((good == 0).sum()),
    )


@dataclass(frozen=True, slots=True)
class Place:
    """Where the first bad element is. index: into the tensor. sample, token: of the micro-batch, where shapes tell.

    bad: number of such elements. hit: number of samples with one, None where shapes do not tell.
    """

    index: tuple[int, ...] = ()
    bad: int = 0
    sample: int | None = None
    token: int | None = None
    hit: int | None = None


def place_of(tensor: torch.Tensor, kind: Kind, samples: int, tokens: int, weights: Collection[torch.Size]) -> Place:
    """The first bad element of a tensor that a micro-batch of `samples` x `tokens` gave.

    weights: shapes of parameters; a tensor of such a shape belongs to no sample. kind: as `kind_of` says.
    """
    bad = _bad(tensor.detach(), kind)
    first = int(bad.flatten().to(torch.uint8).argmax())
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(first), tensor.shape))
    count = int(bad.sum())
    if tensor.shape in weights:
        return Place(index, count)
    layout = _layout(tuple(tensor.shape), samples, tokens)
    if layout is None:
        return Place(index, count)
    axis, divisor, token_axis = layout
    rows = bad.movedim(axis, 0).flatten(1).any(1) if tensor.dim() > 1 else bad
    hit = len({int(i) // divisor for i in rows.nonzero().flatten()})
    token = None if token_axis is None else index[token_axis]
    if token_axis == axis:
        token = index[axis] % divisor
    return Place(index, count, index[axis] // divisor, token, hit)


def _bad(tensor: torch.Tensor, kind: Kind) -> torch.Tensor:
    if kind == "nan":
        return torch.isnan(tensor)
    return torch.isposinf(tensor) if kind == "posinf" else torch.isneginf(tensor)


def _layout(shape: tuple[int, ...], samples: int, tokens: int) -> tuple[int, int, int | None] | None:
    """(axis of the samples, rows of it per sample, axis of the tokens) of a tensor, None where its shape does not tell.

    Known are (B, ...), (B*T) and (B*T, F), (B*heads, T, ...) and (T, B, ...); the token is the first axis of length T
    behind that of the samples, which for attention scores is that of the query.
    """
    if not shape or not samples:
        return None
    behind = next((i for i in range(1, len(shape)) if tokens > 1 and shape[i] == tokens), None)
    if shape[0] == samples:
        return 0, 1, behind
    if tokens > 1 and shape[0] == samples * tokens and len(shape) <= 2:
        return 0, tokens, 0
    if len(shape) >= 3 and shape[0] % samples == 0 and behind is not None:
        return 0, shape[0] // samples, behind
    if tokens > 1 and len(shape) >= 2 and shape[:2] == (tokens, samples):
        return 1, 1, 0
    return None
