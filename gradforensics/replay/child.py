"""The child's side of a replay: the only process that runs the user's code. It may die at any line; see `job`."""

from __future__ import annotations

import faulthandler
import os
import platform
import signal
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from gradforensics.capsule import read_header
from gradforensics.errors import GradforensicsError, ReplayError
from gradforensics.experiments import result_from_json, result_to_json
from gradforensics.replay import activation_checkpoints, flags, from_checkpoint, huggingface, limits
from gradforensics.replay import job as jobs
from gradforensics.replay.experiment import Context, Experiment
from gradforensics.replay.experiments import EXPERIMENTS
from gradforensics.replay.job import Job, ProgramOf
from gradforensics.replay.program import Program, Request, load
from gradforensics.replay.recording import Recording, from_capsule
from gradforensics.replay.step import StepRunner
from gradforensics.replay.user_code import sha256_of

_OURS = str(Path(__file__).parents[1]) + os.sep


def main(path: str, pipe: str) -> None:
    """Work on the job in a file, writing messages to an inherited descriptor; ends the process."""
    job = jobs.read(Path(path))
    limits.end_with(job.parent)
    os.set_inheritable(int(pipe), False)
    faulthandler.enable(all_threads=False)
    faulthandler.register(signal.SIGUSR1, all_threads=False)  # the parent asks where we are
    _Work(job, partial(_write, int(pipe))).run()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # threads and exit handlers of the user's code must not keep us


def _write(pipe: int, data: bytes) -> None:
    while data:
        data = data[os.write(pipe, data) :]


class _Work:
    def __init__(self, job: Job, write: Callable[[bytes], None]) -> None:
        self._job, self._write = job, write
        self._ready = False
        self._doing = "the recorded state could not be read"  # said of what goes wrong before the first experiment
        self._steps = job.step - job.state.first  # on the way to the one in question
        self._before = 0.0  # steps spent before the experiment that runs

    def _tell(self, kind: str, **content: Any) -> None:
        self._write(jobs.line(kind, **content))

    def run(self) -> None:
        """Everything; the parent learns of each thing as it happens."""
        self._tell("awake")
        try:
            context = self._prepare()
        except GradforensicsError as error:
            self._tell("refused", text=str(error), exit_code=error.exit_code)
            return
        except BaseException as error:  # noqa: BLE001  whatever the user's code raises is told, and ends nothing else
            self._tell("refused", text=self._explained(error), exit_code=2)
            return
        self._ready = True
        if self._experiments(context):
            self._tell("done")

    # -- before the first experiment -----------------------------------------------------------------------------------

    def _prepare(self) -> Context:
        job = self._job
        device = _device(job.device)
        _confine(device, job)
        recording: Recording | None = None
        if job.state.capsule:
            folder = Path(job.state.capsule)
            recording = from_capsule(folder, read_header(folder))
            flags.restore(recording.flags)
            self._steps = len(recording.steps) - 1
        self._doing = "the program could not be built"
        activation_checkpoints.install()
        request = Request(
            job.step,
            device,
            settings=job.program.settings if job.program.kind == "function" else {},
            checkpoint=Path(job.state.checkpoint) if job.state.checkpoint else None,
            run=Path(job.run) if job.run else None,
        )
        program = _program(job.program, request)
        if recording is None:
            self._doing = "checkpoint and batches could not be read"
            recording = from_checkpoint.record(job.state, job.step, program)
        self._doing = f"the step could not be prepared from {recording.source}"
        runner = StepRunner(recording, program, device, on_progress=self._spent)
        context = Context(
            runner,
            logged=dict(job.logged),
            runs=job.runs,
            found=[result_from_json(one) for one in job.found],
            other=None if job.fix is None else partial(_program, job.fix, request),
        )
        costs = {one.name: one.cost(context) for one in self._wanted()}
        self._before = runner.spent
        self._tell(
            "prepared", device=device, state=recording.source, environment=_environment(device),
            notices=recording.notices, costs=costs,
        )  # fmt: skip
        return context

    def _wanted(self) -> list[Experiment]:
        return [one for one in EXPERIMENTS if one.name in self._job.experiments]

    def _spent(self, steps: float) -> None:
        if self._ready:
            self._tell("progress", spent=steps - self._before)
        else:
            self._tell("rolled", done=steps, total=self._steps)

    def _explained(self, error: BaseException) -> str:
        """What kept the first experiment from beginning, with the line of the user's code."""
        place = self._place(error, whole=True)
        if isinstance(error, SystemExit):
            text = f"it ended the process (exit code {error.code})"
        elif isinstance(error, SyntaxError):
            place, text = f"{error.filename}:{error.lineno}", f"SyntaxError: {error.msg}"
        else:
            text = _named(error)
        if limits.fatal(error) == "memory" and self._job.memory is not None:
            text += f" (memory limit {self._job.memory / limits.GB:.3g} GB)"
        return f"{self._doing}: {place + ': ' if place else ''}{text}"

    def _place(self, error: BaseException, *, whole: bool = False) -> str:
        """FILE:LINE of the innermost frame of the user's code, else of the innermost that is not ours.

        whole: FILE with its folder.
        """
        frames = traceback.extract_tb(error.__traceback__)
        folders = [str(Path(p.file).parent) + os.sep for p in (self._job.program, self._job.fix) if p and p.sha256]
        theirs = [f for f in frames if any(f.filename.startswith(folder) for folder in folders)]
        others = [f for f in frames if not f.filename.startswith((_OURS, "<"))]
        frame = next(reversed(theirs or others or frames), None)
        return "" if frame is None else f"{frame.filename if whole else Path(frame.filename).name}:{frame.lineno}"

    # -- the experiments -----------------------------------------------------------------------------------------------

    def _experiments(self, context: Context) -> bool:
        """Run them one after another; whether this process could go on to the end."""
        left = self._job.budget
        for experiment in self._wanted():
            cost = experiment.cost(context)
            if left is not None and cost > left:
                self._leave_out(context, experiment.name, cost, left)
                continue
            left = None if left is None else left - cost
            self._tell("started", experiment=experiment.name, cost=cost)
            self._before = context.runner.spent
            if not self._run(context, experiment):
                return False
            self._tell("ended", experiment=experiment.name)
        return True

    def _leave_out(self, context: Context, name: str, cost: float, left: float) -> None:
        why = f"It costs up to {cost:g} steps; --budget leaves {left:g}."
        self._found(context, context.result(name, "nothing", "not run", why, "not-run"))
        self._tell("ended", experiment=name)

    def _run(self, context: Context, experiment: Experiment) -> bool:
        try:
            for result in experiment.run(context):
                self._found(context, result)
        except BaseException as error:  # noqa: BLE001  an experiment that fails must not cost the others
            cause = "exit" if not isinstance(error, Exception) else limits.fatal(error)
            text = f"exit code {error.code}" if isinstance(error, SystemExit) else _named(error)
            self._tell("failed", experiment=experiment.name, cause=cause, text=text, place=self._place(error))
            return not cause
        return True

    def _found(self, context: Context, result: Any) -> None:
        context.found.append(result)
        self._tell("result", result=result_to_json(result))


def _named(error: BaseException) -> str:
    """The type of an error and the first 500 characters of its text, on one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}{f': {text}' if text else ''}"[:500]


def _program(code: ProgramOf, request: Request) -> Program:
    if code.kind == "huggingface":
        return huggingface.build(code.settings, code.function)
    file = Path(code.file)
    if sha256_of(file) != code.sha256:
        raise ReplayError(f"{file} changed after it was named: it is not run")
    return load(file, code.function, request)


def _device(wanted: str) -> str:
    if wanted == "cpu":
        return "cpu"
    if torch.cuda.is_available():
        return "cuda"
    if wanted == "cuda":
        raise ReplayError("--device cuda: torch finds no CUDA device here")
    return "cpu"


def _confine(device: str, job: Job) -> None:
    """Memory limits that show as errors; the parent watches the rest. CUDA reserves addresses that it does not use."""
    if device == "cpu":
        limits.confine(job.memory)
        return
    free, total = torch.cuda.mem_get_info()
    most = job.memory if job.memory_given and job.memory is not None else limits.SHARE * free
    torch.cuda.set_per_process_memory_fraction(min(most / total, 1.0))


def _environment(device: str) -> dict[str, str]:
    """What the numbers may depend on."""
    found = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "threads": str(torch.get_num_threads()),
    }
    if device == "cuda":
        found |= {"gpu": torch.cuda.get_device_name(), "cuda": str(torch.version.cuda)}
    return found
