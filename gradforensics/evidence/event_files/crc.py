"""CRC-32C of many byte ranges at once.

A CRC without its start value is linear: that of a text is the XOR of what each byte alone contributes, and the
contribution depends on the byte and on how many bytes follow it. So the bytes of one place are looked up for all
records together, and records whose other bytes are alike need only the bytes that differ.
"""

from __future__ import annotations

from functools import cache, lru_cache

import numpy as np

_POLYNOMIAL = 0x82F63B78  # Castagnoli, with the lowest bit first
_ONES = np.uint32(0xFFFFFFFF)
_MASK_DELTA = np.uint32(0xA282EAD8)  # of the masked form in which record files store a CRC
_LANE = 64  # bytes of a long range that are looked up before their places in the range are taken into account
_BATCH = 1 << 20  # bytes that are copied into lanes at a time


@cache
def _table() -> np.ndarray:
    crc = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        crc = np.where(crc & 1, (crc >> np.uint32(1)) ^ np.uint32(_POLYNOMIAL), crc >> np.uint32(1))
    return crc


def _one_zero(crc: np.ndarray) -> np.ndarray:
    """The registers after one more byte 0."""
    found: np.ndarray = _table()[crc & np.uint32(255)] ^ (crc >> np.uint32(8))
    return found


@lru_cache(maxsize=4)
def contributions(places: int) -> np.ndarray:
    """uint32 (places, 256): what a byte contributes to the CRC, by the number of bytes that follow it."""
    found = np.empty((places, 256), dtype=np.uint32)
    row = _table()
    for place in range(places):
        found[place] = row
        row = _one_zero(row)
    return found


@cache
def _zeros(power: int) -> np.ndarray:
    """uint32 (4, 256): what each byte of a register becomes after 2**power bytes 0."""
    if not power:
        return np.stack([_one_zero(np.arange(256, dtype=np.uint32) << np.uint32(8 * i)) for i in range(4)])
    half = _zeros(power - 1)
    return np.stack([_through(half, half[i]) for i in range(4)])


def _through(tables: np.ndarray, crc: np.ndarray) -> np.ndarray:
    found: np.ndarray = tables[0].take(crc & np.uint32(255))
    for i in (1, 2, 3):
        found ^= tables[i].take((crc >> np.uint32(8 * i)) & np.uint32(255))
    return found


def _followed(crc: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The registers `crc` (uint32, (n,)) after `counts` (int64, (n,)) more bytes 0."""
    found = crc.copy()
    for power in range(int(counts.max(initial=0)).bit_length()):
        rows = np.flatnonzero((counts >> power) & 1)
        found[rows] = _through(_zeros(power), found[rows])
    return found


@cache
def _start(length: int) -> np.uint32:
    """What the start value of all ones has become after so many bytes 0."""
    return np.uint32(_followed(np.full(1, _ONES), np.full(1, length))[0])


def _finished(raw: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """CRCs from linear ones, which lack the start value and the inversion at the end."""
    unique, inverse = np.unique(lengths, return_inverse=True)
    start = _followed(np.full(len(unique), _ONES), unique)
    found: np.ndarray = raw ^ start[inverse] ^ _ONES
    return found


def masked(crc: np.ndarray) -> np.ndarray:
    """CRCs (uint32) in the form in which record files store them."""
    found: np.ndarray = ((crc >> np.uint32(15)) | (crc << np.uint32(17))) + _MASK_DELTA
    return found


def of_lengths(lengths: np.ndarray) -> np.ndarray:
    """uint32 (n,): the CRC of each number of `lengths` (uint64, (n,)), stored in eight bytes, lowest first."""
    columns = np.ascontiguousarray(lengths, dtype="<u8").view(np.uint8).reshape(-1, 8)
    tables = contributions(8)
    found = np.full(len(columns), _start(8) ^ _ONES)
    for place in range(8):
        found ^= tables[7 - place].take(columns[:, place], mode="clip")
    return found


def of_ranges(data: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """uint32 (n,): the CRCs of n ranges of `data` (uint8). starts, lengths: int64 (n,), in bytes."""
    lanes = np.maximum(-(-lengths // _LANE), 1)
    raw = np.empty(len(starts), dtype=np.uint32)
    first, total = 0, np.cumsum(lanes)
    while first < len(starts):
        before = int(total[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(total, before + _BATCH // _LANE, side="right")))
        raw[first:last] = _linear(data, starts[first:last], lengths[first:last], lanes[first:last])
        first = last
    return _finished(raw, lengths)


def _linear(data: np.ndarray, starts: np.ndarray, lengths: np.ndarray, lanes: np.ndarray) -> np.ndarray:
    """The linear CRCs of ranges: each is cut into lanes from its end on; zeros in front of it count for nothing."""
    ends = np.cumsum(lanes)
    flat = np.zeros(int(ends[-1]) * _LANE, dtype=np.uint8)
    for end, start, length in zip((ends * _LANE).tolist(), starts.tolist(), lengths.tolist(), strict=True):
        flat[end - length : end] = data[start : start + length]
    rows = flat.reshape(-1, _LANE)
    tables = contributions(_LANE)
    crc = np.zeros(len(rows), dtype=np.uint32)
    for place in range(_LANE):
        crc ^= tables[_LANE - 1 - place].take(rows[:, place], mode="clip")
    after = np.repeat(ends, lanes) - 1 - np.arange(len(rows))
    found: np.ndarray = np.bitwise_xor.reduceat(_followed(crc, after * _LANE), ends - lanes)
    return found
