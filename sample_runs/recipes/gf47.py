"""GF47: buffers in 16 bits: rotary frequencies, and running statistics that leave the range of fp16."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import torch
from checkpoint_lab import VOCAB, configure, save
from checkpoint_writers import deepspeed
from lab import Block, Sample, TinyLM, json_lines, main
from torch import Tensor, nn
from torch.nn import functional

torch.set_num_threads(1)

WIDTH, HEADS = 16, 4


class Rotary(nn.Module):
    """Turns pairs of a head's numbers by position times inv_freq, a buffer that is saved.

    kept: inv_freq stays float32 when the model is cast.
    """

    inv_freq: Tensor

    def __init__(self, size: int, *, kept: bool) -> None:
        super().__init__()
        self.kept = kept
        self.register_buffer("inv_freq", 1.0 / 10000.0 ** (torch.arange(0, size, 2) / size))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        exact = self.inv_freq
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        if self.kept:
            self.inv_freq = exact
        return self

    def forward(self, x: Tensor) -> Tensor:
        """Turn x (batch, heads, length, size)."""
        angles = torch.arange(x.shape[2]).to(self.inv_freq.dtype)[:, None] * self.inv_freq
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        first, second = x[..., ::2], x[..., 1::2]
        return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)


class RotaryBlock(Block):
    """The block of the lab with rotary positions."""

    def __init__(self, width: int, *, kept: bool) -> None:
        super().__init__(width, HEADS)
        self.rotary_emb = Rotary(width // HEADS, kept=kept)

    def forward(self, hidden: Tensor) -> Tensor:
        """Add attention, then the MLP, to the residual stream."""
        batch, length, width = hidden.shape
        shape = (batch, length, 3, self.heads, width // self.heads)
        query, key, value = self.qkv(self.norm_attention(hidden)).view(shape).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(
            self.rotary_emb(query), self.rotary_emb(key), value, is_causal=True
        )
        hidden = hidden + self.mix(mixed.transpose(1, 2).reshape(batch, length, width))
        down: Tensor = self.down(functional.gelu(self.up(self.norm_mlp(hidden))))
        return hidden + down


def rotary(run: Path, *, kept: bool) -> None:
    """DeepSpeed in bfloat16 with float32 masters: parameters are exact, buffers are cast with the model."""
    torch.manual_seed(0)
    model = TinyLM(vocab=VOCAB, width=WIDTH, layers=1)
    model.blocks = nn.ModuleList([RotaryBlock(WIDTH, kept=kept)])
    deepspeed(run, model, steps=80, saved=(80,), lr=3e-3)


def statistics(run: Path) -> None:
    """A classifier on raw measurements of size 400, cast with half(): its running variance leaves fp16's range."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.BatchNorm1d(12), nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 4)).half()
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    centres = 400 * torch.randn(4, 12)
    configure(run, task="classification", learning_rate=0.05, max_steps=120, optim="sgd", max_grad_norm=None)
    with json_lines(run / "metrics.jsonl") as log:
        for step in range(1, 121):
            labels = torch.randint(4, (32,))
            inputs = centres[labels] + 400 * torch.randn(32, 12)
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(inputs.half()).float(), labels)
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
            optimizer.step()
            log({"step": step, "loss": loss.item(), "lr": 0.05})
            if step in (4, 120):
                save(run, step, model, optimizer)


SAMPLES = (
    Sample(
        "gf47-rotary",
        "gf47",
        lambda run: rotary(run, kept=False),
        "a model cast to bfloat16 with its rotary frequencies, under DeepSpeed with float32 masters",
        case="GF47",
        variant="rotary",
        primary="",
        checkpoints=True,
    ),
    Sample(
        "gf47-statistics",
        "gf47",
        statistics,
        "half() on a classifier of raw measurements: the running variance of its BatchNorm is infinite",
        case="GF47",
        variant="statistics",
        checkpoints=True,
    ),
    Sample(
        "gf47-twin",
        "gf47",
        lambda run: rotary(run, kept=True),
        "the same rotary model, whose frequencies stay float32 when it is cast",
        case="GF47",
        twin=True,
        checkpoints=True,
    ),
)

if __name__ == "__main__":
    main(SAMPLES)
