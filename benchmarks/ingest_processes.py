"""Child processes whose time and memory are measured, for the ingest benchmarks."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# an installed package has its bytecode cached; a checkout too, unless this variable forbids it
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}


@dataclass(frozen=True, slots=True)
class Measured:
    """One process. seconds: wall time; cpu: user and system time; peak_mb: most memory held; said: its output."""

    seconds: float
    cpu: float
    peak_mb: float
    code: int
    said: str


def measured(command: Sequence[str], folder: str) -> Measured:
    """Run one process in `folder` and measure it; what it writes to stderr is dropped."""
    start = time.perf_counter()
    process = subprocess.Popen(
        command, cwd=folder, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    said = process.stdout.read().strip()
    _, status, used = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    peak = used.ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6
    return Measured(seconds, used.ru_utime + used.ru_stime, peak, process.returncode, said)


def alternating(commands: Mapping[str, Sequence[str]], folder: str, runs: int) -> dict[str, Measured]:
    """The fastest of `runs` runs of every command, which take turns: a machine that slows down slows all of them."""
    best: dict[str, Measured] = {}
    for _ in range(runs):
        for name, command in commands.items():
            one = measured(command, folder)
            if name not in best or one.seconds < best[name].seconds:
                best[name] = one
    return best
