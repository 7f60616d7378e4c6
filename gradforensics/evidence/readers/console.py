"""Console logs: series from lines of known dialects, from dicts or "key: value" lines, and the events of a training."""

from __future__ import annotations

import re

from gradforensics.evidence.console.blocks import blocks
from gradforensics.evidence.console.result import reading_of
from gradforensics.evidence.console.scan import Scan
from gradforensics.evidence.files import LINE_LIMIT, File, shorten
from gradforensics.evidence.readings import Reading

name = "console"

_LOGS = re.compile(r"\.(?:log|out|err|stdout|stderr|[oe]\d+)$|^(?:nohup|log|stdout|stderr|output|slurm)")
_TEXTS = frozenset({"", ".txt"})
_NO_LOGS = re.compile(
    r"^(?:readme|licen[cs]e|copying|notice|changelog|requirements|constraints|makefile|dockerfile|authors|citation)\b"
)
SLOW_BYTES = 1 << 20  # so much of a log is read line by line: it teaches what its lines look like


def sniff(file: File) -> bool:
    """Any text whose name does not speak against it; read() claims it where it finds something."""
    if _NO_LOGS.match(file.base):
        return False
    return file.alone or _LOGS.search(file.base) is not None or file.suffix in _TEXTS


def read(file: File) -> Reading:
    """One pass over the lines, after the first ones in blocks. Dict lines win over pairs where a log holds both."""
    scan = Scan(file)
    is_log = _LOGS.search(file.base) is not None
    number = 1
    if file.encoding == "utf-8":
        for raw in blocks(file):
            number = scan.block(number, raw) if scan.bytes >= SLOW_BYTES else _slowly(scan, number, raw)
            if not is_log and scan.quiet():
                break
    else:
        for number, line in file.lines():
            scan.line(number, line)
            if not is_log and number % 4096 == 0 and scan.quiet():
                break
    return reading_of(scan, is_log=is_log)


def _slowly(scan: Scan, number: int, raw: bytes) -> int:
    """The first lines of a log one by one, the rest of the block as a block; the number of the line behind it."""
    cut = raw.find(b"\n", SLOW_BYTES) + 1 or len(raw)
    lines = raw[:cut].decode("utf-8", errors="replace").split("\n")
    for line in lines:
        scan.line(number, line if len(line) <= LINE_LIMIT else shorten(line))
        number += 1
    number -= 1
    return scan.block(number, raw[cut:]) if cut < len(raw) else number
