"""GF12: the range of float16, and a healthy scaler beside it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from lab import (
    BATCH,
    WIDTH,
    Chain,
    Log,
    Sample,
    TinyLM,
    adamw,
    beginning,
    console,
    cosine,
    csv_rows,
    current_lr,
    json_lines,
    main,
    next_token_loss,
    plain_config,
    scheduler,
    train,
    write_json,
)
from torch import Tensor, nn

WARMUP = 20
LR = 3e-3


def half_loop(
    model: nn.Module,
    objective: Callable[[int], Tensor],
    log: Log,
    *,
    steps: int,
    init_scale: float = 2.0**16,
    growth_interval: int = 2000,
    every: int = 1,
) -> None:
    """Train under float16 autocast with the loss scaler of torch; skipped counts the steps that it refused."""
    optimizer = adamw(model, LR)
    schedule = scheduler(optimizer, cosine(WARMUP, steps))
    scaler = torch.amp.GradScaler("cpu", init_scale=init_scale, growth_interval=growth_interval)
    skipped = 0
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = objective(step)
        scaled: Tensor = scaler.scale(loss)
        scaled.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
        scaler.unscale_(optimizer)
        norm = float(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        rate, scale = current_lr(optimizer), scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        skipped += scaler.get_scale() < scale
        schedule.step()
        if step == 1 or step % every == 0:
            row = {"step": step, "loss": loss.item(), "grad_norm": norm, "lr": rate}
            log({**row, "loss_scale": scaler.get_scale(), "skipped_steps": skipped})


def config(steps: int, **facts: object) -> dict[str, object]:
    """Configuration of a float16 run."""
    schedule = {"learning_rate": LR, "lr_scheduler_type": "cosine", "warmup_steps": WARMUP, "max_steps": steps}
    return plain_config(**schedule, fp16=True, bf16=False, **facts)


def collapsed(run: Path) -> None:
    """From step 101 a factor of 3e4 on the float16 logits takes them out of range."""
    steps = 200
    chain, model, generator = beginning()

    def objective(step: int) -> Tensor:
        tokens = chain.sample(generator)
        logits = model(tokens[:, :-1])
        if step > 100:
            logits = logits * torch.tensor(3e4)
        return next_token_loss(logits, tokens)

    write_json(run / "config.json", config(steps, init_loss_scale=2**16, loss_scale_window=20))
    with json_lines(run / "metrics.jsonl") as log:
        half_loop(model, objective, log, steps=steps, growth_interval=20)


class GatedLM(nn.Module):
    """The tiny transformer with a gate on its states that is driven by one raw numeric feature per sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.body = TinyLM()
        self.gate = nn.Linear(1, WIDTH)

    def forward(self, tokens: Tensor, feature: Tensor) -> Tensor:
        """Give logits; the gate scales the final states by 0.5 to 1.5."""
        opened = torch.sigmoid(self.gate(feature))[:, None, :]
        logits: Tensor = self.body.head(self.body.states(tokens) * (0.5 + opened))
        return logits


def frequent_skips(run: Path) -> None:
    """The raw feature is log-normal; its rare values above 65504 are infinite in float16.

    The gate saturates, so the loss stays finite, but the weight gradient of the gate is 0 * inf = NaN.
    """
    steps = 300
    chain = Chain.make()
    torch.manual_seed(0)
    model = GatedLM()
    generator = np.random.default_rng(1)

    def objective(_step: int) -> Tensor:
        tokens = chain.sample(generator)
        feature = generator.lognormal(mean=0.0, sigma=4.0, size=(BATCH, 1))
        return next_token_loss(model(tokens[:, :-1], torch.from_numpy(feature).float()), tokens)

    write_json(run / "config.json", config(steps, init_loss_scale=2**16, loss_scale_window=2000))
    with csv_rows(run / "metrics.csv", ("step", "loss", "grad_norm", "lr", "loss_scale", "skipped_steps")) as log:
        half_loop(model, objective, log, steps=steps)


def pure_half(run: Path) -> None:
    """Weights, gradients and optimizer state in float16, no loss scale; eps large enough for the state to live."""
    steps = 150
    chain, model, generator = beginning()
    model = model.half()

    def objective(_step: int) -> Tensor:
        tokens = chain.sample(generator)
        return next_token_loss(model(tokens[:, :-1]), tokens)

    schedule = {"learning_rate": 1e-3, "lr_scheduler_type": "constant", "warmup_steps": 0, "max_steps": steps}
    write_json(run / "config.json", plain_config(**schedule, precision="16-true", adam_epsilon=1e-4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-4)
    with json_lines(run / "metrics.jsonl") as log:
        train(model, optimizer, objective, log, steps=steps)


def healthy(run: Path) -> None:
    """A scale that starts too high finds its level in the first steps and is tried upwards every 200 steps."""
    steps = 500
    chain, model, generator = beginning()

    def objective(_step: int) -> Tensor:
        tokens = chain.sample(generator)
        return next_token_loss(model(tokens[:, :-1]), tokens)

    scale = 2.0**22
    write_json(run / "config.json", config(steps, init_loss_scale=scale, loss_scale_window=200))
    with console(run / "train.log") as log:
        half_loop(model, objective, log, steps=steps, init_scale=scale, growth_interval=200, every=2)
        print("Training completed")


SAMPLES = (
    Sample(
        "gf12-collapsed",
        "gf12",
        collapsed,
        "float16 logits blown up by 3e4 from step 101: every step overflows, the scale falls below 1, nothing moves",
        case="GF12",
        variant="collapsed",
    ),
    Sample(
        "gf12-frequent-skips",
        "gf12",
        frequent_skips,
        "a raw feature exceeds 65504 in a few percent of the batches: those steps overflow at any scale",
        case="GF12",
        variant="frequent-skips",
    ),
    Sample(
        "gf12-pure-half",
        "gf12",
        pure_half,
        "weights, gradients and state in float16 without a loss scale; it trains, so it is a suspect only",
        case="GF12",
        variant="pure-half",
        primary="",
    ),
    Sample(
        "gf12-twin",
        "gf12",
        healthy,
        "healthy float16 run: scale search in the first steps, then one or two backoffs after growth",
        case="GF12",
        twin=True,
    ),
)

if __name__ == "__main__":
    main(SAMPLES)
