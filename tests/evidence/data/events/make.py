"""Makes the logs of this folder by letting real processes fail: python make.py (needs torch; py-spy for pyspy.txt)."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent

RANKS = """
import sys, time
import torch
import torch.distributed as dist

def train(rank):
    for step in range(3):
        loss = torch.ones(1) * (3 - step)
        if rank == 1 and step == 2:
            time.sleep(0.3)
            raise ValueError("a bad sample")
        dist.all_reduce(loss)
        if rank == 0:
            print(f"step {step} loss: {loss.item():.4f}", flush=True)

dist.init_process_group("gloo")
train(dist.get_rank())
"""
CRASH = """
import faulthandler
faulthandler.enable()

def forward():
    faulthandler._sigsegv()

print("step 1 loss: 2.0", flush=True)
forward()
"""
LOADER = """
import faulthandler, sys, time
import torch
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        time.sleep(60)

def train():
    print("ready", flush=True)
    for batch in DataLoader(Slow(), num_workers=1):
        pass

if __name__ == "__main__":
    if sys.argv[1:] == ["dump"]:
        faulthandler.dump_traceback_later(6, exit=True)
    train()
"""
WAITING = """
import time
import torch
import torch.distributed as dist
import sys

rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="tcp://127.0.0.1:29517", rank=rank, world_size=2)

def train():
    print("ready", flush=True)
    if rank == 0:
        dist.all_reduce(torch.ones(4))
    else:
        time.sleep(60)

train()
"""
FAULTS = {
    "inplace": "x = torch.ones(3, requires_grad=True); y = x.exp(); y += 1; y.sum().backward()",
    "second_backward": "x = torch.ones(3, requires_grad=True); y = x.exp().sum(); y.backward(); y.backward()",
    "no_grad": "torch.ones(3).sum().backward()",
    "anomaly": "torch.autograd.set_detect_anomaly(True); x = torch.zeros(3, requires_grad=True); "
    "(x.sqrt() * 0).sum().backward()",
    "unscaled_twice": "w = torch.nn.Parameter(torch.ones(2)); o = torch.optim.SGD([w], 0.1); "
    "s = torch.amp.GradScaler('cpu'); s.scale(w.sum()).backward(); s.unscale_(o); s.unscale_(o)",
    "no_inf_checks": "w = torch.nn.Parameter(torch.ones(2)); o = torch.optim.SGD([w], 0.1); "
    "s = torch.amp.GradScaler('cpu'); s.scale(torch.ones(1)); s.step(o)",
    "target": "torch.nn.functional.cross_entropy(torch.ones(1, 4), torch.tensor([64]))",
    "embedding": "torch.nn.Embedding(4, 2)(torch.tensor([9]))",
    "memory": "torch.empty(1 << 50)",
    "order": "w = torch.nn.Parameter(torch.ones(2)); o = torch.optim.SGD([w], 0.1); "
    "s = torch.optim.lr_scheduler.StepLR(o, 1); s.step()",
}


def run(folder: Path, source: str, *arguments: str, launcher: tuple[str, ...] = ()) -> str:
    """What a script prints, with the folders of this machine taken out."""
    script = folder / "train.py"
    script.write_text(source)
    command = [sys.executable, *launcher, str(script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    return clean(done.stdout + done.stderr, folder)


def clean(text: str, folder: Path) -> str:
    """The text without the folders of the machine that made it."""
    text = text.replace(str(folder), "/run").replace(str(Path(sys.prefix)), "/venv")
    text = text.replace(str(Path(sys.base_prefix)), "/usr")
    return re.sub(r"host(\s+): \S+", r"host\1: node07", text)


def stacks(folder: Path) -> str:
    """What py-spy says of two processes that wait: for a collective, and for a DataLoader."""
    spy = shutil.which("py-spy")
    if spy is None:
        raise SystemExit("py-spy is not installed")
    (folder / "wait.py").write_text(WAITING)
    (folder / "load.py").write_text(LOADER)
    commands = [["wait.py", "0"], ["wait.py", "1"], ["load.py"]]
    started = [subprocess.Popen([sys.executable, *command], cwd=folder, stdout=subprocess.PIPE) for command in commands]
    for process in started:
        if process.stdout is not None:
            process.stdout.readline()
    time.sleep(3)
    said = [
        subprocess.run([spy, "dump", "--pid", str(process.pid)], capture_output=True, text=True, check=True).stdout
        for process in (started[0], started[2])
    ]
    for process in started:
        process.kill()
    return clean("\n".join(said), folder)


def main() -> None:
    """Write every log."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        torchrun = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "29518")
        (HERE / "torchrun.log").write_text(run(folder, RANKS, launcher=torchrun))
        (HERE / "crash.log").write_text(run(folder, CRASH))
        (HERE / "faulthandler.txt").write_text(run(folder, LOADER, "dump"))
        faults = [f"== {name}\n{run(folder, f'import torch{chr(10)}{code}{chr(10)}')}" for name, code in FAULTS.items()]
        (HERE / "faults.log").write_text("".join(faults))
        (HERE / "pyspy.txt").write_text(stacks(folder))


if __name__ == "__main__":
    main()
