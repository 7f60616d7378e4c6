"""GF27: memory that grows from step to step or at evaluations, and launches whose memory ran out.

The memory of a training on the CPU is what the C allocator has given out (mallinfo2), or its resident set.
Messages of CUDA are in the wording of PyTorch 2.6, below the log of a training that really ran.
"""

from __future__ import annotations

import ctypes
import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import hf_lab
import numpy as np
import torch
from lab import (
    BATCH,
    Chain,
    Log,
    Sample,
    adamw,
    beginning,
    console,
    constant,
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
from torch.utils.tensorboard import SummaryWriter
from transformers import Trainer

LR = 3e-3
CONFIG = {"learning_rate": LR, "lr_scheduler_type": "constant_with_warmup", "warmup_steps": 20}
PAGE = 4096


class _Mallinfo(ctypes.Structure):
    """What glibc's mallinfo2 returns: ten numbers of bytes."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "top",
        )
    )


def allocated() -> int:
    """Bytes that the C allocator has given out and not got back."""
    call = ctypes.CDLL(None).mallinfo2
    call.restype = _Mallinfo
    info = call()
    return int(info.uordblks + info.hblkhd)


def resident() -> float:
    """Resident set of this process, MiB."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * PAGE / 2**20


def leak(run: Path) -> None:
    """Backward with retain_graph=True, and every loss kept in a list with its graph."""
    chain, model, generator = beginning()
    kept: list[Tensor] = []
    optimizer = adamw(model, LR)
    schedule = scheduler(optimizer, constant(20))
    write_json(run / "config.json", plain_config(**(CONFIG | {"max_steps": 160})))
    with json_lines(run / "metrics.jsonl") as log:
        for step in range(1, 161):
            tokens = chain.sample(generator, count=4)
            optimizer.zero_grad()
            loss = next_token_loss(model(tokens[:, :-1]), tokens)
            loss.backward(retain_graph=True)  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
            kept.append(loss)
            norm, rate = float(nn.utils.clip_grad_norm_(model.parameters(), 1.0)), current_lr(optimizer)
            optimizer.step()
            schedule.step()
            log({"step": step, "loss": loss.item(), "grad_norm": norm, "lr": rate, "memory_allocated": allocated()})
    del kept
    gc.collect()


def evaluated(run: Path, *, no_grad: bool) -> None:
    """TensorBoard: an evaluation every 25 steps, whose logits are kept; without no_grad they hold their graph."""
    chain, model, generator = beginning()
    held_out = chain.sample(np.random.default_rng(2), count=64)
    kept: list[Tensor] = []
    total = torch.zeros(())
    optimizer = adamw(model, LR)
    schedule = scheduler(optimizer, constant(20))
    write_json(run / "config.json", plain_config(**(CONFIG | {"max_steps": 250})))
    with SummaryWriter(str(run), filename_suffix=".train") as writer:
        for step in range(1, 251):
            rate = current_lr(optimizer)
            tokens = chain.sample(generator)
            optimizer.zero_grad()
            loss = next_token_loss(model(tokens[:, :-1]), tokens)
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
            total = total + loss.detach()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            if step % 25 == 0:
                with torch.set_grad_enabled(not no_grad):
                    logits = model(held_out[:, :-1])
                    if not no_grad:
                        kept.append(logits)
                    writer.add_scalar("eval/loss", next_token_loss(logits, held_out).item(), step)
                    del logits
            row = {"loss": loss.item(), "grad_norm": float(norm), "lr": rate}
            for name, value in (row | {"memory_allocated": allocated()}).items():
                writer.add_scalar(f"train/{name}", value, step)
    del kept
    gc.collect()
    for path in run.glob("events.*"):  # the name of an event file holds the host's
        path.rename(run / "events.out.tfevents.1700000000.node.1.0.train")


class Keeping(Trainer):
    """A Trainer that keeps the hidden states of every batch with their graph, and logs the resident set."""

    kept: list[Tensor]

    def training_step(self, model: nn.Module, inputs: dict[str, Tensor], *args: object, **more: object) -> Tensor:
        """Train, and keep a second output of the model in a list."""
        self.kept.append(model(**{k: v[:8] for k, v in inputs.items()}).loss)
        loss: Tensor = super().training_step(model, inputs, *args, **more)
        return loss

    def log(self, logs: dict[str, float], *args: object, **more: object) -> None:
        """Log the memory beside the loss."""
        super().log(logs | ({"rss_mb": resident()} if "loss" in logs else {}), *args, **more)


def host_growth(run: Path) -> None:
    """HF Trainer on the CPU: 200 steps over four epochs, an output of each step kept with its graph."""
    Keeping.kept = []
    chain = Chain.make()
    data = hf_lab.Tokens(chain.sample(np.random.default_rng(1), count=50 * BATCH))
    hf_lab.fit(
        run,
        hf_lab.tiny_gpt2(),
        data,
        steps=200,
        trainer_class=Keeping,
        logging_steps=2,
        learning_rate=1e-3,
        lr_scheduler_type="constant_with_warmup",
    )
    Keeping.kept = []
    gc.collect()


class Pool:
    """A pool of buffers by their exact size, as a caching allocator without splitting has it: it only ever grows."""

    def __init__(self) -> None:
        self.free: dict[int, list[bytearray]] = {}
        self.reserved = 0
        self.used = 0

    @contextmanager
    def buffer(self, size: int) -> Iterator[bytearray]:
        """Lend a buffer of this size, from those that were given back or a new one."""
        held = self.free.setdefault(size, [])
        if not held:
            held.append(bytearray(size))
            self.reserved += size
        lent = held.pop()
        self.used += size
        yield lent
        held.append(lent)


def reserved_growth(run: Path) -> None:
    """Batches of ever other lengths through a pool that reuses a buffer for one size only."""
    chain, model, generator = beginning()
    pool = Pool()
    base = sum(p.nbytes for p in model.parameters()) * 4
    lengths = np.random.default_rng(5).permutation(200) + 400

    def objective(step: int) -> Tensor:
        with pool.buffer(int(lengths[step - 1]) * 256):
            tokens = chain.sample(generator)
            return next_token_loss(model(tokens[:, :-1]), tokens)

    optimizer = adamw(model, LR)
    write_json(run / "config.json", plain_config(**(CONFIG | {"max_steps": 200})))
    with json_lines(run / "metrics.jsonl") as log:

        def with_memory(row: dict[str, object]) -> None:
            in_use = base + int(lengths[int(str(row["step"])) - 1]) * 256
            log({**row, "memory_allocated": in_use, "memory_reserved": base + pool.reserved})

        # the log takes any mapping; ours is built from one
        train(model, optimizer, objective, with_memory, steps=200, schedule=scheduler(optimizer, constant(20)))  # type: ignore[arg-type]


FULL = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {asked}. GPU 0 has a total capacity of 79.15 GiB of "
    "which {free} is free. Including non-PyTorch memory, this process has {used} memory in use. Of the allocated "
    "memory {allocated} is allocated by PyTorch, and {idle} is reserved by PyTorch but unallocated. If reserved but "
    "unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  "
    "See documentation for Memory Management  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
)


def message(asked: str, *, allocated: str = "77.21 GiB", idle: str = "612.40 MiB", free: str = "41.19 MiB") -> str:
    """PyTorch's message for a request on a device of 79.15 GiB."""
    return FULL.format(asked=asked, free=free, used="79.10 GiB", allocated=allocated, idle=idle)


def traceback(*frames: str) -> str:
    """A traceback with these frames, each as "file:line function code"."""
    lines = ["Traceback (most recent call last):"]
    for frame in frames:
        place, function, code = frame.split(" ", 2)
        file, line = place.split(":")
        lines += [f'  File "/srv/job/{file}", line {line}, in {function}', f"    {code}"]
    return "\n".join(lines)


STEP = ("train.py:142 <module> main()", "train.py:118 main loss = step(model, batch)")
FORWARD = traceback(*STEP, "model.py:71 forward mixed = functional.scaled_dot_product_attention(query, key, value)")
BACKWARD = traceback(*STEP, "train.py:63 step loss.backward()")
EVALUATION = traceback(
    "train.py:142 <module> main()",
    "train.py:124 main held_out = evaluate(model, validation)",
    "train.py:88 evaluate logits.append(model(tokens[:, :-1]))",
)


def console_run(
    run: Path, steps: int, last: str, *, first: str = "", middle: tuple[int, str] = (0, ""), **facts: object
) -> None:
    """A training whose console is kept; `first` is printed before it, `last` after it, `middle` after one step."""
    chain, model, generator = beginning()
    write_json(run / "config.json", plain_config(**(CONFIG | {"max_steps": 300} | facts)))

    def objective(_step: int) -> Tensor:
        tokens = chain.sample(generator)
        return next_token_loss(model(tokens[:, :-1]), tokens)

    optimizer = adamw(model, LR)
    with console(run / "train.log") as log:
        if first:
            print(first)
        told = _interrupted(log, *middle)
        train(model, optimizer, objective, told, steps=steps, schedule=scheduler(optimizer, constant(20)))
        print(last)


def _interrupted(log: Log, at: int, text: str) -> Log:
    def tell(row: dict[str, object]) -> None:
        log(row)
        if row["step"] == at:
            print(text)

    return tell  # type: ignore[return-value]  # a mapping is all that it reads


def grown(*, count: int) -> str:
    """The banner of a Trainer with so many trained parameters."""
    return f"***** Running training *****\n  Num examples = 52,000\n  Number of trainable parameters = {count:,}"


OUT_OF_MEMORY: tuple[tuple[str, str, Callable[[Path], None], str], ...] = (
    (
        "fragmentation",
        "17.2 GiB reserved and unused when 2 GiB could not be had",
        lambda run: console_run(
            run, 120, f"{FORWARD}\n{message('2.00 GiB', allocated='60.01 GiB', idle='17.20 GiB', free='1.39 GiB')}"
        ),
        "oom",
    ),
    (
        "capacity",
        "the first backward pass does not fit; no loss was logged",
        lambda run: console_run(run, 0, f"{BACKWARD}\n{message('1.96 GiB')}", gradient_checkpointing=False),
        "oom",
    ),
    (
        "states",
        "seven billion trained parameters with AdamW on one device of 79 GiB",
        lambda run: console_run(
            run,
            0,
            f"{traceback(*STEP, 'train.py:66 step optimizer.step()')}\n{message('224.00 MiB')}",
            first=grown(count=7_241_732_096),
        ),
        "oom",
    ),
    (
        "eval-oom",
        "the logits of the whole evaluation set do not fit",
        lambda run: console_run(run, 100, f"{EVALUATION}\n{message('3.91 GiB')}", eval_steps=100),
        "oom",
    ),
    (
        "late-oom",
        "a batch that is longer than any before does not fit",
        lambda run: console_run(run, 173, f"{FORWARD}\n{message('5.25 GiB', idle='1.02 GiB')}"),
        "oom",
    ),
    (
        "host-oom",
        "the memory limit of the job was reached",
        lambda run: console_run(
            run,
            140,
            "slurmstepd: error: Detected 1 oom_kill event in StepId=4242.0. "
            "Some of the step tasks have been OOM Killed.",
        ),
        "oom",
    ),
    (
        "survived",
        "one batch did not fit and was skipped",
        lambda run: console_run(
            run,
            300,
            "training finished",
            middle=(90, f"WARNING: ran out of memory with exception: {message('5.25 GiB')}\nskipping batch"),
        ),
        "completed",
    ),
)

SAMPLES = (
    Sample(
        "gf27-leak",
        "gf27",
        leak,
        "retain_graph=True and every loss kept: what the allocator has given out rises in a straight line",
        case="GF27",
        variant="leak",
    ),
    Sample(
        "gf27-eval-growth",
        "gf27",
        lambda run: evaluated(run, no_grad=False),
        "evaluation without no_grad, its logits kept: memory rises at each of ten evaluations",
        case="GF27",
        variant="eval-growth",
    ),
    Sample(
        "gf27-host-growth",
        "gf27",
        host_growth,
        "HF Trainer on the CPU over four epochs, an output kept with its graph at every step: the resident set rises",
        case="GF27",
        variant="host-growth",
    ),
    Sample(
        "gf27-reserved-growth",
        "gf27",
        reserved_growth,
        "batches of ever other sizes through a pool that reuses a buffer for one size only (a small model of a caching "
        "allocator, in Python): reserved grows, allocated does not",
        case="GF27",
        variant="reserved-growth",
        primary="",
    ),
    *(
        Sample(
            f"gf27-{variant}",
            "gf27",
            make,
            f"{note} (the message in PyTorch's or Slurm's wording, below a training that really ran)",
            case="GF27",
            variant=variant,
            primary="" if variant == "survived" else None,
            ending=ending,
        )
        for variant, note, make, ending in OUT_OF_MEMORY
    ),
    Sample(
        "gf27-twin",
        "gf27",
        lambda run: evaluated(run, no_grad=True),
        "total = total + loss.detach(), evaluation under no_grad: memory stays where it is",
        case="GF27",
        twin=True,
    ),
)

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(SAMPLES)
