"""The output of nvidia-smi: the full report of `nvidia-smi -q`, or the table that it prints without options."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from gradforensics.evidence.files import File, plain
from gradforensics.evidence.prefixes import date_seconds
from gradforensics.evidence.readings import Reading
from gradforensics.patterns import lazy
from gradforensics.tables import Event, Fact

name = "nvidia-smi"

_REPORT = lazy(r"={5,}NVSMI LOG={5,}")
_TABLE = lazy(
    r"^\| NVIDIA-SMI [\d.]{3,20}\s+Driver Version: (?P<driver>[\d.]{3,20})\s+CUDA Version: (?P<cuda>[\d.]{1,9}|N/A)"
)
_ROW = lazy(
    r"^\|\s+(?P<index>\d{1,3})\s+(?P<gpu>[A-Z][\w .()/-]{2,60}?)\s+(?:On|Off|N/A)\s+\|"
    r"\s*(?P<bus>[0-9A-Fa-f:.]{6,20})\s+(?:On|Off|N/A)\s+\|\s*(?P<ecc>\d{1,12}|N/A|Off)\s*\|"
)
_GPU = lazy(r"^GPU (?P<bus>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)\s*$")
_PAIR = lazy(r"^(?P<indent> *)(?P<key>[A-Za-z][\w ./()-]{0,60}?) *: (?P<value>.{0,200})$")
_HEADING = lazy(r"^(?P<indent> *)(?P<key>[A-Za-z][\w ./()-]{0,60}?)\s*$")
_LOST = lazy(r"GPU is lost|Unable to determine the device handle|No devices were found|ERR!|Unknown Error")
_TABLE_LINE = lazy(r"^(?:[+|].*|\s*|[A-Z][a-z]{2} [A-Z][a-z]{2} .{10,30})$")
_SLOWDOWNS = frozenset({"HW Slowdown", "HW Thermal Slowdown", "HW Power Brake Slowdown", "SW Thermal Slowdown"})
_STATES = frozenset(
    {
        "Pending Page Blacklist",
        "SRAM Threshold Exceeded",
        "Unrepairable Memory",
        "Channel Repair Pending",
        "TPC Repair Pending",
    }
)
_DEGREES = lazy(r"^(-?\d{1,4}) C$")
_FOREIGN = 3  # lines that are no part of the output: more of them make it another log
_MOST = 4096


def sniff(file: File) -> bool:
    """A file whose first lines are the head of a report or of the table."""
    first = [line for line in file.start.splitlines()[:40] if line.strip()][:6]
    return any(_REPORT.match(line.strip()) or _TABLE.match(line.strip()) for line in first)


def read(file: File) -> Reading:
    """Driver, CUDA and GPUs as facts, faults as events; unclaimed where the log of a program goes on below."""
    report = _Report(file.name)
    for number, line in file.lines():
        report.line(number, plain(line).rstrip("\r"))
        if report.foreign > _FOREIGN:
            return Reading(claimed=False)
    return report.reading()


@dataclass
class _Report:
    source: str
    foreign: int = 0
    events: list[Event] = field(default_factory=list)
    _facts: dict[tuple[str, str], int] = field(default_factory=dict)
    _gpus: Counter[str] = field(default_factory=Counter)
    _gpu_lines: dict[str, int] = field(default_factory=dict)
    _attached: str = ""
    _gpu: dict[str, Any] = field(default_factory=dict)
    _path: list[tuple[int, str]] = field(default_factory=list)
    _time: float | None = None
    _degrees: dict[str, int] = field(default_factory=dict)
    _full: bool = False
    _dropped: int = 0

    def line(self, number: int, line: str) -> None:
        """Take one line of a report or of a table."""
        if _REPORT.match(line.strip()):
            self._full, self._gpu, self._path = True, {}, []
        elif found := _TABLE.match(line):
            self._fact("driver", found["driver"], number)
            self._fact("cuda", found["cuda"], number)
        elif found := _ROW.match(line):
            self._row(number, line, found)
        elif found := _GPU.match(line):
            self._gpu, self._path, self._degrees = {"gpu": found["bus"].lower()}, [], {}
        elif _LOST.search(line):
            self._add(number, "gpu_fallen", line, {"error": line.strip()[:200]})
        elif found := _PAIR.match(line):
            self._pair(number, line, len(found["indent"]), found["key"], found["value"].strip())
        elif self._full and line.startswith(" ") and (found := _HEADING.match(line)):
            self._under(len(found["indent"]))
            self._path.append((len(found["indent"]), found["key"]))
        elif line.strip() and not _TABLE_LINE.match(line):
            self.foreign += 1

    def _under(self, indent: int) -> None:
        while self._path and self._path[-1][0] >= indent:
            self._path.pop()

    def _row(self, number: int, line: str, found: re.Match[str]) -> None:
        self._count(found["gpu"], number)
        if found["ecc"].isdecimal() and int(found["ecc"]):
            data = {"gpu": found["bus"].lower(), "index": int(found["index"]), "scope": "volatile"}
            self._add(number, "ecc", line, {**data, "corrected": False, "count": int(found["ecc"])})

    def _pair(self, number: int, line: str, indent: int, key: str, value: str) -> None:
        if indent == 0:
            self._top(number, key, value)
            return
        self._under(indent)
        path = [part for _, part in self._path]
        self._path.append((indent, key))
        if key == "Product Name" and value:
            self._count(value, number)
        elif value.isdecimal() and int(value[:18]) > 0:
            self._errors(number, line, path, key, int(value[:18]))
        elif value in ("Yes", "Active"):
            self._states(number, line, path, key)
        elif degrees := _DEGREES.match(value):
            self._temperature(number, line, key, int(degrees[1]))

    def _top(self, number: int, key: str, value: str) -> None:
        if key == "Timestamp":
            self._time = date_seconds(re.sub(r"\s+", " ", value))
        elif key == "Driver Version":
            self._fact("driver", value, number)
        elif key == "CUDA Version":
            self._fact("cuda", value, number)
        elif key == "Attached GPUs":
            self._attached = value
            self._fact("gpu_count", value, number)
        else:
            self.foreign += 1

    def _errors(self, number: int, line: str, path: list[str], key: str, count: int) -> None:
        """A count above zero of errors that ECC could not correct, or of memory that was taken out for them."""
        if "Remapped Rows" in path and key == "Uncorrectable Error":
            self._add(number, "ecc", line, {"what": "remapped rows", "corrected": False, "count": count})
        elif "Retired Pages" in path and key == "Double Bit ECC":
            self._add(number, "ecc", line, {"what": "retired pages", "corrected": False, "count": count})
        elif "ECC Errors" in path and ("Uncorrectable" in key or ("Double Bit" in path and key == "Total")):
            scope = next((part.lower() for part in path if part in ("Volatile", "Aggregate")), None)
            told = {"scope": scope, "where": key.replace(" Uncorrectable", "") if key != "Total" else None}
            known = {name: value for name, value in told.items() if value}
            self._add(number, "ecc", line, {**known, "corrected": False, "count": count})

    def _states(self, number: int, line: str, path: list[str], key: str) -> None:
        reasons = any(part in ("Clocks Throttle Reasons", "Clocks Event Reasons") for part in path)
        if reasons and key in _SLOWDOWNS:
            self._add(number, "thermal", line, {"reason": key})
        elif "Remapped Rows" in path and key in ("Pending", "Remapping Failure Occurred"):
            what = "row remapping pending" if key == "Pending" else "row remapping failed"
            self._add(number, "ecc", line, {"what": what, "corrected": False})
        elif key in _STATES:
            self._add(number, "ecc", line, {"what": key.lower(), "corrected": False})

    def _temperature(self, number: int, line: str, key: str, degrees: int) -> None:
        """Where a GPU is as hot as the limit at which it slows down; newer drivers name the distance to the limit."""
        self._degrees[key] = degrees
        now, limit = self._degrees.get("GPU Current Temp"), self._degrees.get("GPU Slowdown Temp")
        if key == "GPU Slowdown Temp" and now is not None and limit is not None and 0 < limit <= now:
            self._add(number, "thermal", line, {"reason": "slowdown temperature", "degrees": now, "limit": limit})
        left, slow = self._degrees.get("GPU T.Limit Temp"), self._degrees.get("GPU Slowdown T.Limit Temp")
        if key == "GPU Slowdown T.Limit Temp" and left is not None and slow is not None and left <= slow:
            self._add(number, "thermal", line, {"reason": "slowdown temperature", "left": left, "limit": slow})

    def _count(self, gpu: str, number: int) -> None:
        self._gpus[gpu] += 1
        self._gpu_lines.setdefault(gpu, number)

    def _fact(self, key: str, value: str, number: int) -> None:
        if value and value != "N/A" and len(self._facts) < _MOST:
            self._facts.setdefault((key, value), number)

    def _add(self, number: int, kind: str, line: str, data: dict[str, Any]) -> None:
        if len(self.events) >= _MOST:
            self._dropped += 1
            return
        text = line.strip()[:400]
        where = self._gpu.get("gpu")
        text = f"GPU {where}: {text}" if where else text
        self.events.append(Event(kind, text, self.source, number, time=self._time, data={**self._gpu, **data}))

    def reading(self) -> Reading:
        """Facts and events of everything that was read."""
        facts = [Fact(key, value, self.source, number) for (key, value), number in self._facts.items()]
        facts += [Fact("gpu", gpu, self.source, self._gpu_lines[gpu]) for gpu in self._gpus]
        if not self._attached and self._gpus:
            first = min(self._gpu_lines.values())
            facts.append(Fact("gpu_count", str(sum(self._gpus.values())), self.source, first))
        reading = Reading(events=self.events, facts=facts, claimed=bool(facts or self.events))
        if self._dropped:
            reading.notices.append((None, f"{self._dropped} more findings were left out"))
        return reading
