"""The records of an event file, window by window, and what of the file is damaged.

A record is its length (uint64), the masked CRC of the length (uint32), the payload and the masked CRC of the payload.
A length is trusted only where its CRC fits; where it does not, the next place at which one fits is looked for.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from gradforensics.evidence.event_files import crc

HEADER = 12
FRAME = 16  # bytes of a record around its payload
LONGEST = 256 << 20  # a length beyond this is not believed
PADDING = bytes(8)  # behind every window, so that whole words can be read at its end

_FIRST_RUN = 64  # records that are followed at once after damage; doubles while they fit
_WHOLE_RUN = 1 << 30
_SEARCHED = 64 << 10  # bytes that are searched for a header at once
_NAMED = 20  # damages that are told one by one

_length_at = struct.Struct("<Q").unpack_from


@dataclass(frozen=True, slots=True)
class Damage:
    """A record that could not be read. record: its number, from 1 on; offset: where it begins, in bytes."""

    record: int
    offset: int
    what: str


@dataclass
class Damages:
    """The damages of one file: some of them, and the numbers of all lost records."""

    named: list[Damage] = field(default_factory=list)
    records: array[int] = field(default_factory=lambda: array("q"))

    def add(self, record: int, offset: int, what: str) -> None:
        """Remember one."""
        self.records.append(record)
        if len(self.named) < _NAMED:
            self.named.append(Damage(record, offset, what))

    def told(self, records: int) -> list[str]:
        """One text per damage. records: the number of all records, read or not."""
        texts = []
        lost = sorted(self.records)
        for one in sorted(self.named, key=lambda d: d.offset):
            after = records - one.record - (len(lost) - bisect_right(lost, one.record))
            known = {0: "no record after it was read", 1: "the one record after it was read"}
            told = known.get(after, f"{after} records after it were read")
            texts.append(f"record {one.record} at byte {one.offset} is lost: {one.what}; {told}")
        if len(lost) > len(self.named):
            texts.append(f"{len(lost) - len(self.named)} more damaged records are lost")
        return texts


@dataclass(frozen=True, slots=True)
class Window:
    """Consecutive records.

    data: the bytes, with PADDING behind them; base: where they begin in the file; starts, lengths: int64 (n,), of the
    payloads in `data`; numbers: int64 (n,), those of the records, from 1 on.
    """

    data: bytes
    base: int
    starts: np.ndarray
    lengths: np.ndarray
    numbers: np.ndarray


def numbers_at(data: bytes, dtype: str, places: np.ndarray) -> np.ndarray:
    """dtype (n,): the numbers of this type that begin at these bytes of `data`."""
    everywhere = np.ndarray((len(data) - np.dtype(dtype).itemsize + 1,), dtype, data, strides=(1,))
    found: np.ndarray = everywhere[places]
    return found


def payloads_fit(data: bytes, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """bool (n,): whether the CRCs behind the payloads are theirs."""
    found = crc.of_ranges(np.frombuffer(data, dtype=np.uint8), starts, lengths)
    fits: np.ndarray = crc.masked(found) == numbers_at(data, "<u4", starts + lengths)
    return fits


def begins_with_record(head: bytes) -> bool:
    """Whether a file begins with a whole record whose checksums fit."""
    if len(head) < FRAME:
        return False
    length = np.array([_length_at(head)[0]], dtype=np.uint64)
    if length[0] > len(head) - FRAME or not _headers_fit(head, np.array([0]), length)[0]:
        return False
    return bool(payloads_fit(head, np.array([HEADER]), length.astype(np.int64))[0])


def _headers_fit(data: bytes, heads: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """bool (n,): whether the CRCs behind the lengths (uint64) are theirs."""
    fits: np.ndarray = crc.masked(crc.of_lengths(lengths)) == numbers_at(data, "<u4", heads + 8)
    return fits


@dataclass(frozen=True, slots=True)
class _Lost:
    """A piece of the file whose end is looked for; cut: what to say where it has none."""

    record: int
    offset: int
    cut: str


class Frames:
    """The records in a stream of bytes.

    After windows(), `records` is the number of all records, with those that are lost, and `cut` tells where the stream
    ends inside of one.
    """

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self.damages = Damages()
        self.records = 0
        self.cut = ""
        self._chunks = chunks
        self._ended = False
        self._data = PADDING
        self._size = 0  # of the data, without the padding
        self._base = 0  # where they begin in the file
        self._run = _WHOLE_RUN
        self._lost: _Lost | None = None
        self._sound: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []  # of the buffer: heads, lengths, numbers
        self._searched = (0, 0, np.zeros(0, dtype=np.int64))  # the last block: from, to, its headers

    def windows(self) -> Iterator[Window]:
        """All records whose headers fit; their payloads are not checked yet."""
        at, need = 0, HEADER
        while not self._ended:
            self._fill(at, need)
            at, need = self._buffered()
            if self._sound:
                heads, lengths, numbers = (np.concatenate(parts) for parts in zip(*self._sound, strict=True))
                yield Window(self._data, self._base, heads + HEADER, lengths, numbers)
                self._sound = []
        if self._lost is not None:
            self._close(self._lost)
        elif at < self._size:
            self.cut = f"the file ends inside of the header of record {self.records + 1} at byte {self._base + at}"

    def _fill(self, at: int, need: int) -> None:
        """Drop the bytes before `at` and read on until `need` are there, or no more come."""
        parts = [self._data[at : self._size]]
        size = len(parts[0])
        while size < need:
            chunk = next(self._chunks, None)
            if chunk is None:
                self._ended = True
                break
            parts.append(chunk)
            size += len(chunk)
        self._data = b"".join([*parts, PADDING])
        self._base += at
        self._size = size
        self._searched = (0, 0, self._searched[2][:0])

    def _buffered(self) -> tuple[int, int]:
        """Take the records in the buffer; what to keep of it: (from where, how many bytes are needed next).

        The last record waits until the header behind it is there: only that tells a damaged payload from lost bytes.
        """
        at = 0
        while True:
            if self._lost is not None:
                at = self._search(at)
                if self._lost is not None:
                    return at, HEADER
            heads, lengths, after = self._follow(at)
            if not len(heads):
                return at, HEADER
            valid = len(lengths)
            if valid < len(heads):
                sound = valid - 1 if valid and not self._fits(heads, lengths, valid - 1) else valid
                self._take(heads[:sound], lengths[:sound])
                at = self._lose(int(heads[sound]))
                continue
            self._take(heads[:-1], lengths[:-1])
            at = int(heads[-1])
            if after <= self._size - HEADER:
                self._run = min(2 * self._run, _WHOLE_RUN)
            elif not self._ended:
                return at, after + HEADER - at
            elif after == self._size or (after < self._size and self._fits(heads, lengths, len(heads) - 1)):
                self._take(heads[-1:], lengths[-1:])
                return after, HEADER
            else:
                at = self._lose(at, f"{self._size - at} of its {after - at} bytes are there")

    def _follow(self, at: int) -> tuple[np.ndarray, np.ndarray, int]:
        """The headers from `at` on, the lengths of those of them that fit from the first on, and where the next is."""
        found: list[int] = []
        append, data, last = found.append, self._data, self._size - HEADER
        for _ in range(self._run):
            if at > last:
                break
            append(at)
            at += _length_at(data, at)[0] + FRAME
        heads = np.array(found, dtype=np.int64)
        lengths, fits = self._lengths(heads)
        valid = len(heads) if fits.all() else int(np.argmin(fits))
        return heads, lengths[:valid], at

    def _lengths(self, heads: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The lengths that these headers state (int64), and whether they are to be believed."""
        lengths = numbers_at(self._data, "<u8", heads)
        fits = _headers_fit(self._data, heads, lengths) & (lengths <= LONGEST)
        return lengths.astype(np.int64), fits

    def _fits(self, heads: np.ndarray, lengths: np.ndarray, index: int) -> bool:
        only = slice(index, index + 1)
        return bool(payloads_fit(self._data, heads[only] + HEADER, lengths[only])[0])

    def _take(self, heads: np.ndarray, lengths: np.ndarray) -> None:
        if len(heads):
            numbers = np.arange(self.records + 1, self.records + 1 + len(heads))
            self._sound.append((heads, lengths, numbers))
            self.records += len(heads)

    # -- damage ------------------------------------------------------------------------------------------------------

    def _lose(self, at: int, cut: str = "") -> int:
        """A record that is damaged, or cut, begins here; returns from where on to look for the next one."""
        self.records += 1
        self._lost = _Lost(self.records, self._base + at, cut)
        self._run = _FIRST_RUN
        return at + 1

    def _search(self, at: int) -> int:
        """Where the next header that fits is, which ends the lost piece; else from where on to look in what follows."""
        assert self._lost is not None
        end = self._size - HEADER + 1
        while at < end:
            first, last, heads = self._searched
            if not first <= at < last:
                last = min(at + _SEARCHED, end)
                heads = self._headers(at, last)
                self._searched = at, last, heads
            index = int(np.searchsorted(heads, at))
            if index < len(heads):
                found = int(heads[index])
                passed = self._base + found - self._lost.offset
                self.damages.add(self._lost.record, self._lost.offset, f"{passed} bytes are damaged or missing")
                self._lost = None
                return found
            at = last
        return at

    def _headers(self, first: int, last: int) -> np.ndarray:
        """int64 (n,): where between these places the header of a record with a payload may stand."""
        data = np.frombuffer(self._data, dtype=np.uint8)
        low, high = (
            np.bitwise_or.reduce([data[first + place : last + place] for place in places])
            for places in (range(4), range(4, 8))
        )
        heads = np.flatnonzero((low != 0) & (high == 0)) + first
        found: np.ndarray = heads[self._lengths(heads)[1]]
        return found

    def _close(self, lost: _Lost) -> None:
        if lost.cut:
            self.cut = f"the file ends inside of record {lost.record} at byte {lost.offset}: {lost.cut}"
        else:
            passed = self._base + self._size - lost.offset
            self.damages.add(lost.record, lost.offset, f"{passed} bytes up to the end of the file are damaged")
