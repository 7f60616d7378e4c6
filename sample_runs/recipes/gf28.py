"""GF28: clipping acts on nearly every step, on gradients in the wrong unit, or never."""

from __future__ import annotations

from pathlib import Path

import hf_lab
import torch
from accumulation_lab import LR, WARMUP, Accumulation
from accumulation_lab import train as accumulate
from lab import (
    LENGTH,
    Chain,
    Sample,
    TinyLM,
    adamw,
    beginning,
    cosine,
    csv_rows,
    current_lr,
    gradient_norm,
    json_lines,
    language_model,
    main,
    next_token_loss,
    plain_config,
    scheduler,
    train,
    write_json,
)
from torch import Tensor, nn
from torch.nn import functional

STEPS = 200
SCHEDULE = {"learning_rate": LR, "lr_scheduler_type": "cosine", "warmup_steps": WARMUP}


def threshold_too_low(run: Path) -> None:
    """HF Trainer with max_grad_norm 0.1: every step is clipped to a tenth."""
    data = hf_lab.fresh(Chain.make(), STEPS)
    hf_lab.fit(run, hf_lab.tiny_gpt2(), data, steps=STEPS, max_grad_norm=0.1)


def half_loop(run: Path, *, unscale_first: bool) -> None:
    """Float16 autocast with a scaler that doubles every 40 steps; clipped before or after unscale_."""
    chain, model, generator = beginning()
    optimizer = adamw(model, LR)
    schedule = scheduler(optimizer, cosine(WARMUP, STEPS))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=40)
    facts = {"fp16": True, "bf16": False, "init_loss_scale": 2**12, "loss_scale_window": 40, "max_steps": STEPS}
    write_json(run / "config.json", plain_config(**SCHEDULE, **facts))
    with csv_rows(run / "log.csv", ("step", "loss", "grad_norm", "lr", "loss_scale")) as log:
        for step in range(1, STEPS + 1):
            optimizer.zero_grad()
            tokens = chain.sample(generator)
            with torch.autocast("cpu", dtype=torch.float16):
                loss = next_token_loss(model(tokens[:, :-1]), tokens)
            scaled: Tensor = scaler.scale(loss)
            scaled.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
            if unscale_first:
                scaler.unscale_(optimizer)
            norm = float(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
            rate, scale = current_lr(optimizer), scaler.get_scale()
            scaler.step(optimizer)
            scaler.update()
            schedule.step()
            log({"step": step, "loss": loss.item(), "grad_norm": norm, "lr": rate, "loss_scale": scale})


def never_reached(run: Path) -> None:
    """A threshold of 100 for norms below 2."""
    chain, model, generator = beginning()
    write_json(run / "config.json", plain_config(**SCHEDULE, max_steps=STEPS, max_grad_norm=100.0))
    with json_lines(run / "metrics.jsonl") as log:
        accumulate(model, generator, log, Accumulation(chain, STEPS, clip=100.0))


def clipped(model: TinyLM, optimizer: torch.optim.Optimizer, loss: Tensor, threshold: float) -> float:
    """One step; gives the gradient norm that is left after clipping."""
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
    nn.utils.clip_grad_norm_(model.parameters(), threshold)
    norm = gradient_norm(model)
    optimizer.step()
    return norm


def logged_after_clipping(run: Path) -> None:
    """The norm is computed once more after clip_grad_norm_, and that one is logged."""
    model, objective = language_model(Chain.make())
    optimizer = adamw(model, LR)
    schedule = scheduler(optimizer, cosine(WARMUP, STEPS))
    write_json(run / "config.json", plain_config(**SCHEDULE, max_steps=STEPS, max_grad_norm=0.8))
    with csv_rows(run / "log.csv", ("step", "loss", "grad_norm", "lr")) as log:
        for step in range(1, STEPS + 1):
            loss = objective(step)
            norm = clipped(model, optimizer, loss, 0.8)
            log({"step": step, "loss": loss.item(), "grad_norm": norm, "lr": current_lr(optimizer)})
            schedule.step()


def summed_gradient(run: Path) -> None:
    """The loss for backward is a sum over tokens, the logged one their mean; nothing is clipped."""
    chain, model, generator = beginning()
    tokens_per_step = 16 * LENGTH

    def token_sum(logits: Tensor, tokens: Tensor) -> Tensor:
        return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum")

    write_json(run / "config.json", plain_config(**SCHEDULE, max_steps=STEPS, max_grad_norm=None))
    with json_lines(run / "metrics.jsonl") as log:
        how = Accumulation(
            chain, STEPS, objective=token_sum, logged=lambda losses: losses[0] / tokens_per_step, clip=None
        )
        accumulate(model, generator, log, how)


def healthy(run: Path) -> None:
    """Norms on either side of the threshold."""
    model, objective = language_model(Chain.make())
    optimizer = adamw(model, LR)
    write_json(run / "config.json", plain_config(**SCHEDULE, max_steps=STEPS))
    with json_lines(run / "metrics.jsonl") as log:
        train(model, optimizer, objective, log, steps=STEPS, schedule=scheduler(optimizer, cosine(WARMUP, STEPS)))


SAMPLES = (
    Sample(
        "gf28-saturated",
        "gf28",
        threshold_too_low,
        "HF Trainer with max_grad_norm 0.1 for norms about 1: every step is clipped",
        case="GF28",
        variant="saturated",
        primary="",
    ),
    Sample(
        "gf12-clipped-before-unscale-csv",
        "gf28",
        lambda run: half_loop(run, unscale_first=False),
        "float16 with a loss scaler, clip_grad_norm_ without unscale_ before it: the norm follows the scale",
        case="GF12",
        variant="clipped-before-unscaling",
    ),
    Sample(
        "gf28-never-reached",
        "gf28",
        never_reached,
        "a threshold of 100 for norms below 2",
        case="GF28",
        variant="never-reached",
        primary="",
    ),
    Sample(
        "gf28-after-clipping",
        "gf28",
        logged_after_clipping,
        "the logged norm was computed after clipping",
        case="GF28",
        variant="after-clipping",
        primary="",
    ),
    Sample(
        "gf28-foreign-units",
        "gf28",
        summed_gradient,
        "backward of a sum over 512 tokens, the mean in the log: norms of hundreds from the first step on",
        case="GF28",
        variant="foreign-units",
        primary="",
    ),
    Sample(
        "gf28-twin",
        "gf28",
        healthy,
        "norms on either side of the threshold",
        case="GF28",
        twin=True,
    ),
    Sample(
        "gf28-twin-unscaled",
        "gf28",
        lambda run: half_loop(run, unscale_first=True),
        "the same float16 loop with unscale_ before clip_grad_norm_: the norm does not follow the scale",
        case="GF28",
        twin=True,
    ),
)

if __name__ == "__main__":
    main(SAMPLES)
