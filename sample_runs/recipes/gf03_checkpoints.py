"""GF03, GF12 and GF28 in checkpoints one update apart: the gradient that the optimizer got beside the logged norm."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch
from checkpoint_lab import CHAIN, CONFIG, save, small_lm
from lab import Sample, current_lr, gradient_norm, json_lines, main, next_token_loss, write_json
from torch import nn

STEPS = 60
SAVED = (59, 60)
MICRO_BATCHES = 4
LR = 3e-3
BEFORE, AFTER = "before", "after"


def micro_batches(run: Path, division: str) -> None:
    """Four micro-batches per step, clipped at 0.5.

    division: by their number, "before" backward() or "after" clip_grad_norm_; the log has what that returns.
    """
    model, generator = small_lm(layers=1, width=12), np.random.default_rng(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.1)
    facts = {"gradient_accumulation_steps": MICRO_BATCHES, "per_device_train_batch_size": 4, "max_grad_norm": 0.5}
    write_json(run / "config.json", CONFIG | {"learning_rate": LR, "max_steps": STEPS} | facts)
    held_out = CHAIN.sample(np.random.default_rng(2), count=32, length=17)
    with json_lines(run / "metrics.jsonl") as log:
        for step in range(1, STEPS + 1):
            optimizer.zero_grad()
            mean = 0.0
            for _ in range(MICRO_BATCHES):
                tokens = CHAIN.sample(generator, count=4, length=17)
                loss = next_token_loss(model(tokens[:, :-1]), tokens)
                share = loss / MICRO_BATCHES if division == BEFORE else loss
                share.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
                mean += loss.item() / MICRO_BATCHES
            norm = float(nn.utils.clip_grad_norm_(model.parameters(), 0.5))
            if division == AFTER:
                for parameter in model.parameters():
                    if parameter.grad is not None:
                        parameter.grad.div_(MICRO_BATCHES)
            optimizer.step()
            log({"step": step, "loss": mean, "grad_norm": norm, "lr": current_lr(optimizer)})
            if step % 5 == 0:
                with torch.no_grad():
                    log({"step": step, "eval_loss": next_token_loss(model(held_out[:, :-1]), held_out).item()})
            if step in SAVED:
                save(run, step, model, optimizer)


def clipped(run: Path, clipping: Callable[[nn.Module], Iterable[nn.Parameter]], limit: float = 0.2) -> None:
    """One batch per step, clipped at `limit` over the parameters that `clipping` picks; the log has the total norm."""
    model, generator = small_lm(layers=1, width=12), np.random.default_rng(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.1)
    write_json(run / "config.json", CONFIG | {"learning_rate": LR, "max_steps": STEPS, "max_grad_norm": limit})
    with json_lines(run / "metrics.jsonl") as log:
        for step in range(1, STEPS + 1):
            tokens = CHAIN.sample(generator, count=16, length=17)
            optimizer.zero_grad()
            loss = next_token_loss(model(tokens[:, :-1]), tokens)
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
            norm = gradient_norm(model)
            nn.utils.clip_grad_norm_(clipping(model), limit)
            optimizer.step()
            log({"step": step, "loss": loss.item(), "grad_norm": norm, "lr": current_lr(optimizer)})
            if step in SAVED:
                save(run, step, model, optimizer)


def scaled(run: Path, *, unscaled: bool) -> None:
    """A gradient scaler of 1024 in fp16 autocast; unscaled: unscale_ is called before the clipping, as it should be."""
    model, generator = small_lm(layers=1, width=12), np.random.default_rng(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, eps=1e-8, weight_decay=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    facts = {"learning_rate": LR, "max_steps": STEPS, "max_grad_norm": 1.0, "fp16": True}
    write_json(run / "config.json", CONFIG | facts)
    with json_lines(run / "metrics.jsonl") as log:
        for step in range(1, STEPS + 1):
            tokens = CHAIN.sample(generator, count=16, length=17)
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                logits = model(tokens[:, :-1])
            loss = next_token_loss(logits, tokens)
            scaler.scale(loss).backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
            if unscaled:
                scaler.unscale_(optimizer)
            norm = float(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
            scaler.step(optimizer)
            scaler.update()
            log({"step": step, "loss": loss.item(), "grad_norm": norm, "lr": current_lr(optimizer)})
            if step in SAVED:
                save(run, step, model, optimizer, scaler=scaler.state_dict())


SAMPLES = (
    Sample(
        "gf03-rescaled",
        "gf03_checkpoints",
        lambda run: micro_batches(run, AFTER),
        "four micro-batches whose sum is clipped at 0.5 and then divided by four: the optimizer gets 0.125",
        case="GF03",
        variant="rescaled",
        primary="",
        checkpoints=True,
    ),
    Sample(
        "gf03-twin-checkpoints",
        "gf03_checkpoints",
        lambda run: micro_batches(run, BEFORE),
        "the same divided before backward(): the optimizer gets the logged norm, cut to 0.5",
        case="GF03",
        twin=True,
        checkpoints=True,
    ),
    Sample(
        "gf28-not-applied",
        "gf03_checkpoints",
        lambda run: clipped(run, lambda model: model.get_submodule("head").parameters()),
        "max_norm 0.2, but only the head is clipped: the optimizer gets a larger gradient",
        case="GF28",
        variant="not-applied",
        primary="",
        checkpoints=True,
    ),
    Sample(
        "gf28-twin-checkpoints",
        "gf03_checkpoints",
        lambda run: clipped(run, nn.Module.parameters, limit=0.8),
        "all parameters clipped at 0.8, which some of the steps exceed",
        case="GF28",
        twin=True,
        checkpoints=True,
    ),
    Sample(
        "gf12-clipped-while-scaled",
        "gf03_checkpoints",
        lambda run: scaled(run, unscaled=False),
        "clipped at 1.0 before unscale_ at a constant scale of 1024: the optimizer gets a norm of 1/1024",
        case="GF12",
        variant="clipped-before-unscaling",
        checkpoints=True,
    ),
)

if __name__ == "__main__":
    main(SAMPLES)
