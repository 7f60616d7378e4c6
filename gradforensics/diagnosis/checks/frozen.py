"""Checks on weights that no update reached, in pairs of checkpoints and in optimizer states (detector D13)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, NamedTuple, TypeAlias

from gradforensics import logged_rates
from gradforensics.checkpoint_signals import (
    FULL,
    SURE,
    Group,
    Pair,
    Saved,
    Weight,
    adam_like,
    checkpoints,
    facts,
    groups_of,
    moments,
    pairs,
    states_of,
)
from gradforensics.checkpoints.adam import UNIT_ROUNDOFF
from gradforensics.diagnosis.vocabulary import Answer, Check, Fact, Hit, Missing, check
from gradforensics.frozen_signals import (
    Cut,
    Standing,
    cut,
    listed,
    never_trained,
    pure_decay,
    standing,
    weights_of,
)
from gradforensics.parameter_names import module_of
from gradforensics.tables import Evidence
from gradforensics.training_mask import Held, distinct, held, mask

_FROZEN_FACTS = ["frozen", "parameters", "module", "before", "names", "first_step", "last_step"]

Finding: TypeAlias = Literal["proven", "untrained", "possible", "left_out", "no_gradient"]


class _Still(NamedTuple):
    """What was found of the weights that stand still, None where that is healthy."""

    finding: Finding
    names: tuple[str, ...]
    place: Cut | None
    of: Standing


@check(needs=["tensors", "travels"], facts=_FROZEN_FACTS)
def weights_stand_still(evidence: Evidence, *, finding: str, steps: float) -> Answer:
    """Weights keep the same bytes over `steps` optimizer steps while others move (D13 a, c, e).

    finding: proven: a single cut would leave them so, the optimizer holds them without a state, and it is known that
    what it holds was to be trained. untrained: likewise, that is not known, but they still have the values of a fresh
    initialisation, and more than a last layer moves. possible: neither. left_out: they are in no group of the
    optimizer, still have fresh values and are no first part, such as one would freeze. no_gradient: the optimizer was
    given them to train and keeps no state of them, and no single cut explains it.

    What a setting or an adapter excuses is no finding, nor are copies (EMA, target networks), weights of groups with
    the rate 0 and, where the framework gives the optimizer only what is to be trained, weights in no group.
    """
    found = _still(evidence, steps)
    if isinstance(found, Missing):
        return found
    if found is None or found.finding != finding:
        return []
    of, place = found.of, found.place
    known: dict[str, Fact] = {
        "frozen": len(found.names),
        "parameters": len(of.frozen) + len(of.moving),
        "module": place.module if place else module_of(found.names[0]),
        "before": place.before if place else module_of(found.names[0]),
        "names": listed(found.names),
        "first_step": of.first.step,
        "last_step": of.last.step,
    }
    return [Hit(of.last.step, None, "tensors", None, 0.0, of.last.source, None, found.names[0], known)]


def _still(evidence: Evidence, steps: float) -> _Still | Missing | None:
    return evidence.once(("checks.frozen.still", steps), lambda: _look(evidence, steps))


def _look(evidence: Evidence, steps: float) -> _Still | Missing | None:
    of = standing(evidence)
    if of is None or of.steps < steps:
        return _too_near(steps)
    said = mask(evidence)
    if not of.frozen or not of.moving or said.excuse:
        return None
    if any(w.nonfinite for w in (*of.frozen, *of.moving)):
        return Missing("weights that are finite")
    has = _nearest(evidence, of)
    if has is not None and has.updates is not None and has.updates < steps:
        return _too_near(steps)
    if has is not None and has.frozen_groups:
        return None
    names = tuple(w.name for w in of.frozen)
    without = has is not None and (
        set(names) <= has.stateless_names if has.stateless_names is not None else has.stateless == len(names)
    )
    if not without and any(w.measured not in FULL for w in of.frozen):
        return Missing("whether rounding keeps these low-precision weights where they are (see GF13)")
    return _found(of, names, has, without=without, known=said.known, evidence=evidence)


def _too_near(steps: float) -> Missing:
    return Missing(f"two checkpoints with weights that differ, {steps:.0f} optimizer steps or more apart")


def _nearest(evidence: Evidence, of: Standing) -> Held | None:
    """What the optimizer of the last checkpoint with one holds."""
    return held(evidence, of.last.path) or held(evidence, of.first.path)


def _found(
    of: Standing, names: tuple[str, ...], has: Held | None, *, without: bool, known: bool, evidence: Evidence
) -> _Still | None:
    every = weights_of(evidence, of.last.path)
    place = cut(set(names), of.moving, distinct(every), ordered="safetensors" not in of.last.format)
    inside = {None if has is None else has.holds(name, len(of.moving)) for name in names}
    fresh = never_trained(of.frozen)
    if inside == {True} and without and known:
        experts = any(re.search(r"expert|moe", name, re.IGNORECASE) for name in names)  # without tokens: GF36
        return None if experts and not place else _Still("proven" if place else "no_gradient", names, place, of)
    if known and has is not None:  # in no group: frozen on purpose; otherwise not certain enough
        return None
    if inside == {False}:
        return _Still("left_out", names, None, of) if fresh and _behind(of, distinct(every)) else None
    if place is None or (has is not None and has.stateful and not without):
        return None
    if not fresh and any(
        event.data.get("about") == "no input requires grad" for event in evidence.events_of("warning")
    ):
        return None  # a first part that is frozen brings that warning about: one suspicion, not two
    several = len({module_of(w.name) for w in of.moving if len(w.shape) > 1}) > 1  # training the head alone is common
    return _Still("untrained" if fresh and several else "possible", names, place, of)


def _behind(of: Standing, every: Sequence[Weight]) -> bool:
    """Whether what stands still lies behind what moves: who trains a part on purpose trains the last one.

    By a head that stands still, where the file keeps the order by its first matrix, which moves.
    """
    frozen = {w.name for w in of.frozen}
    matrices = [w for w in every if len(w.shape) > 1 and (w.name in frozen or w in of.moving)]
    if not any(w.name in frozen for w in matrices):
        return False
    ordered = "safetensors" not in of.last.format and matrices[0].name not in frozen
    return ordered or any(w.kind == "head" for w in of.frozen)


# -- nothing is written -----------------------------------------------------------------------------------------------


@check(
    needs=["tensors", "travels", "moments", "groups"],
    facts=["parameters", "first_step", "last_step", "updates", "lr", "names"],
)
def updates_never_reach_weights(evidence: Evidence, *, steps: float, felt: float) -> Answer:
    """No weight changes between two checkpoints while the optimizer counts on and its moments change (D13 f).

    steps: of the optimizer, at least. felt: how many times the rounding of a weight one update must be, so that it
    would have to be seen. Only weights in float32 are judged.
    """
    judged = False
    for pair in pairs(evidence) or []:
        lr = _rate(evidence, pair)
        updates = _updates(evidence, pair)
        if updates is None or updates < steps or not lr:
            continue
        own = weights_of(evidence, pair.last.path)
        if not own or any(w.nonfinite or w.measured not in FULL for w in own):
            continue
        judged = True
        still = pair.rows and all(row["changed"] == 0 for row in pair.rows.values())
        if still and _live(evidence, pair) and _would_show(evidence, pair, own, lr, felt):
            known: dict[str, Fact] = {
                "parameters": len(pair.rows), "first_step": pair.first.step, "last_step": pair.last.step,
                "updates": updates, "lr": lr, "names": listed(tuple(pair.rows)),
            }  # fmt: skip
            first = next(iter(pair.rows))
            return [Hit(pair.last.step, None, "travels", None, 0.0, pair.last.source, None, first, known)]
    return [] if judged else Missing("two checkpoints with weights in float32 and a running optimizer")


def _groups_of(evidence: Evidence, saved: Saved) -> list[Group]:
    return [group for group in groups_of(evidence, saved.path) if group.names]


def _rate(evidence: Evidence, pair: Pair) -> float | None:
    """A rate that was surely applied in the steps between: held by both optimizers, or logged."""
    rates = [[g.lr for g in _groups_of(evidence, one)] for one in (pair.first, pair.last)]
    held_by = [min((lr for lr in part if lr is not None), default=0.0) for part in rates]
    logged = logged_rates.between(evidence, pair.first.step or 0, pair.last.step or 0)
    if len(logged):
        return float(logged.max()) if float(logged.min()) > 0 else None
    return min(held_by)


def _updates(evidence: Evidence, pair: Pair) -> int | None:
    """How many steps the optimizer's counters went on."""
    ends = [
        max((g.step_max for g in _groups_of(evidence, one) if g.step_max is not None), default=None)
        for one in (pair.first, pair.last)
    ]
    return None if ends[0] is None or ends[1] is None else ends[1] - ends[0]


def _live(evidence: Evidence, pair: Pair) -> bool:
    """Whether every second moment is positive somewhere, and some changed."""
    first, last = (states_of(evidence, "exp_avg_sq", one.path) for one in (pair.first, pair.last))
    positive = [row for row in last.values() if (row["max"] or 0.0) > 0]
    changed = any(k in first and first[k]["fingerprint"] != row["fingerprint"] for k, row in last.items())
    return bool(positive) and changed


def _would_show(evidence: Evidence, pair: Pair, own: Sequence[Weight], lr: float, felt: float) -> bool:
    """Whether an update of the usual size of these moments is larger than the rounding of the largest weight."""
    sizes = [row["update_rms"] for row in (moments(evidence) or {}).get(pair.last.path, []) if row["update_rms"]]
    largest = max((max(-(w.min or 0.0), w.max or 0.0) for w in own), default=0.0)
    return bool(sizes) and lr * max(sizes) > felt * UNIT_ROUNDOFF["float32"] * largest


# -- a gradient of exactly zero ---------------------------------------------------------------------------------------


@check(
    needs=["tensors", "groups"],
    facts=["frozen", "parameters", "module", "before", "names", "updates", "decayed", "last_step"],
)
def gradient_exactly_zero_before_cut(evidence: Evidence, *, steps: float, spread: float, off: float) -> Answer:
    """Everything before a cut gets a gradient that is exactly zero, not none (D13 b).

    Told by moments that are all zero after `steps` updates or, between two checkpoints, by weights that only decay:
    their ratio varies by less than `spread` and is the product of 1 - lr wd within `off`. Where a whole weight matrix
    is zero it blocks the gradient itself (GF10), and nothing is found.
    """
    told, seen = _zero_moments(evidence, steps), _only_decay(evidence, steps, spread, off)
    if isinstance(told, Missing):
        return seen if isinstance(seen, list) else told
    if told and isinstance(seen, list) and seen:
        return [replace(told[0], facts={**told[0].facts, "decayed": seen[0].facts["decayed"]})]
    return told or (seen if isinstance(seen, list) else [])


def _zero_moments(evidence: Evidence, steps: float) -> Answer:
    unnamed = False
    for saved in reversed(checkpoints(evidence) or []):
        mine = _groups_of(evidence, saved)
        updates = max((g.step_max for g in mine if g.step_max is not None), default=0)
        if updates < steps or not all(adam_like(g) for g in mine):
            continue
        if saved.naming not in SURE:
            unnamed = True
            continue
        own = weights_of(evidence, saved.path)
        silent = _silent(evidence, saved)
        still = {w.name for w in own if w.name in silent}
        learning = _gradients(evidence, saved)
        moving = [w for w in own if w.name in learning]
        return _zero_hit(own, still, moving, saved, updates, 0)
    return Missing("checkpoints:named" if unnamed else "Adam's moments after more updates")


def _silent(evidence: Evidence, saved: Saved) -> set[str]:
    """Parameters of which both moments are zero in every element."""
    parts = [
        {name for (name, _), row in states_of(evidence, role, saved.path).items() if row["zero"] == row["count"]}
        for role in ("exp_avg", "exp_avg_sq")
    ]
    return parts[0] & parts[1]


def _gradients(evidence: Evidence, saved: Saved) -> set[str]:
    """Parameters with a second moment above zero."""
    found = states_of(evidence, "exp_avg_sq", saved.path).items()
    return {name for (name, _), row in found if (row["max"] or 0.0) > 0}


def _only_decay(evidence: Evidence, steps: float, spread: float, off: float) -> Answer:
    judged = False
    for pair in reversed(pairs(evidence) or []):
        decays = {g.weight_decay for g in _groups_of(evidence, pair.last) if g.weight_decay}
        factors = pure_decay(evidence, pair.first, pair.last, decays)
        if pair.steps < steps or not factors or min(factors) > 1 - 10 * off:
            continue
        judged = True
        decayed = {
            name
            for name, row in pair.rows.items()
            if row["count"] > 1 and row["ratio_std"] is not None and row["ratio_std"] < spread
            if any(abs(row["ratio_mean"] - factor) < off for factor in factors)
        }
        same = {name for name, row in pair.rows.items() if row["changed"] == 0}
        if not decayed:
            continue
        own, still = weights_of(evidence, pair.last.path), decayed | same
        moving = [w for w in own if w.name in pair.rows and w.name not in still]
        hits = _zero_hit(own, still, moving, pair.last, pair.steps, len(decayed)) if moving else []
        if hits:
            return hits
    return [] if judged else Missing("two checkpoints over which weight decay alone would show")


def _zero_hit(
    own: Sequence[Weight], still: set[str], moving: Sequence[Weight], saved: Saved, updates: int, decayed: int
) -> list[Hit]:
    zeros = any(w.kind in ("matrix", "head") and w.count and w.zero == w.count for w in own)
    place = None if zeros else cut(still, moving, distinct(own), ordered="safetensors" not in saved.format)
    if place is None or not moving:
        return []
    names = tuple(w.name for w in own if w.name in still)
    known: dict[str, Fact] = {
        "frozen": len(names), "parameters": len(names) + len(moving), "module": place.module, "before": place.before,
        "names": listed(names), "updates": updates, "decayed": decayed, "last_step": saved.step,
    }  # fmt: skip
    return [Hit(saved.step, None, "tensors", None, 0.0, saved.source, None, names[0], known)]


# -- a gradient that ended --------------------------------------------------------------------------------------------


@check(
    needs=["tensors", "travels", "facts", "checkpoints:named"],
    facts=["frozen", "parameters", "module", "before", "names", "counter", "updates"],
)
def updates_stopped_before_cut(evidence: Evidence, *, certainty: str, steps: float) -> Answer:
    """Everything before a cut was updated until one step and never again: its step counters stand still (D13 d).

    certainty: known where what the optimizer holds is known to be meant for training, else unknown: a second phase that
    freezes the first layers leaves the same. Counters that lag and go on, as those of experts and of layers that are
    dropped at random, are no finding, nor is what settings excuse.
    """
    said = mask(evidence)
    judged = False
    for pair in pairs(evidence) or []:
        before, after = (facts(evidence, one.path) for one in (pair.first, pair.last))
        most = after.get("optimizer.step")
        if not pair.named or not isinstance(most, int) or not isinstance(before.get("optimizer.step"), int):
            continue
        judged = judged or most - before["optimizer.step"] >= steps
        behind: dict[str, int] = after.get("optimizer.behind") or {}
        earlier: dict[str, int] = before.get("optimizer.behind") or {}
        still = {
            name: step
            for name, step in behind.items()
            if step == earlier.get(name, before["optimizer.step"]) and most - step >= steps
            if name in pair.rows and pair.rows[name]["changed"] == 0
        }
        if still and not said.excuse and said.known == (certainty == "known") and len(set(still.values())) == 1:
            hits = _stopped_hit(evidence, pair, still, most)
            if hits:
                return hits
    return [] if judged else Missing("step counters per parameter in two checkpoints, of more updates")


def _stopped_hit(evidence: Evidence, pair: Pair, still: dict[str, int], most: int) -> list[Hit]:
    own = weights_of(evidence, pair.last.path)
    moving = [w for w in own if w.name in pair.rows and pair.rows[w.name]["changed"] > 0]
    place = cut(set(still), moving, distinct(own), ordered="safetensors" not in pair.last.format)
    if place is None:
        return []
    counter, names = next(iter(still.values())), tuple(w.name for w in own if w.name in still)
    known: dict[str, Fact] = {
        "frozen": len(names), "parameters": len(names) + len(moving), "module": place.module, "before": place.before,
        "names": listed(names), "counter": counter, "updates": most,
    }  # fmt: skip
    exact = most == pair.last.step  # the counters count the steps of the run
    step, after = (counter + 1, counter) if exact else (pair.last.step, None)
    return [Hit(step, after, "tensors", None, float(counter), pair.last.source, None, names[0], known)]


CHECKS: tuple[Check, ...] = (
    weights_stand_still,
    updates_never_reach_weights,
    gradient_exactly_zero_before_cut,
    updates_stopped_before_cut,
)
