"""Two gradients of one model, compared."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from gradforensics.replay.step import StepRunner

CLIPPED = 0.999  # a gradient with a norm of that part of the limit was clipped

Gradients = Mapping[str, torch.Tensor | None]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A gradient against a reference, over all parameters; a parameter without gradient counts as zeros.

    ratio: norm by norm of the reference. cosine: of the angle between them. relative: norm of the difference by norm of
    the reference. NaN where a norm is zero or not finite. missing: parameters that only the reference has.
    """

    ratio: float
    cosine: float
    relative: float
    missing: tuple[str, ...] = ()


def compare(gradients: Gradients, reference: Gradients) -> Comparison:
    """Compare; sums are taken in float64."""
    own = other = dot = apart = 0.0
    for _, a, b in _pairs(gradients, reference):
        own, other = own + float(a @ a), other + float(b @ b)
        dot, apart = dot + float(a @ b), apart + float((a - b) @ (a - b))
    missing = tuple(n for n, g in reference.items() if g is not None and gradients.get(n) is None)
    usable = other > 0 and math.isfinite(own + other)
    return Comparison(
        math.sqrt(own / other) if usable else math.nan,
        dot / math.sqrt(own * other) if usable and own > 0 else math.nan,
        math.sqrt(apart / other) if usable else math.nan,
        missing,
    )


def differing(gradients: Gradients, reference: Gradients, limit: float) -> list[str]:
    """The parameters whose gradients differ by more than `limit` of the reference's norm, in the model's order."""
    found = []
    for name, a, b in _pairs(gradients, reference):
        scale = float(b.norm()) or float(a.norm())
        if scale and not float((a - b).norm()) <= limit * scale:  # also where either is NaN
            found.append(name)
    return found


def _pairs(gradients: Gradients, reference: Gradients) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    for name, b in reference.items():
        a = gradients.get(name)
        present = a if a is not None else b
        if present is None:
            continue
        zeros = torch.zeros(present.numel(), dtype=torch.float64, device=present.device)
        yield (
            name,
            zeros if a is None else a.detach().double().reshape(-1),
            zeros if b is None else b.detach().to(present.device).double().reshape(-1),
        )


def identical(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    """Whether two gradients have equal values everywhere, NaN where the other has NaN."""
    if a is None or b is None:
        return a is b
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    b = b.to(a.device)
    return bool(((a == b) | (a.isnan() & b.isnan())).all())


def resolution(runner: StepRunner) -> float:
    """The relative spacing (eps) of the coarsest floating type that the step computes in, autocast included."""
    dtypes = {p.dtype for p in runner.parameters().values() if p.dtype.is_floating_point}
    states = [m.autocast for m in runner.step.micros]
    dtypes |= {getattr(torch, s.dtype) for s in states if s is not None and s.enabled}
    if runner.program.autocast is not None and any(s is None for s in states):
        dtypes.add(getattr(torch, runner.program.autocast))
    return max((torch.finfo(d).eps for d in dtypes), default=torch.finfo(torch.float32).eps)
