"""GF07: the learning rate applied is not the one intended."""

from __future__ import annotations

import time
from pathlib import Path

import hf_lab
import lightning_lab
import torch
from lab import (
    Chain,
    Log,
    Row,
    Sample,
    adamw,
    beginning,
    console,
    cosine,
    csv_rows,
    current_lr,
    json_lines,
    language_model,
    linear,
    main,
    next_token_loss,
    plain_config,
    scheduler,
    train,
    write_json,
)
from torch import nn

STEPS = 300
WARMUP = 20
PEAK = 3e-3
INTENDED = {"learning_rate": PEAK, "lr_scheduler_type": "cosine", "warmup_steps": WARMUP, "max_steps": STEPS}


def too_fast(run: Path) -> None:
    """Four micro-batches per optimizer step; scheduler.step() stands in the inner loop."""
    micro_batches, micro_size = 4, 4
    chain, model, generator = beginning()
    optimizer = adamw(model, PEAK)
    schedule = scheduler(optimizer, cosine(WARMUP, STEPS))
    facts = {"per_device_train_batch_size": micro_size, "gradient_accumulation_steps": micro_batches}
    write_json(run / "config.json", plain_config(**INTENDED, **facts))
    optimizer.step()  # no gradients yet, so it does nothing; torch asks for a step before schedule.step()
    with json_lines(run / "metrics.jsonl") as log:
        for step in range(1, STEPS + 1):
            optimizer.zero_grad()
            total = 0.0
            rate = current_lr(optimizer)
            for micro in range(micro_batches):
                tokens = chain.sample(generator, count=micro_size)
                loss = next_token_loss(model(tokens[:, :-1]), tokens) / micro_batches
                loss.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
                total += loss.item()
                if micro == micro_batches - 1:
                    norm = float(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
                    rate = current_lr(optimizer)
                    optimizer.step()
                schedule.step()
            log({"step": step, "loss": total, "grad_norm": norm, "lr": rate})


def too_slow(run: Path) -> None:
    """A cosine over 300 steps that Lightning steps at the end of every epoch of 20 steps."""
    lightning_lab.fit(
        run,
        Chain.make(),
        steps=STEPS,
        steps_per_epoch=20,
        schedule=cosine(0, STEPS),
        interval="epoch",
        learning_rate=PEAK,
        lr_scheduler_type="cosine",
        warmup_steps=0,
        max_steps=STEPS,
        vocab_size=64,
        batch_size=16,
        gradient_accumulation_steps=1,
        optim="adamw_torch",
    )


def not_attached(run: Path) -> None:
    """The optimizer is built again after the scheduler, which goes on driving the first one."""
    model, objective = language_model(Chain.make())
    first = adamw(model, PEAK)
    schedule = scheduler(first, cosine(WARMUP, STEPS))
    first.step()  # no gradients yet, so it does nothing; torch asks for a step before schedule.step()
    optimizer = adamw(model, PEAK)
    write_json(run / "config.json", plain_config(**INTENDED))
    with console(run / "train.log") as log:
        train(model, optimizer, objective, log, steps=STEPS, schedule=schedule, every=2)
        print("Training completed")


def timed(log: Log) -> Log:
    """Add the seconds since the launch to every row."""
    start = time.monotonic()

    def with_time(row: Row) -> None:
        log({**row, "elapsed": round(time.monotonic() - start, 3)})

    return with_time


def launch_pair(run: Path, *, stop: int, saved: int, restore_schedule: bool) -> None:
    """Launch until step `stop`, resume from the checkpoint of step `saved`; both append to one log."""
    model, objective = language_model(Chain.make())
    optimizer = adamw(model, PEAK)
    schedule = scheduler(optimizer, cosine(WARMUP, STEPS))
    write_json(run / "config.json", plain_config(**INTENDED))
    with json_lines(run / "train.jsonl") as log:
        stamped = timed(log)
        train(model, optimizer, objective, stamped, steps=saved, schedule=schedule)
        weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        torch.save((optimizer.state_dict(), schedule.state_dict()), checkpoint := run.with_name("state.pt"))
        train(model, optimizer, objective, stamped, steps=stop, schedule=schedule, first=saved + 1)

    # the second launch: everything is built anew
    model, objective = language_model(Chain.make(), seed=7)
    model.load_state_dict(weights)
    optimizer = adamw(model, PEAK)
    optimizer_state, schedule_state = torch.load(checkpoint, weights_only=True)
    checkpoint.unlink()
    optimizer.load_state_dict(optimizer_state)
    schedule = scheduler(optimizer, cosine(WARMUP, STEPS))
    if restore_schedule:
        schedule.load_state_dict(schedule_state)
        for group, rate in zip(optimizer.param_groups, schedule.get_last_lr(), strict=True):
            group["lr"] = rate  # building a LambdaLR sets the rate of step 0; load_state_dict does not undo that
    with json_lines(run / "train.jsonl", mode="a") as log:
        train(model, optimizer, objective, timed(log), steps=STEPS, schedule=schedule, first=saved + 1)


def ended_early(run: Path) -> None:
    """A linear decay for a quarter of the steps; the configuration says nothing about a schedule."""
    model, objective = language_model(Chain.make())
    optimizer = adamw(model, PEAK)
    schedule = scheduler(optimizer, linear(0, STEPS // 4))
    write_json(run / "config.json", plain_config(learning_rate=PEAK, max_steps=STEPS))
    with csv_rows(run / "log.csv", ("step", "loss", "grad_norm", "lr")) as log:
        train(model, optimizer, objective, log, steps=STEPS, schedule=schedule)


def declared_constant(run: Path) -> None:
    """HF Trainer with the constant schedule that its arguments declare."""
    data = hf_lab.fresh(Chain.make(), STEPS)
    hf_lab.fit(run, hf_lab.tiny_gpt2(), data, steps=STEPS, lr_scheduler_type="constant_with_warmup")


SAMPLES = (
    Sample(
        "gf07-too-fast",
        "gf07",
        too_fast,
        "cosine schedule stepped once per micro-batch with 4 micro-batches per step: the rate is 0 after a quarter",
        case="GF07",
        variant="too-fast",
    ),
    Sample(
        "gf07-too-slow",
        "gf07",
        too_slow,
        "Lightning steps a cosine built for 300 steps once per epoch of 20 steps: the rate hardly decays",
        case="GF07",
        variant="too-slow",
    ),
    Sample(
        "gf07-not-attached",
        "gf07",
        not_attached,
        "the scheduler drives an optimizer that was replaced: the rate is constant, a cosine is configured",
        case="GF07",
        variant="not-attached",
    ),
    Sample(
        "gf07-restarted",
        "gf07",
        lambda run: launch_pair(run, stop=150, saved=150, restore_schedule=False),
        "stopped at step 150 and resumed with weights and optimizer but a new scheduler: warm-up starts again at 151",
        case="GF07",
        variant="restarted",
    ),
    Sample(
        "gf07-ended-early",
        "gf07",
        ended_early,
        "linear decay built for a quarter of the steps: the rate is exactly 0 from step 76 to 300",
        case="GF07",
        variant="ended-early",
    ),
    Sample(
        "gf07-twin",
        "gf07",
        declared_constant,
        "constant rate after warm-up, as the configuration declares",
        case="GF07",
        twin=True,
    ),
    Sample(
        "gf07-twin-resume",
        "gf07",
        lambda run: launch_pair(run, stop=150, saved=140, restore_schedule=True),
        "stopped at step 150 and properly resumed from step 140: steps 141 to 150 occur twice, the rate goes on",
        case="GF07",
        twin=True,
    ),
)

if __name__ == "__main__":
    main(SAMPLES)
