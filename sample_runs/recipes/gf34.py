"""GF34: Adam's eps outweighs its second moments, because it is large or because the gradients are tiny."""

from __future__ import annotations

from pathlib import Path

import torch
from checkpoint_lab import configure, objective, small_lm, train_and_save
from lab import Sample, json_lines, main
from torch import Tensor

torch.set_num_threads(1)

STEPS = 240


def trained(run: Path, *, eps: float = 1e-8, scale: float = 1.0) -> None:
    """The usual loop in float32, whose loss is multiplied by `scale` before backward and logged as it was."""
    model = small_lm()
    loss = objective(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1, eps=eps)
    configure(run, learning_rate=3e-3, lr_scheduler_type="constant", max_steps=STEPS, adam_epsilon=eps)

    def scaled(step: int) -> Tensor:
        return loss(step) * scale

    with json_lines(run / "metrics.jsonl") as log:
        train_and_save(
            run,
            model,
            optimizer,
            scaled,
            lambda row: log({"step": row["step"], "loss": float(str(row["loss"])) / scale, "lr": row["lr"]}),
            steps=STEPS,
            saved=(STEPS,),
            clip=None,
        )


SAMPLES = (
    Sample(
        "gf34-eps-too-large",
        "gf34",
        lambda run: trained(run, eps=0.1),
        "an eps of 0.1 with float32 moments: the updates are a hundredth of their size, and the loss falls slowly",
        case="GF34",
        variant="eps-too-large",
        checkpoints=True,
    ),
    Sample(
        "gf34-eps-above-default",
        "gf34",
        lambda run: trained(run, eps=1e-4, scale=1e-3),
        "an eps of 1e-4 and a loss divided by 1000: small updates, where each alone would do little",
        case="GF34",
        variant="eps-above-default",
        primary="",
        checkpoints=True,
    ),
    Sample(
        "gf34-gradients-too-small",
        "gf34",
        lambda run: trained(run, scale=1e-7),
        "a loss divided by 1e7 (as by the tokens of the whole data): gradients below the default eps",
        case="GF34",
        variant="gradients-too-small",
        primary="",
        checkpoints=True,
    ),
    Sample(
        "gf34-twin",
        "gf34",
        lambda run: trained(run, scale=1e-4),
        "a loss divided by 1e4: most second moments lie near eps, and the updates keep their size",
        case="GF34",
        twin=True,
        checkpoints=True,
    ),
)

if __name__ == "__main__":
    main(SAMPLES)
