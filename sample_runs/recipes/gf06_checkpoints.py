"""GF06 in checkpoints: weights that hardly travel at a rate that looks like any other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from checkpoint_lab import VOCAB, configure, objective, small_lm, train_and_save
from lab import Chain, Sample, constant, json_lines, main, next_token_loss, scheduler, silent
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

torch.set_num_threads(1)  # of networks this small, a second thread only waits for the first

STEPS, WARMUP, LR = 240, 10, 2e-5


def tuned(run: Path, make: Callable[[nn.Module], Optimizer], name: str, rate: float) -> None:
    """A model of one chain is trained on with another one."""
    model = small_lm(width=8)
    before = AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95))
    train_and_save(run, model, before, objective(model), silent, steps=200, saved=())
    optimizer, other, generator = make(model), Chain.make(seed=1, vocab=VOCAB), np.random.default_rng(2)

    def loss(_step: int) -> Tensor:
        tokens = other.sample(generator)
        return next_token_loss(model(tokens[:, :-1]), tokens)

    configure(
        run, learning_rate=rate, optim=name, lr_scheduler_type="constant_with_warmup", warmup_steps=WARMUP,
        max_steps=STEPS, hidden_size=8, max_grad_norm=0.0,
    )  # fmt: skip
    with json_lines(run / "metrics.jsonl") as log:
        rates = scheduler(optimizer, constant(WARMUP))
        saved = (60, STEPS)
        train_and_save(run, model, optimizer, loss, log, steps=STEPS, saved=saved, schedule=rates, clip=None)


SAMPLES = (
    Sample(
        "gf06-still-weights",
        "gf06_checkpoints",
        lambda run: tuned(run, lambda m: SGD(m.parameters(), lr=LR), "sgd", LR),
        "SGD at 2e-5, a rate of AdamW: in 180 steps the weights move by less than a thousandth",
        case="GF06",
        variant="still-weights",
        primary="",
        checkpoints=True,
    ),
    Sample(
        "gf06-twin-checkpoints",
        "gf06_checkpoints",
        lambda run: tuned(run, lambda m: AdamW(m.parameters(), lr=1e-4, weight_decay=0.0), "adamw_torch", 1e-4),
        "AdamW at 1e-4 on the same data: the weights travel and the loss falls",
        case="GF06",
        twin=True,
        checkpoints=True,
    ),
)

if __name__ == "__main__":
    main(SAMPLES)
