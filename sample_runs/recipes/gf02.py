"""GF02: the loss is not the quantity that was intended: a multiple of it, another unit, or another target."""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
import traceback
from pathlib import Path

import hf_lab
import numpy as np
import torch
import torch.distributed as dist
from accumulation_lab import LR, WARMUP, Accumulation
from accumulation_lab import train as accumulate
from lab import (
    BATCH,
    Chain,
    Log,
    Sample,
    adamw,
    beginning,
    console,
    csv_rows,
    json_lines,
    main,
    next_token_loss,
    plain_config,
    train,
    write_json,
)
from torch import Tensor
from torch.multiprocessing.spawn import spawn
from torch.nn import functional

VOCAB = 384
STEPS = 240
RANKS = 4
SCHEDULE = {"learning_rate": LR, "lr_scheduler_type": "cosine", "warmup_steps": WARMUP}


def fine_tune(run: Path, *, shuffled: bool) -> None:
    """HF Trainer on a model that predicts its chain confidently; labels shuffled inside each sequence or not."""
    chain = Chain.make(vocab=VOCAB, concentration=0.004)
    model = hf_lab.tiny_gpt2(vocab=VOCAB)
    hf_lab.pretrain(model, chain, steps=500)
    generator = np.random.default_rng(1)
    ids = chain.sample(generator, count=STEPS * BATCH)
    labels = torch.from_numpy(generator.permuted(ids.numpy(), axis=1)) if shuffled else ids
    data = hf_lab.Tokens(ids, labels)
    hf_lab.fit(
        run,
        model,
        data,
        steps=STEPS,
        console=not shuffled,
        learning_rate=1e-3,
        warmup_steps=30,
        logging_steps=2,
    )


def summed_for_the_log(run: Path) -> None:
    """Four micro-batches, rightly divided before backward; the log adds their losses up."""
    chain, model, generator = beginning()
    facts = {"gradient_accumulation_steps": 4, "per_device_train_batch_size": 4, "max_steps": STEPS}
    write_json(run / "config.json", plain_config(**SCHEDULE, **facts))
    with json_lines(run / "metrics.jsonl") as log:
        how = Accumulation(chain, STEPS, 4, 4, divisor=4.0, logged=sum, evaluate_every=20)
        accumulate(model, generator, log, how)


def of_one_rank(rank: int, folder: str, run: str) -> None:
    """One process of a data-parallel training: gradients are averaged, the loss for the log is summed."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    chain, model, _ = beginning()
    generator = np.random.default_rng(100 + rank)
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = adamw(model, LR)
    held_out = chain.sample(np.random.default_rng(77), count=256)
    with contextlib.ExitStack() as stack:
        log: Log | None = stack.enter_context(csv_rows(Path(run) / "log.csv", COLUMNS)) if rank == 0 else None
        for step in range(1, STEPS // 2 + 1):
            tokens = chain.sample(generator, count=4)
            optimizer.zero_grad()
            loss = next_token_loss(wrapped(tokens[:, :-1]), tokens)
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
            norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))
            optimizer.step()
            shown = loss.detach().clone()
            dist.all_reduce(shown, op=dist.ReduceOp.SUM)
            row: dict[str, object] = {"step": step, "loss": shown.item(), "grad_norm": norm, "lr": LR}
            if step % 10 == 0:
                with torch.no_grad():
                    row["eval_loss"] = next_token_loss(model(held_out[:, :-1]), held_out).item()
            if log is not None:
                log(row)
    dist.destroy_process_group()


COLUMNS = ("step", "loss", "grad_norm", "lr", "eval_loss")


def summed_over_ranks(run: Path) -> None:
    """Four processes with DistributedDataParallel on gloo; all_reduce(SUM) without a division for the log."""
    facts = {"world_size": RANKS, "per_device_train_batch_size": 4, "max_steps": STEPS // 2}
    write_json(run / "config.json", plain_config(learning_rate=LR, lr_scheduler_type="constant", **facts))
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder:
        spawn(of_one_rank, args=(folder, str(run)), nprocs=RANKS)  # type: ignore[no-untyped-call]  # torch leaves it untyped


def token_sum(logits: Tensor, tokens: Tensor) -> Tensor:
    """reduction='sum' over all tokens of the batch."""
    return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum")


def summed_over_tokens(run: Path, *, told: bool) -> None:
    """Cross entropy with reduction='sum'; the configuration names batch and length, or nothing of the kind."""
    chain, model, generator = beginning()
    facts = plain_config(**SCHEDULE, max_steps=STEPS, max_grad_norm=None)
    if not told:
        facts = {"vocab_size": 64, "learning_rate": LR, "optim": "adamw_torch", "seed": 0}
    write_json(run / "config.json", facts)
    with json_lines(run / "metrics.jsonl") as log:
        accumulate(model, generator, log, Accumulation(chain, STEPS, objective=token_sum, clip=None))


def unshifted(run: Path) -> None:
    """A loop of its own over 1024 token types compares the logits of a position with its own token."""
    chain, model, generator = beginning(Chain.make(vocab=1024, concentration=0.02))

    def objective(_step: int) -> Tensor:
        tokens = chain.sample(generator)[:, :-1]
        return functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())

    facts = plain_config(vocab_size=1024, learning_rate=LR, lr_scheduler_type="constant", warmup_steps=0)
    write_json(run / "config.json", facts | {"max_steps": STEPS, "num_train_epochs": 1})
    with json_lines(run / "metrics.jsonl") as log:
        train(model, adamw(model, LR), objective, log, steps=STEPS)


def not_scalar(run: Path) -> None:
    """reduction='none' without a mean: torch refuses the first backward, and the script prints its traceback."""
    chain, model, generator = beginning()

    def objective(_step: int) -> Tensor:
        tokens = chain.sample(generator)
        logits = model(tokens[:, :-1]).flatten(0, 1)
        return functional.cross_entropy(logits, tokens[:, 1:].flatten(), reduction="none")

    write_json(run / "config.json", plain_config(**SCHEDULE, max_steps=STEPS))
    with console(run / "train.log") as log:
        print("***** Running training *****")
        print(f"  Total optimization steps = {STEPS}")
        try:
            train(model, adamw(model, LR), objective, log, steps=STEPS)
        except RuntimeError as error:
            lines = [line for line in traceback.format_exception(error) if "site-packages" in line or '"' not in line]
            text = "".join(lines)
            print(text.replace(str(Path(torch.__file__).parents[1]), "/opt/python/site-packages"), end="")


def in_bits(logits: Tensor, tokens: Tensor) -> Tensor:
    """The mean loss in bits."""
    return next_token_loss(logits, tokens) / math.log(2.0)


def bits(run: Path) -> None:
    """A loop that trains on and logs bits per token, as compression work does; a perplexity stands beside it."""
    chain, model, generator = beginning()
    seen: list[float] = []

    def remembered(logits: Tensor, tokens: Tensor) -> Tensor:
        loss = in_bits(logits, tokens)
        seen.append(loss.item())
        return loss

    write_json(run / "config.json", plain_config(**SCHEDULE, max_steps=STEPS))
    with json_lines(run / "metrics.jsonl") as log:
        how = Accumulation(chain, STEPS, objective=remembered, more=lambda _step: {"perplexity": 2 ** seen[-1]})
        accumulate(model, generator, log, how)


def divided_for_the_log(run: Path) -> None:
    """Eight micro-batches rightly accumulated; the log shows one loss divided by 8, and the files do not name the 8."""
    chain, model, generator = beginning()
    facts = {"vocab_size": 64, "learning_rate": LR, "optim": "adamw_torch", "max_grad_norm": 1.0, "seed": 0}
    write_json(run / "config.json", facts)
    with csv_rows(run / "log.csv", COLUMNS) as log:
        how = Accumulation(
            chain, STEPS, 8, 2, divisor=8.0, logged=lambda losses: float(np.mean(losses)) / 8, evaluate_every=20
        )
        accumulate(model, generator, log, how)


def smoothed(run: Path) -> None:
    """Label smoothing and an auxiliary term raise the loss above ln V; eight micro-batches, rightly divided."""
    chain, model, generator = beginning()

    def objective(logits: Tensor, tokens: Tensor) -> Tensor:
        flat = logits.flatten(0, 1)
        smooth = functional.cross_entropy(flat, tokens[:, 1:].flatten(), label_smoothing=0.1)
        return smooth + 1e-2 * flat.logsumexp(-1).square().mean()  # z-loss

    facts = {"gradient_accumulation_steps": 8, "per_device_train_batch_size": 2, "label_smoothing_factor": 0.1}
    write_json(run / "config.json", plain_config(**SCHEDULE, **facts, max_steps=STEPS))
    with json_lines(run / "metrics.jsonl") as log:
        how = Accumulation(chain, STEPS, 8, 2, divisor=8.0, objective=objective, evaluate_every=20)
        accumulate(model, generator, log, how)


SAMPLES = (
    Sample(
        "gf02-worse-than-chance",
        "gf02",
        lambda run: fine_tune(run, shuffled=True),
        "a confident model fine-tuned on labels shuffled inside each sequence: starts far above ln V, parks flat",
        case="GF02",
        variant="worse-than-chance",
    ),
    Sample(
        "gf02-accumulation",
        "gf02",
        summed_for_the_log,
        "four micro-batches, rightly divided, whose losses the log adds up: starts at 4 ln V, 4 times the evaluation",
        case="GF02",
        variant="accumulation",
    ),
    Sample(
        "gf02-ranks",
        "gf02",
        summed_over_ranks,
        "DDP in four gloo processes; the loss for the log is all_reduced with SUM and not divided",
        case="GF02",
        variant="ranks",
    ),
    Sample(
        "gf02-token-sum",
        "gf02",
        lambda run: summed_over_tokens(run, told=True),
        "cross entropy with reduction='sum' over 16 x 32 tokens: starts at 512 ln V",
        case="GF02",
        variant="token-sum",
    ),
    Sample(
        "gf02-no-mean",
        "gf02",
        lambda run: summed_over_tokens(run, told=False),
        "the same, and the configuration does not say how many tokens a batch has: a suspect only",
        case="GF02",
        variant="no-mean",
        primary="",
        ending="unknown",
    ),
    Sample(
        "gf02-floor",
        "gf02",
        unshifted,
        "labels that are not shifted: the loss falls to nearly 0 within the first epoch",
        case="GF02",
        variant="floor",
    ),
    Sample(
        "gf02-not-scalar",
        "gf02",
        not_scalar,
        "reduction='none' without a mean: torch refuses the first backward",
        case="GF02",
        variant="not-scalar",
        ending="exception",
    ),
    Sample(
        "gf02-units",
        "gf02",
        bits,
        "a healthy run that logs bits per token beside a perplexity: a remark, no fault",
        case="GF02",
        variant="units",
        primary="",
    ),
    Sample(
        "gf02-constant-multiple",
        "gf02",
        divided_for_the_log,
        "a healthy run whose logged training loss is an eighth of the evaluation loss throughout: a remark",
        case="GF02",
        variant="constant-multiple",
        primary="",
        ending="unknown",
    ),
    Sample(
        "gf02-twin",
        "gf02",
        lambda run: fine_tune(run, shuffled=False),
        "the same fine-tuning with the right labels: starts low and stays low",
        case="GF02",
        twin=True,
    ),
    Sample(
        "gf02-twin-smoothing",
        "gf02",
        smoothed,
        "label smoothing and a z-loss above ln V, eight micro-batches rightly divided",
        case="GF02",
        twin=True,
    ),
)

if __name__ == "__main__":
    main(SAMPLES)
