"""GF26 in checkpoints: a bit of one weight that flipped in memory before it was saved, and nothing that says so."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from checkpoint_lab import configure, objective, save, small_lm, train_and_save
from gf26 import kernel_log
from lab import Sample, json_lines, main
from torch.optim import AdamW

torch.set_num_threads(1)

FIRST, LAST = 40, 60
WIDTH = 8
LR = 5e-4


def flipped(run: Path, *, bit: int) -> None:
    """Flip one bit of one weight after the last step, before the last checkpoint; the kernel has nothing to say."""
    configure(run, hidden_size=WIDTH, learning_rate=LR, max_steps=LAST)
    model = small_lm(width=WIDTH)
    optimizer = AdamW(model.parameters(), LR, betas=(0.9, 0.95), weight_decay=0.1)
    with json_lines(run / "metrics.jsonl") as log:
        train_and_save(run, model, optimizer, objective(model), log, steps=LAST, saved=(FIRST,))
    model.head.weight.detach().view(torch.int32)[5, 3] ^= 1 << bit
    save(run, LAST, model, optimizer)
    kernel_log(run, ())


SAMPLES = (
    Sample(
        "gf26-silent-corruption",
        "gf26_checkpoints",
        partial(flipped, bit=30),
        "the highest exponent bit of one weight flips between the last step and the last checkpoint",
        case="GF26",
        variant="silent-corruption",
        checkpoints=True,
    ),
    Sample(
        "gf26-twin-silent",
        "gf26_checkpoints",
        partial(flipped, bit=20),
        "bit 20, of the mantissa: one weight is a little different, which harms nothing and nobody can see",
        case="GF26",
        twin=True,
        checkpoints=True,
    ),
)

if __name__ == "__main__":
    main(SAMPLES)
