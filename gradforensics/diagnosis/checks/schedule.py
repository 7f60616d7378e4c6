"""Checks on the schedule of the learning rate: the one that was declared, and the one that the log shows."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import numpy as np

from gradforensics import schedule_signals
from gradforensics.diagnosis.checks.learning_rate import another_group_trains, rates
from gradforensics.diagnosis.resumes import resumes
from gradforensics.diagnosis.schedules import (
    Schedule,
    declared,
    others_declared,
    planned_steps,
    steps_per_epoch,
    worst_departure,
)
from gradforensics.diagnosis.vocabulary import Answer, Check, Hit, Missing, check, hit_at
from gradforensics.patterns import lazy
from gradforensics.tables import Evidence, Series

_CYCLIC = lazy(r"restart|cycl|sgdr|plateau|one_?cycle", re.IGNORECASE)
_STILL = 1e-6  # relative; float32 rates that a log prints from one and the same number differ by less
_BEYOND = 1.1  # a run that ends where the faster schedule ends may simply count its steps in another unit
_MOST_STEPS = 256  # accumulation steps, processes or batches per epoch that a wrong stepping is looked for
_MANY = 20_000  # logged points beyond which only some are compared with a schedule
_WAVE = 20  # logged points that one wave of a cosine must have
_NEAR = 0.05  # relative: a speed read off a log is that of an epoch or of a number of processes
DECLARED = ["series:lr:points>=10", "settings:lr_scheduler_type", "settings:learning_rate"]


def declared_and_rates(evidence: Evidence) -> tuple[Schedule, Series] | Missing:
    """The declared schedule and the logged rates, of a very long log some 20 000 points at equal distances."""
    lr, schedule = rates(evidence, steps=True), declared(evidence)
    if isinstance(lr, Missing):
        return lr
    return Missing(*schedule) if isinstance(schedule, list) else (schedule, _thinned(evidence, lr))


def _thinned(evidence: Evidence, lr: Series) -> Series:
    every = -(-len(lr) // _MANY)
    return lr if every == 1 else evidence.once("thinned lr", lambda: lr.where(np.arange(len(lr)) % every == 0))


def _off(schedules: list[Schedule], lr: Series, tolerance: float, share: float) -> np.ndarray | None:
    """bool (n,): the points off every one of the schedules, or None where no more than `share` of them are."""
    if schedules[0].peak <= 0:
        return None
    gaps = np.array([worst_departure(s, lr.steps, lr.values) * s.peak / schedules[0].peak for s in schedules])
    off: np.ndarray = gaps.min(axis=0) > tolerance
    return off if float(off.mean()) > share else None


def _departs(evidence: Evidence, schedule: Schedule, lr: Series, tolerance: float, share: float) -> np.ndarray | None:
    """bool (n,): the points off the declared schedule and off that of every other declared launch, or None."""
    wanted = ("departs", schedule, len(lr), tolerance, share)
    found: np.ndarray | None = evidence.once(
        wanted, lambda: _off([schedule, *others_declared(evidence)], lr, tolerance, share)
    )
    return found


def _explains(schedule: Schedule, lr: Series, tolerance: float, share: float, speed: float) -> bool:
    return float((worst_departure(schedule, lr.steps, lr.values, speed) > tolerance).mean()) <= share


def _known_counts(evidence: Evidence, lr: Series) -> list[float]:
    """What a schedule may be stepped by instead of by steps: accumulation steps, processes, steps of an epoch."""
    micro, split = evidence.number("gradient_accumulation_steps") or 1.0, _processes(evidence) or 1.0
    return [k for k in (micro, split, micro * split, steps_per_epoch(evidence) or 1.0, _stair(lr)) if k > 1]


def _stair(lr: Series) -> float:
    """Steps from one move of the rate to the next: 1 or the cadence of the log where it moves all the time."""
    moves = lr.steps[np.flatnonzero(np.diff(lr.values) != 0) + 1]
    return float(np.median(np.diff(moves))) if len(moves) > 2 else 1.0


def _best_speed(evidence: Evidence, schedule: Schedule, lr: Series, tolerance: float, share: float) -> float | None:
    """The factor at which the schedule was stepped too fast or too slowly, or None where none explains the log."""
    if schedule.shape == "constant" and schedule.warmup == 0:
        return None

    def fitting(shape: Schedule, speed: float) -> bool:
        return _explains(shape, lr, tolerance, share, speed)

    few = lr.where(np.isin(np.arange(len(lr)), np.linspace(0, len(lr) - 1, 400).astype(int)))
    known = _known_counts(evidence, lr)
    often = sorted({float(k) for k in range(2, _MOST_STEPS + 1)} | set(known))
    shapes = [schedule, replace(schedule, wraps=True)] if schedule.shape == "cosine" else [schedule]
    fits = []
    for shape in shapes:
        # a wave that the log does not resolve fits anything
        most = 2 * schedule.total / (_WAVE * max(lr.cadence, 1.0)) if shape.wraps else math.inf
        for speed in [*(1 / k for k in often), *(k for k in often if k <= most)]:
            off = float(np.mean(worst_departure(shape, few.steps, few.values, speed) > tolerance))
            raw = float(np.mean(np.abs(shape.at(few.steps, speed) - few.values)))
            fits.append((off > share, raw, speed, shape))
    missed, _, best, shape = min(fits, key=lambda f: f[:2])
    if missed or not fitting(shape, best):
        return None
    best = next((s for k in known for s in (k, 1 / k) if abs(s / best - 1) <= 2 * _NEAR and fitting(shape, s)), best)
    # a speed is read off the decay; a warm-up alone fits any that is fast enough
    decaying = shape.at(lr.steps, best)[lr.steps * best >= shape.warmup]
    moved = float(np.ptp(decaying)) if len(decaying) else 0.0
    return best if best < 1 or (schedule.shape != "constant" and moved > 0.1 * schedule.peak) else None


def _processes(evidence: Evidence) -> float | None:
    return evidence.number("world_size")


def _kind(evidence: Evidence, lr: Series, speed: float) -> str:
    """The fault that a factor speaks of: a variant of the rule."""
    if speed < 1:
        stair = _stair(lr)
        lengths = [steps_per_epoch(evidence) or 0.0, stair if stair > 2 * lr.cadence else 0.0]
        return "per-epoch" if any(abs(length * speed - 1) <= _NEAR for length in lengths) else "too-slow"
    accumulated = evidence.number("gradient_accumulation_steps") == speed
    split = _processes(evidence) == speed
    if accumulated != split:
        return "per-micro-batch" if accumulated else "per-process"
    return "too-fast"


@check(needs=DECLARED, facts=["scheduler", "speed", "slowness", "departure"])
def schedule_warped(evidence: Evidence, *, tolerance: float, share: float, kind: str) -> Answer:
    """The learning rate follows the declared schedule, stepped k times too often or too rarely (detector D17).

    tolerance: fraction of the peak; share: part of the points that may lie outside it. kind: per-micro-batch (k is the
    number of accumulation steps), per-process (that of processes), per-epoch (1 / k is that of steps per epoch),
    too-fast or too-slow (any other k).
    """
    both = declared_and_rates(evidence)
    if isinstance(both, Missing):
        return both
    schedule, lr = both
    off = _departs(evidence, schedule, lr, tolerance, share)
    if off is None or is_constant(schedule, lr):
        return []
    found = _speed(evidence, schedule, lr, tolerance, share)
    if found is None or isinstance(found, Missing):
        return found or []
    if _kind(evidence, lr, found) != kind:
        return []
    worst = float(worst_departure(schedule, lr.steps, lr.values).max())
    return [_warp_hit(lr, int(np.flatnonzero(off)[0]), schedule, found, worst)]


def _warp_hit(lr: Series, index: int, schedule: Schedule, speed: float, worst: float) -> Hit:
    return hit_at(lr, index, scheduler=schedule.name, speed=speed, slowness=1 / speed, departure=worst)


def _speed(
    evidence: Evidence, schedule: Schedule, lr: Series, tolerance: float, share: float
) -> float | Missing | None:
    """The factor at which the declared schedule was stepped; Missing where the log may count in another unit."""
    speed = evidence.once(("speed", tolerance, share), lambda: _best_speed(evidence, schedule, lr, tolerance, share))
    doubt = _unit_doubt(evidence, schedule, lr, speed) if speed is not None else None
    return doubt or speed


def _unit_doubt(evidence: Evidence, schedule: Schedule, lr: Series, speed: float) -> Missing | None:
    """What is missing to tell a wrong stepping from a log that counts its steps in another unit than the settings."""
    if schedule.derived:  # the plan was counted in the unit of the log
        return None
    last = evidence.steps[1] if evidence.steps else int(lr.steps[-1])
    if speed > 1 and last < _BEYOND * schedule.total / speed:
        return Missing(f"steps beyond {schedule.total / speed:.0f} (max_steps may count micro-batches)")
    if speed < 1 and (last < schedule.total / 2 or last >= 0.9 * schedule.total / speed):
        return Missing("a run that ends near max_steps (the log may count steps in another unit)")
    return None


def is_constant(schedule: Schedule, lr: Series) -> bool:
    """Whether the rate stands still after its warm-up although the schedule should have moved by now."""
    after = lr.where(lr.steps >= schedule.warmup)
    if len(after) < 5:
        return False
    expected = schedule.at(after.steps)
    still = float(np.ptp(after.values)) <= max(_STILL * float(after.values.max()), lr.resolution)
    return still and float(np.ptp(expected)) > 0.1 * schedule.peak and float(after.values.max()) > 0


@check(needs=DECLARED, facts=["scheduler", "value", "departure"])
def schedule_not_attached(evidence: Evidence, *, tolerance: float, share: float) -> Answer:
    """The declared schedule decays, the logged learning rate stands still."""
    both = declared_and_rates(evidence)
    if isinstance(both, Missing):
        return both
    schedule, lr = both
    off = _departs(evidence, schedule, lr, tolerance, share)
    if off is None or not is_constant(schedule, lr):
        return []
    worst = float(worst_departure(schedule, lr.steps, lr.values).max())
    first, value = int(np.flatnonzero(off)[0]), float(np.median(lr.values))
    return [hit_at(lr, first, scheduler=schedule.name, value=value, departure=worst)]


@check(needs=DECLARED, facts=["scheduler", "departure"])
def schedule_departs(evidence: Evidence, *, tolerance: float, share: float) -> Answer:
    """The learning rate departs from the declared schedule in a way that no wrong stepping explains."""
    both = declared_and_rates(evidence)
    if isinstance(both, Missing):
        return both
    schedule, lr = both
    off = _departs(evidence, schedule, lr, tolerance, share)
    if off is None or is_constant(schedule, lr):
        return []
    speed = _speed(evidence, schedule, lr, tolerance, share)
    if speed is not None:
        return speed if isinstance(speed, Missing) else []
    worst = float(worst_departure(schedule, lr.steps, lr.values).max())
    return [hit_at(lr, int(np.flatnonzero(off)[0]), scheduler=schedule.name, departure=worst)]


def _fitted(evidence: Evidence, tolerance: float) -> tuple[schedule_signals.Fitted, Series] | Missing:
    """The schedule that the log itself shows."""
    every = rates(evidence, steps=True)
    if isinstance(every, Missing):
        return every
    lr = _thinned(evidence, every)
    found = evidence.once(
        ("fitted", tolerance), lambda: schedule_signals.fit(lr.steps, lr.values, lr.resolution, tolerance)
    )
    return (found, lr) if found is not None else Missing("settings:lr_scheduler_type")


@check(needs=["series:lr:points>=10"], facts=["scheduler", "speed", "slowness", "length", "planned"])
def decay_of_another_length(evidence: Evidence, *, tolerance: float, near: float, kind: str) -> Answer:
    """The rate decays along a known shape whose length is the planned number of steps divided or multiplied by k.

    Reads the shape off the log, so that no schedule need be declared; k must be the number of accumulation steps or of
    processes. A decay that ends where the run was planned to end, or where it does end, acquits. kind: as in
    schedule_warped; tolerance: worst residual, fraction of the peak; near: relative error of a length.
    """
    found = _fitted(evidence, tolerance)
    if isinstance(found, Missing):
        return found
    shown, lr = found
    if not math.isfinite(shown.total):
        return Missing("settings:lr_scheduler_type")
    plan = planned_steps(evidence)
    ends = [plan[0]] if plan else [float(lr.steps[-1])]
    ends += [decay] if (decay := evidence.number("decay_steps")) else []
    if any(abs(shown.total / end - 1) <= near for end in ends):
        return []
    if plan is None:
        return Missing("settings:max_steps")
    speed = plan[0] / shown.total
    steps = {evidence.number("gradient_accumulation_steps") or 1.0, _processes(evidence) or 1.0} - {1.0}
    known = [k for k in steps if abs(max(speed, 1 / speed) / k - 1) <= near]
    if not known:
        return Missing("settings:lr_scheduler_type")
    exact = known[0] if speed > 1 else 1 / known[0]
    last = float(lr.steps[-1])
    if (speed > 1 and last < _BEYOND * shown.total) or (speed < 1 and not 0.9 <= last / plan[0] <= _BEYOND):
        return Missing("a run that ends near max_steps (the log may count steps in another unit)")
    if _kind(evidence, lr, exact) != kind:
        return []
    first = int(np.searchsorted(lr.steps, shown.begin))
    facts: dict[str, Any] = {"scheduler": shown.shape, "speed": exact, "slowness": 1 / exact}
    return [hit_at(lr, min(first, len(lr) - 1), facts, length=shown.total, planned=plan[0])]


@check(needs=["events:console"], facts=["about"])
def stepped_in_wrong_order(evidence: Evidence, *, scaled: str) -> Answer:
    """torch warned that the scheduler was stepped before the optimizer, and no loss scaler can have caused it.

    With a loss scaler the first optimizer step may have been skipped in the opening search, which is no mistake; then
    the answer is []. scaled: "no" asks that the settings rule a scaler out, "unknown" that they do not speak of one.
    """
    lines = [e for e in evidence.events_of("warning") if str(e.data.get("about", "")).startswith("lr_scheduler.step()")]
    if not lines or _has_scaler(evidence) is True:
        return []
    if (_has_scaler(evidence) is False) != (scaled == "no"):
        return []
    first = lines[0]
    return [Hit(first.step, source=first.source, line=first.line, facts={"about": str(first.data["about"])})]


def _has_scaler(evidence: Evidence) -> bool | None:
    """Whether a loss scaler was at work; None where nothing tells."""
    precision = str(evidence.setting("precision") or "").lower()
    if evidence.setting("fp16") is True or evidence.series("loss_scale") or evidence.events_of("overflow"):
        return True
    if precision.startswith(("16-mixed", "16", "fp16", "float16")):
        return True
    if evidence.setting("bf16") is True or precision.startswith(("bf16", "32", "64", "fp32", "float32", "bfloat16")):
        return False
    return False if evidence.setting("fp16") is False else None


@check(needs=["series:lr:points>=10", "series:loss"], facts=["idle", "peak"])
def schedule_ended_early(evidence: Evidence, *, idle: float, points: int) -> Answer:
    """After positive values the learning rate is exactly 0 for `idle` of the run or more."""
    lr, loss = rates(evidence), evidence.series("loss")
    if isinstance(lr, Missing) or loss is None:
        return lr if isinstance(lr, Missing) else Missing("series:loss")
    positive = np.flatnonzero(lr.values > 0)
    if not len(positive):
        return []
    first = int(positive[-1]) + 1
    if len(lr) - first < points or another_group_trains(evidence, lr):
        return []
    if lr.resolution > 0:
        return Missing("series:lr with more digits (it is printed as 0 to the last digit)")
    span = max(int(lr.steps[-1]), int(loss.steps[-1])) - int(lr.steps[0])
    share = (max(int(lr.steps[-1]), int(loss.steps[-1])) - int(lr.steps[first])) / span if span > 0 else 0.0
    return [hit_at(lr, first, idle=share, peak=float(lr.values.max()))] if share >= idle else []


def _cyclic(evidence: Evidence) -> Missing | None:
    scheduler = str(evidence.setting("lr_scheduler_type") or "")
    return Missing(f"a schedule without restarts (this one is {scheduler!r})") if _CYCLIC.search(scheduler) else None


@check(needs=["series:lr:points>=20"], facts=["before", "fell_to", "again", "scheduler"])
def schedule_restarted(evidence: Evidence, *, fall: float, again: float, start: float, jump: float) -> Answer:
    """The learning rate jumps down to `fall` of its value or less and then warms up again to `again` of it.

    start: part of the run at its beginning that is left out; jump: how many times larger the fall must be than the
    change before it: a rate that glides down and up again belongs to a cycle. Falls at equal distances are a cycle too,
    and a schedule that is declared to restart is not judged.
    """
    lr = rates(evidence)
    if isinstance(lr, Missing):
        return lr
    if (cyclic := _cyclic(evidence)) is not None:
        return cyclic
    found = [_restart_hit(evidence, lr, *place) for place in restarts(lr, fall, again, start, jump)]
    if len(found) > 2 and np.ptp(np.diff([h.step or 0 for h in found])) <= 2 * lr.cadence:
        return Missing("a schedule that does not restart regularly")
    return found[:1]


def _restart_hit(evidence: Evidence, lr: Series, index: int, high: float) -> Hit:
    before, low = float(lr.values[index - 1]), float(lr.values[index])
    scheduler = str(evidence.setting("lr_scheduler_type") or "")
    return hit_at(lr, index, before=before, fell_to=low, again=high, scheduler=scheduler)


def restarts(lr: Series, fall: float, again: float, start: float, jump: float) -> list[tuple[int, float]]:
    """(index of the first point after it, rate that it climbs to) of every fall that a new warm-up follows."""
    values, first, top = lr.values, max(2, int(len(lr) * start)), float(lr.values.max())
    drop = values[:-1] - values[1:]
    fallen = np.flatnonzero((values[:-1] > 0.1 * top) & (values[1:] <= fall * values[:-1])) + 1
    found = []
    for i in (int(i) for i in fallen if first <= i < len(values) - 3):
        climb = values[i:]
        peak = int(np.argmax(climb))
        # a warm-up takes several points on its way up; a single odd value does not
        rises = climb[peak] >= again * values[i - 1] and peak >= 3 and bool(np.all(np.diff(climb[: peak + 1]) >= 0))
        if rises and drop[i - 1] >= jump * abs(drop[i - 2]):
            found.append((i, float(climb[peak])))
    return found


@check(needs=["series:lr:points>=20"], facts=["before", "fell_to", "again", "scheduler"])
def schedule_repeats_at_resume(evidence: Evidence, *, tolerance: float, moved: float, points: int) -> Answer:
    """At a resume the rate leaves its course and runs through the same values as from the first step of the run.

    Needs no declared schedule. tolerance: fraction of the peak; moved: part of the peak by which the rate must jump and
    by which the repeated part must vary; points: that are compared at the least.
    """
    lr = rates(evidence)
    if isinstance(lr, Missing):
        return lr
    if (cyclic := _cyclic(evidence)) is not None:
        return cyclic
    peak = float(lr.values.max())
    for resume in resumes(evidence):
        index = int(np.searchsorted(lr.steps, resume.step))
        if resume.again or not 3 <= index <= len(lr) - points:
            continue
        new = lr.where(np.arange(len(lr)) >= index)
        count = min(len(new), index)
        old = np.interp(new.steps[:count] - resume.last, lr.steps[:index] - lr.steps[0] + 1, lr.values[:index])
        same = bool((np.abs(old - new.values[:count]) <= tolerance * peak).all())
        jumped = abs(float(lr.values[index] - lr.values[index - 1])) > moved * peak
        if count >= points and same and jumped and float(np.ptp(old)) > moved * peak:
            return [_restart_hit(evidence, lr, index, float(new.values.max()))]
    return []


@check(needs=[*DECLARED, "series:lr:points>=20"], facts=["before", "fell_to", "again", "scheduler"])
def schedule_begun_anew(evidence: Evidence, *, tolerance: float, share: float) -> Answer:
    """Up to some step the rate follows the declared schedule, from there on the same schedule begun anew."""
    both = declared_and_rates(evidence)
    if isinstance(both, Missing):
        return both
    schedule, lr = both
    if _departs(evidence, schedule, lr, tolerance, share) is None:
        return []
    jumps = np.argsort(-np.abs(np.diff(lr.values)))[:3] + 1
    for i in sorted(int(i) for i in jumps if 3 <= i < len(lr) - 3):
        old, new = lr.where(np.arange(len(lr)) < i), lr.where(np.arange(len(lr)) >= i)
        if abs(float(lr.values[i] - lr.values[i - 1])) <= tolerance * schedule.peak:
            continue
        shifted = replace(new, steps=new.steps - int(old.steps[-1]))
        if _off([schedule], old, tolerance, share) is None and _off([schedule], shifted, tolerance, share) is None:
            return [_restart_hit(evidence, lr, i, float(new.values.max()))]
    return []


CHECKS: tuple[Check, ...] = (
    schedule_begun_anew,
    schedule_warped,
    schedule_not_attached,
    schedule_departs,
    schedule_ended_early,
    schedule_restarted,
    schedule_repeats_at_resume,
    decay_of_another_length,
    stepped_in_wrong_order,
)
