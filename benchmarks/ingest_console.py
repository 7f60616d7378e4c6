"""Console logs: a large Megatron-LM log against a Python loop over its lines with `re`.

    python benchmarks/ingest_console.py [--megabytes 2000] [--runs 3]

The log has a training line in every four: the others are messages of NCCL, warnings and timers, as a real one has. Our
time is that of the reader, through to the finished series, with all events looked for; the loop only takes six numbers
of every training line. Limits: at least 1.5 times the speed of the loop, less than 700 MB. Exit code 1 where one is
missed.
"""

from __future__ import annotations

import argparse
import datetime as dt
import random
import sys
import tempfile
from pathlib import Path

from ingest_processes import Measured, alternating

SPEED, MEMORY = 1.5, 700.0
BLOCK = 20_000  # iterations that are made with numbers of their own; a longer log repeats their numbers

OURS = """
import sys
from pathlib import Path
from gradforensics.evidence.files import File
from gradforensics.evidence.readers import console
path = Path(sys.argv[1])
reading = console.read(File(path, path.name, path.stat().st_size))
print(max(track.stored.frame.height for track in reading.tracks))
"""
LOOP = """
import re, sys
pattern = re.compile(rb"iteration +(\\d+)/.*elapsed time per iteration \\(ms\\): ([^ ]+).*learning rate: ([^ ]+)"
                     rb".*lm loss: ([^ ]+).*loss scale: ([^ ]+).*grad norm: ([^ ]+)")
rows = []
with open(sys.argv[1], "rb") as file:
    for line in file:
        if b"elapsed time per iteration" in line:
            found = pattern.search(line)
            if found:
                rows.append(tuple(map(float, found.groups())))
print(len(rows))
"""


def iterations(first: int, count: int, rng: random.Random) -> str:
    """Training lines, each followed by three lines of another kind."""
    start = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    lines = []
    for step in range(first, first + count):
        moment = start + dt.timedelta(seconds=5 * step)
        norm = "nan" if step % 9973 == 0 else f"{rng.random():.3f}"
        lines.append(
            f" [{moment:%Y-%m-%d %H:%M:%S.%f}] iteration {step:8d}/ 9000000 | consumed samples: {step * 1024:12d} | "
            f"elapsed time per iteration (ms): {5000 + rng.random() * 100:.1f} | "
            f"throughput per GPU (TFLOP/s/GPU): {400 + rng.random() * 20:.1f} | "
            f"learning rate: {3e-4 * rng.random():.6E} | global batch size:  1024 | lm loss: {2 + rng.random():.6E} | "
            f"loss scale: 1.0 | grad norm: {norm} | number of skipped iterations:   0 | "
            "number of nan iterations:   0 |\n"
        )
        lines += [_noise(rng) for _ in range(3)]
    return "".join(lines)


def _noise(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.4:
        return (
            f"node{rng.randrange(64):02d}:{rng.randrange(9999)}:{rng.randrange(9999)} [{rng.randrange(8)}] "
            f"NCCL INFO Channel {rng.randrange(16):02d}/0 : {rng.randrange(64)}[0] -> "
            f"{rng.randrange(64)}[0] via P2P/CUMEM/read\n"
        )
    if kind < 0.7:
        who, what = rng.randrange(512), rng.randrange(99999)
        return f"[rank{who}]: WARNING: torch/distributed/c10d.py: message {what} of barrier()\n"
    low = rng.random() * 5000
    return f"    forward-backward ...............................: ({low:.2f}, {low + rng.random():.2f})\n"


def write(path: Path, megabytes: int) -> None:
    """A log of this size, whose iterations count up from 1."""
    rng = random.Random(1)  # noqa: S311  numbers of a test log
    written, first = 0, 1
    with path.open("w", encoding="ascii") as file:
        while written < megabytes * 1_000_000:
            written += file.write(iterations(first, BLOCK, rng))
            first += BLOCK


def report(ours: Measured, loop: Measured, size: int) -> bool:
    """Print the figures; whether all limits hold."""
    ratio = loop.seconds / ours.seconds
    for name, one in (("reader", ours), ("loop", loop)):
        print(f"{name:6} {one.seconds:6.1f} s  {size / one.seconds / 1e6:5.0f} MB/s  {one.peak_mb:5.0f} MB")
    limits = f"limits: {SPEED}x, {MEMORY:.0f} MB"
    print(f"the reader is {ratio:.2f}x as fast as the loop ({limits}); lines: {ours.said}, {loop.said}")
    return ratio >= SPEED and ours.peak_mb < MEMORY and ours.said == loop.said


def run(megabytes: int, runs: int) -> bool:
    """Write the log, measure and print; whether all limits hold."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.log"
        write(path, megabytes)
        commands = {name: [sys.executable, "-c", code, str(path)] for name, code in (("ours", OURS), ("loop", LOOP))}
        taken = alternating(commands, folder, runs)
        print(f"Megatron-LM log of {path.stat().st_size / 1e6:.0f} MB")
        return report(taken["ours"], taken["loop"], path.stat().st_size)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=2000)
    parser.add_argument("--runs", type=int, default=3)
    given = parser.parse_args()
    return int(not run(given.megabytes, given.runs))


if __name__ == "__main__":
    sys.exit(main())
