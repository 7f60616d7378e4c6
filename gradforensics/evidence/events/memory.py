"""Out of memory: how logs say it, and the sizes they name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gradforensics.patterns import lazy

_UNITS = {
    "bytes": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "kB": 1 << 10,
    "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
}  # fmt: skip
_SIZE = r"(\d{1,18}(?:\.\d{1,9})?) (bytes|[kKMGT]i?B|B)\b"
_OOM = lazy(
    r"(?:CUDA|HIP|NPU|XPU|MPS backend) out of memory|CUDA error: out of memory|Cuda failure (?:\d+ )?'out of memory'|"
    r"OutOfMemoryError|Memory cgroup out of memory|DefaultCPUAllocator: (?:not enough|can't allocate) memory|"
    r"Out of memory: Kill(?:ed)? process|oom[-_]kill event|OOMKilled|RESOURCE_EXHAUSTED: Out of memory|"
    r"Cannot allocate memory|^MemoryError|ArrayMemoryError|CU(?:BLAS|DNN)_STATUS_ALLOC_FAILED|"
    r"srun: error: \S+: tasks? [\d,\[\]-]+: Out Of Memory|PBS: job killed: (?:mem|vmem)|TERM_MEMLIMIT"
)
_PARTS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, lazy(pattern.replace("SIZE", _SIZE)))
    for name, pattern in (
        ("bytes", r"(?:Tried|tried|Unable) to allocate SIZE"),
        ("total", r"total capaci?ty of SIZE|; SIZE total capacity"),
        ("free", r"of which SIZE is free|; SIZE free\b"),
        ("in_use", r"this process has SIZE memory in use"),
        ("allocated", r"Of the allocated memory SIZE is allocated|; SIZE already allocated"),
        ("reserved", r"; SIZE reserved in total|; SIZE cached\b"),
        ("unallocated", r"\band SIZE is reserved by PyTorch but unallocated"),
    )
)
_GPU = lazy(r"\(GPU (\d{1,4});|\bGPU (\d{1,4}) has a total")


def out_of_memory(text: str) -> Mapping[str, Any] | None:
    """What a line tells about memory that ran out, or None where it tells nothing of that kind.

    bytes: what was asked for; gpu: its index; total, free, in_use, allocated, reserved: bytes. Since version 1.13
    PyTorch names what is reserved but not allocated instead: `reserved` is then the sum.
    """
    if not _OOM.search(text):
        return None
    data: dict[str, Any] = {}
    for name, pattern in _PARTS:
        if found := pattern.search(text):
            number, unit = (group for group in found.groups() if group is not None)
            data[name] = int(float(number) * _UNITS[unit])
    unallocated = data.pop("unallocated", None)
    if unallocated is not None:
        data["reserved"] = unallocated + data.get("allocated", 0)
    if found := _GPU.search(text):
        data["gpu"] = int(found[1] or found[2])
    return data
