"""Where values leave the graph of autograd: calls that take a tensor with a history and give one without.

A cut can be opened in a later run of the same step: the call then keeps the history. What gets a gradient then, and
only then, was cut off there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, TypeAlias

import torch
import torch.utils.checkpoint
from torch import nn
from torch.overrides import TorchFunctionMode

from gradforensics.replay.tracing_modules import OUTSIDE, ModuleWatch
from gradforensics.replay.tracing_sources import running_line

Key: TypeAlias = tuple[str, str]  # the kind of the cut, and the line
DETACH, DATA, COPY = "Tensor.detach()", "Tensor.data", "torch.tensor() of a tensor"
NO_GRAD, REENTRANT = "torch.no_grad()", "reentrant activation checkpointing whose inputs need no gradient"
_OPENABLE = frozenset({DETACH, DATA, COPY, NO_GRAD, REENTRANT})
_COPIES = frozenset({"tensor", "new_tensor", "asarray"})
_LEAVING = frozenset({"item", "tolist", "numpy", "__float__", "__int__", "__array__"})
_VIEWS = frozenset({"T", "mT", "H", "mH", "real", "imag"})  # attributes that are tensors with the same history
_SHAPED = ("zeros", "ones", "empty", "full", "rand", "new_")  # take the shape of a tensor, not its values
_WALKS = 2  # looks at the graph per call site and module; a loop gives the same answer again and again
_REGION = 64  # and per stretch without gradients


@dataclass(slots=True)
class Cut:
    """A place at which values lose their history.

    module: the innermost that ran. upstream: names of the parameters that the values come from. exact: whether the
    call can be opened in another run.
    """

    kind: str
    line: str
    module: str
    upstream: set[str] = field(default_factory=set)

    @property
    def key(self) -> Key:
        """What tells it from other cuts."""
        return self.kind, self.line

    @property
    def openable(self) -> bool:
        """Whether another run can keep the history at this call."""
        return self.kind in _OPENABLE


class CutTrace(TorchFunctionMode):
    """Watches a forward.

    cuts: in the order in which they were met. used: names of the parameters that took part in a call, in the order of
    their first. opened: the cuts that keep the history this time.
    """

    def __init__(self, model: nn.Module, watch: ModuleWatch, opened: Collection[Key]) -> None:
        super().__init__()
        self.cuts: dict[Key, Cut] = {}
        self.used: dict[str, None] = {}
        self._names = {id(p): name for name, p in model.named_parameters()}
        self._watch, self._opened = watch, frozenset(opened)
        self._walked: dict[tuple[Key, str], int] = {}
        self._region: Cut | None = None

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """See `TorchFunctionMode`."""
        given = dict(kwargs or {})
        if torch._C._current_graph_task_id() != -1:  # noqa: SLF001  backward: recomputed, or hooks
            return func(*args, **given)
        if func is torch._C._set_grad_enabled:  # noqa: SLF001  what no_grad and enable_grad call
            return self._switched(func, args[0])
        live = [t for t in _tensors((args, given)) if t.requires_grad]
        if not live:
            return func(*args, **given)
        kind = _kind(func)
        if kind in _OPENABLE and self._opened and (kind, running_line()) in self._opened:
            return _kept(kind, live[0], given)
        out = func(*args, **given)
        self._noted(kind, live, out)
        return out

    def _noted(self, kind: str, live: Sequence[torch.Tensor], out: Any) -> None:
        made = list(_tensors(out))
        if not made and kind not in _LEAVING:
            return  # a shape, a device: no values
        if kind.startswith(_SHAPED):
            return
        self.used.update((name, None) for t in live if (name := self._names.get(id(t))))
        if any(t.requires_grad for t in made):
            return
        if torch.is_grad_enabled():
            self._region = None
            if line := running_line():
                self._cut(kind, line, live, _WALKS)
        elif self._region is not None:
            self._cut(*self._region.key, live, _REGION)
        elif torch.is_inference_mode_enabled() and (line := running_line()):
            self._cut("torch.inference_mode()", line, live, _WALKS)

    def _cut(self, kind: str, line: str, live: Sequence[torch.Tensor], walks: int) -> None:
        module = self._watch.running() or OUTSIDE
        cut = self.cuts.setdefault((kind, line), Cut(kind, line, module))
        times = self._walked.get((cut.key, module), 0)
        self._walked[cut.key, module] = times + 1
        for tensor in live:
            name = self._names.get(id(tensor))
            if name is not None:
                cut.upstream.add(name)
            elif times < walks:
                cut.upstream |= self._upstream(tensor)

    def _upstream(self, tensor: torch.Tensor) -> set[str]:
        """The parameters that a tensor's history begins with."""
        pending, seen, found = [tensor.grad_fn], set(), set()
        while pending:
            node = pending.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            name = self._names.get(id(getattr(node, "variable", None)))
            if name is not None:
                found.add(name)
            pending.extend(child for child, _ in node.next_functions)
        return found

    def _switched(self, func: Callable[..., Any], on: bool) -> Any:
        """Gradients are switched on or off: the values made while they are off have no history."""
        if on:
            self._region = None
            return func(on)
        kind = REENTRANT if _in_checkpoint() else NO_GRAD  # autograd itself has switched them off for the former
        if (kind == REENTRANT or torch.is_grad_enabled()) and (line := running_line()):
            if kind == NO_GRAD and (kind, line) in self._opened:
                return None
            self._region = Cut(kind, line, self._watch.running() or OUTSIDE)
            self.cuts.setdefault(self._region.key, self._region)
        return func(on)


def _kind(func: Callable[..., Any]) -> str:
    """What a call is: one of the kinds above, else the name of the operation."""
    name: str = getattr(func, "__name__", "") or str(func)
    if name == "__get__":
        attribute = getattr(getattr(func, "__self__", None), "__name__", "")
        return {"data": DATA}.get(attribute, attribute if attribute in _VIEWS else "new_")
    if name in ("detach", "detach_"):
        return DETACH
    return COPY if name in _COPIES else name


def _kept(kind: str, tensor: torch.Tensor, given: Mapping[str, Any]) -> torch.Tensor:
    """What a cut gives when it is opened: the same values with their history."""
    if kind != COPY:
        return tensor.view_as(tensor)
    return tensor.clone().to(given.get("device") or tensor.device, given.get("dtype") or tensor.dtype)


def _tensors(value: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)) and depth < 4:
        for item in value:
            yield from _tensors(item, depth + 1)
    elif isinstance(value, Mapping) and depth < 4:
        for item in value.values():
            yield from _tensors(item, depth + 1)


def _in_checkpoint() -> bool:
    """Whether the reentrant form of torch.utils.checkpoint runs its function now, and nothing of the user's inside."""
    frame: FrameType | None = sys._getframe()  # noqa: SLF001  inspect.stack() would read every source file
    code = torch.utils.checkpoint.CheckpointFunction.forward.__code__
    steps = 0
    while frame is not None and steps < 6:
        if frame.f_code is code:
            return True
        frame, steps = frame.f_back, steps + 1
    return False


@contextmanager
def traced(model: nn.Module, opened: Collection[Key] = ()) -> Iterator[CutTrace]:
    """Watch a step for cuts; those in `opened` keep the history."""
    with ModuleWatch(model) as watch, _inputs_that_need_gradients(opened), CutTrace(model, watch, opened) as trace:
        yield trace


@contextmanager
def _inputs_that_need_gradients(opened: Collection[Key]) -> Iterator[None]:
    """Reentrant checkpointing gives gradients if an input needs one: what enable_input_require_grads() brings about."""
    lines = {line for kind, line in opened if kind == REENTRANT}
    if not lines:
        yield
        return
    function: Any = torch.utils.checkpoint.CheckpointFunction
    original = function.apply

    def apply(*args: Any) -> Any:
        if running_line() in lines and not any(t.requires_grad for t in _tensors(args)):
            args = tuple(
                a.detach().requires_grad_() if isinstance(a, torch.Tensor) and a.is_floating_point() else a
                for a in args
            )
        return original(*args)

    function.apply = apply
    try:
        yield
    finally:
        del function.apply
