"""Collects the events of one log, line by line."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gradforensics.evidence import prefixes
from gradforensics.evidence.collect_env import MARKS as REPORTS
from gradforensics.evidence.collect_env import Report
from gradforensics.evidence.events import lines
from gradforensics.evidence.events.kinds import ending_kind
from gradforensics.evidence.events.tracebacks import TEXT, Lane, is_frame, is_header
from gradforensics.tables import Event

_SCANNED = 4096
_MOST = 2000  # events of one kind that are kept from one file
_MOST_LANES = 4096
_STALE = 400  # lines of other processes after which an open traceback counts as torn
_NEXT = 64  # lines of other processes that may stand between two lines of one
_BLOCK = 8  # lines from the head of torchrun's summary to the exit code in it

_FATAL = re.compile(r"Fatal Python error: (.{1,200})")
_CURRENT = re.compile(r"\s*Current thread 0x[0-9a-f]+.{0,40}\(most recent call first\)")
_PLACE = re.compile(r'\s*File "([^"]{1,500})", line (\d{1,9}) in (.{1,120})')
_FAILED_RANK = re.compile(r"\brank\s*: (\d{1,6}) \(local_rank: \d{1,6}\)")
_EXIT_CODE = re.compile(r"\bexitcode\s*: (-?\d{1,5})\b")
_CANCELLED = re.compile(r"(?: ON (?P<host>[\w.-]{1,100}))? CANCELLED AT (?P<at>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)")
_SRUN = re.compile(r"srun: error: (?P<host>[\w.-]{1,100}): task (?P<task>\d{1,6}): ")


def without_prefix(line: str) -> str:
    """The line without the labels and moments that launchers and loggers write in front."""
    return prefixes.read(line).rest


@dataclass
class Scanner:
    """Fed with the lines of one log; collects events and whether a training speaks.

    Every process, known by the label in front of its lines, has tracebacks of its own. launch_line, closing_line: of
    the last launch, and of the last event that ends a training. report: what the log prints of its environment.
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
    _lanes: dict[str, Lane] = field(default_factory=dict)
    _open: set[str] = field(default_factory=set)
    _crash: dict[str, Any] | None = None
    _crash_thread: bool = False
    _root: int = -_BLOCK
    _failed: tuple[int, int] = (-_BLOCK, 0)
    report: Report = field(init=False)

    def __post_init__(self) -> None:
        self.report = Report(self.source)

    @property
    def inside_traceback(self) -> bool:
        """Whether the next line may still belong to a traceback, or to a report of the environment."""
        return bool(self._open) or self.report.is_open

    def feed(self, number: int, whole: str) -> None:
        """Look at one line (already without colours), no further right than 4096 characters."""
        line = whole[:_SCANNED]
        if not self.inside_traceback and not lines.suspicious(line):
            return
        if self.report.is_open or any(mark in line for mark in REPORTS):
            writer = prefixes.read(line)
            self.report.line(number, writer.rest, label=writer.label, rank=writer.rank, host=writer.host)
        if not self.speaks_of_training and lines.speaks_of_training(line):
            self.speaks_of_training = True
        prefix = prefixes.read(line)
        lane = self._lanes.get(prefix.label)
        if is_header(prefix.rest):
            self._lane(prefix.label).open(number, prefix.rest)
            self._open.add(prefix.label)
        elif lane is not None and lane.header:
            self._inside(number, line, prefix, lane)
        elif lane is not None and is_frame(prefix.rest) and number - lane.closed <= (_NEXT if prefix.label else 1):
            lane.reopen(number, prefix.rest)
            self._open.add(prefix.label)
        elif lines.suspicious(line):
            self._outside(number, line, prefix)
        if self._open:
            self._tidy(number)

    def _lane(self, label: str) -> Lane:
        if len(self._lanes) > _MOST_LANES:
            self._lanes = {name: lane for name, lane in self._lanes.items() if lane.header}
        return self._lanes.setdefault(label, Lane())

    def _tidy(self, number: int) -> None:
        """Give up the tracebacks that were torn: their process has said nothing for long."""
        for label in tuple(self._open):
            lane = self._lanes.get(label)
            if lane is None or not lane.header or number - lane.seen > _STALE:
                self._open.discard(label)
                if lane is not None:
                    lane.header = 0

    def _inside(self, number: int, line: str, prefix: prefixes.Prefix, lane: Lane) -> None:
        found = lane.line(number, prefix.rest)
        if found is not None:
            self._add(number, found[0], line, found[1], prefix)

    def _outside(self, number: int, line: str, prefix: prefixes.Prefix) -> None:
        bare = prefix.rest
        if "xception" in bare or "Logging error" in bare:
            lane = self._lanes.get(prefix.label) or Lane()
            if lane.remark(number, bare):
                self._lanes[prefix.label] = lane
                return
        if self._crashed(number, line, prefix) or self._summary(number, line, prefix):
            return
        if lines.launches(bare):
            self.launch_line = number
        if found := lines.classify(bare):
            self._add(number, found[0], line, found[1], prefix)

    def _crashed(self, number: int, line: str, prefix: prefixes.Prefix) -> bool:
        """Whether the line belongs to what faulthandler prints of a process that crashes."""
        if (found := _FATAL.search(prefix.rest)) and not lines.is_code(prefix.rest):
            kind, told = lines.trouble(prefix.rest) or ("exception", {})
            data = {**told} if kind == "killed" else {"type": "Fatal Python error", "message": found[1].strip()}
            self._crash, self._crash_thread = data, False
            self._add(number, kind if kind == "killed" else "exception", line, data, prefix)
            return True
        if self._crash is None:
            return False
        if _CURRENT.match(prefix.rest):
            self._crash_thread = True
            return True
        if self._crash_thread and (place := _PLACE.match(prefix.rest)):
            self._crash["where"] = f"{place[3].strip()} ({place[1]}:{place[2]})"  # of the event that was added above
            self._crash = None
            return True
        return False

    def _summary(self, number: int, line: str, prefix: prefixes.Prefix) -> bool:
        """Whether the line belongs to torchrun's summary of the processes that failed."""
        if "first observed failure" in line:
            self._root = number
            return True
        if found := _FAILED_RANK.search(line):
            self._failed = (number, int(found[1]))
            return True
        if not (found := _EXIT_CODE.search(line)):
            return False
        at, rank = self._failed
        code = int(found[1])
        data: dict[str, Any] = (
            {"exit_code": code, "root": True} if number - self._root < _BLOCK else {"exit_code": code}
        )
        kind = "child_failed" if code >= 0 else "killed"
        if code < 0:
            data["signal"] = -code
        named = prefix._replace(rank=rank) if number - at < _BLOCK else prefix
        self._add(number, kind, line, data, named)
        return True

    def keep(self, number: int, kind: str, line: str, data: Mapping[str, Any]) -> None:
        """Add an event; of the thousands of one kind the first ones and the very last stay."""
        self._add(number, kind, line, data, prefixes.read(line))

    def _add(self, number: int, kind: str, line: str, data: Mapping[str, Any], prefix: prefixes.Prefix) -> None:
        prefix = _of_slurm(line, prefix)
        event = Event(
            kind,
            line.strip()[:TEXT],
            self.source,
            number,
            rank=prefix.rank,
            host=prefix.host,
            time=prefix.time,
            step=self.step_at(),
            data=data,
        )
        if ending_kind(event) is not None:
            self.closing_line = number
        if self._kept[kind] < _MOST:
            self._kept[kind] += 1
            self._last[kind] = len(self.events)
            self.events.append(event)
        else:
            self.dropped[kind] += 1
            self.events[self._last[kind]] = event


def _of_slurm(line: str, prefix: prefixes.Prefix) -> prefixes.Prefix:
    """Host, rank and moment that a message of Slurm names itself."""
    if found := _CANCELLED.search(line):
        time = prefix.time if prefix.time is not None else prefixes.iso_seconds(found["at"])
        return prefix._replace(host=prefix.host or found["host"], time=time)
    if found := _SRUN.search(line):
        return prefix._replace(host=found["host"], rank=int(found["task"]))
    return prefix
