"""Regular expressions that are compiled when they are first used.

A log-only analysis knows some hundred patterns for lines and names that it never meets; compiling them all would take a
tenth of its time.
"""

from __future__ import annotations

import re
from typing import Any, cast


class _Lazy:
    """Stands for a compiled pattern; its methods and attributes are those of the pattern."""

    def __init__(self, pattern: str, flags: int) -> None:
        self._given = (pattern, flags)

    def __getattr__(self, name: str) -> Any:
        value = getattr(re.compile(*self._given), name)
        setattr(self, name, value)  # the next access finds it without this function
        return value


def lazy(pattern: str, flags: int = 0) -> re.Pattern[str]:
    """A pattern as re.compile gives it, compiled at its first use; a broken one raises re.error only then."""
    return cast("re.Pattern[str]", _Lazy(pattern, flags))
