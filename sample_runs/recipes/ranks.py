"""Two processes on this machine that meet through gloo."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator  # type: ignore[import-untyped]  # it ships no types
from lab import (
    Chain,
    TinyLM,
    adamw,
    cosine,
    current_lr,
    json_lines,
    next_token_loss,
    plain_config,
    scheduler,
    write_json,
)
from torch import nn
from torch.multiprocessing.spawn import start_processes

WORLD = 2

Facts = Mapping[str, object]
Work = Callable[[Path, Facts], None]


def spawn(work: Work, run: Path, facts: Facts) -> None:
    """Run `work` in WORLD processes with the environment that torchrun sets."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    start_processes(_enter, args=(work, run, dict(facts), port), nprocs=WORLD)  # type: ignore[no-untyped-call]  # torch leaves it untyped


def _enter(rank: int, work: Work, run: Path, facts: Facts, port: int) -> None:
    torch.set_num_threads(1)
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(WORLD), "LOCAL_WORLD_SIZE": str(WORLD),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "ACCELERATE_USE_CPU": "true",
    }  # fmt: skip
    work(run, facts)


def accelerated(run: Path, facts: Facts) -> None:
    """A cosine for max_steps, prepared by accelerate, which steps it once per process; rank 0 logs."""
    accelerator = Accelerator(cpu=True)
    steps, lr = int(str(facts["max_steps"])), float(str(facts["learning_rate"]))
    chain, generator = Chain.make(), np.random.default_rng(1 + accelerator.process_index)
    torch.manual_seed(0)
    model: nn.Module = TinyLM()
    optimizer = adamw(model, lr)
    schedule = scheduler(optimizer, cosine(int(str(facts["warmup_steps"])), steps))
    model, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)
    if accelerator.is_main_process:
        write_json(run / "config.json", plain_config(**facts, num_processes=accelerator.num_processes))
    with json_lines(run / "metrics.jsonl", mode="a") as log:
        for step in range(1, steps + 1):
            optimizer.zero_grad()
            tokens = chain.sample(generator)
            loss = next_token_loss(model(tokens[:, :-1]), tokens)
            accelerator.backward(loss)
            norm = float(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
            rate = current_lr(optimizer)
            optimizer.step()
            schedule.step()
            if accelerator.is_main_process:
                log({"step": step, "loss": loss.item(), "grad_norm": norm, "lr": rate})
    accelerator.end_training()
