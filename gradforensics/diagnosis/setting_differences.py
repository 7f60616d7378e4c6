"""In which settings two runs differ, apart from those that only name a run, a place or a machine."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from gradforensics.patterns import lazy
from gradforensics.tables import Evidence

# Settings that name something: they differ between any two runs and explain nothing.
_NAMING = lazy(
    r"(?:^|[._])(?:name|dir|path|file|folder|output|logdir|project|group|tags?|notes|id|host|port|timestamp|date|time|"
    r"resume\w*|report_to|exp|experiment|run|save\w*|logging\w*|version)$|_(?:dir|path|name|file|id|to)$|^_",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Difference:
    """A setting that both runs state, with different values."""

    key: str
    here: Any
    there: Any


def telling(evidence: Evidence) -> dict[str, Any]:
    """The settings in force by key, without those that name something and those whose value is a path."""
    keys = {s.key for s in evidence.settings or [] if not _NAMING.search(s.key)}
    found = {key: evidence.setting(key) for key in keys}
    return {key: value for key, value in found.items() if value is not None and not _is_path(value)}


def differences(run: Evidence, other: Evidence) -> list[Difference]:
    """The telling settings that both runs state with different values, by key."""
    here, there = telling(run), telling(other)
    common = sorted(here.keys() & there.keys())
    return [Difference(key, here[key], there[key]) for key in common if not alike(here[key], there[key])]


def alike(here: Any, there: Any) -> bool:
    """Whether two values of a setting are the same, however they were written (0.1 and "0.1")."""
    try:
        return bool(here == there) or float(here) == float(there)
    except (TypeError, ValueError):
        return str(here) == str(there)


def _is_path(value: Any) -> bool:
    return isinstance(value, str) and ("/" in value or "\\" in value)
