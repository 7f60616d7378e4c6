"""Train the first 50 steps, then let gradforensics judge them: before the cluster is paid for, not after.

python smoke_check.py FOLDER                  exit code 0: no proven or probable finding of S1 or S2
python smoke_check.py FOLDER --fault root     exit code 1: there is one; the summary and FOLDER/report.html say which

Other arguments go to train.py. Exit codes from 2 on are those of `gradforensics analyze`, or of a training that broke.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

STEPS = "50"
FAIL_ON = "S2"


def check(folder: Path, arguments: list[str]) -> int:
    """Train and analyze; the exit code of `gradforensics analyze`."""
    run = folder / "run"
    training = [sys.executable, str(Path(__file__).with_name("train.py")), str(run), "--steps", STEPS, *arguments]
    trained = subprocess.run(training, check=False)  # noqa: S603  our own script
    # a training that broke is analysed all the same: its log says where, and that is what the check is for
    outputs = ["-o", str(folder / "report.html"), "--output", f"md={folder / 'report.md'}"]
    command = [sys.executable, "-m", "gradforensics", "analyze", str(run), "--fail-on", FAIL_ON, *outputs]
    judged = subprocess.run(command, check=False)  # noqa: S603  our own command line
    return judged.returncode or trained.returncode


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(check(Path(sys.argv[1]), sys.argv[2:]))
