"""What decides the last bits of a step besides the program: threads, deterministic kernels, TF32. In the child only."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch

_MOST_THREADS = 1024  # more than a machine of today computes with; a capsule from a stranger may say anything


def restore(flags: Mapping[str, Any]) -> None:
    """Set what a capsule recorded (see gradforensics.recorder.sources.flags); what it does not say stays."""
    threads = flags.get("num_threads")
    if isinstance(threads, int) and 0 < threads <= _MOST_THREADS:
        torch.set_num_threads(threads)  # sums are cut by it, also where there are fewer cores
    precision = flags.get("float32_matmul_precision")
    if precision in ("highest", "high", "medium"):
        torch.set_float32_matmul_precision(precision)
    if flags.get("deterministic") is True:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is deterministic only with it
        torch.use_deterministic_algorithms(mode=True)
    torch.backends.cudnn.benchmark = flags.get("cudnn.benchmark") is True
    torch.backends.cudnn.deterministic = flags.get("cudnn.deterministic") is True
