"""The state of a training: now, at the start of the step, and some steps ago."""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from gradforensics.recorder.names import Names

_MOST_STATISTIC = 1 << 20  # bytes of a buffer that is copied in every step


@dataclass(slots=True)
class State:
    """What a capsule starts from. The tensors may be the live ones.

    model: parameters (tied ones once) and buffers by name. optimizer: states as "<parameter>|<state>". scalars: those
    that are no tensors. scaler: what the state_dict of the GradScaler holds, its numbers perhaps still tensors.
    left_out: states that no capsule can hold.
    """

    model: dict[str, torch.Tensor]
    optimizer: dict[str, torch.Tensor] = field(default_factory=dict)
    scalars: dict[str, Any] = field(default_factory=dict)
    scaler: dict[str, Any] | None = None
    left_out: list[str] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        """Of all tensors."""
        return sum(tensor.nbytes for tensor in (*self.model.values(), *self.optimizer.values()))


def now(
    names: Names, buffers: Mapping[str, torch.Tensor], optimizer: torch.optim.Optimizer, scaler: Any | None
) -> State:
    """The state as it is, its tensors not copied, except that the buffers are given."""
    state = State({**names.parameters, **buffers}, scaler=_scaler(scaler))
    for parameter, states in optimizer.state.items():
        name = names.of(parameter)
        if name is None:
            state.left_out.append("the state of a parameter that is not the model's")
            continue
        for key, value in states.items():
            if isinstance(value, torch.Tensor) and value.layout is torch.strided:
                state.optimizer[f"{name}|{key}"] = value.detach()
            elif value is None or isinstance(value, (bool, int, float, str)):
                state.scalars[f"{name}|{key}"] = value
            else:
                state.left_out.append(f"{name}|{key}, a {type(value).__name__}")
    return state


def scale_of(scaler: Any | None) -> torch.Tensor | float | None:
    """The loss scale without waiting for the device, None without an enabled scaler."""
    if scaler is None or not scaler.is_enabled():
        return None
    scale = scaler._get_scale_async()  # noqa: SLF001  get_scale() waits for the device
    found: torch.Tensor | float = scaler._init_scale if scale is None else scale.detach().clone()  # noqa: SLF001  not on the device yet
    return found


def _scaler(scaler: Any | None) -> dict[str, Any] | None:
    """What scaler.state_dict() gives, without waiting for the device."""
    scale = scale_of(scaler)
    if scaler is None or scale is None:
        return None
    tracker = scaler._growth_tracker  # noqa: SLF001  state_dict() waits for the device
    return {
        "scale": scale,
        "growth_factor": scaler.get_growth_factor(),
        "backoff_factor": scaler.get_backoff_factor(),
        "growth_interval": scaler.get_growth_interval(),
        "_growth_tracker": scaler._init_growth_tracker if tracker is None else tracker.detach().clone(),  # noqa: SLF001  likewise
    }


class Buffers:
    """Copies of the buffers at the start of the step: a forward changes them (BatchNorm), a capsule starts before.

    Most changes show in autograd's counter. Kernels that update statistics do not count, native batch_norm among them:
    what may be a statistic, a floating-point buffer that is not large, is copied in every step.
    """

    def __init__(self) -> None:
        self._copies: dict[str, torch.Tensor] = {}
        self._seen: dict[str, tuple[weakref.ref[torch.Tensor], int]] = {}

    def start(self, names: Names) -> None:
        """Copy those that have, or may have, changed since they were copied."""
        held, live = [], []
        for name, buffer in names.held_buffers().items():
            before, version = self._seen.get(name, (None, 0))
            # an inference tensor has no counter: one that was made in an evaluation is copied in every step
            now = -1 if buffer.is_inference() else buffer._version  # noqa: SLF001  the counter of changes in place
            if before is None or before() is not buffer or now != version or now < 0:
                self._seen[name] = (weakref.ref(buffer), now)
                self._copies[name] = buffer.detach().clone()
            elif buffer.is_floating_point() and buffer.nbytes <= _MOST_STATISTIC:
                held.append(self._copies[name])
                live.append(buffer.detach())
        if held:
            torch._foreach_copy_(held, live)

    def copies(self) -> dict[str, torch.Tensor]:
        """By name, as they were at the start of the step."""
        return self._copies


@dataclass(slots=True)
class Anchor:
    """A state in host memory, that before `step`. events: done when the copy is."""

    step: int = -1
    state: State | None = None
    events: list[torch.cuda.Event] = field(default_factory=list)


class Anchors:
    """The last two states that were copied, so that a step that turns out bad too late can be reached from one.

    Copies of CUDA tensors run beside the training on a stream of their own; the optimizer waits for them on the device
    (`before_optimizer`), the host never does.
    """

    def __init__(self) -> None:
        self._slots = [Anchor(), Anchor()]
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    @property
    def newest(self) -> int:
        """The step before which the newest one was taken, -1 without one."""
        return max(slot.step for slot in self._slots)

    def take(self, step: int, state: State) -> None:
        """Copy the state before `step`, in place of the older one."""
        slot = min(self._slots, key=lambda s: s.step)
        tensors, old = _tensors(state), {} if slot.state is None else _tensors(slot.state)
        held = {key: _fitting(old.get(key), tensor) for key, tensor in tensors.items()}
        places: dict[torch.device, list[tuple[str, str]]] = {}
        for key, tensor in tensors.items():
            places.setdefault(tensor.device, []).append(key)
        slot.events = []
        with torch.no_grad():
            for device, keys in places.items():
                to, present = [held[key] for key in keys], [tensors[key] for key in keys]
                if device.type == "cuda":
                    slot.events.append(self._beside(device, to, present))
                else:
                    torch._foreach_copy_(to, present)
        slot.state = State(
            {name: held["model", name] for name in state.model},
            {name: held["optimizer", name] for name in state.optimizer},
            dict(state.scalars),
            None if state.scaler is None else {k: held.get(("scaler", k), v) for k, v in state.scaler.items()},
            list(state.left_out),
        )
        slot.step = step

    def _beside(self, device: torch.device, held: list[torch.Tensor], tensors: list[torch.Tensor]) -> torch.cuda.Event:
        stream = self._streams.get(device)
        if stream is None:
            stream = self._streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch's own
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            torch._foreach_copy_(held, tensors, non_blocking=True)
            for tensor in tensors:
                tensor.record_stream(stream)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # likewise
            event.record(stream)
        return event

    def before_optimizer(self) -> None:
        """Let the optimizer's kernels wait until the state is copied."""
        for slot in self._slots:
            for event in slot.events:
                for device in self._streams:
                    torch.cuda.current_stream(device).wait_event(event)

    def poll(self) -> None:
        """Ask which copies are complete."""
        for slot in self._slots:
            slot.events = [event for event in slot.events if not event.query()]  # type: ignore[no-untyped-call]  # likewise

    def reaching(self, step: int, *, settled: bool = False) -> Anchor | None:
        """The newest one from which `step` can be reached. settled: of those whose copy is known to be complete."""
        fitting = [
            slot for slot in self._slots
            if slot.state is not None and 0 <= slot.step <= step and not (settled and slot.events)
        ]  # fmt: skip
        newest = max(fitting, key=lambda s: s.step, default=None)
        for event in newest.events if newest is not None else ():
            event.synchronize()
        return newest

    def oldest(self) -> int:
        """The first step that can be reached."""
        return min((slot.step for slot in self._slots if slot.state is not None), default=0)


def _tensors(state: State) -> dict[tuple[str, str], torch.Tensor]:
    """All tensors of a state."""
    parts: dict[str, Mapping[str, Any]] = {
        "model": state.model, "optimizer": state.optimizer, "scaler": state.scaler or {}
    }  # fmt: skip
    return {
        (part, name): tensor
        for part, held in parts.items()
        for name, tensor in held.items()
        if isinstance(tensor, torch.Tensor)
    }


def _fitting(had: torch.Tensor | None, tensor: torch.Tensor) -> torch.Tensor:
    """Host memory for a tensor: the one that was had where it fits, since pinned memory is slow to get."""
    if had is not None and had.shape == tensor.shape and had.dtype == tensor.dtype:
        return had
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=tensor.is_cuda)


def affordable(state: State) -> bool:
    """Whether host memory can hold two copies of a state: at most a quarter of it, shared by the ranks of this host."""
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return True
    return 2 * state.nbytes <= memory // 4 // max(int(os.environ.get("LOCAL_WORLD_SIZE", "1")), 1)
