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
from numbers import Real
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import nn

from gradforensics.errors import UsageError

_folders: set[Path] = set()  # of the programs that were loaded
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
    folder = file.parent.resolve()
    _make_way(folder)
    sys.path.insert(0, str(folder))
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


def _make_way(folder: Path) -> None:
    """Forget the modules of an earlier program that this one has too.

    A program and its fix often lie in two copies of one folder: the fix must not get the other's modules.
    """
    names = _importable(folder)
    for earlier in _folders - {folder}:
        for name in names & _importable(earlier):
            module = sys.modules.get(name)
            places = [getattr(module, "__file__", None), *getattr(module, "__path__", ())]
            if any(isinstance(place, str) and Path(place).resolve().is_relative_to(earlier) for place in places):
                for known in [one for one in sys.modules if one == name or one.startswith(f"{name}.")]:
                    del sys.modules[known]
    _folders.add(folder)


def _importable(folder: Path) -> set[str]:
    """The names of the modules and packages that lie in a folder."""
    return {one.stem for one in folder.glob("*.py")} | {one.name for one in folder.iterdir() if one.is_dir()}


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
    for name, (right, what) in _OTHERS.items():
        if not right(getattr(returned, name)):
            raise UsageError(f"{where}: {name} must be {what}")
    return returned


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


# What the fields besides model and loss may hold: a wrong one would show as a failure of the step.
_OTHERS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "batches": (lambda v: v is None or callable(v), "a function of (step)"),
    "optimizer": (lambda v: v is None or isinstance(v, torch.optim.Optimizer), "a torch.optim.Optimizer"),
    "learning_rate": (lambda v: v is None or callable(v), "a function of (step)"),
    "divide": (lambda v: isinstance(v, int) and v >= 0, "True, False or a number of micro-batches"),
    "autocast": (lambda v: v in (None, "bfloat16", "float16"), "'bfloat16' or 'float16'"),
    "max_grad_norm": (lambda v: v is None or _is_number(v), "a number"),
    "loss_scale": (lambda v: v is None or _is_number(v), "a number"),
    "seed": (lambda v: isinstance(v, int), "a whole number"),
    "settings": (lambda v: isinstance(v, Mapping), "a mapping"),
}
