"""GF13: weights and optimizer state in 16 bits, and an eps that is 0 or too large."""

from __future__ import annotations

from pathlib import Path

import hf_lab
import torch
from lab import (
    Chain,
    Sample,
    adamw,
    beginning,
    constant,
    cosine,
    csv_rows,
    main,
    next_token_loss,
    plain_config,
    scheduler,
    train,
    write_json,
)
from torch import Tensor, nn
from torch.nn import functional

COLUMNS = ("step", "loss", "grad_norm", "lr")
WARMUP = 20


def language(run: Path, dtype: torch.dtype, precision: str, *, lr: float, steps: int, mixed: bool = False) -> None:
    """Train the tiny transformer with its weights in `dtype`, or with float32 weights and autocast in it."""
    chain, model, generator = beginning()
    if not mixed:
        model = model.to(dtype)

    def objective(_step: int) -> Tensor:
        tokens = chain.sample(generator)
        with torch.autocast("cpu", dtype=dtype, enabled=mixed):
            return next_token_loss(model(tokens[:, :-1]), tokens)

    optimizer = adamw(model, lr)
    described = {"learning_rate": lr, "lr_scheduler_type": "cosine", "warmup_steps": WARMUP, "max_steps": steps}
    write_json(run / "config.json", plain_config(**described, precision=precision, adam_epsilon=1e-8))
    with csv_rows(run / "metrics.csv", COLUMNS) as log:
        train(model, optimizer, objective, log, steps=steps, schedule=scheduler(optimizer, cosine(WARMUP, steps)))


def eps_of_zero(run: Path) -> None:
    """Weights, gradients and moments in float16 and the default eps: rows without a gradient divide 0 by 0."""
    language(run, torch.float16, "16-true", lr=1e-3, steps=40)


def eps_at_risk(run: Path) -> None:
    """A linear regression in float16 whose gradients are all large: no second moment is 0, and nothing happens."""
    torch.manual_seed(0)
    model = nn.Linear(8, 1).half()
    truth = 10 * torch.randn(8, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-2)
    steps = 120

    def objective(_step: int) -> Tensor:
        inputs = torch.randn(64, 8)
        target = inputs @ truth + 5 + 10 * torch.randn(64, 1)
        loss: Tensor = functional.mse_loss(model(inputs.half()).float(), target)
        return loss

    described = {"learning_rate": 3e-2, "lr_scheduler_type": "constant", "max_steps": steps}
    facts = {"precision": "16-true", "optim": "adamw_torch", "max_grad_norm": None, "task": "regression"}
    write_json(run / "config.json", described | facts)
    with csv_rows(run / "metrics.csv", COLUMNS) as log:
        schedule = scheduler(optimizer, constant())
        train(model, optimizer, objective, log, steps=steps, schedule=schedule, clip=None)


def coarse(run: Path) -> None:
    """Weights in bfloat16 at a learning rate at which most updates are rounded away."""
    language(run, torch.bfloat16, "bf16-true", lr=1e-4, steps=240)


def eps_too_large(run: Path) -> None:
    """HF Trainer with adam_epsilon 0.01."""
    steps = 240
    data = hf_lab.fresh(Chain.make(), steps)
    hf_lab.fit(run, hf_lab.tiny_gpt2(), data, steps=steps, adam_epsilon=0.01)


def mixed(run: Path) -> None:
    """Autocast in bfloat16; weights and moments stay in float32."""
    language(run, torch.bfloat16, "bf16-mixed", lr=3e-3, steps=240, mixed=True)


SAMPLES = (
    Sample(
        "gf13-eps-rounds-to-zero",
        "gf13",
        eps_of_zero,
        "pure float16 with Adam's default eps: sound in step 1, NaN from step 2 on",
        case="GF13",
        variant="eps-rounds-to-zero",
    ),
    Sample(
        "gf13-eps-at-risk",
        "gf13",
        eps_at_risk,
        "pure float16 with Adam's default eps on a problem whose gradients are all large: it trains",
        case="GF13",
        variant="eps-at-risk",
        primary="",
    ),
    Sample(
        "gf13-coarse-weights",
        "gf13",
        coarse,
        "pure bfloat16 at a learning rate of 1e-4: most updates are rounded away",
        case="GF13",
        variant="coarse-weights",
        primary="",
    ),
    Sample(
        "gf13-eps-too-large",
        "gf13",
        eps_too_large,
        "an eps of 0.01 outweighs the second moment: the loss falls slowly",
        case="GF13",
        variant="eps-too-large",
        primary="",
    ),
    Sample(
        "gf13-twin",
        "gf13",
        mixed,
        "bfloat16 autocast over float32 weights: nothing is rounded away",
        case="GF13",
        twin=True,
    ),
)

if __name__ == "__main__":
    main(SAMPLES)
