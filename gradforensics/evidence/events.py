"""Remarkable lines of a console log: what stopped a run, what it skipped, where it began again."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gradforensics.tables import Event

TERMINAL = ("exception", "oom", "killed", "timeout", "completed")
_TEXT = 400
_SCANNED = 4096
_MOST = 2000  # events of one kind that are kept from one file

_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_PREFIX = re.compile(r"^(?:\(\w+[^()]*pid=\d+[^()]*\)\s?|\[(?:default|rank)\s?:?\s?\d+\]:\s?|\d+:\s)+")
_RANK = re.compile(r"\[(?:default|[Rr]ank)\s?:?\s?(\d+)\]|\brank[ :=_]?(\d+)\]?:\s|\(\w+[^()]*\brank=(\d+)[^()]*\)")
_FINAL = re.compile(r"((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:\([A-Za-z_]\w*\))?)(?::\s?(.*))?$", re.DOTALL)
_ERROR_NAME = re.compile(r"(?:Error|Exception|Interrupt|Exit|Timeout|Failure|Iteration|Warning|Abort|Killed)\w*\)?$")
_FRAME = re.compile(r'\s+File "|\s*Traceback \(most recent call last\)|\s*Original Traceback')

_OOM = re.compile(
    r"(?:CUDA|HIP|NPU|XPU|MPS backend) out of memory|OutOfMemoryError|Memory cgroup out of memory|"
    r"DefaultCPUAllocator: (?:not enough|can't allocate) memory|Out of memory: Kill(?:ed)? process|"
    r"oom[-_]kill event|OOMKilled|RESOURCE_EXHAUSTED: Out of memory|Cannot allocate memory|^MemoryError|"
    r"CU(?:BLAS|DNN)_STATUS_ALLOC_FAILED"
)
_TIMEOUT = re.compile(
    r"DUE TO TIME LIMIT|Watchdog caught collective operation timeout|ran for \d+ milliseconds before timing out|"
    r"TIME_LIMIT reached|PBS: job killed: walltime"
)
_KILLED = re.compile(
    r"^(?:\S+: line \d+:\s+\d+\s+)?Killed(?:\s|$)|^Terminated\s*$|\bSIGKILL\b|\bSIGTERM\b|exitcode\s*:\s*-(?:9|15)\b|"
    r"Signal (?:9|15) \(|received signal (?:9|15)\b|CANCELLED AT|^\s*scancel\b|^\s*(?:\^C)?KeyboardInterrupt\s*$|"
    r"[Kk]eyboard ?[Ii]nterrupt (?:detected|received)|Detected KeyboardInterrupt|DUE TO PREEMPTION"
)
_OVERFLOW = re.compile(
    r"OVERFLOW!.*?Attempted loss scale: (?P<was>[\d.e+]+), (?:reducing to (?P<to>[\d.e+]+)|but hysteresis is)|"
    r"OVERFLOW!.*Skipping step|"
    r"[Gg]radient overflow.*?(?:reducing loss scale to|setting loss scale to:) (?P<to2>[\d.e+-]+)"
)
_RESUME = re.compile(
    r"(?i)\bresum(?:ing|ed)\b.{0,60}\b(?:from|training|at|checkpoint)\b|\bcontinuing training from checkpoint\b|"
    r"\bsuccessfully loaded checkpoint\b"
)
_COMPLETED = re.compile(
    r"(?i)\btraining (?:is |has )?(?:been )?(?:completed?|finished|done)\b|\bfinished training\b|"
    r"`Trainer\.fit` stopped: `max_(?:epochs|steps)=|\*{3,} train metrics \*{3,}"
)
_NOT_COMPLETED = re.compile(r"(?i)\b(?:not|until|when|if|after|before|once)\b.{0,30}training|%\|")
_WARNING = re.compile(r"`?lr_scheduler\.step\(\)`? before `?optimizer\.step\(\)`?")
_LAUNCH = re.compile(
    r"\*{3,} ?Running training|[Ss]tarting training\b|Instantiating (?:the )?(?:model|trainer|datamodule)|"
    r"Started a local Ray instance|distributed init \(rank 0|Launching (?:training|job)|GPU available: (?:True|False)"
)
_TRAINING = re.compile(
    r"trainer\.(?:fit|train)\b|\b(?:pre)?train(?:er)?(?:_\w+)?\.py\b|\bfine-?_?tune\w*\.py\b|train_batch_size|"
    r"[Rr]unning training|[Ss]tarting training|"
    r"lr_scheduler|optimizer\.step|\.backward\(|\bmain_ppo\b|training_step\b|Total optimization steps"
)
_TRIED = re.compile(r"Tried to allocate ([\d.]+) ([KMGT]?i?B)")
_COLLECTIVE = re.compile(r"OpType=(\w+)")
_SEQUENCE = re.compile(r"SeqNum=(\d+)")


def suspicious(line: str) -> bool:
    """A cheap first look: whether a line could hold anything that this module knows."""
    return (
        "rror" in line or "xcept" in line or "emory" in line or "illed" in line or "SIG" in line or "nterrupt" in line
        or "raceback" in line or "VERFLOW" in line or "verflow" in line or "esum" in line or "LIMIT" in line
        or "imeout" in line or "timing out" in line or "raining" in line or "topped" in line or "CANCEL" in line
        or "lr_sched" in line or "OOM" in line or "oom" in line or "xitcode" in line or "ignal" in line
        or "train metrics" in line or "Instantiating" in line or "Started a local" in line or "distributed init" in line
        or "Terminated" in line or "checkpoint" in line or "scancel" in line or "GPU available" in line
        or "STATUS_ALLOC" in line or "PREEMPT" in line
    )  # fmt: skip


def rank_of(line: str) -> int | None:
    """The rank that a line's prefix names, or None."""
    found = _RANK.search(line[:80]) if "ank" in line[:80] or "[default" in line[:20] else None
    return int(next(g for g in found.groups() if g is not None)) if found else None


def without_prefix(line: str) -> str:
    """The line without Ray's, torchrun's and srun's label of the process that wrote it."""
    return _PREFIX.sub("", line)


def classify(text: str) -> tuple[str, Mapping[str, Any]] | None:
    """(kind, data) of a line outside of tracebacks, or None."""
    if found := _OVERFLOW.search(text):
        was, to = found["was"], found["to"] or found["to2"]
        return "overflow", {k: float(v.rstrip(".")) for k, v in (("from", was), ("to", to)) if v}
    if _WARNING.search(text):
        return "warning", {"about": "lr_scheduler.step() before optimizer.step()"}
    if _OOM.search(text):
        tried = _TRIED.search(text)
        return "oom", {"bytes": int(float(tried[1]) * _UNITS.get(tried[2], 1))} if tried else {}
    if _TIMEOUT.search(text):
        data: dict[str, Any] = {}
        if found := _COLLECTIVE.search(text):
            data["collective"] = found[1]
        if found := _SEQUENCE.search(text):
            data["sequence"] = int(found[1])
        return "timeout", data
    if _KILLED.search(text) and "closing signal" not in text:
        return "killed", {}
    if _COMPLETED.search(text) and not _NOT_COMPLETED.search(text):
        return "completed", {}
    if _RESUME.search(text):
        return "resume", {}
    return None


@dataclass
class Scanner:
    """Fed with the lines of one log; collects events and whether a training speaks.

    launch_line, closing_line: of the last launch, and of the last event that ends a training.
    """

    source: str
    step_at: Callable[[], int | None]
    events: list[Event] = field(default_factory=list)
    launch_line: int | None = None
    closing_line: int | None = None
    speaks_of_training: bool = False
    dropped: Counter[str] = field(default_factory=Counter)
    _kept: Counter[str] = field(default_factory=Counter)
    _last: dict[str, int] = field(default_factory=dict)
    _open: bool = False
    _waited: int = 0
    _closed_at: int = -10

    @property
    def inside_traceback(self) -> bool:
        """Whether the next line may still belong to a traceback."""
        return self._open

    def feed(self, number: int, whole: str) -> None:
        """Look at one line (already without colours), no further right than 4096 characters."""
        line = whole[:_SCANNED]
        if not self._open and not suspicious(line):
            if number == self._closed_at + 1 and _FRAME.match(without_prefix(line)):
                self._open = True
            return
        bare = without_prefix(line)
        if not self.speaks_of_training and _TRAINING.search(line):
            self.speaks_of_training = True
        if "raceback" in bare and _FRAME.match(bare):
            self._open, self._waited = True, 0
            return
        if self._open:
            self._inside(number, line, bare)
            return
        if _LAUNCH.search(bare):
            self.launch_line = number
        if found := classify(bare):
            self.keep(number, found[0], line, found[1])
        elif _FRAME.match(bare) and number == self._closed_at + 1:
            self._open = True

    def _inside(self, number: int, line: str, bare: str) -> None:
        """A line of a traceback: its frames are indented, the first line that is not indented says what was raised."""
        if not bare.strip() or bare[0] in " \t" or _FRAME.match(bare):
            self._waited += not bare.strip()
            self._open = self._waited < 5
            return
        found = _FINAL.match(bare.strip())
        named = found is not None and (
            _ERROR_NAME.search(found[1]) or (found[2] is not None and found[1].rpartition(".")[2][:1].isupper())
        )
        if not found or not named:
            self._waited += 1
            self._open = self._waited < 5
            return
        self._open, self._closed_at = False, number
        kind, data = "exception", {"type": found[1].rpartition(".")[2], "message": (found[2] or "")[:_TEXT]}
        other = classify(bare.strip())
        if other and other[0] in ("oom", "timeout", "killed"):
            kind, data = other[0], {**data, **other[1]}
        elif found[1].endswith("KeyboardInterrupt"):
            kind = "killed"
        if not found[1].endswith("SystemExit"):
            self.keep(number, kind, line, data)

    def keep(self, number: int, kind: str, line: str, data: Mapping[str, Any]) -> None:
        """Add an event; of the thousands of one kind the first ones and the very last stay."""
        event = Event(
            kind, line.strip()[:_TEXT], self.source, number, rank=rank_of(line), step=self.step_at(), data=data
        )
        if kind in TERMINAL:
            self.closing_line = number
        if self._kept[kind] < _MOST:
            self._kept[kind] += 1
            self._last[kind] = len(self.events)
            self.events.append(event)
        else:
            self.dropped[kind] += 1
            self.events[self._last[kind]] = event
