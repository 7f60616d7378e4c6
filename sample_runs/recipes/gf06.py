"""GF06: learning rate zero or far too small."""

from __future__ import annotations

from pathlib import Path

import hf_lab
from lab import (
    Chain,
    Sample,
    adamw,
    console,
    constant,
    language_model,
    main,
    plain_config,
    scheduler,
    train,
    write_json,
)

STEPS = 240


def zero(run: Path) -> None:
    """`learning_rate=0.0` reaches the Trainer, as an unset value of a sweep would."""
    data = hf_lab.fresh(Chain.make(), STEPS)
    hf_lab.fit(run, hf_lab.tiny_gpt2(), data, steps=STEPS, learning_rate=0.0, warmup_steps=0)


def slow(run: Path, lr: float) -> None:
    """AdamW from scratch at a constant `lr`."""
    model, objective = language_model(Chain.make())
    optimizer = adamw(model, lr)
    write_json(
        run / "config.json",
        plain_config(learning_rate=lr, lr_scheduler_type="constant_with_warmup", warmup_steps=10, max_steps=STEPS),
    )
    with console(run / "train.log") as log:
        print(f"training for {STEPS} steps")
        train(model, optimizer, objective, log, steps=STEPS, schedule=scheduler(optimizer, constant(10)), every=2)
        print("Training completed")


SAMPLES = (
    Sample(
        "gf06-zero", "gf06", zero, "HF Trainer with learning_rate 0.0 for the whole run", case="GF06", variant="zero"
    ),
    Sample(
        "gf06-tiny",
        "gf06",
        lambda run: slow(run, 1e-6),
        "AdamW from scratch at a constant learning rate of 1e-6: the loss stays at ln V",
        case="GF06",
        variant="tiny",
        primary="",
    ),
    Sample(
        "gf06-twin",
        "gf06",
        lambda run: slow(run, 1e-4),
        "AdamW from scratch at a constant learning rate of 1e-4: slow, but it learns",
        case="GF06",
        twin=True,
    ),
)

if __name__ == "__main__":
    main(SAMPLES)
