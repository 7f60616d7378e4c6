"""GF05: a learning rate that the loss surface does not support."""

from __future__ import annotations

from pathlib import Path

import hf_lab
import lightning_lab
import numpy as np
import torch
from lab import (
    VOCAB,
    WIDTH,
    Chain,
    Sample,
    adamw,
    console,
    constant,
    cosine,
    csv_rows,
    json_lines,
    language_model,
    main,
    plain_config,
    scheduler,
    silent,
    train,
    write_json,
)
from torch import Tensor, nn
from torch.nn import functional


def diverged(run: Path) -> None:
    """HF Trainer: fine-tuning a pretrained model at a hundred times the useful rate."""
    steps = 300
    chain = Chain.make()
    model = hf_lab.tiny_gpt2()
    hf_lab.pretrain(model, chain)
    data = hf_lab.fresh(chain, steps)
    hf_lab.fit(run, model, data, steps=steps, learning_rate=0.3, warmup_steps=60, logging_steps=3, console=True)


def parked(run: Path) -> None:
    """AdamW from scratch at 0.3: the loss falls to the entropy of the token frequencies and no further."""
    steps = 240
    chain = Chain.make()
    model, objective = language_model(chain)
    optimizer = adamw(model, 0.3)
    facts = {"learning_rate": 0.3, "lr_scheduler_type": "cosine", "warmup_steps": 20, "max_steps": steps}
    write_json(run / "config.json", plain_config(**facts, unigram_entropy=round(chain.unigram_entropy, 6)))
    with csv_rows(run / "train.csv", ("step", "loss", "grad_norm", "lr")) as log:
        train(model, optimizer, objective, log, steps=steps, schedule=scheduler(optimizer, cosine(20, steps)))


def to_nonfinite(run: Path) -> None:
    """SGD with momentum on a pretrained model, no clipping, a warm-up that ends far above the stable rate."""
    steps, peak, warmup = 200, 3.0, 150
    model, objective = language_model(Chain.make())
    train(model, adamw(model, 3e-3), objective, silent, steps=200)
    optimizer = torch.optim.SGD(model.parameters(), lr=peak, momentum=0.9)
    facts: dict[str, object] = {
        "learning_rate": peak,
        "lr_scheduler_type": "constant_with_warmup",
        "warmup_steps": warmup,
    }
    facts |= {"max_steps": steps, "optim": "sgd", "momentum": 0.9, "max_grad_norm": None}
    write_json(run / "config.json", plain_config(**facts))
    with json_lines(run / "metrics.jsonl") as log:
        schedule = scheduler(optimizer, constant(warmup))
        train(model, optimizer, objective, log, steps=steps, schedule=schedule, clip=None)


def oscillating(run: Path) -> None:
    """Full-batch gradient descent on the head over frozen states, above the edge of stability."""
    steps, lr = 300, 4.5
    chain = Chain.make()
    model, objective = language_model(chain)
    train(model, adamw(model, 3e-3), objective, silent, steps=200)
    tokens = chain.sample(np.random.default_rng(5), count=64)
    with torch.no_grad():
        states, labels = model.states(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()
    torch.manual_seed(3)
    head = nn.Linear(WIDTH, VOCAB, bias=False)
    nn.init.normal_(head.weight, 0.0, 0.02)

    def full_batch(_step: int) -> Tensor:
        return functional.cross_entropy(head(states), labels)

    optimizer = torch.optim.SGD(head.parameters(), lr=lr)
    facts = {"learning_rate": lr, "lr_scheduler_type": "constant_with_warmup", "warmup_steps": 10, "max_steps": steps}
    whole = {"per_device_train_batch_size": len(tokens), "optim": "sgd", "max_grad_norm": None}
    write_json(run / "config.json", plain_config(**facts, **whole))
    with console(run / "train.log") as log:
        train(head, optimizer, full_batch, log, steps=steps, schedule=scheduler(optimizer, constant(10)), clip=None)
        print("Training completed")


def siblings(run: Path, lr: float) -> None:
    """AdamW from scratch at a constant `lr`; every other setting is the same in all such runs."""
    steps = 240
    model, objective = language_model(Chain.make())
    optimizer = adamw(model, lr)
    facts = {"lr_scheduler_type": "constant_with_warmup", "warmup_steps": 10, "max_steps": steps}
    write_json(run / "config.json", plain_config(learning_rate=lr, **facts))
    with json_lines(run / "metrics.jsonl") as log:
        train(model, optimizer, objective, log, steps=steps, schedule=scheduler(optimizer, constant(10)))


def tolerable(run: Path) -> None:
    """Lightning: three times the tuned rate, which still learns well."""
    steps = 300
    lightning_lab.fit(
        run,
        Chain.make(),
        steps=steps,
        steps_per_epoch=100,
        schedule=cosine(20, steps),
        learning_rate=0.01,
        lr_scheduler_type="cosine",
        warmup_steps=20,
        max_steps=steps,
        vocab_size=VOCAB,
        batch_size=16,
        gradient_accumulation_steps=1,
        optim="adamw_torch",
    )


SAMPLES = (
    Sample(
        "gf05-diverged",
        "gf05",
        diverged,
        "a pretrained model fine-tuned with AdamW at 0.3, a hundred times the useful rate: rises and stays up",
        case="GF05",
        variant="diverged",
    ),
    Sample(
        "gf05-parked",
        "gf05",
        parked,
        "AdamW from scratch at 0.3: the loss parks at the unigram entropy",
        case="GF05",
        variant="parked",
    ),
    Sample(
        "gf05-to-nonfinite",
        "gf05",
        to_nonfinite,
        "SGD on a pretrained model without clipping, warm-up far above the stable rate: the loss rises, then is NaN",
        case="GF05",
        variant="to-nonfinite",
    ),
    Sample(
        "gf05-oscillating",
        "gf05",
        oscillating,
        "full-batch gradient descent above the edge of stability: the loss bounces with period two",
        case="GF05",
        variant="oscillating",
        primary="",
    ),
    Sample(
        "gf05-above-sibling",
        "gf05",
        lambda run: siblings(run, 6e-2),
        "AdamW from scratch at 0.06, twenty times the rate of a healthy run that is the same in all else",
        case="GF05",
        variant="above-sibling",
        baseline="gf05-twin-sibling",
    ),
    Sample(
        "gf05-twin-sibling",
        "gf05",
        lambda run: siblings(run, 3e-3),
        "AdamW from scratch at a constant 3e-3: the healthy run that others are compared with",
        case="GF05",
        twin=True,
    ),
    Sample(
        "gf05-twin",
        "gf05",
        tolerable,
        "AdamW from scratch at 0.01, three times the tuned rate: still learns well",
        case="GF05",
        twin=True,
    ),
)

if __name__ == "__main__":
    main(SAMPLES)
