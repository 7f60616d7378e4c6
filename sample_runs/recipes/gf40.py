"""GF40: evaluated with dropout on, trained with dropout off, batch statistics that do not fit."""

from __future__ import annotations

from pathlib import Path

import hf_lab
import numpy as np
import torch
from lab import (
    Chain,
    Sample,
    TinyLM,
    adamw,
    constant,
    csv_rows,
    current_lr,
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
from transformers import GPT2LMHeadModel, Trainer

RATE = 0.2


class Twice(Trainer):
    """A Trainer that evaluates every time twice, as a script with a callback of its own does."""

    def evaluate(self, *args: object, **more: object) -> dict[str, float]:
        """Evaluate, and evaluate again."""
        super().evaluate(*args, **more)
        found: dict[str, float] = super().evaluate(*args, **more)
        return found


class Noisy(GPT2LMHeadModel):
    """A GPT-2 whose author overrode train() to keep dropout on (for Monte Carlo dropout) and forgot about it."""

    def train(self, mode: bool = True) -> Noisy:  # noqa: ARG002  # the signature of nn.Module
        """Stay in training mode, whatever is asked for."""
        super().train(mode=True)
        return self


def evaluated_twice(run: Path, *, dropout_on: bool) -> None:
    """HF Trainer with dropout, evaluated twice every 20 steps, in training mode or properly."""
    chain = Chain.make()
    model = hf_lab.tiny_gpt2()
    model.config.resid_pdrop = model.config.embd_pdrop = RATE
    torch.manual_seed(0)
    model = (Noisy if dropout_on else GPT2LMHeadModel)(model.config)
    hf_lab.fit(
        run,
        model,
        hf_lab.fresh(chain, 160),
        steps=160,
        evaluate=hf_lab.Tokens(chain.sample(np.random.default_rng(2), count=64)),
        trainer_class=Twice,
        eval_strategy="steps",
        eval_steps=20,
        logging_steps=2,
    )


STRONG = 0.5


class Dropping(TinyLM):
    """The tiny transformer with strong dropout behind its embedding and before its head."""

    def states(self, tokens: Tensor) -> Tensor:
        """Final hidden states after dropout."""
        hidden: Tensor = self.embedding(tokens) + self.position.weight[: tokens.shape[1]]
        hidden = functional.dropout(hidden, STRONG, training=self.training)
        for block in self.blocks:
            hidden = block(hidden)
        return functional.dropout(self.norm(hidden), STRONG, training=self.training)


def never_back(run: Path) -> None:
    """model.eval() of the first evaluation is never undone."""
    chain = Chain.make()
    torch.manual_seed(0)
    model = Dropping()
    generator = np.random.default_rng(1)
    held_out = chain.sample(np.random.default_rng(2), count=128)

    def objective(_step: int) -> Tensor:
        tokens = chain.sample(generator, count=32)
        return next_token_loss(model(tokens[:, :-1]), tokens)

    optimizer = adamw(model, 3e-3)
    schedule = scheduler(optimizer, constant(20))
    facts = {"learning_rate": 3e-3, "lr_scheduler_type": "constant_with_warmup", "warmup_steps": 20, "dropout": STRONG}
    facts |= {"per_device_train_batch_size": 32, "max_steps": 400}
    write_json(run / "config.json", plain_config(**facts))
    with json_lines(run / "metrics.jsonl") as log:
        for first in range(1, 400, 100):
            train(model, optimizer, objective, log, steps=first + 99, first=first, schedule=schedule)
            model.eval()
            with torch.no_grad():
                log({"step": first + 99, "eval_loss": next_token_loss(model(held_out[:, :-1]), held_out).item()})


def batch_statistics(run: Path) -> None:
    """Every batch is of one source, which shifts its inputs; a momentum of 0.9 keeps the statistics of the last one."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(16, 64), nn.BatchNorm1d(64, momentum=0.9), nn.ReLU(),
        nn.Linear(64, 64), nn.BatchNorm1d(64, momentum=0.9), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip
    generator = torch.Generator().manual_seed(1)
    teacher = torch.randn(16, 10, generator=generator)

    def batch(count: int) -> tuple[Tensor, Tensor]:
        inputs = torch.randn(count, 16, generator=generator)
        labels = (inputs @ teacher).argmax(dim=1)
        return inputs + 3.0 * torch.randn(1, 16, generator=generator), labels

    held_out = batch(256)
    optimizer = adamw(model, 3e-3)
    facts = {"learning_rate": 3e-3, "lr_scheduler_type": "constant", "num_classes": 10, "batch_size": 32}
    write_json(run / "config.json", facts | {"max_steps": 600, "max_grad_norm": 1.0})
    with csv_rows(run / "metrics.csv", ("step", "loss", "grad_norm", "lr", "eval_loss")) as log:
        for step in range(1, 601):
            inputs, labels = batch(32)
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(inputs), labels)
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
            clipped = float(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
            optimizer.step()
            row = {"step": step, "loss": loss.item(), "grad_norm": clipped, "lr": current_lr(optimizer)}
            if step % 20 == 0:
                model.eval()
                with torch.no_grad():
                    row["eval_loss"] = functional.cross_entropy(model(held_out[0]), held_out[1]).item()
                model.train()
            log(row)


SAMPLES = (
    Sample(
        "gf40-not-repeatable",
        "gf40",
        lambda run: evaluated_twice(run, dropout_on=True),
        "dropout stays on at evaluation: two evaluations of the same weights differ",
        case="GF40",
        variant="not-repeatable",
    ),
    Sample(
        "gf40-training-in-eval-mode",
        "gf40",
        never_back,
        "model.eval() of the first evaluation at step 100 is never undone: training goes on without dropout",
        case="GF40",
        variant="training-in-eval-mode",
        primary="",
    ),
    Sample(
        "gf40-batch-statistics",
        "gf40",
        batch_statistics,
        "batches of one source each, batch normalisation that keeps the statistics of the last: evaluations jump about",
        case="GF40",
        variant="batch-statistics",
        primary="",
    ),
    Sample(
        "gf40-twin",
        "gf40",
        lambda run: evaluated_twice(run, dropout_on=False),
        "the same dropout, switched off at evaluation: both evaluations of a step agree",
        case="GF40",
        twin=True,
    ),
)

if __name__ == "__main__":
    main(SAMPLES)
