"""Whether the step comes out as it was recorded, and the same each time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal, TypeAlias

import torch

from gradforensics.experiments import Quantity, Result
from gradforensics.recorder.sources import flags
from gradforensics.replay.experiment import Context, Experiment
from gradforensics.replay.gradients import identical, resolution
from gradforensics.replay.step import Outcome, StepRunner, told

Agreement: TypeAlias = Literal["bitwise", "close", "different", "unknown"]
# Relative difference that other kernels and other orders of summation explain: gradient norms of equal replicas differ
# by up to 1e-3 with nondeterministic kernels; in a coarser type by its spacing.
_CLOSE = 1e-3
_FLOAT32 = 1e-6  # relative; numbers logged from float32 carry no more digits


@dataclass(slots=True)
class _Run:
    outcome: Outcome
    gradients: dict[str, torch.Tensor | None]  # as the optimizer would get them


def _run(context: Context) -> Iterator[Result]:
    runner = context.runner
    first = _once(runner)
    parted = ""
    for _ in range(max(context.runs, 2) - 1):
        parted = parted or _parted(first, _once(runner))
    found = first.outcome
    agreement, reasons = _agreement(context, first)
    deterministic = not parted
    failure = found.failure or "none"
    sentences = [
        _said_of_runs(runner, parted),
        _said_of_agreement(agreement, reasons),
        *_caveats(context, agreement, parted),
    ]
    yield context.result(
        "reproduce",
        "nothing",
        f"{max(context.runs, 2)} runs: loss {found.loss:.7g}, gradient norm {found.clipped_norm:.7g}"
        + (f" ({found.norm:.7g} before clipping)" if found.clipped_norm != found.norm else "")
        + (f"; {_said_of_failure(found)}" if found.failure else ""),
        " ".join(s for s in sentences if s),
        "clean" if deterministic and agreement in ("bitwise", "close") else "inconclusive",
        [
            Quantity("loss", runner.step.loss, "", "recorded"),
            Quantity("loss", found.loss, "", "replayed"),
            Quantity("grad_norm", runner.step.grad_norm, "", "recorded"),
            Quantity("grad_norm", found.clipped_norm, "", "replayed"),
            Quantity("runs", float(max(context.runs, 2))),
            Quantity("deterministic", float(deterministic)),
            Quantity("agreement", text=agreement),
            Quantity("failure", text=failure),
            *([Quantity("first_difference", text=parted)] if parted else []),
        ],
    )


def _once(runner: StepRunner) -> _Run:
    found = runner.compute()
    return _Run(found, runner.clipped())


# -- the runs among themselves ----------------------------------------------------------------------------------------


def _parted(first: _Run, other: _Run) -> str:
    """What differs between two runs: a micro-batch's loss, else the parameter nearest to the loss; "" for nothing."""
    a, b = first.outcome, other.outcome
    if _told(a.error) != _told(b.error):
        return f"the exception ({_told(a.error) or 'none'} / {_told(b.error) or 'none'})"
    for index, (one, two) in enumerate(zip(a.losses, b.losses, strict=True)):
        if not _same(one, two):
            return f"the loss of micro-batch {index} ({one:.9g} / {two:.9g})"
    changed = [n for n, g in first.gradients.items() if not identical(g, other.gradients[n])]
    return f"the gradient of {changed[-1]}" if changed else ""


def _told(error: Exception | None) -> str:
    return "" if error is None else told(error)


def _same(a: float, b: float) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b))


# -- against what was recorded and logged -----------------------------------------------------------------------------


def _agreement(context: Context, run: _Run) -> tuple[Agreement, list[str]]:
    """The agreement, and what it was judged by. The capsule decides; the logs do where it holds no numbers."""
    recorded = _with_recorded(context.runner, run)
    logged, words = _with_logged(context, run.outcome)
    if not recorded:
        return logged, words
    worst = max(recorded, key=recorded.__getitem__)
    largest = recorded[worst]
    reasons = [f"judged by {', '.join(recorded)}", *(words if logged != "unknown" else ())]
    if largest == 0:
        return "bitwise", reasons
    limit = max(_CLOSE, resolution(context.runner))
    reasons.insert(0, f"{worst} differs by {largest:.2g} (relative), up to {limit:.2g} is called close")
    return ("close" if largest <= limit else "different"), reasons


def _with_recorded(runner: StepRunner, run: _Run) -> dict[str, float]:
    """Relative differences to the recorded loss, gradient norm and gradients, by what was compared."""
    step, found = runner.step, run.outcome
    apart: dict[str, float] = {}
    each = [m.loss for m in step.micros]
    known = [one for one in each if one is not None]
    if known and len(known) == len(each) == len(found.losses):
        apart["the loss"] = max(_apart(a, b) for a, b in zip(found.losses, known, strict=True))
    elif step.loss is not None and found.losses:
        apart["the loss"] = _apart(found.loss, step.loss)
    if found.error is not None or runner.recording.world_size > 1:  # the recorded gradient is a mean over the ranks
        return apart
    if step.grad_norm is not None:
        apart["the gradient norm"] = _apart(found.clipped_norm, step.grad_norm)
    if step.gradients is not None:
        scale = max(found.clipped_norm, step.grad_norm or 0.0)
        apart["every gradient"] = max(
            (_apart_tensors(g, step.gradients.get(n), scale) for n, g in run.gradients.items()), default=0.0
        )
    return apart


def _apart(value: float, recorded: float) -> float:
    """Relative difference; 0 for two NaN or equal infinities, infinite where only one is finite."""
    if _same(value, recorded):
        return 0.0
    difference = abs(value - recorded) / max(abs(recorded), 1e-30)
    return difference if math.isfinite(difference) else math.inf


def _apart_tensors(gradient: torch.Tensor | None, recorded: torch.Tensor | None, scale: float) -> float:
    """Norm of the difference, relative to the norm of the whole gradient; 0 only for equal values everywhere."""
    if identical(gradient, recorded):
        return 0.0
    one, other = (None if g is None else g.detach().double().cpu() for g in (gradient, recorded))
    if one is None or other is None:
        present = one if one is not None else other
        apart = 0.0 if present is None else float(present.norm())
        return apart / scale if scale and math.isfinite(scale) else apart
    if one.shape != other.shape:
        return math.inf
    apart = float((one - other).norm()) / scale if scale else math.inf
    return max(apart, 1e-30) if math.isfinite(apart) else math.inf


def _with_logged(context: Context, found: Outcome) -> tuple[Agreement, list[str]]:
    """Agreement with the run's logs to the digits that they hold; gradient norms are logged before clipping."""
    known = {"loss": found.loss, "grad_norm": found.norm}
    compared = {name: value for name, value in context.logged.items() if name in known}
    if not compared:
        return "unknown", ["neither the recording nor the logs hold the loss or the gradient norm of this step"]
    words = []
    for name, logged in compared.items():
        value = known[name]
        fits = _same(value, logged) or abs(value - logged) <= _half_digit(logged)
        if not fits:
            words.append(f"the logs say {name} {logged:.7g}, the replay {value:.7g} (a log may hold a mean of steps)")
    if words:
        return "different", words
    return "close", [f"the logged {' and '.join(compared)} agree to the digits that were logged"]


def _half_digit(logged: float) -> float:
    """Half a unit of the last digit of a logged number, and no less than float32 resolves."""
    if not math.isfinite(logged):
        return 0.0
    exponent = Decimal(repr(logged)).as_tuple().exponent
    assert isinstance(exponent, int)  # finite
    return max(0.5000001 * 10.0**exponent, _FLOAT32 * abs(logged))


# -- words ------------------------------------------------------------------------------------------------------------


def _said_of_runs(runner: StepRunner, parted: str) -> str:
    if not parted:
        return "Deterministic: every run gave the same bits."
    likely = (
        "a random generator of the program's own, or state that the model keeps outside its parameters and buffers"
        if runner.device == "cpu"
        else "kernels with atomic additions (torch.use_deterministic_algorithms(True) names them) or chosen by timing"
    )
    return f"Not deterministic: the runs first part in {parted}. Likely {likely}."


def _said_of_agreement(agreement: Agreement, reasons: list[str]) -> str:
    said = {
        "bitwise": "The replay agrees with the recording bit for bit",
        "close": "The replay agrees with what is known of the step, not bit for bit",
        "different": "The replay does not agree with what is known of the step",
        "unknown": "Whether it agrees with the training is not known",
    }[agreement]
    return f"{said} ({'; '.join(reasons)})."


def _said_of_failure(found: Outcome) -> str:
    if found.error is not None:
        return f"it raises {told(found.error)}"
    return {"nonfinite_loss": "the loss is not finite", "nonfinite_gradient": "the gradient is not finite"}[
        found.failure
    ]


def _caveats(context: Context, agreement: Agreement, parted: str) -> Iterator[str]:
    """What may differ for honest reasons, and what it would take to suspect the hardware."""
    runner, recording = context.runner, context.runner.recording
    if recording.world_size > 1:
        yield (
            f"The training had {recording.world_size} ranks and this is the share of one: the recorded gradient, a "
            "mean over all ranks, was not compared."
        )
    if agreement == "bitwise" and not parted:
        return
    if recording.device and recording.device.split(":")[0] != runner.device.split(":")[0]:
        yield f"Recorded on {recording.device}, replayed on {runner.device}: other kernels round otherwise."
    yield from _flags_changed(runner)
    if any(m.random is None for m in runner.step.micros):
        yield "No random state was recorded: dropout and other random choices differ from those of the training."
    if agreement == "different" or parted:
        yield (
            "This does not show a fault of the hardware: that would take the same step again on the same device and "
            "on another one, with deterministic kernels or a calibration of how far healthy repeats differ."
        )


def _flags_changed(runner: StepRunner) -> Iterator[str]:
    now = flags()
    for name, recorded in runner.recording.flags.items():
        if name in now and now[name] != recorded:
            yield f"Recorded with {name} {recorded}, replayed with {now[name]}."


EXPERIMENT = Experiment("reproduce", lambda context: float(max(context.runs, 2)), _run)
