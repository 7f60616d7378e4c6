"""A text file in blocks of whole lines, and their cells split by polars where that gives what Python would give."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl

from gradforensics.evidence.files import LINE_LIMIT, File, shorten

_KEPT = 2 * LINE_LIMIT + 16  # bytes at either end: 32 Ki letters of four bytes, and those that are cut
_NEWLINE, _TAB, _FIRST_PRINTABLE = 10, 9, 32
# what str.strip() takes off and polars' strip_chars() does not, or the other way round
_ODD_SPACE = re.compile("[\x1c-\x1f\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]")


@dataclass(frozen=True, slots=True)
class Block:
    """Whole lines of a file: `data` (UTF-8, bad bytes possible) ends in a newline, `line` is that of its first line."""

    line: int
    data: bytes

    @property
    def text(self) -> str:
        """The lines as text, U+FFFD for what is no UTF-8."""
        return self.data.decode("utf-8", errors="replace")

    def lines(self) -> list[str]:
        """The lines without their newlines; what is longer than 64 KiB in part, as File.lines() gives it."""
        found = self.text.split("\n")
        found.pop()
        return [line if len(line) <= LINE_LIMIT else shorten(line) for line in found]

    def after(self, end: int, line: int) -> Block:
        """What follows on this byte, which begins that line."""
        return Block(line, self.data[end:]) if end else self


@dataclass(frozen=True, slots=True)
class Plain:
    """A block without anything that Python and polars split differently.

    data: its UTF-8 bytes, lines end in a newline; ends: int64 (lines,), where the newlines stand.
    """

    data: bytes
    ends: np.ndarray

    @property
    def array(self) -> np.ndarray:
        """uint8: the bytes."""
        return np.frombuffer(self.data, dtype=np.uint8)

    def line(self, index: int) -> str:
        """The text of one line, without its newline."""
        start = int(self.ends[index - 1]) + 1 if index else 0
        return self.data[start : int(self.ends[index])].decode()


def blocks(file: File) -> Iterator[Block]:
    """The whole file in pieces of about 4 MiB; only the middle of a line that is longer than 256 KiB is left out."""
    line, rest = 1, b""
    for chunk in _utf8(file):
        end = chunk.rfind(b"\n") + 1
        if not end:
            rest = _bounded(rest + chunk)
            continue
        data = rest + chunk[:end] if rest else chunk[:end]
        rest = _bounded(chunk[end:])
        yield Block(line, data)
        line += data.count(b"\n")
    if rest:
        yield Block(line, rest + b"\n")


def _utf8(file: File) -> Iterator[bytes]:
    """The content in chunks of UTF-8, without its byte order mark."""
    if file.encoding == "utf-8":
        yield from file.chunks()
        return
    decoder = codecs.getincrementaldecoder(file.encoding)(errors="replace")
    for chunk in file.chunks():
        yield decoder.decode(chunk).encode()
    yield decoder.decode(b"", final=True).encode()


def _bounded(rest: bytes) -> bytes:
    """The beginning and the end of an unfinished line: all that shorten() keeps of it, whatever its letters take."""
    return rest if len(rest) <= 2 * _KEPT else rest[:_KEPT] + b"\r" + rest[-_KEPT:]


def plain(data: bytes) -> Plain | None:
    """The block where it holds no control characters, odd white space, bare carriage returns or endless lines."""
    if not data.isascii():
        text = data.decode("utf-8", errors="replace")
        if _ODD_SPACE.search(text):
            return None
        data = text.encode()
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n")
    array = np.frombuffer(data, dtype=np.uint8)
    low = np.flatnonzero(array < _FIRST_PRINTABLE)
    kinds = array[low]
    newline = kinds == _NEWLINE
    if not (newline | (kinds == _TAB)).all():
        return None
    ends = low[newline]
    if int(np.diff(ends, prepend=-1).max(initial=0)) > LINE_LIMIT:
        return None
    return Plain(data, ends)


def split(data: bytes, separator: str, width: int) -> pl.DataFrame:
    """The cells of every line as texts, columns "0" to "width - 1"; null where a cell is empty or the line is short.

    Quotes mean nothing here, and cells beyond the last column are dropped.
    """
    # a line of empty cells in front: polars takes the width from the first line, and skips empty lines before it
    padded = separator.encode() * (width - 1) + b"\n" + data
    frame = pl.read_csv(
        padded,
        has_header=False,
        schema={str(index): pl.String for index in range(width)},
        separator=separator,
        quote_char=None,
        truncate_ragged_lines=True,
    )
    return frame.slice(1)
