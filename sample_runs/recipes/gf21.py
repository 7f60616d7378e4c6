"""GF21: a training that settles above what could be expected, or at chance; and a near miss with strong dropout."""

from __future__ import annotations

from pathlib import Path

import lightning_lab
import numpy as np
import torch
from lab import (
    LENGTH,
    Chain,
    Sample,
    TinyLM,
    adamw,
    constant,
    json_lines,
    main,
    next_token_loss,
    plain_config,
    scheduler,
    train,
    write_json,
)
from torch import Tensor, nn
from torch.nn import functional

CLASSES = 10


def narrow(run: Path) -> None:
    """Lightning: one layer of width 4 on a chain that a model of width 64 learns."""
    lightning_lab.fit(
        run,
        Chain.make(),
        steps=600,
        steps_per_epoch=600,
        schedule=constant(20),
        validate_every=60,
        model=TinyLM(width=4, layers=1),
        learning_rate=1e-2,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=20,
        max_steps=600,
        vocab_size=64,
        batch_size=16,
        gradient_accumulation_steps=1,
        optim="adamw_torch",
    )


def guessing(run: Path) -> None:
    """A classifier whose labels were shuffled: nothing can be learned, and it guesses."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, CLASSES))
    generator = torch.Generator().manual_seed(1)

    def objective(_step: int) -> Tensor:
        inputs = torch.randn(256, 16, generator=generator)
        return functional.cross_entropy(model(inputs), torch.randint(0, CLASSES, (256,), generator=generator))

    optimizer = adamw(model, 1e-4)
    facts = {"learning_rate": 1e-4, "lr_scheduler_type": "constant", "num_classes": CLASSES, "batch_size": 256}
    write_json(run / "config.json", facts | {"max_steps": 400, "max_grad_norm": 1.0})
    with json_lines(run / "metrics.jsonl") as log:
        train(model, optimizer, objective, log, steps=400, schedule=scheduler(optimizer, constant()))


class Dropped(TinyLM):
    """The tiny transformer with dropout of 0.9 on what every block adds to the residual stream."""

    def states(self, tokens: Tensor) -> Tensor:
        """Final hidden states, before the head."""
        hidden: Tensor = self.embedding(tokens) + self.position.weight[: tokens.shape[1]]
        for block in self.blocks:
            hidden = hidden + functional.dropout(block(hidden) - hidden, 0.9, training=self.training)
        normed: Tensor = self.norm(hidden)
        return normed


def dropped(run: Path) -> None:
    """A dropout of 0.9 that costs next to nothing here: the level is that of a chain without it."""
    chain = Chain.make()
    torch.manual_seed(0)
    model = Dropped()
    generator = np.random.default_rng(1)
    held_out = chain.sample(np.random.default_rng(2), count=256, length=LENGTH + 1)

    def objective(_step: int) -> Tensor:
        tokens = chain.sample(generator)
        return next_token_loss(model(tokens[:, :-1]), tokens)

    optimizer = adamw(model, 3e-3)
    schedule = scheduler(optimizer, constant(20))
    facts = {"learning_rate": 3e-3, "lr_scheduler_type": "constant_with_warmup", "warmup_steps": 20, "dropout": 0.9}
    write_json(run / "config.json", plain_config(**(facts | {"max_steps": 500})))
    with json_lines(run / "metrics.jsonl") as log:
        for first in range(1, 500, 50):
            train(model, optimizer, objective, log, steps=first + 49, first=first, schedule=schedule)
            model.eval()
            with torch.no_grad():
                log({"step": first + 49, "eval_loss": next_token_loss(model(held_out[:, :-1]), held_out).item()})
            model.train()


SAMPLES = (
    Sample(
        "gf21-above-reference",
        "gf21",
        narrow,
        "one layer of width 4 settles near the unigram entropy, where a model of width 64 reaches 2.9",
        case="GF21",
        variant="above-reference",
        settings={"reference_loss": 2.9},
    ),
    Sample(
        "gf21-at-chance",
        "gf21",
        guessing,
        "labels that do not belong to their inputs: the loss is flat at ln 10",
        case="GF21",
        variant="at-chance",
        primary="",
    ),
    Sample(
        "gf21-twin",
        "gf21",
        dropped,
        "a dropout of 0.9 on the residual branches, and still the level that was expected",
        case="GF21",
        twin=True,
        settings={"reference_loss": 2.9},
    ),
)

if __name__ == "__main__":
    main(SAMPLES)
