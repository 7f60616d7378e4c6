"""Where the elements of a tensor lie: runs of elements in files, read block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from math import prod
from typing import NamedTuple, TypeAlias

import numpy as np

from gradforensics.untrusted.dtypes import ITEMSIZE
from gradforensics.untrusted.files import Opened, Readable, RefusedError


class Run(NamedTuple):
    """`count` elements in a file, the first at byte `offset`, each `step` elements behind the one before."""

    file: Readable
    offset: int
    count: int  # type: ignore[assignment]  # a number of elements, not tuple.count
    step: int = 1


@dataclass(frozen=True, slots=True)
class TensorRef:
    """A tensor that was found and not yet read.

    runs: its elements in the order in which they are read, together prod(shape) / repeat of them. order: the
    permutation of the dimensions in which they lie (outermost first) where that is not row-major, else None.
    repeat: how often each element stands for another one of the logical tensor (an expanded tensor), else 1.
    """

    dtype: str
    shape: tuple[int, ...]
    runs: tuple[Run, ...]
    order: tuple[int, ...] | None = None
    repeat: int = 1

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return ITEMSIZE[self.dtype]

    @property
    def count(self) -> int:
        """Number of elements of the logical tensor."""
        return prod(self.shape)

    @property
    def stored(self) -> int:
        """Number of elements that are read."""
        return sum(run.count for run in self.runs)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements that are read."""
        return self.stored * self.itemsize


@dataclass(frozen=True, slots=True)
class Lost:
    """A tensor that is named and described, and whose bytes are not there."""

    dtype: str
    shape: tuple[int, ...]
    why: str


Opening: TypeAlias = Callable[[Readable], AbstractContextManager[Opened]]
_SPAN = 16 << 20  # bytes read at once where elements lie apart


class Piece(NamedTuple):
    """A part of a tensor's elements: `first` is the index of its first element in reading order."""

    first: int
    runs: tuple[Run, ...]


def pieces(ref: TensorRef, elements: int) -> Iterator[Piece]:
    """The tensor in parts of `elements` elements (the last may be smaller), cut at the same indices for any runs."""
    first, have, part = 0, 0, []
    for run in ref.runs:
        done = 0
        while done < run.count:
            take = min(run.count - done, elements - have)
            part.append(Run(run.file, run.offset + done * run.step * ref.itemsize, take, run.step))
            done, have = done + take, have + take
            if have == elements:
                yield Piece(first, tuple(part))
                first, have, part = first + have, 0, []
    if part:
        yield Piece(first, tuple(part))


def opened_once(file: Readable) -> AbstractContextManager[Opened]:
    """Open a file for one use."""
    return file.open()


class KeptOpen:
    """Keeps the file that was used last open for the next use; close() closes it. For one thread."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._file: Readable | None = None
        self._opened: Opened | None = None

    @contextmanager
    def __call__(self, file: Readable) -> Iterator[Opened]:
        """Open a file, or go on with it where it is the one."""
        if self._opened is None or self._file is not file:
            self.close()
            self._opened = self._stack.enter_context(file.open())
            self._file = file
        yield self._opened

    def close(self) -> None:
        """Close the file."""
        self._opened = None
        self._stack.close()


def blocks(
    runs: tuple[Run, ...], itemsize: int, buffer: np.ndarray, opening: Opening = opened_once
) -> Iterator[np.ndarray]:
    """The bytes of the runs' elements, in order, in blocks that fill `buffer` (uint8, a multiple of itemsize).

    opening: how files are opened. Yields uint8 views of `buffer`, valid until the next one; each is full but for the
    last. Raises RefusedError where a file is shorter than its runs say, OSError where it cannot be read.
    """
    view, have = buffer.data, 0
    index = 0
    while index < len(runs):
        file = runs[index].file
        with opening(file) as opened:
            while index < len(runs) and runs[index].file is file:
                run = runs[index]
                done = 0
                while done < run.count:
                    take = min(run.count - done, (len(buffer) - have) // itemsize)
                    if run.step > 1:
                        take = min(take, max(_SPAN // (run.step * itemsize), 1))
                    at = run.offset + done * run.step * itemsize
                    if run.step == 1:
                        opened.read_into(at, view[have : have + take * itemsize])
                    else:
                        _gather(
                            opened.read(at, ((take - 1) * run.step + 1) * itemsize), run.step, itemsize, buffer[have:]
                        )
                    done, have = done + take, have + take * itemsize
                    if have + itemsize > len(buffer):
                        yield buffer[:have]
                        have = 0
                index += 1
    if have:
        yield buffer[:have]


def _gather(span: bytes, step: int, itemsize: int, target: np.ndarray) -> None:
    """Copy every `step`-th element of `span` to the front of `target`."""
    raw = np.frombuffer(span, np.uint8)
    rows = np.lib.stride_tricks.as_strided(
        raw, ((len(span) // itemsize + step - 1) // step, itemsize), (step * itemsize, 1), writeable=False
    )
    target[: rows.size].reshape(rows.shape)[:] = rows


def read(ref: TensorRef, limit: int = 64 << 20) -> np.ndarray:
    """The stored elements as one uint8 array, for small tensors. Raises RefusedError above `limit` bytes."""
    if ref.nbytes > limit:
        raise RefusedError(f"a tensor of {ref.nbytes} bytes is not read whole")
    buffer = np.empty(max(ref.nbytes, 1), np.uint8)
    for _ in blocks(ref.runs, ref.itemsize, buffer[: ref.nbytes] if ref.nbytes else buffer):
        pass
    return buffer[: ref.nbytes]


MAX_RUNS = 1 << 20


def strided(file: Readable, start: int, dtype: str, shape: tuple[int, ...], stride: tuple[int, ...]) -> TensorRef:
    """The tensor of torch's storage arithmetic: first element at byte `start`, strides in elements, none negative.

    Dimensions of stride 0 are read once. Raises RefusedError where the elements lie in more than MAX_RUNS runs.
    """
    itemsize = ITEMSIZE[dtype]
    if prod(shape) == 0:
        return TensorRef(dtype, shape, ())
    repeat = prod(n for n, s in zip(shape, stride, strict=True) if s == 0)
    axes = [axis for axis, (n, s) in enumerate(zip(shape, stride, strict=True)) if n > 1 and s != 0]
    dense = sorted(axes, key=lambda axis: -stride[axis])
    expected = 1
    for axis in reversed(dense):
        if stride[axis] != expected:
            break
        expected *= shape[axis]
    else:
        order = None if dense == axes else (*(a for a in range(len(shape)) if a not in dense), *dense)
        return TensorRef(dtype, shape, (Run(file, start, expected),), order, repeat)
    inner = axes[-1]
    outer = axes[:-1]
    count = prod(shape[axis] for axis in outer)
    if count > MAX_RUNS:
        raise RefusedError(f"a view of shape {list(shape)} whose elements lie in {count} separate places")
    runs = []
    for index in np.ndindex(*(shape[axis] for axis in outer)):
        at = sum(i * stride[axis] for i, axis in zip(index, outer, strict=True))
        runs.append(Run(file, start + at * itemsize, shape[inner], stride[inner]))
    return TensorRef(dtype, shape, tuple(runs), None, repeat)
