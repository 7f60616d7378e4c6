"""Checks that compare the ranks of a run: replicas that are no longer identical, and a rank that is slower."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from gradforensics.diagnosis.vocabulary import Answer, Check, Fact, Hit, Missing, check
from gradforensics.patterns import lazy
from gradforensics.tables import Evidence, Series

_REDUCED = lazy(r"(?i)(?:^|[^a-z])(?:all_?)?reduced?(?:$|[^a-z])|global|sync(?:ed|hroni[sz]ed)")
_DATA_PARALLEL = lazy(r"(?i)ddp\w*|distributed_?data_?parallel|multi_(?:gpu|cpu|npu|xpu)")
_SHARDED = lazy(r"(?i)fsdp2?|fully_?sharded|full_shard|hybrid_shard|deepspeed|zero[-_]?[123]|tensor_?parallel")
_PARALLEL_SIZES = lazy(
    r"(?i)(?:tensor|pipeline|model|context|expert)_?(?:model_)?parallel(?:_size|_degree)?$|[tp]p_size"
)
_WEIGHTS = lazy(
    r"(?i)(?:^|_)(?:param|params|parameter|parameters|weight|weights|model)_(?:l2_)?"
    r"(?:norm|l2|hash|checksum|fingerprint|crc|sum)(?:$|_)"
)
_TIMES = lazy(
    r"(?i)(?:^|_)(?:step|iter|iteration|batch|forward|fwd|backward|bwd|compute|data|load|loading|train)_?"
    r"(?:time|seconds|secs|ms|duration)(?:$|_)|^time_per_step$|^seconds_per_step$"
)
_LEAST = 20  # common points of the ranks
_WINDOWS = 10
_MOST = 0.9  # share of the points that must agree: single ones may be torn or equal by chance


@dataclass(frozen=True)
class Together:
    """One series of several ranks at the steps that all of them logged.

    steps: int64 (n,); values: float64 (ranks, n), NaN where the kind is not "finite"; codes: uint8 (ranks, n).
    """

    ranks: tuple[int, ...]
    steps: np.ndarray
    values: np.ndarray
    codes: np.ndarray
    first: Series

    @property
    def spread(self) -> np.ndarray:
        """Range over the ranks relative to the median, float64 (n,); infinite where their kinds differ."""
        level = np.abs(np.nanmedian(np.where(np.isfinite(self.values), self.values, 0.0), axis=0))
        width = self.values.max(axis=0) - self.values.min(axis=0)
        found: np.ndarray = np.divide(width, level, out=np.full(len(width), np.inf), where=level > 0)
        found[width == 0] = 0.0
        alike = (self.codes == self.codes[0]).all(axis=0)
        found[~np.isfinite(self.values).all(axis=0)] = 0.0
        found[~alike] = np.inf
        return found

    def rounding(self) -> np.ndarray:
        """How far apart equal values can be printed, relative to their median, float64 (n,)."""
        level = np.abs(np.median(self.values, axis=0))
        apart = np.zeros(len(level))
        np.divide(1.5 * self.first.resolution, level, out=apart, where=np.isfinite(level) & (level > 0))
        return apart


def together(evidence: Evidence, name: str) -> Together | None:
    """A series of all ranks that logged it, at their common steps; None where there are fewer than two ranks."""
    key = ("together", name)
    found: Together | None = evidence.once(key, lambda: _together(evidence, name))
    return found


def _together(evidence: Evidence, name: str) -> Together | None:
    series = {rank: s for rank in evidence.ranks(name) if (s := evidence.series(name, rank=rank)) is not None}
    if len(series) < 2:
        return None
    ranks = tuple(series)
    steps = series[ranks[0]].steps
    for one in series.values():
        steps = np.intersect1d(steps, one.steps)
    if not len(steps):
        return None
    places = [np.searchsorted(s.steps, steps) for s in series.values()]
    values = np.stack([s.values[p] for s, p in zip(series.values(), places, strict=True)])
    codes = np.stack([s.codes[p] for s, p in zip(series.values(), places, strict=True)])
    return Together(ranks, steps, values, codes, series[ranks[0]])


def _hit(found: Together, index: int, spread: np.ndarray, *, whole: bool) -> Hit:
    after = None if whole or index == 0 else int(found.steps[index - 1])
    low, high = (float(np.nanmin(found.values[:, index])), float(np.nanmax(found.values[:, index])))
    finite = spread[index:][np.isfinite(spread[index:])]
    facts: dict[str, Fact] = {
        "series_name": found.first.tag, "spread": float(np.median(finite)) if len(finite) else None,
        "ranks": len(found.ranks), "low": low, "high": high,
    }  # fmt: skip
    line = int(found.first.lines[np.searchsorted(found.first.steps, found.steps[index])]) or None
    there = float(found.values[0, index])  # the line that the hit names is one of the first rank
    return Hit(
        int(found.steps[index]), after, found.first.name, found.first.tag, there, found.first.source, line, facts=facts
    )


def _parting(equal: np.ndarray, apart: np.ndarray, points: int) -> int | None:
    """Index from which on the ranks are apart for good, where they were equal over `points` points or more before."""
    late = np.cumsum(apart[::-1])[::-1] / np.arange(len(apart), 0, -1)
    starts = np.flatnonzero((late >= _MOST) & apart)
    if not len(starts):
        return None
    start = int(starts[0])
    while start > 0 and not equal[start - 1]:  # they drift before they are far apart
        start -= 1
    healthy = start >= points and float(np.mean(equal[:start])) >= _MOST
    return start if healthy and len(apart) - start >= points else None


_FACTS = ("series_name", "spread", "ranks", "low", "high")


@check(needs=["series:{name}:ranks>=2"], facts=_FACTS)
def ranks_part(evidence: Evidence, *, name: str, equal: float, apart: float, points: int) -> Answer:
    """A reduced quantity was equal on all ranks and is so no more from some step on (detector D37).

    equal: relative range over the ranks up to which values count as equal; apart: from which on as different; points:
    logged points that both states must last. Values that were never equal may be local ones: Missing, unless all are
    equal.
    """
    found = together(evidence, name)
    if found is None or len(found.steps) < 2 * points:
        return Missing(f"series:{name}:ranks>=2")
    spread, near = found.spread, np.maximum(equal, found.rounding())
    start = _parting(spread <= near, spread > np.maximum(apart, found.rounding()), points)
    if start is not None:
        return [_hit(found, start, spread, whole=False)]
    if float(np.mean(spread <= near)) >= _MOST:
        return []
    return Missing(f"{name} after the reduction over ranks (these differ from the first step on, as local ones do)")


@check(needs=["series:{name}:ranks>=2"], facts=_FACTS)
def ranks_never_agree(
    evidence: Evidence, *, name: str, apart: float, equal: float, points: int, declared: str
) -> Answer:
    """A quantity differs between ranks from the first step on although it must be equal.

    declared, what says that it must: "name" (it is called reduced), "weights" (those of the ranks differ too, and the
    settings name plain data parallelism) or "settings" (they alone: DDP reduces gradients before a loop can log them,
    but a hook may have taken local ones). Weights that are equal on all ranks refute it.
    """
    found = together(evidence, name)
    if found is None or len(found.steps) < 2 * points:
        return Missing(f"series:{name}:ranks>=2")
    spread = found.spread
    if float(np.mean(spread > np.maximum(apart, found.rounding()))) < _MOST:
        return []
    differ = _weights_differ(evidence, equal)
    if differ is False:
        return []
    says = {
        "name": _REDUCED.search(found.first.tag) is not None,
        "weights": differ is True and replicated(evidence) is True,
        "settings": replicated(evidence) is True,
    }[declared]
    return [_hit(found, 0, spread, whole=True)] if says else Missing(f"{name} after the reduction over ranks")


def _weight_series(evidence: Evidence) -> list[str]:
    return [n for n in evidence.names("train") if _WEIGHTS.search(n) and len(evidence.ranks(n)) > 1]


def _weights_differ(evidence: Evidence, equal: float) -> bool | None:
    """Whether norms or hashes of the weights differ between ranks at most steps; None where none were logged."""
    held = [found for name in _weight_series(evidence) if (found := together(evidence, name)) is not None]
    if not held:
        return None
    return any(float(np.mean(one.spread > np.maximum(equal, one.rounding()))) >= _MOST for one in held)


@check(needs=[], facts=_FACTS)
def weights_part(evidence: Evidence, *, equal: float, points: int, begun: str) -> Answer:
    """A norm or hash of the weights differs between ranks.

    begun: "later" (they were equal first) or "apart" (from the first step on while the reduced gradients agree, under
    plain data parallelism; shards differ by design).
    """
    names = _weight_series(evidence)
    if not names:
        return Missing("a norm or hash of the weights on every rank")
    hits = []
    for name in names:
        found = together(evidence, name)
        if found is None or len(found.steps) < 2 * points:
            continue
        spread, near = found.spread, np.maximum(equal, found.rounding())
        start = _parting(spread <= near, spread > near, points)
        if begun == "later" and start is not None:
            hits.append(_hit(found, start, spread, whole=False))
        elif begun == "apart" and float(np.mean(spread > near)) >= _MOST and start is None:
            if _gradients_differ(evidence, equal):
                continue
            if replicated(evidence) is not True:
                return Missing("settings that say whether weights are replicated or sharded")
            hits.append(_hit(found, 0, spread, whole=True))
    return hits


def _gradients_differ(evidence: Evidence, equal: float) -> bool:
    """Whether the gradient norms of the ranks differ: then weights part by themselves, wherever they started."""
    norms = together(evidence, "grad_norm")
    return norms is not None and float(np.mean(norms.spread > np.maximum(equal, norms.rounding()))) >= _MOST


def replicated(evidence: Evidence) -> bool | None:
    """Whether the settings say that every rank holds all weights: True, False (sharded), None (they do not say)."""
    said: bool | None = None
    for one in evidence.settings or []:
        words = str(one.value) if isinstance(one.value, str) else ""
        name = one.name.rpartition(".")[2]
        size = one.value if isinstance(one.value, int | float) and not isinstance(one.value, bool) else 0
        if _SHARDED.search(words) or (_PARALLEL_SIZES.search(name) and size > 1):
            return False
        if (one.key == "zero_stage" or name in ("zero_stage", "stage")) and size == 3:
            return False
        if _DATA_PARALLEL.fullmatch(words.strip()):
            said = True
    return said


# -- slow ranks -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Slow:
    """A rank that is slower than the others. start: index of the first step of it; excess: over the others' median."""

    found: Together
    rank: int
    start: int
    excess: float
    usual: float
    own: float


def slow_rank(evidence: Evidence, tolerance: float, share: float) -> Slow | Missing | None:
    """The rank whose logged times lie beyond those of the others in `share` of all windows from its first one on.

    These are half of all windows at least: a machine that is busy for a while makes a rank slow for a while.

    A window's times are medians; beyond means further than max(MAD, tolerance x median) above the median of the ranks,
    as Megatron's straggler test has it. Of two ranks each is compared with the other one.
    """
    names = timed_by_rank(evidence)
    if not names:
        return Missing("series:step_time:ranks>=2")
    if _staged(evidence):
        return Missing("times of ranks that do the same work (this run is a pipeline of stages)")
    compared = False
    for name in names:
        found = together(evidence, name)
        if found is None or len(found.steps) < _LEAST + 3:
            continue
        compared = True
        slow = _slow(found, tolerance, share)
        if slow is not None:
            return slow
    return None if compared else Missing("series:step_time:ranks>=2:points>=24")


def timed_by_rank(evidence: Evidence) -> list[str]:
    """The series of times that several ranks logged."""
    return [n for n in evidence.names("train") if _TIMES.search(n) and len(evidence.ranks(n)) > 1]


def _staged(evidence: Evidence) -> bool:
    for one in evidence.settings or []:
        pipeline = re.search(r"(?i)pipeline.*(?:size|degree)|pp_size", one.name)
        if pipeline and isinstance(one.value, int | float) and one.value > 1:
            return True
    return False


def _slow(found: Together, tolerance: float, share: float) -> Slow | None:
    whole = np.isfinite(found.values).all(axis=0)
    whole[:3] = False  # the first steps compile and warm up
    values, places = found.values[:, whole], np.flatnonzero(whole)
    if values.shape[1] < _LEAST or float(values.min()) <= 0:
        return None
    size = values.shape[1] // _WINDOWS
    count = values.shape[1] // size
    medians = np.median(values[:, : count * size].reshape(len(values), count, size), axis=2)
    best: Slow | None = None
    for place, rank in enumerate(found.ranks):
        others = medians if len(medians) > 2 else np.delete(medians, place, axis=0)
        usual = np.median(others, axis=0)
        mad = np.median(np.abs(others - usual), axis=0)
        beyond = medians[place] - usual > np.maximum(mad, tolerance * usual)
        start = int(np.argmax(beyond))
        if not beyond.any() or 2 * (count - start) < count or float(np.mean(beyond[start:])) < share:
            continue
        excess = float(np.median((medians[place] / usual - 1)[start:]))
        own, level = float(np.median(medians[place][start:])), float(np.median(usual[start:]))
        if best is None or excess > best.excess:
            best = Slow(found, rank, int(places[start * size]), excess, level, own)
    return best


@check(needs=[], facts=["rank", "excess", "usual", "own", "series_name", "ranks"])
def rank_is_slower(evidence: Evidence, *, tolerance: float, share: float) -> Answer:
    """One and the same rank is slower than the others, window after window (detector D38)."""
    slow = slow_rank(evidence, tolerance, share)
    if isinstance(slow, Missing):
        return slow
    if slow is None:
        return []
    series = evidence.series(slow.found.first.name, rank=slow.rank) or slow.found.first
    steps = slow.found.steps
    facts: dict[str, Fact] = {
        "rank": slow.rank, "excess": slow.excess, "usual": slow.usual, "own": slow.own, "series_name": series.tag,
        "ranks": len(slow.found.ranks),
    }  # fmt: skip
    after = int(steps[slow.start - 1]) if slow.start > 3 else None
    step = int(steps[slow.start])
    line = int(series.lines[np.searchsorted(series.steps, step)]) or None
    return [Hit(step, after, series.name, series.tag, slow.own, series.source, line, facts=facts)]


CHECKS: tuple[Check, ...] = (ranks_part, ranks_never_agree, weights_part, rank_is_slower)
