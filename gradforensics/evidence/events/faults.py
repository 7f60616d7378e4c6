"""Faults that PyTorch, CUDA and NCCL name by their messages, in PyTorch 1.8 to 2.13 and NCCL 2.8 to 2.27."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gradforensics.patterns import lazy

Found = tuple[str, Mapping[str, Any]]

# kind, data["error"], a literal that stands in no other message
_LITERALS: tuple[tuple[str, str, str], ...] = (
    ("autograd_error", "inplace", "has been modified by an inplace operation"),
    ("autograd_error", "inplace_leaf", "a leaf Variable that requires grad"),
    ("autograd_error", "inplace_view", "is a view and is being modified inplace"),
    ("autograd_error", "second_backward", "Trying to backward through the graph a second time"),
    ("autograd_error", "second_backward", "Trying to access the saved tensors after they have already been freed"),
    ("autograd_error", "no_grad", "does not require grad and does not have a grad_fn"),
    ("autograd_error", "unused", "appears to not have been used in the graph"),
    ("autograd_error", "not_scalar", "grad can be implicitly created only for scalar outputs"),
    ("autograd_error", "unfinished_reduction", "Expected to have finished reduction in the prior iteration"),
    ("autograd_error", "ready_twice", "Expected to mark a variable ready only once"),
    ("autograd_error", "recomputation", "A different number of tensors was saved during the original forward"),
    ("autograd_error", "recomputation", "Recomputed values for the following tensors have different metadata"),
    ("gradscaler", "unscaled_twice", "unscale_() has already been called on this optimizer"),
    ("gradscaler", "unscaled_after_step", "unscale_() is being called after step()"),
    ("gradscaler", "stepped_twice", "step() has already been called since the last update()"),
    ("gradscaler", "no_inf_checks", "No inf checks were recorded"),
    ("gradscaler", "fp16_gradients", "Attempting to unscale FP16 gradients"),
    ("loss_scale", "minimum", "Minimum loss scale reached"),
    ("loss_scale", "minimum", "Current loss scale already at minimum"),
    ("ecc", "uncorrectable", "uncorrectable ECC error encountered"),
    ("cuda_error", "illegal_memory_access", "an illegal memory access was encountered"),
    ("cuda_error", "illegal_instruction", "an illegal instruction was encountered"),
    ("cuda_error", "launch_failure", "unspecified launch failure"),
    ("cuda_error", "launch_timeout", "the launch timed out and was terminated"),
    ("cuda_error", "misaligned_address", "CUDA error: misaligned address"),
    ("cuda_error", "no_kernel_image", "no kernel image is available for execution"),
    ("cuda_error", "driver_too_old", "CUDA driver version is insufficient for CUDA runtime version"),
    ("cuda_error", "driver_too_old", "The NVIDIA driver on your system is too old"),
    ("cuda_error", "no_driver", "Found no NVIDIA driver on your system"),
    ("cuda_error", "no_cuda_build", "Torch not compiled with CUDA enabled"),
    ("cuda_error", "unsupported_ptx", "the provided PTX was compiled with an unsupported toolchain"),
    ("cuda_error", "cudnn_versions", "cuDNN version incompatibility"),
    ("cuda_error", "cuda_mismatch", "mismatches the version that was used to compile"),
    ("cuda_error", "cuda_mismatch", "does not match the version torch was compiled with"),
    ("cuda_error", "cuda_mismatch", "were compiled with different CUDA major versions"),
    ("library_error", "operator_missing", "operator torchvision::nms does not exist"),
    ("library_error", "binary_incompatible", "may indicate binary incompatibility"),
    ("library_error", "missing_library", "DLL load failed while importing"),
    ("cuda_error", "driver_mismatch", "system has unsupported display driver / cuda driver combination"),
    ("cuda_error", "not_ready", "system not yet initialized"),
    ("cuda_error", "no_device", "no CUDA-capable device is detected"),
    ("cuda_error", "busy", "CUDA-capable device(s) is/are busy or unavailable"),
    ("cuda_error", "lost", "CUDA error: the GPU is lost"),
    ("disk_full", "no_space", "No space left on device"),
    ("disk_full", "quota", "Disk quota exceeded"),
)
# what the dynamic linker says of a library that does not fit the others (ld.so of glibc 2.17 to 2.41)
_LINKER = lazy(
    r"(?P<library>[^\s:'\"]{1,300}): (?:undefined symbol: (?P<symbol>\w{1,200})|"
    r"version `(?P<version>(?:GLIBC|GLIBCXX|CXXABI|GOMP)_[\d.]{1,12})' not found)|"
    r"(?P<missing>lib(?:cud|cub|cuf|cur|cus|nccl|nv|torch|c10)[\w+-]{0,40}\.so[\d.]{0,20}): "
    r"cannot open shared object file"
)
_LIBRARY = lazy(r"\b(CUDNN|CUBLAS|CUSOLVER|CUSPARSE|CUFFT)_STATUS_([A-Z_]{3,40})")
_ANOMALY = lazy(r"Function '(\w{1,80})' returned nan values in its (\d{1,4})th output")
_ASSERTION = lazy(
    r"(?:(?P<kernel>\w{3,80}): )?block: \[[\d,]{5,40}\], thread: \[[\d,]{5,20}\] "
    r"Assertion `(?P<what>[^`']{1,200})[`'] failed"
)
_BOUNDS = lazy(r"\b(?:Target (?P<target>-?\d{1,18}) is out of bounds|index out of range in self)")

_COLLECTIVE = lazy(
    r"OpType=(?P<collective>\w{1,40})|SeqNum=(?P<sequence>\d{1,18})|NumelIn=(?P<numel_in>\d{1,18})|"
    r"NumelOut=(?P<numel_out>\d{1,18})|Timeout\(ms\)=(?P<timeout_ms>\d{1,15})|"
    r"ran for (?P<ran_ms>\d{1,15}) milliseconds|"
    r"PG GUID (?P<group>[\w()]{1,60})|\[PG (?P<number>\d{1,9}) Rank"
)
_TIMEOUT = lazy(
    r"DUE TO TIME LIMIT|TIME_LIMIT reached|PBS: job killed: walltime|TERM_RUNLIMIT|"
    r"Watchdog caught collective operation timeout|ran for \d+ milliseconds before timing out|"
    r"Timed out waiting \d+ms for (?:recv|send) operation|failed to pass monitoredBarrier in \d+ ms|"
    r"watchdog got stuck for \d+|Heartbeat monitor timed out|"
    r"[Rr]eceived a (?:dump signal due to a collective timeout|timeout signal)"
)
_MISSING = lazy(r"[Rr]anks? (\d{1,6}(?:, ?\d{1,6})*) failed to pass monitoredBarrier")
_SIGNALLED = lazy(r"timeout from\s+(?:rank )?(\d{1,6})\b")

_NCCL = lazy(
    r"NCCL WARN|\bnccl[A-Z]\w{3,30}Error\b|ncclInvalid(?:Usage|Argument)|NCCL [Ee]rror|unhandled (?:cuda|system) error|"
    r"Dist(?:Backend|Network|Store)Error|\[c10d\]|TCPStore|[Gg]loo/|\bGloo \w|client socket has|"
    r"server socket has failed|"
    r"no socket interface found|Some NCCL operations have failed|detected by watchdog at work|communicator was aborted|"
    r"Rendezvous(?:Connection|Timeout|Closed)Error"
)
_NCCL_ERRORS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, lazy(pattern))
    for name, pattern in (
        ("no_interface", r"no socket interface found"),
        ("connection_refused", r"(?i)connection refused|ECONNREFUSED"),
        ("connection_reset", r"(?i)connection reset by peer|ECONNRESET"),
        ("connection_closed", r"(?i)connection closed by (?:remote )?peer|broken pipe"),
        ("no_route", r"(?i)no route to host|network is unreachable"),
        ("address_in_use", r"(?i)address already in use|EADDRINUSE"),
        ("connect_timeout", r"client socket has timed out|Connection timed out|wait timeout after"),
        ("completion_error", r"Got completion (?:from peer .{0,120})?with error|Got completion with status"),
        ("duplicate_gpu", r"Duplicate GPU detected"),
        ("remote", r"ncclRemoteError|remote process exited"),
        ("cuda", r"ncclUnhandledCudaError|unhandled cuda error|Cuda failure"),
        ("system", r"ncclSystemError|unhandled system error"),
        ("internal", r"ncclInternalError|internal error"),
        ("usage", r"ncclInvalid(?:Usage|Argument)|invalid (?:usage|argument)"),
        ("watchdog", r"detected by watchdog at work"),
        ("aborted", r"Some NCCL operations have failed|communicator was aborted"),
        ("rendezvous", r"Rendezvous(?:Connection|Timeout|Closed)Error"),
        ("backend", r"DistBackendError|NCCL [Ee]rror"),
    )
)
_WORK = lazy(
    r"watchdog at work: (?P<sequence>\d{1,18})|last enqueued NCCL work: (?P<enqueued>-?\d{1,18})|"
    r"last completed NCCL work: (?P<completed>-?\d{1,18})|PG GUID (?P<group>[\w()]{1,60})|\[PG (?P<number>\d{1,9}) Rank"
)
_LEVEL = lazy(r"^\[?([IWEF])\d{0,4} ")


def fault(text: str) -> Found | None:
    """(kind, data) of a message of PyTorch, CUDA or NCCL; `data["error"]` names which."""
    if "Assertion" in text and (found := _ASSERTION.search(text)):
        return "device_assert", {"assertion": found["what"], **({"kernel": found["kernel"]} if found["kernel"] else {})}
    if "device-side assert triggered" in text:
        return "device_assert", {}
    if "out of" in text and (found := _BOUNDS.search(text)):
        return "index_error", {"index": int(found["target"])} if found["target"] else {}
    if "returned nan" in text and (found := _ANOMALY.search(text)):
        return "autograd_error", {"error": "anomaly", "function": found[1], "output": int(found[2])}
    for kind, error, literal in _LITERALS:
        if literal in text:
            return kind, {"error": error}
    if (found := _LINKER.search(text)) is not None:
        return "library_error", _linker(found)
    if "_STATUS_" in text and (found := _LIBRARY.search(text)):
        return "cuda_error", {"error": found[0].lower()}
    return None


def _linker(found: re.Match[str]) -> Mapping[str, Any]:
    """Which library does not fit, by its file name, and what it asks for."""
    library = (found["library"] or found["missing"]).replace("\\", "/").rpartition("/")[2]
    if found["symbol"]:
        return {"error": "undefined_symbol", "library": library, "symbol": found["symbol"]}
    if found["version"]:
        return {"error": "old_library", "library": library, "symbol": found["version"]}
    return {"error": "missing_library", "library": library}


def timeout(text: str) -> Mapping[str, Any] | None:
    """What a line tells about a limit that was exceeded: of the scheduler, or of a collective operation."""
    if not _TIMEOUT.search(text):
        return None
    data = _fields(_COLLECTIVE, text)
    if found := _MISSING.search(text):
        data["missing_ranks"] = [int(rank) for rank in found[1].split(",")]
    if found := _SIGNALLED.search(text):
        data["from_rank"] = int(found[1])
    return data


def collective_error(text: str) -> Found | None:
    """An error of NCCL, Gloo or the store through which the processes meet."""
    if "NCCL INFO" in text or not _NCCL.search(text):
        return None
    error = next((name for name, pattern in _NCCL_ERRORS if pattern.search(text)), None)
    if "NCCL WARN" in text:
        message = text.partition("NCCL WARN")[2].strip()[:200]
        return "nccl_error", {"error": error or "warning", "level": "warning", "message": message}
    if error is None:
        return None
    level = {"level": "warning"} if (found := _LEVEL.match(text)) and found[1] == "W" else {}
    return "nccl_error", {"error": error, **level, **_fields(_WORK, text)}


def _fields(pattern: re.Pattern[str], text: str) -> dict[str, Any]:
    """The named groups of all matches, numbers as int; the group of processes by its id or its number."""
    data: dict[str, Any] = {}
    for found in pattern.finditer(text):
        name = found.lastgroup
        if name is not None and name not in data:
            value = found[name]
            data[name] = value if name in ("collective", "group", "number") else int(value)
    number = data.pop("number", None)
    return {**data, "group": number} if number is not None and "group" not in data else data
