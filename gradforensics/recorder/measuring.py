"""The numbers of a step when its gradients are complete, as tensors that are still on their device."""

from __future__ import annotations

from typing import Any

import torch

from gradforensics.recorder import gradients
from gradforensics.recorder.names import Names
from gradforensics.recorder.state import scale_of
from gradforensics.recorder.steps import StepRecord


def losses(record: StepRecord, scaler: Any | None) -> dict[str, torch.Tensor]:
    """What came out of the micro-batches so far, and the loss scale, as far as they are not numbers yet."""
    found: dict[str, torch.Tensor] = {}
    for index, micro in enumerate(record.micros):
        if isinstance(micro.loss, torch.Tensor):
            found[f"loss{index}"] = micro.loss
        if micro.backward is not None and micro.backward.is_cuda:
            found[f"backward{index}"] = micro.backward
    scale = scale_of(scaler)
    if isinstance(scale, torch.Tensor):
        found["scale"] = scale
    else:
        record.scale = scale
    return found


def options(record: StepRecord) -> dict[str, torch.Tensor]:
    """Options of parameter groups that are tensors on a CUDA device, such as a learning rate that is captured there."""
    return {
        f"option{index}.{key}": value
        for index, group in enumerate(record.options)
        for key, value in group.items()
        if isinstance(value, torch.Tensor) and value.is_cuda and value.numel() == 1
    }


def step(
    record: StepRecord, names: Names, optimizer: torch.optim.Optimizer, *, always_clipped: bool, layers: bool
) -> dict[str, torch.Tensor]:
    """The gradient's norms, and what a fused optimizer is given to unscale by itself.

    always_clipped: take the norm of what the optimizer gets also where there is one from before clipping. layers: the
    norm of every parameter's gradient as well.
    """
    found: dict[str, torch.Tensor] = {}
    for name, key in (("found_inf", "found_inf"), ("grad_scale", "factor")):
        value = getattr(optimizer, name, None)
        if isinstance(value, torch.Tensor):
            found[key] = value
    if record.unclipped is not None:
        found["norm"] = record.unclipped
    if record.unclipped is None or always_clipped:
        listed, single, found["clipped"] = gradients.norms(names)
        if record.unclipped is None:
            record.names, record.single = listed, single
    if record.single is not None and layers:
        found["layers"] = record.single
    record.single = record.unclipped = None
    return found


def leave_out_idle(record: StepRecord) -> None:
    """Leave out micro-batches without a backward where others have one: they are not part of the step's gradient.

    Such are an evaluation, a first forward of two that share a loss, and a batch that the loop skips.
    """
    ran = [micro for micro in record.micros if micro.backward is not None]
    if ran:
        record.idle += len(record.micros) - len(ran)
        record.micros[:] = ran
