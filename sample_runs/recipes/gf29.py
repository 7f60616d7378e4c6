"""GF29: a resume that did not bring back the whole training state."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import hf_lab
import torch
from gf07 import timed
from lab import (
    Chain,
    Log,
    Sample,
    TinyLM,
    adamw,
    beginning,
    console,
    current_lr,
    json_lines,
    language_model,
    main,
    next_token_loss,
    plain_config,
    train,
    write_json,
)
from torch import Tensor, nn

STEPS, SAVED, STOP = 300, 140, 150
LR = 3e-3
DECLARED = {"learning_rate": LR, "lr_scheduler_type": "constant", "max_steps": STEPS}


def steps(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    objective: Callable[[int], Tensor],
    log: Log,
    span: range,
) -> None:
    """Train over the steps of `span` and log, beside the usual, the norm of what a step did to the weights."""
    for step in span:
        optimizer.zero_grad()
        loss = objective(step)
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
        norm = float(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        before = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
        optimizer.step()
        moved = float((nn.utils.parameters_to_vector(model.parameters()).detach() - before).norm())
        row = {"step": step, "loss": loss.item(), "grad_norm": norm, "update_norm": moved}
        log({**row, "lr": current_lr(optimizer)})


def pair(run: Path, *, restore: bool, second: float = 0.0) -> None:
    """Two launches at a constant rate; the second one restores the optimizer where `restore` says so.

    second: the rate of the second launch where it is another one, declared in a configuration of its own.
    """
    chain, model, generator = beginning()

    def objective_of(model: TinyLM) -> Callable[[int], Tensor]:
        def objective(_step: int) -> Tensor:
            tokens = chain.sample(generator)
            return next_token_loss(model(tokens[:, :-1]), tokens)

        return objective

    optimizer = adamw(model, LR)
    write_json(run / "config.json", plain_config(**DECLARED))
    with json_lines(run / "train.jsonl") as log:
        stamped = timed(log)
        steps(model, optimizer, objective_of(model), stamped, range(1, SAVED + 1))
        weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        torch.save(optimizer.state_dict(), checkpoint := run.with_name("state.pt"))
        steps(model, optimizer, objective_of(model), stamped, range(SAVED + 1, STOP + 1))

    _, model, _ = beginning(chain, seed=7)
    model.load_state_dict(weights)
    optimizer = adamw(model, LR)
    if restore:
        optimizer.load_state_dict(torch.load(checkpoint, weights_only=True))
    checkpoint.unlink()
    if second:
        write_json(run / "config_resume.json", plain_config(**DECLARED | {"learning_rate": second}))
        for group in optimizer.param_groups:
            group["lr"] = second
    with json_lines(run / "train.jsonl", mode="a") as log:
        steps(model, optimizer, objective_of(model), timed(log), range(SAVED + 1, STEPS + 1))


def memorising(run: Path) -> None:
    """64 sequences seen again and again, nearly known by heart; the second launch has a new AdamW."""
    chain, model, generator = beginning()
    known = chain.sample(generator, count=64)
    order = torch.Generator().manual_seed(1)

    def objective(_step: int) -> Tensor:
        tokens = known[torch.randperm(len(known), generator=order)[:16]]
        return next_token_loss(model(tokens[:, :-1]), tokens)

    saved, last, lr = 260, 360, 4e-3
    write_json(run / "config.json", plain_config(**DECLARED | {"learning_rate": lr, "max_steps": last}))
    with json_lines(run / "train.jsonl") as log:
        for first, stop in ((1, saved), (saved + 1, last)):
            optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.999), weight_decay=0.0)
            train(model, optimizer, objective, timed(log), steps=stop, first=first)


def counters(run: Path) -> None:
    """The second launch loads the weights, says so, and counts from 1 again."""
    model, objective = language_model(Chain.make())
    write_json(run / "config.json", plain_config(**DECLARED))
    with console(run / "train.log") as log:
        print(f"Starting training for {STEPS} steps")
        train(model, adamw(model, LR), objective, log, steps=STOP)
        print(f"Resuming from checkpoint checkpoint-{STOP}")
        train(model, adamw(model, LR), objective, log, steps=STEPS)
        print("Training completed")


def scaler(run: Path) -> None:
    """float16 autocast; the second launch restores everything but the loss scaler of torch."""
    model, objective = language_model(Chain.make())
    optimizer = adamw(model, LR)
    write_json(run / "config.json", plain_config(**DECLARED, fp16=True, bf16=False, loss_scale_window=30))
    with json_lines(run / "train.jsonl") as log:
        for span in (range(1, STOP + 1), range(STOP + 1, STEPS + 1)):
            scaled_steps(model, optimizer, objective, timed(log), span)


def scaled_steps(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    objective: Callable[[int], Tensor],
    log: Log,
    span: range,
) -> None:
    """Train over the steps of `span` with a new loss scaler."""
    grad_scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=30)
    for step in span:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = objective(step)
        scaled: Tensor = grad_scaler.scale(loss)
        scaled.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
        grad_scaler.unscale_(optimizer)
        norm = float(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        scale = grad_scaler.get_scale()
        grad_scaler.step(optimizer)
        grad_scaler.update()
        row = {"step": step, "loss": loss.item(), "grad_norm": norm, "lr": current_lr(optimizer)}
        log({**row, "loss_scale": scale})


def trainer_pair(run: Path, *, lost: tuple[str, ...]) -> None:
    """HF Trainer, interrupted and resumed from its checkpoint, from which the files of `lost` are missing."""
    chain = Chain.make()
    for stop, resume in ((STOP, ""), (0, f"checkpoint-{STOP}")):
        data = hf_lab.fresh(chain, STEPS)
        hf_lab.fit(run, hf_lab.tiny_gpt2(), data, steps=STEPS, stop_at=stop, resume_from=resume)
        if stop:
            for name in lost:
                (run / f"checkpoint-{STOP}" / name).unlink()
    shutil.rmtree(run / f"checkpoint-{STOP}")  # what is left is the last checkpoint, as save_total_limit=1 leaves it


SAMPLES = (
    Sample(
        "gf29-optimizer",
        "gf29",
        lambda run: pair(run, restore=False),
        "resumed from step 140 with the weights but a new AdamW: the first updates are several times too large",
        case="GF29",
        variant="optimizer",
    ),
    Sample(
        "gf29-counters",
        "gf29",
        counters,
        "the second launch loads the weights of step 150 and counts from 1 again",
        case="GF29",
        variant="counters",
    ),
    Sample(
        "gf29-scaler",
        "gf29",
        scaler,
        "the loss scaler is not restored: the scale is 4096 again at step 151",
        case="GF29",
        variant="scaler",
        primary="",
    ),
    Sample(
        "gf29-schedule",
        "gf29",
        lambda run: trainer_pair(run, lost=("optimizer.pt", "scheduler.pt")),
        "HF Trainer resumed from a checkpoint without optimizer.pt and scheduler.pt: warm-up again at step 151",
        case="GF29",
        variant="schedule",
        primary="GF07",
    ),
    Sample(
        "gf29-loss-jump",
        "gf29",
        memorising,
        "a model that knows its data nearly by heart is resumed with a new AdamW: the loss jumps and comes back slowly",
        case="GF29",
        variant="loss-jump",
        primary="",
    ),
    Sample(
        "gf29-twin",
        "gf29",
        lambda run: pair(run, restore=True),
        "resumed from step 140 with weights and optimizer",
        case="GF29",
        twin=True,
    ),
    Sample(
        "gf29-twin-trainer",
        "gf29",
        lambda run: trainer_pair(run, lost=()),
        "HF Trainer interrupted at step 150 and resumed from its whole checkpoint",
        case="GF29",
        twin=True,
    ),
    Sample(
        "gf29-twin-declared",
        "gf29",
        lambda run: pair(run, restore=True, second=LR / 10),
        "resumed with everything at a tenth of the rate, which the configuration of the second launch declares",
        case="GF29",
        twin=True,
    ),
)

if __name__ == "__main__":
    main(SAMPLES)
