"""Whether activation checkpointing changes the gradient.

The gradient of the step as recorded against the one without checkpointing, from the same random states: a forward draws
the same numbers either way, so that the two agree unless the recomputation differs from the forward.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch

from gradforensics.experiments import Quantity, Result
from gradforensics.replay import activation_checkpoints
from gradforensics.replay.activation_checkpoints import Mode
from gradforensics.replay.experiment import Context, Experiment
from gradforensics.replay.gradients import Comparison, compare, differing, resolution
from gradforensics.replay.step import Outcome, StepRunner, told

_FAULT = 1e-3  # relative difference in float32 (catalogue of faults, GF04); a recomputation alone gives the same bits
_CURES: tuple[tuple[Mode, str], ...] = (
    ("rng-preserved", "activation checkpointing with preserve_rng_state=True"),
    ("non-reentrant", "activation checkpointing with use_reentrant=False"),
)
_Verdict: TypeAlias = Literal["fault", "clean", "inconclusive"]


@dataclass(slots=True)
class _Run:
    outcome: Outcome
    names: list[str]  # of what was checkpointed
    calls: int
    buffers: dict[str, torch.Tensor]  # after the step


def _run(context: Context) -> Iterator[Result]:
    runner = context.runner
    recorded = _in_mode(runner, "recorded")
    if not recorded.calls:
        yield context.result(
            "checkpointing", "nothing", "no call of torch.utils.checkpoint.checkpoint in this step",
            "The program does not use PyTorch's activation checkpointing (another kind would not be seen).",
            "inconclusive", [Quantity("calls", 0.0)],
        )  # fmt: skip
        return
    without = _in_mode(runner, "without")
    if without.outcome.failure:
        yield context.result(
            "checkpointing", "without activation checkpointing", f"fails as well: {_told(without.outcome)}",
            "The step fails without activation checkpointing too: that is not its cause.", "inconclusive",
            [Quantity("calls", float(recorded.calls)), Quantity("module", text=_first(recorded))],
        )  # fmt: skip
        return
    preserved = _in_mode(runner, "rng-preserved")
    apart = compare(recorded.outcome.gradients, without.outcome.gradients)
    limit = _limit(runner, recorded, apart)
    verdict = _verdict(recorded, apart, limit)
    yield _finding(context, recorded, without, preserved, verdict, limit)
    if verdict == "fault":
        yield from _cures(context, recorded, without, preserved, limit)


def _in_mode(runner: StepRunner, mode: Mode) -> _Run:
    with activation_checkpoints.switched(mode) as calls:
        found = runner.compute()
    buffers = {name: buffer.detach().clone() for name, buffer in runner.model.named_buffers()}
    return _Run(found, calls.named(runner.model), len(calls.made), buffers)


def _told(found: Outcome) -> str:
    if found.error is not None:
        return told(found.error)
    return "the loss is not finite" if found.failure == "nonfinite_loss" else "the gradient is not finite"


def _first(run: _Run) -> str:
    return run.names[0] if run.names else ""


# -- judging ----------------------------------------------------------------------------------------------------------


def _limit(runner: StepRunner, recorded: _Run, apart: Comparison) -> float:
    """The relative difference above which it is a fault: no rounding, and more than repeats of the step differ."""
    limit = max(_FAULT, resolution(runner))
    if recorded.outcome.failure or not apart.relative > _FAULT:
        return limit
    again = _in_mode(runner, "recorded").outcome
    spread = compare(again.gradients, recorded.outcome.gradients).relative
    return max(limit, 2 * spread) if math.isfinite(spread) else limit


def _verdict(recorded: _Run, apart: Comparison, limit: float) -> _Verdict:
    if recorded.outcome.failure or apart.missing:
        return "fault"
    if math.isnan(apart.relative) or _FAULT < apart.relative <= limit:
        return "inconclusive"
    return "fault" if apart.relative > limit else "clean"


def _agrees(run: _Run, without: _Run, limit: float) -> bool:
    apart = compare(run.outcome.gradients, without.outcome.gradients)
    return not run.outcome.failure and not apart.missing and apart.relative <= limit


# -- results ----------------------------------------------------------------------------------------------------------


def _finding(
    context: Context, recorded: _Run, without: _Run, preserved: _Run, verdict: _Verdict, limit: float
) -> Result:
    reference = without.outcome.gradients
    apart = compare(recorded.outcome.gradients, reference)
    kept = compare(preserved.outcome.gradients, reference)
    wrong = differing(recorded.outcome.gradients, reference, limit)
    place = wrong[-1].rpartition(".")[0] if verdict == "fault" and wrong else _first(recorded)
    said = _told(recorded.outcome) if recorded.outcome.failure else f"relative difference {apart.relative:.3g}"
    return context.result(
        "checkpointing",
        "without activation checkpointing, and with the random state preserved",
        f"{recorded.calls} checkpointed calls ({_shortened(recorded.names)}): {said}; random state preserved "
        + (_told(preserved.outcome) if preserved.outcome.failure else f"{kept.relative:.3g}"),
        _conclusion(recorded, apart, wrong, verdict, limit) + _said_of_buffers(recorded, without),
        verdict,
        [
            Quantity("relative_difference", apart.relative, "", "recorded"),
            Quantity("relative_difference", 0.0, "", "without"),
            Quantity("relative_difference", kept.relative, "", "rng-preserved"),
            Quantity("calls", float(recorded.calls)),
            Quantity("missing", float(len(apart.missing))),
            Quantity("module", text=place),
            Quantity("names", text=_shortened(recorded.names)),
            Quantity("buffers", float(len(_changed_buffers(recorded, without)))),
        ],
    )


def _shortened(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _conclusion(recorded: _Run, apart: Comparison, wrong: list[str], verdict: _Verdict, limit: float) -> str:
    if recorded.outcome.failure:
        return "The step fails only with activation checkpointing: the recomputation is not what the forward was."
    if apart.missing:
        return (
            f"Activation checkpointing cuts the graph: {len(apart.missing)} parameters, {apart.missing[0]} first, get "
            "no gradient with it. The re-entrant kind needs an input that requires a gradient."
        )
    if verdict == "fault":
        where = f", beginning (backwards) at {wrong[-1]}" if wrong else ""
        return f"Activation checkpointing makes the gradient wrong, without an error{where}."
    if verdict == "clean":
        return "Activation checkpointing does not change the gradient."
    if math.isnan(apart.relative):
        return "The gradient is zero without activation checkpointing: nothing to compare."
    return f"The difference is below what the precision or repeats of the step explain ({limit:.2g})."


def _changed_buffers(recorded: _Run, without: _Run) -> list[str]:
    if recorded.outcome.error is not None:
        return []
    shared = [name for name in recorded.buffers if name in without.buffers]
    return [name for name in shared if not torch.equal(recorded.buffers[name], without.buffers[name])]


def _said_of_buffers(recorded: _Run, without: _Run) -> str:
    changed = _changed_buffers(recorded, without)
    if not changed:
        return ""
    return (
        f" The recomputation changes {len(changed)} buffers, {changed[0]} first, a second time (BatchNorm's running "
        "statistics are such): they move faster than without checkpointing."
    )


def _cures(context: Context, recorded: _Run, without: _Run, preserved: _Run, limit: float) -> Iterator[Result]:
    """The settings with which checkpointing gives the gradient that it should; leaving it out, where none does."""
    before = _told(recorded.outcome) if recorded.outcome.failure else _apart(recorded, without)
    cured = False
    for mode, words in _CURES:
        run = preserved if mode == "rng-preserved" else _in_mode(context.runner, mode)
        if _agrees(run, without, limit):
            cured = True
            yield context.result(
                "checkpointing", words, f"without it {before}; with it {_apart(run, without)}",
                "With it the gradient is that without checkpointing.", "verified",
                [Quantity("relative_difference", _relative(run, without), "", mode)],
            )  # fmt: skip
    if not cured:
        yield context.result(
            "checkpointing", "without activation checkpointing", f"with it {before}; without it a finite gradient",
            "Neither setting of checkpointing helps: the checkpointed function does something else when it runs again.",
            "verified", [Quantity("grad_norm", without.outcome.norm, "", "without")],
        )  # fmt: skip


def _relative(run: _Run, without: _Run) -> float:
    return compare(run.outcome.gradients, without.outcome.gradients).relative


def _apart(run: _Run, without: _Run) -> str:
    compared = compare(run.outcome.gradients, without.outcome.gradients)
    lost = f" and {len(compared.missing)} parameters without gradient" if compared.missing else ""
    return f"relative difference {compared.relative:.3g}{lost}"


# as recorded, without, random state preserved, as recorded again for the spread, not re-entrant
EXPERIMENT = Experiment("checkpointing", lambda _: 5.0, _run)
