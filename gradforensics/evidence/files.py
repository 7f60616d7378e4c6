"""One file of a run directory: what it is, its text, its lines. Opened read-only, read no further than is asked for."""

from __future__ import annotations

import codecs
import gzip
import hashlib
import io
import os
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from gradforensics.untrusted.files import LFS_POINTER, open_regular

HASH_LIMIT = 64 << 20
HEAD_BYTES = 64 << 10
CHUNK_BYTES = 4 << 20
LINE_LIMIT = 64 << 10
TEXT_LIMIT = 512 << 20

_ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]")
_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_CONTROL = bytes(set(range(32)) - {7, 8, 9, 10, 12, 13, 27})


@dataclass(eq=False)
class File:
    """A regular file of the input.

    name: its path relative to the input; size: its bytes when it was found, no more of which are read; alone: the user
    named this very file; damaged: its gzip data broke off; changed: how its size changed while it was read;
    opener: how its bytes are reached where it lies inside of an archive (`path` is then that of the archive, and only
    chunks(), text(), lines(), head and digest() may be used); on_bytes: told how many bytes of it were read just now.
    """

    path: Path
    name: str
    size: int
    alone: bool = False
    damaged: bool = False
    changed: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)
    opener: Callable[[], BinaryIO] | None = None
    on_bytes: Callable[[int], None] | None = None

    @cached_property
    def base(self) -> str:
        """Lower-case file name without a final .gz."""
        low = PurePosixPath(self.name).name.lower()
        return low.removesuffix(".gz") if self.gzipped else low

    @cached_property
    def suffix(self) -> str:
        """Lower-case suffix, again without .gz."""
        return PurePosixPath(self.base).suffix

    @property
    def gzipped(self) -> bool:
        """Whether the name says that the content is gzip."""
        return self.name.lower().endswith(".gz")

    @cached_property
    def head(self) -> bytes:
        """The first 64 KiB of the (uncompressed) content."""
        with self._open() as stream:
            return self._read(stream, HEAD_BYTES)

    @cached_property
    def is_lfs_pointer(self) -> bool:
        """Whether only the pointer of a git-LFS file is here."""
        return self.head.startswith(LFS_POINTER)

    @cached_property
    def encoding(self) -> str:
        """The encoding that a byte order mark names, else UTF-8."""
        return next((name for mark, name in _BOMS if self.head.startswith(mark)), "utf-8")

    @cached_property
    def is_text(self) -> bool:
        """Whether the head looks like text; stray bytes of another encoding or terminal controls are allowed."""
        if self.encoding != "utf-8":
            return True
        head = self.head
        controls = len(head) - len(head.translate(None, _CONTROL))
        return b"\0" not in head and controls * 20 <= len(head)

    @cached_property
    def start(self) -> str:
        """The head as text; its last line may be cut."""
        return self.head.decode(self.encoding, errors="replace").lstrip("\ufeff")

    def text(self) -> str:
        """The whole content as text; ValueError where it is larger than any file of its kind would be."""
        with self._open() as stream:
            data = self._read(stream, TEXT_LIMIT + 1)
        if len(data) > TEXT_LIMIT:
            raise ValueError(f"larger than {TEXT_LIMIT >> 20} MiB")
        return data.decode(self.encoding, errors="replace").lstrip("\ufeff")

    def lines(self, limit: int | None = None) -> Iterator[tuple[int, str]]:
        """(line number, text) of every line, read in chunks.

        Carriage returns stay inside the line (they separate the states of a progress bar); a line longer than 64 KiB
        is given in part: its beginning and its end. `limit` bounds the bytes that are read.
        """
        decoder = codecs.getincrementaldecoder(self.encoding)(errors="replace")
        number, done, rest = 1, 0, ""
        for chunk in self.chunks():
            done += len(chunk)
            parts = (rest + decoder.decode(chunk)).split("\n")
            rest = parts.pop()
            if len(rest) > 2 * LINE_LIMIT:
                rest = shorten(rest)
            for part in parts:
                yield number, part if len(part) <= LINE_LIMIT else shorten(part)
                number += 1
            if limit is not None and done >= limit:
                return
        rest += decoder.decode(b"", final=True)
        if rest:
            yield number, shorten(rest) if len(rest) > LINE_LIMIT else rest

    def digest(self) -> str | None:
        """SHA-256 of the file as it lies on disk, None above 64 MB."""
        if self.size > HASH_LIMIT:
            return None
        found = hashlib.sha256()
        with self._raw() as stream:
            while chunk := stream.read(1 << 20):
                found.update(chunk)
        return found.hexdigest()

    def chunks(self, size: int = CHUNK_BYTES) -> Iterator[bytes]:
        """The whole (uncompressed) content in pieces of `size` bytes, the last one shorter; never held at once."""
        with self._open() as stream:
            while chunk := self._read(stream, size):
                if self.on_bytes is not None:
                    self.on_bytes(len(chunk))
                yield chunk

    def _raw(self) -> BinaryIO:
        if self.opener is not None:
            return self.opener()
        return io.BufferedReader(_Found(open_regular(self.path), self))

    @contextmanager
    def _open(self) -> Iterator[io.BufferedIOBase]:
        with self._raw() as raw:
            yield gzip.GzipFile(fileobj=raw) if self.gzipped else raw  # type: ignore[misc]  # BinaryIO is a BufferedReader

    def _read(self, stream: io.BufferedIOBase, size: int) -> bytes:
        """Up to `size` bytes; of a damaged gzip file what precedes the damage, which `damaged` remembers."""
        parts: list[bytes] = []
        try:
            while size > 0 and (part := stream.read1(min(size, CHUNK_BYTES))):
                parts.append(part)
                size -= len(part)
        except (EOFError, zlib.error, gzip.BadGzipFile):
            self.damaged = True
        return b"".join(parts)


class _Found(io.RawIOBase):
    """A file as long as it was when it was found: a log that is being written would never end."""

    def __init__(self, raw: BinaryIO, file: File) -> None:
        super().__init__()
        self._raw = raw
        self._file = file
        self._left = file.size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self._raw.readinto(memoryview(buffer)[: self._left])  # type: ignore[attr-defined]  # a BufferedReader
        if not count and len(buffer):
            size = os.fstat(self._raw.fileno()).st_size
            if self._left:
                self._file.changed = f"became shorter while it was read: {size} of {self._file.size} bytes are left"
            elif size > self._file.size:
                self._file.changed = f"grew while it was read: read up to byte {self._file.size}"
        self._left -= count
        return int(count)

    def close(self) -> None:
        self._raw.close()
        super().close()


def shorten(line: str) -> str:
    """The beginning and the end of a line that is longer than any reader looks at."""
    return line[: LINE_LIMIT // 2] + "\r" + line[-LINE_LIMIT // 2 :]


def plain(line: str) -> str:
    """The line without terminal colours and other escape sequences."""
    return _ANSI.sub("", line) if "\x1b" in line else line
