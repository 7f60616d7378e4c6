"""Worker of the gloo samples with checkpoints: two processes that each save what they hold, with a fault in their loop.

Started by gloo_lab through torchrun: `train_saved.py JOB RUN_DIR`. Data parallelism: every rank saves
checkpoint-STEP/rank<R>.pt. Tensor parallelism ("tensor-..."): two layers split over the ranks with sequence parallelism
between them, saved in the folders of Megatron-LM.
"""

from __future__ import annotations

import math
import sys
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from checkpoint_lab import CHAIN, VOCAB, small_lm
from lab import LENGTH, json_lines, next_token_loss
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

STEPS, SAVED, FAULT = 60, (30, 60), 31
WIDTH, LR = 8, 3e-3
SIZE = 2

Step = Callable[[int], float]


def adam(model: nn.Module, *, fused: bool = False) -> torch.optim.AdamW:
    """AdamW at a constant rate."""
    return torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.95), weight_decay=0.1, fused=fused)


# -- data parallelism -------------------------------------------------------------------------------------------------


def replicas(job: str, run: Path) -> Step:
    """DDP; from step FAULT on its gradients are not reduced ("no-sync"), or rank 1 skips every sixth step ("skips").

    "rounding": rank 1 has another implementation of AdamW, which rounds otherwise.
    """
    rank = dist.get_rank()
    model = DistributedDataParallel(small_lm(layers=1, width=WIDTH))
    optimizer, generator = adam(model, fused=job == "rounding" and rank == 1), np.random.default_rng(rank + 1)

    def step(number: int) -> float:
        if job == "no-sync" and number == FAULT:
            model.require_backward_grad_sync = False  # what no_sync() sets, here for good
        tokens = CHAIN.sample(generator, count=8, length=LENGTH // 2 + 1)
        loss = next_token_loss(model(tokens[:, :-1]), tokens)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if not (job == "skips" and rank == 1 and number >= FAULT and number % 6 == 0):
            optimizer.step()
        if number in SAVED:
            folder = run / f"checkpoint-{number}"
            folder.mkdir(exist_ok=True)
            state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": number}
            torch.save(state, folder / f"rank{rank}.pt")
        return loss.item()

    return step


# -- tensor parallelism -----------------------------------------------------------------------------------------------


class Gather(torch.autograd.Function):
    """The whole sequence out of the ranks' parts; backward adds the gradients up and keeps this rank's part."""

    @staticmethod
    def forward(_context: Any, part: Tensor) -> Tensor:
        """(samples, length / SIZE, width) to (samples, length, width)."""
        parts = [torch.empty_like(part) for _ in range(SIZE)]
        dist.all_gather(parts, part.contiguous())
        return torch.cat(parts, dim=1)

    @staticmethod
    def backward(_context: Any, *gradients: Tensor) -> Tensor:
        """Reduce-scatter."""
        whole = gradients[0].contiguous()
        dist.all_reduce(whole)
        return whole.chunk(SIZE, dim=1)[dist.get_rank()]


class Scatter(torch.autograd.Function):
    """The sum over the ranks, of which every rank keeps its part of the sequence; backward gathers."""

    @staticmethod
    def forward(_context: Any, partial: Tensor) -> Tensor:
        """(samples, length, width) to (samples, length / SIZE, width)."""
        whole = partial.contiguous().clone()
        dist.all_reduce(whole)
        return whole.chunk(SIZE, dim=1)[dist.get_rank()].contiguous()

    @staticmethod
    def backward(_context: Any, *gradients: Tensor) -> Tensor:
        """All-gather."""
        parts = [torch.empty_like(gradients[0]) for _ in range(SIZE)]
        dist.all_gather(parts, gradients[0].contiguous())
        return torch.cat(parts, dim=1)


class Layer(nn.Module):
    """Norm on this rank's half of the sequence, a column-parallel and a row-parallel linear layer, a residual sum."""

    def __init__(self) -> None:
        super().__init__()
        self.input_layernorm = nn.LayerNorm(WIDTH)
        self.mlp = nn.Module()
        self.mlp.dense_h_to_4h = nn.Linear(WIDTH, 4 * WIDTH // SIZE)
        self.mlp.dense_4h_to_h = nn.Linear(4 * WIDTH // SIZE, WIDTH, bias=False)

    def forward(self, part: Tensor) -> Tensor:
        """(samples, length / SIZE, width) to the same."""
        gathered: Tensor = Gather.apply(self.input_layernorm(part))  # type: ignore[no-untyped-call]  # torch leaves it untyped
        inner = functional.gelu(self.mlp.dense_h_to_4h(gathered))  # type: ignore[operator]  # a Linear
        out: Tensor = Scatter.apply(self.mlp.dense_4h_to_h(inner))  # type: ignore[no-untyped-call,operator]  # likewise
        return part + out


class Shard(nn.Module):
    """One rank's part of a language model: whole embeddings and norms, half of every linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Module()
        self.embedding.word_embeddings = nn.Embedding(VOCAB, WIDTH)
        self.encoder = nn.Module()
        self.encoder.layers = nn.ModuleList(Layer() for _ in range(2))
        self.encoder.final_layernorm = nn.LayerNorm(WIDTH)
        self.output_layer = nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, part: Tensor) -> Tensor:
        """Logits of this rank's half of the sequence."""
        hidden: Tensor = self.embedding.word_embeddings(part)  # type: ignore[operator]  # an Embedding
        for layer in self.encoder.layers:  # type: ignore[union-attr]  # a ModuleList
            hidden = layer(hidden)
        logits: Tensor = self.output_layer(self.encoder.final_layernorm(hidden))  # type: ignore[operator]  # a LayerNorm
        return logits


def shards(job: str, run: Path) -> Step:
    """Tensor and sequence parallelism; "tensor-drift" leaves the gradients of the norms unreduced."""
    rank, model = dist.get_rank(), Shard()
    for name, parameter in model.named_parameters():
        seeded = torch.Generator().manual_seed(rank if "mlp" in name else 7)  # shards differ, replicas do not
        if parameter.dim() > 1:
            nn.init.normal_(parameter, 0.0, 0.5 / math.sqrt(WIDTH), generator=seeded)
    optimizer, generator = adam(model), np.random.default_rng(1)

    def step(number: int) -> float:
        tokens = CHAIN.sample(generator, count=8, length=LENGTH // 2 + 1)
        logits = model(tokens[:, :-1].chunk(SIZE, dim=1)[rank])
        labels = tokens[:, 1:].chunk(SIZE, dim=1)[rank]
        loss = functional.cross_entropy(logits.flatten(0, 1), labels.flatten()) / SIZE
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
        for name, parameter in model.named_parameters():
            whole = "mlp" not in name  # every rank saw half of the sequence
            if whole and parameter.grad is not None and not (job == "tensor-drift" and "layernorm" in name):
                dist.all_reduce(parameter.grad)
        optimizer.step()
        if number in SAVED:
            save_shard(run, rank, number, model, optimizer)
        total = loss.detach().clone()
        dist.all_reduce(total)
        return float(total)

    return step


def save_shard(run: Path, rank: int, number: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """As Megatron-LM lays its files out."""
    folder = run / f"iter_{number:07d}" / f"mp_rank_{rank:02d}"
    folder.mkdir(parents=True, exist_ok=True)
    weights = OrderedDict((name, tensor) for name, tensor in model.state_dict().items())
    state = {
        "checkpoint_version": 3.0, "iteration": number, "model": weights, "optimizer": optimizer.state_dict(),
    }  # fmt: skip
    torch.save(state, folder / "model_optim_rng.pt")
    (run / "latest_checkpointed_iteration.txt").write_text(str(number), encoding="utf-8")


def main() -> None:
    """Join the process group, train, leave. The log is rank 0's."""
    job, run = sys.argv[1], Path(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    step = shards(job, run) if job.startswith("tensor-") else replicas(job, run)
    if dist.get_rank() == 0:
        with json_lines(run / "train.jsonl") as log:
            for number in range(1, STEPS + 1):
                log({"step": number, "loss": step(number), "lr": LR})
    else:
        for number in range(1, STEPS + 1):
            step(number)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
