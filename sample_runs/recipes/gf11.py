"""GF11: where the first NaN came from, and near misses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hf_lab
import numpy as np
import torch
from lab import (
    VOCAB,
    WIDTH,
    Chain,
    Sample,
    adamw,
    beginning,
    console,
    constant,
    cosine,
    csv_rows,
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
from transformers import Trainer

STEPS = 240
WARMUP = 20
LR = 3e-3
CONFIG = {"learning_rate": LR, "lr_scheduler_type": "cosine", "warmup_steps": WARMUP, "max_steps": STEPS}


def forward_first(run: Path) -> None:
    """An entropy bonus with p*log(p); from step 131 its temperature is so low that probabilities underflow to zero."""
    chain, model, generator = beginning()

    def objective(step: int) -> Tensor:
        tokens = chain.sample(generator)
        logits: Tensor = model(tokens[:, :-1])
        temperature = 1.0 if step <= 130 else 0.02
        share = (logits / temperature).softmax(dim=-1)
        bonus: Tensor = -(share * share.log()).sum(dim=-1).mean()
        return next_token_loss(logits, tokens) - 1e-3 * bonus

    optimizer = adamw(model, LR)
    write_json(run / "config.json", plain_config(**CONFIG))
    with json_lines(run / "metrics.jsonl") as log:
        train(model, optimizer, objective, log, steps=STEPS, schedule=scheduler(optimizer, cosine(WARMUP, STEPS)))


def backward_first(run: Path) -> None:
    """A distance between two sequences of the batch through sqrt; at step 97 the two are the same sequence."""
    chain, model, generator = beginning()

    def objective(step: int) -> Tensor:
        tokens = chain.sample(generator)
        if step == 97:
            tokens[1] = tokens[0]
        states = model.states(tokens[:, :-1])
        pooled = states.mean(dim=1)
        distance = (pooled[0] - pooled[1]).square().sum().sqrt()
        return next_token_loss(model.head(states), tokens) - 1e-3 * distance

    optimizer = adamw(model, LR)
    write_json(run / "config.json", plain_config(**CONFIG, max_grad_norm=None))
    with csv_rows(run / "metrics.csv", ("step", "loss", "grad_norm", "lr")) as log:
        schedule = scheduler(optimizer, cosine(WARMUP, STEPS))
        train(model, optimizer, objective, log, steps=STEPS, schedule=schedule, clip=None)


def empty_batch(run: Path) -> None:
    """All labels of the batch of step 120 are -100: the mean over nothing."""
    chain, model, generator = beginning()

    def objective(step: int) -> Tensor:
        tokens = chain.sample(generator)
        labels = torch.full_like(tokens, -100) if step == 120 else tokens
        return next_token_loss(model(tokens[:, :-1]), labels)

    optimizer = adamw(model, LR)
    write_json(run / "config.json", plain_config(**CONFIG))
    with console(run / "train.log") as log:
        train(model, optimizer, objective, log, steps=STEPS, schedule=scheduler(optimizer, cosine(WARMUP, STEPS)))
        print("Training completed")


def evaluation_only(run: Path) -> None:
    """HF Trainer: the held-out set lost its labels (all -100), so that every evaluation loss is NaN."""
    chain = Chain.make()
    held_out = chain.sample(np.random.default_rng(2), count=128)
    blank = hf_lab.Tokens(held_out, torch.full_like(held_out, -100))
    hf_lab.fit(
        run,
        hf_lab.tiny_gpt2(),
        hf_lab.fresh(chain, STEPS),
        steps=STEPS,
        evaluate=blank,
        eval_strategy="steps",
        eval_steps=30,
        logging_steps=2,
    )


def bad_batch(run: Path) -> None:
    """Sequence weights come with the data; those of step 40 are a thousandfold and its tokens are noise."""
    chain, model, generator = beginning()

    def objective(step: int) -> Tensor:
        tokens = chain.sample(generator)
        weight = torch.ones(len(tokens))
        if step == 40:
            tokens = torch.from_numpy(generator.integers(0, VOCAB, tuple(tokens.shape)))
            weight *= 1000.0
        logits = model(tokens[:, :-1])
        losses = functional.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none").mean(dim=1)
        return (weight * losses).mean()

    optimizer = adamw(model, LR)
    facts = {"lr_scheduler_type": "constant_with_warmup"}
    write_json(run / "config.json", plain_config(**(CONFIG | facts)))
    with json_lines(run / "metrics.jsonl") as log:
        train(model, optimizer, objective, log, steps=STEPS, schedule=scheduler(optimizer, constant(WARMUP)))


class BadKernel(Trainer):
    """Stands for an attention kernel whose backward is wrong: the forward adds 0, the backward NaN."""

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Tensor | Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor | tuple[Tensor, Any]:
        """Add sqrt(0), whose gradient is infinite and, times 0, NaN."""
        result = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        if isinstance(result, tuple):
            return result
        total: Tensor = result + torch.sqrt(0.0 * result)
        return total


def gradient_from_start(run: Path) -> None:
    """HF Trainer: the first loss is sound, its gradient NaN, and every later loss is NaN and logged as 0."""
    steps = 60
    data = hf_lab.fresh(Chain.make(), steps)
    hf_lab.fit(run, hf_lab.tiny_gpt2(), data, steps=steps, trainer_class=BadKernel, logging_steps=1, console=True)


def loss_from_start(run: Path) -> None:
    """A pooled auxiliary head whose softmax masks padding; the first sequence of every batch is all padding."""
    chain, model, generator = beginning()
    weigh = torch.nn.Linear(WIDTH, 1)

    def objective(_step: int) -> Tensor:
        tokens = chain.sample(generator)
        states = model.states(tokens[:, :-1])
        padding = torch.zeros(states.shape[:2], dtype=torch.bool)
        padding[0] = True
        attention = weigh(states).squeeze(-1).masked_fill(padding, -torch.inf).softmax(dim=-1)
        pooled = (attention[..., None] * states).sum(dim=1)
        total: Tensor = next_token_loss(model.head(states), tokens) + 1e-3 * pooled.square().mean()
        return total

    optimizer = adamw(model, LR)
    write_json(run / "config.json", plain_config(**(CONFIG | {"max_steps": 60})))
    with csv_rows(run / "metrics.csv", ("step", "loss", "grad_norm", "lr")) as log:
        train(model, optimizer, objective, log, steps=60, schedule=scheduler(optimizer, cosine(WARMUP, 60)))


class CorruptBucket(Trainer):
    """From step 41 on one bucket of gradients comes back from its reduction as NaN."""

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """Overwrite the gradient of one layer after the backward pass, as a race in the reduction does."""
        loss: Tensor = super().training_step(*args, **kwargs)
        if self.state.global_step >= 40:
            for name, parameter in self.model.named_parameters():
                if "h.1.mlp" in name and parameter.grad is not None:
                    parameter.grad.fill_(torch.nan)
        return loss


def overlapped(run: Path) -> None:
    """HF Trainer with a DeepSpeed configuration beside it; the corruption itself is done by hand."""
    steps = 80
    data = hf_lab.fresh(Chain.make(), steps)
    hf_lab.fit(run, hf_lab.tiny_gpt2(), data, steps=steps, trainer_class=CorruptBucket, logging_steps=1)
    zero = {"stage": 2, "overlap_comm": True, "contiguous_gradients": True}
    write_json(run / "ds_config.json", {"zero_optimization": zero, "bf16": {"enabled": "auto"}})


SAMPLES = (
    Sample(
        "gf11-gradient-from-start",
        "gf11",
        gradient_from_start,
        "a backward that gives NaN from the first step on: loss 4.17 and grad_norm NaN, then 0.0 and NaN",
        case="GF11",
        variant="gradient-from-start",
    ),
    Sample(
        "gf11-loss-from-start",
        "gf11",
        loss_from_start,
        "a softmax over a row that is masked whole: every loss is NaN from the first step on",
        case="GF11",
        variant="loss-from-start",
    ),
    Sample(
        "gf11-overlap-comm",
        "gf11",
        overlapped,
        "one bucket of gradients is NaN from step 41 on, under a ZeRO-2 configuration with overlap_comm; the race of "
        "DeepSpeed 7371 needs several GPUs and is done by hand",
        case="GF11",
        variant="overlap-comm",
    ),
    Sample(
        "gf11-forward-first",
        "gf11",
        forward_first,
        "p*log(p) with probabilities that underflow to zero from step 131: loss NaN there, everything NaN after",
        case="GF11",
        variant="forward-first",
    ),
    Sample(
        "gf11-backward-first",
        "gf11",
        backward_first,
        "sqrt(0) at step 97: its loss is finite and its gradient NaN; without clipping all is NaN from step 98",
        case="GF11",
        variant="backward-first",
    ),
    Sample(
        "gf11-empty-batch",
        "gf11",
        empty_batch,
        "all labels of step 120 are -100: loss NaN once, gradient norm 0, the next steps are fine",
        case="GF11",
        variant="empty-batch",
        primary="",
    ),
    Sample(
        "gf11-eval-only",
        "gf11",
        evaluation_only,
        "all labels of the evaluation set are -100: every evaluation loss is NaN, the training is healthy",
        case="GF11",
        variant="eval-only",
    ),
    Sample(
        "gf11-twin",
        "gf11",
        bad_batch,
        "one batch of noise with thousandfold weights at step 40: loss and gradient norm jump, finite, and recover",
        case="GF11",
        twin=True,
    ),
)

if __name__ == "__main__":
    main(SAMPLES)
