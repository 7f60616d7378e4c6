"""GF09 in checkpoints: gradients that fade with depth, told by Adam's second moments alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from checkpoint_lab import save
from gf09 import DeepMLP
from lab import Chain, Sample, current_lr, json_lines, main, next_token_loss, plain_config, write_json
from torch import Tensor, nn

STEPS = 140
SAVED = (110, 140)
VOCAB, WIDTH = 16, 12
LR = 3e-3


def saved(run: Path, activation: Callable[[Tensor], Tensor], *, depth: int, eps: float = 1e-8) -> None:
    """Train with AdamW at a constant rate; the log has no gradients of layers."""
    chain, generator = Chain.make(vocab=VOCAB), np.random.default_rng(1)
    torch.manual_seed(0)
    model = DeepMLP(activation, depth, VOCAB, WIDTH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.95), eps=eps, weight_decay=0.1)
    shape = {"vocab_size": VOCAB, "hidden_size": WIDTH, "num_layers": depth}
    write_json(run / "config.json", plain_config(**shape, learning_rate=LR, max_steps=STEPS))
    with json_lines(run / "metrics.jsonl") as log:
        for step in range(1, STEPS + 1):
            tokens = chain.sample(generator)
            optimizer.zero_grad()
            loss = next_token_loss(model(tokens[:, :-1]), tokens)
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
            norm = float(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
            optimizer.step()
            if step % 10 == 0:
                log({"step": step, "loss": loss.item(), "grad_norm": norm, "lr": current_lr(optimizer)})
            if step in SAVED:
                save(run, step, model, optimizer)


SAMPLES = (
    Sample(
        "gf09-below-eps",
        "gf09_checkpoints",
        lambda run: saved(run, torch.sigmoid, depth=10),
        "10 sigmoid layers, only the total norm is logged: the second moments show 1e-8 from last to first layer",
        case="GF09",
        variant="below-eps",
        checkpoints=True,
    ),
    Sample(
        "gf09-second-moments",
        "gf09_checkpoints",
        lambda run: saved(run, torch.sigmoid, depth=9, eps=1e-15),
        "9 sigmoid layers with an eps of 1e-15, which makes up for the size of their gradients",
        case="GF09",
        variant="second-moments",
        checkpoints=True,
    ),
    Sample(
        "gf09-twin-checkpoints",
        "gf09_checkpoints",
        lambda run: saved(run, torch.relu, depth=8),
        "8 ReLU layers at default initialisation, whose gradients had recovered when the first checkpoint was saved",
        case="GF09",
        twin=True,
        checkpoints=True,
    ),
)

if __name__ == "__main__":
    main(SAMPLES)
