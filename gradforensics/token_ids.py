"""Pure functions on the ids of tokens, for batches and for training data: repeated n-grams (D42), shares (a leaf)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

LONGEST_NGRAM = 13  # OLMo 2 (arXiv 2501.00656) looks for repeated n-grams of 1 to 13 tokens
MOST_REPEATS = 32  # and leaves out documents with this many repeats of one


@dataclass(frozen=True, slots=True)
class Repeat:
    """An n-gram that follows itself: n tokens, how often in a row, from which token on."""

    length: int
    times: int
    start: int


def longest_repeat(ids: Sequence[int] | np.ndarray[Any, Any]) -> Repeat:
    """The n-gram of 1 to 13 tokens that stands most often in a row; the shortest where several do."""
    row = np.asarray(ids)
    best = Repeat(1, min(len(row), 1), 0)
    for length in range(1, min(LONGEST_NGRAM, len(row) // 2) + 1):
        starts, counts = _runs(row, length)
        if len(starts):
            longest = int(np.argmax(counts))
            times = int(counts[longest]) // length + 1
            if times > best.times:
                best = Repeat(length, times, int(starts[longest]))
    return best


@dataclass(frozen=True, slots=True)
class Repeats:
    """What `longest_repeats` finds, one entry for each of its texts: times, lengths and starts are int64 (texts,)."""

    times: np.ndarray
    lengths: np.ndarray
    starts: np.ndarray


def longest_repeats(keys: np.ndarray, owners: np.ndarray, texts: int) -> Repeats:
    """`longest_repeat` of many texts at once, which stand one behind the other.

    keys: uint64 (n,), what tells tokens apart; owners: int64 (n,), the text (0 to texts - 1) that a token belongs to,
    rising. `starts` are places in `keys`; the times of a text without tokens are 0. Tokens of different texts are told
    apart by mixing the owner into the key, which confuses two of them with a probability of 2^-64.
    """
    mixed = keys ^ (owners.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    times = np.zeros(texts, dtype=np.int64)
    times[owners] = 1
    lengths = np.ones(texts, dtype=np.int64)
    starts = np.zeros(texts, dtype=np.int64)
    where = np.flatnonzero(np.diff(owners, prepend=-1) != 0)
    starts[owners[where]] = where
    for length in range(1, LONGEST_NGRAM + 1):
        at, counts = _runs(mixed, length)
        found = counts // length + 1
        better = found > times[owners[at]]
        at, found = at[better], found[better]
        order = np.argsort(found, kind="stable")  # the largest of a text is written last
        whose = owners[at[order]]
        times[whose], lengths[whose], starts[whose] = found[order], length, at[order]
    return Repeats(times, lengths, starts)


def _runs(row: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """(starts, counts) of the stretches in which every token equals the one `length` places after it."""
    at = np.flatnonzero(row[length:] == row[:-length])
    if not len(at):
        return at, at
    begins = np.concatenate(([0], np.flatnonzero(np.diff(at) != 1) + 1))
    return at[begins], np.diff(np.concatenate((begins, [len(at)])))


def single_token_share(ids: Sequence[int] | np.ndarray[Any, Any]) -> float:
    """The share of the most frequent token; 0 for none."""
    counts = np.unique(np.asarray(ids), return_counts=True)[1]
    return float(counts.max() / counts.sum()) if len(counts) else 0.0


def ids_of(value: Any) -> frozenset[int]:
    """The ids of a setting such as eos_token_id: a number, a list of them, or none."""
    listed = value if isinstance(value, (list, tuple)) else [value]
    return frozenset(v for v in listed if isinstance(v, int) and not isinstance(v, bool) and v >= 0)
