"""What was read from an event file, as the columns of a log."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import numpy as np
import polars as pl

from gradforensics.evidence.log_table import Column, LogTable, Settled, settle

TAG_LIMIT = 20_000
TAG_BYTES = 1024
_EPOCH = re.compile(r"epoch_\w+$")  # what Keras calls the means of an epoch


class Columns:
    """Collects the values of all tags in the order of the file, window by window."""

    def __init__(self) -> None:
        self.dropped = 0  # values whose tags have no number
        self.height = 0
        self._tags: dict[bytes, int] = {}
        self._fresh: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]] = []
        self._steps: list[np.ndarray] = []
        self._times: list[np.ndarray] = []
        self._rows: list[np.ndarray] = []
        self._codes: list[np.ndarray] = []
        self._values: list[np.ndarray] = []

    def tag(self, name: bytes) -> int:
        """The number of a tag, -1 where there are too many or it is too long."""
        found = self._tags.get(name)
        if found is None:
            if len(self._tags) == TAG_LIMIT or len(name) > TAG_BYTES:
                return -1
            found = self._tags[name] = len(self._tags)
        return found

    def add(
        self, records: np.ndarray, steps: np.ndarray, times: np.ndarray, tags: np.ndarray, values: np.ndarray
    ) -> None:
        """Add n records of k values each: int64 (n,), int64 (n,), float64 (n,), int32 (n, k), float64 (n, k).

        The records of one window may come in any order.
        """
        self._fresh.append((records, steps, times, tags, values))

    def close_window(self) -> None:
        """Bring what was added since the last call into the order of the records: each is one row."""
        if not self._fresh:
            return
        records = np.concatenate([block[0] for block in self._fresh])
        order = np.argsort(records, kind="stable")
        self._steps.append(np.concatenate([block[1] for block in self._fresh])[order])
        self._times.append(np.concatenate([block[2] for block in self._fresh])[order])
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        counts = np.concatenate([np.full(len(block[0]), block[3].shape[1]) for block in self._fresh])
        rows = np.repeat(place, counts)
        codes = np.concatenate([block[3].ravel() for block in self._fresh])
        values = np.concatenate([block[4].ravel() for block in self._fresh])
        order = np.argsort(rows, kind="stable")
        order = order[codes[order] >= 0]
        self.dropped += len(rows) - len(order)
        self._rows.append((rows[order] + self.height).astype(np.uint32))
        self._codes.append(codes[order])
        self._values.append(values[order])
        self.height += len(records)
        self._fresh = []

    def settled(self, mapping: Mapping[str, str]) -> Settled:
        """The tracks of all tags. Keras' means of an epoch count in epochs, all others in steps."""
        found = Settled()
        if not self.height:
            return found
        steps, times = pl.Series(_joined(self._steps)), pl.Series(_joined(self._times)).fill_nan(None)
        groups: dict[bool, list[Column]] = {False: [], True: []}
        for column in self._columns():
            groups[_by_epoch(column, steps)].append(column)
        for by_epoch, columns in groups.items():
            if not columns:
                continue
            table = LogTable(
                self.height, columns, steps=steps, times=times, unit="epoch" if by_epoch else "step", sparse=True
            )
            part = settle(table, mapping)
            found.tracks += part.tracks
            found.notices += part.notices
        return found

    def _columns(self) -> Iterator[Column]:
        """The tags in the order in which they are met in the file."""
        codes, rows, values = _joined(self._codes), _joined(self._rows), _joined(self._values)
        # numbers of 16 bits are sorted by their digits, which is much faster
        order = np.argsort(codes.astype(np.uint16), kind="stable")
        ends = np.cumsum(np.bincount(codes, minlength=len(self._tags)))
        mine = dict(zip(self._tags, np.split(order, ends[:-1]), strict=True))
        for name in sorted((tag for tag in mine if len(mine[tag])), key=lambda tag: int(mine[tag][0])):
            own = mine[name]
            text = name.decode("utf-8", "replace")
            yield Column(text, pl.Series("value", values[own]), rows[own].astype(np.int64))


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    """The parts as one array; they are given up."""
    found = np.concatenate(parts)
    parts.clear()
    return found


def _by_epoch(column: Column, steps: pl.Series) -> bool:
    """Whether a series is a mean of every epoch, and its steps are the numbers of the epochs."""
    if not _EPOCH.match(column.tag):
        return False
    assert column.rows is not None
    moves = np.diff(steps.to_numpy()[column.rows])
    return bool((moves[moves > 0] == 1).all())
