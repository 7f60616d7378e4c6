"""GF06: learning rate zero or far too small."""

from __future__ import annotations

from pathlib import Path

import hf_lab
import torch
from lab import (
    BATCH,
    Chain,
    Sample,
    adamw,
    console,
    constant,
    csv_rows,
    language_model,
    main,
    plain_config,
    scheduler,
    train,
    write_json,
)
from torch import Tensor, nn
from torch.nn import functional

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


def hardly_tuned(run: Path) -> None:
    """HF Trainer: a pretrained model fine-tuned at 1e-8, a rate meant as 1e-3 and mistyped."""
    chain = Chain.make()
    model = hf_lab.tiny_gpt2()
    hf_lab.pretrain(model, chain)
    data = hf_lab.fresh(chain, STEPS)
    hf_lab.fit(run, model, data, steps=STEPS, learning_rate=1e-8, lr_scheduler_type="constant", warmup_steps=0)


def classifier(run: Path, lr: float) -> None:
    """Ten classes of points around ten centres, an MLP, AdamW; the loss begins at ln 10."""
    torch.manual_seed(0)
    centres = torch.randn(10, 32)
    body, head = nn.Linear(32, 64), nn.Linear(64, 10)
    nn.init.zeros_(head.weight)  # a zero head, a common choice, starts exactly at ln 10
    nn.init.zeros_(head.bias)
    model = nn.Sequential(body, nn.GELU(), head)
    optimizer = adamw(model, lr)

    def objective(_step: int) -> Tensor:
        labels = torch.randint(10, (BATCH,))
        return functional.cross_entropy(model(centres[labels] + 0.5 * torch.randn(BATCH, 32)), labels)

    facts = {"num_classes": 10, "lr_scheduler_type": "constant", "max_steps": STEPS, "batch_size": BATCH}
    write_json(run / "config.json", {"learning_rate": lr, "optim": "adamw_torch", "seed": 0, **facts})
    with csv_rows(run / "log.csv", ("step", "loss", "grad_norm", "lr")) as log:
        train(model, optimizer, objective, log, steps=STEPS)


SAMPLES = (
    Sample(
        "gf06-zero", "gf06", zero, "HF Trainer with learning_rate 0.0 for the whole run", case="GF06", variant="zero"
    ),
    Sample(
        "gf06-at-chance",
        "gf06",
        lambda run: slow(run, 1e-6),
        "AdamW from scratch at a constant learning rate of 1e-6: the loss stays at ln V",
        case="GF06",
        variant="at-chance",
    ),
    Sample(
        "gf06-at-chance-classes",
        "gf06",
        lambda run: classifier(run, 1e-7),
        "a classifier of ten classes at 1e-7: the loss stays at ln 10",
        case="GF06",
        variant="at-chance",
    ),
    Sample(
        "gf06-tiny",
        "gf06",
        hardly_tuned,
        "a pretrained model fine-tuned at 1e-8: the loss stands still where it was",
        case="GF06",
        variant="tiny",
        primary="",
    ),
    Sample(
        "gf06-below-baseline",
        "gf06",
        lambda run: slow(run, 3e-5),
        "AdamW from scratch at 3e-5, a hundredth of the rate of the healthy run that it is compared with",
        case="GF06",
        variant="below-baseline",
        baseline="gf05-twin-sibling",
    ),
    Sample(
        "gf06-twin-classes",
        "gf06",
        lambda run: classifier(run, 1e-4),
        "the classifier at 1e-4: slow, but it learns",
        case="GF06",
        twin=True,
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
