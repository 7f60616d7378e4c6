"""precision: the step as it was recorded, and in float32, bfloat16 and float16."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as module_hooks

from gradforensics.capsule import Autocast
from gradforensics.experiments import Outcome as Verdict
from gradforensics.experiments import Quantity, Result
from gradforensics.replay.experiment import Context, Experiment
from gradforensics.replay.recording import Micro
from gradforensics.replay.step import Outcome, StepRunner, told
from gradforensics.replay.tracing_modules import OUTSIDE, ModuleWatch
from gradforensics.replay.tracing_values import Kind, kind_of, traceable
from gradforensics.torch_state import tensors_of

_TRIED = ("float32", "bfloat16", "float16")
_HALF = (torch.float16, torch.bfloat16)
_LARGEST = 65504.0  # of float16
# Below three bits a value is within a factor 8 of the largest number of float16: CATALOGUE GF12.
_LEAST_HEADROOM = 3.0
# Share of the gradient's elements that is 0 in the recorded precision and not in float32. Measured on two small healthy
# transformers under autocast float16: at most 0.002 (0.0003 with a loss scale of 65536), and 0.99 and more once their
# gradients are too small for it (loss x 1e-4 and x 1e-6).
_LOST = 0.1
_FAILED = {
    "": "finite",
    "nonfinite_loss": "the loss is not finite",
    "nonfinite_gradient": "the gradient is not finite",
}


@dataclass(frozen=True, slots=True)
class _Precision:
    """A precision of the step.

    dtype: in which most is computed. autocast: state of the whole step. weights: to which those of half precision are
    cast, None as they are.
    """

    dtype: str
    autocast: Autocast
    weights: torch.dtype | None = None

    def __str__(self) -> str:
        return f"autocast {self.dtype}" if self.autocast.enabled else self.dtype


@dataclass(slots=True)
class _Run:
    """One run: what it gave, and in which range its modules' results are.

    largest: absolute value, of the finite ones, with the module in at. bad: what was not finite, in order: the results
    of modules, and arguments of modules, for which the module around it stands. dtypes: of all results. lost: share of
    the gradient's elements that are 0. silent: parameters whose gradient is 0 everywhere.
    """

    precision: _Precision
    outcome: Outcome = field(default_factory=Outcome)
    largest: float = 0.0
    at: str = ""
    bad: list[tuple[str, str, Kind]] = field(default_factory=list)
    dtypes: set[torch.dtype] = field(default_factory=set)
    lost: float = 0.0
    silent: frozenset[str] = frozenset()

    @property
    def finite(self) -> bool:
        return not self.outcome.failure

    def __str__(self) -> str:
        if self.outcome.error is not None:
            return told(self.outcome.error)[:140]
        numbers = f"loss {self.outcome.loss:.6g}, gradient norm {self.outcome.norm:.4g}"
        return f"{_FAILED[self.outcome.failure]} ({numbers}, largest activation {self.largest:.4g})"


# -- the precisions ---------------------------------------------------------------------------------------------------


def _recorded(runner: StepRunner) -> _Precision:
    """Autocast's dtype where it was on, else that of most weights."""
    micros, programmed = runner.step.micros, runner.program.autocast
    state = (micros[0].autocast if micros else None) or Autocast(
        runner.device, programmed is not None, programmed or "bfloat16"
    )
    if state.enabled:
        return _Precision(state.dtype, state)
    counts: dict[torch.dtype, int] = {}
    for parameter in runner.model.parameters():
        counts[parameter.dtype] = counts.get(parameter.dtype, 0) + parameter.numel()
    most = max(counts, key=lambda dtype: counts[dtype], default=torch.float32)
    return _Precision(str(most).removeprefix("torch."), state)


def _variation(runner: StepRunner, recorded: _Precision, dtype: str) -> _Precision:
    """Weights of half precision are cast; those of float32 stay, and autocast makes the difference."""
    halves = any(p.dtype in _HALF for p in runner.model.parameters())
    pure = halves and not recorded.autocast.enabled
    enabled = dtype != "float32" and not pure
    state = Autocast(runner.device, enabled, dtype if enabled else "bfloat16")
    return _Precision(dtype, state, getattr(torch, dtype) if halves and (pure or dtype == "float32") else None)


def _cost(context: Context) -> float:
    recorded = _recorded(context.runner)
    return 1 + sum(name != recorded.dtype for name in _TRIED)


# -- running ----------------------------------------------------------------------------------------------------------


def _compute(runner: StepRunner, precision: _Precision, *, as_recorded: bool) -> _Run:
    run = _Run(precision)

    @contextmanager
    def watch(model: nn.Module) -> Iterator[None]:
        if precision.weights is not None:
            for tensor in (*model.parameters(), *model.buffers()):
                if tensor.dtype in _HALF:
                    tensor.data = tensor.data.to(precision.weights)
        with ModuleWatch(model) as modules, _ranges(run, modules):
            yield

    micros = runner.step.micros
    if precision.weights is not None:
        micros = tuple(_cast(micro, precision.weights) for micro in micros)
    run.outcome = runner.compute(micros, precision=None if as_recorded else precision.autocast, watch=watch)
    _gradients(run)
    return run


def _cast(micro: Micro, dtype: torch.dtype) -> Micro:
    """The micro-batch with its tensors of half precision in another one."""

    def cast(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.to(dtype) if value.dtype in _HALF else value
        if isinstance(value, Mapping):
            return {key: cast(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            items = [cast(item) for item in value]
            return tuple(items) if isinstance(value, tuple) else items
        return value

    return replace(micro, batch=cast(micro.batch))


@contextmanager
def _ranges(run: _Run, modules: ModuleWatch) -> Iterator[None]:
    """Note the range of what goes into modules and what comes out. `modules` must have been entered before."""

    def entered(module: nn.Module, args: tuple[Any, ...]) -> None:
        into = f"into {modules.names.get(id(module), '')}"
        for tensor in tensors_of(args):
            if traceable(tensor) and (kind := kind_of(tensor)):
                run.bad.append((modules.around() or OUTSIDE, into, kind))

    def left(module: nn.Module, _: tuple[Any, ...], out: Any) -> None:
        path = modules.names.get(id(module), type(module).__name__)
        for tensor in tensors_of(out):
            if not traceable(tensor):
                continue
            run.dtypes.add(tensor.dtype)
            if kind := kind_of(tensor):
                run.bad.append((path, "out of it", kind))
            largest = _largest(tensor)
            if largest > run.largest:
                run.largest, run.at = largest, path

    handles = [
        module_hooks.register_module_forward_pre_hook(entered),
        module_hooks.register_module_forward_hook(left),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _largest(tensor: torch.Tensor) -> float:
    """The largest absolute value of the finite elements; 0 for none."""
    held = tensor.detach()
    held = held.float() if held.dtype.itemsize < 4 else held
    return float(torch.where(torch.isfinite(held), held, 0).abs().max())


def _gradients(run: _Run) -> None:
    zeros = count = 0
    silent = set()
    for name, gradient in run.outcome.gradients.items():
        if gradient is None or gradient.layout != torch.strided:
            continue
        empty = gradient.numel() - int(gradient.count_nonzero())
        zeros, count = zeros + empty, count + gradient.numel()
        if empty == gradient.numel():
            silent.add(name)
    run.lost, run.silent = zeros / max(count, 1), frozenset(silent)


# -- judging ----------------------------------------------------------------------------------------------------------


def _run(context: Context) -> Iterator[Result]:
    runner = context.runner
    runner.restore()  # an experiment before may have left weights of another precision
    precision = _recorded(runner)
    others = {name: _variation(runner, precision, name) for name in _TRIED if name != precision.dtype}
    recorded = _compute(runner, precision, as_recorded=True)
    tried = {name: _compute(runner, other, as_recorded=False) for name, other in others.items()}
    runs = {name: tried.get(name, recorded) for name in _TRIED}
    yield _judged(context, recorded, runs)
    cured = [name for name in _wider(precision.dtype) if _cures(recorded, runs[name])]
    if cured:
        yield _verified(context, recorded, runs, cured)


def _wider(dtype: str) -> tuple[str, ...]:
    """The precisions with a larger range than float16, or with more digits than bfloat16."""
    return {"float16": ("float32", "bfloat16"), "bfloat16": ("float32",)}.get(dtype, ())


def _cures(recorded: _Run, run: _Run) -> bool:
    if not run.finite or _unchanged(recorded, run):
        return False
    return not recorded.finite or _underflows(recorded, run)


def _underflows(recorded: _Run, run: _Run) -> bool:
    return recorded.finite and recorded.precision.dtype == "float16" and recorded.lost - run.lost > _LOST


def _unchanged(recorded: _Run, run: _Run) -> bool:
    """Whether the program chose its precision itself, so that nothing was really changed."""
    if recorded is run:
        return True
    same = [repr(x) for x in recorded.outcome.losses] == [repr(x) for x in run.outcome.losses]
    return same and run.dtypes == recorded.dtypes and not run.dtypes.isdisjoint(_HALF)


def _judged(context: Context, recorded: _Run, runs: Mapping[str, _Run]) -> Result:
    wide = runs["float32"]
    module = _first_out(recorded, wide)
    measured = wide if wide.finite else recorded
    headroom = math.log2(_LARGEST / measured.largest) if measured.largest > 0 else None
    lines = [f"recorded ({recorded.precision}): {recorded}"]
    lines += [f"{name}: {run}" for name, run in runs.items() if run is not recorded]
    quantities = [q for name, run in {"recorded": recorded, **runs}.items() for q in _quantities(name, run)]
    if headroom is not None:
        quantities.append(Quantity("headroom", headroom, "bit"))
    if module:
        quantities.append(Quantity("module", text=module))
    outcome, conclusion = _verdict(recorded, runs, module, headroom)
    changed = f"{recorded.precision} -> " + ", ".join(n for n, run in runs.items() if run is not recorded)
    scaled = context.runner.step.scale
    if outcome == "fault" and recorded.outcome.failure == "nonfinite_gradient" and scaled:
        conclusion += f" The loss scale of {scaled:g} takes part in it: see the experiment anomaly."
    return context.result("precision", changed, "; ".join(lines), conclusion, outcome, quantities)


def _verdict(recorded: _Run, runs: Mapping[str, _Run], module: str, headroom: float | None) -> tuple[Verdict, str]:
    dtype, wide = recorded.precision.dtype, runs["float32"]
    if recorded is not wide and _unchanged(recorded, wide):
        return "inconclusive", "The program chooses its precision itself: the others could not be tried."
    if not recorded.finite:
        if not any(run.finite for run in runs.values()):
            return "unverified", "It fails in every precision that was tried: it is not a matter of precision."
        if not any(runs[name].finite for name in _wider(dtype)):
            return "inconclusive", "It fails in float32 too, but not in each narrower precision: precision is no cure."
        first = f", the first module whose values leave the range is {module}" if module else ""
        good = " and ".join(name for name in _wider(dtype) if runs[name].finite)
        return "fault", f"It fails in {dtype}{first}; in {good} loss and gradient are finite."
    if _underflows(recorded, wide):
        names = sorted(recorded.silent - wide.silent)
        whole = f" Of {len(names)} parameters, such as {names[0]}, nothing is left." if names else ""
        return "fault", (
            f"The gradient underflows in float16: {recorded.lost:.0%} of its elements are exactly 0, in float32 "
            f"{wide.lost:.0%}.{whole} A larger loss scale, or bfloat16, keeps them."
        )
    if headroom is None:
        return "clean", "The step is finite as recorded; in which range is not known: no module gave a number but 0."
    near = f"the largest result of a module, in {recorded.at}, is {headroom:.1f} bits below the limit of float16"
    if dtype == "float16" and headroom < _LEAST_HEADROOM:
        return "inconclusive", f"The step is finite, but {near}: the next outlier may overflow."
    return "clean", f"The step is finite as recorded; {near}."


def _first_out(recorded: _Run, wide: _Run) -> str:
    """The first module with a value out of range. One that is so in float32 as well, and -inf there, may be a mask."""
    if recorded is wide:
        return next((path for path, _, kind in recorded.bad if kind != "neginf"), "")
    both = set(wide.bad)
    return next((one[0] for one in recorded.bad if one not in both), "")


def _verified(context: Context, recorded: _Run, runs: Mapping[str, _Run], cured: list[str]) -> Result:
    cure = runs[cured[0]]
    if recorded.finite:
        result = f"share of the gradient that is 0: {recorded.lost:.1%} -> {cure.lost:.1%}"
        conclusion = f"In {' and in '.join(cured)} the gradient does not underflow."
    else:
        result = f"{recorded} -> {cure}"
        conclusion = f"The failure is there in {recorded.precision} and gone in {' and in '.join(cured)}."
    return context.result(
        "precision", f"{recorded.precision} -> {cure.precision}", result, conclusion, "verified",
        [*_quantities("recorded", recorded), *(q for name in cured for q in _quantities(name, runs[name]))],
    )  # fmt: skip


def _quantities(name: str, run: _Run) -> list[Quantity]:
    numbers = {
        "finite": float(run.finite),
        "loss": run.outcome.loss,
        "grad_norm": run.outcome.norm,
        "max_activation": run.largest,
        "zero_gradients": run.lost,
    }
    if run.outcome.error is not None:  # nothing else was measured
        numbers = {"finite": 0.0}
    return [Quantity(key, value, variation=name) for key, value in numbers.items()]


EXPERIMENT = Experiment("precision", _cost, _run)
