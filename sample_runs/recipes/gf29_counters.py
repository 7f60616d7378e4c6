"""GF29 in the counters of checkpoints: what a resume did not bring back shows in what optimizer and scheduler count."""

from __future__ import annotations

from pathlib import Path

import hf_lab
import numpy as np
import torch
from checkpoint_lab import CHAIN, configure, objective, small_lm, train_and_save
from gf07 import timed
from lab import BATCH, LENGTH, Log, Sample, json_lines, main
from torch.optim.lr_scheduler import CosineAnnealingLR

STEPS, STOP, WIDTH, LR = 150, 80, 8, 3e-3


def two_launches(run: Path, *, optimizer_back: bool, schedule_back: bool) -> None:
    """Saved after step 80, loaded by a second launch as the arguments say, saved again after the last step."""
    configure(run, hidden_size=WIDTH, learning_rate=LR, max_steps=4 * STEPS)
    with json_lines(run / "train.jsonl") as log:
        model = small_lm(width=WIDTH)
        stages = ((1, STOP), (STOP + 1, STEPS))
        for first, last in stages:
            optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.95), weight_decay=0.1)
            schedule = CosineAnnealingLR(optimizer, T_max=4 * STEPS)
            if first > 1:
                state = torch.load(run / f"checkpoint-{STOP:06d}.pt", weights_only=True)
                model = small_lm(seed=7, width=WIDTH)
                optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.95), weight_decay=0.1)
                schedule = CosineAnnealingLR(optimizer, T_max=4 * STEPS)
                model.load_state_dict(state["model"])
                if optimizer_back:
                    optimizer.load_state_dict(state["optimizer"])
                if schedule_back:
                    schedule.load_state_dict(state["scheduler"])
            train_and_save(
                run, model, optimizer, objective(model, seed=first), without_rate(timed(log)), steps=last,
                saved=(last,), schedule=schedule, first=first,
            )  # fmt: skip


def without_rate(log: Log) -> Log:
    """A log that keeps the rate to itself."""

    def write(row: dict[str, object]) -> None:
        log({key: value for key, value in row.items() if key != "lr"})

    return write  # type: ignore[return-value]  # rows are dictionaries wherever this lab logs


def trainer(run: Path, *, lost: tuple[str, ...], keep: tuple[int, ...]) -> None:
    """HF Trainer at a constant rate, interrupted and resumed; of its checkpoints those of the steps `keep` are kept."""
    for stop, resume in ((STOP, ""), (STEPS, f"checkpoint-{STOP}")):
        ids = CHAIN.sample(np.random.default_rng(1), count=STEPS * BATCH, length=LENGTH // 2 + 1)
        hf_lab.fit(
            run, hf_lab.tiny_gpt2(vocab=32, width=WIDTH), hf_lab.Tokens(ids), steps=STEPS, stop_at=stop,
            resume_from=resume, lr_scheduler_type="constant", warmup_steps=0, save_strategy="no",
        )  # fmt: skip
        if stop == STOP:
            for name in lost:
                (run / f"checkpoint-{STOP}" / name).unlink()
    for folder in run.glob("checkpoint-*"):
        for path in folder.iterdir():
            gone = int(folder.name.rpartition("-")[2]) not in keep
            if gone or path.name in ("training_args.bin", "rng_state.pth"):
                path.unlink()
        if not any(folder.iterdir()):
            folder.rmdir()


SAMPLES = (
    Sample(
        "gf29-optimizer-counter",
        "gf29_counters",
        lambda run: two_launches(run, optimizer_back=False, schedule_back=True),
        "resumed from step 80 with weights and scheduler, but a new AdamW: it has made 70 steps at step 150",
        case="GF29",
        variant="optimizer-counter",
        ending="truncated",
        checkpoints=True,
    ),
    Sample(
        "gf29-schedule-counter",
        "gf29_counters",
        lambda run: two_launches(run, optimizer_back=True, schedule_back=False),
        "resumed from step 80 with weights and optimizer, but a new scheduler: it was stepped 70 times at step 150",
        case="GF29",
        variant="schedule-counter",
        ending="truncated",
        checkpoints=True,
    ),
    Sample(
        "gf29-optimizer-behind",
        "gf29_counters",
        lambda run: trainer(run, lost=("optimizer.pt", "scheduler.pt"), keep=(STEPS,)),
        "HF Trainer resumed from a checkpoint without optimizer.pt and scheduler.pt at a constant rate; one is kept",
        case="GF29",
        variant="optimizer-behind",
        checkpoints=True,
    ),
    Sample(
        "gf29-twin-counters",
        "gf29_counters",
        lambda run: two_launches(run, optimizer_back=True, schedule_back=True),
        "resumed from step 80 with weights, optimizer and scheduler: all count 150 at step 150",
        case="GF29",
        twin=True,
        ending="truncated",
        checkpoints=True,
    ),
    Sample(
        "gf29-twin-trainer-counters",
        "gf29_counters",
        lambda run: trainer(run, lost=(), keep=(STOP, STEPS)),
        "HF Trainer interrupted at step 80 and resumed from its whole checkpoint; both checkpoints are kept",
        case="GF29",
        twin=True,
        checkpoints=True,
    ),
)

if __name__ == "__main__":
    main(SAMPLES)
