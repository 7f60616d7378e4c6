"""The recorder in a loop of Accelerate.

model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
with make_recorder(accelerator, model, optimizer, "runs/7", program=build, max_grad_norm=1.0) as recorder:
    for batch in loader:
        with accelerator.accumulate(model):
            recorder.batch(batch)
            loss = recorder.loss(loss_of(model, batch))
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn

from gradforensics.recorder.recorder import Recorder


def make_recorder(
    accelerator: Any, model: nn.Module, optimizer: torch.optim.Optimizer, folder: str | os.PathLike[str], **options: Any
) -> Recorder:
    """A recorder of what accelerator.prepare returned, with the accelerator's gradient scaler and accumulation.

    options: more arguments of `Recorder` (program, settings, max_grad_norm, at_steps ...).
    """
    given = {"scaler": accelerator.scaler, "accumulation": accelerator.gradient_accumulation_steps, **options}
    return Recorder(model, optimizer, folder, **given)
