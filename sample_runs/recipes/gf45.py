"""GF45: parameter groups that change between two checkpoints of one run, and gradual unfreezing, which is no fault."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from checkpoint_lab import configure, objective, small_lm, train_and_save
from lab import Sample, cosine, json_lines, linear, main, scheduler
from torch import nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

torch.set_num_threads(1)  # of networks this small, a second thread only waits for the first

STEPS, HALF, WARMUP, LR = 240, 120, 20, 3e-3
Named = tuple[str, nn.Parameter]
Sorting = Callable[[str, nn.Parameter], int | None]
"""The group of a parameter, None for none."""


def by_dimensions(_name: str, parameter: nn.Parameter) -> int:
    """Norm gains and biases are not decayed."""
    return int(parameter.ndim < 2)


def by_name(name: str, _parameter: nn.Parameter) -> int:
    """Biases are not decayed."""
    return int(name.endswith("bias"))


def without_head(name: str, parameter: nn.Parameter) -> int | None:
    """A pattern of the blocks' names that forgets what stands outside of them."""
    return by_dimensions(name, parameter) if name.startswith(("blocks.", "embedding")) else None


def grouped(model: nn.Module, sorting: Sorting) -> AdamW:
    """AdamW with names, as torch >= 2.6 keeps them."""
    groups: tuple[list[Named], list[Named]] = ([], [])
    for name, parameter in model.named_parameters():
        place = sorting(name, parameter)
        if place is not None:
            groups[place].append((name, parameter))
    return AdamW(
        [{"params": groups[0], "weight_decay": 0.1}, {"params": groups[1], "weight_decay": 0.0}],
        lr=LR,
        betas=(0.9, 0.95),
    )


def resumed(run: Path, first: Sorting, second: Sorting) -> None:
    """A second launch makes its groups by another rule and takes over every state that it finds by name."""
    model = small_lm(width=8)
    before, after = grouped(model, first), grouped(model, second)
    loss = objective(model)
    configure(run, learning_rate=LR, lr_scheduler_type="cosine", warmup_steps=WARMUP, max_steps=STEPS, hidden_size=8)
    with json_lines(run / "metrics.jsonl") as log:
        rates = scheduler(before, cosine(WARMUP, STEPS))
        train_and_save(run, model, before, loss, log, steps=HALF, saved=(HALF,), schedule=rates)
        later = scheduler(after, cosine(WARMUP, STEPS))
        for parameter, state in before.state.items():
            if any(parameter is one for group in after.param_groups for one in group["params"]):
                after.state[parameter] = state
        later.load_state_dict(rates.state_dict())
        for group in after.param_groups:
            group["lr"] = rates.get_last_lr()[0]
        train_and_save(run, model, after, loss, log, steps=STEPS, first=HALF + 1, saved=(200,), schedule=later)


class Passing(LambdaLR):
    """Passes over groups that it did not see when it was made, as timm's schedulers do and older ones of torch did."""

    def step(self, epoch: int | None = None) -> None:
        """Set the rates of the groups that it knows."""
        del epoch
        self.last_epoch += 1
        for group, base, factor in zip(self.optimizer.param_groups, self.base_lrs, self.lr_lambdas, strict=False):
            group["lr"] = base * factor(self.last_epoch)


def added_late(run: Path) -> None:
    """The head's group joins the optimizer after the scheduler was made, which passes it over."""
    model = small_lm(width=8)
    named = list(model.named_parameters())
    optimizer = AdamW([(n, p) for n, p in named if not n.startswith("head")], lr=LR, betas=(0.9, 0.95))
    rates = Passing(optimizer, cosine(WARMUP, STEPS))
    optimizer.add_param_group({"params": [(n, p) for n, p in named if n.startswith("head")], "lr": LR / 3})
    fit(run, model, optimizer, rates)


def unfrozen(run: Path) -> None:
    """The head trains alone at first; the rest is added to the optimizer after a fifth of the run, at its own rate."""
    model = small_lm(width=8)
    named = list(model.named_parameters())
    outer = [(n, p) for n, p in named if n.startswith(("head", "norm", "embedding", "position"))]
    optimizer = AdamW(outer, lr=LR, betas=(0.9, 0.95), weight_decay=0.1)
    rates = Passing(optimizer, linear(WARMUP, STEPS))
    blocks = [(n, p) for n, p in named if n.startswith("blocks")]
    loss = objective(model)

    def begin(step: int) -> None:
        if step == STEPS // 5:
            optimizer.add_param_group({"params": blocks, "lr": LR / 3})

    configure(run, learning_rate=LR, lr_scheduler_type="linear", warmup_steps=WARMUP, max_steps=STEPS, hidden_size=8)
    with json_lines(run / "metrics.jsonl") as log:
        saved = (STEPS // 6, 160, 200)
        train_and_save(
            run, model, optimizer, loss, log, steps=STEPS, saved=saved, schedule=rates, before_step=begin
        )  # fmt: skip


def fit(run: Path, model: nn.Module, optimizer: AdamW, rates: LRScheduler) -> None:
    """Train to the end, with two checkpoints on the way."""
    configure(run, learning_rate=LR, lr_scheduler_type="cosine", warmup_steps=WARMUP, max_steps=STEPS, hidden_size=8)
    with json_lines(run / "metrics.jsonl") as log:
        train_and_save(run, model, optimizer, objective(model), log, steps=STEPS, saved=(HALF, 200), schedule=rates)


SAMPLES = (
    Sample(
        "gf45-shrank",
        "gf45",
        lambda run: resumed(run, by_dimensions, without_head),
        "the second launch sorts parameters by the blocks' names: head, positions and the last norm are in no group",
        case="GF45",
        variant="shrank",
        checkpoints=True,
    ),
    Sample(
        "gf45-changed-decay",
        "gf45",
        lambda run: resumed(run, by_dimensions, by_name),
        "the second launch spares biases only: norm gains come into the group that decays",
        case="GF45",
        variant="changed-decay",
        primary="",
        checkpoints=True,
    ),
    Sample(
        "gf45-rate-left-behind",
        "gf45",
        added_late,
        "the head's group is added after the scheduler was made: it stays at 1e-3 while the others decay",
        case="GF45",
        variant="rate-left-behind",
        checkpoints=True,
    ),
    Sample(
        "gf45-twin",
        "gf45",
        lambda run: resumed(run, by_dimensions, by_dimensions),
        "the second launch makes the same groups",
        case="GF45",
        twin=True,
        checkpoints=True,
    ),
    Sample(
        "gf45-twin-unfreezing",
        "gf45",
        unfrozen,
        "gradual unfreezing: a group joins at step 48 with a constant rate of its own",
        case="GF45",
        twin=True,
        checkpoints=True,
    ),
)

if __name__ == "__main__":
    main(SAMPLES)
