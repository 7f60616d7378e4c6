"""One pass over the bytes of many tensors, by several threads, in constant memory."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from gradforensics.checkpoints import stats
from gradforensics.checkpoints.model import Checksum, Tensor
from gradforensics.checkpoints.refs import Piece, Run, TensorRef, pieces
from gradforensics.checkpoints.stats import Part, Stats, Workspace
from gradforensics.untrusted.files import RefusedError

_PIECE_BYTES = 32 << 20  # of one tensor in one piece
_UNIT_PIECES = 256  # small pieces that one thread does in one go


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

    threads: None means one per processor, up to 4; the results do not depend on it. progress: called with the bytes
    done and the bytes in all. A tensor that cannot be read costs only its own result. An interrupt ends the pass after
    the pieces that are being read.
    """
    threads = threads or min(4, os.cpu_count() or 1)
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
    job: _Job
    piece: Piece

    @property
    def nbytes(self) -> int:
        return sum(run.count for run in self.piece.runs) * self.job.ref.itemsize


_Unit: TypeAlias = list[_Task]
_Outcome: TypeAlias = Part | str


def _units(jobs: Iterable[_Job]) -> Iterator[_Unit]:
    """What one thread does in one go: pieces of at most _PIECE_BYTES, or many small ones of about as much in all."""
    unit: _Unit = []
    size = 0
    for job in jobs:
        for piece in pieces(job.ref, _piece_elements(job.ref)):
            task = _Task(job, piece)
            unit.append(task)
            size += task.nbytes
            if size >= _PIECE_BYTES or len(unit) == _UNIT_PIECES:
                yield unit
                unit, size = [], 0
    if unit:
        yield unit


def _piece_elements(ref: TensorRef) -> int:
    """Whole blocks, hence whole rows where rows are looked at."""
    block = stats.layout(ref).elements
    return max(_PIECE_BYTES // (block * ref.itemsize), 1) * block


def _in_order(units: Iterator[_Unit], threads: int) -> Generator[tuple[_Unit, list[_Outcome]], None, None]:
    """Do the units and give them back in their order, with few of them waiting at any time."""
    pool = ThreadPoolExecutor(threads)
    own = threading.local()
    waiting: deque[tuple[_Unit, Future[list[_Outcome]]]] = deque()
    try:
        for unit in units:
            waiting.append((unit, pool.submit(_measure, unit, own)))
            if len(waiting) > 2 * threads:
                first, future = waiting.popleft()
                yield first, future.result()
        while waiting:
            first, future = waiting.popleft()
            yield first, future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _measure(unit: _Unit, own: threading.local) -> list[_Outcome]:
    """One outcome per task. `own` holds the thread's buffers."""
    if not hasattr(own, "workspace"):
        own.workspace = Workspace()
    outcomes: list[_Outcome] = []
    for job, piece in unit:
        try:
            outcomes.append(stats.measure(job.ref, piece, own.workspace, values=job.measured))
        except RefusedError as error:
            outcomes.append(str(error))
        except OSError as error:
            outcomes.append(error.strerror or str(error))
    return outcomes
