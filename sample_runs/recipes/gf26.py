"""GF26: a faulty GPU or host. The trainings are real; what the kernel and the driver say are their exact wordings.

A GPU cannot be broken on demand: the messages are those of public kernel logs and of NVIDIA's documentation, set beside
the log of a training that stops with the error that CUDA reports then.
"""

from __future__ import annotations

import contextlib
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import torch
from gloo_lab import neutral
from lab import (
    Chain,
    Row,
    Sample,
    adamw,
    cosine,
    json_lines,
    language_model,
    main,
    plain_config,
    print_row,
    scheduler,
    train,
    write_json,
)
from torch import Tensor

STEPS = 100
STOP = 70
GPU = "PCI:0000:3b:00"
TRACE = (
    "Call Trace:", " __schedule+0x2d1/0x870", " schedule+0x55/0xf0", " rpc_wait_bit_killable+0x1e/0xb0 [sunrpc]",
    " nfs_wait_on_request+0x2c/0x50 [nfs]", " nfs_file_fsync+0x91/0x1d0 [nfs]", " vfs_fsync_range+0x49/0x80",
    " ksys_write+0x61/0xe0",
)  # fmt: skip
BOOT = (
    "Linux version 5.15.0-105-generic (buildd@lcy02-amd64-007)",
    "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024",
    "mlx5_core 0000:1a:00.0: Port module event: module 0, Cable plugged",
    "EDAC MC0: 1 CE memory read error on CPU_SrcID#0_Ha#0_Chan#1_DIMM#0",
    "CPU3: Core temperature above threshold, cpu clock throttled (total events = 2)",
)
NVIDIA_SMI = """\
==============NVSMI LOG==============

Timestamp                                 : {moment}
Driver Version                            : 550.54.15
CUDA Version                              : 12.4

Attached GPUs                             : 1
GPU 00000000:3B:00.0
    Product Name                          : NVIDIA A100-SXM4-80GB
    Clocks Event Reasons
        Idle                              : Not Active
        HW Slowdown                       : Active
            HW Thermal Slowdown           : Active
            HW Power Brake Slowdown       : Not Active
    Temperature
        GPU Current Temp                  : 93 C
        GPU Slowdown Temp                 : 92 C
"""

Objective = Callable[[int], Tensor]


def kernel_log(run: Path, lines: Sequence[str]) -> None:
    """Write what `journalctl -k -o short-iso` would: the boot days ago, then these lines now, a second apart."""
    now = time.time()
    told = [(now - 400_000 + i, text) for i, text in enumerate(BOOT)]
    told += [(now + 120.0 * i if "blocked" in text else now + i / 10, text) for i, text in enumerate(lines)]
    rows = [f"{datetime.fromtimestamp(at, UTC):%Y-%m-%dT%H:%M:%S}+0000 node01 kernel: {text}\n" for at, text in told]
    (run / "kernel.log").write_text("".join(rows), encoding="utf-8")


def beside(
    run: Path,
    lines: Sequence[str],
    *,
    error: str = "",
    interrupt: bool = False,
    last_words: Sequence[str] = (),
    stop: int = 0,
    heat: bool = False,
) -> None:
    """Train, and leave a kernel log with these lines.

    error: what the program is told at step STOP; interrupt: the user's Ctrl-C there; stop: the last step of a process
    that is gone without a word; last_words: what the launcher or the watchdog prints then; heat: steps get slower.
    """
    torch.set_num_threads(1)
    model, objective = language_model(Chain.make())
    optimizer = adamw(model, 3e-3)
    facts = {"learning_rate": 3e-3, "lr_scheduler_type": "cosine", "warmup_steps": 20, "max_steps": STEPS}
    write_json(run / "config.json", plain_config(**facts))
    before = time.perf_counter()

    def step_loss(step: int) -> Tensor:
        if step == STOP and error:
            raise RuntimeError(error)
        if step == STOP and interrupt:
            raise KeyboardInterrupt
        if heat:
            time.sleep(0.05 if step < STOP // 2 else 0.15)  # as at a third of the clock
        return objective(step)

    with contextlib.ExitStack() as stack:
        stream = stack.enter_context((run / "train.log").open("w", encoding="utf-8"))
        stack.enter_context(contextlib.redirect_stdout(stream))
        stack.enter_context(contextlib.redirect_stderr(stream))
        log = stack.enter_context(json_lines(run / "metrics.jsonl"))

        def both(row: Row) -> None:
            nonlocal before
            now = time.perf_counter()
            log({**row, "timestamp": round(time.time(), 3), "step_time": round(now - before, 4)})
            before = now
            print_row(row)

        try:
            schedule = scheduler(optimizer, cosine(20, STEPS))
            train(model, optimizer, step_loss, both, steps=stop or STEPS, schedule=schedule)
        except (RuntimeError, KeyboardInterrupt):
            traceback.print_exc()
        else:
            if not stop:
                print("Training completed")
        sys.stdout.write("".join(f"{text}\n" for text in last_words))
    kernel_log(run, lines)
    if heat:
        moment = f"{datetime.now(UTC):%a %b %d %H:%M:%S %Y}"
        (run / "nvidia-smi.txt").write_text(NVIDIA_SMI.format(moment=moment), encoding="utf-8")
    text = (run / "train.log").read_text(encoding="utf-8")
    (run / "train.log").write_text(neutral(text), encoding="utf-8")


def xid(number: int, message: str, process: str = "pid=4242, name=python") -> str:
    """A line of NVIDIA's driver."""
    return f"NVRM: Xid ({GPU}): {number}, {process}, {message}"


LOST = (
    xid(79, "GPU has fallen off the bus.", "pid='<unknown>', name=<unknown>"),
    "NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.",
)
MEMORY = (
    xid(48, "An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer."),
    xid(63, "Row Remapper: New row marked for remapping, reset gpu to activate."),
    xid(94, "Contained: SM (0x1). RST: No, D-RST: No"),
    xid(45, "Ch 00000008"),
)
LINK = (
    xid(74, "NVLink: fatal error detected on link 6(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)"),
    xid(45, "Ch 00000008"),
)
FIRMWARE = (
    xid(119, "Timeout after 6s of waiting for RPC response from GPU0 GSP! Expected function 76 (GSP_RM_CONTROL)."),
    xid(
        154,
        "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
        "pid='<unknown>', name=<unknown>",
    ),
)
HOST = (
    "mce: Uncorrected hardware memory error in user-access at 3f7a8c0",
    "MCE: Killing python:4242 due to hardware memory corruption fault at 7f3a5c0",
)
STORAGE = tuple(
    line for _ in range(3) for line in ("INFO: task python:4242 blocked for more than 120 seconds.", *TRACE)
)
WATCHDOG = (
    (
        "[rank0]:[E1130 08:12:01.123456789 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=1207, OpType=ALLREDUCE, NumelIn=105216, NumelOut=105216, Timeout(ms)=600000) ran for "
        "600072 milliseconds before timing out."
    ),
)
QUIET = (
    xid(63, "Row Remapper: New row marked for remapping, reset gpu to activate.", "pid='<unknown>', name=<unknown>"),
)
AFTER = (xid(43, "Ch 00000008"), xid(45, "Ch 00000009"))
LAUNCH = (
    "CUDA error: unspecified launch failure\nCUDA kernel errors might be asynchronously reported at some other API "
    "call, so the stacktrace below might be incorrect."
)
ECC = "CUDA error: uncorrectable ECC error encountered"

SAMPLES = (
    Sample(
        "gf26-gpu-lost",
        "gf26",
        partial(beside, lines=LOST, error=LAUNCH),
        "Xid 79 in the kernel log, the program stops at step 70 with a CUDA error; kernel and CUDA lines are wordings",
        case="GF26",
        variant="gpu-lost",
        ending="exception",
    ),
    Sample(
        "gf26-gpu-memory",
        "gf26",
        partial(beside, lines=MEMORY, error=ECC),
        "Xid 48, 63, 94 and 45, and the ECC error that CUDA reports at step 70; kernel and CUDA lines are wordings",
        case="GF26",
        variant="gpu-memory",
        ending="exception",
    ),
    Sample(
        "gf26-link",
        "gf26",
        partial(beside, lines=LINK, stop=STOP, last_words=WATCHDOG),
        "Xid 74, then NCCL's watchdog: the timeout is the consequence; kernel and NCCL lines are wordings",
        case="GF26",
        variant="link",
        ending="timeout",
    ),
    Sample(
        "gf26-firmware",
        "gf26",
        partial(beside, lines=FIRMWARE, error=LAUNCH),
        "Xid 119 and 154, the program stops at step 70; kernel and CUDA lines are wordings",
        case="GF26",
        variant="firmware",
        ending="exception",
    ),
    Sample(
        "gf26-host",
        "gf26",
        partial(beside, lines=HOST, stop=STOP, last_words=("Bus error (core dumped)",)),
        "an uncorrected error of the host's memory kills the program at step 70; kernel and shell lines are wordings",
        case="GF26",
        variant="host",
        ending="killed",
    ),
    Sample(
        "gf26-storage",
        "gf26",
        partial(beside, lines=STORAGE, stop=STOP),
        "the log stops at step 70, the kernel reports three times that python is blocked; its lines are wordings",
        case="GF26",
        variant="storage",
        ending="truncated",
    ),
    Sample(
        "gf26-throttled",
        "gf26",
        partial(beside, lines=(), heat=True),
        "steps take three times as long from step 35 on, nvidia-smi names HW Thermal Slowdown; its lines are wordings",
        case="GF26",
        variant="throttled",
    ),
    Sample(
        "gf26-outlived",
        "gf26",
        partial(beside, lines=FIRMWARE[:1]),
        "one Xid 119 while the run goes on and completes: a note; the kernel line is a wording",
        case="GF26",
        variant="outlived",
        primary="",
    ),
    Sample(
        "gf26-twin",
        "gf26",
        partial(beside, lines=QUIET),
        "Xid 63: a row was remapped; corrected errors and a warm CPU at boot; the run completes",
        case="GF26",
        twin=True,
    ),
    Sample(
        "gf26-twin-interrupted",
        "gf26",
        partial(beside, lines=AFTER, interrupt=True),
        "Ctrl-C at step 70; the driver cleans up with Xid 43 and 45: a consequence",
        case="GF26",
        twin=True,
        ending="killed",
    ),
)

if __name__ == "__main__":
    main(SAMPLES)
