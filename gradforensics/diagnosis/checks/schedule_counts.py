"""Checks on the counter of a scheduler beside that of its optimizer: stepped too often, too rarely or never (D27)."""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import numpy as np

from gradforensics.diagnosis.schedules import Schedule, declared
from gradforensics.diagnosis.vocabulary import Answer, Check, Fact, Hit, Missing, check
from gradforensics.step_counters import Counters, Scheduler, counters
from gradforensics.tables import Evidence


class _Stepping(NamedTuple):
    """How a scheduler was stepped, in one checkpoint. made: steps of the run, which its optimizer made too.

    speed: steps of the scheduler per step. kind: the fault, "" where it is in step.
    """

    one: Counters
    scheduler: Scheduler
    made: int
    speed: float
    kind: str


@check(needs=["checkpoints", "facts"], facts=["scheduler", "speed", "slowness", "value", "counted", "made"])
def scheduler_steps_per_update(
    evidence: Evidence, *, kind: str, least: int, length: float, tolerance: float, shifted: float
) -> Answer:
    """A scheduler was stepped k times per optimizer step, once in many, or never, and was built for optimizer steps.

    kind: per-micro-batch (k is the number of accumulation steps), per-process, too-fast (any other number), per-epoch
    (rarely) or not-attached (it does not move). Its counter alone proves no fault: a schedule that was built for
    micro-batches is stepped with them, one that was built for epochs once in each. It was built for optimizer steps
    where its own length is the planned number of those (within the fraction `length`), or where the declared schedule
    gives the rate of the checkpoint (within `tolerance` of its peak) at the scheduler's counter and another one (by
    `shifted` of its peak) at the optimizer's. least: steps that the optimizer must have made.
    """
    key = "scheduler_steps_per_update", least, length, tolerance, shifted
    found: _Stepping | Missing = evidence.once(key, lambda: _stepping(evidence, least, length, tolerance, shifted))
    if isinstance(found, Missing):
        return found
    if found.kind != kind:
        return []
    name = found.scheduler.shape or str(evidence.setting("lr_scheduler_type") or "learning-rate")
    counted = found.scheduler.counted
    facts: dict[str, Fact] = {
        "scheduler": name, "speed": found.speed, "slowness": found.made / counted if counted else math.inf,
        "value": found.one.lr, "counted": counted, "made": found.made,
    }  # fmt: skip
    return [Hit(found.one.step, None, "checkpoints", value=counted, source=found.one.saved.source, facts=facts)]


def _stepping(evidence: Evidence, least: int, length: float, tolerance: float, shifted: float) -> _Stepping | Missing:
    """The first checkpoint with a fault, or the last one without; Missing where a scheduler's unit is not certain."""
    doubt = Missing("a checkpoint with the counters of the run, of its optimizer and of its scheduler")
    clean: _Stepping | None = None
    held: list[Counters] = []
    for one in counters(evidence) or []:
        scheduler = one.scheduler
        if scheduler is None or scheduler.plateau or one.schedulers > 1 or one.optimizers != 1 or one.step is None:
            continue
        if one.made is None or one.made < least or not _in_step(one):
            continue
        speed = _speed(one, scheduler)
        kind = "" if speed == 1 else _kind(evidence, one, held, speed)
        held.append(one)
        if speed != 1:
            meant = _built_for_updates(evidence, one, scheduler, length, tolerance, shifted)
            if meant is None or (meant and not kind):
                doubt, clean = Missing("what the scheduler was built for: optimizer steps or something else"), None
                continue
            if meant:
                return _Stepping(one, scheduler, one.made, speed, kind)
        clean = _Stepping(one, scheduler, one.made, speed, "")
    return clean or doubt


def _in_step(one: Counters) -> bool:
    """Whether the step of the run counts the optimizer's steps, skipped ones too."""
    skips = one.scaler is not None and one.behind is not None and 0 <= one.behind < 0.5 * (one.step or 0)
    return one.behind is not None and (abs(one.behind) <= 1 or skips)


def _speed(one: Counters, scheduler: Scheduler) -> float:
    """Steps of the scheduler per step, a whole number where they go together: with skipped steps or without them."""
    assert one.step is not None
    assert one.made is not None
    low, high = sorted((one.made, one.step))
    if low - 1 <= scheduler.counted <= high + 1:
        return 1.0
    times = round(scheduler.counted / high)
    if times >= 2 and times * (low - 1) <= scheduler.counted <= times * (high + 1):
        return float(times)
    return scheduler.counted / one.made


def _kind(evidence: Evidence, one: Counters, earlier: list[Counters], speed: float) -> str:
    """The fault that a speed speaks of where the schedule was built for optimizer steps, "" for none that is known."""
    counted = one.scheduler.counted if one.scheduler is not None else 0
    if speed >= 2 and speed == int(speed):
        accumulated, split = (evidence.number(key) == speed for key in ("gradient_accumulation_steps", "world_size"))
        if accumulated != split:
            return "per-micro-batch" if accumulated else "per-process"
        return "too-fast"
    if speed >= 1:
        return ""
    if counted == 0 or _stands_still(one, earlier):
        return "not-attached"
    return "per-epoch" if speed <= 0.5 and _regular(evidence, one) else ""


def _stands_still(one: Counters, earlier: list[Counters]) -> bool:
    """Whether the scheduler was not stepped since the checkpoint before.

    Two equal counters may also be those of a new scheduler that was stepped as often since: not where it stands higher
    than the steps in between, nor where three checkpoints agree.
    """
    counted = [c.scheduler.counted for c in [*earlier, one] if c.scheduler is not None]
    if len(counted) < 2 or counted[-2] != counted[-1]:
        return False
    between = (one.step or 0) - (earlier[-1].step or 0)
    return counted[-1] > between + 1 or counted[-3:] == [counted[-1]] * 3


def _regular(evidence: Evidence, one: Counters) -> bool:
    """Whether a slow scheduler went on evenly: in all checkpoints its counter is the same part of the steps."""
    parts = [
        (float(c.made), float(c.scheduler.counted))
        for c in counters(evidence) or []
        if c.made and c.scheduler is not None and (c.step or 0) <= (one.step or 0)
    ]
    pace = parts[-1][0] / parts[-1][1]
    return all(abs(made / pace - counted) <= 1 for made, counted in parts)


def _built_for_updates(
    evidence: Evidence, one: Counters, scheduler: Scheduler, length: float, tolerance: float, shifted: float
) -> bool | None:
    """Whether the schedule was meant to be stepped with the optimizer; None where nothing tells."""
    planned = evidence.number("max_steps")
    if scheduler.length is not None and planned and planned > 0:
        if abs(scheduler.length - planned) <= length * planned:
            return True
        speed = scheduler.counted / max(one.made or 1, 1)
        return False if abs(scheduler.length - speed * planned) <= max(length * speed * planned, 1.0) else None
    schedule = declared(evidence)
    if not isinstance(schedule, Schedule) or one.lr is None or schedule.derived or schedule.peak <= 0:
        return None
    return _follows(schedule, one, scheduler.counted, tolerance, shifted)


def _follows(schedule: Schedule, one: Counters, counted: int, tolerance: float, shifted: float) -> bool | None:
    """Whether the rate of a checkpoint is the schedule's at the scheduler's counter (True) or at the optimizer's."""
    made = one.made or 0
    at = np.array([made - 1, made, made + 1, counted - 1, counted, counted + 1])
    expected = schedule.at(np.maximum(at, 0))
    off = np.abs(expected - (one.lr or 0.0)) / schedule.peak
    own, other = float(off[3:].min()), float(off[:3].min())
    if other <= tolerance:
        return False if own > tolerance else None
    return True if own <= tolerance and other >= shifted else None


# -- the optimizer ----------------------------------------------------------------------------------------------------


@check(needs=["checkpoints", "groups", "settings:gradient_accumulation_steps"], facts=["times", "made", "at"])
def optimizer_steps_per_micro_batch(evidence: Evidence, *, least: int) -> Answer:
    """The optimizer has made exactly k times as many steps as the run, k being the number of accumulation steps.

    It is stepped after each micro-batch, so that nothing is accumulated. Two checkpoints must show it. least: steps of
    the run in the first of them.
    """
    times = evidence.number("gradient_accumulation_steps")
    if times is None or times < 2 or times != int(times):
        return []
    told = [one for one in counters(evidence) or [] if one.step and one.made and not one.trainer and one.scaler is None]
    pairs = [(a, b) for a, b in itertools.pairwise(told) if (a.step or 0) < (b.step or 0)]
    if not pairs:
        return Missing("two checkpoints with the step of the run and the optimizer's step counter")
    if not all((one.step or 0) >= least and one.made == times * (one.step or 0) for pair in pairs for one in pair):
        return []
    first = pairs[0][0]
    facts: dict[str, Fact] = {"times": times, "made": first.made, "at": first.step}
    return [Hit(first.step, None, "checkpoints", value=first.made, source=first.saved.source, facts=facts)]


CHECKS: tuple[Check, ...] = (scheduler_steps_per_update, optimizer_steps_per_micro_batch)
