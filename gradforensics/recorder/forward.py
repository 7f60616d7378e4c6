"""The autocast state in which the model really runs: taken inside its forward, where frameworks turn it on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from gradforensics.capsule import Autocast
from gradforensics.recorder.names import is_compiled
from gradforensics.torch_state import autocast_state


class FirstCall:
    """Reports the autocast state when the first module without children is called.

    Its hooks are there only from `arm` to that call: in between a module with a hook would run other code in evaluation
    (the fast path of nn.TransformerEncoderLayer). A compiled model is hooked at its root, outside of what is compiled.
    """

    def __init__(self, model: nn.Module, outer: nn.Module, report: Callable[[Autocast], None]) -> None:
        self._report, self._device = report, "cpu"
        if is_compiled(outer):
            self._candidates = [outer]
        else:
            leaves = [m for m in model.modules() if not any(True for _ in m.children())]
            self._candidates = [m for m in leaves if not isinstance(m, torch.jit.ScriptModule)]
        self._known: nn.Module | None = None
        self._handles: list[RemovableHandle] = []

    def arm(self, device: str) -> None:
        """Wait for the next call: of the module that was first before, else of any. device: of autocast ("cuda")."""
        self.disarm()
        self._device = device
        waiting = self._candidates if self._known is None else [self._known]
        self._handles = [module.register_forward_pre_hook(self._called) for module in waiting]

    def disarm(self) -> None:
        """Take the hooks away."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _called(self, module: nn.Module, _inputs: Any) -> None:
        if self._handles:
            self.disarm()
            self._known = module
            self._report(autocast_state(self._device))
