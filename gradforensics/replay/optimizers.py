"""The optimizer of a recorded state, rebuilt."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from gradforensics.errors import ReplayError
from gradforensics.replay.program import Program
from gradforensics.replay.recording import Recording


def make_optimizer(
    recording: Recording, program: Program, parameters: Mapping[str, nn.Parameter]
) -> torch.optim.Optimizer:
    """The program's optimizer, else one of the recorded class of torch.optim, with the recorded groups and states.

    Raises ReplayError where there is neither, or where names do not fit.
    """
    optimizer = program.optimizer or _built(recording, parameters)
    moving = {
        p for group in optimizer.param_groups if group.get("fused") or group.get("capturable") for p in group["params"]
    }
    for name, states in recording.optimizer.items():
        parameter = parameters.get(recording.tied.get(name, name), parameters.get(name))
        if parameter is None:
            raise ReplayError(f"the optimizer state of {name} belongs to no parameter of the program's model")
        counter_moves = parameter in moving
        optimizer.state[parameter] = {
            key: _placed(value, parameter, moves=key != "step" or counter_moves) for key, value in states.items()
        }
    return optimizer


def _built(recording: Recording, parameters: Mapping[str, nn.Parameter]) -> torch.optim.Optimizer:
    kind = getattr(torch.optim, recording.optimizer_class.rpartition(".")[2], None)
    if not recording.optimizer_class.startswith("torch.optim.") or not isinstance(kind, type):
        what = recording.optimizer_class or "an unknown class"
        raise ReplayError(f"the optimizer is {what}: let the program return an `optimizer` to roll forward")
    accepted = set(inspect.signature(kind).parameters)
    options = recording.steps[0].options
    groups: list[dict[str, Any]] = []
    for index, names in enumerate(recording.groups):
        lacking = [name for name in names if name not in parameters]
        if lacking:
            raise ReplayError(f"the optimizer's parameter {lacking[0]} is not in the program's model")
        own = options[index] if index < len(options) else {}
        groups.append(
            {
                "params": [parameters[n] for n in names],
                **{k: v for k, v in own.items() if k in accepted and v is not None},
            }
        )
    if not groups:
        raise ReplayError("the optimizer's groups were not recorded: let the program return an `optimizer`")
    optimizer: torch.optim.Optimizer = kind(groups)
    return optimizer


def _placed(value: Any, parameter: nn.Parameter, *, moves: bool) -> Any:
    """A state, on its parameter's device; step counters stay on the CPU as in torch.optim, unless they must move."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.to(parameter.device, copy=True) if moves else value.clone()
