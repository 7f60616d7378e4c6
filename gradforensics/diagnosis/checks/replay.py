"""Checks on what a replay found: the experiments judge what they measured, these checks say of which case it speaks.

Their hits stand at the step that was replayed, with the line of the replay directory that holds the result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gradforensics.diagnosis.checks.loss import lasting_bad
from gradforensics.diagnosis.vocabulary import Answer, Check, Fact, Hit, check
from gradforensics.experiment_rows import Located, results
from gradforensics.experiments import Result
from gradforensics.languages import LANGUAGES, Text
from gradforensics.patterns import lazy
from gradforensics.tables import Evidence

_KINDS = {"nan": ("NaN", math.nan), "posinf": ("Infinity", math.inf), "neginf": ("-Infinity", -math.inf)}
_PHASES = {
    "forward": Text("forward", "前向"),
    "backward": Text("backward", "反向"),
    "state": Text("state", "状态"),
    "batch": Text("batch", "批次"),
}
_PLACES = {
    "micro_batch": Text("micro-batch", "微批次"),
    "sample": Text("sample", "样本"),
    "token": Text("token", "token"),
}
_GRAPH_ERRORS = lazy(
    r"backward through the graph a second time|modified by an inplace operation|"
    r"Recomputed values for the following tensors have different metadata|"
    r"different number of tensors was saved during the original forward and recomputation|CheckpointError"
)


def _faults(evidence: Evidence, experiment: str) -> list[Located]:
    return [one for one in results(evidence, experiment) if one.result.outcome == "fault"]


def _hit(one: Located, facts: dict[str, Fact], *, value: float | None = None, after: int | None = None) -> Hit:
    module = facts.get("module")
    tensor = module if isinstance(module, str) else None
    return Hit(one.result.step, after, None, None, value, one.source, one.line, tensor, facts)


def _text(result: Result, name: str) -> str | None:
    return result.text(name) or None


def _count(result: Result, name: str) -> int | None:
    """A number that counts something, or None where it is not known."""
    value = result.number(name)
    return int(value) if value is not None and math.isfinite(value) else None


def _element(result: Result) -> Text | None:
    """Where in the batch: "micro-batch 0, sample 5, token 12", what of it is known."""
    known = [(word, n) for name, word in _PLACES.items() if (n := _count(result, name)) is not None]
    english, chinese = ([f"{word.in_(language)} {n}" for word, n in known] for language in LANGUAGES)
    return Text(", ".join(english), "、".join(chinese)) if known else None


# -- the graph -------------------------------------------------------------------------------------------------------

_SEVERED = ("trainable", "severed", "unused", "omitted")


def _severed_facts(result: Result) -> dict[str, Fact]:
    counts: dict[str, Fact] = {name: _count(result, name) for name in _SEVERED}
    return counts | {name: _text(result, name) for name in ("module", "source_line", "names")}


@check(needs=["experiments:severed"], facts=[*_SEVERED, "module", "source_line", "names"])
def severed_in_replay(evidence: Evidence) -> Answer:
    """Trainable parameters of modules that ran get no gradient in the replayed step: the graph is cut."""
    found = _faults(evidence, "severed")
    return [_hit(one, _severed_facts(one.result)) for one in found if _count(one.result, "severed")]


@check(needs=["experiments:severed"], facts=[*_SEVERED, "module", "source_line", "names"])
def left_aside_in_replay(evidence: Evidence, *, how: str) -> Answer:
    """No graph is cut, but parameters are "unused" (no part of the loss) or "omitted" (in no optimizer group)."""
    found = [one for one in results(evidence, "severed") if not _count(one.result, "severed")]
    return [_hit(one, _severed_facts(one.result)) for one in found if _count(one.result, how)]


@check(needs=["experiments:accumulation"], facts=["ratio", "cosine", "micro_batches"])
def accumulated_gradient_differs(evidence: Evidence, *, kind: str) -> Answer:
    """The gradient of the accumulated step is not that of the whole batch, in one way.

    kind: missing-division, cleared-each or mean-of-means.
    """
    hits = []
    for one in _faults(evidence, "accumulation"):
        if one.result.text("kind") != kind:
            continue
        ratio = one.result.number("ratio")
        facts: dict[str, Fact] = {"ratio": ratio, "cosine": one.result.number("cosine")}
        hits.append(_hit(one, facts | {"micro_batches": _count(one.result, "micro_batches")}, value=ratio))
    return hits


_CHECKPOINTING = ("difference", "calls", "module", "missing")


@check(needs=["experiments:checkpointing"], facts=_CHECKPOINTING)
def checkpointing_changes_gradient(evidence: Evidence, *, how: str) -> Answer:
    """With activation checkpointing as recorded the gradient is not the one without it.

    how: "wrong" (another gradient, no error), "fails" (no gradient: the step raises or is not finite) or "missing"
    (parameters that get one without checkpointing get none).
    """
    hits = []
    for one in _faults(evidence, "checkpointing"):
        difference, missing = one.result.number("relative_difference", "recorded"), _count(one.result, "missing")
        known = difference is not None and math.isfinite(difference)
        if how == ("missing" if missing else "wrong" if known else "fails"):
            facts: dict[str, Fact] = {"difference": difference, "missing": missing}
            facts |= {"calls": _count(one.result, "calls"), "module": _text(one.result, "module")}
            hits.append(_hit(one, facts, value=difference))
    return hits


@check(needs=["experiments:anomaly"], facts=["error", "source_line", "module"])
def graph_error_in_replay(evidence: Evidence) -> Answer:
    """The replayed step stops with one of PyTorch's errors about a graph that was freed, changed or recomputed."""
    hits = []
    for one in _faults(evidence, "anomaly"):
        error = one.result.text("operation")
        if one.result.text("phase") == "exception" and _GRAPH_ERRORS.search(error):
            facts = {name: _text(one.result, name) for name in ("module", "source_line")}
            hits.append(_hit(one, {"error": error, **facts}))
    return hits


# -- values that are not finite --------------------------------------------------------------------------------------

_ANOMALY = ("module", "operation", "source_line", "kind", "element", "input_min", "input_max", "input_nonfinite")


@check(needs=["experiments:anomaly"], facts=_ANOMALY)
def first_bad_value_in_replay(evidence: Evidence, *, phase: str) -> Answer:
    """The replayed step makes a value that is not finite, and the log shows no run that got over it.

    phase: where the first one stands: forward, backward, state (before the step) or batch (in its data).
    """
    return _bad_values(evidence, (phase,), survived=False)


@check(needs=["experiments:anomaly"], facts=[*_ANOMALY, "phase"])
def bad_value_that_the_run_survived(evidence: Evidence) -> Answer:
    """The replayed step makes a value that is not finite, and is not known to have harmed the run.

    The log goes on with finite values after it, or only the loss scale made it, as in a step that a scaler skips.
    """
    return _bad_values(evidence, ("forward", "backward", "state", "batch"), survived=True)


def _bad_values(evidence: Evidence, phases: Sequence[str], *, survived: bool) -> list[Hit]:
    hits = []
    for one in _faults(evidence, "anomaly"):
        result = one.result
        phase = result.text("phase")
        if phase not in phases or _survived(evidence, result.step) != survived:
            continue
        word, value = _KINDS.get(result.text("value_kind"), (None, None))
        facts: dict[str, Fact] = {name: _text(result, name) for name in ("module", "operation", "source_line")}
        facts |= {"kind": word, "element": _element(result)}
        facts |= {name: result.number(name) for name in ("input_min", "input_max")}
        facts |= {"input_nonfinite": _count(result, "input_nonfinite"), "phase": _PHASES[phase]}
        hits.append(_hit(one, facts, value=value, after=_last_finite(evidence, result.step)))
    return hits


_PRECISION = ("module", "precision", "cured_by", "max_activation", "headroom", "loss")


@check(needs=["experiments:precision"], facts=_PRECISION)
def fails_in_this_precision_only(evidence: Evidence, *, where: str, run: str) -> Answer:
    """The replayed step fails in the precision of the training and not in a wider one, and may have harmed the run.

    where: values leave the range first in a "module", or in the "gradient" alone; or it is the "digits" of bfloat16,
    which has the range of float32. run: "dead" where the log is not finite for good from about that step on, or "open".
    """
    hits = _precision(evidence, survived=False)
    return [hit for hit in hits if _kind_of_failure(hit) == where and _fate(evidence, hit.step or 0) == run]


def _kind_of_failure(hit: Hit) -> str:
    if "bfloat16" in str(hit.facts.get("precision")):
        return "digits"
    return "module" if hit.tensor else "gradient"


@check(needs=["experiments:precision"], facts=_PRECISION)
def failed_once_in_this_precision(evidence: Evidence) -> Answer:
    """The same, but the log goes on with finite values after the step, or only the loss scale was too large."""
    return _precision(evidence, survived=True)


def _precision(evidence: Evidence, *, survived: bool) -> list[Hit]:
    hits = []
    for one in _faults(evidence, "precision"):
        result = one.result
        if result.number("finite", "recorded") == 1 or _survived(evidence, result.step) != survived:
            continue
        finite = [name for name in ("float32", "bfloat16") if result.number("finite", name) == 1]
        wide = finite[0] if finite else None
        facts: dict[str, Fact] = {
            "module": _text(result, "module"),
            "precision": _recorded_precision(result),
            "cured_by": Text(" or ".join(finite), " 或 ".join(finite)) if finite else None,
            "max_activation": None if wide is None else result.number("max_activation", wide),
            "headroom": result.number("headroom"),
            "loss": None if wide is None else result.number("loss", wide),
        }
        after = _last_finite(evidence, result.step)
        hits.append(_hit(one, facts, value=result.number("loss", "recorded"), after=after))
    return hits


@check(needs=["experiments:precision"], facts=["precision", "zeros", "zeros_in_float32"])
def gradient_underflows_in_replay(evidence: Evidence) -> Answer:
    """The replayed step is finite, and much of its gradient is 0 in its precision that is not 0 in float32."""
    hits = []
    for one in _faults(evidence, "precision"):
        if one.result.number("finite", "recorded") == 1:
            zeros = one.result.number("zero_gradients", "recorded")
            facts: dict[str, Fact] = {"precision": _recorded_precision(one.result), "zeros": zeros}
            facts["zeros_in_float32"] = one.result.number("zero_gradients", "float32")
            hits.append(_hit(one, facts, value=zeros))
    return hits


def _recorded_precision(result: Result) -> str | None:
    """As the experiment writes it: "autocast float16"."""
    before, arrow, _ = result.changed.partition(" -> ")
    return before if arrow else None


def _survived(evidence: Evidence, step: int) -> bool:
    """Whether the log shows that the run got over this step, or the step failed by its loss scale alone."""
    if _lost(evidence, step):
        return False
    return _went_on(evidence, step) or any(
        one.result.outcome == "verified" and one.result.step == step and one.result.number("scale") is not None
        for one in results(evidence, "anomaly")
    )


_FEW = 3  # a step is not blamed for what comes after more finite points; and so many bad ones are no skipped step


def _lost(evidence: Evidence, step: int, points: int = 1) -> bool:
    """Whether a loss or a gradient norm is not finite for good from about this step on, or was so before.

    points: how many values that are not finite it takes. An attempt that had ended before the step does not count.
    """
    for one in (*evidence.attempts("loss"), *evidence.attempts("grad_norm")):
        first = lasting_bad(one)
        if first is None or np.count_nonzero(one.bad[first:]) < points:
            continue
        if one.step_unit != "step":  # it cannot be told whether that was before the step or after it
            return True
        between = (one.good.steps > step) & (one.good.steps < one.steps[first])
        if one.steps[-1] >= step - 1 and np.count_nonzero(between) < _FEW:
            return True
    return False


def _fate(evidence: Evidence, step: int) -> str:
    return "dead" if _lost(evidence, step, points=_FEW) else "open"


def _went_on(evidence: Evidence, step: int) -> bool:
    """Whether finite losses enough are logged after this step."""
    loss = evidence.series("loss")
    if loss is None or loss.step_unit != "step":
        return False
    later = loss.good.values[loss.good.steps > step]
    return len(later) >= _FEW and bool((later != 0).any())  # a loss of 0 may stand for a filtered NaN (GF35)


def _last_finite(evidence: Evidence, step: int) -> int | None:
    """The last step before this one at which the log shows a finite loss."""
    loss = evidence.series("loss")
    if loss is None or loss.step_unit != "step":
        return None
    before = loss.good.steps[loss.good.steps < step]
    return int(np.max(before)) if len(before) else None


# -- the batch -------------------------------------------------------------------------------------------------------


@check(needs=["experiments:content"], facts=["count", "id", "rows", "element"])
def id_out_of_range_in_batch(evidence: Evidence, *, what: str) -> Answer:
    """Ids or labels of the replayed batch lie outside of their table. what: ids or labels."""
    hits = []
    for one in _with(evidence, f"{what}_out_of_range"):
        facts: dict[str, Fact] = {"count": _count(one.result, f"{what}_out_of_range"), "element": _element(one.result)}
        bad = _count(one.result, "id")
        hits.append(_hit(one, facts | {"id": bad, "rows": _count(one.result, "rows")}, value=bad))
    return hits


@check(needs=["experiments:content"], facts=["count", "share"])
def padding_in_labels(evidence: Evidence) -> Answer:
    """Labels of the replayed batch that count in the loss stand where the input is padding."""
    hits = []
    for one in _with(evidence, "pad_in_labels"):
        count = _count(one.result, "pad_in_labels")
        hits.append(_hit(one, {"count": count, "share": one.result.number("pad_share")}, value=count))
    return hits


@check(needs=["experiments:content"], facts=["with_eos", "kept", "samples"])
def end_of_sequence_not_in_labels(evidence: Evidence) -> Answer:
    """The samples of the replayed batch hold the end-of-sequence token, their labels do not."""
    hits = []
    for one in _with(evidence, "eos_in_ids"):
        kept = one.result.number("eos_in_labels")
        if kept is not None:
            facts: dict[str, Fact] = {"with_eos": one.result.number("eos_in_ids"), "kept": kept}
            hits.append(_hit(one, facts | {"samples": _count(one.result, "samples")}, value=kept))
    return hits


@check(needs=["experiments:content"], facts=["count", "samples"])
def samples_without_labels(evidence: Evidence, *, which: str) -> Answer:
    """Samples of the replayed batch without a label that counts.

    which: "some" of them, "all" of a micro-batch, or "all, survived" where the log goes on with finite values.
    """
    hits = []
    for one in _with(evidence, "empty_samples"):
        count, samples = _count(one.result, "empty_samples"), _count(one.result, "samples")
        every = samples is not None and count is not None and count >= samples
        every = every or bool(_count(one.result, "empty_micro_batches"))
        survived = not _lost(evidence, one.result.step) and _went_on(evidence, one.result.step)
        if which == ("some" if not every else "all, survived" if survived else "all"):
            hits.append(_hit(one, {"count": count, "samples": samples}, value=count))
    return hits


@check(needs=["experiments:content"], facts=["ratio", "tokens"])
def loss_is_no_mean(evidence: Evidence) -> Answer:
    """The loss of the replayed step is the sum over its labels, not their mean."""
    hits = []
    for one in _with(evidence, "loss_over_mean"):
        ratio = one.result.number("loss_over_mean")
        hits.append(_hit(one, {"ratio": ratio, "tokens": _count(one.result, "valid_tokens")}, value=ratio))
    return hits


@check(needs=["experiments:content"], facts=["share"])
def labels_wrongly_shifted(evidence: Evidence, *, how: str) -> Answer:
    """The labels of the replayed step are not the next tokens.

    how: "never" (every position is compared with its own input) or "twice" (with the token after the next).
    """
    hits = []
    for one in _faults(evidence, "content"):
        same, second = one.result.number("unshifted"), one.result.number("second_next")
        if same is not None and ("twice" if (second or 0) > same else "never") == how:
            share = max(same, second or 0)
            hits.append(_hit(one, {"share": share}, value=share))
    return hits


def _with(evidence: Evidence, quantity: str) -> list[Located]:
    """The faults of the experiment `content` in which this quantity is more than 0."""
    return [one for one in _faults(evidence, "content") if (one.result.number(quantity) or 0) > 0]


@check(needs=["experiments:padding"], facts=["difference", "sample"])
def padding_changes_loss(evidence: Evidence) -> Answer:
    """The loss of samples of the replayed step depends on how they are padded, and stays finite."""
    return _padding(evidence, finite=True)


@check(needs=["experiments:padding"], facts=["difference", "sample"])
def padding_makes_nan(evidence: Evidence) -> Answer:
    """The loss of samples of the replayed step is not finite with their padding and finite without it."""
    return _padding(evidence, finite=False)


def _padding(evidence: Evidence, *, finite: bool) -> list[Hit]:
    hits = []
    for one in _faults(evidence, "padding"):
        if (one.result.number("finite", "recorded") != 0) == finite:
            difference = one.result.number("relative_difference", "recorded")
            facts: dict[str, Fact] = {"difference": difference, "sample": _count(one.result, "sample")}
            hits.append(_hit(one, facts, value=difference))
    return hits


CHECKS: tuple[Check, ...] = (
    severed_in_replay,
    left_aside_in_replay,
    accumulated_gradient_differs,
    checkpointing_changes_gradient,
    graph_error_in_replay,
    first_bad_value_in_replay,
    bad_value_that_the_run_survived,
    fails_in_this_precision_only,
    failed_once_in_this_precision,
    gradient_underflows_in_replay,
    id_out_of_range_in_batch,
    padding_in_labels,
    end_of_sequence_not_in_labels,
    samples_without_labels,
    loss_is_no_mean,
    labels_wrongly_shifted,
    padding_changes_loss,
    padding_makes_nan,
)
