"""Archives among the input: their regular members stand as files of their own; nothing is unpacked beside them.

Of a plain tar only the headers are read, and a member is a window of the archive. A compressed one is read through
once: what may be evidence goes into a temporary file without a name. The formats are those that the standard library
reads: POSIX.1-2001 (pax), GNU and v7.
"""

from __future__ import annotations

import io
import os
import re
import tempfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from gradforensics.checkpoints.discover import may_be_part
from gradforensics.evidence.discover import SKIPPED_FOLDERS, Root, is_wanted, printable, unread_kind
from gradforensics.evidence.files import File
from gradforensics.notices import Notice
from gradforensics.untrusted.files import RefusedError, open_regular

if TYPE_CHECKING:
    import tarfile

_NAME = re.compile(r"(?<!\.pth)(?<!\.pt)\.tar$|\.(?:tar\.(?:gz|bz2|xz)|tgz|tbz2?|txz)$")
_MAX_MEMBERS = 200_000
_MAX_READ = 16 << 20  # of one read by the standard library: a header that is longer is none
_FREE = 1 << 30  # bytes that any compressed archive may become
_RATIO = 100  # text seldom shrinks to less than a hundredth; a bomb does
_MOST = 64 << 30
_BLOCK = 1 << 20
_TAR_BLOCK = 512
_SMALL_PICKLE = 64 << 20  # a dump of the Flight Recorder is a pickle, too
_TORCH = frozenset({"storages", "tensors", "pickle", "sys_info"})  # members of what torch wrote before version 0.1.10


def open_archives(roots: Sequence[Root], columns: Mapping[str, str], stack: ExitStack) -> None:
    """Put the members of all archives into the place of the archives; what is left out is a notice.

    Their names are those of the archive, a slash, and their own; where the archive is the input, only their own.
    stack: closes what the members need to be read.
    """
    spool = _Spool(stack)
    for root in roots:
        whole = len(root.files) == 1 and root.single
        files: list[File] = []
        for file in root.files:
            found = _opened(file, columns, spool, whole=whole) if _NAME.search(file.name.lower()) else None
            if found is None:
                files.append(file)
                continue
            files += (found.files[name] for name in sorted(found.files, key=_as_walked))
            root.notices += found.notices()
            if whole:
                root.single, root.path = False, Path(_NAME.sub("", file.path.name))
        root.files = files


def _as_walked(name: str) -> list[tuple[bool, str]]:
    """Sorts as a folder is walked: its files, then its folders."""
    *folders, base = name.split("/")
    return [*((True, folder) for folder in folders), (False, base)]


def is_archive_name(base: str) -> bool:
    """Whether a (lower-case) name is that of an archive that this version reads."""
    return _NAME.search(base) is not None


def _opened(file: File, columns: Mapping[str, str], spool: _Spool, *, whole: bool) -> _Contents | None:
    """The members of one archive; None where the file is none, or a checkpoint by its members."""
    import bz2  # noqa: PLC0415  loaded only where there is an archive
    import gzip  # noqa: PLC0415  likewise
    import lzma  # noqa: PLC0415  likewise

    failures: tuple[type[Exception], ...] = (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError)
    name = file.name.removesuffix(PurePosixPath(file.name).name) if whole else file.name + "/"
    found = _Contents(file, name, columns)
    try:
        with open_regular(file.path) as raw:
            magic = raw.read(6)
            raw.seek(0)
            unpackers: dict[bytes, Callable[[], Any]] = {
                b"\x1f\x8b": partial(gzip.GzipFile, fileobj=raw),
                b"BZh": partial(bz2.BZ2File, raw),
                b"\xfd7zXZ": partial(lzma.LZMAFile, raw),
            }
            unpacker = next((made for mark, made in unpackers.items() if magic.startswith(mark)), None)
            if unpacker is None:
                _Reader(found, _Forward(raw, file.size, can_skip=True), None, failures).read()
            else:
                limit = min(_MOST, _FREE + _RATIO * file.size)
                with unpacker() as stream:
                    _Reader(found, _Forward(stream, limit), spool, failures).read()
    except OSError:
        return None  # told where the file is read as any other
    return None if found.is_checkpoint or not found.is_archive else found


class _Spool:
    """One temporary file without a name for the members of all compressed archives, made when it is needed."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._file: BinaryIO | None = None

    @property
    def file(self) -> BinaryIO:
        """The file; it is gone when the stack is closed."""
        if self._file is None:
            self._file = cast("BinaryIO", self._stack.enter_context(tempfile.TemporaryFile()))  # noqa: SIM115  the stack closes it
        return self._file


@dataclass
class _Contents:
    """What an archive holds. prefix: of the names of its members."""

    archive: File
    prefix: str
    columns: Mapping[str, str]
    files: dict[str, File] = field(default_factory=dict)
    remarks: dict[str, list[str]] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    checkpoints: int = 0
    is_archive: bool = False
    is_checkpoint: bool = False

    def remark(self, text: str, name: str) -> None:
        self.remarks.setdefault(text, []).append(name)

    def notices(self) -> list[Notice]:
        """One notice per kind of what was left out."""
        found = [Notice(self.archive.name, None, text) for text in self.failed]
        for text, names in self.remarks.items():
            several = f" ({len(names)} such members)" if len(names) > 1 else ""
            found.append(Notice(self.prefix + names[0], None, text + several))
        if self.checkpoints:
            files = "1 checkpoint file" if self.checkpoints == 1 else f"{self.checkpoints} checkpoint files"
            verb = "is" if self.checkpoints == 1 else "are"
            text = f"{files} inside of the archive {verb} not read: unpack it"
            found.append(Notice(self.archive.name, None, text))
        return found


class _Reader:
    """One pass over the headers of an archive, and over the content of a compressed one."""

    def __init__(
        self, found: _Contents, stream: _Forward, spool: _Spool | None, failures: tuple[type[Exception], ...]
    ) -> None:
        self.found = found
        self.stream = stream
        self.spool = spool
        self.failures = failures
        self.last = ""

    def read(self) -> None:
        """Everything up to the end, or to where the archive breaks off or becomes too large."""
        import tarfile  # noqa: PLC0415  loaded only where there is an archive

        try:
            archive = tarfile.open(fileobj=cast("BinaryIO", self.stream), mode="r:")  # noqa: SIM115  it holds no file
            self.members(archive)
        except RefusedError as error:
            self.broke(str(error))
        except (tarfile.TarError, RecursionError) as error:
            self.broke(f"damaged or cut ({type(error).__name__})")
        except self.failures as error:
            self.broke(f"damaged or cut ({type(error).__name__})")

    def broke(self, text: str) -> None:
        behind = f" behind {self.last}" if self.last else ""
        self.found.failed.append(f"the archive is {text}: nothing{behind} is read")

    def members(self, archive: tarfile.TarFile) -> None:
        count = 0
        while (member := archive.next()) is not None:
            self.found.is_archive = True
            count += 1
            if count > _MAX_MEMBERS:
                raise RefusedError(f"larger than {_MAX_MEMBERS} members")
            archive.members.clear()  # type: ignore[attr-defined]  # a list that would grow with every member
            if count == 1 and member.name in _TORCH:
                self.found.is_checkpoint = True
                return
            self.member(member)
            self.last = printable(member.name)
        if self.found.is_archive and self.stream.last.strip(b"\0"):
            raise RefusedError(f"damaged at byte {self.stream.tell() - _TAR_BLOCK} of its content")
        if self.found.is_archive and not self.stream.last:
            raise RefusedError("without the mark of its end, as if it was cut there")
        if self.spool is not None:
            self.stream.drain()  # the checksum stands at the end

    def member(self, member: tarfile.TarInfo) -> None:
        found = self.found
        name = printable("/".join(part for part in member.name.split("/") if part not in ("", ".")))
        parts = name.split("/")
        base = parts[-1].lower()
        if not name or member.isdir() or any(part in SKIPPED_FOLDERS for part in parts[:-1]):
            return
        if ".." in parts:
            found.remark("its name leads out of the archive: not read", name)
        elif member.issym() or member.islnk():
            found.remark("a link inside of the archive: not followed", name)
        elif not member.isreg() or member.issparse():
            found.remark("no regular file: not read", name)
        elif not is_wanted(base):
            return
        elif _NAME.search(base):
            found.remark("an archive inside of the archive: not read", name)
        elif may_be_part(base) and not (base.endswith((".pkl", ".pickle")) and member.size <= _SMALL_PICKLE):
            found.checkpoints += 1
        elif kind := unread_kind(base):
            found.remark(f"this version does not read .{kind} files", name)
        else:
            self.take(name, member)

    def take(self, name: str, member: tarfile.TarInfo) -> None:
        """The member as a file; a later one of the same name replaces it, as it would on disk."""
        found = self.found
        if name in found.files:
            found.remark("a member of this name is there twice: the last counts", name)
        if self.spool is None:
            offset = member.offset_data
            size = max(0, min(member.size, found.archive.size - offset))
            opener = partial(_reopened, found.archive.path, offset, size)
        else:
            self.stream.seek(member.offset_data)
            offset = self.spool.file.seek(0, os.SEEK_END)
            size = self.stream.copy(member.size, self.spool.file, self.failures)
            opener = partial(_window, self.spool.file, offset, size)
        found.files[name] = File(found.archive.path, found.prefix + name, size, columns=found.columns, opener=opener)
        if size < member.size:
            raise RefusedError(f"cut inside of {name}: {size} of its {member.size} bytes are there")


class _Forward:
    """What the standard library reads an archive from: forwards only, in bounded reads, up to a limit.

    last: the last 512 bytes that were read as one block, which tells how the headers end.
    """

    def __init__(self, stream: Any, limit: int, *, can_skip: bool = False) -> None:
        self._stream = stream
        self._limit = limit
        self._can_skip = can_skip
        self._at = 0
        self.last = b""

    def tell(self) -> int:
        """Byte of the (uncompressed) content."""
        return self._at

    def seek(self, position: int) -> None:
        """Go on to a byte; RefusedError where that lies behind, as only a forged length demands."""
        if position < self._at:
            raise RefusedError("damaged: a length in it leads backwards")
        if self._can_skip:
            self._at = self._stream.seek(position)
            return
        while self._at < position and self._next(min(_BLOCK, position - self._at)):
            pass

    def read(self, count: int) -> bytes:
        """Up to `count` bytes, fewer only at the end."""
        if not 0 <= count <= _MAX_READ:
            raise RefusedError("damaged: a header in it states an impossible length")
        parts = []
        while count and (part := self._next(count)):
            parts.append(part)
            count -= len(part)
        data = b"".join(parts)
        if len(data) in (0, _TAR_BLOCK):
            self.last = data
        return data

    def copy(self, count: int, target: BinaryIO, failures: tuple[type[Exception], ...]) -> int:
        """Copy bytes to `target`; returns how many there were, fewer than `count` where the content breaks off."""
        left = count
        while left:
            try:
                part = self._next(min(_BLOCK, left))
            except failures:
                break
            if not part:
                break
            try:
                target.write(part)
            except OSError as error:
                raise RefusedError(f"too large for the folder of temporary files ({error.strerror})") from None
            left -= len(part)
        target.flush()
        return count - left

    def drain(self) -> None:
        """Read to the end of the content."""
        while self._next(_BLOCK):
            pass

    def _next(self, count: int) -> bytes:
        part: bytes = self._stream.read(count)
        self._at += len(part)
        if self._at > self._limit:
            raise RefusedError(f"more than {self._limit >> 20} MiB when it is unpacked, as no logs are")
        return part


class _Window(io.RawIOBase):
    """A range of an open file, read by position: others may read the same file.

    whole: closed with the window where it is its own.
    """

    def __init__(self, whole: BinaryIO, start: int, size: int, *, own: bool) -> None:
        super().__init__()
        self._whole = whole
        self._at = start
        self._end = start + size
        self._own = own

    def readable(self) -> bool:
        """As every raw stream that can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer from where the last read ended."""
        wanted = memoryview(buffer)[: self._end - self._at]
        count = os.preadv(self._whole.fileno(), [wanted], self._at)
        if not count and len(wanted):
            raise OSError("the archive became shorter while it was read")
        self._at += count
        return count

    def close(self) -> None:
        """Close the file, too, where it is the window's own."""
        if self._own:
            self._whole.close()
        super().close()


def _window(whole: BinaryIO, start: int, size: int, *, own: bool = False) -> BinaryIO:
    return io.BufferedReader(_Window(whole, start, size, own=own))


def _reopened(path: Path, start: int, size: int) -> BinaryIO:
    return _window(open_regular(path), start, size, own=True)
