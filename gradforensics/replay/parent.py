"""The parent's side of a replay: children that may crash, hang or run out of memory, and what is kept (no torch)."""

from __future__ import annotations

import math
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gradforensics.errors import CapsuleError, ReplayError
from gradforensics.evidence.discover import printable
from gradforensics.experiments import Quantity, Result, result_from_json, result_to_json
from gradforensics.notices import Progress
from gradforensics.questions import QUESTIONS
from gradforensics.replay import job as jobs
from gradforensics.replay import limits
from gradforensics.replay.job import Job

STDOUT, STDERR = "stdout.txt", "stderr.txt"
_TICK = 0.1  # seconds between two looks at the limits
_PATIENCE = 5.0  # seconds that a process which hangs gets to say where
_LAST_WORDS = 1 << 20  # bytes of stderr in which a stack and the last words are looked for
_WAKING = 300.0  # seconds for the start of an interpreter that imports torch, before anything of the user's
_START = "import sys; sys.path.append(sys.argv[1]); from gradforensics.replay.child import main; main(*sys.argv[2:])"
_DUMP = re.compile(r"^(?:Fatal Python error|(?:Current thread|Stack)\b.*most recent call first)", re.MULTILINE)
_FRAME = re.compile(r'^  File "(.+)", line (\d+) in (.+)$', re.MULTILINE)
_OURS = str(Path(__file__).parent)


@dataclass(slots=True)
class Listener:
    """Who is told what: every result when it is there, the child's first report, progress."""

    on_result: Callable[[Result], None]
    on_prepared: Callable[[dict[str, Any]], None]
    progress: Progress | None = None


@dataclass(slots=True)
class _Story:
    """What one child told. running: the experiment that runs now. tried: those that were begun, with their costs."""

    awake: bool = False
    prepared: bool = False
    done: bool = False
    refused: tuple[str, int] | None = None
    running: str = ""
    tried: dict[str, float] = field(default_factory=dict)
    passed: set[str] = field(default_factory=set)
    results: list[Result] = field(default_factory=list)
    broken: str = ""


def run(job: Job, folder: Path, time_limit: float, listener: Listener) -> None:
    """Run all experiments of a job, in as many children as it takes. Raises ReplayError or CapsuleError.

    time_limit: seconds for every experiment, for building the program and for every step on the way.
    """
    ready = False
    with _terminable():
        while job.experiments:
            child = _Child(job, folder, time_limit, listener)
            try:
                story = child.listen()
            finally:
                child.stop()
            ending = child.ending()
            if story.done:
                return
            if story.refused and not ready:
                raise (CapsuleError if story.refused[1] == CapsuleError.exit_code else ReplayError)(story.refused[0])
            if not story.prepared and not ready:
                raise ReplayError(f"{ending.text()} while the program and its state were prepared{ending.said()}")
            died = story.running
            if died:
                story.results.append(_failed(job, died, ending.text(), ending.place, ending.tail))
                listener.on_result(story.results[-1])
                story.passed.add(died)
            left = tuple(name for name in job.experiments if name not in story.passed)
            if not story.passed:
                why = story.refused[0] if story.refused else f"{ending.text()} before it began{ending.said()}"
                for name in left:
                    listener.on_result(_not_run(job, name, f"A new process could not go on: {why}."))
                return
            ready = True
            spent = sum(story.tried.values())
            found = (*job.found, *(result_to_json(result) for result in story.results))
            budget = None if job.budget is None else max(job.budget - spent, 0.0)
            job = replace(job, experiments=left, found=found, budget=budget)


@dataclass(frozen=True, slots=True)
class _Ending:
    """How a child ended: why the parent killed it ("" where it did not), its return code, where it was, its words."""

    reason: str
    code: int
    place: str
    tail: str

    def text(self) -> str:
        """As the beginning of a sentence."""
        if self.reason:
            return self.reason
        if self.code >= 0:
            return f"the process ended with exit code {self.code}"
        try:
            name = signal.Signals(-self.code).name
        except ValueError:
            name = f"signal {-self.code}"
        by = ", perhaps by the kernel for want of memory" if name == "SIGKILL" else ""
        return f"the process was killed by {name}{by}"

    def said(self) -> str:
        """Where it was and the last lines of its stderr, as the end of a sentence."""
        where = f" ({self.place})" if self.place else ""
        return f"{where}: {self.tail}" if self.tail else where


class _Child:
    """One fresh interpreter that works on a job."""

    def __init__(self, job: Job, folder: Path, time_limit: float, listener: Listener) -> None:
        self._job, self._listener, self._limit = job, listener, time_limit
        self._folder = folder
        self._story = _Story()
        self._reason = ""
        self._since = time.monotonic()
        self._lines = jobs.Lines()
        self._errors = folder / STDERR
        path = jobs.write(folder, replace(job, parent=os.getpid()))
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}  # nothing is written beside the user's code
        if job.program.kind == "huggingface":
            environment |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
        self._pipe, theirs = os.pipe()
        os.set_blocking(self._pipe, False)
        try:
            with (folder / STDOUT).open("ab") as out, self._errors.open("ab") as errors:
                self._said_before = errors.tell()
                root = str(Path(__file__).parents[2])
                # -P: a folder of evidence may be the current one, and its files must not be taken for modules
                self._process = subprocess.Popen(  # noqa: S603  our own module; what it runs was named and allowed
                    [sys.executable, "-P", "-u", "-c", _START, root, str(path), str(theirs)],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=errors,
                    env=environment,
                    pass_fds=(theirs,),
                    start_new_session=True,
                )
        except BaseException:
            os.close(self._pipe)
            raise
        finally:
            os.close(theirs)

    def listen(self) -> _Story:
        """Follow the child to its end."""
        while not self._has_ended():
            self._receive(_TICK)
            if self._story.done or self._exceeded():
                break
        self._receive(0)
        return self._story

    def stop(self) -> None:
        """End it and everything that it started; afterwards nothing of it is left."""
        if self._story.done:
            deadline = time.monotonic() + _PATIENCE
            while not self._has_ended() and time.monotonic() < deadline:
                time.sleep(_TICK / 10)
        limits.kill(self._process.pid)
        self._process.wait()
        self._receive(0)
        os.close(self._pipe)

    def ending(self) -> _Ending:
        """How it ended."""
        with self._errors.open("rb") as file:
            file.seek(max(self._said_before, file.seek(0, os.SEEK_END) - _LAST_WORDS))
            text = file.read(_LAST_WORDS).decode("utf-8", "replace")
        dump = _DUMP.search(text)
        return _Ending(
            self._reason, self._process.returncode, self._place(text), _tail(text[: dump.start()] if dump else text)
        )

    # -- following -----------------------------------------------------------------------------------------------------

    def _has_ended(self) -> bool:
        """Whether it has, without waiting for it: as long as it is not waited for, nothing else gets its number."""
        try:
            return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True

    def _receive(self, timeout: float) -> None:
        """Take in all messages that are there, waiting for the first."""
        ready, _, _ = select.select([self._pipe], [], [], timeout)
        if not ready:
            return
        while True:
            try:
                data = os.read(self._pipe, 1 << 16)
            except BlockingIOError:
                return
            if not data:
                time.sleep(timeout / 10)  # it closed its end and runs on
                return
            for message in self._lines.take(data):
                self._understand(message)

    def _understand(self, message: dict[str, Any]) -> None:
        story, kind = self._story, message["kind"]
        if kind == "refused":
            story.refused = (str(message.get("text")), int(message.get("exit_code", 2)))
        elif kind == "awake":
            self._since = time.monotonic()
            story.awake = True
        elif kind == "rolled":
            self._since = time.monotonic()
            self._tell("rolling forward", message.get("done"), message.get("total"))
        elif kind == "prepared":
            story.prepared = True
            self._listener.on_prepared(message)
        elif kind == "started":
            self._since = time.monotonic()
            story.running = str(message["experiment"])
            story.tried[story.running] = float(message["cost"])
            self._tell(story.running, 0, story.tried[story.running])
        elif kind == "progress":
            self._tell(story.running, message.get("spent"), story.tried.get(story.running))
        elif kind == "result":
            self._result(result_from_json(message["result"]))
        elif kind == "failed":
            name = str(message["experiment"])
            text = _because(str(message["cause"]), str(message["text"]), self._job)
            self._result(_failed(self._job, name, text, str(message["place"]), ""))
            if message["cause"]:
                self._ended(name)
        elif kind == "ended":
            self._ended(str(message["experiment"]))
        elif kind == "done":
            story.done = True

    def _ended(self, name: str) -> None:
        self._story.passed.add(name)
        self._story.running = ""

    def _result(self, result: Result) -> None:
        self._story.results.append(result)
        self._listener.on_result(result)

    def _tell(self, what: str, done: Any, total: Any) -> None:
        if self._listener.progress is not None and total:
            whole = max(math.ceil(total), 1)
            self._listener.progress(what, min(math.floor(done or 0), whole), whole)

    # -- limits --------------------------------------------------------------------------------------------------------

    def _exceeded(self) -> bool:
        """Whether it is beyond a limit; then it has been asked where it is."""
        limit = self._limit if self._story.awake else _WAKING
        waiting = self._story.running or not self._story.prepared
        if waiting and time.monotonic() - self._since > limit:
            self._reason = f"the time limit of {limit:g} s was reached"
            self._ask_for_place()
            return True
        most = self._job.memory
        if most is not None and limits.used_memory(limits.processes_of(self._process.pid), most) > most:
            self._reason = f"the memory limit of {most / limits.GB:.3g} GB was reached"
            self._ask_for_place()
            return True
        return False

    def _ask_for_place(self) -> None:
        """Let faulthandler write its stack, for as long as patience lasts."""
        before = self._errors.stat().st_size
        with suppress(OSError, AttributeError):
            os.kill(self._process.pid, signal.SIGUSR1)
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline and not self._has_ended():
            time.sleep(_TICK / 2)
            now = self._errors.stat().st_size
            if now == before and now > self._said_before:
                return
            before = now

    def _place(self, text: str) -> str:
        """The innermost line of the user's code in a stack of faulthandler's, else the innermost that is not ours."""
        headings = list(_DUMP.finditer(text))
        frames = _FRAME.findall(text[headings[-1].start() :].partition("\n\n")[0]) if headings else []
        folder = str(Path(self._job.program.file).parent) + os.sep
        theirs = [f for f in frames if self._job.program.kind == "function" and f[0].startswith(folder)]
        others = [f for f in frames if not f[0].startswith(_OURS)]
        chosen = next(iter(theirs or others), None)
        return "" if chosen is None else f"{Path(chosen[0]).name}:{chosen[1]}, in {chosen[2]}"


def _tail(text: str) -> str:
    """The last three lines, at most 400 characters."""
    lines = [" ".join(one.split()) for one in text.splitlines() if one.strip()]
    return printable(" / ".join(lines[-3:])[-400:])


@contextmanager
def _terminable() -> Iterator[None]:
    """While children run, SIGTERM is taken as Ctrl-C is: they are ended before this process ends."""
    if threading.current_thread() is not threading.main_thread():  # the only one that may set handlers
        yield
        return

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    handler = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)


# -- results that no experiment gave -----------------------------------------------------------------------------------


def _because(cause: str, text: str, job: Job) -> str:
    if cause == "memory":
        limit = "" if job.memory is None else f" (memory limit {job.memory / limits.GB:.3g} GB)"
        return f"it ran out of memory{limit}: {text}"
    return {"device": f"the device failed: {text}", "exit": f"the program ended the process: {text}"}.get(cause, text)


def _failed(job: Job, name: str, how: str, place: str, tail: str) -> Result:
    doing = f", in {place}" if place else ""
    said = f"; its last words: {tail}" if tail else ""
    advice = ""
    if "memory" in how:
        advice = " --memory-limit GB gives it more."
    elif "time limit" in how:
        advice = " --time-limit S gives it longer."
    elif how.startswith("the device failed"):
        advice = " On the CPU (--device cpu) the same operation says what is wrong with its input."
    quantities = [Quantity("how", text=how), *([Quantity("doing", text=place)] if place else [])]
    return Result(
        name, job.step, QUESTIONS[name], "nothing", f"It did not come to its end: {how}{doing}{said}",
        f"It tells nothing else; the experiments after it do not depend on it.{advice}", "failed", tuple(quantities),
    )  # fmt: skip


def _not_run(job: Job, name: str, why: str) -> Result:
    return Result(name, job.step, QUESTIONS[name], "nothing", "not run", why, "not-run")
