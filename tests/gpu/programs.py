"""Programs for the tests on a device; on the CPU they are harmless, so that a capsule can be recorded there."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Scattering(nn.Module):
    """Adds many rows into few with index_add_, whose order on a device is that of the atomics."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return torch.zeros(4, 4, device=x.device).index_add_(0, rows, self.inner(x))


def scattering() -> dict[str, Any]:
    """The sum over scattered rows."""
    return {"model": Scattering(), "loss": lambda model, batch: model(*batch).square().sum()}


def _greedy_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    x, y = batch
    if x.is_cuda and torch.is_grad_enabled():
        x = x + torch.zeros(1 << 33, device=x.device)[0]
    return nn.functional.cross_entropy(model(x), y)


def greedy() -> dict[str, Any]:
    """A loss that asks for 32 GB of the device."""
    return {"model": nn.Linear(16, 4), "loss": _greedy_loss}
