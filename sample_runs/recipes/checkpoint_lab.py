"""What the recipes of checkpoints share: a language model of a few thousand weights, and a loop that saves.

Two checkpoints with their optimizer states fit into a sample. Recipes that need another writer than torch.save in a
plain loop (Trainer, Lightning, DCP, DeepSpeed's layout) train through that framework.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import numpy as np
import torch
from lab import LENGTH, Chain, Log, TinyLM, current_lr, gradient_norm, next_token_loss, plain_config, write_json
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

VOCAB = 32
WIDTH = 16
CHAIN = Chain.make(vocab=VOCAB)
CONFIG = plain_config(vocab_size=VOCAB, hidden_size=WIDTH)


def small_lm(seed: int = 0, layers: int = 2, width: int = WIDTH) -> TinyLM:
    """Give a fresh model of about 5000 weights at width 16 and two layers."""
    torch.manual_seed(seed)
    return TinyLM(vocab=VOCAB, width=width, layers=layers)


def objective(model: nn.Module, seed: int = 1) -> Callable[[int], Tensor]:
    """Loss of the next token on fresh sequences: step -> loss."""
    generator = np.random.default_rng(seed)

    def loss(_step: int) -> Tensor:
        tokens = CHAIN.sample(generator, length=LENGTH // 2 + 1)
        return next_token_loss(model(tokens[:, :-1]), tokens)

    return loss


def save(run: Path, step: int, model: nn.Module, optimizer: Optimizer | None = None, **more: object) -> Path:
    """Save as most plain loops do: one file with the state dicts, the step and whatever else is named."""
    state: dict[str, object] = {"model": model.state_dict(), "step": step}
    if optimizer is not None:
        state["optimizer"] = optimizer.state_dict()
    path = run / f"checkpoint-{step:06d}.pt"
    torch.save(state | more, path)
    return path


def train_and_save(
    run: Path,
    model: nn.Module,
    optimizer: Optimizer,
    loss: Callable[[int], Tensor],
    log: Log,
    *,
    steps: int,
    saved: Collection[int],
    schedule: LRScheduler | None = None,
    clip: float | None = 1.0,
    first: int = 1,
    every: int = 1,
    before_step: Callable[[int], object] | None = None,
) -> None:
    """Train, log every `every`-th step with the rate that was applied, and save after the steps `saved`.

    before_step: called with the step between the backward pass and the optimizer's step.
    """
    for step in range(first, steps + 1):
        optimizer.zero_grad()
        value = loss(step)
        value.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
        norm = gradient_norm(model) if clip is None else float(nn.utils.clip_grad_norm_(model.parameters(), clip))
        if before_step is not None:
            before_step(step)
        rate = current_lr(optimizer)
        optimizer.step()
        if schedule is not None:
            schedule.step()
        if step == first or step % every == 0:
            log({"step": step, "loss": value.item(), "grad_norm": norm, "lr": rate})
        if step in saved:
            more: Mapping[str, object] = {} if schedule is None else {"scheduler": schedule.state_dict()}
            save(run, step, model, optimizer, **more)


def configure(run: Path, **facts: object) -> None:
    """Write config.json with the defaults of this lab and `facts`."""
    write_json(run / "config.json", CONFIG | facts)
