"""A console log in blocks of whole lines, and which of the lines of a block can mean anything at all."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import numpy as np
import polars as pl

from gradforensics.evidence.files import LINE_LIMIT, File, shorten

_BLOCK = 4 << 20
_LONGEST = 8 << 20  # bytes without a line break that are held
_PIECE = 64 << 10  # bytes that are searched at once: in most of them is nothing
_LINE_FEED, _RETURN = 10, 13


def blocks(file: File) -> Iterator[bytes]:
    """The content in blocks that end at a line break or carriage return."""
    rest: list[bytes] = []
    held = 0
    for chunk in file.chunks(_BLOCK):
        cut = max(chunk.rfind(b"\n"), chunk.rfind(b"\r")) + 1
        if not cut and held + len(chunk) < _LONGEST:
            rest.append(chunk)
            held += len(chunk)
            continue
        cut = cut or len(chunk)
        yield b"".join((*rest, memoryview(chunk)[:cut]))
        rest = [chunk[cut:]]
        held = len(chunk) - cut
    if held:
        yield b"".join(rest)


class Block:
    """The lines of one block; the states of a progress bar count as lines of their own.

    data: uint8 (bytes of the block,); starts, lengths: int64 (n,); feeds: int64 (n,), line feeds before each line;
    first: the number of the first line in the file; behind: line feeds of the whole block.
    """

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.first = 1
        self.data = np.frombuffer(raw, dtype=np.uint8)
        feeds = self.data == _LINE_FEED
        ends = np.flatnonzero(feeds | (self.data == _RETURN) if b"\r" in raw else feeds)
        if not len(ends) or ends[-1] != len(raw) - 1:
            ends = np.append(ends, len(raw))
        self.starts = np.concatenate([[0], ends[:-1] + 1])
        self.lengths = ends - self.starts
        done = np.cumsum(feeds[np.minimum(ends, len(raw) - 1)]) if len(raw) else np.zeros(len(ends), dtype=np.int64)
        self.feeds = np.concatenate([[0], done[:-1]])
        self.behind = int(done[-1])

    def number(self, index: int) -> int:
        """The line of the file that a line of the block stands on."""
        return self.first + int(self.feeds[index])

    def __len__(self) -> int:
        return len(self.starts)

    def line(self, index: int) -> bytes:
        """The bytes of one line, without its end."""
        start = int(self.starts[index])
        return self.raw[start : start + int(self.lengths[index])]

    def text(self, index: int) -> str:
        """One line as text; of a line longer than 64 KiB its beginning and its end."""
        text = self.line(index).decode("utf-8", errors="replace")
        return text if len(text) <= LINE_LIMIT else shorten(text)

    def beside_return(self, index: int) -> bool:
        """Whether a carriage return stands before or behind a line, which is then no line of its own."""
        start = int(self.starts[index])
        stop = start + int(self.lengths[index])
        return self.raw[max(start - 1, 0) : start] == b"\r" or self.raw[stop : stop + 1] == b"\r"

    def windows(self, indices: np.ndarray, width: int) -> np.ndarray:
        """uint8 (m, width): these lines and up to seven bytes of what follows them; see fits()."""
        every = np.lib.stride_tricks.as_strided(self.data, (len(self.data) - width + 1, width), (1, 1))
        return np.asarray(every[self.starts[indices]])

    def fits(self, indices: np.ndarray, width: int) -> np.ndarray:
        """Those of the lines whose window of this width ends within the block: all but perhaps the last one."""
        if not len(indices) or self.starts[indices[-1]] + width <= len(self.data):
            return indices
        return indices[:-1]


class Marks:
    """Literals of which a line must hold one to mean anything."""

    _MOST = 55  # with more literals, or with shorter ones among them, one expression searches much more slowly
    _SHORT = 4

    def __init__(self, marks: Iterable[str]) -> None:
        kept: list[str] = []
        for mark in sorted(set(marks), key=lambda mark: (len(mark), mark)):
            if not any(shorter in mark for shorter in kept):
                kept.append(mark)
        short = [mark for mark in kept if len(mark) < self._SHORT]
        long = sorted(kept[len(short) :])  # literals that begin alike are told apart at less cost
        groups = [short, *(long[at : at + self._MOST] for at in range(0, len(long), self._MOST))]
        self._patterns = ["|".join(map(re.escape, group)) for group in groups if group]

    def found(self, texts: Sequence[str] | pl.Series) -> np.ndarray:
        """bool (n,): which texts hold one of the literals."""
        series = pl.Series(texts, dtype=pl.String)
        result = np.zeros(len(texts), dtype=bool)
        for pattern in self._patterns:
            result |= series.str.contains(pattern).to_numpy()
        return result

    def candidates(self, block: Block, among: np.ndarray) -> np.ndarray:
        """The lines of a block that hold one of the literals. among: int64, ascending, the lines to look at."""
        if not len(among):
            return among
        first = among[np.flatnonzero(np.diff(among, prepend=-2) != 1)]
        last = among[np.flatnonzero(np.diff(among, append=among[-1] + 2) != 1)]
        begins = block.starts[first].tolist()
        ends = (block.starts[last] + block.lengths[last] + 1).tolist()
        text = b"".join([block.raw[begin:end] for begin, end in zip(begins, ends, strict=True)])
        if b"\r" in text:
            text = text.replace(b"\r", b"\n")
        sizes = np.cumsum(block.lengths[among] + 1)
        edges = [0, *np.unique(np.searchsorted(sizes, np.arange(_PIECE, sizes[-1], _PIECE)) + 1).tolist(), len(among)]
        edges = sorted({edge for edge in edges if edge <= len(among)})
        at = [0, *sizes.tolist()]
        pieces = [text[at[begin] : at[end]].decode("utf-8", errors="replace") for begin, end in pairwise(edges)]
        hit: list[np.ndarray] = []
        for place in np.flatnonzero(self.found(pieces)).tolist():
            lines = pieces[place].split("\n")[: edges[place + 1] - edges[place]]
            hit.append(edges[place] + np.flatnonzero(self.found(lines)))
        return np.asarray(among[np.concatenate(hit)]) if hit else among[:0]
