"""The replay command without its command line: what is run, where it is written, what is said before (no torch)."""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradforensics import __version__, experiments
from gradforensics.errors import OutputError, ReplayError, UsageError
from gradforensics.experiments import HEADER, PARTIAL, RESULTS, Replay, Result
from gradforensics.notices import Progress
from gradforensics.questions import QUESTIONS
from gradforensics.replay import job as jobs
from gradforensics.replay import limits, logged, parent, sources
from gradforensics.replay.job import Job
from gradforensics.replay.parent import STDERR, STDOUT, Listener
from gradforensics.replay.sources import Chosen, Wanted

_TOOL = "gradforensics"
_FILES = (HEADER, PARTIAL, RESULTS, jobs.FILE, STDOUT, STDERR)
_LARGEST_LIMIT = 1e9  # GB: what setrlimit(2) takes


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asked for. time_limit: seconds per experiment; memory_limit: GB; budget: steps in all."""

    wanted: Wanted
    experiments: tuple[str, ...] = ()
    device: str = "auto"
    time_limit: float = 600.0
    memory_limit: float | None = None
    budget: float | None = None
    runs: int = 3


@dataclass(frozen=True, slots=True)
class Plan:
    """A replay that could begin: nothing of the user's has run and nothing is written."""

    options: Options
    chosen: Chosen
    experiments: tuple[str, ...]
    memory: int | None

    @property
    def default_name(self) -> str:
        """The name of the replay directory where the user gives none."""
        rank = f"-rank{self.options.wanted.rank}" if self.options.wanted.rank else ""
        return f"gradforensics-replay-{self.chosen.name}-{self.chosen.step}{rank}"

    @property
    def inputs(self) -> list[Path]:
        """The folders into which nothing may be written."""
        given = (self.options.wanted.run, self.chosen.run, self.options.wanted.checkpoint)
        return list(dict.fromkeys(one for one in given if one is not None))

    def announcement(self) -> list[str]:
        """Lines that say what is about to run, the code of the user's by file, function and hash first."""
        chosen = self.chosen
        lines = [f"step {chosen.step} of {chosen.name}, from {chosen.text}"]
        lines += [
            f"runs {code.function} of {code.file} (sha256 {code.sha256}), allowed by {code.allowed_by}"
            for code in chosen.codes
        ]
        lines += chosen.notices
        memory = "no memory limit" if self.memory is None else f"{self.memory / limits.GB:.3g} GB"
        lines.append(f"limits: {self.options.time_limit:g} s per experiment, {memory}")
        return lines


def plan(options: Options, progress: Progress | None = None) -> Plan:
    """Find what is to be run. Raises UsageError, ReplayError, CapsuleError and NoEvidenceError."""
    for option, value in (("--time-limit", options.time_limit), ("--budget", options.budget)):
        if value is not None and math.isnan(value):
            raise UsageError(f"{option}: {value:g} is no number")
    if options.memory_limit is not None and not options.memory_limit <= _LARGEST_LIMIT:
        raise UsageError(f"--memory-limit: {options.memory_limit:g} GB is no memory that a machine has")
    names = _experiments(options)
    chosen = sources.choose(options.wanted, progress)
    if options.memory_limit is not None:
        return Plan(options, chosen, names, int(options.memory_limit * limits.GB))
    available = limits.available_memory()
    return Plan(options, chosen, names, None if available is None else int(limits.SHARE * available))


def _experiments(options: Options) -> tuple[str, ...]:
    """The experiments in the order of QUESTIONS: those named, else all; `fix` with --fix only."""
    fix = options.wanted.fix is not None
    if "fix" in options.experiments and not fix:
        raise UsageError("--experiment fix needs --fix FILE.py:FUNCTION")
    chosen = set(options.experiments) or set(QUESTIONS)
    chosen = chosen | {"fix"} if fix else chosen - {"fix"}
    return tuple(name for name in QUESTIONS if name in chosen)


def carry_out(
    plan: Plan, folder: Path, *, force: bool, say: Callable[[str], None], progress: Progress | None = None
) -> Replay:
    """Run the experiments and write the replay directory as they answer. Raises ReplayError, CapsuleError, OutputError.

    say: called with every line for the user before something of theirs runs.
    """
    options, chosen = plan.options, plan.chosen
    values, remarks = ({}, list[str]()) if chosen.run is None else logged.of_step(chosen.run, chosen.step, progress)
    replay = Replay(
        f"{_TOOL} {__version__}", chosen.name, chosen.step, options.device, chosen.text, code=chosen.codes,
        notices=[*chosen.notices, *remarks],
    )  # fmt: skip
    for line in [*plan.announcement(), *remarks]:
        say(line)
    job = Job(
        parent=0, step=chosen.step, run=str(chosen.run.resolve()) if chosen.run else "", device=options.device,
        state=chosen.state, program=chosen.program, fix=chosen.fix, experiments=plan.experiments, runs=options.runs,
        budget=options.budget, logged=values, memory=plan.memory, memory_given=options.memory_limit is not None,
    )  # fmt: skip
    try:
        with _alone(folder):
            _make(folder, force=force)
            experiments.write_header(folder, replay)
            parent.run(job, folder, options.time_limit, _listener(folder, replay, say, progress))
            replay.finished = True
            experiments.write_header(folder, replay)
            (folder / jobs.FILE).unlink(missing_ok=True)
    except OSError as error:
        raise OutputError(f"{folder}: {error.strerror or error}") from error
    except ReplayError as error:
        raise ReplayError(f"{error}{_said(folder)}") from None
    return replay


def _listener(folder: Path, replay: Replay, say: Callable[[str], None], progress: Progress | None) -> Listener:
    def on_result(result: Result) -> None:
        replay.results.append(result)
        experiments.append(folder, result)

    def on_prepared(message: dict[str, Any]) -> None:
        if replay.environment:  # a later child says the same again
            return
        replay.device = str(message["device"])
        replay.environment = dict(message["environment"])
        replay.notices += message["notices"]
        experiments.write_header(folder, replay)
        costs = {str(name): float(cost) for name, cost in message["costs"].items()}
        listed = ", ".join(f"{name} {cost:.3g}" for name, cost in costs.items())
        say(f"costs at most {sum(costs.values()):.4g} steps on {replay.device}: {listed}")

    return Listener(on_result, on_prepared, progress)


def _said(folder: Path) -> str:
    """Where the program's own output lies, as the end of a message, where there is any."""
    spoken = [
        folder / name for name in (STDERR, STDOUT) if (folder / name).is_file() and (folder / name).stat().st_size
    ]
    return f"; its output: {' and '.join(map(str, spoken))}" if spoken else ""


# -- the replay directory ----------------------------------------------------------------------------------------------


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """The folder, which is made, for this replay alone: another one would mix its results with ours."""
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"{folder} is no folder")
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise OutputError(f"another replay is writing into {folder}; choose another folder with -o") from None
    except OSError:  # a file system without locks
        pass
    try:
        yield
    finally:
        os.close(descriptor)


def _make(folder: Path, *, force: bool) -> None:
    """Make a folder an empty replay directory: what an earlier replay wrote there is removed.

    Raises OutputError where it holds something else, and OSError.
    """
    if any(folder.iterdir()) and not force and not _ours(folder):
        raise OutputError(
            f"{folder} exists and was not written by a replay; choose another folder with -o or pass --force"
        )
    for name in _FILES:
        (folder / name).unlink(missing_ok=True)
    for name in (STDOUT, STDERR):
        (folder / name).touch()


def _ours(folder: Path) -> bool:
    if {one.name for one in folder.iterdir()} <= {PARTIAL, STDOUT, STDERR}:  # it got no further: the disk was full
        return True
    try:
        data = json.loads((folder / HEADER).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    tool = data.get("tool") if isinstance(data, dict) else None
    return isinstance(tool, str) and tool.startswith(_TOOL)
