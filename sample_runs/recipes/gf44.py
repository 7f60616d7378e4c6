"""GF44: a comparison of two runs that differ in more than one thing."""

from __future__ import annotations

from pathlib import Path

from lab import (
    Chain,
    Sample,
    adamw,
    constant,
    json_lines,
    language_model,
    main,
    plain_config,
    scheduler,
    train,
    write_json,
)

BASELINE = "gf05-twin-sibling"
STEPS, WARMUP = 240, 10


def changed(run: Path, lr: float, seed: int) -> None:
    """The recipe of the baseline, with these two."""
    model, objective = language_model(Chain.make(), seed)
    optimizer = adamw(model, lr)
    facts = {"lr_scheduler_type": "constant_with_warmup", "warmup_steps": WARMUP, "max_steps": STEPS, "seed": seed}
    write_json(run / "config.json", plain_config(learning_rate=lr, **facts))
    with json_lines(run / "metrics.jsonl") as log:
        train(model, optimizer, objective, log, steps=STEPS, schedule=scheduler(optimizer, constant(WARMUP)))


SAMPLES = (
    Sample(
        "gf44-rate-and-seed",
        "gf44",
        lambda run: changed(run, 2e-3, seed=1),
        "a lower learning rate and another seed: two changes beside the run that it is compared with",
        case="GF44",
        primary="",
        baseline=BASELINE,
    ),
    Sample(
        "gf44-twin",
        "gf44",
        lambda run: changed(run, 3e-3, seed=1),
        "another seed, and all else as in the run that it is compared with",
        case="GF44",
        twin=True,
        baseline=BASELINE,
    ),
)

if __name__ == "__main__":
    main(SAMPLES)
