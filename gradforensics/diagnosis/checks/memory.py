"""Checks on memory: what grows from step to step, and where a run was when its memory ran out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from gradforensics import trend_signals
from gradforensics.diagnosis.vocabulary import Answer, Check, Fact, Hit, Missing, check, hit_at
from gradforensics.languages import Text
from gradforensics.patterns import lazy
from gradforensics.tables import Event, Evidence, Series

_LEAST = 30  # points of which a trend of memory is read
_LENGTH = lazy(r"(?:seq|sequence|context|input|token|prompt|sample)s?[_ ]?len(?:gth)?|max_len|num_tokens_in_batch")
_HOST = lazy(
    r"DefaultCPUAllocator|Cannot allocate memory|^MemoryError|ArrayMemoryError|cgroup|oom[-_]kill|OOMKilled"
    r"|Out of memory: Kill|Out Of Memory|job killed: (?:mem|vmem)|TERM_MEMLIMIT",
)
_EVALUATES = lazy(r"eval|valid|predict|\btest|inference|generate|on_epoch_end|compute_metrics|run_test", re.IGNORECASE)
_BACKWARD = lazy(r"backward", re.IGNORECASE)
_STATE_BYTES = 16  # per parameter: Adam with mixed precision (Rajbhandari et al., ZeRO, section 3.1)
_BYTES = 1e7  # median of a series that is taken for bytes where its tag names no unit: in kilobytes it would be 10 GB
_NAMES_UNIT = lazy(r"(?:^|[_/. (-])[kmgt]i?b\b|percent|%", re.IGNORECASE)


def _settled(series: Series, warmup: int) -> int:
    """Index of the first point after the warm-up, which is never more than a quarter of the record."""
    past = int(np.searchsorted(series.steps, series.steps[0] + warmup))
    return min(past, len(series) // 4)


def _growth(series: Series, warmup: int, fit: float, upwards: float, growth: float) -> trend_signals.Growth | None:
    """A steady growth up to the end, after the warm-up."""
    good = series.good
    return trend_signals.steady_growth(good.steps, good.values, _settled(good, warmup), fit, upwards, growth)


def _collects(evidence: Evidence) -> bool:
    """Whether the run logs rewards: its replay buffer or its rollouts may grow by design."""
    return any(evidence.series(name) is not None for name in ("reward", "rollout", "ep_len_mean"))


def _follows_length(evidence: Evidence, memory: Series, correlation: float) -> bool:
    """Whether the memory follows the logged length of the sequences, which may rise by a plan."""
    for name in evidence.names("train"):
        if not _LENGTH.search(name):
            continue
        length = evidence.series(name)
        if length is None:
            continue
        common, mine, its = np.intersect1d(memory.good.steps, length.good.steps, return_indices=True)
        if len(common) < _LEAST:
            continue
        a, b = memory.good.values[mine], length.good.values[its]
        if np.std(a) > 0 and np.std(b) > 0 and float(np.corrcoef(a, b)[0, 1]) >= correlation:
            return True
    return False


def _evaluated(evidence: Evidence, memory: Series) -> np.ndarray | None:
    """Steps at which the run evaluates, int64, as logged or else as configured; None where neither tells."""
    steps = [s.steps for n in evidence.names("eval") if (s := evidence.series(n, "eval")) is not None]
    if steps:
        return np.unique(np.concatenate(steps))
    every = _evaluation_interval(evidence)
    return None if every is None else np.arange(every, memory.steps[-1] + 1, every)


def _evaluation_interval(evidence: Evidence) -> float | None:
    """Steps between evaluations as configured; None where nothing is configured or evaluation is switched off."""
    every = evidence.number("eval_steps")
    off = str(evidence.setting("eval_strategy") or evidence.setting("evaluation_strategy") or "").lower()
    return None if every is None or every < 2 or off in ("no", "epoch") else every


@dataclass(frozen=True, slots=True)
class _Stairs:
    """Growth that happens at evaluations: how many, how much of the rise, median rise of one, index of the first."""

    evaluations: int
    share: float
    each: float
    first: int


def _stairs(evidence: Evidence, memory: Series, least: int, share: float, growth: float) -> _Stairs | None:
    """Growth at evaluations, which lie before the point of their own step or after it, as the loop has it."""
    good = memory.good
    evaluated = _evaluated(evidence, good)
    if evaluated is None or len(good) < _LEAST:
        return None
    for side in ("left", "right"):
        at = np.diff(np.searchsorted(evaluated, good.steps, side=side)) > 0
        if int(at.sum()) < least or at.mean() > 0.5:
            continue
        places = np.flatnonzero(at)[1:]  # the first evaluation warms its own kernels and buffers up
        rises = np.diff(good.values)[places]
        first = float(good.values[places[0]])
        total = float(good.values[-1]) - first
        if total < growth * abs(first) or float(np.mean(rises > 0)) < share or float(rises.sum()) < share * total:
            continue
        return _Stairs(len(places) + 1, float(rises.sum()) / total, float(np.median(rises)), int(places[0]) + 1)
    return None


def _point(series: Series, index: int, facts: dict[str, Fact]) -> Hit:
    """A hit; measurements of a machine are counted by rows, which are no steps."""
    hit = hit_at(series, index, facts)
    return replace(hit, step=None, after=None) if series.step_unit == "row" else hit


_GROWTH_FACTS = ("first", "last", "share", "fit", "per_step", "since")


def _amount(value: float, series: Series) -> str:
    """A value of a memory series: as a size where the series can only be in bytes, else as the number that it is."""
    in_bytes = float(np.median(series.good.values)) >= _BYTES and not _NAMES_UNIT.search(series.tag)
    return (_size(value) if in_bytes else None) or f"{value:.4g}"


def _growth_hit(series: Series, found: trend_signals.Growth) -> Hit:
    facts: dict[str, Fact] = {
        "first": _amount(found.first, series),
        "last": _amount(found.last, series),
        "share": found.share,
        "fit": found.trend.r2,
        "per_step": _amount(found.trend.slope, series),
        "since": int(series.good.steps[found.start]),
    }
    return _point(series.good, found.start, facts)


@check(needs=["series:memory_allocated:points>=40"], facts=_GROWTH_FACTS)
def allocated_grows(
    evidence: Evidence,
    *,
    warmup: int,
    fit: float,
    upwards: float,
    growth: float,
    length: float,
    stairs: float,
    ended: str,
) -> Answer:
    """Allocated memory, logged once per step and so at one phase of it, rises steadily to the end (detector D39).

    warmup: steps in which allocator and kernels settle; fit, upwards, growth: least R^2, share of changes that are no
    falls, and rise as a fraction of the first level. Memory that follows the sequence length (correlation `length`) and
    stairs at evaluations (`stairs` of the rise) are other things. ended: "oom" asks that memory ran out; else "any".
    """
    memory = evidence.series("memory_allocated")
    if memory is None or len(memory.good) < 40:
        return Missing("series:memory_allocated:points>=40")
    if _collects(evidence):
        return Missing("a run without a replay buffer (this one logs rewards)")
    found = _growth(memory, warmup, fit, upwards, growth)
    if found is None or (ended == "oom" and not _fatal(evidence)):
        return []
    if _follows_length(evidence, memory, length) or _stairs(evidence, memory, 4, stairs, growth):
        return []
    return [_growth_hit(memory, found)]


@check(
    needs=["series:memory_allocated:points>=40", "series:memory_reserved:points>=40"],
    facts=[*_GROWTH_FACTS, "allocated_share"],
)
def reserved_grows_alone(
    evidence: Evidence, *, warmup: int, fit: float, upwards: float, growth: float, flat: float
) -> Answer:
    """Reserved memory rises steadily while allocated memory rises by less than `flat` of that (in the same unit)."""
    allocated, reserved = evidence.series("memory_allocated"), evidence.series("memory_reserved")
    if allocated is None or reserved is None or len(allocated.good) < 40:
        return Missing("series:memory_allocated:points>=40", "series:memory_reserved:points>=40")
    found = _growth(reserved, warmup, fit, upwards, growth)
    if found is None:
        return []
    after = allocated.good.values[_settled(allocated.good, warmup) :]
    rise = trend_signals.trend(np.arange(float(len(after))), after).rise
    share = rise / max(abs(float(np.median(after))), 1e-12)
    if share > flat * found.share:
        return []
    hit = _growth_hit(reserved, found)
    return [replace(hit, facts={**hit.facts, "allocated_share": share})]


@check(needs=["series:memory_allocated:points>=40"], facts=["evaluations", "stairs", "each", "first", "last", "which"])
def allocated_grows_at_evaluations(evidence: Evidence, *, evaluations: int, share: float, growth: float) -> Answer:
    """Allocated memory rises at evaluations and not between them: outputs of the evaluation are kept.

    evaluations: how many there must be; share: of the evaluations after which it rose, and of the whole rise that lies
    there; growth: least rise as a fraction of the first level.
    """
    return _grows_at_evaluations(evidence, "memory_allocated", evaluations, share, growth)


@check(needs=["series:memory_host:points>=40"], facts=["evaluations", "stairs", "each", "first", "last", "which"])
def host_grows_at_evaluations(evidence: Evidence, *, evaluations: int, share: float, growth: float) -> Answer:
    """The same of the memory of the process on the host, where the training ran there."""
    if not _trains_on_host(evidence):
        return Missing("series:memory_allocated:points>=40")
    return _grows_at_evaluations(evidence, "memory_host", evaluations, share, growth)


def _grows_at_evaluations(evidence: Evidence, name: str, evaluations: int, share: float, growth: float) -> Answer:
    memory = evidence.series(name)
    if memory is None or len(memory.good) < 40:
        return Missing(f"series:{name}:points>=40")
    if _evaluated(evidence, memory.good) is None:
        return Missing("series:eval/loss")
    found = _stairs(evidence, memory, evaluations, share, growth)
    if found is None:
        return []
    values = memory.good.values
    facts: dict[str, Fact] = {
        "evaluations": found.evaluations,
        "stairs": found.share,
        "each": _amount(found.each, memory),
        "first": _amount(float(values[found.first - 1]), memory),
        "last": _amount(float(values[-1]), memory),
        "which": memory.tag,
    }
    return [_point(memory.good, found.first, facts)]


def _trains_on_host(evidence: Evidence) -> bool:
    """Whether the settings say that the training ran on the CPU; the memory of the process is then what counts."""
    if evidence.series("memory_allocated") is not None:
        return False
    told = str(evidence.setting("device") or evidence.setting("accelerator") or "").lower()
    return told.startswith("cpu") or evidence.setting("use_cpu") is True


@check(needs=["series:memory_host:points>=40"], facts=_GROWTH_FACTS)
def host_memory_grows(
    evidence: Evidence, *, warmup: int, fit: float, upwards: float, growth: float, stairs: float, trains: str
) -> Answer:
    """The memory of the process on the host rises steadily to the end of the record.

    trains: "there" asks that the training itself ran on the CPU and that the growth went on for more than one epoch
    (the pages of a memory-mapped data set add up over the first one), "any" does not.
    """
    memory = evidence.series("memory_host")
    if memory is None or len(memory.good) < 40:
        return Missing("series:memory_host:points>=40")
    if _collects(evidence):
        return Missing("a run without a replay buffer (this one logs rewards)")
    found = _growth(memory, warmup, fit, upwards, growth)
    if found is None or _stairs(evidence, memory, 4, stairs, growth):
        return []
    if trains == "there" and not (_trains_on_host(evidence) and _epochs(evidence, memory.good, found.start) > 1.0):
        return []
    return [_growth_hit(memory, found)]


def _epochs(evidence: Evidence, memory: Series, start: int) -> float:
    """Epochs that pass from this point to the end, 0 where they are not logged."""
    epochs = memory.epochs if np.isfinite(memory.epochs).any() else np.empty(0)
    loss = evidence.series("loss")
    if not len(epochs) and loss is not None and np.isfinite(loss.epochs).any():
        told = np.isfinite(loss.epochs)
        epochs = np.interp(memory.steps, loss.steps[told], loss.epochs[told])
    if not len(epochs):
        return 0.0
    return float(np.nanmax(epochs[start:]) - np.nanmin(epochs[start:]))


# ------------------------------------------------------------------------------------------------------ out of memory


@dataclass(frozen=True, slots=True)
class _End:
    """An event that ended the run for want of memory: whose memory, how many points of the loss came before it."""

    event: Event
    host: bool
    points: int


def _fatal(evidence: Evidence) -> _End | None:
    """The first of the events of the last launch that say that memory ran out, where nothing was trained after it."""
    if evidence.ending.kind == "completed":
        return None
    attempts = evidence.attempts("loss")
    last = max((int(s.attempts[0]) for s in attempts if len(s)), default=0)
    for event in evidence.events_of("oom", "oom_killer"):
        if event.attempt is not None and event.attempt < last:
            continue
        before, after = _around(event, attempts, last)
        if after:
            continue
        host = event.kind == "oom_killer" or bool(_HOST.search(event.text))
        return _End(event, host, before)
    return None


def _around(event: Event, attempts: list[Series], last: int) -> tuple[int, int]:
    """Points of the loss of the last launch before and after an event."""
    for series in attempts:
        if not len(series) or int(series.attempts[0]) != last:
            continue
        if event.line is not None and series.source == event.source and series.lines.any():
            return int((series.lines < event.line).sum()), int((series.lines > event.line).sum())
        if event.step is not None:
            return int((series.steps <= event.step).sum()), int((series.steps > event.step).sum())
        return len(series), 0
    return (0, 0) if event.step is None else (1, 0)


_ON, _OFF = Text("on", "已开启"), Text("off", "未开启")
_OOM_FACTS = ("asked", "total", "allocated", "unallocated", "where", "checkpointing", "last_step", "points")


def _size(value: object) -> str | None:
    """Bytes in GiB as PyTorch prints them; None where the message named no size."""
    if not isinstance(value, (int, float)):
        return None
    return f"{value / 2**30:.2f} GiB" if value >= 2**30 else f"{value / 2**20:.2f} MiB"


def _free_but_reserved(event: Event) -> float | None:
    """Bytes that PyTorch reserved but did not use when the request failed."""
    data = event.data
    if not isinstance(data.get("reserved"), (int, float)) or not isinstance(data.get("allocated"), (int, float)):
        return None
    return float(data["reserved"] - data["allocated"])


def _oom_hit(evidence: Evidence, end: _End, **more: Fact) -> Hit:
    event = end.event
    flag = evidence.setting("gradient_checkpointing")
    facts: dict[str, Fact] = {
        "asked": _size(event.data.get("bytes")),
        "total": _size(event.data.get("total")),
        "allocated": _size(event.data.get("allocated")),
        "unallocated": _size(_free_but_reserved(event)),
        "where": str(event.data["where"]) if "where" in event.data else None,
        "checkpointing": None if flag is None else _ON if flag in (True, "true", 1) else _OFF,
        "last_step": event.step,
        "points": end.points,
    }
    after = event.step if end.points else None  # the last logged step had fitted
    return Hit(event.step, after, source=event.source, line=event.line, facts={**facts, **more})


def _fragmented(event: Event, share: float) -> bool:
    """Whether what was reserved and not used would have held the request, and is a good part of the device."""
    rest, total, asked = _free_but_reserved(event), event.data.get("total"), event.data.get("bytes")
    if rest is None or not isinstance(total, (int, float)) or not isinstance(asked, (int, float)):
        return False
    return rest >= asked and rest >= share * total


def _evaluating(evidence: Evidence, event: Event) -> bool:
    """Whether the traceback stands in an evaluation, or its step is one after which this run evaluates."""
    where = str(event.data.get("where", "")).partition(" (")[0]
    if _EVALUATES.search(where):
        return True
    if event.step is None or _BACKWARD.search(f"{where} {event.data.get('message', '')}"):
        return False
    every = _evaluation_interval(evidence)
    return bool(every is not None and event.step > 0 and event.step % every == 0 and "where" in event.data)


def _device_ends(evidence: Evidence) -> Iterator[_End]:
    end = _fatal(evidence)
    if end is not None and not end.host:
        yield end


@check(needs=["events:console"], facts=_OOM_FACTS)
def oom_fragmented(evidence: Evidence, *, share: float) -> Answer:
    """The request would have fitted into memory that PyTorch held unused: `share` of the device or more."""
    return [_oom_hit(evidence, end) for end in _device_ends(evidence) if _fragmented(end.event, share)]


@check(needs=["events:console"], facts=_OOM_FACTS)
def oom_before_first_step(evidence: Evidence, *, share: float) -> Answer:
    """The device was full before a single loss was logged: what the step needs never fitted."""
    return [
        _oom_hit(evidence, end)
        for end in _device_ends(evidence)
        if end.points == 0 and not _fragmented(end.event, share) and not _states(evidence, end.event)
    ]


def _states(evidence: Evidence, event: Event) -> tuple[float, float] | None:
    """(parameters, bytes of their states) where Adam's states alone exceed the device; None where they do not."""
    parameters, total = evidence.number("num_parameters"), event.data.get("total")
    optimizer = str(evidence.setting("optim") or "adam").lower()
    sharded = evidence.number("zero_optimization.stage") or evidence.setting("fsdp") or evidence.setting("peft_type")
    if parameters is None or not isinstance(total, (int, float)) or "adam" not in optimizer or "8bit" in optimizer:
        return None
    needed = _STATE_BYTES * parameters
    return (parameters, needed) if not sharded and needed > total else None


@check(needs=["events:console", "settings:num_parameters"], facts=[*_OOM_FACTS, "parameters", "states"])
def oom_states_too_large(evidence: Evidence) -> Answer:
    """Out of memory at the start, and 16 bytes for each trained parameter (Adam, mixed precision) exceed the device."""
    for end in _device_ends(evidence):
        found = _states(evidence, end.event)
        if found is not None and end.points <= 1:
            return [_oom_hit(evidence, end, parameters=found[0], states=_size(found[1]))]
    return []


@check(needs=["events:console"], facts=_OOM_FACTS)
def oom_at_evaluation(evidence: Evidence, *, share: float) -> Answer:
    """Memory ran out in an evaluation, after steps that had fitted."""
    return [
        _oom_hit(evidence, end)
        for end in _device_ends(evidence)
        if end.points and not _fragmented(end.event, share) and _evaluating(evidence, end.event)
    ]


@check(needs=["events:console"], facts=_OOM_FACTS)
def oom_late(evidence: Evidence, *, share: float, warmup: int, fit: float, upwards: float, growth: float) -> Answer:
    """Memory ran out in a training step after others had fitted, without a growth that was logged."""
    for end in _device_ends(evidence):
        if not end.points or _fragmented(end.event, share) or _evaluating(evidence, end.event):
            continue
        memory = evidence.series("memory_allocated")
        if memory is not None and _growth(memory, warmup, fit, upwards, growth):
            continue
        return [_oom_hit(evidence, end)]
    return []


@check(needs=[], facts=_OOM_FACTS)
def host_out_of_memory(evidence: Evidence) -> Answer:
    """The memory of the host, or its limit for this job, ran out: its allocator failed, or a process was killed."""
    if evidence.events is None:
        return Missing("events:console")
    end = _fatal(evidence)
    return [_oom_hit(evidence, end)] if end is not None and end.host else []


@check(needs=["events:console"], facts=["count", "last_step"])
def oom_survived(evidence: Evidence) -> Answer:
    """Memory ran out and the training went on: a batch was skipped, or a later launch was started smaller."""
    end = _fatal(evidence)
    events = [e for e in evidence.events_of("oom") if end is None or e is not end.event]
    if end is not None or not events or evidence.series("loss") is None:
        return []
    first = events[0]
    facts: dict[str, Fact] = {"count": len(events), "last_step": first.step}
    return [Hit(first.step, source=first.source, line=first.line, facts=facts)]


CHECKS: tuple[Check, ...] = (
    allocated_grows,
    reserved_grows_alone,
    allocated_grows_at_evaluations,
    host_grows_at_evaluations,
    host_memory_grows,
    oom_fragmented,
    oom_before_first_step,
    oom_states_too_large,
    oom_at_evaluation,
    oom_late,
    host_out_of_memory,
    oom_survived,
)
