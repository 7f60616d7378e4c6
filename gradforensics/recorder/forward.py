"""The moment at which the model really runs: inside its forward, where frameworks turn autocast on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from gradforensics.recorder.names import is_compiled


class FirstCall:
    """Calls report() when the first module without children is called.

    Its hooks are there only from `arm` to that call: in between a module with a hook would run other code in evaluation
    (the fast path of nn.TransformerEncoderLayer). A compiled model is hooked at its root, outside of what is compiled,
    and so is nn.DataParallel, whose threads share the hooks of the modules inside.
    """

    def __init__(self, model: nn.Module, outer: nn.Module, report: Callable[[], None]) -> None:
        self._report = report
        if is_compiled(outer) or isinstance(outer, nn.DataParallel):
            self._candidates = [outer]
        else:
            leaves = [m for m in model.modules() if not any(True for _ in m.children())]
            self._candidates = [m for m in leaves if not isinstance(m, torch.jit.ScriptModule)]
        self._known: nn.Module | None = None
        self._handles: list[RemovableHandle] = []

    def __reduce__(self) -> tuple[Any, ...]:
        """A model that is copied or pickled while its hooks wait takes them along; there they do nothing."""
        return _idle, ()

    def arm(self) -> None:
        """Wait for the next call: of the module that was first before, else of any."""
        self.disarm()
        waiting = self._candidates if self._known is None else [self._known]
        self._handles = [module.register_forward_pre_hook(self._called) for module in waiting]

    def disarm(self) -> None:
        """Take the hooks away."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _called(self, module: nn.Module, _inputs: Any) -> None:
        if torch.compiler.is_compiling():  # a function of the user's is traced: nothing of us may get into its graph
            return
        if self._handles:
            self.disarm()
            self._known = module
            self._report()


def _idle() -> FirstCall:
    found = FirstCall.__new__(FirstCall)
    found._handles = []  # noqa: SLF001  its own module
    return found
