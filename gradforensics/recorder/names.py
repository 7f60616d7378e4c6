"""The names of a model's tensors, as the model has them that a program builds: without wrappers, tied ones once."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

# What torch.compile and activation checkpointing put into the names of the modules that they wrap.
_WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.")


@dataclass(slots=True)
class Names:
    """Parameters and buffers of an unwrapped model.

    parameters: by name, tied ones under their first name. tied: the other names, to the first. buffers: name to the
    module that holds the buffer and its key there, since a forward may put a new tensor into its place. modules: by
    name; the model itself is "".
    """

    model: nn.Module
    parameters: dict[str, nn.Parameter] = field(default_factory=dict)
    tied: dict[str, str] = field(default_factory=dict)
    buffers: dict[str, tuple[nn.Module, str]] = field(default_factory=dict)
    modules: dict[str, nn.Module] = field(default_factory=dict)
    _by_id: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.refresh()

    def refresh(self) -> None:
        """Read the model anew: parameters may be added and modules exchanged while it trains."""
        self.parameters, self.tied, self.buffers, self._by_id = {}, {}, {}, {}
        for raw, parameter in self.model.named_parameters(remove_duplicate=False):
            name = plain(raw)
            first = self._by_id.setdefault(id(parameter), name)
            if first == name:
                self.parameters[name] = parameter
            else:
                self.tied[name] = first
        seen: dict[int, str] = {}
        self.modules = {plain(prefix): module for prefix, module in self.model.named_modules()}
        for prefix, module in self.modules.items():
            for key, buffer in module._buffers.items():  # noqa: SLF001  named_buffers does not say which module holds it
                if buffer is None:
                    continue
                name = f"{prefix}.{key}" if prefix else key
                first = seen.setdefault(id(buffer), name)
                if first == name:
                    self.buffers[name] = (module, key)
                else:
                    self.tied[name] = first

    def changes(self) -> int:
        """How often the parameters were changed in place, as autograd counts it."""
        return sum(p._version for p in self.parameters.values())  # noqa: SLF001  the counter

    def of(self, parameter: torch.Tensor) -> str | None:
        """The name of a parameter, None for one that the model does not have."""
        return self._by_id.get(id(parameter))

    def held_buffers(self) -> dict[str, torch.Tensor]:
        """The buffers as they are now."""
        held = {name: module._buffers.get(key) for name, (module, key) in self.buffers.items()}  # noqa: SLF001  likewise
        return {name: buffer for name, buffer in held.items() if buffer is not None}

    def evaluating(self) -> list[str]:
        """Names of the modules in evaluation mode; the model itself is ""."""
        return [name for name, module in self.modules.items() if not module.training]

    def frozen(self) -> list[str]:
        """Names of the parameters that do not require a gradient."""
        return [name for name, parameter in self.parameters.items() if not parameter.requires_grad]


def plain(name: str) -> str:
    """A name without the parts that wrappers put into it."""
    name += "."  # the module that a wrapper holds ends with the part
    for part in _WRAPPERS:
        name = name.replace(part, "")
    return name[:-1]


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside DistributedDataParallel, DataParallel and torch.compile, in any order."""
    while True:
        inner = model._modules.get("_orig_mod")  # noqa: SLF001  the name is all that a compiled model shows
        if inner is None and isinstance(model, (DistributedDataParallel, DataParallel)):
            inner = model.module
        if inner is None:
            return model
        model = inner


def is_compiled(model: nn.Module) -> bool:
    """Whether torch.compile will trace through its modules, so that hooks put on them later compile them again."""
    return any(
        "_orig_mod" in module._modules or getattr(module, "_compiled_call_impl", None) is not None  # noqa: SLF001  likewise
        for module in model.modules()
    )


def sharded(model: nn.Module) -> str:
    """How the parameters are sharded over ranks, "" where each rank holds them whole."""
    for module in model.modules():
        if type(module).__name__ == "FullyShardedDataParallel":
            return "FullyShardedDataParallel"
    for parameter in model.parameters():
        if hasattr(parameter, "placements") and hasattr(parameter, "to_local"):
            return "DTensor"
        if hasattr(parameter, "ds_id"):
            return "DeepSpeed ZeRO-3"
    return ""


def place() -> tuple[int, int]:
    """Rank of this process and the number of ranks."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return int(os.environ.get("RANK", "0")), max(int(os.environ.get("WORLD_SIZE", "1")), 1)
