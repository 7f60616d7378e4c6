"""How logs tell that a process was ended from outside: signals, exit codes, schedulers, Ctrl-C, crashes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradforensics.patterns import lazy

_NUMBERS = {
    "HUP": 1, "INT": 2, "QUIT": 3, "ILL": 4, "TRAP": 5, "ABRT": 6, "BUS": 7, "FPE": 8, "KILL": 9, "USR1": 10,
    "SEGV": 11, "USR2": 12, "PIPE": 13, "ALRM": 14, "TERM": 15, "XCPU": 24,
}  # fmt: skip
_WORDS = {
    "segmentation fault": 11, "aborted": 6, "bus error": 7, "floating point exception": 8, "illegal instruction": 4,
    "killed": 9, "terminated": 15,
}  # fmt: skip
_CRASH = r"[Ss]egmentation fault|Aborted|[Bb]us error|Floating point exception|Illegal instruction"

# The shell's own words for a child, with its command behind them or alone on the line.
_SHELL = lazy(
    rf"(?:\S+: line \d+:\s+)?(?:\d+ )?(?P<word>Killed|Terminated|{_CRASH})"
    r"(?:\s*\(core dumped\))?(?:\s{2,}\S.*)?\s*$"
)
_SRUN = lazy(rf"srun: error: \S+: tasks? [\d,\[\]-]+: (?P<word>Killed|Terminated|{_CRASH})")
_DUMPED = lazy(rf"(?P<word>{_CRASH}) \(core dumped\)")
_FATAL = lazy(rf"Fatal Python error: (?P<word>{_CRASH})")
_NAMED = lazy(
    r"(?:(?:[Rr]eceived|RECEIVED|[Cc]aught|[Gg]ot|[Ff]atal|died with|killed by|[Tt]erminated (?:by|with|due to))"
    r"(?: an?| the)?(?: signal)?:?|Signal \d{1,2}) ?[(<]?(?:Signals\.)?SIG(?P<after>[A-Z]{3,4}[12]?)\b|"
    r"\bSIG(?P<before>[A-Z]{3,4}[12]?)\b(?: signal)? (?:was )?(?:received|caught|detected)\b"
)
_NUMBERED = lazy(
    r"Signal (?:code: )?(?P<a>\d{1,2}) \(|received signal (?P<b>\d{1,2})\b|got signal: (?P<c>\d{1,2})\b|"
    r"Received (?P<d>\d{1,2}) death signal|exitcode\s*:\s*-(?P<e>\d{1,2})\b|Signal: [A-Z][\w ]{2,30} \((?P<f>\d{1,2})\)"
)
_STATUS = lazy(
    r"(?i)\bexit(?:ed)?(?: with)?(?: exit)? (?:code|status)[ :=]{1,3}(?P<status>13[0-9]|143|152)\b|"
    r"\breturned non-zero exit status (?P<returned>13[0-9]|143)\b"
)
_CANCELLED = lazy(r"CANCELLED AT(?: \S+)?(?: DUE TO (?P<why>[A-Z ]{3,30}[A-Z]))?")
_BY_HAND = lazy(
    r"^\s*(?:\^C)?KeyboardInterrupt\s*$|[Kk]eyboard ?[Ii]nterrupt (?:detected|received)|Detected KeyboardInterrupt"
)
_OTHERS = lazy(r"^\s*scancel\b|DUE TO PREEMPTION|DUE TO NODE FAILURE|TERM_OWNER: job killed")
# What a launcher does to the others after one failed, or what only speaks of a signal.
_NOT = lazy(r"closing signal|(?i:handler|handling of|install|regist|will be sent|on receiving|when receiving)")


def killed(text: str) -> Mapping[str, Any] | None:
    """{"signal", "reason"} as far as the line tells them, where it says that a process was ended; else None."""
    if _NOT.search(text):
        return None
    if found := _CANCELLED.search(text):
        return {"reason": found["why"].lower()} if found["why"] else {}
    if _BY_HAND.search(text):
        return {"signal": 2}
    for pattern in (_SHELL, _SRUN, _DUMPED, _FATAL):
        if found := (pattern.match(text) if pattern is _SHELL else pattern.search(text)):
            return {"signal": _WORDS[found["word"].lower()]}
    if (found := _NAMED.search(text)) and (number := _NUMBERS.get(found["after"] or found["before"])):
        return {"signal": number} if number not in (10, 12) else None
    if found := _NUMBERED.search(text):
        return {"signal": int(next(group for group in found.groups() if group is not None))}
    if found := _STATUS.search(text):
        return {"signal": int(found["status"] or found["returned"]) - 128}
    return {} if _OTHERS.search(text) else None
