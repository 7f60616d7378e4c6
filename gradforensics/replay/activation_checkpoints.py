"""Activation checkpointing that can be switched: as the program asks for it, without it, with other settings.

`install` must run before the user's program is imported: programs and libraries copy the function
(`from torch.utils.checkpoint import checkpoint`). Checkpointing by other means (DeepSpeed's own) is not seen.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import torch.utils.checkpoint
from torch import nn

Mode: TypeAlias = Literal["recorded", "without", "rng-preserved", "non-reentrant"]
# settings of checkpointing itself; the rest of the keywords belongs to the function
_OWN = frozenset({"use_reentrant", "preserve_rng_state", "context_fn", "determinism_check", "debug", "early_stop"})
_original: Callable[..., Any] = torch.utils.checkpoint.checkpoint


@dataclass(slots=True)
class Calls:
    """The checkpointed calls that were made: modules, or names of functions that are no module's."""

    made: list[nn.Module | str] = field(default_factory=list)

    def named(self, model: nn.Module) -> list[str]:
        """Every checkpointed module by its path in the model and every function by name, once, in order."""
        paths = {module: name for name, module in model.named_modules()}
        names = [one if isinstance(one, str) else paths.get(one, type(one).__name__) for one in self.made]
        return list(dict.fromkeys(names))


@dataclass(slots=True)
class _Switch:
    mode: Mode = "recorded"
    calls: Calls = field(default_factory=Calls)


_switch = _Switch()


@functools.wraps(_original)
def _checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    _switch.calls.made.append(_owner(function))
    match _switch.mode:
        case "without":
            return function(*args, **{key: value for key, value in kwargs.items() if key not in _OWN})
        case "rng-preserved":
            kwargs["preserve_rng_state"] = True
        case "non-reentrant":
            kwargs["use_reentrant"] = False
        case "recorded":
            pass
    return _original(function, *args, **kwargs)


def _owner(function: Any) -> nn.Module | str:
    """The module that a checkpointed function is, or is a method of; else its name."""
    while isinstance(function, functools.partial):
        module = next((a for a in function.args if isinstance(a, nn.Module)), None)
        if module is not None:
            return module
        function = function.func
    owner = function if isinstance(function, nn.Module) else getattr(function, "__self__", None)
    return owner if isinstance(owner, nn.Module) else str(getattr(function, "__qualname__", type(function).__name__))


def install() -> None:
    """Put the switchable function in the place of torch.utils.checkpoint.checkpoint. Calling it again does nothing."""
    torch.utils.checkpoint.checkpoint = _checkpoint


@contextmanager
def switched(mode: Mode) -> Iterator[Calls]:
    """Run checkpointed calls in this mode, and list them.

    recorded: as the program calls. without: the functions themselves, nothing recomputed. rng-preserved: recomputed
    under the random state of the forward. non-reentrant: with use_reentrant=False.
    """
    before = _switch.mode, _switch.calls
    _switch.mode, _switch.calls = mode, Calls()
    try:
        yield _switch.calls
    finally:
        _switch.mode, _switch.calls = before
