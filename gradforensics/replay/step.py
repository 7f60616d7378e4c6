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
from gradforensics.replay.optimizers import make_optimizer
from gradforensics.replay.program import Program
from gradforensics.replay.recording import Micro, Recording, Step, moved
from gradforensics.torch_state import RandomState, autocast, total_norm

Watch = Callable[[nn.Module], AbstractContextManager[Any]]


@dataclass(slots=True)
class Outcome:
    """What one forward and backward over the micro-batches gave.

    losses: of every micro-batch, as the loss function returned it. gradients: accumulated, unscaled, before clipping;
    None for a parameter that got none. norm: their L2 norm. clipped_norm: of what the optimizer gets. error: what the
    program raised; then losses ends with the micro-batch before it and gradients may be partial.
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

    spent: so many steps (a forward and backward over all of its micro-batches) were run so far.
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
        self.spent += len(chosen) / max(len(step.micros), 1)
        if self._on_progress is not None:
            self._on_progress(self.spent)
        return found

    def restore(self) -> None:
        """Bring weights, buffers and modes back to the state before the step, and drop all gradients."""
        for name, tensor in self._tensors():
            saved = self._saved[name]
            if tensor.dtype == saved.dtype and tensor.shape == saved.shape:
                with torch.no_grad():
                    tensor.copy_(saved)
            else:
                tensor.data = saved.clone()
        for name, module in self.model.named_modules():
            module.training = self._training[name]
        self.model.zero_grad(set_to_none=True)

    def parameters(self) -> dict[str, nn.Parameter]:
        """Every parameter by name, tied ones once."""
        return dict(self.model.named_parameters())

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
            tensor.data = value.to(self.device, copy=True)

    def _aliases(self) -> set[str]:
        every = {n for n, _ in self.model.named_parameters(remove_duplicate=False)}
        return every | {n for n, _ in self.model.named_buffers(remove_duplicate=False)}

    def _remember(self) -> None:
        self._saved = {name: tensor.detach().clone() for name, tensor in self._tensors()}
        self._training = {name: module.training for name, module in self.model.named_modules()}

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
            if not (step.scale is not None and found.failure):
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
        except Exception as error:  # noqa: BLE001  what the user's program raises is a finding, not our failure
            found.error = error
        held = {name: parameter.grad for name, parameter in self.parameters().items()}
        present = [gradient for gradient in held.values() if gradient is not None]
        scale = None if weights is not None else step.scale
        if scale is not None and present:
            _unscale(present, scale)
        found.norm = found.clipped_norm = float(total_norm(present))
        found.gradients = {n: None if g is None else g.detach().clone() for n, g in held.items()}
        if step.max_grad_norm and present and weights is None:
            torch.nn.utils.clip_grad_norm_(
                [p for p in self.parameters().values() if p.grad is not None], step.max_grad_norm
            )
            found.clipped_norm = float(total_norm(present))
        return found

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
        return torch.full_like(loss, scale / count if self.program.divide else scale)

    def _programmed(self) -> Autocast | None:
        dtype = self.program.autocast
        return None if dtype is None else Autocast(self.device, True, dtype)


def _unscale(gradients: Sequence[torch.Tensor], scale: float) -> None:
    """Divide by the loss scale as torch.amp.GradScaler.unscale_ does, so that the bits agree."""
    by_device: dict[torch.device, list[torch.Tensor]] = {}
    for gradient in gradients:
        by_device.setdefault(gradient.device, []).append(gradient)
    for device, those in by_device.items():
        inverse = torch.tensor(scale, dtype=torch.float32, device=device).double().reciprocal().float()
        torch._amp_foreach_non_finite_check_and_unscale_(those, torch.zeros(1, device=device), inverse)
