"""Writing an output: whole or not at all, and never over a file that is not ours."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

from gradforensics.errors import OutputError

PARQUET_MARK = "written by gradforensics"  # a key of the metadata of every Parquet file that we write
# One of these stands near the start of every output that we write.
_MARKS = (
    b'<meta name="generator" content="gradforensics ',
    b'"tool": "gradforensics ',
    b'"fullName": "gradforensics ',
    b'<testsuites name="gradforensics ',
)
_FIRST = b"<!-- gradforensics "  # the very first bytes of our Markdown: people paste it into notes of their own
_HEAD = 2048
_PARQUET, _FOOTER = b"PAR1", 1 << 16  # the metadata of a Parquet file stands at its end


def write(path: Path | str, content: str | bytes, *, force: bool = False) -> None:
    """Write text as UTF-8, or bytes, to `path` atomically; raises OutputError.

    An existing file is replaced only if it is empty or one of ours, or with `force`; a device or a pipe is written to.
    """
    target = Path(path)
    if isinstance(content, str):
        content = content.encode("utf-8", "backslashreplace")  # a lone surrogate stems from an undecodable file name
    try:
        if target.is_dir():
            raise OutputError(f"{target} is a folder; name a file")
        if not target.parent.is_dir():
            raise OutputError(f"{target}: the folder {target.parent} does not exist")
        if target.exists() and not target.is_file():
            target.write_bytes(content)
            return
        check(target, force=force)
        _replace(target.resolve(), content)
    except OSError as error:
        raise OutputError(f"{target}: {error.strerror or error}") from error


def check(target: Path, *, force: bool) -> None:
    """Raise OutputError where a file of this name is neither empty nor ours, unless forced; may raise OSError."""
    if target.exists() and not force and not _ours(target):
        raise OutputError(f"{target} exists and was not written by gradforensics; choose another name or pass --force")


def _ours(path: Path) -> bool:
    with path.open("rb") as stream:
        head = stream.read(_HEAD)
        if head.startswith(_PARQUET):
            stream.seek(-min(_FOOTER, stream.seek(0, os.SEEK_END)), os.SEEK_END)
            return PARQUET_MARK.encode() in stream.read(_FOOTER)
    return not head or head.startswith(_FIRST) or any(mark in head for mark in _MARKS)


def _replace(target: Path, content: bytes) -> None:
    temporary = target.with_name(f".{target.name[:100]}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as stream:
            stream.write(content)
        if target.exists():
            temporary.chmod(target.stat().st_mode & 0o777)
        temporary.replace(target)
    except BaseException:  # Ctrl-C too must leave nothing behind
        with suppress(OSError):
            temporary.unlink()
        raise
