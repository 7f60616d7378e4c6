"""Running a recorded step: always from the same state, with one controlled change at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from gradforensics.capsule import Autocast
from gradforensics.errors import ReplayError
from gradforensics.replay.batches import size
from gradforensics.replay.limits import fatal
from gradforensics.replay.optimizers import make_optimizer
from gradforensics.replay.program import Program
from gradforensics.replay.recording import Micro, Recording, Step, moved
from gradforensics.torch_state import RandomState, autocast, total_norm

Watch = Callable[[nn.Module], AbstractContextManager[Any]]


@dataclass(slots=True)
class Outcome:
    """What one forward and backward over the micro-batches gave.

    losses: of every micro-batch, as the loss function returned it. gradients: accumulated, unscaled, before clipping,
    dense; None for a parameter that got none. norm: their L2 norm. clipped_norm: of what the optimizer gets. error:
    what the program raised; then losses ends with the micro-batch before it and gradients may be partial.
    """

    losses: list[float] = field(default_factory=list)
    gradients: dict[str, torch.Tensor | None] = field(default_factory=dict)
    norm: float = 0.0
    clipped_norm: float = 0.0
    error: Exception | None = None

    @property
    def loss(self) -> float:
        """Mean over the micro-batches; NaN for none."""
        return sum(self.losses) / len(self.losses) if self.losses else math.nan

    @property
    def failure(self) -> str:
        """exception, nonfinite_loss, nonfinite_gradient, or "" where loss and gradient are finite."""
        if self.error is not None:
            return "exception"
        if not all(math.isfinite(loss) for loss in self.losses):
            return "nonfinite_loss"
        return "" if math.isfinite(self.norm) else "nonfinite_gradient"


class StepRunner:
    """A program in the state of a recording. Every `compute` starts from the state before the step in question.

    spent: so many steps (a forward and backward over all of its samples) were run so far. After a `compute` the
    parameters' `.grad` are what the optimizer would get: unscaled and clipped. State that a model keeps outside its
    parameters and buffers is not brought back.
    """

    def __init__(
        self,
        recording: Recording,
        program: Program,
        device: str,
        *,
        on_progress: Callable[[float], None] | None = None,
    ) -> None:
        self.recording, self.program, self.device = recording, program, device
        self.spent = 0.0
        self.running: tuple[int, Any] | None = None  # the micro-batch that runs now, and its data on the device
        self._on_progress = on_progress
        self.model = program.model.to(device)
        self._start()
        self._roll_forward()

    @property
    def step(self) -> Step:
        """The step in question."""
        return self.recording.last

    @property
    def settings(self) -> dict[str, Any]:
        """Facts of the program and the recording; the recording's win."""
        return {**self.program.settings, **self.recording.settings}

    def compute(
        self,
        micros: Sequence[Micro] | None = None,
        *,
        precision: Autocast | None = None,
        dtype: torch.dtype | None = None,
        evaluating: bool = False,
        backward: bool = True,
        weights: Sequence[float] | None = None,
        watch: Watch | None = None,
    ) -> Outcome:
        """Forward and backward of the step, changed as asked.

        micros: other micro-batches. precision: instead of the recorded autocast state. dtype: of the weights.
        evaluating: with every module in evaluation mode. weights: the factor of every micro-batch's loss instead of the
        recorded one; no loss scale then. watch: entered with the model around everything that runs.
        What the program raises is in the outcome. Raises ReplayError where the program gives no scalar loss.
        """
        step = self.step
        chosen = step.micros if micros is None else micros
        self.restore()
        if dtype is not None:
            self.model.to(dtype)
        if evaluating:
            self.model.eval()
        with watch(self.model) if watch is not None else nullcontext():
            found = self._run(step, chosen, precision, weights, backward=backward)
        self.spent += self._share(chosen)
        if self._on_progress is not None:
            self._on_progress(self.spent)
        return found

    def restore(self) -> None:
        """Bring weights, buffers and modes back to the state before the step, and drop all gradients."""
        for module, own in self._buffers:
            module._buffers.clear()  # noqa: SLF001  a forward may have added, dropped or replaced some
            module._buffers.update(own)  # noqa: SLF001  likewise
        for name, tensor in self._tensors():
            _put(tensor, self._saved[name])
        for name, module in self.model.named_modules():
            module.training = self._training.get(name, module.training)
        self.model.zero_grad(set_to_none=True)

    def state(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers before the step, by name; not to be changed."""
        return dict(self._saved)

    def parameters(self) -> dict[str, nn.Parameter]:
        """Every parameter by name, tied ones once."""
        return dict(self.model.named_parameters())

    def clipped(self) -> dict[str, torch.Tensor | None]:
        """What the optimizer would get after the `compute` that ran last: unscaled, clipped, dense; copies."""
        return {n: None if p.grad is None else _dense(p.grad) for n, p in self.parameters().items()}

    # -- the state ----------------------------------------------------------------------------------------------------

    def _tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from self.model.named_parameters()
        yield from self.model.named_buffers()

    def _start(self) -> None:
        """Put the model into the recorded state."""
        recorded = self.recording
        if recorded.frozen is not None:
            for name, parameter in self.model.named_parameters():
                parameter.requires_grad_(name not in recorded.frozen)
        if recorded.evaluating is not None:
            for name, module in self.model.named_modules():
                module.training = name not in recorded.evaluating
        if recorded.model is not None:
            self._fill(recorded.model)
        self._remember()

    def _fill(self, saved: Mapping[str, torch.Tensor]) -> None:
        own = dict(self._tensors())
        parameters = dict(self.model.named_parameters())
        lacking = [n for n in parameters if n not in saved and self.recording.tied.get(n) not in saved]
        if lacking:
            raise ReplayError(
                f"{self.recording.source} has no {lacking[0]} ({len(lacking)} parameters of the program's model are "
                "missing): it is of another model"
            )
        unknown = [n for n in saved if n not in own and n not in self._aliases()]
        if unknown:
            self.recording.notices.append(
                f"{len(unknown)} recorded tensors, such as {unknown[0]}, are not in the model"
            )
        for name, tensor in own.items():
            value = saved.get(name, saved.get(self.recording.tied.get(name, "")))
            if value is None:
                continue
            if value.shape != tensor.shape:
                raise ReplayError(
                    f"{name} is {list(value.shape)} in {self.recording.source}, {list(tensor.shape)} in the program"
                )
            if value.is_floating_point() != tensor.is_floating_point():
                raise ReplayError(f"{name} is {value.dtype} in {self.recording.source}, {tensor.dtype} in the program")
            _put(tensor, value)

    def _aliases(self) -> set[str]:
        every = {n for n, _ in self.model.named_parameters(remove_duplicate=False)}
        return every | {n for n, _ in self.model.named_buffers(remove_duplicate=False)}

    def _remember(self) -> None:
        self._saved = {name: tensor.detach().clone() for name, tensor in self._tensors()}
        self._buffers = [(module, dict(module._buffers)) for module in self.model.modules()]  # noqa: SLF001  see restore
        self._training = {name: module.training for name, module in self.model.named_modules()}

    def _share(self, chosen: Sequence[Micro]) -> float:
        """The part of the step that these micro-batches are: by samples, else by number."""
        whole = sum(size(micro.batch) for micro in self.step.micros)
        if not whole:
            return len(chosen) / max(len(self.step.micros), 1)
        return sum(size(micro.batch) for micro in chosen) / whole

    def _roll_forward(self) -> None:
        """Run the steps before the one in question, with their optimizer steps."""
        before = self.recording.steps[:-1]
        if not before:
            return
        optimizer = make_optimizer(self.recording, self.program, self.parameters())
        for step in before:
            found = self._run(step, step.micros, None, None, backward=True)
            if found.error is not None:
                raise ReplayError(f"step {step.step}, on the way to step {self.step.step}: {found.error}")
            self.spent += 1
            if not _skipped(step, found):
                for group, options in zip(optimizer.param_groups, step.options, strict=False):
                    group.update(options)
                optimizer.step()
            self.model.zero_grad(set_to_none=True)
            if self._on_progress is not None:
                self._on_progress(self.spent)
        self._remember()

    # -- running ------------------------------------------------------------------------------------------------------

    def _run(
        self,
        step: Step,
        micros: Sequence[Micro],
        precision: Autocast | None,
        weights: Sequence[float] | None,
        *,
        backward: bool,
    ) -> Outcome:
        found = Outcome()
        self.running = None
        try:
            for index, micro in enumerate(micros):
                if micro.cleared and index and weights is None:
                    self.model.zero_grad(set_to_none=True)
                weight = None if weights is None else weights[index]
                self._micro(micro, index, len(micros), precision, weight, found, backward=backward)
        except ReplayError:
            raise
        except Exception as error:
            if fatal(error):  # no memory, or a device that fails every further call: a new process must go on
                raise
            found.error = error  # what the user's program raises is a finding, not our failure
        self._collect(step, found, asked=weights is not None)
        return found

    def _collect(self, step: Step, found: Outcome, *, asked: bool) -> None:
        """Read the gradients, unscale and clip them; where weights were asked for, there is no scale and no clip."""
        held = self.parameters()
        for parameter in held.values():
            if parameter.grad is not None and parameter.grad.is_sparse:
                parameter.grad = parameter.grad.coalesce()
        present = [_values(p.grad) for p in held.values() if p.grad is not None]
        if step.scale is not None and present and not asked:
            _unscale(present, step.scale)
        found.norm = found.clipped_norm = float(total_norm(present))
        found.gradients = self.clipped()
        if step.max_grad_norm and present and not asked:
            torch.nn.utils.clip_grad_norm_([p for p in held.values() if p.grad is not None], step.max_grad_norm)
            found.clipped_norm = float(total_norm(present))

    def _micro(
        self,
        micro: Micro,
        index: int,
        count: int,
        precision: Autocast | None,
        weight: float | None,
        found: Outcome,
        *,
        backward: bool,
    ) -> None:
        batch = moved(micro.batch, self.device)
        self.running = (index, batch)
        (micro.random or RandomState.seeded(self.program.seed + index)).restore()
        state = precision or micro.autocast or self._programmed()
        with torch.set_grad_enabled(backward), autocast(state, self.device):
            loss: Any = self.program.loss(self.model, batch)  # the user's code may return anything
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise ReplayError("the program's loss is no scalar tensor")
        found.losses.append(float(loss.detach()))
        if not backward or not loss.requires_grad:
            return
        torch.autograd.backward(loss, self._seed(micro, loss, count, weight))

    def _seed(self, micro: Micro, loss: torch.Tensor, count: int, weight: float | None) -> torch.Tensor:
        """The gradient that the backward of a micro-batch starts from."""
        if weight is not None:
            return torch.full_like(loss, weight)
        if micro.backward is not None:
            return micro.backward.to(loss.device, loss.dtype).reshape(loss.shape)
        scale = self.step.scale or 1.0
        divisor = count if self.program.divide is True else self.program.divide or 1
        return torch.full_like(loss, scale / divisor)

    def _programmed(self) -> Autocast | None:
        dtype = self.program.autocast
        return None if dtype is None else Autocast(self.device, True, dtype)


def told(error: BaseException) -> str:
    """The type of an exception and the first 300 characters of its text, on one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}{f': {text}' if text else ''}"[:300]


def _put(tensor: torch.Tensor, saved: torch.Tensor) -> None:
    """Give a parameter or buffer these contents; a parameter of the same kind keeps its memory."""
    if isinstance(tensor, nn.Parameter) and tensor.dtype == saved.dtype and tensor.shape == saved.shape:
        with torch.no_grad():
            tensor.copy_(saved)
        return
    if tensor.grad_fn is not None:  # a forward wrote into the buffer in place: the graph of that step hangs on it
        tensor.detach_()
    tensor.data = saved.to(tensor.device, copy=True)


def _skipped(step: Step, found: Outcome) -> bool:
    """Whether the gradient scaler left this step out: as recorded, else by its rule (a gradient is not finite)."""
    if step.skipped or step.scale is None:
        return step.skipped
    return any(not bool(g.isfinite().all()) for g in found.gradients.values() if g is not None)


def _values(gradient: torch.Tensor) -> torch.Tensor:
    """The memory of a gradient; of a sparse one, its values."""
    return gradient._values() if gradient.is_sparse else gradient  # noqa: SLF001  shares memory, as the scaler does


def _dense(gradient: torch.Tensor) -> torch.Tensor:
    """A dense copy."""
    gradient = gradient.detach()
    return gradient.to_dense() if gradient.is_sparse else gradient.clone()


def _unscale(gradients: Sequence[torch.Tensor], scale: float) -> None:
    """Divide by the loss scale as torch.amp.GradScaler.unscale_ does, so that the bits agree."""
    alike: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
    for gradient in gradients:
        alike.setdefault((gradient.device, gradient.dtype), []).append(gradient)
    for (device, _), those in alike.items():
        inverse = torch.tensor(scale, dtype=torch.float32, device=device).double().reciprocal().float()
        torch._amp_foreach_non_finite_check_and_unscale_(those, torch.zeros(1, device=device), inverse)
