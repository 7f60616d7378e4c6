"""The facts about a node that decide which software a training runs: nothing is changed, nothing leaves the node.

torch is imported here and nowhere else in the command; where it is absent or broken, that is one of the facts.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from gradforensics import __version__
from gradforensics.own_files import ENVIRONMENT_KIND
from gradforensics.secrecy import of_variable

SCHEMA = 1
_SECONDS = 20  # nvidia-smi hangs where a GPU fell off the bus
_PREFIXES = (
    "CUDA_", "CUDNN_", "CUBLAS_", "NVIDIA_", "NCCL_", "RCCL_", "GLOO_", "UCX_", "FI_", "HIP_", "HSA_", "ROCR_",
    "TORCH", "PYTORCH_", "TRITON_", "XLA_", "OMP_", "KMP_", "MKL_", "OPENBLAS_", "ACCELERATE_", "DS_", "FSDP_",
    "SLURM_JOB_ID", "SLURM_NODEID", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_NNODES",
    "SLURM_RESTART_COUNT", "MASTER_",
)  # fmt: skip
_NAMES = frozenset(
    {
        "LD_LIBRARY_PATH", "LD_PRELOAD", "RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "WORLD_SIZE",
        "LOCAL_WORLD_SIZE", "PYTHONHASHSEED", "TOKENIZERS_PARALLELISM", "CONDA_DEFAULT_ENV", "MAX_JOBS",
    }
)  # fmt: skip
_RANKS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_KERNEL_MODULE = Path("/proc/driver/nvidia/version")
_MODULE = re.compile(r"Kernel Module(?: for \S+)?\s+([\d.]{3,20})")
_SMI_CUDA = re.compile(r"CUDA Version: ([\d.]{1,9})")


def collect(environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Everything that is known here: header, facts, GPUs, packages, variables and remarks, ready for JSON."""
    environ = os.environ if environ is None else environ
    remarks: list[str] = []
    facts: dict[str, Any] = {
        "python": platform.python_version(),
        "os": _system(),
        "kernel": platform.release(),
        "glibc": " ".join(platform.libc_ver()).strip(),
    }
    facts |= _torch(remarks)
    gpus = facts.pop("gpus", None) or []
    seen = _nvidia()
    facts |= seen.pop("facts")
    packages, copies = _packages()
    return {
        "tool": f"gradforensics {__version__}",
        "kind": ENVIRONMENT_KIND,
        "schema": SCHEMA,
        "collected": datetime.now(UTC).isoformat(timespec="seconds"),
        "host": platform.node() or "unknown",
        "rank": rank_of(environ),
        "facts": {key: value for key, value in facts.items() if value},
        "gpus": gpus or seen["gpus"],
        "packages": packages,
        "copies": copies,
        "variables": _variables(environ),
        "remarks": remarks,
    }


def rank_of(environ: Mapping[str, str]) -> int | None:
    """The rank that a launcher gave to this process, None where there was none."""
    stated = (environ.get(name, "") for name in _RANKS)
    return next((int(text) for text in stated if text.isdecimal() and len(text) < 8), None)


def _system() -> str:
    """The distribution of Linux, else the system."""
    with suppress(OSError):
        return platform.freedesktop_os_release().get("PRETTY_NAME", "") or platform.platform()
    return platform.platform()


def _variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Those that steer GPUs, libraries and processes; whatever looks like a key or a password is ***."""
    wanted = sorted(name for name in environ if name in _NAMES or name.startswith(_PREFIXES))
    return {name: of_variable(name, environ[name]) for name in wanted}


def _packages() -> tuple[dict[str, str], dict[str, list[str]]]:
    """Version of every installed package, and of those that are installed in several versions all of them.

    Of several versions the first one on sys.path is imported.
    """
    found: dict[str, list[str]] = {}
    for one in metadata.distributions():
        name, version = one.metadata["Name"], one.metadata["Version"]
        if name and version:
            versions = found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), [])
            versions += [version] if version not in versions else []
    several = {name: versions for name, versions in sorted(found.items()) if len(versions) > 1}
    return {name: versions[0] for name, versions in sorted(found.items())}, several


def _torch(remarks: list[str]) -> dict[str, Any]:
    """Version of torch, what it was built for, the libraries that it loads, and the GPUs that it sees."""
    try:
        import torch  # noqa: PLC0415  what it costs is the reason why the command line does not import it
    except ModuleNotFoundError as error:
        missing = error.name == "torch"
        remarks.append("torch is not installed" if missing else f"torch cannot be imported: {error}")
        return {} if missing else {"torch_error": _said(error)}
    except Exception as error:  # noqa: BLE001  undefined symbols and missing libraries come as many types
        remarks.append(f"torch cannot be imported: {error}")
        return {"torch_error": _said(error)}
    facts: dict[str, Any] = {
        "torch": str(torch.__version__),
        "torch_git": str(torch.version.git_version or ""),
        "torch_cuda": str(torch.version.cuda or torch.version.hip or "none"),
        "torch_arch_list": _arch_list(torch),
    }
    facts |= _libraries(torch)
    try:
        if torch.cuda.is_available():
            facts["gpus"] = [_device(torch, index) for index in range(torch.cuda.device_count())]
        else:
            remarks.append("torch sees no GPU")
    except Exception as error:  # noqa: BLE001  a broken driver is what is looked for
        remarks.append(f"torch cannot use the GPUs: {error}")
    return facts


def _libraries(torch: Any) -> dict[str, str]:
    """Versions of cuDNN and NCCL as they were loaded, as far as there are any."""
    found: dict[str, str] = {}
    with suppress(Exception):  # raises where the cuDNN that it finds is not the one it was built with
        found["cudnn"] = _dotted(torch.backends.cudnn.version())
    with suppress(Exception):
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return found


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:500]


def _arch_list(torch: Any) -> str:
    """The compute capabilities that the wheel has kernels for, as "sm_80 sm_90"; empty for a build without CUDA."""
    with suppress(Exception):
        return str(torch._C._cuda_getArchFlags() or "")  # noqa: SLF001  get_arch_list() is empty without a GPU
    return ""


def _device(torch: Any, index: int) -> dict[str, str]:
    major, minor = torch.cuda.get_device_capability(index)
    return {"name": str(torch.cuda.get_device_name(index)), "compute_capability": f"{major}.{minor}"}


def _dotted(version: int | None) -> str:
    """90100 (cuDNN 9.1.0) and 8902 (8.9.2) as text."""
    if not version:
        return ""
    major, rest = divmod(version, 10_000 if version >= 90_000 else 1000)
    return f"{major}.{rest // 100}.{rest % 100}"


def _nvidia() -> dict[str, Any]:
    """Driver, newest CUDA that it supports, and GPUs by nvidia-smi; the driver else by its kernel module."""
    facts: dict[str, str] = {}
    gpus: list[dict[str, str]] = []
    for line in _run("nvidia-smi", "--query-gpu=name,driver_version,compute_cap", "--format=csv,noheader").splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 3:
            gpus.append({"name": cells[0], "compute_capability": cells[2]})
            facts["driver"] = cells[1]
    if found := _SMI_CUDA.search(_run("nvidia-smi")):
        facts["cuda"] = found[1]
    if "driver" not in facts:
        with suppress(OSError):
            if found := _MODULE.search(_KERNEL_MODULE.read_text(encoding="utf-8", errors="replace")):
                facts["driver"] = found[1]
    return {"facts": facts, "gpus": gpus}


def _run(*command: str) -> str:
    """What a program prints; nothing where it is absent, fails or hangs."""
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(  # noqa: S603  fixed commands
            command, capture_output=True, check=True, timeout=_SECONDS, encoding="utf-8", errors="replace"
        )
        return done.stdout
    return ""
