"""Assembling the tracebacks of one process: what was raised, where, and what had been raised before it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from gradforensics.evidence.events.lines import trouble
from gradforensics.patterns import lazy

TEXT = 400  # characters of a message that are kept
PATIENCE = 5  # lines without a frame after which a traceback counts as torn

_HEADER = lazy(
    r"\s*(?:\+ Exception Group )?(?:Original )?Traceback \(most recent call last\)|"
    r"[╭┌+][─-]{2,}.{0,20}Traceback \(most recent call last\)"
)
_FRAME = lazy(r'\s+File "|\s+\[Previous line repeated')
_PLACE = lazy(r'\s*(?:\|\s*)?File "(?P<path>[^"]{1,500})", line (?P<line>\d{1,9})(?:,)? in (?P<function>.{1,120})')
_BOX = lazy(r"[│|] (?P<path>\S.{0,300}?):(?P<line>\d{1,9}) in (?P<function>\S{1,120})")
_FINAL = lazy(r"((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:\([A-Za-z_]\w*\))?)(?::\s?(.*))?$", re.DOTALL)
_ERROR_NAME = lazy(r"(?:Error|Exception|Interrupt|Exit|Timeout|Failure|Iteration|Warning|Abort|Killed|Group)\w*\)?$")
_CHAIN = ("During handling of the above exception", "The above exception was the direct cause")
_ASIDE = lazy(
    r"(?P<ignored>Exception ignored (?:in|on|while)|--- Logging error ---)|Exception in thread (?P<thread>[^:]{1,80})"
)
_LIBRARY = lazy(r"[/\\](?:site|dist)-packages[/\\]|[/\\]lib[/\\]python\d|<frozen |[/\\]lib64[/\\]python\d")


def is_header(bare: str) -> bool:
    """Whether a traceback begins with this line."""
    return "Traceback (most" in bare and _HEADER.match(bare) is not None


def is_frame(bare: str) -> bool:
    """Whether a line is a frame of a traceback."""
    return _FRAME.match(bare) is not None


@dataclass(slots=True)
class Lane:
    """The lines of one process. header: line of the traceback that is open, 0 = none; seen: its last line."""

    header: int = 0
    seen: int = 0
    closed: int = -10
    raised: dict[str, Any] = field(default_factory=dict)
    _waited: int = 0
    _below_frame: bool = False
    _where: str = ""
    _grouped: bool = False
    _chained: bool = False
    _aside: dict[str, str] = field(default_factory=dict)

    def open(self, number: int, bare: str = "") -> None:
        """Begin a traceback at this line; of one that was open nothing is known but its frames."""
        if self.header and not self._chained:
            self.raised = {}
        self.header, self.seen, self._waited, self._below_frame, self._where = number, number, 0, False, ""
        self._grouped = "Exception Group" in bare

    def reopen(self, number: int, bare: str) -> None:
        """More frames right below an exception: those of another process, which the message quotes."""
        self.header, self.seen, self._waited = number, number, 0
        self._frame(bare)

    def remark(self, number: int, bare: str) -> bool:
        """Take a line between two tracebacks that says how the next one is meant; whether it was one."""
        if any(words in bare for words in _CHAIN):
            self._chained, self.seen = True, number
            return True
        if found := _ASIDE.search(bare):
            self._aside = {"thread": found["thread"]} if found["thread"] else {"ignored": found[0]}
            self.seen = number
            return True
        return False

    def line(self, number: int, bare: str) -> tuple[str, dict[str, Any]] | None:
        """Take a line of the open traceback; (kind, data) of the exception where it ends with it."""
        self.seen = number
        if self._grouped:
            bare = re.sub(r"^\s*[|+] ?", "", bare)
        if not bare.strip() or bare[0] in " \t│|╭╰┌└" or is_frame(bare):
            self._frame(bare)
            return None
        found = _FINAL.match(bare.strip())
        if found is None or not self._names_exception(found):
            self._wait()
            return None
        return self._end(number, bare.strip(), found[1], found[2] or "")

    def _frame(self, bare: str) -> None:
        if not bare.strip():
            self._wait()
            return
        self._below_frame = True
        place = _PLACE.match(bare) or _BOX.match(bare)
        if place and (not self._where or not _LIBRARY.search(place["path"])):
            self._where = f"{place['function'].strip()} ({place['path']}:{place['line']})"

    def _wait(self) -> None:
        self._waited += 1
        self._below_frame = False
        if self._waited >= PATIENCE:
            self.header = 0

    def _names_exception(self, found: re.Match[str]) -> bool:
        """Whether a line that is not indented can be "package.Name: message" and nothing that was printed between."""
        name = found[1].rpartition(".")[2]
        if _ERROR_NAME.search(name):
            return True
        return found[2] is not None and name[:1].isupper() and ("." in found[1] or self._below_frame)

    def _end(self, number: int, text: str, name: str, message: str) -> tuple[str, dict[str, Any]] | None:
        data: dict[str, Any] = {"type": name.rpartition(".")[2], "message": message[:TEXT], "traceback": self.header}
        if self._where:
            data["where"] = self._where
        before = self.raised
        if self._chained and before:
            data["cause"] = before.get("cause") or {key: before[key] for key in ("type", "message", "line")}
        kind = "exception"
        other = trouble(text)
        if name.endswith("KeyboardInterrupt"):
            kind, data["signal"] = "killed", 2
        elif other is not None:
            kind, data = other[0], {**data, **other[1]}
        if "ignored" in self._aside:
            kind, data["about"] = "warning", "an exception that Python ignored"
        elif self._aside:
            data |= self._aside
        self.raised = {**data, "line": number}
        self.header, self.closed, self._chained, self._aside = 0, number, False, {}
        return None if name.endswith("SystemExit") else (kind, data)
