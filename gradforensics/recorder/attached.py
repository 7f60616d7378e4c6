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


class Wrapped:
    """A method of an object, called by around(method, *args, **kwargs) as long as it is put in its place.

    A copy and a pickle of the object have the method of its class there: they are not recorded, and need nothing of us.
    """

    def __init__(self, owner: Any, name: str, around: Callable[..., Any]) -> None:
        self._owner, self._name, self._around = owner, name, around
        self._method = getattr(owner, name)
        self._before = vars(owner).get(name)  # somebody else has wrapped it on the instance
        functools.update_wrapper(self, self._method)  # signatures are inspected
        setattr(owner, name, self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call around."""
        return self._around(self._method, *args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial, (getattr(type(self._owner), self._name), self._owner)

    def restore(self) -> None:
        """Put back what was there, unless somebody has wrapped it since."""
        if vars(self._owner).get(self._name) is self:
            if self._before is None:
                delattr(self._owner, self._name)
            else:
                setattr(self._owner, self._name, self._before)


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

        def stepped(step: Callable[..., Any], given: Any, *args: Any, **kwargs: Any) -> Any:
            result = step(given, *args, **kwargs)
            if unwrapped_optimizer(given) is optimizer:
                after()
            return result

        self._undo.append(Wrapped(scaler, "step", stepped).restore)

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


def with_closure(args: tuple[Any, ...], kwargs: dict[str, Any], around: Callable[[Hook], Any]) -> Any:
    """The arguments of a step with around(closure) in place of its closure; None for a step without one."""
    closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
    if closure is None:
        return None

    def watched() -> Any:
        return around(closure)

    if "closure" in kwargs:
        return args, {**kwargs, "closure": watched}
    return (args[0], watched, *args[2:]), kwargs


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
