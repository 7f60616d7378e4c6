"""What a child process may use, and what it uses: memory, its processes, its end with its parent (no torch).

Memory is what processes hold for themselves (anonymous and shared memory), without the files that they map.
"""

from __future__ import annotations

import ctypes
import os
import re
import resource
import signal
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Literal, TypeAlias

GB = 10**9
SHARE = 0.8  # of the memory that is available, where no limit is given
_PROC = Path("/proc")
_DYING = 5.0  # seconds that the kernel gets to take back the memory of a killed process
_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)
_GROUPS = (  # limit, usage and the file pages that the kernel gives back, of cgroup versions 2 and 1
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat"),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        "/sys/fs/cgroup/memory/memory.stat",
    ),
)  # fmt: skip

Fatal: TypeAlias = Literal["memory", "device", ""]

_NO_MEMORY = re.compile(
    r"can't allocate memory|not enough memory|CUDA out of memory|out of memory|std::bad_alloc|Cannot allocate memory"
)
_BROKEN_DEVICE = re.compile(r"CUDA error(?!: CUBLAS_)|device-side assert|HIP error")


def fatal(error: BaseException) -> Fatal:
    """Whether an error ends the process: out of memory, or a device that answers nothing any more ("" for neither).

    After a device-side assert every further call of CUDA fails, so that a new process is needed. The texts are those
    of PyTorch's allocators and of its checks of CUDA calls.
    """
    text = str(error)
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return "memory"
    if isinstance(error, (RuntimeError, OSError)):
        if _NO_MEMORY.search(text):
            return "memory"
        if _BROKEN_DEVICE.search(text):
            return "device"
    return ""


# -- in the child ------------------------------------------------------------------------------------------------------


def end_with(parent: int) -> None:
    """Be killed as soon as the parent is gone, and leave no core file behind."""
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:  # it was gone before
        os._exit(1)


def confine(memory: int | None) -> None:
    """Let this process have `memory` bytes of data: beyond them an allocation fails, as an error of Python or torch."""
    if memory is None:
        return
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))


# -- in the parent -----------------------------------------------------------------------------------------------------


def available_memory() -> int | None:
    """Bytes that could be had now, of the machine or of the control group; None where nothing tells."""
    found = []
    with suppress(OSError, StopIteration, ValueError, IndexError):
        lines = (_PROC / "meminfo").read_text().splitlines()
        found.append(int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1]) * 1024)
    for limit, usage, statistics in _GROUPS:
        with suppress(OSError, ValueError):
            most, used = int(Path(limit).read_text()), int(Path(usage).read_text())
            given_back = sum(
                int(line.split()[1])
                for line in Path(statistics).read_text().splitlines()
                if line.startswith("inactive_file ")
            )
            found.append(max(most - used + given_back, 0))
    return min(found, default=None)


def processes_of(leader: int) -> list[int]:
    """The processes of a session and all that descend from its leader, itself first; only it where /proc is not."""
    parents: dict[int, int] = {}
    found = {leader}
    with suppress(OSError):
        for entry in os.scandir(_PROC):
            if not entry.name.isdigit():
                continue
            with suppress(OSError, ValueError, IndexError):
                fields = (_PROC / entry.name / "stat").read_bytes().rpartition(b")")[2].split()
                parents[int(entry.name)] = int(fields[1])
                if int(fields[3]) == leader:
                    found.add(int(entry.name))
    grown = True
    while grown:
        more = {process for process, parent in parents.items() if parent in found} - found
        found |= more
        grown = bool(more)
    return [leader, *sorted(found - {leader})]


def used_memory(processes: Iterable[int], enough: int) -> int:
    """Bytes that processes use together. Pages that several share count once, but for sums up to `enough`."""
    listed = list(processes)
    used = sum(_sum_of(_PROC / str(process) / "status", ("RssAnon:", "RssShmem:")) for process in listed)
    if used <= enough or len(listed) == 1:
        return used
    return sum(_sum_of(_PROC / str(process) / "smaps_rollup", ("Pss_Anon:", "Pss_Shmem:")) for process in listed)


def _sum_of(file: Path, names: tuple[str, ...]) -> int:
    with suppress(OSError, ValueError, IndexError):
        lines = file.read_text().splitlines()
        return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(names))
    return 0


def kill(leader: int) -> None:
    """Kill a process that leads its session and everything that it started, which is gone when this returns.

    It must not have been waited for: until then its number is nobody else's.
    """
    mine = processes_of(leader)
    with suppress(OSError):
        os.killpg(leader, signal.SIGKILL)
    for process in mine:
        with suppress(OSError):
            os.kill(process, signal.SIGKILL)
    deadline = time.monotonic() + _DYING
    while any(map(_is_alive, mine)) and time.monotonic() < deadline:
        time.sleep(0.005)


def _is_alive(process: int) -> bool:
    """Whether it still runs; one that is dead and not yet waited for does not."""
    try:
        state = (_PROC / str(process) / "stat").read_bytes().rpartition(b")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state not in (b"Z", b"X")
