"""One pass over the bytes of many tensors, by several threads or processes, in constant memory.

Half of the threads read and compute checksums, in large portions; the others measure what was read. Where all do both,
they often wait for the interpreter's lock between their many short calls, and waking up takes longer than such a call.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import NamedTuple, Self, TypeAlias

import numpy as np

from gradforensics.checkpoints import processes, stats
from gradforensics.checkpoints.model import Checksum, Tensor
from gradforensics.checkpoints.refs import KeptOpen, Piece, Run, TensorRef, blocks, pieces
from gradforensics.checkpoints.stats import Part, Stats, Workspace
from gradforensics.untrusted.files import RefusedError

_UNIT_BYTES = 8 << 20  # what one thread does in one go: a piece of a tensor, or many small tensors
_UNIT_PIECES = 1024
_ALIGNED = 64  # every piece begins at a multiple of it


@dataclass(frozen=True, slots=True)
class Scan:
    """What a pass found.

    results: of each tensor, in the order in which they were given, its statistics or why it could not be read.
    failed: the checksums that the bytes do not have; of those that belong to no tensor also the ones whose bytes could
    not be read.
    """

    results: list[Stats | str] = field(default_factory=list)
    failed: list[Checksum] = field(default_factory=list)


def scan(
    tensors: Sequence[Tensor],
    checksums: Sequence[Checksum] = (),
    *,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Scan:
    """Measure all tensors and verify their checksums and those of other bytes (zip records that are no tensor).

    threads: None means one per processor, up to 4, and as many processes instead for files that are worth it (see
    `processes`); the results do not depend on it. progress: called with the bytes
    done and the bytes in all. A tensor that cannot be read costs only its own result. An interrupt ends the pass after
    what is being read and measured at that moment, some megabytes.
    """
    if threads is None:
        items: list[Tensor | Checksum] = [*tensors, *checksums]
        shares = processes.shares([_nbytes(item) for item in items])
        if len(shares) > 1:
            return _shared(items, shares, progress)
        threads = min(4, os.cpu_count() or 1)
    jobs = [*(_Job(tensor.ref, tensor.checksum) for tensor in tensors), *(_raw_job(checksum) for checksum in checksums)]
    total, done = sum(job.ref.nbytes for job in jobs), 0
    with closing(_in_order(_units(jobs), threads)) as finished:
        for unit, outcomes in finished:
            for task, outcome in zip(unit, outcomes, strict=True):
                if isinstance(outcome, str):
                    task.job.problem = task.job.problem or outcome
                else:
                    task.job.part.add(outcome)
                done += task.nbytes
            if progress is not None:
                progress(done, total)
    return Scan(
        results=[job.problem or stats.finish(job.ref, job.part) for job in jobs if job.measured],
        failed=[job.checksum for job in jobs if job.checksum is not None and _fails(job, job.checksum)],
    )


def _nbytes(item: Tensor | Checksum) -> int:
    return item.ref.nbytes if isinstance(item, Tensor) else item.count


def _shared(
    items: Sequence[Tensor | Checksum], shares: Sequence[Sequence[int]], progress: Callable[[int, int], None] | None
) -> Scan:
    """The same by several processes, each with a share of the tensors and checksums."""
    parts = [[items[index] for index in share] for share in shares]
    by_index: dict[int, Stats | str] = {}
    bad: set[Checksum] = set()
    for share, found in zip(shares, processes.run(_part, parts, progress), strict=True):
        measured = [index for index in share if isinstance(items[index], Tensor)]
        by_index |= dict(zip(measured, found.results, strict=True))
        bad |= set(found.failed)
    stated = [item.checksum if isinstance(item, Tensor) else item for item in items]
    failed = [c for c in stated if c in bad]
    return Scan([by_index[index] for index in sorted(by_index)], failed)


def _part(items: Sequence[Tensor | Checksum], report: Callable[[int, int], None]) -> Scan:
    tensors = [item for item in items if isinstance(item, Tensor)]
    checksums = [item for item in items if isinstance(item, Checksum)]
    return scan(tensors, checksums, threads=1, progress=report)


@dataclass(slots=True)
class _Job:
    """A tensor, or the bytes of a checksum, and what is known of it so far."""

    ref: TensorRef
    checksum: Checksum | None
    measured: bool = True
    part: Part = field(default_factory=Part)
    problem: str = ""


def _raw_job(checksum: Checksum) -> _Job:
    run = Run(checksum.file, checksum.offset, checksum.count)
    return _Job(TensorRef("uint8", (checksum.count,), (run,) if checksum.count else ()), checksum, measured=False)


def _fails(job: _Job, checksum: Checksum) -> bool:
    return not job.measured if job.problem else job.part.crc != checksum.crc


class _Task(NamedTuple):
    """A piece of a job; its `nbytes` bytes are read to the buffer's byte `at`."""

    job: _Job
    piece: Piece
    at: int
    nbytes: int


_Unit: TypeAlias = list[_Task]
_Outcome: TypeAlias = Part | str


def _units(jobs: Iterable[_Job]) -> Iterator[_Unit]:
    unit: _Unit = []
    at = 0
    for job in jobs:
        for piece in pieces(job.ref, _piece_elements(job)):
            nbytes = sum(run.count for run in piece.runs) * job.ref.itemsize
            if at + nbytes > _UNIT_BYTES or len(unit) == _UNIT_PIECES:
                yield unit
                unit, at = [], 0
            unit.append(_Task(job, piece, at, nbytes))
            at = -(-(at + nbytes) // _ALIGNED) * _ALIGNED
    if unit:
        yield unit


def _piece_elements(job: _Job) -> int:
    """As many as fit; where they are measured, whole blocks and hence whole rows."""
    if not job.measured:
        return _UNIT_BYTES
    block = stats.layout(job.ref).elements
    return _UNIT_BYTES // (block * job.ref.itemsize) * block


def _in_order(units: Iterator[_Unit], threads: int) -> Generator[tuple[_Unit, list[_Outcome]], None, None]:
    """Do the units and give them back in their order."""
    if threads > 1:
        with _Pipeline(units, readers=threads // 2, measurers=threads - threads // 2) as pipeline:
            yield from pipeline.in_order()
    else:
        buffer, workspace = np.empty(_UNIT_BYTES, np.uint8), Workspace()
        with closing(KeptOpen()) as opening:
            for unit in units:
                yield unit, _measure(unit, buffer, _read(unit, buffer, opening), workspace)


class _Filled(NamedTuple):
    """A unit that was read into `buffer`; `crcs` as `_read` gives them."""

    number: int
    unit: _Unit
    buffer: np.ndarray
    crcs: list[int | str]


class _Done(NamedTuple):
    number: int
    unit: _Unit
    outcomes: list[_Outcome]


class _Pipeline:
    """Threads that read units and threads that measure them, and as many buffers as there are threads, and one more.

    None in a queue: nothing more will come. An exception in `_done` is a fault of ours, which ends the pass.
    """

    def __init__(self, units: Iterator[_Unit], *, readers: int, measurers: int) -> None:
        self._units = enumerate(units)
        self._lock = threading.Lock()
        self._reading, self._measuring = readers, measurers
        self._stopped = False
        self._free: queue.SimpleQueue[np.ndarray | None] = queue.SimpleQueue()
        self._filled: queue.SimpleQueue[_Filled | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[_Done | Exception | None] = queue.SimpleQueue()
        for _ in range(readers + measurers + 1):
            self._free.put(np.empty(_UNIT_BYTES, np.uint8))
        works = [self._read_units] * readers + [self._measure_units] * measurers
        self._threads = [threading.Thread(target=work, name="gradforensics-scan") for work in works]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped = True
        self._free.put(None)
        for thread in self._threads:
            thread.join()

    def in_order(self) -> Iterator[tuple[_Unit, list[_Outcome]]]:
        """The units with their outcomes, in their order. Raises what a thread raised."""
        wanted, early = 0, dict[int, _Done]()
        while (done := self._done.get()) is not None:
            if isinstance(done, Exception):
                raise done
            early[done.number] = done
            while (first := early.pop(wanted, None)) is not None:
                wanted += 1
                yield first.unit, first.outcomes

    def _read_units(self) -> None:
        try:
            with closing(KeptOpen()) as opening:
                while (buffer := self._free.get()) is not None and not self._stopped:
                    with self._lock:
                        number, unit = next(self._units, (-1, None))
                    if unit is None:
                        break
                    self._filled.put(_Filled(number, unit, buffer, _read(unit, buffer, opening)))
        except Exception as error:  # noqa: BLE001  it is raised again where the pass was asked for
            self._done.put(error)
        self._free.put(None)
        with self._lock:
            self._reading -= 1
            if not self._reading:
                self._filled.put(None)

    def _measure_units(self) -> None:
        try:
            workspace = Workspace()
            while (filled := self._filled.get()) is not None and not self._stopped:
                outcomes = _measure(filled.unit, filled.buffer, filled.crcs, workspace)
                self._free.put(filled.buffer)
                self._done.put(_Done(filled.number, filled.unit, outcomes))
        except Exception as error:  # noqa: BLE001  likewise
            self._done.put(error)
        self._filled.put(None)
        with self._lock:
            self._measuring -= 1
            if not self._measuring:
                self._done.put(None)


def _read(unit: _Unit, buffer: np.ndarray, opening: KeptOpen) -> list[int | str]:
    """Read the pieces to their places: the CRC-32 of each, or why it cannot be read."""
    found: list[int | str] = []
    for job, piece, at, nbytes in unit:
        target = buffer[at : at + nbytes]
        try:
            for _ in blocks(piece.runs, job.ref.itemsize, target, opening):
                pass  # one block fills the target
            found.append(stats.crc32(target))
        except RefusedError as error:
            found.append(str(error))
        except OSError as error:
            found.append(error.strerror or str(error))
    return found


def _measure(unit: _Unit, buffer: np.ndarray, crcs: list[int | str], workspace: Workspace) -> list[_Outcome]:
    """Measure the pieces that were read."""
    outcomes: list[_Outcome] = []
    for (job, piece, at, nbytes), crc in zip(unit, crcs, strict=True):
        if isinstance(crc, str):
            outcomes.append(crc)
        elif job.measured:
            outcomes.append(stats.measure(job.ref, buffer[at : at + nbytes], piece.first, crc, workspace))
        else:
            outcomes.append(Part(crc=crc, nbytes=nbytes))
    return outcomes
