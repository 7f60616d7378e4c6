"""Kernel logs: dmesg (boot-relative or -T), /dev/kmsg records, syslog, journalctl (short, ISO, Unix times)."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from gradforensics.evidence.blocks import Block, blocks
from gradforensics.evidence.events import kernel
from gradforensics.evidence.files import LINE_LIMIT, File, plain
from gradforensics.evidence.prefixes import date_seconds, iso_seconds
from gradforensics.evidence.readings import Reading
from gradforensics.patterns import lazy
from gradforensics.tables import Event, Fact

name = "kernel-log"

_NAMES = lazy(r"^(?:dmesg|kern(?:el)?|kmsg|syslog|messages|journal(?:ctl)?)(?:[._-].*)?$")
_MONTHS = "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"
_ISO = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?"
# One of these begins every line of the kernel; group "rest" is its message.
_LINE = lazy(
    rf"""
      (?:kern[ ]*:\w{{1,10}}[ ]*:[ ])? (?:<\d{{1,3}}>)? (?:
        \[[ ]{{0,12}}(?P<uptime>\d{{1,12}}\.\d{{3,9}})\][ ]?(?P<a>.*)
      | \[(?P<date>[A-Z][a-z]{{2}}[ ][A-Z][a-z]{{2}}[ ]{{1,2}}\d{{1,2}}[ ]\d\d:\d\d:\d\d[ ]\d{{4}})\][ ]?(?P<b>.*)
      | (?P<records>\d{{1,5}},\d{{1,19}},(?P<micro>\d{{1,19}}),[^;]{{1,40}};)(?P<c>.*)
      | (?:(?P<syslog>(?:{_MONTHS})[ ][ \d]\d[ ]\d\d:\d\d:\d\d)|(?P<iso>{_ISO})|(?P<unix>1\d{{9}}(?:\.\d{{1,9}})?))[ ]
        (?:(?P<host>[\w.-]{{1,120}})[ ])?kernel:[ ](?:\[[ ]{{0,12}}(?P<inner>\d{{1,12}}\.\d{{3,9}})\][ ])?(?P<d>.*)
      | (?P<decoded>{_ISO})[ ](?P<e>.*)
      )
    """,
    re.VERBOSE | re.DOTALL,
)
_OTHER = lazy(
    rf"(?:(?:{_MONTHS}) [ \d]\d \d\d:\d\d:\d\d|{_ISO}|1\d{{9}}(?:\.\d+)?) "
    r"[\w.-]{1,120} [\w./@()-]{1,80}(?:\[\d+\])?: "
)
_SNIFFED = 60  # lines of the head that are looked at
_ENOUGH = 3  # lines of the kernel that make a kernel log whatever it is called
_FRAMES = 12  # functions of a stack that are kept
_STACK = 90  # lines below a hung task in which its stack stands
_SCANNED = 4096  # characters of a message that are looked at
_MOST = 2000  # events of one kind that are kept
_FRAME = lazy(r"\s*(?P<maybe>\? )?(?P<name>[\w.]{2,400}?)(?:\.(?:isra|part|constprop|cold)[.\d]*)*(?:\+0x[0-9a-f]+|$)")
_INVOKED = lazy(r"(?P<process>\S.{0,62}?) invoked oom-killer:")
_RECORD = lazy(r"oom-kill:.{0,4000}?\btask=(?P<process>[^,]{1,64}),pid=(?P<pid>\d{1,10})")
_DRIVER = lazy(r"NVRM: loading NVIDIA UNIX .{0,60}?Kernel Module.{0,20}?\s(?P<version>\d{3}\.[\d.]{1,20})\s")
_LINUX = lazy(r"^Linux version (?P<version>\S{1,120})")
_FILE_SYSTEM = (
    r"(?i)gpfs|mmfs|\bnfs|rpc_wait|ll_file|ldlm|osc_|lustre|xfs_|ext4_|jbd2|btrfs|ceph_|fuse_|cifs|fsync|vfs_|writeback|"
    r"io_schedule|wait_on_page"
)
_MARKS = (*kernel.MARKS, "invoked oom-killer", "oom-kill:", "NVRM: loading", "Linux version")
_WAITS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (what, lazy(pattern))
    for what, pattern in (
        ("GPU driver", r"^(?:nvidia_|_nv\d|nv_|os_acquire|uvm_|rm_)"),
        ("InfiniBand", r"^(?:ib_uverbs|mlx5|ib_|rdma_|uverbs_)"),
        ("file system", _FILE_SYSTEM),
    )
)
# What a machine tells beside its faults: alone it makes no run of a log.
_ORDINARY = frozenset({"link_down", "io_error", "pcie_error", "file_system", "segfault", "gpu_driver"})


def sniff(file: File) -> bool:
    """A file called after a kernel log that holds a line of one, or whose head holds little else."""
    lines = [line for line in file.start.splitlines()[:_SNIFFED] if line.strip()]
    kernel_lines = sum(_is_kernel(line) for line in lines)
    if kernel_lines == 0:
        return False
    named = _NAMES.match(file.base) is not None
    others = sum(_OTHER.match(line) is not None for line in lines if not _is_kernel(line))
    if named and (kernel_lines + others) * 2 >= len(lines):
        return True
    return kernel_lines >= _ENOUGH and (kernel_lines + others) * 10 >= len(lines) * 8


def _is_kernel(line: str) -> bool:
    found = _LINE.match(line)
    # a moment alone begins the lines of many logs
    return found is not None and (found["decoded"] is None or line.startswith("kern"))


def read(file: File) -> Reading:
    """Every finding as an event; `events` is empty where the log was read and holds none."""
    log = _Log(file.name)
    for block in blocks(file):
        log.block(block)
    return log.reading()


def _marked(text: str) -> list[int]:
    """Where the lines of a block begin that hold a mark, ascending."""
    starts: set[int] = set()
    for mark in _MARKS:
        place = text.find(mark)
        while place >= 0:
            starts.add(text.rfind("\n", 0, place) + 1)
            end = text.find("\n", place)
            place = text.find(mark, end) if end >= 0 else -1
    return sorted(starts)


@dataclass
class _Log:
    source: str
    events: list[Event] = field(default_factory=list)
    facts: dict[tuple[str, str], Fact] = field(default_factory=dict)
    dropped: Counter[str] = field(default_factory=Counter)
    _kept: Counter[str] = field(default_factory=Counter)
    _stacks: dict[str | None, _Stack] = field(default_factory=dict)
    _invoked: dict[str | None, str] = field(default_factory=dict)
    _killed: dict[tuple[str | None, int], dict[str, Any]] = field(default_factory=dict)

    def block(self, block: Block) -> None:
        """Look at the first line of a block, at those with a mark, and at all below a task that hangs."""
        text, number, place = block.text, block.line, 0
        starts = _marked(text)
        upcoming = 0
        while place < len(text):
            end = text.find("\n", place)
            self._line(number, text[place : min(end, place + LINE_LIMIT)])
            if self._stacks:
                place, number = end + 1, number + 1
                continue
            while upcoming < len(starts) and starts[upcoming] <= place:
                upcoming += 1
            if upcoming == len(starts):
                break
            number += text.count("\n", place, starts[upcoming])
            place = starts[upcoming]

    def _line(self, number: int, line: str) -> None:
        bare = plain(line).rstrip("\r")
        found = _LINE.match(bare)
        if found is not None and (found["decoded"] is None or bare.startswith("kern")):
            self._message(number, bare, found)

    def _message(self, number: int, line: str, found: re.Match[str]) -> None:
        text = next(t for t in (found["a"], found["b"], found["c"], found["d"], found["e"]) if t is not None)[:_SCANNED]
        host = found["host"]
        stack = self._stacks.get(host)
        if stack is not None and not stack.line(number, text):
            del self._stacks[host]
        self._fact(number, text, host)
        if " invoked oom-killer" in text and (invoked := _INVOKED.search(text)):
            self._invoked[host] = invoked["process"].strip()
            return
        if text.startswith("oom-kill:") and (record := _RECORD.match(text)):
            self._kill(number, line, found, {"pid": int(record["pid"]), "process": record["process"]})
            return
        said = kernel.message(text)
        if said is None:
            return
        kind, data = said[0], dict(said[1])
        if kind == "oom_killer":
            self._kill(number, line, found, data)
            return
        if kind in ("hung_task", "lockup"):
            self._stacks[host] = _Stack(number, data)
        self._add(number, kind, line, found, data)

    def _kill(self, number: int, line: str, found: re.Match[str], data: dict[str, Any]) -> None:
        """One event per process that the OOM killer took, though the kernel tells of it in several lines."""
        host = found["host"]
        if len(self._killed) > _MOST:
            self._killed.clear()
        known = self._killed.get((host, data["pid"]))
        if known is not None:
            known.update(data)
            return
        if host in self._invoked:
            data["invoked_by"] = self._invoked.pop(host)
        self._killed[host, data["pid"]] = data
        self._add(number, "oom_killer", line, found, data)

    def _add(self, number: int, kind: str, line: str, found: re.Match[str], data: dict[str, Any]) -> None:
        if self._kept[kind] >= _MOST:
            self.dropped[kind] += 1
            return
        self._kept[kind] += 1
        uptime = found["uptime"] or found["inner"]
        if uptime is not None:
            data["uptime"] = float(uptime)
        elif found["micro"] is not None:
            data["uptime"] = int(found["micro"]) / 1e6
        self.events.append(
            Event(kind, line.strip()[:400], self.source, number, host=found["host"], time=_time(found), data=data)
        )

    def _fact(self, number: int, text: str, host: str | None) -> None:
        if host is not None and ("host", host) not in self.facts and len(self.facts) < _MOST:
            self.facts["host", host] = Fact("host", host, self.source, number, host=host)
        for key, pattern, mark in (("driver", _DRIVER, "NVRM: loading"), ("kernel", _LINUX, "Linux version")):
            if mark in text and (found := pattern.search(text)):
                self.facts.setdefault(
                    (key, found["version"]), Fact(key, found["version"], self.source, number, host=host)
                )

    def reading(self) -> Reading:
        """What the log told; it speaks of a run of its own where a GPU, a process or the memory failed."""
        serious = any(e.kind not in _ORDINARY and not e.data.get("corrected") for e in self.events)
        reading = Reading(events=self.events, facts=list(self.facts.values()), speaks_of_training=serious)
        for kind, count in self.dropped.items():
            reading.notices.append((None, f'{count} more events of the kind "{kind}" were left out'))
        return reading


@dataclass
class _Stack:
    """The stack that the kernel prints below a task that hangs: its functions, innermost first."""

    begin: int
    data: dict[str, Any]
    _inside: bool = False

    def line(self, number: int, text: str) -> bool:
        """Take one line; whether the stack may go on."""
        if number - self.begin > _STACK:
            return False
        if text.strip() in ("Call Trace:", "<TASK>"):
            self._inside = True
            return True
        if not self._inside:
            return not text.startswith("INFO: task")
        found = _FRAME.match(text)
        if found is None or not text.startswith(" "):
            return False
        if not found["maybe"]:
            self._frame(found["name"])
        return True

    def _frame(self, function: str) -> None:
        frames = self.data.setdefault("frames", [])
        if len(frames) < _FRAMES:
            frames.append(function[:80])
        waits = next((what for what, pattern in _WAITS if pattern.search(function)), None)
        if waits is not None:
            self.data.setdefault("waits", waits)


def _time(found: re.Match[str]) -> float | None:
    """Unix seconds, None where a line names no year; a moment without a zone counts as UTC."""
    if found["date"] is not None:
        return date_seconds(found["date"])
    if found["unix"] is not None:
        return float(found["unix"])
    text = found["iso"] or found["decoded"]
    return iso_seconds(text) if text is not None else None
