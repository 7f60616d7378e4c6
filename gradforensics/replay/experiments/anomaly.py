"""anomaly: the first value of the step that is NaN or infinite, forward and backward, and what made it."""

from __future__ import annotations

import math
from collections.abc import Iterator

from gradforensics.experiments import Quantity, Result
from gradforensics.replay import batches
from gradforensics.replay.experiment import Context, Experiment
from gradforensics.replay.step import Outcome, StepRunner, told
from gradforensics.replay.tracing import Finding, Tracer
from gradforensics.replay.tracing_causes import NO_LABEL
from gradforensics.replay.tracing_lineage import Record

_VALUES = {"nan": "NaN", "posinf": "Inf", "neginf": "-Inf"}
_DEFAULT_IGNORED = -100  # of torch.nn.functional.cross_entropy
_MOST = 3  # inputs and names in a sentence


def _cost(context: Context) -> float:
    return 2 if _scale(context.runner) != 1 else 1


def _run(context: Context) -> Iterator[Result]:
    runner = context.runner
    tracer = Tracer(runner)
    outcome = runner.compute(watch=tracer.watch)
    if outcome.error is not None:
        yield _raised(context, tracer, outcome.error)
    elif tracer.finding is not None:
        unscaled = _unscaled(runner) if _may_be_scale(runner, tracer.finding) else None
        yield _found(context, tracer.finding, tracer, unscaled)
        if unscaled is not None and not unscaled.failure:
            yield _scale_proven(context, unscaled)
    elif outcome.failure == "nonfinite_gradient":
        yield _norm_only(context, outcome)
    else:
        yield _clean(context, tracer, outcome)


# -- the loss scale ---------------------------------------------------------------------------------------------------


def _scale(runner: StepRunner) -> float:
    return runner.step.scale or 1.0


def _may_be_scale(runner: StepRunner, finding: Finding) -> bool:
    return _scale(runner) != 1 and finding.root.phase == "backward"


def _unscaled(runner: StepRunner) -> Outcome:
    """The step with the same weights of its micro-batches, but without the loss scale."""
    micros, scale = runner.step.micros, _scale(runner)
    share = 1 / len(micros) if runner.program.divide else 1.0
    return runner.compute(weights=[share if m.backward is None else float(m.backward) / scale for m in micros])


def _scale_proven(context: Context, unscaled: Outcome) -> Result:
    scale = _scale(context.runner)
    return context.result(
        "anomaly",
        f"loss scale {scale:g} -> 1",
        f"with the loss scale a gradient is not finite; without it all are, their norm is {unscaled.norm:.6g}",
        "Only the loss scale takes the gradient out of range. A scaler that halves its scale then and skips the step "
        "works as meant; a scale that is fixed, or that falls again and again, does not fit this model.",
        "verified",
        [
            Quantity("grad_norm", math.inf, variation="recorded"),
            Quantity("grad_norm", unscaled.norm, variation="unscaled"),
            Quantity("scale", scale),
        ],
    )


# -- what came out ----------------------------------------------------------------------------------------------------


def _found(context: Context, finding: Finding, tracer: Tracer, unscaled: Outcome | None) -> Result:
    root = finding.root
    result = [f"the first {_VALUES[root.kind]} {_made(root)}", *_where(context, root)]
    if root.inputs:
        what = "inputs" if root.aten else "all of it"
        result.append(f"{what}: {'; '.join(str(one) for one in root.inputs[:_MOST])}")
    if finding.became is not None:
        became = finding.became
        result.append(f"it became NaN in {became.operation}, {_module(became)}{_at(became)}")
    if finding.beside is not None:
        beside = finding.beside
        result.append(f"it met an {_VALUES[beside.kind]} that {beside.operation} had made{_at(beside)}")
    if finding.parameters:
        names = finding.parameters
        more = ", ..." if len(names) > _MOST else ""
        result.append(f"gradients that it reaches: {len(names)} ({', '.join(names[:_MOST])}{more})")
    if tracer.missed:
        result.append(f"{tracer.missed} operations could not be looked at")
    return context.result(
        "anomaly", "nothing", ". ".join(_sentence(part) for part in result) + ".",
        _conclusion(context, finding, unscaled), "fault", _quantities(finding),
    )  # fmt: skip


def _made(root: Record) -> str:
    if root.phase == "state":
        return f"is in {root.operation} before the step begins"
    if root.phase == "batch":
        return f"is in the batch, part {root.module}"
    name = f"is made by {root.operation} [{root.aten}]" if root.aten else f"comes from {root.operation}"
    return f"{name} in the {root.phase}, {_module(root)}{_at(root)}"


def _module(record: Record) -> str:
    return f"in {record.module}"


def _at(record: Record) -> str:
    return f" ({record.source_line})" if record.source_line else ""


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _where(context: Context, root: Record) -> list[str]:
    place = root.place
    parts = [f"micro-batch {root.micro}"] if len(context.runner.step.micros) > 1 and root.phase != "state" else []
    if place.sample is not None:
        parts.append(f"sample {place.sample}")
    if place.token is not None:
        parts.append(f"token {place.token}")
    if place.bad:
        parts.append(f"element {list(place.index)}, elements like it: {place.bad}")
    if place.hit is not None:
        parts.append(f"samples hit: {place.hit}")
    return [", ".join(parts)] if parts else []


def _conclusion(context: Context, finding: Finding, unscaled: Outcome | None) -> str:
    root = finding.root
    if root.phase == "state":
        return (
            f"{_sentence(root.operation)} is not finite before this step: the fault lies in an earlier step, or in the "
            "checkpoint that was loaded."
        )
    if root.phase == "batch":
        return "The batch itself is not finite: the fault lies in the data or in how they are prepared."
    if unscaled is not None and not unscaled.failure:
        return "It is there only with the loss scale: without it the same gradients are finite."
    parts = [root.note] if root.note else []
    if _no_label(context, root.micro) and NO_LABEL not in root.note:
        parts.append(f"{NO_LABEL} (all are {_ignored(context)}), so that there is nothing to take a mean over")
    if unscaled is not None:
        parts.append("the loss scale is not the reason: it is there without it, too")
    if not parts:
        parts.append(f"{root.operation} makes it of finite inputs")
    return ". ".join(_sentence(part) for part in parts) + "."


def _ignored(context: Context) -> int:
    value = context.runner.settings.get("ignore_index", _DEFAULT_IGNORED)
    return value if isinstance(value, int) else _DEFAULT_IGNORED


def _no_label(context: Context, micro: int) -> bool:
    labels = batches.fields_of(context.runner.step.micros[micro].batch).labels
    return labels is not None and labels.numel() > 0 and bool((labels == _ignored(context)).all())


def _quantities(finding: Finding) -> list[Quantity]:
    root, place = finding.root, finding.root.place
    texts = {
        "phase": root.phase,
        "module": root.module,
        "operation": root.operation,
        "aten": root.aten,
        "source_line": root.source_line,
        "value_kind": root.kind,
        "became_nan": "" if finding.became is None else f"{finding.became.operation} in {finding.became.module}",
    }
    numbers: dict[str, float | None] = {
        "sample": place.sample,
        "token": place.token,
        "micro_batch": None if root.phase == "state" else root.micro,
        "samples_hit": place.hit,
        "feature": place.index[-1] if root.phase == "batch" and place.token is None and len(place.index) > 1 else None,
    }
    if root.inputs:
        divisor = root.inputs[-1] if root.aten == "aten.div" else root.inputs[0]
        telling = next((one for one in root.inputs if one.nonfinite), divisor)
        numbers |= {
            "input_min": telling.smallest,
            "input_max": telling.largest,
            "input_nonfinite": sum(one.nonfinite for one in root.inputs),
        }
    return [
        *(Quantity(name, text=text) for name, text in texts.items() if text),
        *(Quantity(name, value) for name, value in numbers.items() if value is not None),
    ]


def _raised(context: Context, tracer: Tracer, error: Exception) -> Result:
    raised = tracer.raised(error)
    what = told(error)
    place = f"in {raised.module}" + (f" ({raised.source_line})" if raised.source_line else "")
    when = f"in the backward of {raised.node}, made {place}" if raised.node else place
    conclusion = "The step ends with this exception each time that it is replayed from this state."
    bad = next((r for r in tracer.roots if r.phase in ("forward", "backward")), None)
    if bad is not None:
        conclusion += f" Before it, a value was not finite: the first {_VALUES[bad.kind]} {_made(bad)}."
    texts = {"phase": "exception", "module": raised.module, "operation": what, "source_line": raised.source_line}
    return context.result(
        "anomaly", "nothing", f"micro-batch {tracer.micro}: {what}, raised {when}", conclusion, "fault",
        [
            *(Quantity(name, text=text) for name, text in texts.items() if text),
            Quantity("micro_batch", tracer.micro),
        ],
    )  # fmt: skip


def _norm_only(context: Context, outcome: Outcome) -> Result:
    return context.result(
        "anomaly", "nothing",
        f"loss {outcome.loss:.6g} and every gradient are finite, but the norm over all gradients is {outcome.norm}",
        "The sum of their squares leaves the range of their own precision: the gradients are huge, not infinite.",
        "fault",
        [Quantity("phase", text="backward"), Quantity("operation", text="gradient norm"),
         Quantity("value_kind", text="posinf")],
    )  # fmt: skip


def _clean(context: Context, tracer: Tracer, outcome: Outcome) -> Result:
    step = context.runner.step
    result = f"loss {outcome.loss:.6g}, gradient norm {outcome.norm:.6g}: no NaN and no Inf reaches them"
    masked = [r for r in tracer.roots if r.phase in ("forward", "backward")]
    if masked:
        result += f". {len(masked)} operations made some that were masked again; the first {_made(masked[0])}"
    held = [r for r in tracer.roots if r.phase in ("state", "batch")]
    if held:
        result += f". Not finite, but without an effect on this step: {held[0].operation}"
    recorded = [v for v in (step.loss, step.grad_norm) if v is not None]
    if not all(math.isfinite(v) for v in recorded):
        conclusion = (
            "The recorded loss or gradient was not finite, and this replay's is: the failure does not come back."
        )
        return context.result("anomaly", "nothing", result, conclusion, "inconclusive")
    if all(gradient is None for gradient in outcome.gradients.values()):
        conclusion = "The loss is finite. No parameter got a gradient: the backward could not be looked at."
        return context.result("anomaly", "nothing", result, conclusion, "inconclusive")
    conclusion = "Every value that counts is finite, forward and backward."
    return context.result("anomaly", "nothing", result, conclusion, "clean")


EXPERIMENT = Experiment("anomaly", _cost, _run)
