"""GF25: small trainings beside what a node says of its software, as it would be with the fault, and near misses.

There is no GPU here: the environment files are written by the writer of `gradforensics env` with the versions of a GPU
node in place of this machine's, lists of packages in the words of pip, messages of CUDA in the words of PyTorch.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tempfile
import tomllib
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import hf_lab
import torch
from lab import (
    Chain,
    Sample,
    adamw,
    console,
    cosine,
    json_lines,
    language_model,
    main,
    plain_config,
    scheduler,
    train,
    write_json,
)

import gradforensics.diagnosis
from gradforensics.environment.collect import collect
from gradforensics.environment.save import as_text, default_path

STEPS = 120
WARMUP = 10
LR = 3e-3
CONFIG = {"learning_rate": LR, "lr_scheduler_type": "cosine", "warmup_steps": WARMUP, "max_steps": STEPS}
TORCH = "2.3.0"
ARCHES = "sm_50 sm_60 sm_70 sm_75 sm_80 sm_86 sm_90"
WHEELS = Path(gradforensics.diagnosis.__file__).with_name("torch_wheels.toml")
EXTENSION = """
#include <Python.h>
extern int _ZNK3c1011StorageImpl27throw_data_ptr_access_errorEv(void);
PyMODINIT_FUNC PyInit_flash_attn_2_cuda(void) {
    return PyLong_FromLong(_ZNK3c1011StorageImpl27throw_data_ptr_access_errorEv());
}
"""
COLLECT_ENV = """PyTorch version: 2.3.0+cu121
Is debug build: False
CUDA used to build PyTorch: 12.1
ROCM used to build PyTorch: N/A

OS: Ubuntu 22.04.4 LTS (x86_64)
GCC version: (Ubuntu 11.4.0-1ubuntu1~22.04) 11.4.0
Clang version: Could not collect
CMake version: version 3.29.2
Libc version: glibc-2.35

Python version: 3.11.9 (main, Apr  6 2024, 17:59:24) [GCC 11.4.0] (64-bit runtime)
Python platform: Linux-5.15.0-105-generic-x86_64-with-glibc2.35
Is CUDA available: False
CUDA runtime version: Could not collect
CUDA_MODULE_LOADING set to: N/A
GPU models and configuration: GPU 0: NVIDIA A100-SXM4-80GB
GPU 1: NVIDIA A100-SXM4-80GB

Nvidia driver version: 470.57.02
cuDNN version: Could not collect
HIP runtime version: N/A
MIOpen runtime version: N/A
Is XNNPACK available: True

Versions of relevant libraries:
[pip3] numpy==1.26.4
[pip3] torch==2.3.0+cu121
[pip3] triton==2.3.0
[conda] Could not collect
"""


def trained(run: Path, steps: int = STEPS, **facts: object) -> None:
    """A healthy training of a plain loop."""
    model, objective = language_model(Chain.make())
    optimizer = adamw(model, LR)
    write_json(run / "config.json", plain_config(**(CONFIG | {"weight_decay": 0.1} | facts)))
    with json_lines(run / "metrics.jsonl") as log:
        train(model, optimizer, objective, log, steps=steps, schedule=scheduler(optimizer, cosine(WARMUP, STEPS)))


def packages(**changed: str) -> dict[str, str]:
    """What pip installs with torch 2.3.0; `changed` with _ for - in the names."""
    wheels = tomllib.loads(WHEELS.read_text(encoding="utf-8"))["wheel"]
    pins = next(wheel["pins"] for wheel in wheels if TORCH in wheel["releases"])
    others = {"torch": TORCH, "triton": "2.3.0", "numpy": "1.26.4", "accelerate": "0.30.1", "transformers": "4.41.2"}
    return dict(sorted((pins | others | {name.replace("_", "-"): v for name, v in changed.items()}).items()))


def node(host: str = "node01", rank: int | None = 0, installed: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What `gradforensics env` tells of a GPU node: what it collects here, with the software of such a node."""
    found = collect({"RANK": str(rank), "WORLD_SIZE": "2"} if rank is not None else {})
    found["host"] = host
    found["collected"] = "2026-01-05T09:00:00+00:00"
    found["facts"] = {
        "python": "3.11.9", "os": "Ubuntu 22.04.4 LTS", "kernel": "5.15.0-105-generic", "glibc": "glibc 2.35",
        "torch": f"{TORCH}+cu121", "torch_cuda": "12.1", "torch_arch_list": ARCHES, "cudnn": "8.9.2", "nccl": "2.20.5",
        "driver": "550.54.15", "cuda": "12.4",
    }  # fmt: skip
    found["gpus"] = [{"name": "NVIDIA A100-SXM4-80GB", "compute_capability": "8.0"}] * 2
    found["packages"] = dict(installed or packages())
    found["copies"], found["remarks"] = {}, []
    return found


def save(run: Path, found: Mapping[str, Any]) -> None:
    """Save an environment under the name that the command gives it."""
    default_path(found, run).write_text(as_text(found), encoding="utf-8")


def pins_differ(run: Path) -> None:
    """HF Trainer; somebody upgraded NCCL by hand, and pip freeze shows it."""
    hf_lab.fit(run, hf_lab.tiny_gpt2(), hf_lab.fresh(Chain.make(), STEPS), steps=STEPS)
    lines = [f"{name}=={version}" for name, version in packages(nvidia_nccl_cu12="2.18.1").items()]
    (run / "pip_freeze.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def two_copies(run: Path) -> None:
    """cuDNN of the system stands before the package on LD_LIBRARY_PATH, and NCCL is installed twice."""
    trained(run)
    found = node()
    found["facts"]["cudnn"] = "8.7.0"
    found["copies"] = {"nvidia-nccl-cu12": ["2.20.5", "2.18.1"]}
    found["variables"]["LD_LIBRARY_PATH"] = "/usr/lib/x86_64-linux-gnu"
    save(run, found)


def driver_too_old(run: Path) -> None:
    """A launch script prints the report of collect_env first; the training falls back to the CPU."""
    model, objective = language_model(Chain.make())
    optimizer = adamw(model, LR)
    with console(run / "train.log") as log:
        print(COLLECT_ENV)
        print("Starting training on cpu")
        train(model, optimizer, objective, log, steps=STEPS, schedule=scheduler(optimizer, cosine(WARMUP, STEPS)))
        print("Training completed")


def arch_not_supported(run: Path) -> None:
    """A wheel of 2024 on a GPU of 2025."""
    trained(run)
    found = node()
    found["gpus"] = [{"name": "NVIDIA GeForce RTX 5090", "compute_capability": "12.0"}]
    save(run, found)


def import_failure(run: Path) -> None:
    """A real extension module with a symbol that no library has: the dynamic linker refuses it at import."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "ext.c").write_text(EXTENSION, encoding="utf-8")
        module = folder / "flash_attn_2_cuda.cpython-311-x86_64-linux-gnu.so"
        include = sysconfig.get_path("include")
        linked = ["cc", "-shared", "-fPIC", f"-I{include}", str(folder / "ext.c"), "-o", str(module)]
        subprocess.run(linked, check=True)  # noqa: S603  our own C file
        script = (
            "import importlib.util as u; s = u.spec_from_file_location('flash_attn_2_cuda', %r); u.module_from_spec(s)"
        )
        command = [sys.executable, "-c", script % str(module)]
        done = subprocess.run(command, capture_output=True, check=False, text=True)  # noqa: S603  written above
        said = done.stderr.strip().splitlines()[-1].replace(name, "site-packages")
    with console(run / "train.log"):
        print("Starting training: train.py --attn flash_attention_2")
        print('Traceback (most recent call last):\n  File "train.py", line 3, in <module>')
        print('    import flash_attn\n  File "site-packages/flash_attn/flash_attn_interface.py", line 10, in <module>')
        print(f"    import flash_attn_2_cuda as flash_attn_gpu\n{said}")


def launch_failure(run: Path) -> None:
    """The CPU build of torch was installed; the script moves its model to the GPU."""
    with console(run / "train.log"):
        print("Starting training: train.py --device cuda")
        try:
            language_model(Chain.make())[0].to("cuda")
        except (AssertionError, RuntimeError) as error:
            print('Traceback (most recent call last):\n  File "train.py", line 40, in <module>')
            print('    model.to("cuda")')
            print("".join(traceback.format_exception_only(error)), end="")


def illegal_access(run: Path) -> None:
    """A training that ends with PyTorch's words for CUDA error 700."""
    model, objective = language_model(Chain.make())
    optimizer = adamw(model, LR)
    with console(run / "train.log") as log:
        print("Starting training: train.py")
        train(model, optimizer, objective, log, steps=70, schedule=scheduler(optimizer, cosine(WARMUP, STEPS)))
        print('Traceback (most recent call last):\n  File "train.py", line 52, in <module>')
        print("    loss = objective(step).item()")
        print("RuntimeError: CUDA error: an illegal memory access was encountered")
        print("CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below")
        print("might be incorrect. For debugging consider passing CUDA_LAUNCH_BLOCKING=1.")


def node_drift(run: Path) -> None:
    """Two nodes; the image of the second has another NCCL and another transformers."""
    trained(run)
    save(run, node("node01", 0))
    other = node("node02", 1, packages(nvidia_nccl_cu12="2.19.3", transformers="4.44.0"))
    other["facts"] |= {"torch": "2.2.2+cu121", "nccl": "2.19.3"}
    other["packages"]["torch"] = "2.2.2"
    save(run, other)


def attempt_drift(run: Path) -> None:
    """The node was upgraded between two launches."""
    trained(run)
    save(run, node())
    later = node(installed=packages(transformers="4.44.0", accelerate="0.33.0"))
    later["collected"] = "2026-01-06T09:00:00+00:00"
    save(run, later)


def known_fault(run: Path) -> None:
    """HF Trainer with accumulation; the list of packages names a release with the documented fault."""
    hf_lab.fit(
        run,
        hf_lab.tiny_gpt2(),
        hf_lab.fresh(Chain.make(), STEPS),
        steps=STEPS,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=4,
    )
    lines = [f"{name}=={version}" for name, version in packages(transformers="4.47.0").items()]
    (run / "pip_freeze.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def exact(run: Path) -> None:
    """Two nodes alike with the exact pins; their driver is that of CUDA 12.4, the wheel is built for 12.1."""
    trained(run)
    save(run, node("node01", 0))
    save(run, node("node02", 1))
    (run / "requirements.txt").write_text("torch>=2.2\ntransformers==4.40.0\nnumpy\n", encoding="utf-8")


SAMPLES = (
    Sample(
        "gf25-pins-differ",
        "gf25",
        pins_differ,
        "NCCL 2.18.1 beside torch 2.3.0, which requires 2.20.5; the training is healthy",
        case="GF25",
        variant="pins-differ",
        primary="",
    ),
    Sample(
        "gf25-two-copies",
        "gf25",
        two_copies,
        "torch loads another cuDNN than the installed one, NCCL is installed twice; the training is healthy",
        case="GF25",
        variant="two-copies",
        primary="",
    ),
    Sample(
        "gf25-driver-too-old",
        "gf25",
        driver_too_old,
        "collect_env in the log: driver 470 under a wheel for CUDA 12.1; the training runs on the CPU",
        case="GF25",
        variant="driver-too-old",
        primary="",
    ),
    Sample(
        "gf25-arch-not-supported",
        "gf25",
        arch_not_supported,
        "a wheel up to sm_90 on a GPU of compute capability 12.0",
        case="GF25",
        variant="arch-not-supported",
        primary="",
    ),
    Sample(
        "gf25-import-failure",
        "gf25",
        import_failure,
        "an extension with a symbol that the installed torch does not have: the linker's own message",
        case="GF25",
        variant="import-failure",
        ending="exception",
    ),
    Sample(
        "gf25-launch-failure",
        "gf25",
        launch_failure,
        "the CPU build of torch where the script wants CUDA: torch's own message",
        case="GF25",
        variant="launch-failure",
        ending="exception",
    ),
    Sample(
        "gf25-illegal-access",
        "gf25",
        illegal_access,
        "CUDA error 700 at step 70 in PyTorch's words (there is no GPU here): the cause is open",
        case="GF25",
        variant="illegal-access",
        primary="",
        ending="exception",
    ),
    Sample(
        "gf25-node-drift",
        "gf25",
        node_drift,
        "two nodes with different torch, NCCL and transformers; the training is healthy",
        case="GF25",
        variant="node-drift",
        primary="",
    ),
    Sample(
        "gf25-attempt-drift",
        "gf25",
        attempt_drift,
        "transformers and accelerate were upgraded between two launches",
        case="GF25",
        variant="attempt-drift",
        primary="",
    ),
    Sample(
        "gf25-known-fault",
        "gf25",
        known_fault,
        "transformers 4.47.0 in the list of packages, four accumulation steps (made with a release without the fault)",
        case="GF25",
        variant="known-fault",
        primary="",
    ),
    Sample(
        "gf25-twin",
        "gf25",
        exact,
        "exact pins on two equal nodes, driver of CUDA 12.4 under wheels for 12.1, a requirements.txt of wishes",
        case="GF25",
        twin=True,
    ),
)

if __name__ == "__main__":
    torch.set_num_threads(1)
    main(SAMPLES)
