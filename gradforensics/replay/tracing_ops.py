"""What the tracer must know about PyTorch's operators: readable names, and which of them only move or fill values."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

# As they come out of the allocator: whatever such a tensor holds is meant to be overwritten.
_UNINITIALISED = frozenset(
    {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted", "resize_"}
)
# In place, but nothing of the old value is left.
_OVERWRITING = frozenset(
    {
        "bernoulli_", "cauchy_", "copy_", "exponential_", "fill_", "geometric_", "log_normal_", "normal_", "random_",
        "uniform_", "zero_",
    }
)  # fmt: skip
# Every element of the result depends on many of the input: an infinity that was put there as a mask does not stay in
# its place.
_CONTRACTING = frozenset({"matmul", "convolution", "scaled_dot_product_attention", "cumsum", "cumprod", "logcumsumexp"})
_READABLE = {
    "mm": "matmul", "bmm": "matmul", "addmm": "matmul", "baddbmm": "matmul", "addbmm": "matmul", "addmv": "matmul",
    "mv": "matmul", "dot": "matmul", "linear": "matmul", "to_copy": "cast", "linalg_vector_norm": "norm",
}  # fmt: skip
_PREFIX = re.compile(r"^(?:native|cudnn|miopen|mkldnn|mps|fused|foreach)_")
_SUFFIX = re.compile(r"_(?:forward|data|impl|nd|nd_forward)$")


@dataclass(frozen=True, slots=True)
class Operator:
    """name: readable ("softmax"). aten: as PyTorch calls it ("aten._softmax"). arguments: names, in order.

    ignored: makes no value that matters (views; what optimizers and clipping do to many tensors at once).
    uninitialised: its values mean nothing. mutated: names of the arguments that it changes. overwrites: nothing of
    their old values is left. contracting: see above.
    """

    name: str
    aten: str
    arguments: tuple[str, ...]
    ignored: bool
    uninitialised: bool
    mutated: tuple[str, ...]
    overwrites: bool
    contracting: bool

    def named(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """The arguments of a call with their names; the parts of a list have its name and their number."""
        for name, value in [*zip(self.arguments, args, strict=False), *kwargs.items()]:
            if isinstance(value, (list, tuple)):
                yield from ((f"{name}[{index}]", part) for index, part in enumerate(value))
            else:
                yield name, value


@functools.cache
def operator_of(overload: torch._ops.OpOverload) -> Operator:
    """What is known about an operator, from its schema and the lists above."""
    schema = overload._schema  # noqa: SLF001  the public way to it is the text of the schema
    namespace, _, base = schema.name.partition("::")
    mutated = tuple(a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write)
    view = any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)
    readable = _readable(base)
    return Operator(
        name=readable,
        aten=f"{namespace}.{base}",
        arguments=tuple(a.name for a in schema.arguments),
        ignored=view or base.startswith(("_foreach_", "_amp_", "_fused_")) or base == "_unsafe_view",
        uninitialised=base in _UNINITIALISED,
        mutated=mutated,
        overwrites=base in _OVERWRITING or "out" in mutated,
        contracting=readable in _CONTRACTING,
    )


def _readable(base: str) -> str:
    name = base.strip("_")
    if name.startswith("scaled_dot_product"):
        return "scaled_dot_product_attention"
    name = _SUFFIX.sub("", _PREFIX.sub("", name))
    return _READABLE.get(name, name)


def infinite_constant(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call was given an infinity as a plain number: it is meant to write or to add one."""
    return any(isinstance(a, float) and math.isinf(a) for a in (*args, *kwargs.values()))
