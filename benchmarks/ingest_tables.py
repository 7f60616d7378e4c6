"""CSV and JSON lines through to the finished report, against the PyPI tools that lint such logs.

    python benchmarks/ingest_tables.py [--peers DIR] [--runs 3] [--quick]

Writes one training log of 1,000,000 scalars (a scalar is one logged value of a series: loss, gradient norm, learning
rate and now and then an evaluation) as CSV and as JSON lines and gives the same file to every tool. Limits: the whole
process of `gradforensics analyze FILE -o report.html` takes at most 0.35 times that of the fastest of trainproof,
runmedic and losslint (the best of `--runs` runs, by turns) and at most 400 MB; from 10^5 to 10^7 rows the time per row
beyond the start-up stays within 1.5 times (--quick leaves out 10^7). Exit code 1 where a limit is missed, 2 where no
tool is there to compare with. DIR is the folder of the tools' programs, such as the bin folder of a virtual
environment.
"""

from __future__ import annotations

import argparse
import math
import random
import shutil
import sys
import tempfile
from pathlib import Path

from ingest_processes import Measured, measured

RATIO = 0.35
PEAK_MB = 400.0
LINEAR = 1.5
SCALARS = 1_000_000
EVERY = 1000  # rows between two evaluations
PEERS = {
    "trainproof": [["epoch"], ["doctor"]],  # doctor is its flagship, epoch does less and is faster
    "runmedic": [["diagnose"]],
    "losslint": [["check"]],
}


def write_log(path: Path, rows: int) -> None:
    """A healthy decay of `rows` training rows with an evaluation after every 1000; CSV or JSON lines by the suffix."""
    draw = random.Random(0)  # noqa: S311  no secret
    table = path.suffix == ".csv"
    with path.open("w") as file:
        if table:
            file.write("epoch,step,loss,grad_norm,learning_rate,eval_loss\n")
        for step in range(1, rows + 1):
            epoch = round(5 * step / rows, 4)
            loss = 2.9 + 1.3 * math.exp(-5 * step / rows) + draw.gauss(0, 0.03)
            norm, rate = 1 + 0.2 * draw.random(), 3e-4 * (1 - step / (rows + 1))
            if table:
                file.write(f"{epoch},{step},{loss!r},{norm!r},{rate!r},\n")
            else:
                file.write(
                    f'{{"epoch": {epoch}, "step": {step}, "loss": {loss!r}, "grad_norm": {norm!r}, '
                    f'"learning_rate": {rate!r}}}\n'
                )
            if step % EVERY == 0:
                held_out = loss + 0.1
                file.write(
                    f"{epoch},{step},,,,{held_out!r}\n"
                    if table
                    else f'{{"epoch": {epoch}, "step": {step}, "eval_loss": {held_out!r}}}\n'
                )


def rows_for(scalars: int) -> int:
    """Training rows of a log of about so many scalars: three in every row, one in every evaluation."""
    return round(scalars / (3 + 1 / EVERY))


def analyze(path: Path, report: Path) -> list[str]:
    """The command that is measured."""
    return [sys.executable, "-m", "gradforensics", "analyze", str(path), "-o", str(report), "--force"]


def peer_commands(folder: Path | None) -> dict[str, list[str]]:
    """The commands of the peers that are installed, by their names; the file is appended."""
    where = str(folder) if folder is not None else None
    found = {name: shutil.which(name, path=where) for name in PEERS}
    for name, program in found.items():
        if program is None:
            print(f"{name} is not there (pip install {name}, and --peers DIR for the folder of its program)")
    return {
        f"{name} {' '.join(words)}": [program, *words]
        for name, program in found.items()
        if program is not None
        for words in PEERS[name]
    }


def compare(path: Path, report: Path, peers: dict[str, list[str]], runs: int) -> bool:
    """Print the table of one file; whether both limits hold."""
    commands = {"gradforensics": analyze(path, report), **{n: [*c, str(path)] for n, c in peers.items()}}
    best: dict[str, Measured] = {}
    peak = 0.0
    for _ in range(runs):
        for name, command in commands.items():
            run = measured(command, str(path.parent))
            if name == "gradforensics":
                peak = max(peak, run.peak_mb)
            if name not in best or run.seconds < best[name].seconds:
                best[name] = run
    # a tool that ends with more than 1 (findings) did not do the work
    usable = {name: run for name, run in best.items() if run.code in (0, 1) and name != "gradforensics"}
    for name, run in best.items():
        note = "" if run.code in (0, 1) else f"  exit code {run.code}: does not count"
        print(f"  {name:20} {run.seconds:7.2f} s  {run.peak_mb:6.0f} MB{note}")
    own = best["gradforensics"]
    if own.code not in (0, 1):
        print("  gradforensics failed")
        return False
    fastest = min(usable, key=lambda name: usable[name].seconds, default=None)
    if fastest is None:
        print("  nothing to compare with")
        return False
    ratio = own.seconds / usable[fastest].seconds
    print(f"  {ratio:.2f}x of {fastest} (limit {RATIO}x); peak {peak:.0f} MB (limit {PEAK_MB:.0f} MB)")
    return ratio <= RATIO and peak <= PEAK_MB


def linear(folder: Path, suffix: str, powers: range, runs: int) -> bool:
    """Print the time per row, less the start-up, for 10^power rows; whether it stays within the limit."""
    report = folder / "report.html"
    write_log(folder / f"tiny{suffix}", 100)
    idle = min(measured(analyze(folder / f"tiny{suffix}", report), str(folder)).seconds for _ in range(runs))
    per_row: list[float] = []
    for power in powers:
        path = folder / f"linear{suffix}"
        write_log(path, 10**power)
        done = [measured(analyze(path, report), str(folder)) for _ in range(runs if power < 7 else 1)]
        if any(run.code not in (0, 1) for run in done):
            print(f"  10^{power} rows: gradforensics failed")
            return False
        taken = min(run.seconds for run in done)
        per_row.append((taken - idle) / 10**power)
        held = max(run.peak_mb for run in done)
        print(f"  10^{power} rows  {taken:7.2f} s  {per_row[-1] * 1e6:5.2f} us a row  {held:6.0f} MB")
        path.unlink()
    growth = per_row[-1] / per_row[0]
    print(f"  per row {growth:.2f}x from 10^{powers[0]} to 10^{powers[-1]} (limit {LINEAR}x)")
    return growth <= LINEAR


def main() -> int:
    """Measure and print both formats."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, metavar="DIR", help="folder of the other tools' programs")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="leave out 10^7 rows")
    given = parser.parse_args()
    peers = peer_commands(given.peers)
    if not peers:
        return 2
    held: list[bool] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for suffix in (".csv", ".jsonl"):
            path = folder / f"log{suffix}"
            write_log(path, rows_for(SCALARS))
            print(f"{suffix[1:]}, {SCALARS:,} scalars, {path.stat().st_size / 1e6:.0f} MB")
            held.append(compare(path, folder / "report.html", peers, given.runs))
            path.unlink()
            held.append(linear(folder, suffix, range(5, 7 if given.quick else 8), given.runs))
    return int(not all(held))


if __name__ == "__main__":
    sys.exit(main())
