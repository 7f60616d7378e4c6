"""What the audit of training data costs: its time against a plain read of the same file with polars.

    python benchmarks/audit.py [--megabytes 100] [--most 40]

A file of JSON lines (texts of 300 made-up words) is written to a temporary folder, read with polars.read_ndjson and
audited, each in a process of its own; the table shows seconds, their ratio and the peak memory. Exit code 1 where the
ratio exceeds `--most`, or where the audit of a file of twice the size takes more than 1.3 times the memory.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

_READ = "import polars; polars.read_ndjson(path)"
_AUDIT = """
from pathlib import Path
from gradforensics.audit import DataFile, Known, audit
file = Path(path)
(found,) = audit([DataFile(file, file.name, file.stat().st_size)], Known())
assert found.read and len(found.measures) > 8
"""
_TIMED = """
import resource, sys, time
path = sys.argv[1]
import polars, gradforensics.audit
start = time.perf_counter()
{}
print(time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""
_MOST_MEMORY = 1.3


def write(path: Path, megabytes: int) -> None:
    """Write JSON lines of texts."""
    generator = random.Random(1)  # noqa: S311  made-up words, no secret
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(generator.choices(letters, k=generator.randrange(2, 10))) for _ in range(20_000)]
    with path.open("w", encoding="utf-8") as stream:
        while stream.tell() < megabytes * 1_000_000:
            stream.writelines(
                json.dumps({"text": " ".join(generator.choices(words, k=300)), "source": "made up"}) + "\n"
                for _ in range(200)
            )


def measure(code: str, path: Path) -> tuple[float, float]:
    """(seconds, MiB at most) of a process of its own, the faster of two."""
    command = [sys.executable, "-c", _TIMED.format(code), str(path)]
    runs = [subprocess.run(command, check=True, capture_output=True, text=True).stdout.split() for _ in range(2)]
    return min((float(seconds), float(memory)) for seconds, memory in runs)


def main() -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--most", type=float, default=40.0, help="the largest ratio")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path, twice = Path(folder) / "once.jsonl", Path(folder) / "twice.jsonl"
        write(path, given.megabytes)
        with twice.open("wb") as target:  # in pieces: a child's peak memory counts from that of its parent
            for _ in range(2):
                with path.open("rb") as source:
                    shutil.copyfileobj(source, target)
        read, audited, double = measure(_READ, path), measure(_AUDIT, path), measure(_AUDIT, twice)
    ratio, growth = audited[0] / read[0], double[1] / audited[1]
    print(f"{'':<34}{'seconds':>9}{'MiB':>7}")
    for name, (seconds, memory) in (
        (f"polars.read_ndjson, {given.megabytes} MB", read),
        (f"audit, {given.megabytes} MB", audited),
        (f"audit, {2 * given.megabytes} MB", double),
    ):
        print(f"{name:<34}{seconds:>9.2f}{memory:>7.0f}")
    print(f"audit over plain read: {ratio:.1f} (limit {given.most:g}); memory at twice the size: {growth:.2f}")
    return int(ratio > given.most or growth > _MOST_MEMORY)


if __name__ == "__main__":
    sys.exit(main())
