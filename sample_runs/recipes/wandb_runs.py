"""Runs that were logged to W&B offline: a rate that is too high, and the same training at a good one."""

from __future__ import annotations

from pathlib import Path

import wandb_lab
from lab import Chain, Sample, adamw, cosine, language_model, main, plain_config, scheduler, silent, train

STEPS = 200


def fine_tuned(run: Path, peak: float, name: str) -> None:
    """A pretrained model trained on at `peak`."""
    model, objective = language_model(Chain.make())
    train(model, adamw(model, 3e-3), objective, silent, steps=200)
    optimizer = adamw(model, peak)
    facts = {"learning_rate": peak, "lr_scheduler_type": "cosine", "warmup_steps": 40, "max_steps": STEPS}
    with wandb_lab.offline(run, plain_config(**facts), name) as log:
        train(model, optimizer, objective, log, steps=STEPS, schedule=scheduler(optimizer, cosine(40, STEPS)))


SAMPLES = (
    Sample(
        "wandb-gf05-diverged",
        "wandb_runs",
        lambda run: fine_tuned(run, 0.3, "hot"),
        "W&B offline: a pretrained model trained on at a hundred times the useful rate",
        case="GF05",
        variant="diverged",
    ),
    Sample(
        "wandb-gf05-twin",
        "wandb_runs",
        lambda run: fine_tuned(run, 1e-3, "warm"),
        "W&B offline: the same training at a useful rate",
        case="GF05",
        twin=True,
    ),
)

if __name__ == "__main__":
    main(SAMPLES)
