"""The tools on PyPI that diagnose training logs, on the same labelled run directories, beside this one.

    python benchmarks/peers.py --index INDEX.toml [--root DIR] [--peers DIR] [--timeout 60] [-v] [NAME ...]

The index lists directories below the root as [[run]] with `dir`, `truth` (cases that are right; [] is healthy), `open`
and `not_a_run` (both left out here). DIR of --peers is the folder of the tools' programs, such as the bin folder of a
virtual environment; a tool that is not there is left out with a line. Every directory is copied to one with a neutral
name first, which may not give the answer away.

What counts as an alarm is a finding that the tool itself calls a warning or worse: WARN or FAIL of trainproof (0.22),
warning or critical of runmedic (0.1), warning or error of trainspotter (0.2) and losslint (0.4); of gradforensics a
probable or proven finding of S1 or S2, its own default. Exit code 0: this measures, it does not judge.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

Outcome: TypeAlias = Literal["alarm", "quiet", "not read"]
Run: TypeAlias = Callable[[Path, float], Outcome]

LOGS = {".json", ".jsonl", ".csv", ".tsv", ".log", ".txt"}
MOST_FILES = 20  # of one directory, for a tool that reads single files


def by_exit_code(code: int, _said: str) -> Outcome:
    """What losslint and trainspotter, told to fail on warnings, and gradforensics mean by their exit codes."""
    return "quiet" if code == 0 else "alarm" if code == 1 else "not read"


def of_trainproof(_code: int, said: str) -> Outcome:
    """Its worst verdict, null where it found no log; the exit code is 1 for FAIL alone."""
    try:
        worst = json.loads(said)["worst_verdict"]
    except (ValueError, KeyError):
        return "not read"
    return "not read" if worst is None else "alarm" if worst in ("WARN", "FAIL") else "quiet"


def of_runmedic(_code: int, said: str) -> Outcome:
    """Its findings by severity; no JSON where it found no log, with the exit code of an alarm."""
    try:
        runs = json.loads(said)
    except ValueError:
        return "not read"
    severities = {finding["severity"] for run in runs for finding in run["findings"]}
    return "alarm" if severities & {"warning", "critical"} else "quiet"


@dataclass(frozen=True)
class Peer:
    """How a tool is called (the path is appended), how its answer is read, and whether it reads single files only."""

    arguments: tuple[str, ...]
    meant: Callable[[int, str], Outcome]
    of_files: bool = False


PEERS = {
    "trainproof": Peer(("doctor", "--json"), of_trainproof),
    "runmedic": Peer(("diagnose", "--json"), of_runmedic),
    "trainspotter": Peer(("analyze", "--no-color", "--fail-on", "warning"), by_exit_code, of_files=True),
    "losslint": Peer(("check", "--fail-severity", "warning"), by_exit_code),
}


@dataclass
class Tally:
    """What one tool did."""

    flagged: list[str] = field(default_factory=list)
    false: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    seconds: float = 0.0


def outcome(command: Sequence[str], meant: Callable[[int, str], Outcome], timeout: float) -> Outcome:
    """What a command says; one that takes too long has read nothing."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        return "not read"
    return meant(done.returncode, done.stdout)


def logs_of(folder: Path) -> list[Path]:
    """What a tool of single files is given of a directory: its logs, and folders with event files."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    events = sorted({path.parent for path in files if "tfevents" in path.name})
    return [*events, *(path for path in files if path.suffix in LOGS)][:MOST_FILES]


def of_peer(peer: Peer, program: str) -> Run:
    """Runs a peer on a directory; of several files the one with an alarm counts, then one that was read."""

    def run(folder: Path, timeout: float) -> Outcome:
        said: set[Outcome] = set()
        for path in logs_of(folder) if peer.of_files else [folder]:
            said.add(outcome([program, *peer.arguments, str(path)], peer.meant, timeout))
            if "alarm" in said:
                return "alarm"
        return "quiet" if "quiet" in said else "not read"

    return run


def ours(folder: Path, timeout: float) -> Outcome:
    """Run `gradforensics analyze`."""
    report = folder.with_name("report.html")
    command = [sys.executable, "-m", "gradforensics", "analyze", str(folder), "-o", str(report)]
    return outcome(command, by_exit_code, timeout)


def tools(folder: Path | None) -> dict[str, Run]:
    """The tools that are there, this one first."""
    found: dict[str, Run] = {"gradforensics": ours}
    for name, peer in PEERS.items():
        program = shutil.which(name, path=None if folder is None else str(folder))
        if program is None:
            print(f"{name} is not there: left out")
        else:
            found[name] = of_peer(peer, program)
    return found


def labelled(index: Path, names: Sequence[str]) -> list[tuple[str, bool]]:
    """(directory, whether it is sick) of every run whose label is settled."""
    runs = tomllib.loads(index.read_text(encoding="utf-8"))["run"]
    settled = [run for run in runs if not run.get("open") and not run.get("not_a_run")]
    return [(run["dir"], bool(run["truth"])) for run in settled if not names or run["dir"] in names]


def measure(runs: Sequence[tuple[str, bool]], root: Path, peers: Path | None, timeout: float) -> dict[str, Tally]:
    """Run every tool on every directory."""
    tallies: dict[str, Tally] = {}
    for tool, run in tools(peers).items():
        tally = tallies[tool] = Tally()
        for name, sick in runs:
            with tempfile.TemporaryDirectory() as temporary:
                folder = Path(temporary) / "run"
                shutil.copytree(root / name, folder, symlinks=True)
                start = time.perf_counter()
                said = run(folder, timeout)
                tally.seconds += time.perf_counter() - start
            if said == "alarm":
                (tally.flagged if sick else tally.false).append(name)
            elif said == "not read":
                tally.unread.append(name)
    return tallies


def table(tallies: dict[str, Tally], sick: int, healthy: int) -> str:
    """The table that is printed."""
    rows = [f"{'':15} {'sick flagged':>14} {'false alarms':>14} {'not read':>10} {'seconds':>9}"]
    for tool, tally in tallies.items():
        flagged, false = f"{len(tally.flagged)} of {sick}", f"{len(tally.false)} of {healthy}"
        rows.append(f"{tool:15} {flagged:>14} {false:>14} {len(tally.unread):>10} {tally.seconds:>9.1f}")
    return "\n".join(rows)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--index", type=Path, required=True, help="the labels")
    parser.add_argument("--root", type=Path, help="folder of the directories (default: that of the index)")
    parser.add_argument("--peers", type=Path, metavar="DIR", help="folder of the peers' programs (default: the PATH)")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds for one command")
    parser.add_argument("-v", "--verbose", action="store_true", help="name the directories")
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these directories")
    given = parser.parse_args()
    runs = labelled(given.index, given.names)
    tallies = measure(runs, given.root or given.index.parent, given.peers, given.timeout)
    print(table(tallies, sum(sick for _, sick in runs), sum(not sick for _, sick in runs)))
    for tool, tally in tallies.items() if given.verbose else ():
        print(f"{tool}: flagged {tally.flagged}; false alarms {tally.false}; not read {tally.unread}")


if __name__ == "__main__":
    main()
