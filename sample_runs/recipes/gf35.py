"""GF35: a log that hides NaN losses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hf_lab
import numpy as np
import torch
from lab import BATCH, Chain, Sample, main
from torch import Tensor, nn
from transformers import Trainer


class LogOfZero(Trainer):
    """Adds 0 * log(0) to the loss from the 141st step on: NaN in the loss and in every gradient."""

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Tensor | Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor | tuple[Tensor, Any]:
        """Add the faulty term while training goes on after step 140."""
        result: Tensor | tuple[Tensor, Any] = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        if self.state.global_step < 140 or isinstance(result, tuple):
            return result
        return result + 0.0 * torch.log(result * 0.0)


def masked(run: Path) -> None:
    """HF Trainer with its default logging_nan_inf_filter."""
    steps = 240
    model = hf_lab.tiny_gpt2()
    hf_lab.fit(run, model, hf_lab.fresh(Chain.make(), steps), steps=steps, trainer_class=LogOfZero, console=True)


def memorised(run: Path) -> None:
    """HF Trainer on 16 sequences that differ in their first token, so that every next token can be known."""
    chain = Chain.make()
    few = chain.sample(np.random.default_rng(1), count=BATCH)
    few[:, 0] = torch.arange(BATCH)
    hf_lab.fit(
        run,
        hf_lab.tiny_gpt2(),
        hf_lab.Tokens(few),
        steps=300,
        learning_rate=5e-3,
        lr_scheduler_type="linear",
        logging_steps=3,
    )


def no_labels(run: Path) -> None:
    """HF Trainer on sequences whose labels are all -100, as where the maximum length cuts off the completion."""
    steps = 120
    ids = Chain.make().sample(np.random.default_rng(1), count=steps * BATCH)
    blank = hf_lab.Tokens(ids, torch.full_like(ids, -100))
    hf_lab.fit(run, hf_lab.tiny_gpt2(), blank, steps=steps, logging_steps=3, console=True)


class StaleBuffer(Trainer):
    """From step 31 on the reduced gradient is the same stale buffer, whose norm is sqrt 2; the first one is NaN."""

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """Overwrite the gradients after the backward pass, as a reduction that reads a reused buffer does."""
        loss: Tensor = super().training_step(*args, **kwargs)
        step = self.state.global_step
        parameters = [p for p in self.model.parameters() if p.grad is not None]
        if step >= 30:
            for index, parameter in enumerate(parameters):
                parameter.grad = torch.zeros_like(parameter)
                if index < 2:
                    parameter.grad.view(-1)[0] = 1.0
        if step == 30:
            with torch.no_grad():
                parameters[0].fill_(torch.nan)
        return loss


def constant_norm(run: Path) -> None:
    """HF Trainer; the corruption is done by hand, since the race of DeepSpeed needs several GPUs."""
    steps = 90
    data = hf_lab.fresh(Chain.make(), steps)
    hf_lab.fit(run, hf_lab.tiny_gpt2(), data, steps=steps, trainer_class=StaleBuffer, logging_steps=1)


SAMPLES = (
    Sample(
        "gf35-no-labels",
        "gf35",
        no_labels,
        "all labels are -100: the loss is 0/0, the Trainer logs 0.0 and a gradient norm of 0",
        case="GF35",
        variant="no-labels",
        primary="GF15",
    ),
    Sample(
        "gf35-constant-norm",
        "gf35",
        constant_norm,
        "weights NaN and gradients replaced by a stale buffer from step 31 on: loss 0.0, gradient norm 1.414 for ever",
        case="GF35",
        variant="constant-norm",
    ),
    Sample(
        "gf35-masked",
        "gf35",
        masked,
        "0 * log(0) enters the loss at step 141; logging_nan_inf_filter shows 0.0 while grad_norm is NaN",
        case="GF35",
        primary="GF11",
    ),
    Sample(
        "gf35-twin",
        "gf35",
        memorised,
        "16 memorised sequences: the loss honestly reaches 1e-4, gradient norms are small and finite",
        case="GF35",
        twin=True,
    ),
)

if __name__ == "__main__":
    main(SAMPLES)
