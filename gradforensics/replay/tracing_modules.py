"""Which module runs: in the forward by hooks, in the backward by the numbers that autograd gives its nodes."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Self

import torch
from torch import nn
from torch.nn.modules import module as module_hooks

from gradforensics.replay.tracing_sources import recomputed

ROOT = "(model)"
OUTSIDE = "(loss function)"


def own_name(path: str) -> str:
    """The path of a module; of the model itself, whose path is empty, a name."""
    return path or ROOT


class ModuleWatch:
    """Follows the modules of a model while they run, also those that activation checkpointing runs again.

    Autograd numbers the nodes of a thread in the order in which they are made. The number at entering and at leaving
    every module cuts that line into intervals; a node belongs to the module in whose interval its number is.
    """

    def __init__(self, model: nn.Module) -> None:
        self.names = {id(module): own_name(path) for path, module in model.named_modules()}
        self.parameters = {id(p): own_name(name.rpartition(".")[0]) for name, p in model.named_parameters()}
        self._stacks: dict[int, list[str]] = {}
        self._marks: dict[int, tuple[list[int], list[str]]] = {}
        self._thread = threading.get_ident()
        self._hooks = ExitStack()

    def __enter__(self) -> Self:
        self._thread = threading.get_ident()
        for handle in (
            module_hooks.register_module_forward_pre_hook(self._entered),
            module_hooks.register_module_forward_hook(self._left, always_call=True),
        ):
            self._hooks.callback(handle.remove)
        return self

    def __exit__(self, *_: object) -> None:
        self._hooks.close()

    def running(self) -> str | None:
        """The path of the innermost module that runs in this thread; one that is not of the model by its class."""
        stack = self._stacks.get(threading.get_ident())
        return stack[-1] if stack else None

    def around(self) -> str | None:
        """The path of the module around that which runs."""
        stack = self._stacks.get(threading.get_ident())
        return stack[-2] if stack and len(stack) > 1 else None

    def of_node(self, node: Any, stack: Sequence[str]) -> str | None:
        """The module in which a node of the graph was made; of AccumulateGrad, that which has the parameter.

        stack: the forward's Python stack of the node.
        """
        if hasattr(node, "variable"):
            return self.parameters.get(id(node.variable))
        here = threading.get_ident()
        thread = here if here in self._marks and recomputed(stack) else self._thread
        numbers, paths = self._marks.get(thread, ([], []))
        index = bisect_right(numbers, node._sequence_nr()) - 1  # noqa: SLF001  PyTorch's own profiler reads it, too
        return (paths[index] or None) if index >= 0 else None

    def _entered(self, module: nn.Module, _: Any) -> None:
        stack = self._stacks.setdefault(threading.get_ident(), [])
        stack.append(self.names.get(id(module), type(module).__name__))
        self._mark(stack)

    def _left(self, *_: Any) -> None:
        stack = self._stacks.get(threading.get_ident())
        if stack:
            stack.pop()
            self._mark(stack)

    def _mark(self, stack: list[str]) -> None:
        numbers, paths = self._marks.setdefault(threading.get_ident(), ([], []))
        numbers.append(torch._C._autograd._get_sequence_nr())  # noqa: SLF001  likewise
        paths.append(stack[-1] if stack else "")
