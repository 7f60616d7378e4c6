"""What the recipes share: tokens of known entropy, a tiny transformer, a plain training loop, log writers.

A recipe trains a real model with a real fault in its loop and leaves what a user would find afterwards:
`<out>/<name>/run/` (logs, a small configuration, weights only where they are the evidence) and, beside
it, `expected.toml` with the truth.

The files here are flat modules: `python sample_runs/recipes/gf05.py` works as well as
`python -m recipes` in sample_runs.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

torch.set_num_threads(2)

VOCAB = 64
"""Token types of the default chain; ln 64 = 4.159."""
WIDTH = 64
LENGTH = 32
"""Predicted tokens per sequence; a sample has one more."""
BATCH = 16
MAX_RUN_BYTES = 300_000

Row = Mapping[str, object]
Log = Callable[[Row], None]
Schedule = Callable[[int], float]


# ---------------------------------------------------------------------------------------------------------------- data


@dataclass(frozen=True)
class Chain:
    """A first-order Markov source of tokens, started from its stationary distribution."""

    transition: npt.NDArray[np.float64]
    stationary: npt.NDArray[np.float64]

    @staticmethod
    def make(seed: int = 0, vocab: int = VOCAB, concentration: float = 0.15) -> Chain:
        """Draw every row from a Dirichlet distribution; a small concentration gives confident predictions."""
        rows = np.random.default_rng(seed).dirichlet(np.full(vocab, concentration), size=vocab)
        stationary = np.full(vocab, 1.0 / vocab)
        for _ in range(500):
            stationary = stationary @ rows
        return Chain(rows, stationary / stationary.sum())

    @property
    def entropy(self) -> float:
        """Conditional entropy in nats: the lowest loss that a model can reach on fresh data."""
        logs = np.log(np.maximum(self.transition, 1e-300))
        return float(-(self.stationary[:, None] * self.transition * logs).sum())

    @property
    def unigram_entropy(self) -> float:
        """Entropy of the token frequencies in nats: the loss of a model that ignores its context."""
        return float(-(self.stationary * np.log(np.maximum(self.stationary, 1e-300))).sum())

    def sample(self, generator: np.random.Generator, count: int = BATCH, length: int = LENGTH + 1) -> Tensor:
        """Draw `count` sequences of `length` tokens."""
        edges = np.cumsum(self.transition, axis=1)
        edges[:, -1] = 1.0
        tokens = np.empty((count, length), dtype=np.int64)
        tokens[:, 0] = generator.choice(len(self.stationary), size=count, p=self.stationary)
        for position in range(1, length):
            draws = generator.random(count)[:, None]
            tokens[:, position] = (edges[tokens[:, position - 1]] <= draws).sum(axis=1)
        return torch.from_numpy(tokens)


# --------------------------------------------------------------------------------------------------------------- model


class Block(nn.Module):
    """Pre-LN transformer block with causal attention."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.mix = nn.Linear(width, width)
        self.norm_mlp = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        """Add attention, then the MLP, to the residual stream."""
        batch, length, width = hidden.shape
        shape = (batch, length, 3, self.heads, width // self.heads)
        query, key, value = self.qkv(self.norm_attention(hidden)).view(shape).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.mix(mixed.transpose(1, 2).reshape(batch, length, width))
        down: Tensor = self.down(functional.gelu(self.up(self.norm_mlp(hidden))))
        return hidden + down


class TinyLM(nn.Module):
    """Two pre-LN blocks between an embedding and an untied head; matrices start at N(0, 0.02)."""

    def __init__(self, vocab: int = VOCAB, width: int = WIDTH, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, width)
        self.position = nn.Embedding(2 * LENGTH, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                residual = name.endswith(("mix.weight", "down.weight"))
                nn.init.normal_(parameter, 0.0, 0.02 / math.sqrt(2 * layers) if residual else 0.02)

    def states(self, tokens: Tensor) -> Tensor:
        """Final hidden states, before the head."""
        hidden: Tensor = self.embedding(tokens) + self.position.weight[: tokens.shape[1]]
        for block in self.blocks:
            hidden = block(hidden)
        normed: Tensor = self.norm(hidden)
        return normed

    def forward(self, tokens: Tensor) -> Tensor:
        """Give the logits of every next token."""
        logits: Tensor = self.head(self.states(tokens))
        return logits


def next_token_loss(logits: Tensor, tokens: Tensor) -> Tensor:
    """Mean cross entropy of predicting tokens[:, 1:] from logits over tokens[:, :-1], in float32."""
    return functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


def beginning(chain: Chain | None = None, seed: int = 0) -> tuple[Chain, TinyLM, np.random.Generator]:
    """What every plain run begins with: the chain, a fresh model, the generator that draws its tokens."""
    chain = chain or Chain.make()
    torch.manual_seed(seed)
    return chain, TinyLM(vocab=len(chain.stationary)), np.random.default_rng(seed + 1)


def language_model(chain: Chain, seed: int = 0) -> tuple[TinyLM, Callable[[int], Tensor]]:
    """Give a fresh model and its objective on fresh tokens of `chain`: step -> loss."""
    chain, model, generator = beginning(chain, seed)

    def objective(_step: int) -> Tensor:
        tokens = chain.sample(generator)
        return next_token_loss(model(tokens[:, :-1]), tokens)

    return model, objective


def adamw(model: nn.Module, lr: float) -> torch.optim.AdamW:
    """AdamW with the betas and the decay of common pretraining recipes."""
    return torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.1)


# ---------------------------------------------------------------------------------------------------------------- loop


def cosine(warmup: int, total: int) -> Schedule:
    """Multiplier of linear warm-up and cosine decay to zero, as `get_cosine_schedule_with_warmup` has it."""

    def factor(step: int) -> float:
        if step < warmup:
            return step / max(1, warmup)
        progress = min(1.0, (step - warmup) / max(1, total - warmup))
        return 0.5 * (1.0 + math.cos(math.pi * progress))

    return factor


def linear(warmup: int, total: int) -> Schedule:
    """Multiplier of linear warm-up and linear decay to zero."""

    def factor(step: int) -> float:
        if step < warmup:
            return step / max(1, warmup)
        return max(0.0, (total - step) / max(1, total - warmup))

    return factor


def constant(warmup: int = 0) -> Schedule:
    """Multiplier of linear warm-up, then one."""
    return lambda step: min(1.0, step / warmup) if warmup else 1.0


def scheduler(optimizer: Optimizer, schedule: Schedule) -> LambdaLR:
    """Attach a multiplier to an optimizer."""
    return LambdaLR(optimizer, schedule)


def gradient_norm(model: nn.Module) -> float:
    """Total L2 norm of the gradients, which stay untouched (clipping to infinity would write NaN into them)."""
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return float(torch.nn.utils.get_total_norm(gradients))


def current_lr(optimizer: Optimizer) -> float:
    """Learning rate of the first group."""
    return float(optimizer.param_groups[0]["lr"])


def train(
    model: nn.Module,
    optimizer: Optimizer,
    objective: Callable[[int], Tensor],
    log: Log,
    *,
    steps: int,
    schedule: LRScheduler | None = None,
    clip: float | None = 1.0,
    first: int = 1,
    every: int = 1,
) -> None:
    """Train from step `first` to `steps` and log loss, gradient norm before clipping and the rate that was applied."""
    for step in range(first, steps + 1):
        optimizer.zero_grad()
        loss = objective(step)
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
        norm = gradient_norm(model) if clip is None else float(nn.utils.clip_grad_norm_(model.parameters(), clip))
        rate = current_lr(optimizer)
        optimizer.step()
        if schedule is not None:
            schedule.step()
        if step == first or step % every == 0:
            log({"step": step, "loss": loss.item(), "grad_norm": norm, "lr": rate})


# ------------------------------------------------------------------------------------------------------------- writers


def silent(_row: Row) -> None:
    """Log nothing: for the training that precedes the run."""


@contextlib.contextmanager
def json_lines(path: Path, mode: str = "w") -> Iterator[Log]:
    """One json.dumps per row; NaN and Infinity come out bare, as json.dumps writes them."""
    with path.open(mode, encoding="utf-8") as stream:

        def log(row: Row) -> None:
            stream.write(json.dumps(dict(row)) + "\n")

        yield log


@contextlib.contextmanager
def csv_rows(path: Path, columns: Sequence[str]) -> Iterator[Log]:
    """csv.DictWriter with a header."""
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, fieldnames=list(columns))
        writer.writeheader()

        def log(row: Row) -> None:
            writer.writerow(dict(row))

        yield log


@contextlib.contextmanager
def console(path: Path) -> Iterator[Log]:
    """Catch the real stdout in `path`; the log prints `key: value` pairs on one line per row."""
    with path.open("w", encoding="utf-8") as stream, contextlib.redirect_stdout(stream):
        yield print_row


def print_row(row: Row) -> None:
    """Print `step: 10 loss: 4.1500 grad_norm: 0.51 lr: 0.001`."""
    cells = ((key, f"{value:.6g}" if isinstance(value, float) else value) for key, value in row.items())
    print(" ".join(f"{key}: {cell}" for key, cell in cells))


def write_json(path: Path, facts: Mapping[str, object]) -> None:
    """Write a configuration as its user would."""
    path.write_text(json.dumps(dict(facts), indent=2) + "\n", encoding="utf-8")


def plain_config(**facts: object) -> dict[str, object]:
    """Configuration of a plain loop: the defaults here, then `facts`."""
    common: dict[str, object] = {
        "vocab_size": VOCAB,
        "hidden_size": WIDTH,
        "num_layers": 2,
        "sequence_length": LENGTH,
        "per_device_train_batch_size": BATCH,
        "gradient_accumulation_steps": 1,
        "optim": "adamw_torch",
        "max_grad_norm": 1.0,
        "seed": 0,
    }
    return common | facts


# ------------------------------------------------------------------------------------------------------------- samples


@dataclass(frozen=True)
class Sample:
    """One sample run: how it is made and what is true about it."""

    name: str
    recipe: str
    make: Callable[[Path], None]
    """Trains and writes into the empty run directory that it is given."""
    note: str
    case: str = ""
    variant: str = ""
    twin: bool = False
    """A near miss: no alarm, and `case` is judged clear."""
    primary: str | None = None
    """Expected primary case where it is not `case`: its cause, or "" for a real fault below alarm level."""
    ending: str = "completed"
    baseline: str = ""
    """Name of the healthy sample that this one is to be compared with."""
    settings: Mapping[str, str | int | float] = field(default_factory=dict)
    checkpoints: bool = False
    """The run directory holds checkpoints on purpose."""

    def expected(self) -> str:
        """The truth as TOML."""
        primary = self.case if self.primary is None else self.primary
        primary = "" if self.twin else primary
        facts = ", ".join(f"{key} = {json.dumps(value)}" for key, value in self.settings.items())
        lines = (
            f"case = {json.dumps(self.case)}",
            f"variant = {json.dumps(self.variant)}",
            f"twin = {json.dumps(self.twin)}",
            f"primary = {json.dumps(primary)}",
            f"note = {json.dumps(self.note)}",
            f"recipe = {json.dumps(f'recipes/{self.recipe}.py')}",
            f"ending = {json.dumps(self.ending)}",
            f"settings = {{ {facts} }}" if facts else "settings = {}",
            *([f"baseline = {json.dumps(self.baseline)}"] if self.baseline else []),
        )
        return "\n".join([*lines, *(["checkpoints = true"] if self.checkpoints else [])]) + "\n"


def make(sample: Sample, out: Path) -> None:
    """Make one sample from nothing; the old run directory is removed first."""
    run = out / sample.name / "run"
    shutil.rmtree(run, ignore_errors=True)
    run.mkdir(parents=True)
    start = time.monotonic()
    sample.make(run)
    (out / sample.name / "expected.toml").write_text(sample.expected(), encoding="utf-8")
    size = sum(path.stat().st_size for path in run.rglob("*") if path.is_file())
    if size > MAX_RUN_BYTES:
        raise RuntimeError(f"{sample.name}: {size} bytes, more than {MAX_RUN_BYTES}")
    print(f"{sample.name}: {size / 1000:.0f} kB in {time.monotonic() - start:.0f} s")


def main(samples: Sequence[Sample], arguments: Sequence[str] | None = None) -> None:
    """Command line of every recipe: make all samples or those named."""
    parser = argparse.ArgumentParser(description="Train the sample runs of this recipe.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="samples to make (default: all)")
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parents[1], help="folder of the samples")
    options = parser.parse_args(arguments)
    known = {sample.name: sample for sample in samples}
    unknown = [name for name in options.names if name not in known]
    if unknown:
        parser.error(f"unknown sample {', '.join(unknown)}; known: {', '.join(known)}")
    for name in options.names or known:
        make(known[name], options.out)
