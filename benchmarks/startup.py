"""Start-up, as ratios to a bare interpreter: `--help`, a log-only analysis of 300 steps, a list of tensors.

    python benchmarks/startup.py [--runs 15]

Every figure is the median over runs that alternate between the commands, so that a machine that changes its speed does
not change the ratio. Limits: --help 5x, analyze 40x, scan --list 25x and 100 MB (a sparse optimizer.pt of 4 GB); exit
code 1 where one is exceeded. Also says which heavy modules the analysis imported; none of torch, scipy and rich may be
among them.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LIMITS = {"--help": 5.0, "analyze": 40.0, "scan --list": 25.0}
LIST_MB = 100.0
FORBIDDEN = ("torch", "scipy", "rich")


def write_run(folder: Path, steps: int = 300) -> None:
    """A log of `steps` rows as JSON lines, a healthy decay with a learning rate and a gradient norm."""
    folder.mkdir()
    with (folder / "train.jsonl").open("w") as file:
        for step in range(1, steps + 1):
            loss = 2.9 + 1.3 * math.exp(-step / 60) + 0.03 * math.sin(step * 1.7)
            row = {
                "step": step,
                "loss": loss,
                "grad_norm": 1.0 + 0.2 * math.cos(step * 2.3),
                "lr": 3e-4 * (1 - step / 301),
            }
            file.write(json.dumps(row) + "\n")


def write_optimizer(path: Path, width: int = 1024, layers: int = 26) -> None:
    """The state_dict of AdamW for a transformer, written by torch without its numbers: 4 GB that take no place."""
    import torch  # noqa: PLC0415  this runs in a child: a parent that holds torch counts as memory of its children

    layer = [*[(width, width)] * 4, *[(4 * width, width)] * 3, *[(width,)] * 2]
    shapes = [*layer * layers, (50_000, width), (width,)]
    state = {
        index: {"step": torch.tensor(1.0), "exp_avg": torch.empty(shape), "exp_avg_sq": torch.empty(shape)}
        for index, shape in enumerate(shapes)
    }
    group = {"lr": 1e-4, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1, "params": list(state)}
    with torch.serialization.skip_data():
        torch.save({"state": state, "param_groups": [group]}, path)


# an installed package has its bytecode cached; a checkout too, unless this variable forbids it
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}


def seconds(command: list[str], folder: str) -> float:
    """Wall time of one process."""
    start = time.perf_counter()
    subprocess.run(
        command, cwd=folder, env=ENVIRONMENT, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    return time.perf_counter() - start


def peak(command: list[str], folder: str) -> float:
    """The most memory that one process holds, in MB."""
    process = subprocess.Popen(command, cwd=folder, env=ENVIRONMENT, stdout=subprocess.DEVNULL)
    _, _, used = os.wait4(process.pid, 0)
    process.returncode = 0
    return used.ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6


def imported(arguments: list[str], folder: str) -> list[str]:
    """Top-level names of FORBIDDEN that the command imported."""
    code = (
        f"import sys; from gradforensics.cli import main; main({arguments!r}); "
        f"print([m for m in {FORBIDDEN!r} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, check=True, capture_output=True, text=True)
    found: list[str] = json.loads(done.stdout.strip().splitlines()[-1].replace("'", '"'))
    return found


def main() -> int:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--make", type=Path, metavar="PATH", help="only write the optimizer.pt")
    given = parser.parse_args()
    if given.make is not None:
        write_optimizer(given.make)
        return 0
    runs: int = given.runs
    with tempfile.TemporaryDirectory() as folder:
        write_run(Path(folder) / "run")
        analyze = ["analyze", "run", "-o", "report.html"]
        tool = [sys.executable, "-m", "gradforensics"]
        subprocess.run([sys.executable, __file__, "--make", f"{folder}/optimizer.pt"], check=True)
        listing = [*tool, "scan", "--list", "optimizer.pt"]
        commands = {
            "pass": [sys.executable, "-c", "pass"],
            "--help": [*tool, "--help"],
            "analyze": [*tool, *analyze],
            "scan --list": listing,
        }
        taken: dict[str, list[float]] = {name: [] for name in commands}
        for turn in range(runs + 1):
            for name, command in commands.items():
                spent = seconds(command, folder)
                if turn:  # the first turn warms the caches
                    taken[name].append(spent)
        heavy = imported(analyze, folder)
        held = peak(listing, folder)
    middle = {name: statistics.median(values) for name, values in taken.items()}
    failed = bool(heavy) or held > LIST_MB
    for name, value in middle.items():
        ratio = value / middle["pass"]
        limit = LIMITS.get(name)
        failed = failed or (limit is not None and ratio > limit)
        print(f"{name:11} {value * 1000:7.0f} ms  {ratio:5.1f}x" + (f"  (limit {limit:.0f}x)" if limit else ""))
    print(f"peak memory of scan --list: {held:.0f} MB  (limit {LIST_MB:.0f} MB)")
    print(f"heavy imports of analyze: {', '.join(heavy) or 'none'}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
