"""GF18 in checkpoints: decay that is coupled, lost or on the wrong parameters, and rates upside down."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from checkpoint_lab import configure, objective, small_lm, train_and_save
from lab import Sample, cosine, json_lines, main, scheduler
from torch import nn
from torch.optim import Adam, AdamW, Optimizer

torch.set_num_threads(1)  # of networks this small, a second thread only waits for the first

STEPS, WARMUP, LR, DECAY = 240, 20, 3e-3, 0.1
BETAS = (0.9, 0.95)
PARTS = (("head", "norm"), ("blocks.2",), ("blocks.1",), ("blocks.0",), ("embedding", "position"))


def sorted_groups(model: nn.Module, spared: Callable[[str, nn.Parameter], bool]) -> list[dict[str, object]]:
    """Two groups: parameters that decay, and those that are `spared`."""
    named = list(model.named_parameters())
    return [
        {"params": [p for n, p in named if not spared(n, p)], "weight_decay": DECAY},
        {"params": [p for n, p in named if spared(n, p)], "weight_decay": 0.0},
    ]


def small(_name: str, parameter: nn.Parameter) -> bool:
    """Fewer than two dimensions: norm gains and biases."""
    return parameter.ndim < 2


def by_name(name: str, _parameter: nn.Parameter) -> bool:
    """The patterns of many fine-tuning scripts, which know the names of one model only."""
    return any(part in name for part in ("bias", "LayerNorm.weight"))


def layered(model: nn.Module, factor: float) -> list[dict[str, object]]:
    """One group per layer; the rate is multiplied by `factor` from layer to layer towards the input."""
    return [
        {"params": [(n, p) for n, p in model.named_parameters() if n.startswith(names)], "lr": LR * factor**depth}
        for depth, names in enumerate(PARTS)
    ]


class Undecaying(AdamW):
    """AdamW of a script that wants no decay in the warm-up, and asks for the wrong counter."""

    warmed = 0

    def step(self, closure: None = None) -> None:  # type: ignore[override]  # no closure here
        """Step without decay until `warmed`, which nobody counts, reaches the warm-up."""
        decays = [group["weight_decay"] for group in self.param_groups]
        for group in self.param_groups:
            group["weight_decay"] *= self.warmed >= WARMUP
        super().step(closure)
        for group, decay in zip(self.param_groups, decays, strict=True):
            group["weight_decay"] = decay


def fit(run: Path, make: Callable[[nn.Module], Optimizer], saved: tuple[int, ...], layers: int = 2) -> None:
    """A plain loop with a cosine schedule, whose configuration does not name the optimizer's class."""
    model = small_lm(width=8, layers=layers)
    optimizer = make(model)
    schedule = {"learning_rate": LR, "lr_scheduler_type": "cosine", "warmup_steps": WARMUP, "max_steps": STEPS}
    configure(run, **schedule, weight_decay=DECAY, optim=None)
    with json_lines(run / "metrics.jsonl") as log:
        rates = scheduler(optimizer, cosine(WARMUP, STEPS))
        train_and_save(run, model, optimizer, objective(model), log, steps=STEPS, saved=saved, schedule=rates)


SAMPLES = (
    Sample(
        "gf18-coupled-saved",
        "gf18_checkpoints",
        lambda run: fit(run, lambda m: Adam(m.parameters(), lr=LR, betas=BETAS, weight_decay=DECAY), (200,)),
        "torch.optim.Adam with weight decay 0.1, which only the optimizer's state in the checkpoint says",
        case="GF18",
        variant="coupled-decay",
        checkpoints=True,
    ),
    Sample(
        "gf18-decay-not-applied",
        "gf18_checkpoints",
        lambda run: fit(run, lambda m: Undecaying(sorted_groups(m, small), lr=LR, betas=BETAS), (199, 200)),
        "a subclass of AdamW that leaves the decay out in its warm-up, which never ends",
        case="GF18",
        variant="decay-not-applied",
        primary="",
        checkpoints=True,
    ),
    Sample(
        "gf18-decayed-gains",
        "gf18_checkpoints",
        lambda run: fit(run, lambda m: AdamW(sorted_groups(m, by_name), lr=LR, betas=BETAS), (199, 200)),
        "patterns that spare biases and miss the norm gains, whose names are others here",
        case="GF18",
        variant="decayed-gains",
        primary="",
        checkpoints=True,
    ),
    Sample(
        "gf18-layer-rates-inverted",
        "gf18_checkpoints",
        lambda run: fit(run, lambda m: AdamW(layered(m, 1.3), betas=BETAS, weight_decay=DECAY), (200,), layers=3),
        "rates of the groups that grow by 1.3 per layer towards the input; no setting says so",
        case="GF18",
        variant="layer-rates-inverted",
        primary="",
        checkpoints=True,
    ),
    Sample(
        "gf18-twin-checkpoints",
        "gf18_checkpoints",
        lambda run: fit(run, lambda m: AdamW(sorted_groups(m, small), lr=LR, betas=BETAS), (199, 200)),
        "AdamW that spares norm gains and biases; the decay of a step is the configured one in all others",
        case="GF18",
        twin=True,
        checkpoints=True,
    ),
    Sample(
        "gf18-twin-layer-rates",
        "gf18_checkpoints",
        lambda run: fit(run, lambda m: AdamW(layered(m, 0.65), betas=BETAS, weight_decay=DECAY), (200,), layers=3),
        "layer-wise decay of the rate as it is meant",
        case="GF18",
        twin=True,
        checkpoints=True,
    ),
)

if __name__ == "__main__":
    main(SAMPLES)
