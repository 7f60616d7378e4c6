"""GF05 in checkpoints: weights that grow while the loss stands still."""

from __future__ import annotations

from pathlib import Path

import torch
from checkpoint_lab import CONFIG, objective, small_lm, train_and_save
from lab import Sample, constant, json_lines, main, scheduler, write_json

STEPS = 200
FIRST, WARMUP = 2, 20


def grown(run: Path, lr: float) -> None:
    """AdamW with a warm-up to a constant rate, clipped at 1.0; saved near the start and at the end."""
    model = small_lm(layers=1, width=12)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95))
    facts = {key: value for key, value in CONFIG.items() if key != "optim"}
    write_json(run / "config.json", facts | {"learning_rate": lr, "warmup_steps": WARMUP, "max_steps": STEPS})
    schedule = scheduler(optimizer, constant(WARMUP))
    with json_lines(run / "metrics.jsonl") as log:
        train_and_save(
            run, model, optimizer, objective(model), log, steps=STEPS, saved=(FIRST, STEPS), schedule=schedule
        )


SAMPLES = (
    Sample(
        "gf05-weights-grew",
        "gf05_checkpoints",
        lambda run: grown(run, 0.2),
        "AdamW at 0.2: the loss stands nearly from the start, and the matrices grow",
        case="GF05",
        variant="weights-grew",
        primary="",
        checkpoints=True,
    ),
    Sample(
        "gf05-twin-checkpoints",
        "gf05_checkpoints",
        lambda run: grown(run, 0.01),
        "the same at 0.01: the loss falls, and the matrices grow less",
        case="GF05",
        twin=True,
        checkpoints=True,
    ),
)

if __name__ == "__main__":
    main(SAMPLES)
