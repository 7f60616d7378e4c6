"""GF23: the wrong order, the wrong shard, data that begin again after a resume."""

from __future__ import annotations

import copy
import os
import socket
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from lab import (
    BATCH,
    LENGTH,
    VOCAB,
    Chain,
    Sample,
    TinyLM,
    adamw,
    constant,
    current_lr,
    json_lines,
    main,
    next_token_loss,
    plain_config,
    scheduler,
    write_json,
)
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, Sampler, TensorDataset

LR = 1e-3
FACTS = {"learning_rate": LR, "lr_scheduler_type": "constant_with_warmup", "warmup_steps": 20}


def uneven(count: int) -> Tensor:
    """Sequences of the chain, three of ten replaced by noise: batches then differ in difficulty."""
    generator = np.random.default_rng(9)
    tokens = Chain.make().sample(generator, count=count)
    noise = torch.from_numpy(generator.random(count) < 0.3)
    tokens[noise] = torch.from_numpy(generator.integers(0, VOCAB, (int(noise.sum()), LENGTH + 1)))
    return tokens


def epochs(run: Path, *, set_epoch: bool) -> None:
    """Eight epochs of 40 steps with a DistributedSampler that shuffles, with and without set_epoch."""
    data = TensorDataset(uneven(40 * BATCH))
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(data, num_replicas=1, rank=0, shuffle=True)
    loader = DataLoader(data, BATCH, sampler=sampler)
    torch.manual_seed(0)
    model = TinyLM()
    optimizer = adamw(model, LR)
    schedule = scheduler(optimizer, constant(20))
    write_json(run / "config.json", plain_config(**(FACTS | {"num_train_epochs": 8, "max_steps": 320})))
    step = 0
    with json_lines(run / "metrics.jsonl") as log:
        for epoch in range(8):
            if set_epoch:
                sampler.set_epoch(epoch)
            for (tokens,) in loader:
                step += 1
                optimizer.zero_grad()
                loss = next_token_loss(model(tokens[:, :-1]), tokens)
                loss.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
                norm = float(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
                rate = current_lr(optimizer)
                optimizer.step()
                schedule.step()
                place = {"step": step, "epoch": round(step / 40, 4)}
                log(place | {"loss": loss.item(), "grad_norm": norm, "lr": rate})


def worker(rank: int, port: int, run: str, shared: bool) -> None:  # spawn passes places, not names
    """One of two gloo processes; `shared`: both use the same seed and no DistributedSampler."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    data = TensorDataset(uneven(120 * BATCH))
    torch.manual_seed(0)
    sampler: Sampler[int] = (
        RandomSampler(data, generator=torch.Generator().manual_seed(0)) if shared else DistributedSampler(data, 2, rank)
    )
    model = DistributedDataParallel(TinyLM())
    optimizer = adamw(model, LR)
    schedule = scheduler(optimizer, constant(20))
    batches = iter(DataLoader(data, BATCH, sampler=sampler))
    with json_lines(Path(run) / f"metrics_rank{rank}.jsonl") as log:
        for step in range(1, 61):
            (tokens,) = next(batches)
            optimizer.zero_grad()
            loss = next_token_loss(model(tokens[:, :-1]), tokens)
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
            norm = float(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
            rate = current_lr(optimizer)
            optimizer.step()
            schedule.step()
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            row = {"step": step, "rank": rank, "loss": mean.item() / 2, "local_loss": loss.item()}
            log(row | {"grad_norm": norm, "lr": rate})
    dist.destroy_process_group()


def two_ranks(run: Path, *, shared: bool) -> None:
    """Two processes over gloo, each with a file of its own."""
    write_json(run / "config.json", plain_config(**(FACTS | {"world_size": 2, "max_steps": 60})))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    spawn(worker, (port, str(run), shared), nprocs=2)  # type: ignore[no-untyped-call]  # torch leaves it untyped


def resumed(run: Path, *, restored: bool) -> None:
    """Stopped at step 150 and resumed from step 140; the data loader goes on (`restored`) or begins again."""
    data = uneven(300 * BATCH)
    torch.manual_seed(0)
    model = TinyLM()
    optimizer = adamw(model, LR)
    schedule = scheduler(optimizer, constant(20))
    write_json(run / "config.json", plain_config(**(FACTS | {"max_steps": 300})))
    parts: dict[str, Any] = {"model": model, "optimizer": optimizer, "schedule": schedule}
    saved: dict[str, dict[str, object]] = {}
    for first, last in ((1, 150), (141, 300)):
        launched = time.monotonic()
        for name, state in saved.items():
            parts[name].load_state_dict(state)
        with json_lines(run / "metrics.jsonl", "a") as log:
            for step in range(first, last + 1):
                place = step - 1 if restored else step - first
                tokens = data[place * BATCH : (place + 1) * BATCH]
                optimizer.zero_grad()
                loss = next_token_loss(model(tokens[:, :-1]), tokens)
                loss.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
                norm = float(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
                rate = current_lr(optimizer)
                optimizer.step()
                schedule.step()
                elapsed = round(time.monotonic() - launched, 3)
                log({"step": step, "loss": loss.item(), "grad_norm": norm, "lr": rate, "elapsed": elapsed})
                if step == 140 and not saved:
                    saved = {name: copy.deepcopy(part.state_dict()) for name, part in parts.items()}


SAMPLES = (
    Sample(
        "gf23-same-order",
        "gf23",
        lambda run: epochs(run, set_epoch=False),
        "DistributedSampler(shuffle=True) without set_epoch: eight epochs of 40 steps in one order",
        case="GF23",
        variant="same-order",
    ),
    Sample(
        "gf23-same-shard",
        "gf23",
        lambda run: two_ranks(run, shared=True),
        "two gloo processes with one seed and no DistributedSampler: both train on the same batches",
        case="GF23",
        variant="same-shard",
    ),
    Sample(
        "gf23-data-restarted",
        "gf23",
        lambda run: resumed(run, restored=False),
        "the data loader begins again after the resume from step 140",
        case="GF23",
        variant="data-restarted",
    ),
    Sample(
        "gf23-twin",
        "gf23",
        lambda run: epochs(run, set_epoch=True),
        "the same eight epochs with set_epoch",
        case="GF23",
        twin=True,
    ),
    Sample(
        "gf23-twin-ranks",
        "gf23",
        lambda run: two_ranks(run, shared=False),
        "two gloo processes with a DistributedSampler: local losses differ, the averaged ones agree",
        case="GF23",
        twin=True,
    ),
    Sample(
        "gf23-twin-resume",
        "gf23",
        lambda run: resumed(run, restored=True),
        "a resume whose data loader goes on where it was",
        case="GF23",
        twin=True,
    ),
)

if __name__ == "__main__":
    main(SAMPLES)
