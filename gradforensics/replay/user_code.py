"""Naming the code of the user's that a replay may run: by file and function, with a hash (no torch)."""

from __future__ import annotations

import hashlib
from pathlib import Path

from gradforensics.errors import UsageError


def split_name(text: str, option: str) -> tuple[Path, str]:
    """FILE.py:FUNCTION in its two halves. Raises UsageError, which names the option."""
    file, colon, function = text.rpartition(":")
    if not colon or not function.isidentifier() or not file.endswith(".py"):
        raise UsageError(f"{option} {text!r}: write {option} FILE.py:FUNCTION")
    return Path(file), function


def sha256_of(file: Path) -> str:
    """The SHA-256 of a file, as hexadecimal text. Raises UsageError where it cannot be read."""
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror or error}") from None
