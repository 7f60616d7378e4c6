"""A plain loop with gradient accumulation: what is divided, what is logged and what is counted can each be wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from lab import Chain, Log, TinyLM, adamw, cosine, current_lr, gradient_norm, next_token_loss, scheduler
from torch import Tensor, nn

Objective = Callable[[Tensor, Tensor], Tensor]

LR = 3e-3
WARMUP = 20


def mean(values: Sequence[float]) -> float:
    """Mean of the micro-batches' losses: what should be logged."""
    return float(np.mean(values))


@dataclass
class Accumulation:
    """How a step is put together. divisor: what each loss is divided by before backward."""

    chain: Chain
    steps: int
    micro_batches: int = 1
    micro_size: int = 16
    divisor: float = 1.0
    logged: Callable[[Sequence[float]], float] = mean
    objective: Objective = next_token_loss
    clip: float | None = 1.0
    lr: float = LR
    evaluate_every: int = 0
    micro_norm: bool = False
    """Also log the gradient norm of the first micro-batch."""
    more: Callable[[int], dict[str, object]] = field(default=lambda _step: {})
    """More cells of a step's row."""


def train(model: TinyLM, generator: np.random.Generator, log: Log, how: Accumulation) -> None:
    """Train with AdamW, warm-up and cosine; log loss, norm before clipping, rate and, at times, the held-out loss."""
    optimizer = adamw(model, how.lr)
    schedule = scheduler(optimizer, cosine(WARMUP, how.steps))
    held_out = how.chain.sample(np.random.default_rng(77), count=256)
    for step in range(1, how.steps + 1):
        optimizer.zero_grad()
        losses: list[float] = []
        small: dict[str, object] = {}
        for micro in range(how.micro_batches):
            tokens = how.chain.sample(generator, count=how.micro_size)
            loss = how.objective(model(tokens[:, :-1]), tokens)
            (loss / how.divisor).backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
            losses.append(loss.item())
            if micro == 0 and how.micro_norm:
                small = {"micro_grad_norm": gradient_norm(model) * how.divisor}
        clip = how.clip
        norm = gradient_norm(model) if clip is None else float(nn.utils.clip_grad_norm_(model.parameters(), clip))
        rate = current_lr(optimizer)
        optimizer.step()
        schedule.step()
        row = {"step": step, "loss": how.logged(losses), "grad_norm": norm, "lr": rate}
        if how.evaluate_every and step % how.evaluate_every == 0:
            with torch.no_grad():
                row["eval_loss"] = next_token_loss(model(held_out[:, :-1]), held_out).item()
        log({**row, **small, **how.more(step)})
