"""How fast logs are read, each format against its peers, as ratios in one run on the same generated data.

    python benchmarks/ingest.py [--peers PYTHON] [--quick] [PART ...]

Parts: tensorboard (against EventAccumulator and tbparse), wandb (against wandb's own protobufs), tables (JSON lines and
CSV through to the finished report, against trainproof, runmedic and losslint), console (a Megatron-LM log against a
Python loop with `re`). PYTHON is an interpreter whose environment has these peers, and this package: the default is the
one that runs this. Each part prints its figures and limits; exit code 1 where one misses a limit. --quick measures
less: no 10^7 rows, a log of 200 MB.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
PARTS = ("tensorboard", "wandb", "tables", "console")


def command(part: str, peers: str, *, quick: bool) -> list[str]:
    """The command that measures one part."""
    script = str(HERE / f"ingest_{part}.py")
    if part == "tensorboard":  # its peers are imported
        return [peers, script, *(["--quick"] if quick else [])]
    if part == "wandb":
        return [sys.executable, script, "--peer", peers, *(["--runs", "1"] if quick else [])]
    if part == "tables":
        return [sys.executable, script, "--peers", str(Path(peers).parent), *(["--quick"] if quick else [])]
    return [sys.executable, script, *(["--megabytes", "200"] if quick else [])]


def main() -> int:
    """Measure the parts one after the other: two at once would disturb each other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--peers", default=sys.executable, metavar="PYTHON")
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    if unknown := set(given.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; parts are {', '.join(PARTS)}")
    failed = []
    for part in given.parts or PARTS:
        print(f"== {part}", flush=True)
        if subprocess.run(command(part, given.peers, quick=given.quick), check=False).returncode:
            failed.append(part)
    print(f"limits missed by: {', '.join(failed)}" if failed else "all limits hold")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
