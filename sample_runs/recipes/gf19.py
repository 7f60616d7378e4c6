"""GF19: the batch of a step is not the planned one, or far from the gradient noise scale."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import torch
from accumulation_lab import LR, WARMUP, Accumulation
from accumulation_lab import train as accumulate
from lab import (
    Chain,
    Log,
    Sample,
    adamw,
    beginning,
    console,
    csv_rows,
    current_lr,
    json_lines,
    main,
    next_token_loss,
    plain_config,
    silent,
    train,
    write_json,
)
from torch import Tensor

STEPS = 200
SCHEDULE = {"learning_rate": LR, "lr_scheduler_type": "cosine", "warmup_steps": WARMUP}
COLUMNS = ("step", "loss", "grad_norm", "lr", "micro_grad_norm")


def accumulation_forgotten(run: Path) -> None:
    """16 sequences per step are planned; the loop takes the micro-batch of 2 for the whole step."""
    chain, model, generator = beginning()
    facts = {"per_device_train_batch_size": 2, "world_size": 1, "global_batch_size": 16, "max_steps": STEPS}
    write_json(run / "config.json", plain_config(**SCHEDULE, **facts))
    with json_lines(run / "metrics.jsonl") as log:
        accumulate(model, generator, log, Accumulation(chain, STEPS, 1, 2))


def one_process(run: Path) -> None:
    """The settings name four ranks, the launcher started one; the loop counts the samples that it consumed."""
    chain, model, generator = beginning()
    facts = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "world_size": 4, "max_steps": STEPS}
    write_json(run / "config.json", plain_config(**SCHEDULE, **facts))
    with json_lines(run / "metrics.jsonl") as log:
        how = Accumulation(chain, STEPS, 2, 4, divisor=2.0, more=lambda step: {"consumed_samples": 8 * step})
        accumulate(model, generator, log, how)


def epochs_of(data: Tensor, size: int, log: Log, *, first: int, steps: int, state: dict[str, object]) -> None:
    """Train on fixed data in batches of `size`, from the state of an earlier launch, and print fractional epochs."""
    model = beginning()[1]
    optimizer = adamw(model, LR)
    if state:
        model.load_state_dict(state["model"])  # type: ignore[arg-type]  # what this function put there
        optimizer.load_state_dict(state["optimizer"])  # type: ignore[arg-type]  # likewise
    order = np.random.default_rng(3)
    seen = float(state.get("epoch", 0.0))  # type: ignore[arg-type]  # likewise
    for step in range(first, first + steps):
        tokens = data[torch.from_numpy(order.integers(0, len(data), size))]
        optimizer.zero_grad()
        loss = next_token_loss(model(tokens[:, :-1]), tokens)
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
        norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        optimizer.step()
        seen += size / len(data)
        log({"step": step, "epoch": f"{seen:.4f}", "loss": loss.item(), "grad_norm": norm, "lr": current_lr(optimizer)})
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state.update(model=weights, optimizer=copy.deepcopy(optimizer.state_dict()), epoch=seen)


def fewer_ranks_after_resume(run: Path) -> None:
    """Stopped at step 120 and resumed from step 110 with half the sequences per step, as on half the GPUs."""
    data = Chain.make().sample(np.random.default_rng(1), count=1600)
    facts = {"per_device_train_batch_size": 4, "max_steps": 2 * 120, "warmup_steps": 0, "learning_rate": LR}
    write_json(run / "config.json", plain_config(lr_scheduler_type="constant", **facts))
    state: dict[str, object] = {}
    with console(run / "train.log") as log:
        epochs_of(data, 16, log, first=1, steps=110, state=state)
        epochs_of(data, 16, log, first=111, steps=10, state=dict(state))
        print("Resuming from checkpoint at step 110")
        epochs_of(data, 8, log, first=111, steps=130, state=state)
        print("Training completed")


def nothing_but_noise(run: Path) -> None:
    """A model that has learnt its chain trains on with 4 sequences per step: their gradients share hardly anything."""
    chain, model, generator = beginning()
    accumulate(model, generator, silent, Accumulation(chain, 500, 1, 32))
    facts = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 4, "world_size": 1, "learning_rate": 1e-5}
    write_json(run / "config.json", plain_config(**facts, lr_scheduler_type="cosine", warmup_steps=20, max_steps=600))
    with csv_rows(run / "log.csv", COLUMNS) as log:
        how = Accumulation(chain, 600, 4, 1, divisor=4.0, lr=1e-5, clip=None, micro_norm=True)
        accumulate(model, generator, log, how)


def more_than_enough(run: Path) -> None:
    """The first steps of a fresh model, whose gradients all point the same way, with 1024 sequences each."""
    steps = 60
    chain, model, generator = beginning()
    facts = {"per_device_train_batch_size": 64, "gradient_accumulation_steps": 16, "world_size": 1, "max_steps": steps}
    write_json(run / "config.json", plain_config(**SCHEDULE, **facts))
    with csv_rows(run / "log.csv", COLUMNS) as log:
        accumulate(model, generator, log, Accumulation(chain, steps, 16, 64, divisor=16.0, micro_norm=True))


def as_planned(run: Path) -> None:
    """4 x 4 sequences per step as planned, the samples counted; a small batch with its learning rate."""
    chain, model, generator = beginning()
    facts = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4, "world_size": 1, "max_steps": STEPS}
    write_json(run / "config.json", plain_config(**SCHEDULE, **facts, global_batch_size=16))
    with json_lines(run / "metrics.jsonl") as log:
        how = Accumulation(chain, STEPS, 4, 4, divisor=4.0, more=lambda step: {"consumed_samples": 16 * step})
        accumulate(model, generator, log, how)


def small_and_tuned(run: Path) -> None:
    """Two sequences per step, planned so, with a learning rate to match."""
    chain, model, generator = beginning()

    def objective(_step: int) -> Tensor:
        tokens = chain.sample(generator, count=2)
        return next_token_loss(model(tokens[:, :-1]), tokens)

    facts = {"per_device_train_batch_size": 2, "world_size": 1, "global_batch_size": 2, "max_steps": STEPS}
    write_json(run / "config.json", plain_config(**facts, learning_rate=1e-3, lr_scheduler_type="constant"))
    with json_lines(run / "metrics.jsonl") as log:
        train(model, adamw(model, 1e-3), objective, log, steps=STEPS)


SAMPLES = (
    Sample(
        "gf19-not-as-planned",
        "gf19",
        accumulation_forgotten,
        "16 sequences per step planned, accumulation forgotten: 2 per step",
        case="GF19",
        variant="not-as-planned",
        primary="",
    ),
    Sample(
        "gf19-not-as-set",
        "gf19",
        one_process,
        "four ranks in the settings, one process in truth: consumed samples grow by 8 per step, not by 32",
        case="GF19",
        variant="not-as-set",
        primary="",
    ),
    Sample(
        "gf19-changed-on-resume",
        "gf19",
        fewer_ranks_after_resume,
        "resumed from step 110 with half the sequences per step",
        case="GF19",
        variant="changed-on-resume",
        primary="",
    ),
    Sample(
        "gf19-noise-dominated",
        "gf19",
        nothing_but_noise,
        "four sequences per step for a model that has learnt nearly everything, the norm of one micro-batch logged",
        case="GF19",
        variant="noise-dominated",
        primary="",
    ),
    Sample(
        "gf19-wasted",
        "gf19",
        more_than_enough,
        "1024 sequences per step in the first steps of a fresh model, the norm of one micro-batch logged",
        case="GF19",
        variant="wasted",
        primary="",
    ),
    Sample(
        "gf19-twin",
        "gf19",
        as_planned,
        "4 x 4 sequences per step as planned and as counted",
        case="GF19",
        twin=True,
    ),
    Sample(
        "gf19-twin-small",
        "gf19",
        small_and_tuned,
        "two sequences per step, as planned, with a learning rate to match",
        case="GF19",
        twin=True,
    ),
)

if __name__ == "__main__":
    main(SAMPLES)
