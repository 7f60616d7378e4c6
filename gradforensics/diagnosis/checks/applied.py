"""Checks on what Adam really applied, recovered from two checkpoints one optimizer step apart (detector D11)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from gradforensics import applied_rates as ar
from gradforensics import checkpoint_signals as cs
from gradforensics import logged_rates
from gradforensics.diagnosis import schedules
from gradforensics.diagnosis.vocabulary import Answer, Check, Fact, Hit, Missing, check
from gradforensics.tables import Evidence, Series

_UNITS = 300.0  # a log and an optimizer whose peaks lie further apart do not count in one unit
_ONE = 0.01  # relative: rates of groups that are one


@check(needs=["travels:one-update", "groups"], facts=["applied", "saved", "times", "group", "groups", "checkpoint"])
def applied_rate_is_not_saved(evidence: Evidence, *, tolerance: float) -> Answer:
    """In a step between two checkpoints, Adam applied a rate that neither holds for the group (detector D11).

    Which of the two was to be applied depends on when the scheduler is stepped. tolerance: of the rate, besides the
    error that the recovered one may have. Not asked: whether weights that did not move at all were written back.
    """
    hits: list[Hit] = []
    judged, silent_until = False, None
    for one in ar.told(evidence):
        rates = [rate for rate in one.rates if rate.lr > 0.0 and rate.saved is not None and rate.saved[1] > 0.0]
        judged |= bool(rates)
        wrong = [(rate, saved) for rate in rates if (saved := _unlike_saved(rate, tolerance)) is not None]
        if not wrong:
            silent_until = one.pair.last.step
            continue
        rate, saved = max(wrong, key=lambda item: abs(np.log(item[0].lr / max(item[1], 1e-30))))
        facts: dict[str, Fact] = {"applied": rate.lr, "saved": saved, "times": rate.lr / saved if saved else 0.0}
        facts |= {"group": rate.last.number, "groups": len(wrong), "checkpoint": one.pair.last.path}
        hits.append(_hit(one.pair, rate, rate.lr, facts, after=silent_until))
    return hits if judged else Missing(*ar.lacking(evidence))


def _unlike_saved(rate: ar.Rate, tolerance: float) -> float | None:
    """The saved rate that comes nearest, where the applied one is none of those between the two; else None."""
    if rate.saved is None:
        return None
    low, high = rate.saved
    likely = [rate.lr] if rate.uncorrected is None else [rate.lr, rate.uncorrected]
    if any(low * (1.0 - tolerance) - rate.lr_error <= lr <= high * (1.0 + tolerance) + rate.lr_error for lr in likely):
        return None
    return low if rate.lr < low else high


def _hit(pair: cs.Pair, rate: ar.Rate, value: float, facts: dict[str, Fact], after: int | None = None) -> Hit:
    return Hit(pair.last.step, after, "travels", None, value, pair.last.source, None, cs.plain(rate.names[0]), facts)


@check(needs=["travels:one-update", "groups", "series:lr"], facts=["applied", "scheduled", "peak", "checkpoint"])
def applied_rate_stands_while_logged_moves(evidence: Evidence, *, tolerance: float, moving: float) -> Answer:
    """Adam applied the one rate that both checkpoints hold, and the log shows another one of a schedule there.

    tolerance: of the rate. moving: part of its peak by which the logged rate moves over the run: a logged constant is
    often a mere setting. Not judged where groups have several rates and none is the logged one, or where weights move
    that no group has.
    """
    logs = _schedules(evidence, moving)
    if isinstance(logs, Missing):
        return logs
    hits: list[Hit] = []
    lacking = ar.lacking(evidence)
    judged, silent_until = False, None
    for one in ar.told(evidence):
        saved = _single(evidence, one.pair)
        rate = next((rate for rate in one.rates if rate.lr > 0.0), None)
        windows = _windows(evidence, logs, one.pair.last.step or 0)
        if rate is None or one.pair.steps != 1 or not windows:
            continue
        peak = max(float(log.values.max()) for log in logs)
        known = [*_rates(evidence, one.pair), rate.lr]
        if any(w.holds(lr, tolerance, peak) for w in windows for lr in known):
            judged, silent_until = True, one.pair.last.step
        elif isinstance(saved, str):
            lacking.append(saved)
        elif max(peak, saved) > _UNITS * min(peak, saved):
            lacking.append("a log and an optimizer that count the rate in one unit")
        else:
            judged = True
            if abs(rate.lr - saved) <= tolerance * saved + rate.lr_error:
                facts: dict[str, Fact] = {"applied": rate.lr, "scheduled": _near(windows, rate.lr), "peak": peak}
                facts["checkpoint"] = one.pair.last.path
                hits.append(_hit(one.pair, rate, rate.lr, facts, after=silent_until))
    return hits if judged else Missing(*(lacking or ["a logged rate at the step between the two checkpoints"]))


@check(needs=["travels", "groups", "series:lr"], facts=["applied", "scheduled", "peak", "checkpoint"])
def saved_rate_stands_while_logged_moves(evidence: Evidence, *, tolerance: float, moving: float) -> Answer:
    """Checkpoints hold one rate for all groups, the same to the last bit, while the logged one moves between them.

    Of known kinds of optimizers that train with the rate in their groups. tolerance: of the rate, by which the log
    must leave it at one of the checkpoints; moving: part of its peak by which it must move between two of them.
    """
    logs = _schedules(evidence, moving)
    if isinstance(logs, Missing):
        return logs
    found = cs.pairs(evidence) or []
    lacking, judged, hits = ["a logged rate at the steps of two checkpoints"], False, []
    peak = max(float(log.values.max()) for log in logs)
    for pair in found:
        saved = _single(evidence, pair)
        if _all_moved(evidence, pair):
            judged = True
            continue
        if isinstance(saved, str):
            lacking.append(saved)
            continue
        ends = [_windows(evidence, logs, one.step or 0) for one in (pair.first, pair.last)]
        if not all(ends) or max(peak, saved) > _UNITS * min(peak, saved):
            continue
        judged = True
        (here, *_), (there, *_) = ends  # of the log that counts; the others may only excuse
        moved = max(there.low - here.high, here.low - there.high)
        if moved <= moving * peak or all(any(w.holds(saved, tolerance, peak) for w in end) for end in ends):
            continue
        facts: dict[str, Fact] = {"applied": saved, "scheduled": _near(ends[1], saved), "peak": peak}
        facts["checkpoint"] = pair.last.path
        hits.append(Hit(pair.last.step, pair.first.step, "groups", None, saved, pair.last.source, facts=facts))
    return hits if judged else Missing(*dict.fromkeys(lacking))


def _schedules(evidence: Evidence, moving: float) -> list[Series] | Missing:
    """The logged rates of every launch; Missing where they do not move, or are not counted in steps."""
    series = evidence.series("lr")
    if series is None:
        return Missing("series:lr")
    if series.step_unit != "step":
        return Missing(f"series:lr over optimizer steps (this log counts {series.step_unit}s)")
    logs = [log.good for log in (series, *evidence.attempts("lr")) if len(log.good)]
    values = np.concatenate([log.values for log in logs]) if logs else np.zeros(0)
    if not len(values) or values.max() <= 0 or values.max() - values.min() <= moving * values.max():
        return Missing("a logged rate that moves: a constant may be no more than a setting")
    return logs


def _windows(evidence: Evidence, logs: Iterable[Series], step: int) -> list[logged_rates.Window]:
    """What the log tells of a step; with accumulation also of that many micro-steps, which some logs count."""
    accumulated = evidence.number("gradient_accumulation_steps") or 1.0
    places = {step, round(step * accumulated)} if accumulated > 1 else {step}
    found = [logged_rates.around(log, place) for log in logs for place in sorted(places)]
    return [window for window in found if window is not None]


def _near(windows: Sequence[logged_rates.Window], rate: float) -> float:
    """The logged rate that comes nearest."""
    return min((end for window in windows for end in window), key=lambda end: abs(end - rate))


def _groups_of(evidence: Evidence, pair: cs.Pair) -> tuple[list[cs.Group], list[cs.Group]]:
    return cs.groups_of(evidence, pair.first.path), cs.groups_of(evidence, pair.last.path)


def _rates(evidence: Evidence, pair: cs.Pair) -> list[float]:
    """Every rate that the groups of two checkpoints hold."""
    return [group.lr for part in _groups_of(evidence, pair) for group in part if group.lr is not None]


def _single(evidence: Evidence, pair: cs.Pair) -> float | str:
    """The one rate of all groups in both checkpoints; in words what is lacking where there is none."""
    first, last = _groups_of(evidence, pair)
    if not first or not last:
        return "groups"
    known = ("adam", "adamw", "amsgrad", "sgd")
    if any(group.optimizer not in known or group.lr is None for group in (*first, *last)):
        return "an optimizer of a known kind"
    rates = {group.lr for group in (*first, *last) if group.names}
    if len(rates) != 1 or not (rate := rates.pop()):
        return "one rate for all groups in both checkpoints"
    if not ar.covered(evidence, pair):
        return "the optimizer of every weight that moved"
    return rate


def _all_moved(evidence: Evidence, pair: cs.Pair) -> bool:
    """Whether no group holds the same rate in both checkpoints."""
    first, last = _groups_of(evidence, pair)
    earlier = {(group.rank, group.number): group.lr for group in first}
    return bool(last) and all(earlier.get((group.rank, group.number), group.lr) != group.lr for group in last)


@check(needs=["travels", "groups"], facts=["applied", "scheduled", "peak", "checkpoint"])
def applied_rate_stands_at_configured(evidence: Evidence, *, tolerance: float) -> Answer:
    """Without a logged rate: Adam applied the configured rate itself where the configured schedule has another one.

    tolerance: part of the configured rate by which the schedule must have left it.
    """
    if evidence.series("lr") is not None:
        return []  # the log is the better witness
    plan = schedules.declared(evidence)
    if not isinstance(plan, schedules.Schedule):
        return Missing(*plan)
    hits: list[Hit] = []
    judged, silent_until, lacking = False, None, ar.lacking(evidence)
    for one in ar.told(evidence):
        saved = _single(evidence, one.pair)
        rate = next((rate for rate in one.rates if rate.lr > 0.0), None)
        if rate is None or one.pair.steps != 1 or one.pair.last.step is None:
            continue
        judged = True
        step = one.pair.last.step
        expected = plan.at(np.arange(step - 1, step + 2))
        stands = isinstance(saved, float) and abs(rate.lr - plan.peak) <= _ONE * plan.peak
        if not stands or float(np.abs(expected - plan.peak).min()) <= tolerance * plan.peak:
            silent_until = step
            continue
        facts: dict[str, Fact] = {"applied": rate.lr, "scheduled": float(expected[1]), "peak": plan.peak}
        hits.append(_hit(one.pair, rate, rate.lr, {**facts, "checkpoint": one.pair.last.path}, after=silent_until))
    return hits if judged else Missing(*(lacking or ["a rate above 0 in a single step of the run"]))


@check(needs=["travels:one-update", "groups"], facts=["optimizer", "decay", "recovered", "checkpoint"])
def decay_not_in_the_weights(evidence: Evidence, *, least: float, share: float, kind: str) -> Answer:
    """A group has a weight decay of `least` or more, and its weights did not decay by it in a step (detector D11).

    share: part of it below which the recovered decay and its error must lie. kind: "coupled" for Adam, which adds the
    decay to the gradient; "lost" for AdamW, whose weights must show it.
    """
    hits: list[Hit] = []
    judged = False
    for one in ar.told(evidence):
        for rate in one.rates:
            decay = min(rate.first.weight_decay or 0.0, rate.last.weight_decay or 0.0)
            if rate.wd is None or rate.wd_error is None or not decay or rate.lr <= 0.0:
                continue
            if rate.wd_error >= share * decay:
                continue
            judged = True
            if (
                decay < least
                or abs(rate.wd) + rate.wd_error >= share * decay
                or _decouples(rate.last) != (kind == "lost")
            ):
                continue
            facts: dict[str, Fact] = {"optimizer": "AdamW" if kind == "lost" else "Adam", "decay": decay}
            facts |= {"recovered": rate.wd, "checkpoint": one.pair.last.path}
            hits.append(_hit(one.pair, rate, rate.wd, facts))
            break
    lacking = ar.lacking(evidence) or ["a weight decay that a single step shows: larger than what rounding hides"]
    return hits if judged else Missing(*lacking)


def _decouples(group: cs.Group) -> bool:
    return group.optimizer == "adamw" or group.values.get("decoupled_weight_decay") is True


CHECKS: tuple[Check, ...] = (
    applied_rate_is_not_saved,
    applied_rate_stands_while_logged_moves,
    saved_rate_stands_while_logged_moves,
    applied_rate_stands_at_configured,
    decay_not_in_the_weights,
)
