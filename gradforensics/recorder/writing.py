"""Writing a capsule: whole or not at all, and never beyond the space that it may take."""

from __future__ import annotations

import contextlib
import math
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from gradforensics import __version__, capsule
from gradforensics.recorder import sources
from gradforensics.recorder.judge import Finding
from gradforensics.recorder.names import Names
from gradforensics.recorder.sources import Sources
from gradforensics.recorder.state import State
from gradforensics.recorder.steps import StepRecord, plain_option

_MOST_GRADIENTS = 4 << 30  # gradients are a help, not a need: replay computes them
_SPARE = 1 << 30  # free space that is left on the disk for the training's own checkpoints


class NotWrittenError(Exception):
    """A capsule or checkpoint that was not written; says why."""


@dataclass(slots=True)
class Setting:
    """What is the same for all capsules of a training."""

    names: Names
    optimizer: torch.optim.Optimizer
    folder: Path
    max_bytes: int
    max_grad_norm: float | None
    settings: Mapping[str, Any]
    sources: Sources
    rank: int
    world_size: int
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    notices: list[str] = field(default_factory=list)


def write(
    setting: Setting,
    finding: Finding,
    steps: Sequence[StepRecord],
    state: State,
    gradients: Mapping[str, torch.Tensor] | None,
) -> Path:
    """Write a capsule of `steps` from the state before the first of them; returns its folder.

    gradients: of the last step, as the optimizer gets them. Raises NotWrittenError and OSError.
    """
    tensors: dict[str, torch.Tensor] = {}
    encoded = tuple(step.encoded(tensors, setting.max_grad_norm) for step in steps)
    setting.sources.take_new()
    needed = state.nbytes + _size(tensors.values()) + sum(map(len, setting.sources.files.values()))
    name = capsule.folder_name(steps[-1].step, setting.rank, setting.world_size)
    room = _room(setting)
    if needed > room:
        raise NotWrittenError(
            f"a capsule of {needed / 1e9:.2f} GB does not fit into the {max(room, 0) / 1e9:.2f} GB left"
        )
    if gradients is not None and _size(gradients.values()) > min(_MOST_GRADIENTS, room - needed):
        gradients = None
    header = _header(setting, finding, encoded, steps, state)
    final = setting.folder / name
    partial = setting.folder / f".{final.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        _save(state.model, partial / capsule.MODEL)
        if state.optimizer:
            _save(state.optimizer, partial / capsule.OPTIMIZER)
        _save(tensors, partial / capsule.BATCHES)
        if gradients is not None:
            _save(gradients, partial / capsule.GRADIENTS)
        for name, contents in setting.sources.files.items():
            file = partial / capsule.CODE / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(contents)
        capsule.write_header(partial, header)
        if final.exists():  # of an earlier start of the same training
            shutil.rmtree(final)
        partial.rename(final)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return final


def _header(
    setting: Setting, finding: Finding, encoded: tuple[capsule.Step, ...], steps: Sequence[StepRecord], state: State
) -> capsule.Header:
    names, optimizer = setting.names, setting.optimizer
    evaluating, frozen = steps[-1].modes or (names.evaluating(), names.frozen())
    known = [[names.of(p) for p in group["params"]] for group in optimizer.param_groups]
    scaler = None if state.scaler is None else {key: plain_option(value) for key, value in state.scaler.items()}
    return capsule.Header(
        tool=f"gradforensics {__version__}",
        step=encoded[-1].step,
        reason=finding.reason,
        text=finding.text,
        steps=encoded,
        model=_class(names.model),
        rank=setting.rank,
        world_size=setting.world_size,
        device=setting.device.type,
        tied=names.tied,
        frozen=tuple(frozen),
        evaluating=tuple(evaluating),
        optimizer=_optimizer_class(optimizer),
        groups=tuple(tuple(n for n in group if n is not None) for group in known),
        scalars=state.scalars,
        scaler=scaler,
        program=setting.sources.program,
        settings=setting.settings,
        versions=sources.versions(),
        flags=sources.flags(),
        notices=(*setting.notices, *_notices(setting, steps, state, sum(n is None for g in known for n in g))),
        time=time.time(),
    )


def _notices(setting: Setting, steps: Sequence[StepRecord], state: State, strangers: int) -> Iterable[str]:
    """What a replay should know that the fields do not say."""
    if strangers:
        yield f"{strangers} parameters of the optimizer are not the model's: they are not recorded"
    if state.left_out:
        yield f"{len(state.left_out)} optimizer states could not be recorded, such as {state.left_out[0]}"
    if setting.world_size > 1:
        yield f"one of {setting.world_size} ranks: the recorded gradients are those after the reduction over all"
        if len(steps) > 1:
            yield (
                f"a replay rolls from step {steps[0].step} to step {steps[-1].step} with the gradients of this rank "
                "alone: the weights before the step come out near those of the training, not the same"
            )
    if any(tensor.dim() > 3 and not tensor.is_contiguous() for tensor in state.model.values()):
        yield "the weights were not contiguous (channels last): other kernels may run in the replay"
    if any(micro.batch.reordered for step in steps for micro in step.micros):
        yield "tensors of the batch were not contiguous: other kernels may run in the replay"
    dropped = sum(step.dropped for step in steps)
    if dropped:
        yield f"{dropped} micro-batches at the start of the step were not kept"
    idle = sum(step.idle for step in steps)
    if idle:
        yield f"{idle} micro-batches without a backward are left out"
    if any(step.touched for step in steps):
        yield "something else than this optimizer changed the weights within a step: they are not those of its forward"
    if any(step.moved for step in steps[1:]):
        yield "something else than this optimizer changed the weights between the steps: the replay may differ"
    yield from steps[-1].notices
    if all(micro.backward is None and micro.loss is not None for micro in steps[-1].micros):
        yield "no backward of the last step's losses was seen"


def _save(tensors: Mapping[str, torch.Tensor], path: Path) -> None:
    """As safetensors: contiguous on the host, each with memory of its own."""
    seen: set[int] = set()
    held: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        moved = tensor.detach().to("cpu").resolve_conj().resolve_neg().contiguous()
        storage = moved.untyped_storage().data_ptr()
        if moved.numel() and storage in seen:
            moved = moved.clone()
        seen.add(storage)
        held[name] = moved
    save_file(held, path)


def _room(setting: Setting) -> int:
    """Bytes that may still be written: of the limit, which each rank has for its own capsules, and of the disk."""
    setting.folder.mkdir(parents=True, exist_ok=True)
    mine = "*" if setting.world_size == 1 else f"capsule-*-rank{setting.rank}"
    used = sum(file.stat().st_size for file in setting.folder.glob(f"{mine}/**/*") if file.is_file())
    return min(setting.max_bytes - used, shutil.disk_usage(setting.folder).free - _SPARE)


def _size(tensors: Iterable[torch.Tensor]) -> int:
    return sum(math.prod(tensor.shape) * tensor.element_size() for tensor in tensors)


def _class(thing: Any) -> str:
    return f"{type(thing).__module__}.{type(thing).__qualname__}"


def _optimizer_class(optimizer: torch.optim.Optimizer) -> str:
    """torch.optim.AdamW rather than torch.optim.adamw.AdamW."""
    name = type(optimizer).__name__
    return f"torch.optim.{name}" if getattr(torch.optim, name, None) is type(optimizer) else _class(optimizer)


def save_checkpoint(path: Path, setting: Setting, buffers: Mapping[str, torch.Tensor] | None, step: int) -> None:
    """Write {"model", "optimizer", "step"} as torch.save does, whole or not at all.

    buffers: instead of those that the model has now. Raises NotWrittenError and OSError.
    """
    model = setting.names.model.state_dict()
    model |= {name: tensor for name, tensor in (buffers or {}).items() if name in model}
    state = setting.optimizer.state_dict()
    states = (value for held in state["state"].values() for value in held.values())
    needed = _size(v for v in (*model.values(), *states) if isinstance(v, torch.Tensor))
    room = shutil.disk_usage(path.parent).free - _SPARE
    if needed > min(room, setting.max_bytes):
        raise NotWrittenError(f"a checkpoint of {needed / 1e9:.2f} GB does not fit into {max(room, 0) / 1e9:.2f} GB")
    partial = path.with_name(f".{path.name}.partial")
    try:
        torch.save({"model": model, "optimizer": state, "step": step}, partial)
        partial.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise
