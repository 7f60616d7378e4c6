"""GF12: the range of float16, and a healthy scaler beside it."""

from __future__ import annotations

import math
import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lab import (
    BATCH,
    VOCAB,
    WIDTH,
    Chain,
    Log,
    Sample,
    Schedule,
    TinyLM,
    adamw,
    beginning,
    console,
    constant,
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
from transformers import T5Config, T5ForConditionalGeneration

WARMUP = 20
LR = 3e-3
CONSTANT = {"lr_scheduler_type": "constant", "warmup_steps": 0}
HALF_COLUMNS = ("step", "loss", "grad_norm", "lr", "loss_scale", "skipped_steps")


def half_loop(
    model: nn.Module,
    objective: Callable[[int], Tensor],
    log: Log,
    *,
    steps: int,
    init_scale: float = 2.0**16,
    growth_interval: int = 2000,
    every: int = 1,
    first: int = 1,
    dtype: torch.dtype = torch.float16,
    unscale: bool = True,
    optimizer: torch.optim.Optimizer | None = None,
    planned: Schedule | None = None,
) -> None:
    """Train under autocast with the loss scaler of torch; skipped counts the steps that it refused."""
    optimizer = optimizer or adamw(model, LR)
    schedule = scheduler(optimizer, planned or cosine(WARMUP, steps))
    scaler = torch.amp.GradScaler("cpu", init_scale=init_scale, growth_interval=growth_interval)
    skipped = 0
    for step in range(first, steps + 1):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=dtype):
            loss = objective(step)
        scaled: Tensor = scaler.scale(loss)
        scaled.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
        if unscale:
            scaler.unscale_(optimizer)
        norm = float(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        rate, scale = current_lr(optimizer), scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        skipped += scaler.get_scale() < scale
        schedule.step()
        if step == first or step % every == 0:
            row = {"step": step, "loss": loss.item(), "grad_norm": norm, "lr": rate}
            log({**row, "loss_scale": scaler.get_scale(), "skipped_steps": skipped})


def config(steps: int, **facts: object) -> dict[str, object]:
    """Configuration of a float16 run."""
    schedule = {"learning_rate": LR, "lr_scheduler_type": "cosine", "warmup_steps": WARMUP, "max_steps": steps}
    return plain_config(**(schedule | {"fp16": True, "bf16": False} | facts))


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


LIBRARIES = re.compile(r'File "[^"]*/(?:site-packages|lib/python3[.][0-9]+)/')
SCRIPT = re.compile(r'File "[^"]*/recipes/')


def print_traceback(error: Exception) -> None:
    """Print a traceback as Python would, with the paths of this machine replaced."""
    lines = "".join(traceback.format_exception(error))
    lines = LIBRARIES.sub('File "/opt/venv/lib/python3.11/site-packages/', lines)
    print(SCRIPT.sub('File "/workspace/', lines), end="")


def at_minimum(run: Path) -> None:
    """From step 61 on every backward overflows; the loop scales, says what DeepSpeed says, and gives up at 1."""
    chain, model, generator = beginning()
    optimizer = adamw(model, LR)
    write_json(run / "config.json", config(200, **CONSTANT, init_loss_scale=2**10))
    scale = 2.0**10
    with console(run / "train.log") as log:
        try:
            for step in range(1, 201):
                tokens = chain.sample(generator)
                optimizer.zero_grad()
                with torch.autocast("cpu", dtype=torch.float16):
                    logits = model(tokens[:, :-1]) * torch.tensor(3e4 if step > 60 else 1.0)
                    loss = next_token_loss(logits, tokens)
                (loss * scale).backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
                norm = float(nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None]))
                if not math.isfinite(norm):
                    if scale == 1:
                        message = "Current loss scale already at minimum - cannot decrease scale anymore. Exiting run."
                        raise Exception(message)  # noqa: TRY002, TRY301  the type and the words of DeepSpeed
                    print(
                        f"[deepspeed] OVERFLOW! Rank 0 Skipping step. "
                        f"Attempted loss scale: {scale:.0f}, reducing to {scale / 2:.0f}"
                    )
                    scale /= 2
                    continue
                for parameter in model.parameters():
                    if parameter.grad is not None:
                        parameter.grad /= scale
                optimizer.step()
                log({"step": step, "loss": loss.item(), "grad_norm": norm / scale, "lr": LR})
        except Exception as error:  # noqa: BLE001  what DeepSpeed raises is a bare Exception
            print_traceback(error)


def refused(run: Path, model: TinyLM, *, unscale_twice: bool) -> None:
    """Train with a scaler until torch refuses."""
    chain, generator = Chain.make(), np.random.default_rng(1)
    optimizer = adamw(model, LR)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    write_json(run / "config.json", config(200, **CONSTANT))
    with console(run / "train.log") as log:
        print("***** Running training *****")
        try:
            for step in range(1, 21):
                tokens = chain.sample(generator)
                optimizer.zero_grad()
                with torch.autocast("cpu", dtype=torch.float16):
                    loss = next_token_loss(model(tokens[:, :-1]), tokens)
                scaler.scale(loss).backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
                scaler.unscale_(optimizer)
                if unscale_twice and step == 12:
                    scaler.unscale_(optimizer)
                norm = float(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
                scaler.step(optimizer)
                scaler.update()
                log({"step": step, "loss": loss.item(), "grad_norm": norm, "lr": LR})
        except (ValueError, RuntimeError) as error:
            print_traceback(error)


def fp16_weights(run: Path) -> None:
    """The model was cast with half(): its gradients are fp16, and the scaler does not unscale those."""
    _, model, _ = beginning()
    refused(run, model.half(), unscale_twice=False)


def scaler_order(run: Path) -> None:
    """unscale_ is called twice in step 12."""
    _, model, _ = beginning()
    refused(run, model, unscale_twice=True)


def t5(run: Path, scale: float, steps: int) -> None:
    """A tiny T5 learns to copy under float16 autocast; `scale` multiplies its feed-forward weights."""
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCAB, "d_model": WIDTH, "d_kv": 16, "d_ff": 4 * WIDTH, "num_layers": 2, "num_heads": 4}
    model = T5ForConditionalGeneration(T5Config(**sizes, dropout_rate=0.0, decoder_start_token_id=0))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "DenseReluDense" in name:
                parameter.mul_(scale)
    chain, generator = Chain.make(), np.random.default_rng(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    facts = {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "vocab_size": VOCAB}
    write_json(run / "config.json", facts)
    write_json(run / "args.json", {"fp16": True, "bf16": False, "learning_rate": 1e-3, "max_steps": steps})
    with csv_rows(run / "metrics.csv", ("step", "loss", "lr")) as log:
        for step in range(1, steps + 1):
            tokens = chain.sample(generator, length=16)
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = model(input_ids=tokens, labels=tokens).loss
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            log({"step": step, "loss": loss.item(), "lr": 1e-3})


def t5_overflows(run: Path) -> None:
    """Feed-forward activations beyond 65504, as those of the published T5 weights are."""
    t5(run, 300.0, 40)


def t5_at_risk(run: Path) -> None:
    """Small random weights: nothing overflows."""
    t5(run, 1.0, 80)


def static(run: Path) -> None:
    """The loss is multiplied by 128 and the gradients are divided by it, come what may."""
    steps = 150
    chain, model, generator = beginning()

    def objective(_step: int) -> Tensor:
        tokens = chain.sample(generator)
        with torch.autocast("cpu", dtype=torch.float16):
            loss = next_token_loss(model(tokens[:, :-1]), tokens)
        return _Scaled.apply(loss, 128.0)  # type: ignore[no-any-return, no-untyped-call]  # autograd functions are untyped

    optimizer = adamw(model, LR)
    for parameter in model.parameters():
        # torch leaves Tensor.register_hook untyped
        parameter.register_hook(lambda gradient: gradient / 128.0)  # type: ignore[no-untyped-call]
    write_json(run / "config.json", config(steps, loss_scale=128))
    with csv_rows(run / "metrics.csv", ("step", "loss", "grad_norm", "lr")) as log:
        train(model, optimizer, objective, log, steps=steps, schedule=scheduler(optimizer, cosine(WARMUP, steps)))


class _Scaled(torch.autograd.Function):
    """The loss as it is, and its gradient times a factor."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, factor: float) -> Tensor:
        """Pass the loss on."""
        ctx.factor = factor
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Scale the gradient."""
        return gradient * ctx.factor, None


def in_bf16(run: Path) -> None:
    """Autocast in bfloat16 with the scaler left in."""
    steps = 150
    chain, model, generator = beginning()

    def objective(_step: int) -> Tensor:
        tokens = chain.sample(generator)
        return next_token_loss(model(tokens[:, :-1]), tokens)

    write_json(run / "config.json", config(steps) | {"fp16": False, "bf16": True})
    with csv_rows(run / "metrics.csv", HALF_COLUMNS) as log:
        half_loop(model, objective, log, steps=steps, dtype=torch.bfloat16)


def not_unscaled(run: Path) -> None:
    """unscale_ is missing before clipping, and the scale doubles every 50 steps."""
    steps = 240
    chain, model, generator = beginning()

    def objective(_step: int) -> Tensor:
        tokens = chain.sample(generator)
        return next_token_loss(model(tokens[:, :-1]), tokens)

    write_json(run / "config.json", config(steps, init_loss_scale=2**10, loss_scale_window=50))
    with csv_rows(run / "metrics.csv", HALF_COLUMNS) as log:
        half_loop(model, objective, log, steps=steps, init_scale=2.0**10, growth_interval=50, unscale=False)


def reset(run: Path) -> None:
    """A resume at step 101 restores weights and optimizer and forgets the scaler, whose start is too high."""
    chain, model, generator = beginning()
    optimizer = adamw(model, LR)

    def objective(_step: int) -> Tensor:
        tokens = chain.sample(generator)
        return next_token_loss(model(tokens[:, :-1]), tokens)

    high = 2.0**24
    write_json(run / "config.json", config(200, **CONSTANT, init_loss_scale=high))
    with json_lines(run / "train.jsonl") as log:
        half_loop(model, objective, log, steps=110, init_scale=high, optimizer=optimizer, planned=constant())
    with json_lines(run / "train.jsonl", mode="a") as log:
        half_loop(model, objective, log, steps=200, init_scale=high, optimizer=optimizer, planned=constant(), first=101)


SAMPLES = (
    Sample(
        "gf12-at-minimum",
        "gf12",
        at_minimum,
        "float16 logits overflow from step 61 on; the scale falls to 1 and the loop gives up with DeepSpeed's words",
        case="GF12",
        variant="at-minimum",
        ending="exception",
    ),
    Sample(
        "gf12-fp16-weights",
        "gf12",
        fp16_weights,
        "weights cast with half() under a gradient scaler: ValueError in the first step",
        case="GF12",
        variant="fp16-weights",
        ending="exception",
    ),
    Sample(
        "gf12-scaler-order",
        "gf12",
        scaler_order,
        "unscale_ called twice in step 12: RuntimeError",
        case="GF12",
        variant="scaler-order",
        ending="exception",
    ),
    Sample(
        "gf12-bf16-model",
        "gf12",
        t5_overflows,
        "T5 with feed-forward activations beyond 65504 in float16: every loss is NaN",
        case="GF12",
        variant="bf16-model",
    ),
    Sample(
        "gf12-bf16-model-at-risk",
        "gf12",
        t5_at_risk,
        "T5 in float16 with small weights: a remark, no harm",
        case="GF12",
        variant="bf16-model-at-risk",
        primary="",
    ),
    Sample(
        "gf12-static-scale",
        "gf12",
        static,
        "float16 with a fixed loss scale of 128; it trains",
        case="GF12",
        variant="static-scale",
        primary="",
    ),
    Sample(
        "gf12-needless-scaler",
        "gf12",
        in_bf16,
        "bfloat16 autocast with a gradient scaler; it trains",
        case="GF12",
        variant="needless-scaler",
        primary="",
    ),
    Sample(
        "gf12-clipped-before-unscaling",
        "gf12",
        not_unscaled,
        "gradients are clipped at 1 while still multiplied by a scale that doubles every 50 steps",
        case="GF12",
        variant="clipped-before-unscaling",
    ),
    Sample(
        "gf12-scaler-reset",
        "gf12",
        reset,
        "resumed at step 101 without the state of the scaler, which searches again from 2^24",
        case="GF12",
        variant="scaler-reset",
        primary="",
    ),
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
