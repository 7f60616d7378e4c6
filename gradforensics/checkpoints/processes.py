"""Sharing the work on large files among processes: threads of one process wait for each other's interpreter lock.

The children are fresh interpreters that run our own functions on references to tensors; what they send back is ours
too. A child that fails costs time only: its share is then done here.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, TypeAlias, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
Report: TypeAlias = Callable[[int, int], None]
Work: TypeAlias = Callable[[Sequence[Item], Report], Result]

LARGE = 1 << 30  # bytes below which starting an interpreter, a quarter of a second, is not worth it
_MOST = 4
_HEAD_START = 1 << 29  # bytes that this process reads while another starts


def shares(sizes: Sequence[int]) -> list[list[int]]:
    """Indices of items of these sizes in bytes, in one share per process; one share if small.

    The shares are about equally large, but for the first: this process begins at once, the others must start.
    """
    count = min(os.cpu_count() or 1, _MOST) if sum(sizes) >= LARGE else 1
    found: list[list[int]] = [[] for _ in range(count)]
    loads = [0] + [min(_HEAD_START, sum(sizes) // 8)] * (count - 1)
    for index in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        least = loads.index(min(loads))
        found[least].append(index)
        loads[least] += sizes[index]
    return [sorted(share) for share in found if share] or [[]]


def run(work: Work[Item, Result], parts: Sequence[Sequence[Item]], progress: Report | None) -> list[Result]:
    """The results of `work` on every part, the first of them done in this process.

    work: a function of a module, called with the items and a report of (bytes done, bytes in all). progress: the same
    for all parts together.
    """
    done = [(0, 0)] * len(parts)

    def reported(index: int, now: int, total: int) -> None:
        done[index] = (now, total)
        for number, child in enumerate(children, start=1):
            child.listen(lambda a, b, n=number: done.__setitem__(n, (a, b)))  # type: ignore[misc]  # mypy cannot infer a lambda's default
        if progress is not None and all(whole for _, whole in done):
            progress(sum(part for part, _ in done), sum(whole for _, whole in done))

    children: list[_Child] = []
    try:
        children += [_Child(work, part) for part in parts[1:]]
        results = [work(parts[0], lambda now, total: reported(0, now, total))]
        for index, (child, part) in enumerate(zip(children, parts[1:], strict=True), start=1):
            answer = child.wait(lambda now, total, i=index: reported(i, now, total))  # type: ignore[misc]  # mypy cannot infer a lambda's default
            results.append(answer[0] if answer else work(part, lambda now, total, i=index: reported(i, now, total)))  # type: ignore[misc]  # likewise
    finally:
        for child in children:
            child.stop()
    return results


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """A child that starts here ignores Ctrl-C, which reaches it as well: the parent ends it, without its traceback."""
    if threading.current_thread() is not threading.main_thread():  # the only one that may set handlers
        yield
        return
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


class _Child:
    """A process that works on one part."""

    def __init__(self, work: Callable[..., Any], part: Sequence[Any]) -> None:
        context = multiprocessing.get_context("spawn")  # a forked child would inherit locks that threads hold
        self._connection, theirs = context.Pipe(duplex=False)
        self._process = context.Process(target=_serve, args=(theirs, work, part), daemon=True)
        self._answer: tuple[Any] | None = None
        with _uninterrupted():
            self._process.start()
        theirs.close()

    def listen(self, report: Report) -> None:
        """Take in what it has sent so far."""
        try:
            while self._answer is None and self._connection.poll():
                self._take(report)
        except (EOFError, OSError):
            return

    def wait(self, report: Report) -> tuple[Any] | None:
        """Its result, or None where it failed."""
        try:
            while self._answer is None:
                self._take(report)
        except (EOFError, OSError):
            return None
        return self._answer

    def _take(self, report: Report) -> None:
        kind, value = self._connection.recv()
        if kind == "done":
            self._answer = (value,)
        else:
            report(*value)

    def stop(self) -> None:
        """End it, whatever it does."""
        self._process.terminate()
        self._process.join()
        self._connection.close()


def _serve(connection: Connection, work: Callable[..., Any], part: Sequence[Any]) -> None:
    try:
        connection.send(("done", work(part, lambda now, total: connection.send(("at", (now, total))))))
    except Exception:  # noqa: BLE001  the parent does this part itself, and tells what is wrong with it
        return
