"""Checks on what only a fault can leave in Adam's moments, and on states that do not belong to their parameter.

The bound |m| <= C sqrt(v) is in `checkpoints.adam` (detector D09). It holds for Adam, AdamW and AMSGrad with betas that
never changed, in any element type with the exponents of float32.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import polars as pl

from gradforensics.checkpoint_signals import (
    FULL,
    Pair,
    adam_like,
    apart,
    checkpoints,
    groups,
    groups_of,
    labelled,
    moments,
    pairs,
    states,
    states_of,
)
from gradforensics.diagnosis.vocabulary import Answer, Check, Fact, Hit, Missing, check
from gradforensics.tables import Evidence

_FAINT = 1e-30  # norm of v below which its elements may have underflowed
_FACTS = ("checkpoint", "elements", "tensors", "ratio", "times", "negative", "judged", "checkpoints")


@dataclass(slots=True)
class _Judged:
    """The moments of one checkpoint for which the bound holds.

    known: whether all of its optimizer is Adam for certain. count: their elements; over, negative: elements above the
    bound, and with v < 0; tensors: rows with either; ratio: the largest one; worst: its row, or one with v < 0 (of the
    most `weight`).
    """

    checkpoint: str
    step: int | None
    known: bool
    count: int = 0
    over: int = 0
    negative: int = 0
    ratio: float = 0.0
    worst: str = ""
    weight: tuple[bool, float] = (False, 0.0)
    tensors: int = 0

    def add(self, row: Mapping[str, Any]) -> None:
        """Count one parameter's moments."""
        over, negative, ratio = row["bound_violations"] or 0, row["v_negative"] or 0, row["bound_ratio_max"] or 0.0
        self.count += row["count"]
        self.over += over
        self.negative += negative
        self.tensors += bool(over or negative)
        if (negative > 0, ratio) > self.weight:
            self.weight, self.worst = (negative > 0, ratio), row["name"]
        self.ratio = max(ratio, self.ratio)

    @property
    def broken(self) -> int:
        """Elements that no Adam makes."""
        return self.over + self.negative

    def certain(self, elements: int, share: float, ratio: float) -> bool:
        """Whether nothing but damage explains them: v < 0, or few of them and far above what other betas allow."""
        few = 0 < self.broken <= max(elements, share * self.count)
        return self.negative > 0 or (few and self.ratio > ratio)


@check(needs=["moments"], facts=_FACTS)
def moments_impossible(evidence: Evidence, *, elements: int, share: float, ratio: float) -> Answer:
    """Elements of m and v that no gradients make (detector D09): v < 0, or a few with an m far above the bound.

    elements, share: how many are a few, as a number or of all elements; ratio: |m| as a multiple of its bound.
    """
    found = _bounded(evidence)
    return (
        found
        if isinstance(found, Missing)
        else _hits(evidence, found, [one.certain(elements, share, ratio) for one in found])
    )


@check(needs=["moments"], facts=_FACTS)
def moments_above_bound(evidence: Evidence, *, elements: int, share: float, ratio: float) -> Answer:
    """Elements above Adam's bound that other betas, or a second moment that began anew, might explain too."""
    found = _bounded(evidence)
    if isinstance(found, Missing):
        return found
    known = [one for one in found if one.known]
    if not known:
        return Missing("moments of an optimizer that is Adam for certain")
    return _hits(evidence, known, [one.broken > 0 and not one.certain(elements, share, ratio) for one in known])


def _hits(evidence: Evidence, found: Sequence[_Judged], holds: Sequence[bool]) -> list[Hit]:
    bad = [one for one, bad in zip(found, holds, strict=True) if bad]
    good = [one.step for one in found if not one.broken and one.step is not None]
    files = {saved.path: saved.source for saved in checkpoints(evidence) or []}
    return [_bound_hit(one, good, len(bad), files.get(one.checkpoint)) for one in bad]


def _bound_hit(one: _Judged, good: Sequence[int], count: int, file: str | None) -> Hit:
    before = None if one.step is None else max((step for step in good if step < one.step), default=None)
    facts: dict[str, Fact] = {
        "checkpoint": one.checkpoint, "elements": one.broken, "tensors": one.tensors,
        "ratio": one.ratio,
        "times": math.inf if one.negative else one.ratio,
        "negative": one.negative, "judged": one.count, "checkpoints": count,
    }  # fmt: skip
    return Hit(one.step, before, "moments", None, one.ratio, file, None, one.worst, facts)


def _bounded(evidence: Evidence) -> list[_Judged] | Missing:
    return evidence.once("state_integrity.judged", lambda: _judged(evidence))


def _judged(evidence: Evidence) -> list[_Judged] | Missing:
    """The checkpoints, in order, whose moments the bound applies to; or why it applies to none."""
    found = moments(evidence)
    if not found:
        return Missing("moments")
    narrow = {label for label, dtype in _second_moments(evidence) if dtype == "float16"}
    strangers = {group.checkpoint for group in groups(evidence) or [] if not adam_like(group)}
    judged: list[_Judged] = []
    for path, rows in found.items():
        one = _Judged(path, rows[0]["step"], path not in strangers)
        for row in rows:
            if row["bound_violations"] is not None and (path, row["name"]) not in narrow:
                one.add(row)
        if one.count:
            judged.append(one)
    if not judged:
        return Missing("moments of Adam in float32 or bfloat16, with betas that never changed")
    return sorted(judged, key=lambda one: (one.step is None, one.step or 0))


def _second_moments(evidence: Evidence) -> Iterator[tuple[tuple[str, str], str]]:
    """Checkpoint and label in the table of moments, and the element type of v."""
    for (path, name, rank), row in states(evidence, "exp_avg_sq").items():
        own = row["key"].rpartition(".")[0] if row["key"] and row["key"] == name else name
        yield (path, labelled(own, rank)), row["dtype"]


# -- states of another parameter --------------------------------------------------------------------------------------


@check(needs=["tensors"], facts=["checkpoint", "state_shape", "shape", "tensors"])
def state_of_another_shape(evidence: Evidence) -> Answer:
    """Moments whose shape is not that of their parameter, where the file itself names the parameter."""
    table = evidence.table("tensors")
    exact = {one.path for one in checkpoints(evidence) or [] if one.naming == "exact"}
    plainly = {g.checkpoint for g in groups(evidence) or [] if adam_like(g)}
    if table is None or not exact & plainly:
        return Missing("states of Adam that stand under the names of their parameters")
    part = table.filter(pl.col("checkpoint").is_in(list(exact & plainly)) & pl.col("rank").is_null())
    wanted = part.select("checkpoint", "name", "step", "shape", "role")
    param, first, second = (wanted.filter(pl.col("role") == role) for role in ("param", "exp_avg", "exp_avg_sq"))
    held = param.join(first, on=["checkpoint", "name"], suffix="_m", maintain_order="left").join(
        second, on=["checkpoint", "name"], suffix="_v", maintain_order="left"
    )
    steps: dict[str, int | None] = {}
    bad: dict[str, list[tuple[str, dict[str, tuple[int, ...]]]]] = {}
    differing = held.filter(pl.col("shape") != pl.col("shape_m"))
    for path, name, step, *shapes in differing.select(
        "checkpoint", "name", "step", "shape", "shape_m", "shape_v"
    ).iter_rows():
        roles = dict(zip(("param", "exp_avg", "exp_avg_sq"), map(tuple, shapes), strict=True))
        if _misfits(roles):
            steps[path] = step
            bad.setdefault(path, []).append((name, roles))
    return [
        Hit(
            steps[path], None, "tensors", None, None, path, None, found[0][0],
            {
                "checkpoint": path, "tensors": len(found), "shape": str(list(found[0][1]["param"])),
                "state_shape": str(list(found[0][1]["exp_avg"])),
            },
        )
        for path, found in bad.items()
    ]  # fmt: skip


def _misfits(roles: Mapping[str, tuple[int, ...]]) -> bool:
    """Both moments of one shape, that of the parameter another one with as many dimensions (flat parts have one)."""
    mine, shape = roles["exp_avg"], roles["param"]
    return mine == roles["exp_avg_sq"] and mine != shape and len(mine) == len(shape) and math.prod(mine) > 0


@check(
    needs=["tensors", "travels", "groups", "checkpoints:named"],
    facts=["checkpoint", "earlier", "tensors", "judged", "updates", "share", "other"],
)
def second_moments_not_continued(evidence: Evidence, *, tolerance: float) -> Answer:
    """Second moments that are smaller than those of the checkpoint before, aged: v_b >= beta2^n v_a at any element.

    So the norm of v falls by the factor beta2^n in n updates at most; tolerance: how much less still passes. Only where
    names are certain, the counters went on with the steps and the betas are the same in both checkpoints.
    """
    judged, hits = False, []
    for pair in pairs(evidence) or []:
        if apart(evidence, pair.first.path, pair.last.path):
            continue
        aged = list(_aged(evidence, pair)) if _logged(evidence, pair) and _named_alike(evidence, pair) else []
        judged |= bool(aged)
        bad = [one for one in aged if one.share < 1.0 - tolerance]
        if bad:
            hits.append(_aged_hit(evidence, pair, min(bad, key=lambda one: one.share), len(bad), len(aged)))
    return hits if judged else Missing("two checkpoints of one training with Adam states in float32")


class _Aged(NamedTuple):
    """A second moment in two checkpoints: share: its norm, of the least that it can have after so many updates."""

    name: str
    rank: int | None
    updates: int
    share: float


def _aged(evidence: Evidence, pair: Pair) -> Iterator[_Aged]:
    sizes, older = (states_of(evidence, "exp_avg_sq", one.path) for one in (pair.last, pair.first))
    first, last = (_hyper_of(evidence, path) for path in (pair.first.path, pair.last.path))
    for (name, rank), row in sizes.items():
        old, then, now = older.get((name, rank)), first.get((name, rank)), last.get((name, rank))
        if old is None or then is None or now is None or then.beta2 != now.beta2:
            continue
        updates, comparable = now.step - then.step, old["shape"] == row["shape"] and old["dtype"] == row["dtype"]
        if updates < 1 or not comparable or row["dtype"] not in FULL or not old["l2"]:
            continue
        if row["l2"] is None or row["nan"] or not _went_on(pair, then.step, now.step):
            continue
        least = math.log(old["l2"]) + updates * math.log(now.beta2)
        share = 0.0 if row["l2"] == 0.0 else math.exp(min(math.log(row["l2"]) - least, 700.0))
        # what underflow takes is no fault
        yield _Aged(name, rank, updates, share if least > math.log(_FAINT) else max(share, 1.0))


def _went_on(pair: Pair, then: int, now: int) -> bool:
    """Whether the counter grew with the steps: one that began anew counts from its own start."""
    first, last = pair.first.step or 0, pair.last.step or 0
    return abs(then * last - now * first) <= 0.01 * now * max(first, 1)


def _named_alike(evidence: Evidence, pair: Pair) -> bool:
    """Whether the files themselves name the states of both, or the same order gave both the same certain names."""
    if pair.first.naming == pair.last.naming == "exact":
        return True
    orders = [
        [(group.rank, group.number, group.names) for group in groups_of(evidence, path)]
        for path in (pair.first.path, pair.last.path)
    ]
    return pair.named and orders[0] == orders[1]


def _logged(evidence: Evidence, pair: Pair) -> bool:
    """Whether the log, where there is one, reaches the later checkpoint: one of an older launch may lie beside it."""
    log = evidence.series("loss")
    if log is None or log.step_unit != "step" or not len(log):
        return True
    return float(log.steps[-1]) + max(1.0, log.cadence) >= (pair.last.step or 0)


class _Counted(NamedTuple):
    beta2: float
    step: int


def _hyper_of(evidence: Evidence, path: str) -> dict[tuple[str, int | None], _Counted]:
    """beta2 and counter of every parameter of a checkpoint whose group has one of each."""
    return {
        (name, group.rank): _Counted(group.betas[1], group.step_max)
        for group in groups_of(evidence, path)
        if adam_like(group)
        and group.betas is not None
        and 0.0 < group.betas[1] < 1.0
        and group.step_max is not None
        and group.step_min == group.step_max
        for name in group.names
    }


def _aged_hit(evidence: Evidence, pair: Pair, worst: _Aged, count: int, judged: int) -> Hit:
    mine = states_of(evidence, "exp_avg_sq", pair.last.path)[worst.name, worst.rank]
    alike = {
        name: row["l2"]
        for (name, rank), row in states_of(evidence, "exp_avg_sq", pair.first.path).items()
        if rank == worst.rank and row["shape"] == mine["shape"] and row["l2"]
    }
    nearest = min(alike, key=lambda name: abs(math.log(alike[name] / (mine["l2"] or _FAINT))))
    facts: dict[str, Fact] = {
        "checkpoint": pair.last.path, "earlier": pair.first.path, "tensors": count, "judged": judged,
        "updates": worst.updates, "share": worst.share, "other": nearest,
    }  # fmt: skip
    return Hit(pair.last.step, pair.first.step, "tensors", None, worst.share, pair.last.source, None, worst.name, facts)


CHECKS: tuple[Check, ...] = (
    moments_impossible,
    moments_above_bound,
    state_of_another_shape,
    second_moments_not_continued,
)
