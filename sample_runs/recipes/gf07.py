"""GF07: the learning rate applied is not the one intended."""

from __future__ import annotations

import time
import warnings
from pathlib import Path

import hf_lab
import lightning_lab
import ranks
import torch
from lab import (
    LENGTH,
    VOCAB,
    WIDTH,
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
from ranks import spawn
from torch import Tensor, nn

STEPS = 300
WARMUP = 20
PEAK = 3e-3
INTENDED = {"learning_rate": PEAK, "lr_scheduler_type": "cosine", "warmup_steps": WARMUP, "max_steps": STEPS}


def per_micro_batch(run: Path) -> None:
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


def stepped_twice(run: Path) -> None:
    """scheduler.step() in the loop and once more in the function that logs."""
    model, objective = language_model(Chain.make())
    optimizer = adamw(model, PEAK)
    schedule = scheduler(optimizer, cosine(WARMUP, STEPS))
    write_json(run / "config.json", plain_config(**INTENDED))
    with csv_rows(run / "log.csv", ("step", "loss", "grad_norm", "lr")) as log:

        def and_step(row: Row) -> None:
            log(row)
            schedule.step()

        train(model, optimizer, objective, and_step, steps=STEPS, schedule=schedule)


def per_process(run: Path) -> None:
    """Two gloo processes under accelerate, which steps a prepared scheduler once for each of them."""
    spawn(ranks.accelerated, run, INTENDED)


def for_micro_batches(run: Path) -> None:
    """The schedule is built for four micro-batches per step, and stepped once per step."""
    model, objective = language_model(Chain.make())
    optimizer = adamw(model, PEAK)
    schedule = scheduler(optimizer, cosine(4 * WARMUP, 4 * STEPS))
    write_json(run / "config.json", plain_config(**INTENDED | {"gradient_accumulation_steps": 4}))
    with json_lines(run / "metrics.jsonl") as log:
        train(model, optimizer, objective, log, steps=STEPS, schedule=schedule)


def skipped_warmup(run: Path) -> None:
    """The configuration asks for a warm-up that the schedule is never told of."""
    model, objective = language_model(Chain.make())
    optimizer = adamw(model, PEAK)
    schedule = scheduler(optimizer, linear(0, STEPS))
    write_json(run / "config.json", plain_config(**INTENDED | {"lr_scheduler_type": "linear"}))
    with console(run / "train.log") as log:
        train(model, optimizer, objective, log, steps=STEPS, schedule=schedule)
        print("Training completed")


def endless_warmup(run: Path) -> None:
    """HF Trainer: a warm-up of 1000 steps in a run of 200."""
    steps = 200
    data = hf_lab.fresh(Chain.make(), steps)
    hf_lab.fit(run, hf_lab.tiny_gpt2(), data, steps=steps, warmup_steps=1000, lr_scheduler_type="linear")


def post_norm(run: Path, lr: float) -> None:
    """Six blocks that normalise after the residual sum, AdamW at its full rate from the first step."""
    steps = 200
    chain, _, generator = beginning()
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=False)
    model = PostNorm(nn.TransformerEncoder(layer, 6, enable_nested_tensor=False))
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, 0.0, 0.02 / (12**0.5 if name.endswith(("out_proj.weight", "2.weight")) else 1))
    optimizer = adamw(model, lr)

    def objective(_step: int) -> Tensor:
        tokens = chain.sample(generator)
        return next_token_loss(model(tokens[:, :-1]), tokens)

    facts = {"learning_rate": lr, "lr_scheduler_type": "cosine", "max_steps": steps, "norm_first": False}
    known = {"num_layers": 6, "warmup_steps": 0, "unigram_entropy": round(chain.unigram_entropy, 6)}
    write_json(run / "config.json", plain_config(**facts, **known))
    with json_lines(run / "metrics.jsonl") as log:
        train(model, optimizer, objective, log, steps=steps, schedule=scheduler(optimizer, cosine(0, steps)))


class PostNorm(nn.Module):
    """An embedding, Post-LN blocks with causal attention, a head."""

    def __init__(self, blocks: nn.TransformerEncoder) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, WIDTH)
        self.position = nn.Embedding(2 * LENGTH, WIDTH)
        self.blocks = blocks
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Give the logits of every next token."""
        hidden = self.embedding(tokens) + self.position.weight[: tokens.shape[1]]
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        logits: Tensor = self.head(self.blocks(hidden, mask=mask, is_causal=True))
        return logits


def wrong_order(run: Path) -> None:
    """scheduler.step() before optimizer.step(); torch warns once, and the log keeps what it prints."""
    model, objective = language_model(Chain.make())
    optimizer = adamw(model, PEAK)
    schedule = scheduler(optimizer, linear(WARMUP, STEPS))
    facts = INTENDED | {"lr_scheduler_type": "linear"}
    write_json(run / "config.json", plain_config(**facts, fp16=False, bf16=False))
    with console(run / "train.log") as log, warnings.catch_warnings():
        warnings.simplefilter("always")
        # as the interpreter prints it, without the path of this machine
        warnings.showwarning = lambda message, category, *_: print(f"train.py:41: {category.__name__}: {message}")
        for step in range(1, STEPS + 1):
            optimizer.zero_grad()
            loss = objective(step)
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
            norm = float(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
            schedule.step()
            optimizer.step()
            log({"step": step, "loss": loss.item(), "grad_norm": norm, "lr": current_lr(optimizer)})
        print("Training completed")


def per_epoch(run: Path) -> None:
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


def declared_stable(run: Path) -> None:
    """HF Trainer with warm-up, a stable phase and a decay, as its arguments declare."""
    data = hf_lab.fresh(Chain.make(), STEPS)
    decay = {"num_decay_steps": 60, "decay_type": "linear"}
    kind = "warmup_stable_decay"
    hf_lab.fit(run, hf_lab.tiny_gpt2(), data, steps=STEPS, lr_scheduler_type=kind, lr_scheduler_kwargs=decay)


def declared_restarts(run: Path) -> None:
    """HF Trainer with a cosine that restarts three times, as its arguments declare."""
    data = hf_lab.fresh(Chain.make(), STEPS)
    kind = "cosine_with_restarts"
    cycles = {"num_cycles": 3}
    hf_lab.fit(run, hf_lab.tiny_gpt2(), data, steps=STEPS, lr_scheduler_type=kind, lr_scheduler_kwargs=cycles)


def declared_constant(run: Path) -> None:
    """HF Trainer with the constant schedule that its arguments declare."""
    data = hf_lab.fresh(Chain.make(), STEPS)
    hf_lab.fit(run, hf_lab.tiny_gpt2(), data, steps=STEPS, lr_scheduler_type="constant_with_warmup")


SAMPLES = (
    Sample(
        "gf07-per-micro-batch",
        "gf07",
        per_micro_batch,
        "cosine schedule stepped once per micro-batch with 4 micro-batches per step: the rate is 0 after a quarter",
        case="GF07",
        variant="per-micro-batch",
    ),
    Sample(
        "gf07-per-process",
        "gf07",
        per_process,
        "accelerate with two processes steps the prepared cosine twice per optimizer step",
        case="GF07",
        variant="per-process",
    ),
    Sample(
        "gf07-too-fast",
        "gf07",
        stepped_twice,
        "scheduler.step() is called in the loop and in the function that logs: twice per step",
        case="GF07",
        variant="too-fast",
    ),
    Sample(
        "gf07-too-slow",
        "gf07",
        for_micro_batches,
        "a cosine built for four micro-batches per step is stepped once per step: it ends at 0.85 of its peak",
        case="GF07",
        variant="too-slow",
    ),
    Sample(
        "gf07-warm-up-skipped",
        "gf07",
        skipped_warmup,
        "20 warm-up steps are configured, the schedule that is built has none",
        case="GF07",
        variant="warm-up-skipped",
    ),
    Sample(
        "gf07-endless-warm-up",
        "gf07",
        endless_warmup,
        "HF Trainer with warmup_steps=1000 and 200 steps: the rate reaches a fifth of what is configured",
        case="GF07",
        variant="endless-warm-up",
    ),
    Sample(
        "gf07-no-warm-up",
        "gf07",
        lambda run: post_norm(run, 3e-2),
        "six Post-LN blocks with AdamW at 0.03 from the first step: above ln V, then flat",
        case="GF07",
        variant="no-warm-up",
    ),
    Sample(
        "gf07-order",
        "gf07",
        wrong_order,
        "scheduler.step() before optimizer.step() in full precision: torch warns, one value is skipped",
        case="GF07",
        variant="order",
        primary="",
    ),
    Sample(
        "gf07-per-epoch",
        "gf07",
        per_epoch,
        "Lightning steps a cosine built for 300 steps once per epoch of 20 steps: the rate hardly decays",
        case="GF07",
        variant="per-epoch",
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
        "gf07-twin-post-norm",
        "gf07",
        lambda run: post_norm(run, 1e-2),
        "six Post-LN blocks with AdamW at 0.01 from the first step: no warm-up, and it learns",
        case="GF07",
        twin=True,
    ),
    Sample(
        "gf07-twin-stable",
        "gf07",
        declared_stable,
        "warm-up, stable phase and decay, as the configuration declares",
        case="GF07",
        twin=True,
    ),
    Sample(
        "gf07-twin-cycles",
        "gf07",
        declared_restarts,
        "a cosine that restarts three times, as the configuration declares",
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
