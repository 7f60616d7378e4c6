"""The tables of checkpoints as the checks read them: weights by kind and layer, Adam states, pairs of checkpoints.

Nothing is judged here. Every function answers None where its tables are not available, so that a check can say so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, TypeVar

import polars as pl

from gradforensics import weight_copies
from gradforensics.checkpoint_rows import FULL as FULL  # noqa: PLC0414  offered to everybody who reads the tables
from gradforensics.checkpoint_rows import HALF as HALF  # noqa: PLC0414  likewise
from gradforensics.checkpoint_rows import SURE as SURE  # noqa: PLC0414  likewise
from gradforensics.checkpoint_rows import Average as Average  # noqa: PLC0414  likewise
from gradforensics.checkpoint_rows import Group as Group  # noqa: PLC0414  likewise
from gradforensics.checkpoint_rows import Pair as Pair  # noqa: PLC0414  likewise
from gradforensics.checkpoint_rows import Saved as Saved  # noqa: PLC0414  likewise
from gradforensics.checkpoint_rows import Weight as Weight  # noqa: PLC0414  likewise
from gradforensics.checkpoints.lines import lines, told_apart, without_step
from gradforensics.checkpoints.model import is_mask
from gradforensics.parameter_names import kind_of, layer_of
from gradforensics.patterns import lazy
from gradforensics.tables import Evidence

_ALIKE = 0.1  # cosine below which two matrices have nothing to do with each other
_MATRIX = 256  # elements of a matrix whose cosine tells something

_OTHER_TABLE = lazy(
    r"pos|wpe|avg|codebook|type|segment|time|class|label|cond|patch|relative|rotary|speaker|lang", re.IGNORECASE
)


def is_token_table(weight: Weight) -> bool:
    """Whether a parameter is an embedding of tokens, and not of positions, segments, classes or time."""
    return weight.kind == "embedding" and len(weight.shape) == 2 and _OTHER_TABLE.search(weight.name) is None


_Held = TypeVar("_Held", Weight, Group)


def checkpoints(evidence: Evidence) -> list[Saved] | None:
    """Every checkpoint with tensors, in the order of the steps; those without a step come last."""
    return evidence.once("checkpoint_signals.checkpoints", lambda: _checkpoints(evidence))


def _checkpoints(evidence: Evidence) -> list[Saved] | None:
    table = evidence.table("checkpoints")
    if table is None:
        return None
    rows = (
        Saved(
            row["path"], row["step"], row["format"], row["complete"], row["naming_sure"] or "", row["source"],
            row["nonfinite"],
        )
        for row in table.iter_rows(named=True)
    )  # fmt: skip
    return sorted(rows, key=lambda one: (one.step is None, one.step or 0))


def weights(evidence: Evidence) -> list[Weight] | None:
    """Every measured parameter of every checkpoint, in the order of the checkpoints and of the table.

    A parameter with a float32 master is measured there, and a master alone is a parameter. Averaged copies of the
    weights are left out, see `averages`. None also where tensors were listed but not measured.
    """
    return None if (found := _held(evidence)) is None else found.live


def weights_by_checkpoint(evidence: Evidence) -> Mapping[str, list[Weight]]:
    """The weights of every checkpoint that has some, in order."""
    return evidence.once("checkpoint_signals.weights_by_checkpoint", lambda: _by_path(weights(evidence) or []))


def _by_path(found: Iterable[_Held]) -> dict[str, list[_Held]]:
    parts: dict[str, list[_Held]] = {}
    for one in found:
        parts.setdefault(one.checkpoint, []).append(one)
    return parts


def averages(evidence: Evidence) -> list[Average] | None:
    """Every averaged copy of weights, in the order of the checkpoints that hold the live ones; None as for weights."""
    return None if (found := _held(evidence)) is None else found.averages


@dataclass(frozen=True, slots=True)
class _Beside:
    """The weights, and what lies beside them: copies by (checkpoint, name) or, where it is one whole, by its path."""

    live: list[Weight]
    averages: list[Average]
    hidden: frozenset[tuple[str, str]]
    paths: frozenset[str]


def _held(evidence: Evidence) -> _Beside | None:
    return evidence.once("checkpoint_signals.held", lambda: _sorted_out(evidence))


def _sorted_out(evidence: Evidence) -> _Beside | None:
    found = _weights(evidence)
    if found is None:
        return None
    parts = _by_path(found)
    counts = _counts(evidence)
    averages: list[Average] = []
    hidden: set[tuple[str, str]] = set()
    paths: set[str] = set()
    for path, mine in parts.items():
        by_name = {weight.name: weight for weight in mine if weight.rank is None}
        copies, names = weight_copies.find([(weight.name, weight.shape) for weight in by_name.values()])
        hidden |= {(path, name) for name in names}
        for copy in copies:
            pairs = tuple((by_name[name], by_name[of]) for name, of in copy.names.items())
            averages.append(Average(path, mine[0].step, copy.key, pairs, counts.get((path, copy.key))))
        of = weight_copies.beside(path, parts) if weight_copies.is_copy_path(path) else None
        if of is not None:
            paths.add(path)
            live = {weight.name: weight for weight in parts[of]}
            pairs = tuple((weight, live[weight.name]) for weight in mine if weight.name in live)
            averages.append(Average(of, parts[of][0].step, weight_copies.key_of(path), pairs, None))
    live_ones = [w for w in found if w.checkpoint not in paths and (w.checkpoint, w.name) not in hidden]
    return _Beside(live_ones, averages, frozenset(hidden), frozenset(paths))


def _counts(evidence: Evidence) -> dict[tuple[str, str], int]:
    """By checkpoint and key of a copy, how often it was updated, as its own counter says."""
    table = evidence.table("tensors")
    if table is None:
        return {}
    counter = pl.col("name").str.contains(r"\.(?:n_averaged|num_updates)$") & (pl.col("count") == 1)
    mine = table.filter(counter & pl.col("role").is_in(["buffer", "param", "other"]) & pl.col("min").is_not_null())
    found: dict[tuple[str, str], int] = {}
    for path, name, value in mine.select("checkpoint", "name", "min").iter_rows():
        found[path, name.rpartition(".")[0].replace("averaging_state", "averaged")] = int(value)
    return found


def _weights(evidence: Evidence) -> list[Weight] | None:
    table = evidence.table("tensors")
    if table is None:
        return None
    measured = table.filter(pl.col("role").is_in(["param", "master"]) & pl.col("nan").is_not_null())
    if not measured.height:
        return None
    best: dict[tuple[str, str, int | None], int] = {}
    roles, types = measured["role"].to_list(), measured["dtype"].to_list()
    stored = list(types)
    for place, label in enumerate(measured.select("checkpoint", "name", "rank").iter_rows()):
        known = best.setdefault(label, place)
        if roles[place] == "master" and roles[known] == "param":
            best[label], stored[place] = place, types[known]
        elif roles[place] == "param" and roles[known] == "master":
            stored[known] = types[place]
    names: dict[str, set[str]] = {}
    for path, name, _ in best:
        names.setdefault(path, set()).add(name)
    held = _optimized(evidence, names)
    rows = measured.select(_WEIGHT).rows()
    return [_weight(rows[place], stored[place], held.get(path)) for (path, *_), place in best.items()]


_WEIGHT = (
    "checkpoint", "step", "rank", "name", "dtype", "shape", "count", "nan", "posinf", "neginf", "zero", "one", "min",
    "max", "mean", "std", "l2", "fingerprint", "row_l2_min", "row_l2_max", "row_l2_max_index", "zero_rows", "source",
)  # fmt: skip


def _optimized(evidence: Evidence, names: Mapping[str, set[str]]) -> dict[str, frozenset[str]]:
    """The parameters in the groups of every checkpoint, of those (`names`) that it holds; where that is certain.

    Certain are named groups, and groups of as many ids as there are parameters: then none is left out.
    """
    listed: dict[str, set[str]] = {}
    for group in groups(evidence) or []:
        listed.setdefault(group.checkpoint, set()).update(group.names)
    sure = {one.path for one in checkpoints(evidence) or [] if one.naming in SURE}
    found = {path: frozenset(held) for path, held in listed.items() if path in sure}
    for path, held in listed.items():
        if path not in sure and len(held) == len(names.get(path, ())):
            found[path] = frozenset(names[path])
    return found


def _weight(row: tuple[Any, ...], dtype: str, held: frozenset[str] | None) -> Weight:
    """A weight out of its cells, see _WEIGHT."""
    path, step, rank, name, measured, listed, count, nan, posinf, neginf, *values, source = row
    shape = tuple(listed)
    bad = nan + posinf + (neginf and _unmeant(name, neginf))
    optimized = None if held is None else name in held
    return Weight(
        path, step, rank, name, kind_of(name, shape), layer_of(name), dtype, measured, shape, count, bad,
        *(*values, optimized, source),
    )  # fmt: skip


def _unmeant(name: str, neginf: int) -> int:
    """How many -inf of a tensor are none of a mask, which is full of them on purpose."""
    return 0 if is_mask(name) else neginf


def nonfinite(row: Mapping[str, Any]) -> int:
    """NaN and infinities of a row of `tensors`; -inf in a mask is not counted."""
    bad: int = row["nan"] + row["posinf"] + (row["neginf"] and _unmeant(row["name"], row["neginf"]))
    return bad


def states(evidence: Evidence, role: str) -> dict[tuple[str, str, int | None], Mapping[str, Any]]:
    """The measured tensors of one role ("exp_avg", "exp_avg_sq", "momentum", "buffer" ...) as rows of `tensors`.

    By checkpoint, name and rank. A state whose parameter is not known has the path of its keys for a name. Shapes are
    tuples.
    """
    return evidence.once(("checkpoint_signals.states", role), lambda: _states(evidence, role))


def _states(evidence: Evidence, role: str) -> dict[tuple[str, str, int | None], Mapping[str, Any]]:
    table = evidence.table("tensors")
    if table is None:
        return {}
    part = table.filter((pl.col("role") == role) & pl.col("nan").is_not_null())
    shapes: dict[tuple[int, ...], tuple[int, ...]] = {}  # each once: the garbage collector then passes over the rows
    found: dict[tuple[str, str, int | None], Mapping[str, Any]] = {}
    for row, shape in zip(part.drop("shape").iter_rows(named=True), part["shape"].to_list(), strict=True):
        known = tuple(shape or ())
        row["shape"] = shapes.setdefault(known, known)
        found[row["checkpoint"], row["name"], row["rank"]] = row
    return found


def states_of(evidence: Evidence, role: str, checkpoint: str) -> Mapping[tuple[str, int | None], Mapping[str, Any]]:
    """The rows of `states` of one checkpoint, by name and rank; empty where it has none."""
    return evidence.once(("checkpoint_signals.states_of", role), lambda: _states_of(evidence, role)).get(checkpoint, {})


def _states_of(evidence: Evidence, role: str) -> dict[str, dict[tuple[str, int | None], Mapping[str, Any]]]:
    found: dict[str, dict[tuple[str, int | None], Mapping[str, Any]]] = {}
    for (path, name, rank), row in states(evidence, role).items():
        found.setdefault(path, {})[name, rank] = row
    return found


def moments(evidence: Evidence) -> dict[str, list[Mapping[str, Any]]] | None:
    """The rows of the table of moments by checkpoint; names end in "@RANK" where several ranks hold parts."""
    return evidence.once("checkpoint_signals.moments", lambda: _moments(evidence))


def _moments(evidence: Evidence) -> dict[str, list[Mapping[str, Any]]] | None:
    table = evidence.table("moments")
    if table is None:
        return None
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in table.to_dicts():
        found.setdefault(row["checkpoint"], []).append(row)
    return found


def groups(evidence: Evidence) -> list[Group] | None:
    """Every parameter group of every checkpoint."""
    return evidence.once("checkpoint_signals.groups", lambda: _groups(evidence))


def groups_of(evidence: Evidence, checkpoint: str) -> list[Group]:
    """The parameter groups of one checkpoint; empty where it has none."""
    return evidence.once("checkpoint_signals.groups_of", lambda: _by_path(groups(evidence) or [])).get(checkpoint, [])


def adam_groups_of(evidence: Evidence, checkpoint: str) -> Mapping[str, Group]:
    """The groups of one checkpoint for which Adam's formulas hold, by the names of their parameters."""
    return evidence.once("checkpoint_signals.adam_groups_of", lambda: _adam_groups(evidence)).get(checkpoint, {})


def _adam_groups(evidence: Evidence) -> dict[str, dict[str, Group]]:
    found: dict[str, dict[str, Group]] = {}
    for group in filter(adam_like, groups(evidence) or []):
        found.setdefault(group.checkpoint, {}).update(dict.fromkeys(group.names, group))
    return found


def _groups(evidence: Evidence) -> list[Group] | None:
    table = evidence.table("groups")
    if table is None:
        return None
    return [
        Group(
            row["checkpoint"], row["rank"], row["group"], row["optimizer"] or "", row["lr"],
            None if row["betas"] is None else (row["betas"][0], row["betas"][1]), row["eps"], row["weight_decay"],
            row["momentum"], tuple(row["names"] or ()), row["step_min"], row["step_max"],
            json.loads(row["values"] or "{}"),
        )
        for row in table.to_dicts()
    ]  # fmt: skip


def sure(evidence: Evidence) -> frozenset[str]:
    """The checkpoints whose states belong for certain to the parameters whose names they carry.

    One that lists the same names in the same groups as a checkpoint whose naming is certain is one of them: which state
    belongs to which parameter is a matter of the program, and a first checkpoint has no movement that could confirm it.
    """
    return evidence.once("checkpoint_signals.sure", lambda: _sure(evidence))


def _sure(evidence: Evidence) -> frozenset[str]:
    orders: dict[str, set[tuple[int | None, int, tuple[str, ...]]]] = {}
    for group in groups(evidence) or []:
        orders.setdefault(group.checkpoint, set()).add((group.rank, group.number, group.names))
    saved = checkpoints(evidence) or []
    certain = {one.path for one in saved if one.naming in SURE}
    known = [orders[path] for path in certain if path in orders]
    return frozenset(certain | {path for path, order in orders.items() if order in known})


def pairs(evidence: Evidence) -> list[Pair] | None:
    """The neighbouring checkpoints that were compared, in the order of the steps."""
    return evidence.once("checkpoint_signals.pairs", lambda: _pairs(evidence))


def _pairs(evidence: Evidence) -> list[Pair] | None:
    table, saved = evidence.table("travels"), checkpoints(evidence)
    if table is None or saved is None:
        return None
    rows: dict[tuple[int, str], dict[str, Mapping[str, Any]]] = {}
    for row in table.to_dicts():
        rows.setdefault((row["first_step"], row["checkpoint"]), {})[row["name"]] = row
    held = _held(evidence)
    hidden, aside = (held.hidden, held.paths) if held is not None else (frozenset(), frozenset())
    found: list[Pair] = []
    saved = [one for one in saved if one.path not in aside]
    by_path = {one.path: one for one in saved}
    line = lines([(one.path, one.step) for one in saved])
    for (step, path), part in rows.items():
        first = _before(saved, step, by_path[path], line) if path in by_path else None
        if first is not None:
            copies = {name: row for name, row in part.items() if (path, name) in hidden}
            found.append(Pair(first, by_path[path], {n: r for n, r in part.items() if n not in copies}, copies))
    return sorted(found, key=lambda pair: (pair.first.step or 0, pair.last.step or 0))


def _before(saved: list[Saved], step: int, last: Saved, line: Mapping[str, str]) -> Saved | None:
    """The checkpoint of a step that `last` was compared with: the nearest one before it in the order of the steps."""
    place, mine = saved.index(last), line.get(last.path)
    return next((one for one in reversed(saved[:place]) if one.step == step and line.get(one.path) == mine), None)


def apart(evidence: Evidence, first: str, last: str) -> bool:
    """Whether two checkpoints, by their paths, are of two trainings or two stages of one, for all that can be told.

    Their names say so, or they differ in more than the step, as a.pt and b.pt do, and the matrices of one have nothing
    to do with those of the other, as those of two seeds: the median of their cosines is below 0.1. (Neighbours of one
    training had 0.85 and more in some 60 small runs, two seeds 0.01; one matrix of 256 random elements has some 0.06.)
    """
    if told_apart(first, last):
        return True
    return (first, last) in evidence.once("checkpoint_signals.strangers", lambda: _strangers(evidence))


def _strangers(evidence: Evidence) -> frozenset[tuple[str, str]]:
    named_apart = [
        pair
        for pair in pairs(evidence) or []
        if without_step(pair.first.path, pair.first.step) != without_step(pair.last.path, pair.last.step)
    ]
    if not named_apart:
        return frozenset()
    known = {(w.checkpoint, w.name if w.rank is None else f"{w.name}@{w.rank}"): w for w in weights(evidence) or []}
    found = set()
    for pair in named_apart:
        cosines = [
            cosine
            for label, row in pair.rows.items()
            if (cosine := _cosine(known.get((pair.first.path, label)), known.get((pair.last.path, label)), row))
            is not None
        ]
        if cosines and abs(median(cosines)) < _ALIKE:
            found.add((pair.first.path, pair.last.path))
    return frozenset(found)


def _cosine(first: Weight | None, last: Weight | None, row: Mapping[str, Any]) -> float | None:
    """The cosine between one matrix in two checkpoints, from their norms and the distance between them."""
    travel = row["rel_travel"]
    if first is None or last is None or travel is None or not first.l2 or not last.l2:
        return None
    if len(first.shape) < 2 or first.count < _MATRIX or first.nonfinite or last.nonfinite:
        return None
    return float((first.l2**2 + last.l2**2 - (travel * first.l2) ** 2) / (2.0 * first.l2 * last.l2))


def plain(name: str) -> str:
    """The name of a parameter in the tables of moments and travels, without the "@RANK" at its end."""
    head, at, rank = name.rpartition("@")
    return head if at and rank.isdecimal() else name


def labelled(name: str, rank: int | None) -> str:
    """The name of a parameter of one rank in the tables of moments and travels; `plain` takes it back."""
    return name if rank is None else f"{name}@{rank}"


def facts(evidence: Evidence, checkpoint: str) -> Mapping[str, Any]:
    """The counters and plain data that a checkpoint holds, such as {"scheduler.last_epoch": 6, "optimizer.step": 6}."""
    return evidence.once("checkpoint_signals.facts", lambda: _facts(evidence)).get(checkpoint, {})


def _facts(evidence: Evidence) -> dict[str, dict[str, Any]]:
    table = evidence.table("facts")
    found: dict[str, dict[str, Any]] = {}
    if table is not None:
        for checkpoint, key, value in table.select("checkpoint", "key", "value").iter_rows():
            found.setdefault(checkpoint, {})[key] = json.loads(value)
    return found


def adam_like(group: Group) -> bool:
    """Whether Adam's formulas hold for a group: Adam, AdamW or AMSGrad, or nothing but Adam's moments tells."""
    return group.optimizer in ("adam", "adamw", "amsgrad") and group.betas is not None
