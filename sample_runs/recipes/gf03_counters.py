"""GF03 in the counters of checkpoints: an optimizer that is stepped after every micro-batch."""

from __future__ import annotations

from pathlib import Path

import torch
from checkpoint_lab import configure, objective, save, small_lm
from lab import Sample, json_lines, main

STEPS, SAVED, MICRO, WIDTH, LR = 60, (30, 60), 4, 8, 1e-3


def stepped_each(run: Path, *, healthy: bool = False) -> None:
    """Four micro-batches per step; where not `healthy`, optimizer and gradients are stepped and cleared in each."""
    configure(run, hidden_size=WIDTH, gradient_accumulation_steps=MICRO, learning_rate=LR, max_steps=STEPS)
    model = small_lm(width=WIDTH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.95), weight_decay=0.1)
    loss_of = objective(model)
    with json_lines(run / "train.jsonl") as log:
        for step in range(1, STEPS + 1):
            losses = []
            for micro in range(MICRO):
                loss = loss_of(step) / MICRO
                loss.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
                losses.append(loss.item())
                if micro == MICRO - 1 or not healthy:
                    optimizer.step()
                    optimizer.zero_grad()
            log({"step": step, "loss": sum(losses), "lr": LR})
            if step in SAVED:
                save(run, step, model, optimizer)


SAMPLES = (
    Sample(
        "gf03-stepped-each",
        "gf03_counters",
        stepped_each,
        "optimizer.step() stands inside the loop over the four micro-batches: nothing is accumulated",
        case="GF03",
        variant="stepped-each",
        checkpoints=True,
    ),
)

if __name__ == "__main__":
    main(SAMPLES)
