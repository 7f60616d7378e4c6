"""Checks on averaged copies of the weights (EMA, SWA) that are saved beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from gradforensics import checkpoint_signals as cs
from gradforensics.checkpoint_signals import Average
from gradforensics.diagnosis.vocabulary import Answer, Check, Fact, Hit, Missing, check
from gradforensics.tables import Evidence

_NO_COPY = "an averaged copy of the weights (EMA, SWA) beside them in a checkpoint"
_NO_PAIR = "two checkpoints with an averaged copy between which the weights moved"


class _Interval(NamedTuple):
    """Two neighbouring checkpoints that both hold a copy under one key.

    same: every averaged tensor has the same bytes in both. exact: all are float32 or wider. elements: of live weights
    whose bits changed. share: elements of the copy whose bits changed, as a share of those. travel: the largest
    relative move of an averaged weight. counted: whether the copy's own counter went on, None where it keeps none.
    """

    first: Average
    last: Average
    same: bool
    exact: bool
    share: float
    elements: int
    travel: float
    counted: bool | None


def _intervals(evidence: Evidence, found: list[Average]) -> Iterator[_Interval]:
    """The intervals of every key, in the order of the steps; only where the live weights were compared too."""
    pairs = {(pair.first.path, pair.last.path): pair for pair in cs.pairs(evidence) or []}
    before: dict[str, Average] = {}
    for last in found:
        first = before.get(last.key)
        before[last.key] = last
        pair = None if first is None else pairs.get((first.checkpoint, last.checkpoint))
        if first is not None and pair is not None:
            yield _interval(first, last, pair.rows, pair.copies)


def _interval(
    first: Average, last: Average, rows: Mapping[str, Mapping[str, Any]], copies: Mapping[str, Mapping[str, Any]]
) -> _Interval:
    earlier = {copy.name: copy for copy, _ in first.pairs}
    both = [(earlier[copy.name], copy) for copy, _ in last.pairs if copy.name in earlier and not copy.nonfinite]
    moves = [(rows[live.name], copies.get(copy.name)) for copy, live in last.pairs if live.name in rows]
    elements = sum(live["count"] * live["changed"] for live, _ in moves)
    changed = sum(copy["count"] * copy["changed"] for live, copy in moves if copy is not None and live["changed"])
    counted = None if first.updates is None or last.updates is None else last.updates > first.updates
    return _Interval(
        first,
        last,
        bool(both) and all(a.fingerprint == b.fingerprint for a, b in both),
        all(copy.measured in cs.FULL for _, copy in both),
        changed / elements if elements else 0.0,
        int(elements),
        max((live["rel_travel"] for live, _ in moves if live["rel_travel"] is not None), default=0.0),
        counted,
    )


def _late(evidence: Evidence, average: Average, share: float) -> bool:
    """Whether a checkpoint lies in the part of the run in which an average must have begun."""
    known = [evidence.number("max_steps") or 0.0, float((evidence.steps or (0, 0))[1])]
    known += [float(one.step or 0) for one in cs.checkpoints(evidence) or []]
    return average.step is not None and average.step > 0 and average.step >= share * max(known)


def _begins_late(average: Average) -> bool:
    """Whether a copy is of those that begin late by design, as stochastic weight averaging does."""
    return "ema" not in average.key.lower() and "shadow" not in average.key.lower()


def _facts(one: _Interval) -> dict[str, Fact]:
    return {
        "key": one.last.key,
        "before": one.first.checkpoint,
        "checkpoint": one.last.checkpoint,
        "tensors": len(one.last.pairs),
        "travel": one.travel,
        "share": one.share,
        "type": one.last.pairs[0][0].measured,
    }


def _hit(one: _Interval, after: int | None) -> Hit:
    copy = one.last.pairs[0][0]
    return Hit(one.last.step, after, "tensors", None, one.share, copy.source, None, copy.name, _facts(one))


def _moving(evidence: Evidence, moved: float) -> list[_Interval] | Missing:
    """The intervals in which the live weights moved, or why there are none."""
    found = cs.averages(evidence)
    if not found:
        return Missing("tensors") if found is None else Missing(_NO_COPY)
    intervals = [one for one in _intervals(evidence, found) if one.travel >= moved]
    return intervals or Missing(_NO_PAIR)


@check(needs=["tensors"], facts=["key", "before", "checkpoint", "tensors", "travel", "share", "type"])
def average_never_updated(evidence: Evidence, *, moved: float, late: float, elements: float) -> Answer:
    """An averaged copy has the same bits in two checkpoints while the weights moved by `moved` of their norm.

    Where the copy's counter went on, its decay is 1. Where it stood still or there is none, the later checkpoint must
    lie behind `late` of the run, and the copy must not be of a kind that begins late (SWA). In a 16-bit type rounding
    may hold a few elements: there as many as `elements` must stand still, and no counter may have gone on.
    """
    intervals = _moving(evidence, moved)
    if isinstance(intervals, Missing):
        return intervals
    hits: list[Hit] = []
    good: int | None = None
    for one in intervals:
        small = not one.exact and (one.elements < elements or one.counted is True)
        waits = one.counted is not True and (_begins_late(one.last) or not _late(evidence, one.last, late))
        if not one.same:
            good = one.last.step
        elif not small and not waits:
            hits.append(_hit(one, good))
    return hits


@check(needs=["tensors"], facts=["key", "before", "checkpoint", "tensors", "travel", "share", "type"])
def average_rounded_away(evidence: Evidence, *, moved: float, stuck: float) -> Answer:
    """An averaged copy in a 16-bit type changed in less than a share `stuck` of the elements in which the weights did.

    A step of an average is (1 - decay) times the distance to the weights; below half a unit in the last place it is
    rounded away. A copy in which nothing changed counts only where its own counter went on.
    """
    intervals = _moving(evidence, moved)
    if isinstance(intervals, Missing):
        return intervals
    low = [one for one in intervals if not one.exact and one.elements]
    if not low:
        return Missing("an averaged copy in a 16-bit type")
    return [_hit(one, None) for one in low if one.share < stuck and (one.share > 0 or one.counted is True)]


@check(needs=["tensors"], facts=["key", "checkpoint", "tensors", "checkpoints"])
def live_equals_average(evidence: Evidence, *, late: float) -> Answer:
    """The weights have the same bits as their average behind `late` of the run, and the training went on from there.

    The last checkpoint does not count by itself: many trainings end with the average in place of the weights. Neither
    does a copy with a single update, which is the weights of that step.
    """
    found = cs.averages(evidence)
    if not found:
        return Missing("tensors") if found is None else Missing(_NO_COPY)
    judged = [a for a in found if (a.updates is None or a.updates > 1) and _late(evidence, a, late)]
    if not judged:
        return Missing("a checkpoint with an averaged copy in the later part of the run")
    equal = [a for a in judged if _is_equal(a)]
    last = max(a.step or 0 for a in found)
    if all(a.step == last for a in equal):
        return []
    differing = [a.step for a in found if not _is_equal(a) and a.step is not None]
    return [
        Hit(
            a.step,
            max((step for step in differing if step < (a.step or 0)), default=None),
            "tensors",
            None,
            None,
            a.pairs[0][0].source,
            None,
            a.pairs[0][1].name,
            {"key": a.key, "checkpoint": a.checkpoint, "tensors": len(a.pairs), "checkpoints": len(equal)},
        )
        for a in equal
    ]


def _is_equal(average: Average) -> bool:
    return all((copy.measured, copy.fingerprint) == (live.measured, live.fingerprint) for copy, live in average.pairs)


CHECKS: tuple[Check, ...] = (
    average_never_updated,
    average_rounded_away,
    live_equals_average,
)
