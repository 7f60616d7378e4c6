"""Checks on how fast a run goes: whether steps get slower, for good or for a while, and how often it pauses."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from gradforensics import signals, trend_signals
from gradforensics.diagnosis.vocabulary import Answer, Check, Fact, Hit, Missing, check, hit_at
from gradforensics.languages import Text
from gradforensics.patterns import lazy
from gradforensics.tables import Evidence, Series

_LEAST = 40  # points of which a speed is read
_BLOCKS = 20
_RATES = ("throughput", "tflops", "mfu(%)", "mfu")
_LOGGED = "step_time"
_MILLISECONDS = lazy(r"(?:^|[_(. -])ms\)?$|millisec", re.IGNORECASE)
_SAME_WORK = (
    "per_device_train_batch_size", "global_batch_size", "gradient_accumulation_steps", "world_size", "max_seq_length",
)  # fmt: skip


@dataclass(frozen=True)
class _Pace:
    """Durations per step, float64 (n,), up to a constant factor, at the points of `series`.

    logged: whether they were logged step by step; else they are distances between points, which hold evaluations and
    checkpoints too. scale: seconds per unit, None where the unit is not known.
    """

    series: Series
    index: np.ndarray
    values: np.ndarray
    logged: bool
    scale: float | None

    def blocks(self) -> tuple[np.ndarray, np.ndarray]:
        """Medians of twenty blocks, and the place of the first point of each."""
        return trend_signals.block_medians(self.values, _BLOCKS), trend_signals.block_starts(len(self.values), _BLOCKS)

    def hit(self, place: int, **facts: Fact) -> Hit:
        """A hit at one of the durations."""
        return hit_at(self.series, int(self.index[place]), facts)

    def seconds(self, value: float) -> float | None:
        """A duration in seconds, None where the unit is not known."""
        return None if self.scale is None else value * self.scale


def _pace(evidence: Evidence, seconds: float) -> _Pace | Missing:
    """The durations of the steps after the first twentieth of the record (compilation, caches, tuning).

    seconds: least time that distances between points must cover: what else the machine does shows in seconds, not in
    hours, and they hold everything that happens between two points.
    """
    found: _Pace | Missing = evidence.once("pace", lambda: _find(evidence))
    if not isinstance(found, Missing) and not found.logged:
        covered = float(found.values.sum()) * max(found.series.cadence, 1.0)
        if covered < seconds:
            return Missing("series:step_time:points>=40")
    return found


def _find(evidence: Evidence) -> _Pace | Missing:
    logged = evidence.series(_LOGGED)
    if logged is not None and (pace := _positive(logged.good, logged.good.values, logged=True)):
        return pace
    for name in _RATES:
        rate = evidence.series(name)
        if rate is not None and (rate.good.values > 0).sum() >= _LEAST:
            kept = rate.good.where(rate.good.values > 0)
            if pace := _positive(kept, 1.0 / kept.values, logged=True):
                return pace
    elapsed = evidence.series("elapsed")
    if elapsed is not None and (pace := _between(elapsed.good, elapsed.good.values)):
        return pace
    loss = evidence.series("loss")
    if loss is not None and np.isfinite(loss.times).all() and (pace := _between(loss, loss.times)):
        return pace
    return Missing("series:step_time:points>=40")


def _positive(series: Series, values: np.ndarray, *, logged: bool, index: np.ndarray | None = None) -> _Pace | None:
    index = np.arange(len(series)) if index is None else index
    kept = np.flatnonzero((values > 0) & (index >= max(3, len(series) // 20)))
    if len(kept) < _LEAST or series.step_unit not in ("step", "micro_step"):
        return None
    scale = (1e-3 if _MILLISECONDS.search(series.tag) else 1.0) if series.name == _LOGGED or not logged else None
    return _Pace(series, index[kept], values[kept], logged, scale)


def _between(series: Series, clock: np.ndarray) -> _Pace | None:
    """Seconds per step between neighbouring points of one attempt; None where the clock is too coarse for them."""
    if len(series) <= _LEAST:
        return None
    same = np.diff(series.attempts) == 0
    passed, steps = np.diff(clock), np.diff(series.steps)
    good = same & (passed >= 0) & (steps > 0)
    if float(np.mean(passed[good] > 0)) < 0.9:
        return None
    index = np.flatnonzero(good) + 1
    return _positive(series, passed[good] / steps[good], logged=False, index=index)


_FACTS = ("before", "now", "ratio", "share", "read")


def _facts(pace: _Pace, before: float, now: float, share: float) -> dict[str, Fact]:
    return {
        "before": pace.seconds(before),
        "now": pace.seconds(now),
        "ratio": now / before,
        "share": share,
        "read": pace.series.tag
        if pace.logged
        else Text(f"times of {pace.series.tag}", f"{pace.series.tag} 各行的时间"),
    }


@check(needs=[], facts=_FACTS)
def steps_get_slower(evidence: Evidence, *, ratio: float, order: float, seconds: float) -> Answer:
    """Steps get slower bit by bit: the medians of twenty blocks rise by `ratio` over the record.

    order: least rank correlation (Spearman) of the medians with time. A change from one block to the next that makes up
    half of the rise is a new level and no drift.
    """
    pace = _pace(evidence, seconds)
    if isinstance(pace, Missing):
        return pace
    medians, starts = pace.blocks()
    rank = float(np.corrcoef(trend_signals.ranks_of(medians), np.arange(len(medians)))[0, 1])
    first, last = float(np.median(medians[:3])), float(np.median(medians[-3:]))
    if rank < order or last < ratio * first or float(np.diff(np.log(medians)).max()) > 0.5 * np.log(last / first):
        return []
    place = int(starts[int(np.argmax(medians > first + 0.25 * (last - first)))])
    return [pace.hit(place, **_facts(pace, first, last, 1.0))]


@check(needs=[], facts=_FACTS)
def new_slower_level(evidence: Evidence, *, ratio: float, share: float, seconds: float) -> Answer:
    """From one point on steps take `ratio` times as long, to the end of the record and for `share` of it at least.

    Every block after it is slower than every block before it.
    """
    pace = _pace(evidence, seconds)
    if isinstance(pace, Missing):
        return pace
    medians, starts = pace.blocks()
    least = max(2, round(share * len(medians)))
    for split in range(2, len(medians) - least + 1):
        before, after = float(np.median(medians[:split])), float(np.median(medians[split:]))
        # the jump is there, and not one of many small ones
        if medians[split:].min() >= ratio * medians[:split].max() and after >= ratio * before:
            place = _edge(pace.values, int(starts[split - 1]), before, after)
            return [pace.hit(place, **_facts(pace, before, after, 1 - place / len(pace.values)))]
    # the block in which it happens holds both levels
    for split in range(2, len(medians) - least):
        head, tail = medians[:split], medians[split + 1 :]
        if tail.min() >= ratio * head.max():
            before, after = float(np.median(head)), float(np.median(tail))
            place = _edge(pace.values, int(starts[split]), before, after)
            return [pace.hit(place, **_facts(pace, before, after, 1 - place / len(pace.values)))]
    return []


def _edge(values: np.ndarray, begin: int, before: float, after: float) -> int:
    """First point from `begin` on that, with the two behind it, is nearer to the new level."""
    slow = values[begin:] > np.sqrt(before * after)
    first = signals.first_run(slow, 3)
    return begin + (first or 0)


@check(needs=[], facts=[*_FACTS, "until"])
def slow_for_a_while(evidence: Evidence, *, ratio: float, share: float, seconds: float) -> Answer:
    """Steps take `ratio` times as long for `share` of the record or more, and then are as fast as before."""
    pace = _pace(evidence, seconds)
    if isinstance(pace, Missing):
        return pace
    medians, starts = pace.blocks()
    usual = float(np.quantile(medians, 0.25))
    slow = medians > ratio * usual
    first = signals.first_run(slow, max(2, round(share * len(medians))))
    if first is None or first == 0 or slow[-1]:
        return []
    end = first + int(np.argmin(slow[first:]))
    slowed = float(np.median(medians[first:end]))
    place = _edge(pace.values, int(starts[first - 1]), usual, slowed)
    until = int(pace.index[int(starts[end])])
    facts = _facts(pace, usual, slowed, (end - first) / len(medians))
    return [pace.hit(place, **facts, until=int(pace.series.steps[until]))]


@check(needs=[], facts=["count", "every", "lost", "longest", "read"])
def regular_pauses(evidence: Evidence, *, times: float, lost: float, count: int) -> Answer:
    """Single steps take `times` the median or longer at regular distances and cost `lost` of the time or more.

    Only step times that were logged as such tell: distances between points hold evaluations by design, and pauses at
    the steps of evaluations are left out here too.
    """
    pace = _pace(evidence, 0.0)
    if isinstance(pace, Missing):
        return pace
    if not pace.logged:
        return Missing("series:step_time:points>=40")
    usual = float(np.median(pace.values))
    places = np.flatnonzero(pace.values > times * usual)
    steps = pace.series.steps[pace.index[places]]
    evaluated = [s.steps for n in evidence.names("eval") if (s := evidence.series(n, "eval")) is not None]
    if evaluated:
        near = np.concatenate(evaluated)
        apart = ~np.isin(steps, near) & ~np.isin(steps - 1, near)
        places, steps = places[apart], steps[apart]
    cost = float((pace.values[places] - usual).sum() / pace.values.sum()) if len(places) else 0.0
    if len(places) < count or cost < lost:
        return []
    distance = np.diff(steps)
    every = float(np.median(distance))
    if float(np.median(np.diff(places))) < 3 or float(np.mean(np.abs(distance - every) <= 0.1 * every)) < 0.8:
        return []
    facts: dict[str, Fact] = {
        "count": len(places),
        "every": every,
        "lost": cost,
        "longest": float(pace.values.max()) / usual,
        "read": pace.series.tag,
    }
    return [hit_at(pace.series, int(pace.index[places[0]]), facts)]


@check(needs=["baseline:series:loss"], facts=_FACTS)
def slower_than_baseline(evidence: Evidence, *, ratio: float, seconds: float) -> Answer:
    """Steps take `ratio` times as long as those of the run of --baseline, with the same batch, length and ranks."""
    mine = _pace(evidence, seconds)
    if isinstance(mine, Missing) or evidence.baseline is None:
        return mine if isinstance(mine, Missing) else Missing("baseline:series:loss")
    theirs = _pace(evidence.baseline, seconds)
    if isinstance(theirs, Missing) or mine.series.name != theirs.series.name or mine.series.tag != theirs.series.tag:
        return Missing("baseline:series:step_time:points>=40")
    if any(evidence.number(key) != evidence.baseline.number(key) for key in _SAME_WORK):
        return Missing("a baseline with the same batch size, sequence length and number of ranks")
    before, now = float(np.median(theirs.values)), float(np.median(mine.values))
    return [mine.hit(0, **_facts(mine, before, now, 1.0))] if now >= ratio * before else []


CHECKS: tuple[Check, ...] = (
    steps_get_slower,
    new_slower_level,
    slow_for_a_while,
    regular_pauses,
    slower_than_baseline,
)
