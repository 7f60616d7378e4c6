"""Console logs: series from lines of known dialects, from dicts or "key: value" lines, and the events of a training."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from gradforensics.evidence.console.blocks import blocks
from gradforensics.evidence.console.matching import Prepared
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
_LARGE = 32 << 20  # bytes of a log from which on threads are worth their start
_AHEAD = 2
SLOW_BYTES = 1 << 13  # so much of a log is read line by line: it teaches what its lines look like


def sniff(file: File) -> bool:
    """Any text whose name does not speak against it; read() claims it where it finds something."""
    if _NO_LOGS.match(file.base):
        return False
    return file.alone or _LOGS.search(file.base) is not None or file.suffix in _TEXTS


def read(file: File) -> Reading:
    """One pass over the lines, after the first ones in blocks. Dict lines win over pairs where a log holds both."""
    scan = Scan(file)
    is_log = _LOGS.search(file.base) is not None
    if file.encoding == "utf-8":
        pieces = blocks(file)
        number = 1
        while scan.bytes < SLOW_BYTES and (raw := next(pieces, None)) is not None:
            number = _slowly(scan, number, raw)
            if not is_log and scan.quiet():
                return reading_of(scan, is_log=is_log)
        _in_blocks(scan, number, pieces, ahead=_AHEAD if file.size > _LARGE else 0, patient=is_log)
    else:
        for number, line in file.lines():
            scan.line(number, line)
            if not is_log and number % 4096 == 0 and scan.quiet():
                break
    return reading_of(scan, is_log=is_log)


def _in_blocks(scan: Scan, number: int, pieces: Iterator[bytes], *, ahead: int, patient: bool) -> None:
    """The rest of a log, whose next line has this number. ahead: blocks that threads may prepare meanwhile."""
    waiting: deque[Callable[[], Prepared]] = deque()
    with ThreadPoolExecutor(max(ahead, 1)) as pool:
        for raw in pieces:
            waiting.append(pool.submit(scan.prepare, raw).result if ahead else partial(scan.prepare, raw))
            if len(waiting) > ahead:
                number = scan.take(waiting.popleft()(), number)
                if not patient and scan.quiet():
                    break
        while waiting:
            number = scan.take(waiting.popleft()(), number)


def _slowly(scan: Scan, number: int, raw: bytes) -> int:
    """The first lines of a log one by one, the rest of the block as a block; the number of the line behind it."""
    cut = raw.find(b"\n", SLOW_BYTES) + 1 or len(raw)
    lines = raw[:cut].decode("utf-8", errors="replace").split("\n")
    for line in lines:
        scan.line(number, line if len(line) <= LINE_LIMIT else shorten(line))
        number += 1
    number -= 1
    return scan.take(scan.prepare(raw[cut:]), number) if cut < len(raw) else number
