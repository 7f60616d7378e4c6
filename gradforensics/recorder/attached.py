"""What the recorder attaches to a training, so that all of it can be taken off again."""

from __future__ import annotations

import atexit
import contextlib
import functools
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch

Hook = Callable[..., Any]


class Attached:
    """Hooks on an optimizer, a scaler and the interpreter; `remove` takes them off in the reverse order."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], Any]] = []

    def optimizer(self, optimizer: torch.optim.Optimizer, before: Hook, after: Hook) -> None:
        """before(optimizer, args, kwargs) may replace the arguments of a step; after(optimizer, args, kwargs)."""
        self._undo.append(optimizer.register_step_pre_hook(before).remove)
        self._undo.append(optimizer.register_step_post_hook(after).remove)

    def scaler(self, scaler: Any, optimizer: torch.optim.Optimizer, after: Callable[[], None]) -> None:
        """Call after() whenever scaler.step(optimizer) returns: it may have skipped the optimizer."""
        step = scaler.step
        own = "step" in vars(scaler)  # somebody else has wrapped it on the instance

        @functools.wraps(step)
        def stepped(given: Any, *args: Any, **kwargs: Any) -> Any:
            result = step(given, *args, **kwargs)
            if unwrapped_optimizer(given) is optimizer:
                after()
            return result

        def restore() -> None:
            if vars(scaler).get("step") is stepped:
                if own:
                    scaler.step = step
                else:
                    del scaler.step

        scaler.step = stepped
        self._undo.append(restore)

    def interpreter(self, uncaught: Callable[[BaseException], None], leaving: Callable[[], None]) -> None:
        """Call uncaught(error) before the excepthook that is there, and leaving() when the interpreter ends."""
        before = sys.excepthook

        def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            uncaught(error)
            before(kind, error, trace)

        def restore() -> None:
            if sys.excepthook is hook:
                sys.excepthook = before

        sys.excepthook = hook
        atexit.register(leaving)
        self._undo += [restore, lambda: atexit.unregister(leaving)]

    def remove(self) -> None:
        """Take everything off."""
        while self._undo:
            with contextlib.suppress(Exception):
                self._undo.pop()()


def unwrapped_optimizer(optimizer: Any) -> Any:
    """The optimizer of torch inside those of Accelerate and Lightning."""
    while isinstance(inner := getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
        optimizer = inner
    return optimizer


def after_backward(call: Callable[[], None]) -> None:
    """Call back at the end of the backward that runs now, after DistributedDataParallel has reduced the gradients.

    The engine runs its callbacks in the order in which they were queued; one that is queued by another comes last.
    """
    queue = torch.autograd.Variable._execution_engine.queue_callback  # noqa: SLF001  the only way; DDP does the same
    queue(lambda: queue(call))
