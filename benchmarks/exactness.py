"""How exactly two checkpoints tell what the optimizer did, against the truth of trainings by torch.

    python benchmarks/exactness.py [--seeds 3]

For every learning rate and way of keeping weights: the share of tensors that tell a rate, the largest error of those
that do, and of their weight decays; the largest error of the recovered gradient norms; elements of Adam's state above
the bound that no gradients exceed, of how many healthy ones. Printed as a table of the README. Exit code 1 where a rate
of fp32 weights is off by more than 1e-3 of itself, a decay by 2 % or a gradient by 1e-5 of itself, or where a healthy
element exceeds the bound.
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

from gradforensics.checkpoints.measure import open_all, survey
from gradforensics.untrusted.files import RegularFile

RATES = (1e-3, 1e-4, 1e-5, 1e-6)
DECAY = 0.1
WARM = 30
RATE_LIMIT, DECAY_LIMIT, GRADIENT_LIMIT = 1e-3, 0.02, 1e-5


@dataclass
class Found:
    """What the pairs of one row of the table told."""

    tensors: int = 0
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
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=DECAY)
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
    files = [RegularFile(path, path.name, path.stat().st_size) for path in sorted(folder.iterdir())]
    tables = survey(open_all(files)).tables
    for row in tables["travels"].iter_rows(named=True):
        found.tensors += 1
        found.gradients.append(abs(row["grad_l2"] / norms[row["name"]] - 1.0))
        if row["recovered_lr"] is not None:
            found.rates.append(abs(row["recovered_lr"] / rate - 1.0))
        if row["recovered_wd"] is not None:
            found.decays.append(abs(row["recovered_wd"] / DECAY - 1.0))
    found.elements += int(tables["moments"]["count"].sum())
    found.violations += int(tables["moments"]["bound_violations"].sum())


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
    heads = ("weights", "rate", "tell it", "error", "tell the decay", "error", "gradient norms", "above the bound")
    print(f"| {' | '.join(heads)} |")
    print("|---" * len(heads) + "|")
    bad = 0
    for dtype, rate, found in rows(seeds):
        told = [f"{len(part) / found.tensors:.0%}" for part in (found.rates, found.decays)]
        print(
            f"| {dtype} | {rate:.0e} | {told[0]} | {most(found.rates)} | {told[1]} | {most(found.decays)} "
            f"| {most(found.gradients)} | {found.violations} of {found.elements:,} |"
        )
        bad += found.violations
        if dtype == "float32":
            bad += max(found.rates, default=1.0) > RATE_LIMIT or max(found.decays, default=0.0) > DECAY_LIMIT
            bad += max(found.gradients) > GRADIENT_LIMIT
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
