"""Checks on the learning rate: its size, and the schedule it follows."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import polars as pl

from gradforensics import signals
from gradforensics.diagnosis.checks.loss import descending_loss, parked
from gradforensics.diagnosis.schedules import Schedule, declared, worst_departure
from gradforensics.diagnosis.vocabulary import Answer, Check, Missing, check, hit_at
from gradforensics.tables import Evidence, Series

_ADAM = re.compile(r"adam|lamb|adafactor", re.IGNORECASE)
_RATE = re.compile(r"(?:.*/)?(?:lr|learning_rate)\b|(?:.*/)?lr[-_]", re.IGNORECASE)
_CYCLIC = re.compile(r"restart|cycl|sgdr|plateau|one_?cycle", re.IGNORECASE)
_STILL = 1e-6  # relative; float32 rates that a log prints from one and the same number differ by less
_BEYOND = 1.1  # a run that ends where the faster schedule ends may simply count its steps in another unit
_MOST_STEPS = 256  # accumulation steps, processes or batches per epoch that a wrong stepping is looked for


def _rates(evidence: Evidence, *, steps: bool = False) -> Series | Missing:
    """The finite learning rates; with `steps` only where the log counts optimizer steps."""
    lr = evidence.series("lr")
    if lr is None or not len(lr.good):
        return Missing("series:lr")
    if steps and lr.step_unit != "step":
        return Missing(f"series:lr over optimizer steps (this log counts {lr.step_unit}s)")
    return lr.good


@check(needs=["series:lr:points>=10"], facts=["points", "share"])
def lr_identically_zero(evidence: Evidence, *, share: float) -> Answer:
    """Every logged learning rate, of every parameter group, is exactly 0, over `share` of the run or more."""
    lr = _rates(evidence)
    if isinstance(lr, Missing):
        return lr
    if any((evidence.frames[key].frame["value"] != 0).any() for key in evidence.keys("lr")):
        return []
    if _another_group_trains(evidence, lr):
        return []
    if lr.resolution > 0:
        return Missing("series:lr with more digits (it is printed as 0 to the last digit)")
    span = evidence.steps or (0, 0)
    covered = (float(lr.steps[-1] - lr.steps[0]) / (span[1] - span[0])) if span[1] > span[0] else 1.0
    if covered < share:
        return []
    return [hit_at(lr, 0, points=len(lr), share=covered)]


@check(needs=["series:loss:points>=20", "series:lr"], facts=["peak", "change", "level"])
def stands_still_at_tiny_lr(evidence: Evidence, *, tiny: float, change: float, errors: float) -> Answer:
    """The loss does not move over the whole record, and the learning rate never exceeds `tiny` (and is not 0).

    change: improvement from the first to the last tenth, as a fraction of the level, that still counts as standing
    still; errors: so does one within so many standard errors.
    """
    loss, lr = descending_loss(evidence), _rates(evidence)
    if isinstance(loss, Missing) or isinstance(lr, Missing):
        return loss if isinstance(loss, Missing) else lr  # type: ignore[return-value]  # one of them is Missing
    peak = float(lr.values.max())
    if not 0 < peak <= tiny:
        return []
    level = float(np.median(loss.values))
    part = max(5, len(loss) // 10)
    fallen = float(np.median(loss.values[:part]) - np.median(loss.values[-part:]))
    # the median of k points of normal noise has a standard error of sqrt(pi / 2k) sd; two of them are compared
    doubt = signals.noise_sd(loss.values) * math.sqrt(math.pi / part)
    moved = fallen / max(abs(level), 1e-12)
    if abs(moved) > change and abs(fallen) > errors * doubt:
        return []  # it falls, or it rises: either way the parameters move
    return [hit_at(loss, 0, peak=peak, change=-moved, level=level)]


def _recipe_bound(evidence: Evidence, lora: float, pretrain: float, width: float) -> float | Missing:
    """The largest rate of published recipes: `lora` for adapters, else `pretrain` x sqrt(`width` / hidden size)."""
    optimizer, hidden = str(evidence.setting("optim")), evidence.number("hidden_size")
    if not _ADAM.search(optimizer):
        return Missing(f"a bound for the optimizer {optimizer!r}")
    if evidence.setting("peft_type"):
        return lora
    return pretrain * float(np.sqrt(width / hidden)) if hidden and hidden > 0 else Missing("settings:hidden_size")


@check(needs=["series:lr", "settings:optim", "series:loss"], facts=["peak", "bound", "optimizer"])
def lr_above_recipe(evidence: Evidence, *, lora: float, pretrain: float, width: float) -> Answer:
    """An Adam-like optimizer runs above the bound of published recipes.

    Declared to read the loss too: a large rate alone is no evidence of harm, and so never confirms a sign of the loss.
    """
    lr, bound = _rates(evidence), _recipe_bound(evidence, lora, pretrain, width)
    if isinstance(lr, Missing):
        return lr
    if isinstance(bound, Missing):
        return bound
    above = np.flatnonzero(lr.values > bound)
    if not len(above):
        return []
    peak, optimizer = float(lr.values.max()), str(evidence.setting("optim"))
    return [hit_at(lr, int(above[0]), peak=peak, bound=bound, optimizer=optimizer)]


@check(
    needs=["series:loss:points>=20", "settings:unigram_entropy", "settings:vocab_size", "series:lr", "settings:optim"],
    facts=["level", "entropy", "chance", "peak_lr", "bound"],
)
def parks_at_unigram_above_recipe(
    evidence: Evidence, *, tolerance: float, share: float, lora: float, pretrain: float, width: float
) -> Answer:
    """As parks_at_unigram, at a learning rate above every published recipe for this optimizer and width."""
    found, lr, bound = (
        parked(evidence, tolerance, share),
        _rates(evidence),
        _recipe_bound(evidence, lora, pretrain, width),
    )
    if isinstance(found, Missing) or not found:
        return found
    if isinstance(lr, Missing):
        return lr
    if isinstance(bound, Missing):
        return bound
    peak = float(lr.values.max())
    return [replace(hit, facts={**hit.facts, "peak_lr": peak, "bound": bound}) for hit in found] if peak > bound else []


def _declared_and_rates(evidence: Evidence) -> tuple[Schedule, Series] | Missing:
    lr, schedule = _rates(evidence, steps=True), declared(evidence)
    if isinstance(lr, Missing):
        return lr
    return Missing(*schedule) if isinstance(schedule, list) else (schedule, lr)


def _departs(schedule: Schedule, lr: Series, tolerance: float, share: float, speed: float = 1.0) -> np.ndarray | None:
    """bool (n,): the points off the schedule, or None where no more than `share` of them are."""
    off = worst_departure(schedule, lr.steps, lr.values, speed) > tolerance
    return off if float(off.mean()) > share else None


def _best_speed(schedule: Schedule, lr: Series, tolerance: float, share: float) -> float | None:
    """The factor at which the schedule was stepped too fast or too slowly, or None where none explains the log."""
    few = lr.where(np.isin(np.arange(len(lr)), np.linspace(0, len(lr) - 1, 400).astype(int)))
    fits = [
        (float(np.mean(worst_departure(schedule, few.steps, few.values, speed))), speed)
        for k in range(2, _MOST_STEPS + 1)
        for speed in (float(k), 1.0 / k)
    ]
    best = min(fits)[1]
    if _departs(schedule, lr, tolerance, share, best) is not None:
        return None
    # a speed is read off the decay; a warm-up alone fits any that is fast enough
    decaying = schedule.at(lr.steps, best)[lr.steps * best >= schedule.warmup]
    moved = float(np.ptp(decaying)) if len(decaying) else 0.0
    return best if schedule.shape != "constant" and (best < 1 or moved > 0.1 * schedule.peak) else None


@check(
    needs=["series:lr:points>=10", "settings:lr_scheduler_type", "settings:max_steps", "settings:learning_rate"],
    facts=["scheduler", "speed", "slowness", "departure"],
)
def schedule_warped(evidence: Evidence, *, tolerance: float, share: float, direction: str) -> Answer:
    """The learning rate follows the declared schedule, stepped k times too often (`faster`) or too rarely (`slower`).

    tolerance: fraction of the peak; share: part of the points that may lie outside it (detector D17).
    """
    both = _declared_and_rates(evidence)
    if isinstance(both, Missing):
        return both
    schedule, lr = both
    off = _departs(schedule, lr, tolerance, share)
    if off is None or _is_constant(schedule, lr):
        return []
    speed = _best_speed(schedule, lr, tolerance, share)
    if speed is None:
        return []
    doubt = _unit_doubt(evidence, schedule, lr, speed)
    if doubt is not None or (speed > 1) != (direction == "faster"):
        return doubt or []
    worst = float(worst_departure(schedule, lr.steps, lr.values).max())
    return [
        hit_at(
            lr, int(np.flatnonzero(off)[0]), scheduler=schedule.name, speed=speed, slowness=1 / speed, departure=worst
        )
    ]


def _unit_doubt(evidence: Evidence, schedule: Schedule, lr: Series, speed: float) -> Missing | None:
    """What is missing to tell a wrong stepping from a log that counts its steps in another unit than the settings."""
    last = evidence.steps[1] if evidence.steps else int(lr.steps[-1])
    if speed > 1 and last < _BEYOND * schedule.total / speed:
        return Missing(f"steps beyond {schedule.total / speed:.0f} (max_steps may count micro-batches)")
    if speed < 1 and (last < schedule.total / 2 or last >= 0.9 * schedule.total / speed):
        return Missing("a run that ends near max_steps (the log may count steps in another unit)")
    return None


def _is_constant(schedule: Schedule, lr: Series) -> bool:
    """Whether the rate stands still after its warm-up although the schedule should have moved by now."""
    after = lr.where(lr.steps >= schedule.warmup)
    if len(after) < 5:
        return False
    expected = schedule.at(after.steps)
    still = float(np.ptp(after.values)) <= max(_STILL * float(after.values.max()), lr.resolution)
    return still and float(np.ptp(expected)) > 0.1 * schedule.peak and float(after.values.max()) > 0


@check(
    needs=["series:lr:points>=10", "settings:lr_scheduler_type", "settings:max_steps", "settings:learning_rate"],
    facts=["scheduler", "value", "departure"],
)
def schedule_not_attached(evidence: Evidence, *, tolerance: float, share: float) -> Answer:
    """The declared schedule decays, the logged learning rate stands still."""
    both = _declared_and_rates(evidence)
    if isinstance(both, Missing):
        return both
    schedule, lr = both
    off = _departs(schedule, lr, tolerance, share)
    if off is None or not _is_constant(schedule, lr):
        return []
    worst = float(worst_departure(schedule, lr.steps, lr.values).max())
    return [
        hit_at(
            lr, int(np.flatnonzero(off)[0]), scheduler=schedule.name, value=float(np.median(lr.values)), departure=worst
        )
    ]


@check(
    needs=["series:lr:points>=10", "settings:lr_scheduler_type", "settings:max_steps", "settings:learning_rate"],
    facts=["scheduler", "departure"],
)
def schedule_departs(evidence: Evidence, *, tolerance: float, share: float) -> Answer:
    """The learning rate departs from the declared schedule in a way that no wrong stepping explains."""
    both = _declared_and_rates(evidence)
    if isinstance(both, Missing):
        return both
    schedule, lr = both
    off = _departs(schedule, lr, tolerance, share)
    if off is None or _is_constant(schedule, lr):
        return []
    speed = _best_speed(schedule, lr, tolerance, share)
    if speed is not None:
        return _unit_doubt(evidence, schedule, lr, speed) or []
    worst = float(worst_departure(schedule, lr.steps, lr.values).max())
    return [hit_at(lr, int(np.flatnonzero(off)[0]), scheduler=schedule.name, departure=worst)]


def _another_group_trains(evidence: Evidence, lr: Series) -> bool:
    """Whether the rate of another parameter group is above 0 at the end: groups may be frozen on purpose."""
    for key, stored in evidence.frames.items():
        if _RATE.match(key.tag) and (key.tag, key.source) != (lr.tag, lr.source) and key.phase == "train":
            last = stored.frame.filter(pl.col("step") >= int(lr.steps[-1]))["value"].drop_nulls()
            if len(last) and float(last[-1]) > 0:
                return True
    return False


@check(needs=["series:lr:points>=10", "series:loss"], facts=["idle", "peak"])
def schedule_ended_early(evidence: Evidence, *, idle: float, points: int) -> Answer:
    """After positive values the learning rate is exactly 0 for `idle` of the run or more."""
    lr, loss = _rates(evidence), evidence.series("loss")
    if isinstance(lr, Missing) or loss is None:
        return lr if isinstance(lr, Missing) else Missing("series:loss")
    positive = np.flatnonzero(lr.values > 0)
    if not len(positive):
        return []
    first = int(positive[-1]) + 1
    if len(lr) - first < points or _another_group_trains(evidence, lr):
        return []
    if lr.resolution > 0:
        return Missing("series:lr with more digits (it is printed as 0 to the last digit)")
    span = max(int(lr.steps[-1]), int(loss.steps[-1])) - int(lr.steps[0])
    share = (max(int(lr.steps[-1]), int(loss.steps[-1])) - int(lr.steps[first])) / span if span > 0 else 0.0
    return [hit_at(lr, first, idle=share, peak=float(lr.values.max()))] if share >= idle else []


@check(needs=["series:lr:points>=20"], facts=["before", "fell_to", "again", "scheduler"])
def schedule_restarted(evidence: Evidence, *, fall: float, again: float, start: float, jump: float) -> Answer:
    """The learning rate jumps down to `fall` of its value or less and then warms up again to `again` of it.

    start: part of the run at its beginning that is left out; jump: how many times larger the fall must be than the
    change before it: a rate that glides down and up again belongs to a cycle. Falls at equal distances are a cycle too,
    and a schedule that is declared to restart is not judged.
    """
    lr = _rates(evidence)
    if isinstance(lr, Missing):
        return lr
    scheduler = str(evidence.setting("lr_scheduler_type") or "")
    if _CYCLIC.search(scheduler):
        return Missing(f"a schedule without restarts (this one is {scheduler!r})")
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
            before, low, high = float(values[i - 1]), float(values[i]), float(climb[peak])
            found.append(hit_at(lr, i, before=before, fell_to=low, again=high, scheduler=scheduler))
    if len(found) > 2 and np.ptp(np.diff([h.step or 0 for h in found])) <= 2 * lr.cadence:
        return Missing("a schedule that does not restart regularly")
    return found[:1]


@check(
    needs=["series:lr:points>=20", "settings:lr_scheduler_type", "settings:max_steps", "settings:learning_rate"],
    facts=["before", "fell_to", "again", "scheduler"],
)
def schedule_begun_anew(evidence: Evidence, *, tolerance: float, share: float) -> Answer:
    """Up to some step the rate follows the declared schedule, from there on the same schedule begun anew."""
    both = _declared_and_rates(evidence)
    if isinstance(both, Missing):
        return both
    schedule, lr = both
    if _departs(schedule, lr, tolerance, share) is None:
        return []
    jumps = np.argsort(-np.abs(np.diff(lr.values)))[:3] + 1
    for i in sorted(int(i) for i in jumps if 3 <= i < len(lr) - 3):
        old, new = lr.where(np.arange(len(lr)) < i), lr.where(np.arange(len(lr)) >= i)
        if abs(float(lr.values[i] - lr.values[i - 1])) <= tolerance * schedule.peak:
            continue
        shifted = replace(new, steps=new.steps - int(old.steps[-1]))
        if _departs(schedule, old, tolerance, share) is None and _departs(schedule, shifted, tolerance, share) is None:
            before, low, high = float(lr.values[i - 1]), float(lr.values[i]), float(new.values.max())
            return [hit_at(lr, i, before=before, fell_to=low, again=high, scheduler=schedule.name)]
    return []


CHECKS: tuple[Check, ...] = (
    lr_identically_zero,
    stands_still_at_tiny_lr,
    lr_above_recipe,
    parks_at_unigram_above_recipe,
    schedule_begun_anew,
    schedule_warped,
    schedule_not_attached,
    schedule_departs,
    schedule_ended_early,
    schedule_restarted,
)
