"""The errors that a user can meet, all below one root.

GradforensicsError
├── UsageError           a wrong option, path or combination of them   (exit code 2)
├── RuleError            a rule file that breaks the format            (exit code 2)
├── NoEvidenceError      no training and no checkpoint in the input    (exit code 4)
├── ReplayError          a step that cannot be replayed                (exit code 2)
├── CapsuleError         a capsule that cannot be read                 (exit code 4)
└── OutputError          an output that cannot or must not be written  (exit code 2)

Whatever a reader cannot understand is no error: it becomes a notice and the analysis goes on.
"""

from __future__ import annotations

from pathlib import Path


class GradforensicsError(Exception):
    """Root of every error with a message meant for the user."""

    exit_code = 2


class UsageError(GradforensicsError):
    """An option, a path or a combination of them that makes no sense."""


class RuleError(GradforensicsError):
    """A rule file that breaks the format; names the file and, where known, the line."""

    def __init__(self, path: Path | str, text: str, line: int | None = None) -> None:
        self.path, self.text, self.line = path, text, line
        place = f"{path}:{line}" if line else str(path)
        super().__init__(f"{place}: {text}")


class NoEvidenceError(GradforensicsError):
    """Nothing in the input speaks of a training or, where checkpoints are wanted, is one that can be read."""

    exit_code = 4


class ReplayError(GradforensicsError):
    """A step that cannot be replayed: what is missing or does not fit."""


class CapsuleError(GradforensicsError):
    """A capsule that cannot be read; names the file and what is wrong with it."""

    exit_code = 4


class OutputError(GradforensicsError):
    """An output that cannot or must not be written."""
