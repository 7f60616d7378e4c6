"""Checks on weights that no optimizer wrote: beyond what Adam can have moved them, outliers, other shapes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import NamedTuple

import polars as pl

from gradforensics.checkpoint_signals import (
    Group,
    Pair,
    Weight,
    adam_groups_of,
    adam_like,
    apart,
    groups_of,
    pairs,
    plain,
    weights,
)
from gradforensics.checkpoints.adam import bound
from gradforensics.diagnosis.vocabulary import Answer, Check, Fact, Hit, Missing, check
from gradforensics.parameter_names import kind_of
from gradforensics.tables import Evidence

_RESOLVED = 1e-5  # share of a sum of squares of float32, which is exact to some 1e-7
_POINTS = 8  # logged rates between two checkpoints, below which a cycle of the schedule may lie between two of them
_RATES = ("initial_lr", "max_lr")  # of a group: the most that its schedule gives


# -- the travel bound -------------------------------------------------------------------------------------------------


@check(
    needs=["travels", "groups", "series:lr"],
    facts=["checkpoint", "earlier", "tensors", "judged", "ratio"],
)
def weights_beyond_travel(evidence: Evidence, *, ratio: float, extent: str) -> Answer:
    """Weights that lie farther from those of the checkpoint before than Adam's steps reach (detector D12).

    ratio: the distance as a multiple of the bound. extent: "few" parameters (up to a tenth), while the others keep it,
    or "many".
    """
    judged, hits = False, []
    for pair in pairs(evidence) or []:
        if apart(evidence, pair.first.path, pair.last.path):
            continue
        found = _reaches(evidence, pair)
        judged |= bool(found)
        beyond = {name: value for name, value in found.items() if value > ratio}
        few = len(beyond) <= max(1, len(found) // 10) and len(found) > 3
        if not beyond or few != (extent == "few"):
            continue
        name = max(beyond, key=lambda one: beyond[one])
        facts: dict[str, Fact] = {
            "checkpoint": pair.last.path, "earlier": pair.first.path, "tensors": len(beyond), "judged": len(found),
            "ratio": beyond[name],
        }  # fmt: skip
        tensor, file = plain(name), pair.last.source
        hits.append(Hit(pair.last.step, pair.first.step, "travels", None, beyond[name], file, None, tensor, facts))
    return hits if judged else Missing("a learning rate logged between two checkpoints with Adam states")


def _reaches(evidence: Evidence, pair: Pair) -> dict[str, float]:
    """By parameter: how far it moved, of what Adam can do. Those are left out for which the log does not tell that."""
    key = "weight_integrity.reaches", pair.first.path, pair.last.path
    return evidence.once(key, lambda: _find_reaches(evidence, pair))


def _find_reaches(evidence: Evidence, pair: Pair) -> dict[str, float]:
    rates = evidence.series("lr")
    if rates is None:
        return {}
    held = adam_groups_of(evidence, pair.last.path)
    mine = [group for group in groups_of(evidence, pair.last.path) if adam_like(group)]
    good = rates.good
    inside = (good.steps >= (pair.first.step or 0) - good.cadence) & (
        good.steps <= (pair.last.step or 0) + good.cadence
    )
    logged = good.values[inside]
    least = min((rate for group in mine if group.names and (rate := _peak(group)) > 0.0), default=0.0)
    if not len(logged) or logged.mean() <= 2.0 * good.resolution or least <= 0.0:
        return {}
    if min(group.lr or 0.0 for group in mine if group.names) > 1.5 * logged.max():
        return {}  # the log speaks of another rate
    unseen = 1.0 + good.resolution / (2.0 * float(logged.mean()))
    if len(logged) < _POINTS:  # what the rate was between two lines is not known: it may have been at its peak
        unseen *= max(least / float(logged.mean()), 1.0)
    allowed = {id(g): unseen * max(_peak(g) / least, 1.0) * _updates(evidence, pair, g) for g in mine}
    found: dict[str, float] = {}
    for label, row in pair.rows.items():
        group = held.get(plain(label))
        if group is None or row["bound_ratio"] is None or row["count"] < 2 or group.betas is None:
            continue
        found[label] = row["bound_ratio"] / (allowed[id(group)] * _coupled(evidence, pair, plain(label), group))
    return found


def _peak(group: Group) -> float:
    """The largest learning rate that a group says of itself: its schedule's, or that of today."""
    said = [group.values.get(name) for name in _RATES]
    return max(float(rate) for rate in (*said, group.lr or 0.0) if isinstance(rate, int | float))


def _updates(evidence: Evidence, pair: Pair, group: Group) -> float:
    """Updates of a group in one step of the log, as its counters tell; 1 where they are fewer."""
    before = [g for g in groups_of(evidence, pair.first.path) if g.number == group.number]
    if not before or before[0].step_min is None or group.step_max is None:
        return 1.0
    return max(1.0, (group.step_max - before[0].step_min) / max(pair.steps, 1))


def _coupled(evidence: Evidence, pair: Pair, name: str, group: Group) -> float:
    """How much farther the measure may go where decay is part of the gradient, and was taken for a factor."""
    if group.optimizer == "adamw" or not group.weight_decay or group.betas is None:
        return 1.0
    largest = _peaks(evidence).get((pair.first.path, name), 0.0)
    return 1.0 + group.weight_decay * largest / (bound(*group.betas) or 1.0)


def _peaks(evidence: Evidence) -> dict[tuple[str, str], float]:
    """The largest magnitude in every parameter, by checkpoint and name."""
    return evidence.once(
        "weight_integrity.peaks", lambda: {(w.checkpoint, w.name): _peak_of(w) for w in weights(evidence) or []}
    )


# -- outliers ---------------------------------------------------------------------------------------------------------


class _Outlier(NamedTuple):
    """The largest element of a matrix, which alone outweighs all others. rms: of the others, or more than that."""

    weight: Weight
    peak: float
    rms: float

    @property
    def contrast(self) -> float:
        """How many times the others the largest is."""
        return self.peak / self.rms if self.rms > 0.0 else math.inf


_OUTLIER = ("checkpoint", "peak", "rms", "times", "before", "reach", "outliers")


@check(needs=["tensors"], facts=_OUTLIER)
def weight_outlier_from_nowhere(evidence: Evidence, *, contrast: float, bits: float) -> Answer:
    """A single weight far above all others of its matrix that no training made (detector D28).

    contrast: its magnitude over the root mean square of the others. No training: the optimizer's steps since the
    checkpoint before cannot reach it, or it exceeds `bits` times the others, as only one of the top three exponent
    bits does.
    """
    found = _outliers(evidence, contrast)
    if isinstance(found, Missing):
        return found
    hits = []
    for one in found:
        before = _earlier(evidence, one.weight)
        reach = math.inf if before is None else _reach(evidence, before, one.weight)
        impossible = before is not None and one.peak - _peak_of(before) > reach
        if one.weight.optimized is not False and (impossible or one.contrast > bits):
            hits.append(_outlier_hit(one, before, reach, len(found)))
    return hits


@check(needs=["tensors"], facts=_OUTLIER)
def weight_outlier(evidence: Evidence, *, contrast: float) -> Answer:
    """A single weight far above all others of its matrix, whatever made it (detector D28)."""
    found = _outliers(evidence, contrast)
    if isinstance(found, Missing):
        return found
    return [_outlier_hit(one, _earlier(evidence, one.weight), math.inf, len(found)) for one in found]


def _outlier_hit(one: _Outlier, before: Weight | None, reach: float, count: int) -> Hit:
    weight = one.weight
    clean = before is not None and before.step != weight.step and _peak_of(before) < 0.5 * one.peak
    facts: dict[str, Fact] = {
        "checkpoint": weight.checkpoint, "peak": one.peak, "rms": one.rms, "times": one.contrast, "outliers": count,
        "before": None if before is None else _peak_of(before), "reach": None if reach == math.inf else reach,
    }  # fmt: skip
    after = before.step if before is not None and clean else None
    return Hit(weight.step, after, "tensors", None, one.peak, weight.source, None, weight.name, facts)


def _outliers(evidence: Evidence, contrast: float) -> list[_Outlier] | Missing:
    found = weights(evidence)
    if found is None:
        return Missing("tensors")
    matrices = [one for one in found if len(one.shape) > 1 and one.l2 is not None and not _on_purpose(one)]
    if not matrices:
        return Missing("matrices among the weights")
    return [one for one in map(_outlier, matrices) if one is not None and one.contrast > contrast]


def _on_purpose(weight: Weight) -> bool:
    """Tables that hold what is no weight: masks full of large negative numbers, scales of quantised ones."""
    return any(word in weight.name.lower() for word in ("mask", "scale", "absmax", "zero_point", "inv_freq", "rotary"))


def _peak_of(weight: Weight) -> float:
    return max(abs(weight.min or 0.0), abs(weight.max or 0.0))


def _outlier(weight: Weight) -> _Outlier | None:
    """The largest element where its square is more than that of all others, of 64 at least that are not 0, together."""
    peak, others = _peak_of(weight), weight.count - weight.zero - weight.nonfinite - 1
    if weight.l2 is None or others < 64 or peak == 0.0:
        return None
    rest = max((weight.l2 / peak) ** 2 - 1.0, 0.0)
    if rest >= 1.0:
        return None
    low, high = weight.min or 0.0, weight.max or 0.0
    if rest < _RESOLVED and low < 0.0 < high:  # the sum of squares no longer shows the others: the far end does
        return _Outlier(weight, peak, min(-low, high))
    return _Outlier(weight, peak, peak * math.sqrt(rest / others))


def _earlier(evidence: Evidence, weight: Weight) -> Weight | None:
    """The same parameter in the checkpoint before."""
    if weight.step is None:
        return None
    older = [
        one
        for one in weights(evidence) or []
        if (one.name, one.rank, one.shape) == (weight.name, weight.rank, weight.shape)
        and one.step is not None
        and one.step < weight.step
    ]
    return max(older, key=lambda one: one.step or 0, default=None)


def _reach(evidence: Evidence, before: Weight, weight: Weight) -> float:
    """How far Adam's steps between two checkpoints carry a weight at most, by the rates in its group; inf if unknown.

    C times the number of updates times the largest rate that the groups of both name, threefold for a rate that was
    larger meanwhile. Weight decay only makes a weight smaller.
    """
    rates, updates, constant = [], 0, None
    for group in (*groups_of(evidence, before.checkpoint), *groups_of(evidence, weight.checkpoint)):
        if weight.name not in group.names:
            continue
        if not adam_like(group) or group.betas is None:
            return math.inf
        rates.append(_peak(group))
        if group.checkpoint == weight.checkpoint:
            constant, updates = bound(*group.betas), group.step_max or 0
    if constant is None or not rates or weight.optimized is not True:
        return math.inf
    passed = max((weight.step or 0) - (before.step or 0), 1)
    return 3.0 * constant * max(passed, min(updates, 10 * passed)) * max(rates)


# -- shapes -----------------------------------------------------------------------------------------------------------


@check(needs=["tensors"], facts=["checkpoint", "earlier", "was", "shape", "tensors", "judged"])
def parameter_shape_changed(evidence: Evidence, *, share: float, tables: str) -> Answer:
    """Parameters whose shape is another one than in the checkpoint before, while most keep theirs.

    share: of the parameters of both, at most: else the two are of different models. tables: "yes" for embeddings and
    heads of which only the number of rows changed, which a new vocabulary does; "no" for all others.
    """
    if evidence.table("tensors") is None:
        return Missing("tensors")
    held = evidence.once("weight_integrity.shapes", lambda: _shapes(evidence))
    if len(held) < 2:
        return Missing("two checkpoints with their steps")
    order = sorted(held)
    return [
        hit
        for first, last in pairwise(order)
        if first[0] < last[0]
        for hit in _changed_shapes(first, last, held[first], held[last], share, tables == "yes")
    ]


def _shapes(evidence: Evidence) -> dict[tuple[int, str], dict[str, tuple[int, ...]]]:
    """The shape of every parameter by its name, for each step and checkpoint; also of those that were not measured."""
    table = evidence.tables["tensors"]
    mine = table.filter((pl.col("role") == "param") & pl.col("rank").is_null() & pl.col("step").is_not_null())
    found: dict[tuple[int, str], dict[str, tuple[int, ...]]] = {}
    for path, step, name, shape in mine.select("checkpoint", "step", "name", "shape").iter_rows():
        found.setdefault((step, path), {})[name] = tuple(shape)
    return found


def _changed_shapes(
    first: tuple[int, str],
    last: tuple[int, str],
    before: Mapping[str, tuple[int, ...]],
    after: Mapping[str, tuple[int, ...]],
    share: float,
    tables: bool,
) -> Iterator[Hit]:
    common = before.keys() & after.keys()
    changed = sorted(name for name in common if before[name] != after[name])
    if not changed or len(changed) > share * len(common):
        return
    chosen = [name for name in changed if _resized_table(name, before[name], after[name]) == tables]
    if chosen:
        facts: dict[str, Fact] = {
            "checkpoint": last[1], "earlier": first[1], "was": str(list(before[chosen[0]])),
            "shape": str(list(after[chosen[0]])), "tensors": len(chosen), "judged": len(common),
        }  # fmt: skip
        yield Hit(last[0], first[0], "tensors", None, None, last[1], None, chosen[0], facts)


def _resized_table(name: str, was: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Rows were added to, or taken from, an embedding, a head or its bias."""
    return was[1:] == shape[1:] and len(was) > 0 and kind_of(name, (*shape, 1)[:2]) in ("embedding", "head", "bias")


CHECKS: tuple[Check, ...] = (
    weights_beyond_travel,
    weight_outlier_from_nowhere,
    weight_outlier,
    parameter_shape_changed,
)
