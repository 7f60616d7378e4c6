"""The lines of the evidence that a report quotes: read a second time, when it is known which ones matter.

Bounded: a handful of files that were read whole and hashed (64 MB at most), and of each line its first 64 KiB. A file
is quoted only where its content is still the one that was judged, so what was changed, replaced by a link or deleted in
the meantime is passed over, and nothing is quoted that was not evidence before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeAlias

import numpy as np

from gradforensics.evidence.files import HASH_LIMIT, HEAD_BYTES, LINE_LIMIT, plain
from gradforensics.secrecy import masked
from gradforensics.tables import Evidence, Source
from gradforensics.untrusted.files import open_regular

FILES = 16
"""Files of one run that are read a second time at most."""
Place: TypeAlias = tuple[str, int]
"""The name of a source and a line of it, counted from 1."""


def read(evidence: Evidence, places: Iterable[Place]) -> dict[Place, str]:
    """The text of these lines of a run's evidence; those that cannot be quoted are left out.

    What a progress bar wrote over with carriage returns stands in lines of its own. Never raises on what it finds.
    """
    wanted: dict[str, set[int]] = {}
    for name, line in places:
        wanted.setdefault(name, set()).add(line)
    sources = {s.path: s for s in evidence.sources if s.sha256 is not None and s.bytes <= HASH_LIMIT}
    found: dict[Place, str] = {}
    for name in [name for name in wanted if name in sources and name in evidence.files][:FILES]:
        content = _content(evidence.files[name], sources[name])
        found.update({(name, line): text for line, text in _lines(content, wanted[name]).items()})
    return found


def _content(path: Path, source: Source) -> bytes:
    """The content of a text that was not changed since it was read, else nothing."""
    try:
        with open_regular(path) as stream:
            content = stream.read(source.bytes + 1)
    except OSError:
        return b""
    same = len(content) == source.bytes and hashlib.sha256(content).hexdigest() == source.sha256
    return content if same and b"\0" not in content[:HEAD_BYTES] else b""


def _lines(content: bytes, wanted: Iterable[int]) -> Mapping[int, str]:
    ends = np.append(np.flatnonzero(np.frombuffer(content, np.uint8) == ord("\n")), len(content))
    found = {}
    for line in wanted:
        if 1 <= line <= len(ends):
            start = int(ends[line - 2]) + 1 if line > 1 else 0
            raw = content[start : min(int(ends[line - 1]), start + LINE_LIMIT)]
            states = plain(raw.decode("utf-8", "replace")).replace("\r", "\n").strip("\ufeff\n ")
            if states:
                found[line] = masked(states)
    return found
