"""Worker of the gloo samples: trains the tiny model in one of two processes, with a fault in its loop.

Started by gloo_lab through torchrun: `train_ddp.py JOB RUN_DIR`. Every rank writes metrics.rank<R>.jsonl.
"""

from __future__ import annotations

import datetime as dt
import faulthandler
import os
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from lab import Chain, TinyLM, adamw, cosine, current_lr, json_lines, next_token_loss, print_row, scheduler
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 150
FAULT = 91
"""Step at which the fault begins."""
PEAK = 3e-3
LIMIT = 5.0
"""Seconds that a collective may take."""


def batch(chain: Chain, generator: np.random.Generator, job: str, step: int) -> Tensor:
    """The next batch of this rank."""
    if dist.get_rank() == 1:
        if job == "straggler":
            time.sleep(0.05)
        if job == "slow-step" and step == FAULT:
            time.sleep(LIMIT / 3)
        if job == "stuck-data" and step == FAULT:
            time.sleep(LIMIT * 2)
        if job == "bad-sample" and step == FAULT:
            time.sleep(0.5)
            raise ValueError("sample 4711 holds no tokens")
        if job == "gone" and step == FAULT:
            os._exit(1)
    return chain.sample(generator)


def weights_norm(model: nn.Module) -> float:
    """Total L2 norm of the weights."""
    return float(torch.nn.utils.get_total_norm([p.detach() for p in model.parameters()]))


def validate(job: str, step: int, run: Path) -> None:
    """The ranks agree on a number, once in a while; here is where they part in some jobs."""
    rank = dist.get_rank()
    if job == "mismatch" and step == FAULT:
        try:
            if rank == 0:
                dist.broadcast(torch.ones(1), 0)
            else:
                dist.all_reduce(torch.ones(4))
            dist.barrier()
        except RuntimeError:
            dumped = torch._C._distributed_c10d._dump_fr_trace(includeStackTraces=False)  # type: ignore[attr-defined]  # noqa: SLF001  # no public name yet
            (run / f"_dump_{rank}").write_bytes(dumped)
            raise
    if job == "hung" and step == FAULT:
        with (run / f"stacks.rank{rank}.txt").open("w", encoding="utf-8") as stacks:
            faulthandler.dump_traceback_later(3, file=stacks)
            if rank == 1:
                time.sleep(60)  # stands for a read that does not return
            dist.barrier()


def build(job: str) -> tuple[nn.Module, DistributedDataParallel]:
    """The model and its wrapper; both carry the fault where it is one of building them."""
    torch.manual_seed(dist.get_rank() if job == "started-apart" else 0)
    model = TinyLM()
    wrapped = DistributedDataParallel(model, init_sync=job != "started-apart")
    return (model if job == "inner-module" else wrapped), wrapped


def train(job: str, run: Path) -> None:
    """Train with DistributedDataParallel and log on every rank."""
    rank = dist.get_rank()
    chain, generator = Chain.make(), np.random.default_rng(rank + 1)
    model, wrapped = build(job)
    optimizer = adamw(wrapped, PEAK)
    schedule = scheduler(optimizer, cosine(20, STEPS))
    with json_lines(run / f"metrics.rank{rank}.jsonl") as log:
        for step in range(1, STEPS + 1):
            if job == "no-sync" and step == FAULT:
                wrapped.require_backward_grad_sync = False  # what no_sync() sets, here for good
            begin = time.perf_counter()
            tokens = batch(chain, generator, job, step)
            loss = next_token_loss(model(tokens[:, :-1]), tokens)
            forward = time.perf_counter() - begin
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
            norm = float(nn.utils.clip_grad_norm_(wrapped.parameters(), 1.0))
            rate = current_lr(optimizer)
            optimizer.step()
            schedule.step()
            row = {"step": step, "loss": loss.item(), "grad_norm": norm, "lr": rate}
            log({**row, "param_norm": weights_norm(wrapped), "forward_time": round(forward, 5)})
            if rank == 0:
                print_row(row)
            validate(job, step, run)
    if rank == 0:
        print("Training completed", flush=True)
    if job == "last-save" and rank == 0:
        dist.barrier()  # the last checkpoint, saved by rank 0 alone with a call that holds a barrier
    elif job == "last-save":
        time.sleep(LIMIT * 2)


def main() -> None:
    """Join the process group, train, leave."""
    job, run = sys.argv[1], Path(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=dt.timedelta(seconds=60 if job == "hung" else LIMIT))
    train(job, run)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
