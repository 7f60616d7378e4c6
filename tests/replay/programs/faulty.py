"""A tiny program that misbehaves as its settings say: in its first losses, or while it is built."""

import ctypes
import os
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch import nn

ASSERT = (
    "CUDA error: device-side assert triggered\n"
    "CUDA kernel errors might be asynchronously reported at some other API call"
)


def build(request):
    torch.manual_seed(0)
    settings = request.settings
    if settings.get("while_built"):
        misbehave(settings["while_built"], settings)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    return {"model": model, "loss": Loss(settings), "batches": batches, "learning_rate": settings.get("rate")}


def batches(step):
    generator = torch.Generator().manual_seed(step)
    return [(torch.randn(4, 4, generator=generator), torch.randint(2, (4,), generator=generator)) for _ in range(2)]


class Loss:
    """Cross-entropy. The first losses of all meet one of settings["faults"] each; a file counts them."""

    def __init__(self, settings):
        self.settings = settings

    def __call__(self, model, batch):
        faults = self.settings.get("faults", [])
        if faults:
            count = Path(self.settings["count"])
            met = int(count.read_text()) if count.exists() else 0
            if met < len(faults):
                count.write_text(str(met + 1))
                sys.stdout.write(f"about to misbehave: {faults[met]}\n")
                misbehave(faults[met], self.settings)
        x, y = batch
        return nn.functional.cross_entropy(model(x), y)


def misbehave(fault, settings):
    if fault == "segfault":
        ctypes.string_at(0)
    elif fault == "abort":
        os.abort()
    elif fault == "exit":
        sys.stderr.write("giving up\n")
        os._exit(7)
    elif fault == "sys.exit":
        sys.exit(5)
    elif fault == "hang":
        hang()
    elif fault == "hang with a worker":
        worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], start_new_session=True)
        Path(settings["worker"]).write_text(str(worker.pid))
        hang()
    elif fault == "python memory":
        bytearray(1 << 40)
    elif fault == "torch memory":
        torch.empty(1 << 40, dtype=torch.uint8)
    elif fault == "memory of a child":
        subprocess.run([sys.executable, "-c", "x = b'x' * (6 * 10**8); import time; time.sleep(1000)"], check=False)
    elif fault == "device-side assert":
        raise RuntimeError(ASSERT)
    elif fault == "error":
        raise ValueError("no such column")
    else:
        raise AssertionError(fault)


def hang():
    while True:
        time.sleep(0.01)
