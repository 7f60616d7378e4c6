"""What is kept of a step while it runs: its micro-batches with their random states, and what came out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from gradforensics import capsule
from gradforensics.capsule import Autocast
from gradforensics.recorder.readings import Reading
from gradforensics.torch_state import RandomState, UnrecordableError, encode

# A batch of a CUDA device up to this size is kept in pinned host memory, where it outlives a device-side assert; a
# larger one is cloned on its device, which is faster.
_HOST_BYTES = 16 << 20


@dataclass(slots=True)
class KeptBatch:
    """A copy of a batch: a tree as in `torch_state`, and its tensors. reordered: some of them were not contiguous."""

    tree: Mapping[str, Any]
    tensors: dict[str, torch.Tensor]
    reordered: bool = False

    @property
    def nbytes(self) -> int:
        """Of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


@dataclass(slots=True, eq=False)
class MicroRecord:
    """One micro-batch. loss: a number or, on a device whose numbers come later, a tensor; so is cleared."""

    batch: KeptBatch
    random: RandomState
    autocast: Autocast | None = None
    backward: torch.Tensor | None = None
    loss: torch.Tensor | float | None = None
    cleared: torch.Tensor | bool = False


@dataclass(slots=True, eq=False)
class StepRecord:
    """One optimizer step.

    norm: of the gradient before clipping where it could be taken there, else of what the optimizer got. clipped: of
    what the optimizer got, None where it was not computed. clipped_only: there is clipping, and norm is from after it.
    layers: norms of single parameters' gradients, by name. memory: bytes by name. dropped: micro-batches that were not
    kept. idle: those without a backward, left out. unrecordable: why a batch cannot be recorded. modes: the modules in
    evaluation mode and the parameters without gradient when the first loss to be learned from came out, else None.
    changes: of the weights, counted when the step began. moved, touched: something else than the optimizer changed
    them between the step before and this one, and within this one. notices: what a replay of the step should know.
    unclipped, single: the norm before clipping and those of single parameters (`names`), until they are in `reading`,
    the numbers on their way. remarks: texts for the step's line in the log.
    """

    step: int
    micros: list[MicroRecord] = field(default_factory=list)
    options: list[dict[str, Any]] = field(default_factory=list)
    scale: float | None = None
    norm: float | None = None
    clipped: float | None = None
    clipped_only: bool = False
    layers: dict[str, float] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    memory: dict[str, int] = field(default_factory=dict)
    skipped: bool = False
    dropped: int = 0
    idle: int = 0
    changes: int = 0
    moved: bool = False
    touched: bool = False
    modes: tuple[list[str], list[str]] | None = None
    notices: list[str] = field(default_factory=list)
    unrecordable: str = ""
    unclipped: torch.Tensor | None = None
    single: torch.Tensor | None = None
    reading: Reading | None = None
    remarks: dict[str, str] = field(default_factory=dict)

    def settle(self) -> None:
        """Take over the numbers that were read."""
        if self.reading is None:
            return
        values = self.reading.values()
        self.reading = None
        for index, micro in enumerate(self.micros):
            if f"loss{index}" in values:
                micro.loss = values[f"loss{index}"][0]
            if micro.backward is not None and f"backward{index}" in values:
                shape, dtype = micro.backward.shape, micro.backward.dtype
                micro.backward = torch.tensor(values[f"backward{index}"], dtype=dtype, device="cpu").reshape(shape)
        self.scale = values["scale"][0] if "scale" in values else self.scale
        self.skipped = self.skipped or values.get("found_inf", [0.0])[0] > 0
        factor = values.get("factor", [1.0])[0]
        norm, clipped = values.get("norm"), values.get("clipped")
        self.clipped = clipped[0] / factor if clipped else None
        self.norm = norm[0] / (self.scale or 1.0) if norm else self.clipped
        divisor = (self.scale or 1.0) if norm else factor
        self.layers = {n: v / divisor for n, v in zip(self.names, values.get("layers", []), strict=False)}
        for index, group in enumerate(self.options):
            for key, value in group.items():
                if isinstance(value, torch.Tensor) and value.numel() == 1:
                    group[key] = values.get(f"option{index}.{key}", [None])[0] if value.is_cuda else value.item()

    def forget_the_device(self) -> None:
        """Drop what is on a device that can no longer be read."""
        self.reading = self.unclipped = self.single = None
        for group in self.options:
            group.update({k: None for k, value in group.items() if isinstance(value, torch.Tensor) and value.is_cuda})
        for micro in self.micros:
            if any(tensor.is_cuda for tensor in micro.batch.tensors.values()):
                self.unrecordable = "the batch was on the device that failed"
            micro.loss = micro.loss if isinstance(micro.loss, float) else None
            micro.cleared = micro.cleared if isinstance(micro.cleared, bool) else False
            if micro.backward is not None and micro.backward.is_cuda:
                micro.backward = None

    @property
    def losses(self) -> list[float | None]:
        """Of the micro-batches, as far as they are numbers by now."""
        return [m.loss if isinstance(m.loss, float) else None for m in self.micros]

    @property
    def loss(self) -> float | None:
        """Mean over the micro-batches, None where one is unknown."""
        losses = [loss for loss in self.losses if loss is not None]
        return sum(losses) / len(losses) if losses and len(losses) == len(self.micros) else None

    @property
    def nbytes(self) -> int:
        """Of the batches that are kept."""
        return sum(micro.batch.nbytes for micro in self.micros)

    def encoded(self, tensors: dict[str, torch.Tensor], max_grad_norm: float | None) -> capsule.Step:
        """As the capsule holds it; its tensors are added to `tensors`."""
        return capsule.Step(
            self.step,
            tuple(self._micro(micro, f"{self.step}.{index}", tensors) for index, micro in enumerate(self.micros)),
            options=tuple({key: plain_option(value) for key, value in group.items()} for group in self.options),
            scale=self.scale,
            max_grad_norm=max_grad_norm,
            loss=self.loss,
            grad_norm=self.clipped,
            skipped=self.skipped,
        )

    @staticmethod
    def _micro(micro: MicroRecord, key: str, tensors: dict[str, torch.Tensor]) -> capsule.MicroBatch:
        tensors.update({f"{key}.{name}": tensor for name, tensor in micro.batch.tensors.items()})
        backward = None
        if micro.backward is not None:
            backward = f"{key}.backward"
            tensors[backward] = micro.backward
        loss = micro.loss
        return capsule.MicroBatch(
            batch=_prefixed(micro.batch.tree, key),
            rng=micro.random.encode(tensors, f"{key}.rng"),
            autocast=micro.autocast,
            backward=backward,
            loss=float(loss) if loss is not None else None,
            cleared=bool(micro.cleared),
        )


def kept(batch: Any) -> KeptBatch:
    """Copy a batch; the copies of tensors on a CUDA device are made without waiting. Raises UnrecordableError."""
    tensors: dict[str, torch.Tensor] = {}
    tree = encode(batch, tensors, "batch")
    for key, tensor in tensors.items():
        if tensor.layout is not torch.strided or tensor.is_quantized:
            raise UnrecordableError(f"{key}: a tensor of layout {tensor.layout} cannot be recorded")
    total = sum(tensor.nbytes for tensor in tensors.values())
    reordered = any(not tensor.is_contiguous() for tensor in tensors.values())
    return KeptBatch(tree, {key: _copy(t, host=total <= _HOST_BYTES) for key, t in tensors.items()}, reordered)


def _copy(tensor: torch.Tensor, *, host: bool) -> torch.Tensor:
    if tensor.is_cuda and host:
        held = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
        return held.copy_(tensor.detach(), non_blocking=True)
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def _prefixed(tree: Any, prefix: str) -> Any:
    """The tree with the keys of its tensors below a prefix: a batch is copied before its place in a file is known."""
    match tree:
        case {"tensor": key}:
            return {"tensor": f"{prefix}.{key}"}
        case {"array": key}:
            return {"array": f"{prefix}.{key}"}
        case {"dict": items}:
            return {"dict": [[key, _prefixed(item, prefix)] for key, item in items]}
        case {"list": items}:
            return {"list": [_prefixed(item, prefix) for item in items]}
        case {"tuple": items}:
            return {"tuple": [_prefixed(item, prefix) for item in items]}
    return tree


def options_of(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """The options of every parameter group as they are now; learning rates that are tensors are copied."""
    return [
        {
            key: value.detach().clone() if isinstance(value, torch.Tensor) else value
            for key, value in group.items()
            if key != "params"
        }
        for group in optimizer.param_groups
    ]


def plain_option(value: Any) -> Any:
    """An option of a parameter group as JSON can hold it; what it cannot hold is named by its text."""
    if isinstance(value, torch.Tensor):
        return value.item() if value.numel() == 1 else value.tolist()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain_option(item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [plain_option(item) for item in value]
    return str(value)
