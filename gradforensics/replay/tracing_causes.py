"""Why an operation made a non-finite value, where its inputs show it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from gradforensics.replay.tracing_ops import Operator
from gradforensics.replay.tracing_values import Kind, traceable

SOFTMAX = frozenset({"softmax", "log_softmax", "safe_softmax"})
NO_LABEL = "no label of the micro-batch is valid"
# Of which node of the graph the derivative has no finite value where.
_DERIVATIVES = {
    "Sqrt": "the derivative of sqrt at 0 is infinite",
    "Rsqrt": "the derivative of rsqrt at 0 is infinite",
    "Log": "the derivative of log at 0 is infinite",
    "Div": "the derivative of a quotient is not finite where the divisor is 0",
    "Reciprocal": "the derivative of 1/x is not finite at 0",
    "Pow": "the derivative of this power at 0 is infinite",
    "Acos": "the derivative of acos at -1 and 1 is infinite",
    "Asin": "the derivative of asin at -1 and 1 is infinite",
    "Atan2": "the derivative of atan2 at (0, 0) is not finite",
}

# Where a function of one argument is infinite although no result was too large.
_POLES = {
    "atanh": "atanh is infinite at -1 and 1",
    "erfinv": "erfinv is infinite at -1 and 1",
    "logit": "logit is infinite at 0 and 1",
    "lgamma": "lgamma is infinite at 0 and at negative whole numbers",
    "digamma": "digamma is infinite at 0",
    "ctc_loss": "a target does not fit into the length of its input",
}


def fully_masked(operator: Operator, args: tuple[Any, ...]) -> bool:
    """Whether the call is a softmax with a row that holds nothing but -inf."""
    return operator.name in SOFTMAX and _empty_row(args)


def _empty_row(args: tuple[Any, ...]) -> bool:
    """Whether the first argument holds nothing but -inf along the dimensions that the second names."""
    if len(args) < 2 or not traceable(args[0]) or not args[0].dim():
        return False
    return bool((args[0].amax(args[1]) == -math.inf).any())


def explained(operator: Operator, node: str, named: Mapping[str, Any], args: tuple[Any, ...], out: torch.Tensor,
              kind: Kind) -> str:  # fmt: skip
    """The reason in words, "" where nothing is known. node: of the backward that ran, "" in the forward."""
    first = args[0] if args else None
    if node:
        return _in_backward(operator, node, args, out, kind)
    if operator.name.startswith("nll_loss") and kind == "nan":
        return _labels(named)
    if fully_masked(operator, args) or (operator.name == "logsumexp" and kind == "neginf" and _empty_row(args)):
        return "a row of its input holds nothing but -inf: it is masked completely"
    if divided := _by_zero(operator, args, kind):
        return divided
    if operator.name in _POLES and kind != "nan" and not (operator.name == "lgamma" and not _at_pole(first)):
        return _POLES[operator.name]
    if operator.name in ("log", "log2", "log10", "log1p"):
        return "the logarithm of a number below its domain" if kind == "nan" else "the logarithm of 0"
    if operator.name in ("sqrt", "rsqrt", "pow") and kind == "nan":
        return "a root of a negative number"
    if operator.name == "mean" and isinstance(first, torch.Tensor) and not first.numel():
        return "it is the mean of no elements"
    if operator.name == "mul" and kind == "nan":
        return "0 times infinity"
    if any(isinstance(a, float) and math.isnan(a) for a in named.values()):
        return "NaN is written here as a constant"
    return _beyond(out) if kind != "nan" else ""


def _at_pole(value: Any) -> bool:
    """Whether lgamma has a pole at one of these numbers; of a large one its result is merely too large."""
    return isinstance(value, torch.Tensor) and bool(((value <= 0) & (value == value.floor())).any())


def _by_zero(operator: Operator, args: tuple[Any, ...], kind: Kind) -> str:
    if operator.name not in ("div", "reciprocal", "rsqrt") or not _any_zero(args[-1]):
        return ""
    return "0 is divided by 0" if kind == "nan" else "the divisor is 0"


def _in_backward(operator: Operator, node: str, args: tuple[Any, ...], out: torch.Tensor, kind: Kind) -> str:
    reason = _DERIVATIVES.get(node.removesuffix("Backward0"))
    if reason is None:
        return _by_zero(operator, args, kind) or (_beyond(out) if kind != "nan" else "")
    if kind == "nan":
        return f"{reason}, and the gradient that comes there is 0 (as from the branch that a torch.where left out)"
    return f"{reason}, unless the gradient itself leaves the range of {_dtype(out)}"


def _labels(named: Mapping[str, Any]) -> str:
    target, ignored = named.get("target"), named.get("ignore_index", -100)
    if isinstance(target, torch.Tensor) and bool((target == ignored).all()):
        return f"{NO_LABEL} (all are {ignored}): the mean over them is 0/0"
    return "the weights of its labels sum to 0" if named.get("weight") is not None else ""


def _any_zero(value: Any) -> bool:
    return bool((value == 0).any()) if isinstance(value, torch.Tensor) else value == 0


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _beyond(out: torch.Tensor) -> str:
    return f"its result is beyond the largest number of {_dtype(out)}, {torch.finfo(out.dtype).max:.5g}"
