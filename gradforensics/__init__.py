"""Forensics of training runs: from a run directory to the cause, with proof."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradforensics.recorder import Recorder as Recorder

__version__ = "0.1.0"

# The commands of this version. Rule files are written for all that the tool will have: a `verify` that needs another
# command is not offered to a user who could not run it.
COMMANDS = ("analyze", "scan", "compare", "diff", "replay", "env", "export", "rules")


def __getattr__(name: str) -> Any:
    """`Recorder`, loaded when it is asked for: it needs torch, which the command line mostly does without."""
    if name != "Recorder":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gradforensics.recorder import Recorder  # noqa: PLC0415  the reason for this function

    return Recorder
