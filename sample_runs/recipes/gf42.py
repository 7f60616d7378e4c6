"""GF42: steps that get slower, for good or for a while, and regular pauses. Times are measured, not written."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from pathlib import Path

import torch
from lab import (
    Chain,
    Sample,
    Schedule,
    adamw,
    constant,
    csv_rows,
    language_model,
    main,
    plain_config,
    scheduler,
    write_json,
)
from torch import nn

STEPS = 200
BASE = 0.04
"""Seconds that the data loader takes for a batch of its own accord."""
COLUMNS = ("step", "loss", "grad_norm", "lr", "step_time")


def timed(run: Path, extra: Callable[[int, nn.Module], None]) -> None:
    """A training that logs how long each step took; `extra` is done within the step."""
    schedule: Schedule = constant(20)
    facts = {"learning_rate": 3e-3, "lr_scheduler_type": "constant_with_warmup", "warmup_steps": 20, "max_steps": STEPS}
    write_json(run / "config.json", plain_config(**facts))
    model, objective = language_model(Chain.make())
    optimizer = adamw(model, 3e-3)
    attached = scheduler(optimizer, schedule)
    with csv_rows(run / "metrics.csv", COLUMNS) as log:
        for step in range(1, STEPS + 1):
            start = time.perf_counter()
            time.sleep(BASE)
            extra(step, model)
            optimizer.zero_grad()
            loss = objective(step)
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
            norm = float(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
            rate = attached.get_last_lr()[0]
            optimizer.step()
            attached.step()
            taken = time.perf_counter() - start
            log({"step": step, "loss": loss.item(), "grad_norm": norm, "lr": rate, "step_time": round(taken, 5)})


def steady(_step: int, _model: nn.Module) -> None:
    """Nothing more."""


def drift(run: Path) -> None:
    """A metric over all past values is computed anew at every step."""
    past: list[float] = []

    def metric(step: int, _model: nn.Module) -> None:
        past.extend(float(v) for v in torch.rand(1500, generator=torch.Generator().manual_seed(step)))
        sorted(past)

    timed(run, metric)


def slow_from(first: int, last: int, seconds: float) -> Callable[[int, nn.Module], None]:
    """The file system takes so much longer for a batch from one step to another."""
    return lambda step, _model: time.sleep(seconds if first <= step <= last else 0.0)


def save(step: int, model: nn.Module) -> None:
    """A checkpoint every 25 steps to a store that takes half a second for it."""
    if step % 25 == 0:
        torch.save(model.state_dict(), io.BytesIO())
        time.sleep(0.6)


SAMPLES = (
    Sample(
        "gf42-drift",
        "gf42",
        drift,
        "a metric over all past values is computed anew at every step, which takes longer and longer",
        case="GF42",
        variant="drift",
        primary="",
    ),
    Sample(
        "gf42-new-level",
        "gf42",
        lambda run: timed(run, slow_from(121, STEPS, 0.08)),
        "batches come from a slow file system from step 121 on",
        case="GF42",
        variant="new-level",
        primary="",
    ),
    Sample(
        "gf42-spell",
        "gf42",
        lambda run: timed(run, slow_from(81, 130, 0.15)),
        "the file system was busy from step 81 to 130",
        case="GF42",
        variant="spell",
        primary="",
    ),
    Sample(
        "gf42-pauses",
        "gf42",
        lambda run: timed(run, save),
        "a checkpoint every 25 steps, saved while the training waits",
        case="GF42",
        variant="pauses",
        primary="",
    ),
    Sample(
        "gf42-twin",
        "gf42",
        lambda run: timed(run, steady),
        "steps of one length but for the noise of the machine",
        case="GF42",
        twin=True,
    ),
)

if __name__ == "__main__":
    main(SAMPLES)
