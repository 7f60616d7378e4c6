"""How exactly two checkpoints tell what the optimizer did, against the truth of trainings by torch.

    python benchmarks/exactness.py [--seeds 3]

For every learning rate and way of keeping weights: how many parameter groups tell their rate and their weight decay,
the largest errors of those that do, and of a tensor's recovered gradient norm; elements of Adam's state above the bound
that no gradients exceed, of how many healthy ones. Printed as a table of the README. Exit code 1
where a group of float32 weights does not tell its rate, or is off by more than 1e-3 of it, a decay by 2 % or a gradient
by 1e-5 of itself; where one of bfloat16 weights tells any; or where a healthy element exceeds the bound.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

from gradforensics import applied_rates, checkpoint_signals
from gradforensics.evidence.gather import gather

RATES = (1e-3, 1e-4, 1e-5, 1e-6)
DECAY = 0.1
WARM = 30
RATE_LIMIT, DECAY_LIMIT, GRADIENT_LIMIT = 1e-3, 0.02, 1e-5


@dataclass
class Found:
    """What the pairs of one row of the table told."""

    groups: int = 0
    rates: list[float] = field(default_factory=list)
    decays: list[float] = field(default_factory=list)
    gradients: list[float] = field(default_factory=list)
    elements: int = 0
    violations: int = 0


class Net(nn.Module):
    """An embedding, four pre-norm residual layers and a head, of common initial sizes."""

    def __init__(self, width: int = 128, vocab: int = 256) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(4))
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(4))
        self.head = nn.Linear(width, vocab, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, 0.0, 0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits (..., vocab)."""
        hidden: torch.Tensor = self.embedding(tokens)
        for norm, layer in zip(self.norms, self.layers, strict=True):
            hidden = hidden + torch.tanh(layer(norm(hidden)))
        logits: torch.Tensor = self.head(hidden)
        return logits


def train(folder: Path, rate: float, seed: int, dtype: torch.dtype) -> dict[str, float]:
    """Train, save two checkpoints one update apart, and return the norm of every gradient between them."""
    torch.manual_seed(seed)
    model = Net().to(dtype)
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": matrices, "weight_decay": DECAY}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95))
    norms: dict[str, float] = {}
    for step in range(1, WARM + 2):
        tokens = torch.randint(256, (16, 33))
        optimizer.zero_grad()
        logits = model(tokens[:, :-1]).float()
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), (tokens[:, :-1] * 7 % 256).flatten())
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
        norms = {name: float(p.grad.double().norm()) for name, p in model.named_parameters() if p.grad is not None}
        optimizer.step()
        if step >= WARM:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, folder / f"step_{step}.pt")
    return norms


def measure(found: Found, folder: Path, rate: float, norms: dict[str, float]) -> None:
    """Add what the two checkpoints in the folder tell."""
    (evidence,) = gather([folder])
    (pair,) = checkpoint_signals.pairs(evidence) or []
    found.groups += 2
    found.gradients += [abs(row["grad_l2"] / norms[name] - 1.0) for name, row in pair.rows.items()]
    for told in applied_rates.told(evidence):
        for group in told.rates:
            found.rates.append(abs(group.lr / rate - 1.0))
            if group.wd is not None and group.last.weight_decay:
                found.decays.append(abs(group.wd / group.last.weight_decay - 1.0))
    moments = evidence.tables["moments"]
    found.elements += int(moments["count"].sum())
    found.violations += int(moments["bound_violations"].sum())


def rows(seeds: int) -> Iterator[tuple[str, float, Found]]:
    """Every way of keeping weights at every rate."""
    for dtype in (torch.float32, torch.bfloat16):
        for rate in RATES:
            found = Found()
            for seed in range(seeds):
                with tempfile.TemporaryDirectory() as folder:
                    measure(found, Path(folder), rate, train(Path(folder), rate, seed, dtype))
            yield str(dtype).removeprefix("torch."), rate, found


def most(errors: list[float], show: Callable[[float], str] = "{:.1e}".format) -> str:
    """The largest of them."""
    return show(max(errors)) if errors else "-"


def main() -> int:
    """Print the table; 1 where a limit is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    seeds = parser.parse_args().seeds
    torch.set_num_threads(1)
    heads = ("weights", "learning rate", "groups that tell it", "error", "decay", "gradient norms", "above the bound")
    print(f"| {' | '.join(heads)} |")
    print("|---" * len(heads) + "|")
    bad = 0
    for dtype, rate, found in rows(seeds):
        told = f"{len(found.rates)} of {found.groups}"
        decay = most(found.decays)
        print(
            f"| {dtype} | {rate:.0e} | {told} | {most(found.rates)} | {decay} | {most(found.gradients)} "
            f"| {found.violations} of {found.elements:,} |"
        )
        bad += found.violations
        if dtype == "float32":
            bad += len(found.rates) < found.groups or max(found.rates) > RATE_LIMIT
            bad += max(found.decays, default=0.0) > DECAY_LIMIT or max(found.gradients) > GRADIENT_LIMIT
        else:
            bad += len(found.rates)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
