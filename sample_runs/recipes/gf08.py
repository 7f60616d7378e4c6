"""GF08: spikes of loss and gradient norm, how they recover, and what only looks like one."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import hf_lab
import torch
from lab import (
    VOCAB,
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
from transformers import Trainer

WARMUP = 20
LR = 3e-3
COLUMNS = ("step", "loss", "grad_norm", "lr")
Toxin = Callable[[Tensor], Tensor]


def repeated(tokens: Tensor) -> Tensor:
    """Every sequence is one random pair of tokens, repeated."""
    pair = torch.randint(0, VOCAB, (1, 2))
    return pair.repeat(len(tokens), tokens.shape[1] // 2 + 1)[:, : tokens.shape[1]]


def noise(tokens: Tensor) -> Tensor:
    """Uniformly random tokens."""
    return torch.randint(0, VOCAB, tuple(tokens.shape))


def garbage(tokens: Tensor) -> Tensor:
    """Every second token is replaced by a random one."""
    mixed = tokens.clone()
    mixed[:, ::2] = torch.randint(0, VOCAB, tuple(mixed[:, ::2].shape))
    return mixed


def poisoned(
    run: Path,
    steps: int,
    toxic: Collection[int],
    toxin: Toxin,
    *,
    weight: float = 1.0,
    clip: float | None = 1.0,
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] | None = None,
    **facts: object,
) -> None:
    """Train with a constant rate; the batches of the steps `toxic` are replaced, and their loss is weighted."""
    chain, model, generator = beginning()

    def objective(step: int) -> Tensor:
        tokens = chain.sample(generator)
        if step in toxic:
            tokens = toxin(tokens)
        loss = next_token_loss(model(tokens[:, :-1]), tokens)
        return weight * loss if step in toxic else loss

    made = adamw(model, LR) if optimizer is None else optimizer(model)
    described = {"learning_rate": made.param_groups[0]["lr"], "lr_scheduler_type": "constant_with_warmup"}
    settings = plain_config(**described, warmup_steps=WARMUP, max_steps=steps, max_grad_norm=clip)
    write_json(run / "config.json", settings | facts)
    with csv_rows(run / "metrics.csv", COLUMNS) as log:
        train(model, made, objective, log, steps=steps, schedule=scheduler(made, constant(WARMUP)), clip=clip)


class RepeatedText(Trainer):
    """The batches of steps 201 and 202 hold one pair of tokens, repeated."""

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Tensor | Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor | tuple[Tensor, Any]:
        """Replace the batch."""
        if self.state.global_step in (200, 201):
            ids = repeated(inputs["input_ids"])
            inputs = {**inputs, "input_ids": ids, "labels": torch.where(inputs["labels"] == -100, -100, ids)}
        result: Tensor | tuple[Tensor, Any] = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        return result


def fast(run: Path) -> None:
    """HF Trainer, which clips at 1: two batches of repeated text."""
    steps = 300
    data = hf_lab.fresh(Chain.make(), steps)
    hf_lab.fit(run, hf_lab.tiny_gpt2(), data, steps=steps, trainer_class=RepeatedText, logging_steps=1)


def slow_adam(model: nn.Module) -> torch.optim.Optimizer:
    """AdamW with beta2 0.999: a huge gradient stays in the second moment for hundreds of steps."""
    return torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.999), weight_decay=0.1)


def momentum(model: nn.Module) -> torch.optim.Optimizer:
    """SGD with momentum, which takes a huge gradient at its full size."""
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def slow(run: Path) -> None:
    """Without clipping, one batch of noise with a hundredfold weight."""
    poisoned(run, 400, {180}, noise, weight=100, clip=None, optimizer=slow_adam)


def new_level(run: Path) -> None:
    """Without clipping, one batch of noise with a weight that fills the second moment for good."""
    poisoned(run, 420, {180}, noise, weight=1e4, clip=None, optimizer=slow_adam)


def not_recovering(run: Path) -> None:
    """Plain SGD without clipping: one weighted batch of noise throws the weights out, and the way back is long."""
    poisoned(run, 420, {180}, noise, weight=30, clip=None, optimizer=momentum, optim="sgd")


def recurring(run: Path) -> None:
    """A pocket of repeated text in the data that is met more and more often."""
    poisoned(run, 460, {150, 330, 345, 360, 375, 390, 405, 420, 435, 448}, repeated)


def loss_alone(run: Path) -> None:
    """One batch in which every second token is random: the loss jumps, the gradient hardly."""
    poisoned(run, 300, {200}, garbage)


def kick(run: Path) -> None:
    """The learning rate is twenty times too high for five steps; the configuration does not say so."""
    steps = 300
    chain, model, generator = beginning()

    def objective(_step: int) -> Tensor:
        tokens = chain.sample(generator)
        return next_token_loss(model(tokens[:, :-1]), tokens)

    planned = cosine(WARMUP, steps)
    optimizer = adamw(model, LR)
    schedule = scheduler(optimizer, lambda step: planned(step) * (20 if 200 <= step < 205 else 1))
    write_json(run / "config.json", plain_config(max_steps=steps, warmup_steps=WARMUP))
    with csv_rows(run / "metrics.csv", COLUMNS) as log:
        train(model, optimizer, objective, log, steps=steps, schedule=schedule)


SAMPLES = (
    Sample(
        "gf08-fast",
        "gf08",
        fast,
        "two batches of one repeated pair of tokens at step 201: loss and gradient norm jump together and come back",
        case="GF08",
        variant="fast",
        primary="",
    ),
    Sample(
        "gf08-slow",
        "gf08",
        slow,
        "a batch of noise with a hundredfold weight at step 180, no clipping, beta2 0.999: back after dozens of steps",
        case="GF08",
        variant="slow",
        primary="",
    ),
    Sample(
        "gf08-new-level",
        "gf08",
        new_level,
        "a batch of noise with weight 1e4 at step 180, no clipping: Adam's second moment stays full, and the loss high",
        case="GF08",
        variant="new-level",
    ),
    Sample(
        "gf08-not-recovering",
        "gf08",
        not_recovering,
        "a weighted batch of noise at step 180 throws SGD without clipping out; 200 steps later it is not back",
        case="GF08",
        variant="not-recovering",
    ),
    Sample(
        "gf08-recurring",
        "gf08",
        recurring,
        "ten batches of repeated text, nine of them in the last third: each comes back",
        case="GF08",
        variant="recurring",
    ),
    Sample(
        "gf08-loss-alone",
        "gf08",
        loss_alone,
        "one batch with every second token random at step 200: the loss jumps, the gradient norm hardly moves",
        case="GF08",
        variant="loss-alone",
        primary="",
    ),
    Sample(
        "gf08-twin",
        "gf08",
        kick,
        "the learning rate is twentyfold for five steps at step 200: a kick by the schedule, no instability",
        case="GF08",
        twin=True,
    ),
)

if __name__ == "__main__":
    main(SAMPLES)
