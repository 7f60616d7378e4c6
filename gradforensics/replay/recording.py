"""A recorded step with its tensors: what a capsule holds, or what a checkpoint and a program give together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from gradforensics import capsule as capsules
from gradforensics.capsule import Autocast, Header
from gradforensics.errors import CapsuleError
from gradforensics.torch_state import RandomState, decode, dtype_called


@dataclass(frozen=True, slots=True)
class Micro:
    """One micro-batch. backward: the gradient that loss.backward() starts from (None: as `Step.weight` says)."""

    batch: Any
    random: RandomState | None = None
    autocast: Autocast | None = None
    backward: torch.Tensor | None = None
    loss: float | None = None
    cleared: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """One optimizer step; fields as in `gradforensics.capsule.Step`. gradients: what the optimizer got, by name."""

    step: int
    micros: tuple[Micro, ...]
    options: tuple[Mapping[str, Any], ...] = ()
    scale: float | None = None
    max_grad_norm: float | None = None
    loss: float | None = None
    grad_norm: float | None = None
    skipped: bool = False
    gradients: Mapping[str, torch.Tensor] | None = None


@dataclass(slots=True)
class Recording:
    """State before the first of `steps`, and the steps; the last one is in question.

    model: parameters and buffers by name, None where the program brings its own. optimizer: states by parameter name
    and key ("exp_avg"). groups: parameter names of every optimizer group. evaluating, frozen: names of modules in
    evaluation mode and of parameters without gradient, None where not known. source: what to call it in a sentence.
    world_size: the number of ranks that the training had; the gradients of the others are not here.
    """

    source: str
    steps: tuple[Step, ...]
    model: dict[str, torch.Tensor] | None = None
    tied: Mapping[str, str] = field(default_factory=dict)
    frozen: frozenset[str] | None = None
    evaluating: frozenset[str] | None = None
    optimizer_class: str = ""
    optimizer: dict[str, dict[str, Any]] = field(default_factory=dict)
    groups: tuple[tuple[str, ...], ...] = ()
    scaler: Mapping[str, Any] | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    flags: Mapping[str, Any] = field(default_factory=dict)
    device: str = ""
    world_size: int = 1
    notices: list[str] = field(default_factory=list)

    @property
    def last(self) -> Step:
        """The step in question."""
        return self.steps[-1]


def from_capsule(folder: Path, header: Header | None = None) -> Recording:
    """Read a capsule. Raises CapsuleError."""
    header = header or capsules.read_header(folder)
    tensors = _load(folder / capsules.BATCHES)
    gradients = _load(folder / capsules.GRADIENTS) if (folder / capsules.GRADIENTS).exists() else None
    try:
        steps = [_step(step, tensors, None) for step in header.steps[:-1]]
        steps.append(_step(header.steps[-1], tensors, gradients))
    except (ValueError, KeyError, TypeError, RuntimeError, OverflowError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise CapsuleError(f"{folder / capsules.HEADER}: {what}") from None
    if not steps[-1].micros:
        raise CapsuleError(f"{folder / capsules.HEADER}: step {steps[-1].step} has no micro-batch, nothing can be run")
    states: dict[str, dict[str, Any]] = {}
    held = _load(folder / capsules.OPTIMIZER) if (folder / capsules.OPTIMIZER).exists() else {}
    for key, value in [*held.items(), *header.scalars.items()]:
        name, _, state = key.rpartition("|")
        states.setdefault(name, {})[state] = value
    return Recording(
        source=f"capsule {folder.name}",
        steps=tuple(steps),
        model=_load(folder / capsules.MODEL),
        tied=header.tied,
        frozen=frozenset(header.frozen),
        evaluating=frozenset(header.evaluating),
        optimizer_class=header.optimizer,
        optimizer=states,
        groups=header.groups,
        scaler=header.scaler,
        settings=dict(header.settings),
        flags=header.flags,
        device=header.device,
        world_size=header.world_size,
        notices=list(header.notices),
    )


def _load(path: Path) -> dict[str, torch.Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise CapsuleError(f"{path}: {error}") from None


def _step(
    step: capsules.Step, tensors: Mapping[str, torch.Tensor], gradients: Mapping[str, torch.Tensor] | None
) -> Step:
    micros = tuple(
        Micro(
            batch=decode(m.batch, tensors),
            random=None if m.rng is None else RandomState.decode(m.rng, tensors),
            autocast=_known(m.autocast),
            backward=None if m.backward is None else _seed(tensors[m.backward]),
            loss=m.loss,
            cleared=m.cleared,
        )
        for m in step.micro_batches
    )
    return Step(
        step.step, micros, step.options, step.scale, step.max_grad_norm, step.loss, step.grad_norm, step.skipped,
        gradients,
    )  # fmt: skip


def _known(state: Autocast | None) -> Autocast | None:
    """An autocast state whose dtype there is. Raises ValueError."""
    if state is not None:
        dtype_called(state.dtype)
    return state


def _seed(tensor: torch.Tensor) -> torch.Tensor:
    """What a backward started from. Raises ValueError where it is no gradient of a scalar."""
    if tensor.numel() != 1 or not tensor.is_floating_point():
        raise ValueError(f"a backward that starts from {tensor.dtype} of {list(tensor.shape)}")
    return tensor


def moved(value: Any, device: torch.device | str) -> Any:
    """A batch with its tensors on `device`; containers are new, so that a program may change them."""
    if isinstance(value, torch.Tensor):
        return value.to(device, copy=True)
    if isinstance(value, Mapping):
        return {key: moved(item, device) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(moved(item, device) for item in value)
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return [moved(item, device) for item in value]
    return value
