"""The code that a replay runs: how model and loss are rebuilt. Loaded in the child process only.

A program is a function of the user's, named as FILE.py:FUNCTION. It gets a `Request` and returns a `Program`, or a
mapping with the fields of one. Model and loss are all it must give; a capsule brings the rest.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import nn

from gradforensics.errors import UsageError

LossFunction: TypeAlias = Callable[[nn.Module, Any], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Request:
    """What a program is told.

    step: the optimizer step in question. device: "cpu" or "cuda". settings: what the recorder was given as `settings`.
    checkpoint: the folder or file of --from, None with a capsule. run: the run directory, None where there is none.
    """

    step: int
    device: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    checkpoint: Path | None = None
    run: Path | None = None


@dataclass(slots=True)
class Program:
    """How to compute a step.

    model: an nn.Module with the right shapes; its weights are overwritten where the state is known. loss: called as
    loss(model, micro_batch), returns a scalar before any division by the number of micro-batches. batches: called as
    batches(step), returns the micro-batches of an optimizer step; not needed with a capsule. optimizer: an optimizer of
    the model's parameters; needed to roll forward where the state does not name a class of torch.optim. learning_rate:
    called as learning_rate(step), the rate of that optimizer step (or one per parameter group) on the way from a
    checkpoint; without it the checkpoint's holds for all steps.
    divide: whether training divides each micro-batch's loss by their number; a number where it always divides by that,
    also in an epoch's last step, which may have fewer. autocast: "bfloat16" or "float16" where training runs under
    torch.autocast. max_grad_norm, loss_scale: of clipping and of the gradient scaler. seed: set
    before every micro-batch (plus its number), where no random state was recorded. settings: facts for the experiments
    (pad_token_id, eos_token_id, ignore_index ...).
    """

    model: nn.Module
    loss: LossFunction
    batches: Callable[[int], Sequence[Any]] | None = None
    optimizer: torch.optim.Optimizer | None = None
    learning_rate: Callable[[int], float | Sequence[float]] | None = None
    divide: bool | int = True
    autocast: str | None = None
    max_grad_norm: float | None = None
    loss_scale: float | None = None
    seed: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)


def load(file: Path, function: str, request: Request) -> Program:
    """Import the file and call the function. Its folder comes first on sys.path, as if it were run as a script.

    Raises UsageError where the file has no such function or it returns something else than a program; what the user's
    code raises is passed on as it is.
    """
    sys.path.insert(0, str(file.parent.resolve()))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise UsageError(f"{file}: no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    build = getattr(module, function, None)
    if not callable(build):
        raise UsageError(f"{file}: has no function {function!r}")
    return understood(build(request) if inspect.signature(build).parameters else build(), f"{file}:{function}")


def understood(returned: Any, where: str) -> Program:
    """What a program's function returned, checked. Raises UsageError."""
    if isinstance(returned, Mapping):
        unknown = set(returned) - {f.name for f in fields(Program)}
        lacking = {"model", "loss"} - set(returned)
        if unknown or lacking:
            what = f"unknown key {min(unknown)!r}" if unknown else f"no {min(lacking)!r}"
            raise UsageError(f"{where} returned a mapping with {what}")
        returned = Program(**returned)
    if not isinstance(returned, Program):
        raise UsageError(f"{where} returned a {type(returned).__name__}, no Program and no mapping with model and loss")
    model: Any = returned.model  # the user's code may have put anything there
    if not isinstance(model, nn.Module) or not callable(returned.loss):
        raise UsageError(f"{where}: model must be an nn.Module and loss a function of (model, micro_batch)")
    return returned
