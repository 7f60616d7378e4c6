"""Regular files read by position. Never mapped: a file that shrinks under a map kills the process."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, Literal, Protocol, TypeAlias

LFS_POINTER = b"version https://git-lfs.github.com/spec"  # how a file begins that was not fetched


Damage: TypeAlias = Literal["changed", "cut", "empty", "missing", "hollow", "unfinished"]
"""What can be wrong with the files of a checkpoint: bytes that were changed, a file that was cut or is empty, one that
others name and that is not there, one of weights that holds none, a folder that was still being written."""


class RefusedError(Exception):
    """Content that breaks its format or a bound; the text says what, in words for the user.

    uses: of a pickle, the names (pickles.Use by name) that loading it would have imported before it broke. damage: how
    the file was damaged, None where it may be whole and only not for us to read.
    """

    uses: Mapping[str, Any] = MappingProxyType({})
    damage: Damage | None = None


class DamagedError(RefusedError):
    """Content that is not what its writer wrote: it was cut short, is empty, or its bytes were changed."""

    def __init__(self, damage: Damage, text: str) -> None:
        super().__init__(text)
        self.damage = damage


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading; OSError for anything else (a pipe would block for ever)."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError("not a regular file")
    return os.fdopen(descriptor, "rb")


class Opened(Protocol):
    """Something that can be read by position, by several threads at once."""

    @property
    def size(self) -> int:
        """Length in bytes."""

    def read(self, offset: int, count: int) -> bytes:
        """Exactly `count` bytes from `offset`. Raises RefusedError where they are not all there."""

    def read_into(self, offset: int, target: memoryview) -> None:
        """Fill `target` (bytes) from `offset`. Raises RefusedError where the bytes are not all there."""


class Readable(Protocol):
    """A file, or bytes in memory that stand for one."""

    @property
    def name(self) -> str:
        """What messages call it: the path relative to the input."""

    @property
    def size(self) -> int:
        """Length in bytes."""

    @contextmanager
    def open(self) -> Iterator[Opened]:
        """Open it for as long as the block lasts."""
        yield from ()


class _Descriptor:
    def __init__(self, number: int) -> None:
        self._number = number
        self.size = os.fstat(number).st_size

    def read(self, offset: int, count: int) -> bytes:
        if offset < 0 or count < 0 or offset + count > self.size:
            text = f"the file ends at byte {self.size}; {count} bytes from {offset} on were expected"
            raise DamagedError("cut", text)
        parts: list[bytes] = []
        while count:
            part = os.pread(self._number, count, offset)
            if not part:
                raise RefusedError(f"the file became shorter while it was read: it ends at byte {offset}")
            parts.append(part)
            offset, count = offset + len(part), count - len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def read_into(self, offset: int, target: memoryview) -> None:
        if offset < 0 or offset + len(target) > self.size:
            raise RefusedError(f"the file ends at byte {self.size}; {len(target)} bytes from {offset} on were expected")
        done = 0
        while done < len(target):
            got = os.preadv(self._number, [target[done:]], offset + done)
            if not got:
                raise RefusedError(f"the file became shorter while it was read: it ends at byte {offset + done}")
            done += got


@dataclass(frozen=True, slots=True)
class RegularFile:
    """A file on disk. `name` is its path relative to the input, as reports show it."""

    path: Path
    name: str
    size: int

    @contextmanager
    def open(self) -> Iterator[Opened]:
        """Open it for as long as the block lasts; OSError where that fails."""
        with open_regular(self.path) as file:
            yield _Descriptor(file.fileno())


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """Bytes that were part of another file (an array inside a pickle)."""

    name: str
    data: bytes

    @property
    def size(self) -> int:
        """Length in bytes."""
        return len(self.data)

    @contextmanager
    def open(self) -> Iterator[Opened]:
        """Itself."""
        yield self

    def read(self, offset: int, count: int) -> bytes:
        """Exactly `count` bytes from `offset`."""
        if offset < 0 or count < 0 or offset + count > len(self.data):
            raise RefusedError(f"{len(self.data)} bytes are there; {count} from {offset} on were expected")
        return self.data[offset : offset + count]

    def read_into(self, offset: int, target: memoryview) -> None:
        """Fill `target` from `offset`."""
        target[:] = self.read(offset, len(target))


@dataclass(frozen=True, slots=True)
class Window:
    """A part of another readable, from byte `start` on: a zip archive inside a file."""

    whole: Readable
    start: int
    size: int

    @property
    def name(self) -> str:
        """The name of the file that it is a part of."""
        return self.whole.name

    @contextmanager
    def open(self) -> Iterator[Opened]:
        """Open the whole and show this part of it."""
        with self.whole.open() as opened:
            yield _Part(opened, self.start, self.size)


@dataclass(frozen=True, slots=True)
class _Part:
    whole: Opened
    start: int
    size: int

    def read(self, offset: int, count: int) -> bytes:
        self._inside(offset, count)
        return self.whole.read(self.start + offset, count)

    def read_into(self, offset: int, target: memoryview) -> None:
        self._inside(offset, len(target))
        self.whole.read_into(self.start + offset, target)

    def _inside(self, offset: int, count: int) -> None:
        if offset < 0 or count < 0 or offset + count > self.size:
            raise RefusedError(f"the part ends at byte {self.size}; {count} bytes from {offset} on were expected")
