"""Where processes stood: dumps of `py-spy dump` and of Python's faulthandler, one or several to a file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gradforensics.evidence import prefixes
from gradforensics.evidence.files import File, plain
from gradforensics.evidence.readings import Reading
from gradforensics.patterns import lazy
from gradforensics.tables import Event

name = "stack-dump"

_PROCESS = lazy(r"Process (?P<pid>\d{1,10})(?:: (?P<command>.{0,2000}))?$")
_PYTHON = lazy(r"Python v?\d[\w.+ -]{0,40}\(.{1,300}\)\s*$")
_SPY = lazy(r'Thread (?:0x)?(?P<id>[0-9A-Fa-f]{1,20}) \((?P<state>[a-z+ ]{4,30})\)(?:: "(?P<name>.{0,100})")?\s*$')
_FAULT = lazy(
    r"(?P<current>Current thread|Thread) 0x[0-9a-f]{4,20}(?: \[(?P<name>.{0,60})\])? \(most recent call first\):\s*$"
)
_SPY_FRAME = lazy(r"\s{2,}(?P<function>[^\s(][^()]{0,200}?) \((?P<file>.{1,400}?)(?::(?P<line>\d{1,9}))?\)\s*$")
_FAULT_FRAME = lazy(r'\s+File "(?P<file>[^"]{1,400})", line (?P<line>\d{1,9}|\?{3}) in (?P<function>.{1,200})$')
_EMPTY = lazy(
    r"\s*<no Python frame>\s*$|\s+Arguments:|\s+Locals:|\s+\.\.\.\s*$|Extension modules: |Timeout \(\d.{0,30}\)!"
)
_QUALIFIER = lazy(r"^(?:[\w<>]+\.)+(?=[\w<>]+ \()")  # of the class, which newer versions of py-spy name
_FATAL = lazy(r"Fatal Python error: (?P<what>.{1,120})")
_HEADS = ("(most recent call first)", "Thread ", "Process ")
_SHOWN = 8  # frames of the main thread that are kept
_MOST = 4096
_SNIFFED = 200
_RANK = lazy(r"--(?:node[-_])?local[-_]rank[= ](\d{1,6})\b|\bRANK=(\d{1,6})\b")
_TRAINING = lazy(r"(?i)\btorch[/.]|train|deepspeed|megatron|lightning|backward|optimizer")
_COLLECTIVE = (
    r"(?:all_?reduce|all_?gather|reduce_scatter|all_?to_?all|broadcast|barrier|_object_list|isend|irecv|wait|recv|send)"
    r"\w* \([^)]*(?:distributed|c10d|nccl|gloo|deepspeed.comm|megatron|p2p)|"
    r"^(?:all_reduce|all_gather\w*|reduce_scatter\w*|all_to_all\w*|barrier|monitored_barrier)\b"
)
# The innermost frame that says what a thread waits for; a lock says it only where nothing else does.
_WAITS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (what, lazy(pattern))
    for what, pattern in (
        ("collective", _COLLECTIVE),
        ("data loader", r"_try_get_data|_next_data|_get_data|\(.{0,200}(?:dataloader|data/_utils)|next_data"),
        ("GPU", r"^(?:synchronize|item|cpu|_cuda_\w+|elapsed_time)\b.{0,200}(?:cuda|torch)"),
        (
            "network",
            r"^(?:recv|recv_into|send|sendall|connect|accept|poll|select|read_from_socket)\b|socket\.py|ssl\.py",
        ),
        (
            "file system",
            r"^(?:write|read|open|fsync|flush|save|_save|torch_save|close|readinto|stat)\b|serialization\.py",
        ),
        ("lock", r"^(?:acquire|wait|join|_wait_for_tstate_lock|get|result|__enter__)\b"),
    )
)


def sniff(file: File) -> bool:
    """A text whose head holds the head of a thread's stack."""
    start = file.start
    if not any(head in start for head in _HEADS):
        return False
    bare = [prefixes.read(plain(line).rstrip("\r")).rest for line in start.splitlines()[:_SNIFFED]]
    return any(_SPY.match(line) or _FAULT.match(line) for line in bare)


def read(file: File) -> Reading:
    """One event "stack" per process; unclaimed where the dump is only a part of another log."""
    dumps = _Dumps(file.name)
    for number, line in file.lines():
        prefix = prefixes.read(plain(line).rstrip("\r"))
        dumps.line(number, prefix)
        if dumps.foreign > 20 and dumps.foreign > dumps.own:
            return Reading(claimed=False)
    if dumps.foreign * 4 > dumps.own:
        return Reading(claimed=False)
    return dumps.reading()


@dataclass
class _Thread:
    line: int
    name: str
    state: str
    current: bool
    frames: list[str] = field(default_factory=list)
    depth: int = 0


@dataclass
class _Process:
    line: int
    prefix: prefixes.Prefix
    pid: int | None = None
    command: str = ""
    fatal: str = ""
    threads: list[_Thread] = field(default_factory=list)

    @property
    def main(self) -> _Thread | None:
        """The main thread: by its name, by where Python began, or the one that crashed."""
        for wanted in (
            [t for t in self.threads if t.name == "MainThread"],
            [t for t in self.threads if t.current and self.fatal],
            [t for t in self.threads if t.frames and t.frames[-1].startswith("<module>")],
            [t for t in self.threads if t.current],
        ):
            if wanted:
                return wanted[0]
        return self.threads[-1] if self.threads else None


@dataclass
class _Dumps:
    source: str
    own: int = 0
    foreign: int = 0
    processes: list[_Process] = field(default_factory=list)
    dropped: int = 0

    def line(self, number: int, prefix: prefixes.Prefix) -> None:
        """Take one line."""
        text = prefix.rest
        if not text.strip():
            return
        self.own += 1
        if found := _PROCESS.match(text):
            self._begin(_Process(number, prefix, int(found["pid"]), (found["command"] or "").strip()))
        elif found := _FATAL.search(text):
            self._begin(_Process(number, prefix, fatal=found["what"].strip()))
        elif found := _SPY.match(text) or _FAULT.match(text):
            self._thread(number, prefix, found)
        elif found := _SPY_FRAME.match(text) or _FAULT_FRAME.match(text):
            self._frame(found)
        elif not _PYTHON.match(text) and not _EMPTY.match(text):
            self.own -= 1
            self.foreign += 1

    def _begin(self, process: _Process) -> None:
        if len(self.processes) < _MOST:
            self.processes.append(process)
        else:
            self.dropped += 1

    def _thread(self, number: int, prefix: prefixes.Prefix, found: re.Match[str]) -> None:
        fields = found.groupdict()
        last = self.processes[-1] if self.processes else None
        ended = last is not None and not last.pid and any(t.current for t in last.threads)
        if last is None or last.prefix.label != prefix.label or (ended and "current" in fields):
            # faulthandler prints the thread that called it last
            last = _Process(number, prefix)
            self._begin(last)
        if len(last.threads) < _MOST:
            current = fields.get("current") == "Current thread"
            last.threads.append(_Thread(number, fields["name"] or "", fields.get("state") or "", current))

    def _frame(self, found: re.Match[str]) -> None:
        if not self.processes or not self.processes[-1].threads:
            return
        thread = self.processes[-1].threads[-1]
        thread.depth += 1
        place = f"{found['file']}:{found['line']}" if found["line"] else found["file"]
        frame = f"{found['function'].strip()} ({place})"
        if len(thread.frames) > _SHOWN:
            thread.frames.pop()  # the outermost one that is kept is the last one
        thread.frames.append(frame)

    def reading(self) -> Reading:
        """One event per process with threads."""
        told = [process for process in self.processes if process.threads]
        reading = Reading(events=[self._event(process) for process in told], claimed=bool(told))
        reading.speaks_of_training = any(_trains(process) for process in told)
        if self.dropped:
            reading.notices.append((None, f"the stacks of {self.dropped} more processes were left out"))
        return reading

    def _event(self, process: _Process) -> Event:
        main = process.main
        frames = main.frames if main else []
        waits = waits_for(frames)
        data: dict[str, Any] = {"process": process.pid, "threads": len(process.threads), "frames": frames[:_SHOWN]}
        data |= {"command": process.command[:400]} if process.command else {}
        data |= {"state": main.state} if main and main.state else {}
        data |= {"waits": waits} if waits else {}
        data |= {"fatal": process.fatal} if process.fatal else {}
        who = f"process {process.pid}" if process.pid is not None else "a process"
        where = f" in {frames[0]}" if frames else " outside of Python"
        waiting = f", waits for: {waits}" if waits else ""
        rank = process.prefix.rank
        if rank is None and (found := _RANK.search(process.command)):
            rank = int(found[1] or found[2])
        text = f"{who}: main thread{where}{waiting}"[:400]
        line = main.line if main else process.line
        return Event("stack", text, self.source, line, rank=rank, host=process.prefix.host, time=process.prefix.time,
                     data={key: value for key, value in data.items() if value is not None})  # fmt: skip


def waits_for(frames: Sequence[str]) -> str | None:
    """What a thread waits for, by its frames: collective, data loader, GPU, file system, network or lock."""
    bare = [_QUALIFIER.sub("", frame) for frame in frames]
    return next((what for what, pattern in _WAITS if any(pattern.search(frame) for frame in bare)), None)


def _trains(process: _Process) -> bool:
    frames = [frame for thread in process.threads for frame in thread.frames]
    return any(_TRAINING.search(text) for text in (process.command, *frames))
