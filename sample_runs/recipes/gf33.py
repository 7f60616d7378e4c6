"""GF33: a second moment that lags behind the gradients."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

import numpy as np
import torch
from checkpoint_lab import CHAIN, CONFIG, VOCAB, save, small_lm
from lab import Sample, current_lr, gradient_norm, json_lines, main, next_token_loss, write_json
from torch import Tensor

LR = 3e-3
TOXIC = 120
BACK = 126


def one(_step: int) -> float:
    """Weigh every step alike."""
    return 1.0


def faint(step: int) -> float:
    """A hundredth from step 61 on, until all of it is back at step 126: a weight of the loss with its own schedule."""
    return 0.01 if 60 < step < BACK else 1.0


def trained(
    run: Path,
    *,
    steps: int,
    saved: Collection[int],
    beta2: float,
    lr: float = LR,
    weight: Callable[[int], float] = one,
    toxic: Collection[int] = (),
) -> None:
    """Train without clipping; weight: factor of the loss; toxic: steps whose batch repeats one rare token."""
    model, generator = small_lm(layers=1, width=12), np.random.default_rng(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, beta2), weight_decay=0.1)
    facts = {"learning_rate": lr, "max_steps": steps, "adam_beta2": beta2, "max_grad_norm": 0.0}
    write_json(run / "config.json", CONFIG | facts)
    with json_lines(run / "metrics.jsonl") as log:
        for step in range(1, steps + 1):
            tokens: Tensor = CHAIN.sample(generator, count=16, length=17)
            if step in toxic:
                tokens = torch.full_like(tokens, VOCAB - 1)
            optimizer.zero_grad()
            loss = next_token_loss(model(tokens[:, :-1]), tokens)
            (loss * weight(step)).backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
            norm = gradient_norm(model)
            optimizer.step()
            log({"step": step, "loss": loss.item(), "grad_norm": norm, "lr": current_lr(optimizer)})
            if step in saved:
                save(run, step, model, optimizer)


def back(run: Path, saved: Collection[int]) -> None:
    """The weight of the loss comes back from a hundredth, and the next batch repeats one token."""
    trained(run, steps=145, saved=saved, beta2=0.95, lr=0.01, weight=faint, toxic=(BACK + 1,))


SAMPLES = (
    Sample(
        "gf33-before-spike",
        "gf33",
        lambda run: back(run, (BACK - 1, BACK)),
        "the loss's weight is back at step 126 after 65 steps at a hundredth, saved around it; the loss spikes at 127, "
        "where a batch repeats one token",
        case="GF33",
        variant="before-spike",
        checkpoints=True,
    ),
    Sample(
        "gf33-free-decay",
        "gf33",
        lambda run: back(run, (95, 110, BACK - 1)),
        "the same, saved three times while the second moments shrink as if there were no gradients",
        case="GF33",
        variant="free-decay",
        primary="",
        checkpoints=True,
    ),
    Sample(
        "gf33-lagging",
        "gf33",
        lambda run: trained(run, steps=160, saved=(TOXIC - 1, TOXIC), beta2=0.99, toxic=(TOXIC,)),
        "one batch of a repeated token at step 120, saved before and after it: it looks like a stale second moment",
        case="GF33",
        variant="lagging",
        primary="",
        checkpoints=True,
    ),
    Sample(
        "gf33-twin",
        "gf33",
        lambda run: trained(run, steps=160, saved=(TOXIC - 1, TOXIC), beta2=0.99),
        "the same without that batch: gradients as large as their second moments expect",
        case="GF33",
        twin=True,
        checkpoints=True,
    ),
)

if __name__ == "__main__":
    main(SAMPLES)
