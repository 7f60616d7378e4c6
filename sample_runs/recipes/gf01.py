"""GF01: a graph that is cut, as the console shows it, and near misses."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from crashes import whole_console
from lab import (
    LENGTH,
    Block,
    Chain,
    Log,
    Sample,
    TinyLM,
    adamw,
    beginning,
    main,
    next_token_loss,
    plain_config,
    silent,
    train,
    write_json,
)
from torch import Tensor, distributed, nn
from torch.multiprocessing.spawn import start_processes
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

STEPS = 120
CHANGE = 60
"""The step behind which the fault comes into play."""
LR = 3e-3
RANKS = 2


def fit(run: Path, model: nn.Module, objective: Callable[[int], Tensor], **facts: object) -> None:
    """Train, the whole console in train.log."""
    write_json(run / "config.json", plain_config(learning_rate=LR, lr_scheduler_type="constant", **facts))
    with whole_console(run / "train.log") as log:
        train(model, adamw(model, LR), objective, log, steps=STEPS)
        print("Training completed")


def all_frozen(run: Path) -> None:
    """A second phase that is to train the head alone freezes the head with the rest."""
    chain, model, generator = beginning()

    def objective(step: int) -> Tensor:
        tokens = chain.sample(generator)
        if step == CHANGE + 1:
            model.requires_grad_(False)
        return next_token_loss(model(tokens[:, :-1]), tokens)

    fit(run, model, objective)


class Adapter(nn.Module):
    """A block with a low-rank adapter beside it."""

    def __init__(self, block: Block, width: int = 64, rank: int = 4) -> None:
        super().__init__()
        self.block = block
        self.down = nn.Linear(width, rank, bias=False)
        self.up = nn.Linear(rank, width, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, hidden: Tensor) -> Tensor:
        """The block's output and the adapter's."""
        out: Tensor = self.block(hidden) + self.up(self.down(hidden))
        return out


def adapted(model: TinyLM, *, head: bool) -> None:
    """Freeze the model and put adapters beside its blocks; head: whether the head trains, too."""
    model.requires_grad_(False)
    model.head.requires_grad_(head)
    model.blocks = nn.ModuleList(Adapter(block) for block in model.blocks if isinstance(block, Block))


def through_checkpoints(model: TinyLM, tokens: Tensor, *, re_entrant: bool, on: bool = True) -> Tensor:
    """Logits, every block under activation checkpointing."""
    hidden = model.embedding(tokens) + model.position.weight[:LENGTH]
    for block in model.blocks:
        hidden = checkpoint(block, hidden, use_reentrant=re_entrant) if on else block(hidden)
    logits: Tensor = model.head(model.norm(hidden))
    return logits


def pretrained() -> tuple[Chain, TinyLM, Callable[[int], Tensor]]:
    """A model that knows another chain, and fresh tokens of the one that it is to be tuned on."""
    other, model, generator = beginning(Chain.make(seed=5))
    known = other.sample

    def first(_step: int) -> Tensor:
        tokens = known(generator)
        return next_token_loss(model(tokens[:, :-1]), tokens)

    train(model, adamw(model, LR), first, silent, steps=150)
    chain = Chain.make()
    return chain, model, lambda _step: chain.sample(generator)


def adapters(run: Path, *, re_entrant: bool, head: bool, later: bool) -> None:
    """Adapters on a frozen base under activation checkpointing, which comes on later or from the start."""
    _, model, tokens_of = pretrained()
    adapted(model, head=head)

    def objective(step: int) -> Tensor:
        tokens = tokens_of(step)
        on = not later or step > CHANGE
        return next_token_loss(through_checkpoints(model, tokens[:, :-1], re_entrant=re_entrant, on=on), tokens)

    fit(run, model, objective, gradient_checkpointing=True, lora_rank=4)


class TwoHeads(nn.Module):
    """A language model with an auxiliary head that predicts the token after the next."""

    def __init__(self) -> None:
        super().__init__()
        self.model = TinyLM()
        self.auxiliary = nn.Linear(64, 64)

    def forward(self, tokens: Tensor, *, both: bool) -> tuple[Tensor, Tensor | None]:
        """Logits of the head and, where wanted, of the auxiliary one."""
        hidden = self.model.states(tokens)
        return self.model.head(hidden), self.auxiliary(hidden) if both else None


def rank_main(rank: int, run: str, find_unused: bool) -> None:
    """What one process of the job does; rank 0 logs."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517", "GLOO_SOCKET_IFNAME": "lo"}
    torch.set_num_threads(1)
    with whole_console(Path(run) / f"rank{rank}.log") as log:
        distributed.init_process_group("gloo", rank=rank, world_size=RANKS)
        try:
            job(rank, log, find_unused=find_unused)
        finally:
            distributed.destroy_process_group()


def job(rank: int, log: Log, *, find_unused: bool) -> None:
    """Train with DDP; the auxiliary loss is left out behind step CHANGE."""
    chain, _, _ = beginning()
    generator = np.random.default_rng(rank)
    model = DistributedDataParallel(TwoHeads(), find_unused_parameters=find_unused)

    def objective(step: int) -> Tensor:
        tokens = chain.sample(generator)
        logits, more = model(tokens[:, :-1], both=step <= CHANGE)
        loss = next_token_loss(logits, tokens)
        return loss if more is None else loss + 0.1 * next_token_loss(more[:, :-1], tokens[:, 1:])

    train(model, adamw(model, LR), objective, log if rank == 0 else silent, steps=STEPS)
    print("Training completed")


def data_parallel(run: Path, *, find_unused: bool) -> None:
    """Two gloo processes."""
    facts = {"find_unused_parameters": find_unused, "world_size": RANKS, "ddp_backend": "gloo"}
    write_json(run / "config.json", plain_config(learning_rate=LR, lr_scheduler_type="constant", **facts))
    start_processes(  # type: ignore[no-untyped-call]  # torch leaves it untyped
        rank_main, args=(str(run), find_unused), nprocs=RANKS, start_method="spawn"
    )


SAMPLES = (
    Sample(
        "gf01-no-graph",
        "gf01",
        all_frozen,
        "a second phase that is to train the head alone freezes the head as well: the loss has no graph",
        case="GF01",
        variant="no-graph",
        ending="exception",
    ),
    Sample(
        "gf01-re-entrant-stop",
        "gf01",
        lambda run: adapters(run, re_entrant=True, head=False, later=True),
        "LoRA-like adapters on a frozen base; re-entrant activation checkpointing comes on later and cuts the graph",
        case="GF01",
        variant="re-entrant-stop",
        ending="exception",
    ),
    Sample(
        "gf01-re-entrant-warning",
        "gf01",
        lambda run: adapters(run, re_entrant=True, head=True, later=False),
        "the same from the start, with a head that trains: the adapters get no gradient, and a warning tells",
        case="GF01",
        variant="re-entrant-warning",
        primary="",
    ),
    Sample(
        "gf01-unused-in-ddp",
        "gf01",
        lambda run: data_parallel(run, find_unused=False),
        "two gloo processes; an auxiliary head is no longer part of the loss, and DDP waits for its gradients",
        case="GF01",
        variant="unused-in-ddp",
        ending="exception",
    ),
    Sample(
        "gf01-twin-find-unused",
        "gf01",
        lambda run: data_parallel(run, find_unused=True),
        "the same with find_unused_parameters=True: what is left out on purpose stops nothing",
        case="GF01",
        twin=True,
    ),
    Sample(
        "gf01-twin-not-re-entrant",
        "gf01",
        lambda run: adapters(run, re_entrant=False, head=False, later=False),
        "adapters on a frozen base under activation checkpointing with use_reentrant=False",
        case="GF01",
        twin=True,
    ),
)

if __name__ == "__main__":
    main(SAMPLES)
