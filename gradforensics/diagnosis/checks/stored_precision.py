"""Checks on the formats in which checkpoints keep the weights that the optimizer updates, and its moments."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from gradforensics import checkpoint_signals as signals
from gradforensics import logged_rates
from gradforensics.checkpoint_signals import Group, Pair, Saved, Weight
from gradforensics.checkpoints.adam import UNIT_ROUNDOFF
from gradforensics.diagnosis.checks.precision import precision
from gradforensics.diagnosis.vocabulary import Answer, Check, Fact, Hit, Missing, check
from gradforensics.patterns import lazy
from gradforensics.tables import Evidence

_HALF_SPACING = {name: UNIT_ROUNDOFF[name] / 2 for name in signals.HALF}
"""Half of the distance to the next number below a power of two, as a share of it: a smaller change is always lost."""

# What gives back to the weights what rounding took, by its name among the states and among the settings
_KEPT = lazy(r"kahan|compensat|^shift$|master|fp32|residual|low_?bits", re.IGNORECASE)
_SAID = lazy(r"kahan|compensat|stochastic_?round|master_(?:weight|param)|fp32_(?:param|master)", re.IGNORECASE)


class Coarse(NamedTuple):
    """A checkpoint whose trained weights and moments are kept in 16 bits, under Adam and without any compensation.

    weights: the trained ones of 16 bits. update: root mean square of Adam's update before the learning rate, over all
    moments. updates: how many the states have seen.
    """

    saved: Saved
    dtype: str
    weights: list[Weight]
    update: float
    updates: int


_Judged: TypeAlias = Coarse | Missing | None
"""None: its weights, or masters of them, are float32, or what rounding takes from them is given back."""


def _coarse(evidence: Evidence) -> dict[str, _Judged] | Missing:
    return evidence.once("stored_precision.coarse", lambda: _all_coarse(evidence))


def _all_coarse(evidence: Evidence) -> dict[str, _Judged] | Missing:
    found, saved = signals.weights_by_checkpoint(evidence), signals.checkpoints(evidence)
    if not found or saved is None:
        return Missing("tensors")
    return {one.path: _judge(evidence, one, found[one.path]) for one in saved if one.path in found}


def _judge(evidence: Evidence, saved: Saved, weights: list[Weight]) -> _Judged:
    """Whether what the optimizer updates is kept in 16 bits for certain."""
    states = list(signals.states_of(evidence, "exp_avg_sq", saved.path).values())
    trained = _trained(weights, states)
    # a master is measured in place of its weight, or lies beside weights that it was not matched with
    masters = signals.states_of(evidence, "master", saved.path)
    if masters or not any(w.measured in _HALF_SPACING for w in (weights if trained is None else trained)):
        return None
    if not states:
        return Missing("the state of the optimizer beside weights in 16 bits")
    if trained is None:
        return Missing("checkpoints:named")  # which of the weights the optimizer updates
    groups = signals.groups_of(evidence, saved.path)
    if _compensated(evidence, saved.path):
        return None
    if not groups or not all(signals.adam_like(group) for group in groups):
        return Missing("an optimizer whose rounding is known: Adam or AdamW")
    if len(rates := {group.lr for group in groups}) > 1 and 0.0 in rates:
        return Missing("which weights a group with a learning rate of 0 keeps as they are")
    if not all(row["dtype"] in _HALF_SPACING for row in states) and not _declared_pure(evidence):
        return Missing("whether the 16-bit weights are those of the training: moments in float32 suggest a copy")
    return _measured(evidence, saved, [w for w in trained if w.measured in _HALF_SPACING], groups)


def _trained(weights: list[Weight], states: list[Mapping[str, Any]]) -> list[Weight] | None:
    """The weights that have a state; None where that is not certain.

    Where the names are not, the sizes may tell: all weights have one, or just those in float32, as adapters do.
    """
    if weights and all(w.optimized is not None for w in weights):
        return [w for w in weights if w.optimized]
    held = sum(int(row["count"]) for row in states)
    full = [w for w in weights if w.measured not in _HALF_SPACING]
    for part in (weights, full):
        if part and held == sum(w.count for w in part):
            return part
    return None


def _compensated(evidence: Evidence, checkpoint: str) -> bool:
    """Whether states, groups or settings name what compensates rounding."""
    tensors = evidence.table("tensors")
    if tensors is not None:
        others = tensors.filter((tensors["checkpoint"] == checkpoint) & (tensors["role"] == "state"))
        if any(_KEPT.search(str(key or name).rpartition(".")[2]) for key, name in others[["key", "name"]].rows()):
            return True
    said = [item for group in signals.groups_of(evidence, checkpoint) for item in group.values.items()]
    said += [(setting.key, setting.value) for setting in evidence.settings or []]
    return any(
        (_SAID.search(str(key)) and value not in (False, None, 0, "")) or (key == "optim" and _SAID.search(str(value)))
        for key, value in said
    )


def _declared_pure(evidence: Evidence) -> bool:
    """Whether the settings say that the weights themselves are in 16 bits."""
    said = precision(evidence)
    return said is not None and said.form == "pure" and said.width != "fp32"


def _measured(evidence: Evidence, saved: Saved, weights: list[Weight], groups: list[Group]) -> _Judged:
    rows = [r for r in (signals.moments(evidence) or {}).get(saved.path, []) if r["update_rms"] is not None]
    count = sum(row["count"] for row in rows)
    updates = [group.step_min for group in groups if group.step_min is not None]
    if not count or not updates or not weights:
        return Missing("the step and eps of the optimizer's states")
    square = sum(row["count"] * row["update_rms"] ** 2 for row in rows) / count
    dtypes = sorted({w.measured for w in weights})
    return Coarse(saved, dtypes[0], weights, math.sqrt(square), min(updates))


# -- learning rates -------------------------------------------------------------------------------------------------


class _Rates(NamedTuple):
    most: float
    mean: float


def _rates(evidence: Evidence, first: int, last: int, checkpoints: tuple[str, ...]) -> _Rates | None:
    """The largest and the mean learning rate of the steps first < step <= last, logged or kept in the groups."""
    kept = [group.lr for path in checkpoints for group in signals.groups_of(evidence, path) if group.lr is not None]
    logged = logged_rates.between(evidence, first, last)
    if len(logged):
        return _Rates(float(max([*logged, *kept])), float(logged.mean()))
    return _Rates(max(kept), sum(kept) / len(kept)) if kept else None


def _spacing(weight: Weight) -> float | None:
    """Half of the distance between numbers of the size of the weights (their root mean square)."""
    if not weight.l2 or not weight.count:
        return None
    return _HALF_SPACING[weight.measured] * weight.l2 / math.sqrt(weight.count)


def _lost(weights: list[Weight], step: float) -> float:
    """The share of the elements that lie in tensors whose typical update is below half of that distance."""
    pairs = [(w.count, spacing) for w in weights if (spacing := _spacing(w)) is not None]
    total = sum(count for count, _ in pairs)
    return sum(count for count, spacing in pairs if step < spacing) / total if total else 0.0


def _if_stochastic(count: int, distance: float, step: float, updates: int) -> float:
    """How many of `count` elements stochastic rounding would have changed at least: each time with step / distance."""
    return count * (1.0 - math.exp(-updates * min(step / distance, 1.0)))


# -- checks ---------------------------------------------------------------------------------------------------------


@check(
    needs=["tensors"],
    facts=["checkpoint", "before", "updates", "unchanged", "dtype", "lr", "typical", "spacing", "elements"],
)
def updates_rounded_away(evidence: Evidence, *, unchanged: float, most: float, certain: float) -> Answer:
    """Between two checkpoints most 16-bit weights kept every bit although each had an update (detector D25).

    unchanged: share of the elements of matrices, embeddings apart, above which it is a fault. most: share of these in
    tensors whose typical update (the learning rate times the update's root mean square) is below half of the distance
    between numbers of their size. certain: stochastic rounding would have changed so many times more of them.
    Weights in float32, masters of them, Kahan summation and stochastic rounding are acquitted.
    """
    found = _coarse(evidence)
    if isinstance(found, Missing):
        return found
    if not any(isinstance(one, Coarse) for one in found.values()):
        return _none_coarse(found)
    hits: list[Hit] = []
    reasons: list[str] = []
    compared = False
    for pair in signals.pairs(evidence) or []:
        before, after = found.get(pair.first.path), found.get(pair.last.path)
        if not isinstance(before, Coarse) or not isinstance(after, Coarse):
            continue
        answer = _stagnation(evidence, pair, before, after, unchanged=unchanged, most=most, certain=certain)
        if isinstance(answer, str):
            reasons.append(answer)
        else:
            compared = True
            hits += answer
    return hits if compared else Missing(*dict.fromkeys(reasons or ["travels"]))


def _none_coarse(found: Mapping[str, _Judged]) -> Answer:
    """The answer where no checkpoint is coarse: one that was judged acquits, such as one beside a 16-bit copy."""
    missing = [one for one in found.values() if isinstance(one, Missing)]
    if len(missing) < len(found):
        return []
    return Missing(*dict.fromkeys(what for one in missing for what in one.what))


def _stagnation(
    evidence: Evidence, pair: Pair, before: Coarse, after: Coarse, *, unchanged: float, most: float, certain: float
) -> list[Hit] | str:
    rows = [
        (weight, row)
        for weight in after.weights
        if weight.kind not in ("embedding", "norm", "bias", "other") and (row := _row(pair, weight)) is not None
    ]
    total = sum(weight.count for weight, _ in rows)
    updates = after.updates - before.updates
    rates = _rates(evidence, pair.first.step or 0, pair.last.step or 0, (pair.first.path, pair.last.path))
    if not total:
        return "matrices in two checkpoints"
    if updates < 1 or rates is None or rates.mean <= 0.0:
        return "two checkpoints with updates at a known learning rate between them"
    if not _received(evidence, after):
        return "states that had a gradient: the first moments of many elements are 0"
    same = sum((1.0 - row["changed"]) * weight.count for weight, row in rows) / total
    if same <= unchanged:
        return []
    size = max(before.update, after.update)
    if _lost([weight for weight, _ in rows], rates.most * size) <= most:
        return []
    # half of the elements are smaller than the root mean square, and their numbers lie closer
    expected = sum(
        _if_stochastic(w.count, 4.0 * spacing, rates.mean * min(before.update, after.update), updates) / 2.0
        for w, _ in rows
        if (spacing := _spacing(w)) is not None
    )
    if expected < certain * (1.0 - same) * total:
        return "more updates between the two checkpoints: so few may also be rounded stochastically"
    spacings = [spacing for weight, _ in rows if (spacing := _spacing(weight)) is not None]
    facts: dict[str, Fact] = {
        "checkpoint": pair.last.path, "before": pair.first.path, "updates": updates, "unchanged": same,
        "dtype": after.dtype, "lr": rates.most, "typical": rates.most * size, "spacing": float(np.median(spacings)),
        "elements": total,
    }  # fmt: skip
    worst = min(rows, key=lambda one: one[1]["changed"])[0]
    return [Hit(pair.last.step, None, "travels", None, same, pair.last.source, None, worst.name, facts)]


def _row(pair: Pair, weight: Weight) -> Mapping[str, Any] | None:
    row = pair.rows.get(signals.labelled(weight.name, weight.rank))
    return row if row is not None and not row["nonfinite"] else None


def _received(evidence: Evidence, coarse: Coarse, *, flat: bool = False) -> bool:
    """Whether nearly every element of the states of matrices had a gradient; flat: of those of vectors.

    By the first moments: in float16 the second ones are 0 for small gradients too. Embeddings, which have unseen rows,
    are told by their shape: a state need not have a name.
    """
    embeddings = {weight.shape for weight in coarse.weights if weight.kind == "embedding"}
    rows = [
        row
        for row in signals.states_of(evidence, "exp_avg", coarse.saved.path).values()
        if (len(row["shape"]) < 2) == flat and row["shape"] not in embeddings
    ]
    count, zero = sum(row["count"] for row in rows), sum(row["zero"] for row in rows)
    return bool(count) and zero < _UNTOUCHED * count


_UNTOUCHED = 0.2  # dead units and experts that were not chosen


@check(needs=["tensors"], facts=["checkpoint", "ones", "gains", "share", "updates", "dtype", "lr", "typical"])
def gains_exactly_one(
    evidence: Evidence, *, share: float, fewest: int, updates: int, most: float, certain: float, matrices: str
) -> Answer:
    """Norm gains in 16 bits that are exactly 1.0 still, although the optimizer updated them (detector D24).

    share: of all gains; fewest: of them; updates: of the optimizer at least. most, matrices: "lost" where so many
    elements of the matrices lie in tensors whose typical update is below half of the distance between numbers of their
    size, "move" where fewer. certain: stochastic rounding would have moved so many gains at least.
    Gains that start elsewhere (a trained model, gains kept as an offset from 1) tell nothing.
    """
    found = _coarse(evidence)
    if isinstance(found, Missing):
        return found
    judged = [one for one in found.values() if isinstance(one, Coarse)]
    if not judged:
        return _none_coarse(found)
    hits = []
    for one in judged:
        gains = [w for w in one.weights if w.kind == "norm"]
        count, ones = sum(w.count for w in gains), sum(w.one for w in gains)
        rates = _rates(evidence, 0, one.saved.step or one.updates, (one.saved.path,))
        if count < fewest or ones < share * count or one.updates < updates or rates is None or rates.mean <= 0.0:
            continue
        if not _received(evidence, one, flat=True):
            continue
        distance = 4.0 * _HALF_SPACING[gains[0].measured]  # above 1.0, where it is twice that below
        expected = _if_stochastic(count, distance, rates.mean * one.update, one.updates)
        if expected < max(certain, certain * (count - ones)):
            continue
        lost = _lost([w for w in one.weights if w.kind in ("matrix", "head")], rates.most * one.update) > most
        if lost != (matrices == "lost"):
            continue
        facts: dict[str, Fact] = {
            "checkpoint": one.saved.path, "ones": ones, "gains": count, "share": ones / count, "updates": one.updates,
            "dtype": one.dtype, "lr": rates.most, "typical": rates.most * one.update,
        }  # fmt: skip
        hits.append(
            Hit(one.saved.step, None, "tensors", None, ones / count, one.saved.source, None, gains[0].name, facts)
        )
    return hits


@check(needs=["moments", "tensors"], facts=["checkpoint", "vanished", "share", "violations", "elements"])
def second_moments_vanish_in_fp16(evidence: Evidence, *, share: float) -> Answer:
    """In float16 the second moments of more than `share` of the elements are 0 beside a first moment that is not.

    Or they are so much too small that the first moment exceeds what any gradients could make it (detector D09).
    """
    moments = signals.moments(evidence)
    if moments is None or not signals.states(evidence, "exp_avg_sq"):
        return Missing("moments")
    hits, judged = [], False
    for saved in signals.checkpoints(evidence) or []:
        dtypes = {row["dtype"] for row in signals.states_of(evidence, "exp_avg_sq", saved.path).values()}
        part, groups = moments.get(saved.path, []), signals.groups_of(evidence, saved.path)
        if not dtypes or not part:
            continue
        if "float16" not in dtypes:
            judged = True
            continue
        if dtypes != {"float16"} or not groups or not all(signals.adam_like(group) for group in groups):
            continue
        judged = True
        count = sum(row["count"] - row["nonfinite"] for row in part)
        vanished = sum(row["v_zero_m_nonzero"] or 0 for row in part)
        violations = sum(row["bound_violations"] or 0 for row in part)
        if not count or max(vanished, violations) <= share * count:
            continue
        facts: dict[str, Fact] = {
            "checkpoint": saved.path, "vanished": vanished, "share": max(vanished, violations) / count,
            "violations": violations, "elements": count,
        }  # fmt: skip
        worst = max(part, key=lambda row: (row["bound_violations"] or 0) / max(row["count"], 1))
        hits.append(
            Hit(saved.step, None, "moments", None, max(vanished, violations) / count, saved.source, None,
                signals.plain(worst["name"]), facts)
        )  # fmt: skip
    return hits if judged else Missing("moments of Adam in one format")


@check(needs=["groups", "tensors"], facts=["precision", "eps", "optimizer"])
def stored_eps_rounds_to_zero(evidence: Evidence, *, smallest: float) -> Answer:
    """Moments in float16 under Adam whose eps is below `smallest`, which is 0 in float16.

    torch's fused implementation computes in float32 and rounds the result only: there eps counts.
    """
    groups = signals.groups(evidence)
    if groups is None or not signals.states(evidence, "exp_avg_sq"):
        return Missing("groups")
    fused = {group.checkpoint for group in groups if group.values.get("fused") is True}
    hits = []
    for saved in signals.checkpoints(evidence) or []:
        states = signals.states_of(evidence, "exp_avg_sq", saved.path).values()
        if saved.path in fused or all(row["dtype"] != "float16" for row in states):
            continue
        held = [group for group in signals.groups_of(evidence, saved.path) if signals.adam_like(group)]
        low = [group for group in held if group.eps is not None and group.eps < smallest]
        if low:
            facts: dict[str, Fact] = {
                "precision": f"float16 in {saved.path}", "eps": low[0].eps, "optimizer": low[0].optimizer,
            }  # fmt: skip
            hits.append(Hit(saved.step, None, "groups", None, low[0].eps, saved.source, None, None, facts))
    return hits[:1]


CHECKS: tuple[Check, ...] = (
    updates_rounded_away,
    gains_exactly_one,
    second_moments_vanish_in_fp16,
    stored_eps_rounds_to_zero,
)
