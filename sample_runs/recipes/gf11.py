"""GF11: where the first NaN came from, and near misses."""

from __future__ import annotations

from pathlib import Path

import hf_lab
import numpy as np
import torch
from lab import (
    VOCAB,
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
from torch import Tensor
from torch.nn import functional

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
    """Sequence weights come with the data; those of step 150 are a thousandfold and its tokens are noise."""
    chain, model, generator = beginning()

    def objective(step: int) -> Tensor:
        tokens = chain.sample(generator)
        weight = torch.ones(len(tokens))
        if step == 150:
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


SAMPLES = (
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
        "one batch of noise with thousandfold weights at step 150: loss and gradient norm jump, finite, and recover",
        case="GF11",
        twin=True,
    ),
)

if __name__ == "__main__":
    main(SAMPLES)
