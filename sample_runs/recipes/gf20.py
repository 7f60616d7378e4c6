"""GF20: the fit moves away from the target distribution."""

from __future__ import annotations

from pathlib import Path

import hf_lab
import lightning_lab
import numpy as np
import torch
from lab import BATCH, WIDTH, Chain, Sample, constant, current_lr, gradient_norm, json_lines, main, write_json
from torch import nn
from torch.nn import functional


def overfit(run: Path) -> None:
    """HF Trainer: 64 sequences over and over, evaluated on fresh ones every 15 steps."""
    steps = 240
    chain = Chain.make()
    few = chain.sample(np.random.default_rng(1), count=4 * BATCH)
    held_out = hf_lab.Tokens(chain.sample(np.random.default_rng(2), count=256))
    hf_lab.fit(
        run,
        hf_lab.tiny_gpt2(),
        hf_lab.Tokens(few),
        steps=steps,
        evaluate=held_out,
        eval_strategy="steps",
        eval_steps=15,
        logging_steps=3,
    )


def forget(run: Path) -> None:
    """HF Trainer: a model of chain A is fine-tuned on chain B; held-out sets of both are evaluated."""
    steps = 200
    old, new = Chain.make(seed=0), Chain.make(seed=1)
    model = hf_lab.tiny_gpt2()
    hf_lab.pretrain(model, old)
    held_out = {
        "old": hf_lab.Tokens(old.sample(np.random.default_rng(2), count=256)),
        "new": hf_lab.Tokens(new.sample(np.random.default_rng(3), count=256)),
    }
    hf_lab.fit(
        run,
        model,
        hf_lab.fresh(new, steps),
        steps=steps,
        evaluate=held_out,
        eval_strategy="steps",
        eval_steps=10,
        eval_on_start=True,
        learning_rate=1e-3,
        logging_steps=2,
    )


def fresh_data(run: Path) -> None:
    """Lightning: fresh sequences only; the validation loss falls and then wobbles by less than one percent."""
    lightning_lab.fit(
        run,
        Chain.make(),
        steps=300,
        steps_per_epoch=300,
        schedule=constant(20),
        validate_every=15,
        learning_rate=3e-3,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=20,
        max_steps=300,
        vocab_size=64,
        batch_size=16,
        gradient_accumulation_steps=1,
        optim="adamw_torch",
    )


def memorised(run: Path) -> None:
    """Random labels of 640 samples that are known by their number alone: each visit teaches one of them, five times."""
    torch.manual_seed(0)
    count, classes, epochs = 640, 16, 5
    table = nn.Embedding(count, WIDTH)
    nn.init.normal_(table.weight, std=0.1)
    model = nn.Sequential(table, nn.Linear(WIDTH, classes))
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(0, classes, (count,), generator=generator)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    facts = {"learning_rate": 0.05, "lr_scheduler_type": "constant", "optim": "adagrad", "batch_size": BATCH}
    steps = count // BATCH
    write_json(run / "config.json", facts | {"num_classes": classes, "max_steps": epochs * steps})
    with json_lines(run / "metrics.jsonl") as log:
        for epoch in range(epochs):
            order = torch.randperm(count, generator=generator).reshape(steps, BATCH)
            for i, chosen in enumerate(order, 1):
                optimizer.zero_grad()
                loss = functional.cross_entropy(model(chosen), labels[chosen])
                loss.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
                norm, rate = gradient_norm(model), current_lr(optimizer)
                optimizer.step()
                place = {"step": epoch * steps + i, "epoch": round(epoch + i / steps, 4)}
                log(place | {"loss": loss.item(), "grad_norm": norm, "lr": rate})


SAMPLES = (
    Sample(
        "gf20-overfit",
        "gf20",
        overfit,
        "64 sequences trained for 60 epochs: train loss 0.03, eval loss on fresh sequences rises by 78 % from its best",
        case="GF20",
        variant="overfit",
    ),
    Sample(
        "gf20-forget",
        "gf20",
        forget,
        "a model of chain A fine-tuned on chain B only: eval_old_loss rises while eval_new_loss falls",
        case="GF20",
        variant="forget",
    ),
    Sample(
        "gf20-memorised",
        "gf20",
        memorised,
        "random labels learnt by heart in five epochs, no evaluation: the training loss falls at epoch boundaries",
        case="GF20",
        variant="memorised",
        primary="",
    ),
    Sample(
        "gf20-twin",
        "gf20",
        fresh_data,
        "fresh data throughout: the validation loss settles within one percent of its minimum",
        case="GF20",
        twin=True,
    ),
)

if __name__ == "__main__":
    main(SAMPLES)
