"""GF07 in checkpoints: what was applied between two saves one step apart is not what the log or the groups say."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import hf_lab
from checkpoint_lab import CHAIN, VOCAB, configure, objective, small_lm, train_and_save
from lab import Sample, Schedule, constant, cosine, json_lines, main, scheduler
from torch import nn
from torch.optim import AdamW, Optimizer
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

STEPS, WARMUP, LR = 240, 20, 3e-3
SAVED = (199, 200)


def grouped(model: nn.Module, lr: float, **more: Any) -> AdamW:
    """AdamW with norm gains and biases in a group without decay."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return AdamW(groups, lr=lr, betas=(0.9, 0.95), **more)


def scheduled(run: Path, kind: str, schedule: Schedule, *, made_anew: bool = False) -> None:
    """A plain loop; made_anew: a second optimizer is made after the scheduler, which keeps writing to the first."""
    model = small_lm(width=8)
    optimizer = grouped(model, LR)
    rates = scheduler(optimizer, schedule)
    trained: Optimizer = grouped(model, LR) if made_anew else optimizer
    configure(run, learning_rate=LR, lr_scheduler_type=kind, warmup_steps=WARMUP, max_steps=STEPS, hidden_size=8)
    with json_lines(run / "metrics.jsonl") as log, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch: the scheduler's own optimizer is never stepped
        train_and_save(
            run,
            model,
            trained,
            objective(model),
            lambda row: log({**row, "lr": rates.get_last_lr()[0]}),
            steps=STEPS,
            saved=SAVED,
            schedule=rates,
        )


def layer_rates(run: Path) -> None:
    """Layer-wise decay of the rate: the log shows the head's, every group has its own."""
    model = small_lm(width=8, layers=3)
    parts = (("head", "norm"), ("blocks.2",), ("blocks.1",), ("blocks.0",), ("embedding", "position"))
    groups = [
        {"params": [p for n, p in model.named_parameters() if n.startswith(names)], "lr": LR * 0.65**depth}
        for depth, names in enumerate(parts)
    ]
    optimizer = AdamW(groups, betas=(0.9, 0.95), weight_decay=0.1)
    configure(run, learning_rate=LR, layer_decay=0.65, lr_scheduler_type="cosine", warmup_steps=WARMUP, max_steps=STEPS)
    with json_lines(run / "metrics.jsonl") as log:
        rates = scheduler(optimizer, cosine(WARMUP, STEPS))
        train_and_save(run, model, optimizer, objective(model), log, steps=STEPS, saved=SAVED, schedule=rates)


class _Saver(TrainerCallback):  # type: ignore[misc]  # mypy is told not to follow transformers
    """Saves one step before the last one too, so that two checkpoints lie one update apart."""

    def on_step_end(
        self, _args: TrainingArguments, state: TrainerState, control: TrainerControl, **_facts: object
    ) -> None:
        """Save."""
        if state.global_step == state.max_steps - 41:
            control.should_save = True


class _OwnRate(TrainerCallback):  # type: ignore[misc]  # as above
    """A callback that holds the rate at a third of the configured one, and forgets the scheduler."""

    def on_pre_optimizer_step(
        self, args: TrainingArguments, _state: TrainerState, _control: TrainerControl, **facts: Any
    ) -> None:
        """Set the rate just before the step; the scheduler writes its own after it."""
        for group in facts["optimizer"].param_groups:
            group["lr"] = args.learning_rate / 3


class _Saving(Trainer):  # type: ignore[misc]  # as above
    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.add_callback(_Saver())


class _Overwriting(_Saving):
    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.add_callback(_OwnRate())


def trainer(run: Path, kind: type[Trainer]) -> None:
    """The Trainer, saved after two steps that follow each other, and ended there."""
    model = hf_lab.tiny_gpt2(vocab=VOCAB, width=8)
    data = hf_lab.fresh(CHAIN, STEPS)
    hf_lab.fit(run, model, data, steps=STEPS, trainer_class=kind, stop_at=STEPS - 40, save_only_model=False)


SAMPLES = (
    Sample(
        "gf07-not-applied",
        "gf07_checkpoints",
        lambda run: scheduled(run, "cosine", cosine(WARMUP, STEPS), made_anew=True),
        "the optimizer was made anew after the scheduler: the log shows a cosine, the weights moved at 3e-3 to the end",
        case="GF07",
        variant="not-applied",
        checkpoints=True,
    ),
    Sample(
        "gf07-applied-other",
        "gf07_checkpoints",
        lambda run: trainer(run, _Overwriting),
        "a Trainer callback sets a third of the peak before every step, the scheduler writes its own rate after it",
        case="GF07",
        variant="applied-other",
        checkpoints=True,
    ),
    Sample(
        "gf07-twin-checkpoints",
        "gf07_checkpoints",
        lambda run: trainer(run, _Saving),
        "the Trainer without that callback, saved after steps 199 and 200",
        case="GF07",
        twin=True,
        checkpoints=True,
    ),
    Sample(
        "gf07-twin-layer-rates",
        "gf07_checkpoints",
        layer_rates,
        "five groups with rates that fall by 0.65 per layer: four of them are not the logged one, by design",
        case="GF07",
        twin=True,
        checkpoints=True,
    ),
    Sample(
        "gf07-twin-constant",
        "gf07_checkpoints",
        lambda run: scheduled(run, "constant_with_warmup", constant(WARMUP)),
        "a constant rate, as declared: the same in both checkpoints and in the log",
        case="GF07",
        twin=True,
        checkpoints=True,
    ),
)

if __name__ == "__main__":
    main(SAMPLES)
