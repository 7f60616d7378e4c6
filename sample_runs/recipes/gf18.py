"""GF18: optimizers with hyper-parameters that belong to others, and near misses."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path

import hf_lab
import torch
from lab import (
    Chain,
    Sample,
    adamw,
    beginning,
    console,
    constant,
    cosine,
    json_lines,
    language_model,
    main,
    next_token_loss,
    plain_config,
    scheduler,
    silent,
    train,
    write_json,
)
from torch import Tensor, nn
from torch.optim import Optimizer
from transformers import TrainingArguments

STEPS = 240
WARMUP = 20
LR = 3e-3
RANK = 8


class Lion(Optimizer):
    """Chen et al., arXiv 2302.06675, algorithm 2: the sign of an interpolated momentum, decoupled decay."""

    def __init__(self, parameters: Iterable[Tensor], lr: float, weight_decay: float) -> None:
        super().__init__(parameters, {"lr": lr, "betas": (0.9, 0.99), "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # no closure here
        """Move every coordinate by the whole learning rate."""
        del closure
        for group in self.param_groups:
            first, second = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                momentum = self.state[parameter].setdefault("exp_avg", torch.zeros_like(parameter))
                update = (momentum * first + parameter.grad * (1 - first)).sign_()
                parameter.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-group["lr"])
                momentum.mul_(second).add_(parameter.grad, alpha=1 - second)


def plain(run: Path, make: Callable[[nn.Module], Optimizer], **facts: object) -> None:
    """A plain loop with a cosine schedule; `facts` is what its configuration says of the optimizer."""
    model, objective = language_model(Chain.make())
    optimizer = make(model)
    schedule = {"lr_scheduler_type": "cosine", "warmup_steps": WARMUP, "max_steps": STEPS}
    write_json(run / "config.json", plain_config(**(schedule | facts)))
    with json_lines(run / "metrics.jsonl") as log:
        train(model, optimizer, objective, log, steps=STEPS, schedule=scheduler(optimizer, cosine(WARMUP, STEPS)))


def coupled_decay(run: Path, name: str) -> None:
    """torch.optim.Adam with the weight decay of AdamW; name: what the configuration calls it."""
    decay = {"learning_rate": LR, "weight_decay": 0.1}
    plain(
        run,
        lambda m: torch.optim.Adam(m.parameters(), lr=LR, betas=(0.9, 0.95), weight_decay=0.1),
        optim=name,
        **decay,
    )


def adam_without_decay(run: Path) -> None:
    """The same Adam with a decay of zero."""
    decay = {"learning_rate": LR, "weight_decay": 0.0}
    plain(run, lambda m: torch.optim.Adam(m.parameters(), lr=LR, betas=(0.9, 0.95)), optim="torch.optim.Adam", **decay)


def lion(run: Path, rate: float) -> None:
    """Lion at a learning rate of its own, or at one of AdamW."""
    values = {"learning_rate": rate, "weight_decay": 0.1}
    plain(run, lambda m: Lion(m.parameters(), rate, 0.1), optim="lion", **values)


class Adapted(nn.Module):
    """A linear layer that is frozen, and a product of two small matrices beside it (LoRA with alpha = rank)."""

    def __init__(self, inner: nn.Linear) -> None:
        super().__init__()
        self.inner = inner.requires_grad_(requires_grad=False)
        self.down = nn.Parameter(torch.randn(RANK, inner.in_features) / math.sqrt(inner.in_features))
        self.up = nn.Parameter(torch.zeros(inner.out_features, RANK))

    def forward(self, hidden: Tensor) -> Tensor:
        """Add what the adapter learned."""
        out: Tensor = self.inner(hidden) + hidden @ self.down.T @ self.up.T
        return out


def adapter_rate(run: Path) -> None:
    """A model of one chain is adapted to another one by LoRA on its MLPs, at 5e-3."""
    source, model, generator = beginning()
    target = Chain.make(seed=1)

    def loss_on(chain: Chain) -> Callable[[int], Tensor]:
        def objective(_step: int) -> Tensor:
            tokens = chain.sample(generator)
            return next_token_loss(model(tokens[:, :-1]), tokens)

        return objective

    train(model, adamw(model, LR), loss_on(source), silent, steps=200)
    model.requires_grad_(requires_grad=False)
    for block in model.blocks:
        for name in ("up", "down"):
            setattr(block, name, Adapted(getattr(block, name)))
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=5e-3, weight_decay=0.0)
    facts = {"learning_rate": 5e-3, "weight_decay": 0.0, "lr_scheduler_type": "constant_with_warmup"}
    write_json(run / "config.json", plain_config(warmup_steps=WARMUP, max_steps=STEPS, **facts))
    write_json(run / "adapter_config.json", {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK})
    with json_lines(run / "metrics.jsonl") as log:
        train(model, optimizer, loss_on(target), log, steps=STEPS, schedule=scheduler(optimizer, constant(WARMUP)))


def large_eps(run: Path) -> None:
    """HF Trainer with an eps that outweighs most second moments."""
    hf_lab.fit(run, hf_lab.tiny_gpt2(), hf_lab.fresh(Chain.make(), STEPS), steps=STEPS, adam_epsilon=1e-4, console=True)


def layer_decay_inverted(run: Path) -> None:
    """Learning rates per layer that grow towards the embedding."""
    factor = 1.3

    def grouped(model: nn.Module) -> Optimizer:
        layers = [("head", "norm"), ("blocks.1",), ("blocks.0",), ("embedding", "position")]
        groups = [
            {"params": [p for n, p in model.named_parameters() if n.startswith(names)], "lr": LR * factor**depth}
            for depth, names in enumerate(layers)
        ]
        return torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=0.1)

    plain(run, grouped, learning_rate=LR, weight_decay=0.1, layer_decay=factor)


def switched(run: Path) -> None:
    """The second launch loads the weights of the first, and goes on with SGD at AdamW's learning rate."""
    model, objective = language_model(Chain.make())
    launches = (("adamw", adamw(model, LR)), ("sgd", torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)))
    half = STEPS // 2
    for attempt, (name, optimizer) in enumerate(launches):
        folder = run / f"attempt_{attempt}" / "0"  # as torchrun --log-dir calls them
        folder.mkdir(parents=True)
        facts = {"optim": name, "learning_rate": LR, "lr_scheduler_type": "constant", "max_steps": STEPS}
        write_json(folder / "config.json", plain_config(**facts))
        with console(folder / "stdout.log") as log:
            train(model, optimizer, objective, log, steps=half * (attempt + 1), first=half * attempt + 1)


def name_refused(run: Path) -> None:
    """A training script that asks the Trainer for optim="lion"."""
    with console(run / "train.log"):
        print("***** Preparing to run training: train.py --optim lion *****")
        try:
            TrainingArguments(output_dir="out", optim="lion", use_cpu=True)
        except ValueError as error:
            lines = traceback.format_exception_only(error)
            print('Traceback (most recent call last):\n  File "train.py", line 31, in <module>')
            print('    arguments = TrainingArguments(output_dir="out", optim="lion")')
            print("".join(lines), end="")


SAMPLES = (
    Sample(
        "gf18-coupled-decay",
        "gf18",
        lambda run: coupled_decay(run, "torch.optim.Adam"),
        "torch.optim.Adam with weight decay 0.1, which it adds to the gradient: far worse than AdamW with the same",
        case="GF18",
        variant="coupled-decay",
    ),
    Sample(
        "gf18-unclear-adam",
        "gf18",
        lambda run: coupled_decay(run, "adam"),
        'the same, and the configuration only says "adam": a suspicion',
        case="GF18",
        variant="unclear-adam",
        primary="",
    ),
    Sample(
        "gf18-lion-rate",
        "gf18",
        lambda run: lion(run, 1e-2),
        "Lion at 0.01, a learning rate of AdamW: learns, worse than it could; settings alone make it a suspicion",
        case="GF18",
        variant="lion-rate",
        primary="",
    ),
    Sample(
        "gf18-adapter-rate",
        "gf18",
        adapter_rate,
        "LoRA on a frozen model at 5e-3, above all published rates",
        case="GF18",
        variant="adapter-rate",
        primary="",
    ),
    Sample(
        "gf18-large-eps",
        "gf18",
        large_eps,
        "HF Trainer with adam_epsilon 1e-4: a note",
        case="GF18",
        variant="large-eps",
        primary="",
    ),
    Sample(
        "gf18-layer-decay-inverted",
        "gf18",
        layer_decay_inverted,
        "learning rates that grow by 1.3 per layer towards the input",
        case="GF18",
        variant="layer-decay-inverted",
        primary="",
    ),
    Sample(
        "gf18-switched",
        "gf18",
        switched,
        "AdamW in the first launch, SGD at the same learning rate in the second",
        case="GF18",
        variant="switched",
    ),
    Sample(
        "gf18-name-refused",
        "gf18",
        name_refused,
        'TrainingArguments(optim="lion") raises: the run ends before its first step',
        case="GF18",
        variant="name-refused",
        ending="exception",
    ),
    Sample(
        "gf18-twin",
        "gf18",
        lambda run: lion(run, 3e-4),
        "Lion at 3e-4: a rate of its own",
        case="GF18",
        twin=True,
    ),
    Sample(
        "gf18-twin-adam",
        "gf18",
        adam_without_decay,
        "torch.optim.Adam with a weight decay of zero, which is AdamW with zero",
        case="GF18",
        twin=True,
    ),
)

if __name__ == "__main__":
    main(SAMPLES)
