"""Checks on the parameter groups that checkpoints hold: who is in them, what they decay, whose rate moves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import polars as pl

from gradforensics import checkpoint_signals as cs
from gradforensics.applied_rates import PAIR
from gradforensics.diagnosis.vocabulary import Answer, Check, Fact, Hit, Missing, check
from gradforensics.parameter_names import layer_of
from gradforensics.tables import Evidence

_NO_PAIR = "groups of two checkpoints of one optimizer"
_NO_WHOLE = "a complete checkpoint with the names of its states"
_LAYERS = 3  # fewer tell no order


class _Held(NamedTuple):
    """The groups of one checkpoint; of: the group of every parameter by its name, those that kept an id left out."""

    saved: cs.Saved
    groups: tuple[cs.Group, ...]
    of: Mapping[str, cs.Group]


def _held(evidence: Evidence, *, named: bool = True) -> list[_Held]:
    """The checkpoints with groups, in the order of the steps; named: those whose names are certain, and no others."""
    return evidence.once(("groups.held", named), lambda: list(_holding(evidence, named=named)))


def _holding(evidence: Evidence, *, named: bool) -> Iterator[_Held]:
    for one in cs.checkpoints(evidence) or []:
        groups = cs.groups_of(evidence, one.path)
        if groups and one.complete is not False and (one.naming in cs.SURE or not named):
            yield _Held(one, tuple(groups), _by_name(groups))


def _by_name(groups: Sequence[cs.Group]) -> dict[str, cs.Group]:
    return {name: group for group in groups for name in group.names if not name.isdecimal()}


def _following(evidence: Evidence, *, named: bool = True) -> list[tuple[_Held, _Held]]:
    """Neighbours of one training: at two steps, of the same kinds of optimizers, whose counters went on."""
    found = _held(evidence, named=named)
    return [(a, b) for a, b in pairwise(found) if _goes_on(a, b) and not cs.apart(evidence, a.saved.path, b.saved.path)]


def _no_pair(evidence: Evidence) -> Missing:
    """Why there are no neighbours with certain names."""
    return Missing("checkpoints:named" if _following(evidence, named=False) else _NO_PAIR)


def _goes_on(before: _Held, after: _Held) -> bool:
    if before.saved.step is None or after.saved.step is None or before.saved.step >= after.saved.step:
        return False
    if {group.optimizer for group in before.groups} != {group.optimizer for group in after.groups}:
        return False
    earlier, later = ([g.step_max for g in held.groups if g.step_max is not None] for held in (before, after))
    return not earlier or not later or max(earlier) < max(later)


def _hit(before: _Held | None, now: _Held, tensor: str | None, facts: dict[str, Fact]) -> Hit:
    facts["checkpoint"] = now.saved.path
    if before is not None:
        facts["before"] = before.saved.path
    return Hit(
        now.saved.step, None if before is None else before.saved.step, "groups", source=now.saved.source,
        tensor=tensor, facts=facts,
    )  # fmt: skip


# -- GF45 -------------------------------------------------------------------------------------------------------------


@check(
    needs=["checkpoints:rows>=2", "groups", "checkpoints:named"],
    facts=["lost", "held", "example", "before", "checkpoint"],
)
def groups_lost_parameters(evidence: Evidence, *, most: float) -> Answer:
    """Parameters stand in a group of one checkpoint and in none of the next, though the model still has them.

    most: part of all parameters; where more are gone, another stage of training was meant. Groups that grow are left
    alone. Only where the optimizer went on counting: one that was made anew for another stage is no drift. Where other
    ranks hold the states than before, some may be missing. One that became tied is updated under its other name.
    """
    following = [(a, b) for a, b in _following(evidence) if _ranks(a) == _ranks(b)]
    if not following:
        return _no_pair(evidence)
    present = {(w.checkpoint, w.name): w.fingerprint for w in cs.weights(evidence) or []}
    hits = []
    for before, now in following:
        path = now.saved.path
        updated = {present.get((path, name)) for name in now.of} - {None}
        lost = [
            name
            for name in before.of
            if name not in now.of and (path, name) in present and present[path, name] not in updated
        ]
        if lost and len(lost) <= most * len(before.of):
            facts: dict[str, Fact] = {"lost": len(lost), "held": len(before.of), "example": lost[0]}
            hits.append(_hit(before, now, lost[0], facts))
    return hits


def _ranks(held: _Held) -> set[int | None]:
    return {group.rank for group in held.groups}


@check(
    needs=["checkpoints:rows>=2", "groups", "checkpoints:named"],
    facts=["moved", "example", "was", "now", "before", "checkpoint"],
)
def parameters_changed_decay(evidence: Evidence) -> Answer:
    """Some parameters are decayed in one checkpoint and not in the next, or the other way round; others stay.

    A decay that is switched for all of them, or for a whole group, is a setting and no move.
    """
    following = _following(evidence)
    if not following:
        return _no_pair(evidence)
    hits = []
    for before, now in following:
        moved = [name for name in before.of if name in now.of and _decays(before.of[name]) != _decays(now.of[name])]
        whole = any(set(group.names) <= set(moved) for group in before.groups if group.names)
        if moved and not whole:
            was, then = before.of[moved[0]].weight_decay, now.of[moved[0]].weight_decay
            facts: dict[str, Fact] = {"moved": len(moved), "example": moved[0], "was": was, "now": then}
            hits.append(_hit(before, now, moved[0], facts))
    return hits


def _decays(group: cs.Group) -> bool:
    return bool(group.weight_decay)


@check(
    needs=["checkpoints:rows>=2", "groups"],
    facts=["group", "parameters", "rate", "others_before", "others_now", "before", "checkpoint"],
)
def group_rate_stands_while_others_move(evidence: Evidence, *, moving: float, kind: str) -> Answer:
    """A group's rate is the same to the last bit in two checkpoints, while another group's moved.

    torch's schedulers mark every group that they know with an initial_lr. kind: "unknown" for a group without it
    beside groups that have it: it was added after the scheduler was made, which passes it over; "unmarked" where none
    has it, so that the script sets the rates itself. A group that has it stands by design. moving: part of the larger
    rate. A group that was not there in the first checkpoint, or has seen fewer steps than the others, was added during
    the training: it is left alone.
    """
    alone = _single_optimizers(evidence)
    following = [(a, b) for a, b in _following(evidence, named=False) if {a.saved.path, b.saved.path} <= alone]
    if not following:
        return Missing(_NO_PAIR)
    begun = {(group.rank, group.number) for group in _held(evidence, named=False)[0].groups}
    hits = []
    for before, now in following:
        earlier = {(g.rank, g.number): g for g in before.groups if (g.rank, g.number) in begun}
        couples = [(earlier[key], g) for g in now.groups if (key := (g.rank, g.number)) in earlier]
        others = [(a, b) for a, b in couples if _moved(a, b, moving)]
        standing = [(a, b) for a, b in couples if b.names and b.lr and a.lr == b.lr and a.names]
        marked = {"initial_lr" in b.values for _, b in others}
        wanted = {"unknown": {True}, "unmarked": {False}}[kind]
        alike = {b.step_max for _, b in others}  # fewer steps than these: unfrozen during the training
        left = [b for _, b in standing if "initial_lr" not in b.values and b.step_max and {b.step_max} == alike]
        left = left if marked == wanted else []
        if left:
            facts: dict[str, Fact] = {"group": left[0].number, "parameters": len(left[0].names), "rate": left[0].lr}
            facts |= {"others_before": others[0][0].lr, "others_now": others[0][1].lr}
            hits.append(_hit(before, now, None, facts))
    return hits


def _single_optimizers(evidence: Evidence) -> frozenset[str]:
    """The checkpoints whose states are those of one optimizer: of two, each may have a scheduler or none on purpose."""
    return evidence.once("groups.single_optimizers", lambda: frozenset(_single(evidence)))


def _single(evidence: Evidence) -> Iterator[str]:
    table = evidence.table("tensors")
    if table is None:
        return
    places: dict[str, set[tuple[int | None, str]]] = {}
    states = table.filter(pl.col("role").is_in(["exp_avg", "momentum", "state"]))
    for checkpoint, rank, key, source in states.select("checkpoint", "rank", "key", "source").iter_rows():
        head = (key or "").partition("state.")[0]
        # a file of its own (accelerate's optimizer_1.bin) has no keys above "state"
        places.setdefault(checkpoint, set()).add((rank, head or source))
    for checkpoint, found in places.items():
        if len(found) == len({rank for rank, _ in found}):
            yield checkpoint


def _moved(before: cs.Group, now: cs.Group, moving: float) -> bool:
    if before.lr is None or now.lr is None or not now.names:
        return False
    return abs(before.lr - now.lr) > moving * max(before.lr, now.lr)


# -- GF18 -------------------------------------------------------------------------------------------------------------


@check(needs=["groups"], facts=["optimizer", "decay", "checkpoint"])
def saved_adam_couples_decay(evidence: Evidence, *, least: float) -> Answer:
    """The optimizer's groups say that it is torch's Adam and no AdamW, with a weight decay of `least` or more.

    Exact since torch 2.6, whose groups hold decoupled_weight_decay; older ones leave it open, unless nothing decays.
    """
    hits: list[Hit] = []
    open_, judged = False, False
    for held in _held(evidence, named=False):
        for group in held.groups:
            if group.optimizer not in ("adam", "adamw", "amsgrad"):
                continue
            coupled = group.values.get("decoupled_weight_decay")
            if coupled is None and group.optimizer != "adamw" and group.weight_decay:
                open_ = True
                continue
            judged = True
            if coupled is False and (group.weight_decay or 0.0) >= least:
                facts: dict[str, Fact] = {"optimizer": "torch.optim.Adam", "decay": group.weight_decay}
                hits.append(_hit(None, held, None, facts))
                break
    if hits or (judged and not open_):
        return hits[:1]
    return Missing("which Adam it is" if open_ else "groups of Adam or AdamW")


@check(needs=["groups", "tensors", "checkpoints:named"], facts=["decayed", "spared", "example", "decay", "checkpoint"])
def gains_in_a_decayed_group(evidence: Evidence, *, kind: str) -> Answer:
    """The recipe leaves some norm gains or biases out of the weight decay, and others are decayed.

    A recipe that decays all of them, or spares embeddings only, means it. kind: "recovered" where a step between two
    checkpoints shows the decay in those very parameters (detector D11); "saved" where the groups alone say so.
    """
    found = _held(evidence)
    if not found:
        return Missing(_NO_WHOLE)
    kinds = {(w.checkpoint, w.name): w.kind for w in cs.weights(evidence) or []}
    for held in found:
        small = [(name, g) for name, g in held.of.items() if kinds.get((held.saved.path, name)) in ("norm", "bias")]
        decayed = [(name, g) for name, g in small if g.weight_decay]
        spared = [name for name, g in small if not g.weight_decay]
        if not decayed or not spared:
            continue
        if kind == "recovered":
            decayed = [(name, g) for name, g in decayed if _seen_decaying(evidence, held.saved.path, name, g)]
            if not decayed:
                stepped = _stepped(evidence, held)
                return Missing("a decay of those parameters that a single step shows" if stepped else PAIR)
        name, group = decayed[0]
        facts: dict[str, Fact] = {"decayed": len(decayed), "spared": len(spared), "example": name}
        return [_hit(None, held, name, facts | {"decay": group.weight_decay})]
    return []


def _stepped(evidence: Evidence, held: _Held) -> bool:
    """Whether a checkpoint is one of two that are one optimizer step apart."""
    found = (pair for pair in cs.pairs(evidence) or [] if pair.one_update)
    return any(held.saved.path in (pair.first.path, pair.last.path) for pair in found)


def _seen_decaying(evidence: Evidence, path: str, name: str, group: cs.Group) -> bool:
    """Whether a pair with this checkpoint shows half of a group's decay or more in a parameter."""
    for pair in cs.pairs(evidence) or []:
        row = pair.rows.get(cs.labelled(name, group.rank))
        if row is None or path not in (pair.first.path, pair.last.path) or row["recovered_wd"] is None:
            continue
        if row["recovered_wd"] - row["wd_error"] > 0.5 * (group.weight_decay or 0.0):
            return True
    return False


@check(needs=["groups", "checkpoints:named"], facts=["bottom", "top", "stack", "layers", "checkpoint"])
def group_rates_fall_towards_output(evidence: Evidence, *, factor: float) -> Answer:
    """The saved rates of the layers never rise from the input to the output, and the lowest layer's is the highest.

    Layer-wise decay means the opposite. factor: how many times the top layer's rate that of the bottom layer must be.
    Read are the rates that the schedule started from, where the groups hold them.
    """
    found = _held(evidence)
    if not found:
        return Missing(_NO_WHOLE)
    for held in found:
        for stack, rates in _layers(held).items():
            order = [rates[number] for number in sorted(rates)]
            falling = all(low >= high for low, high in pairwise(order))
            if len(order) >= _LAYERS and falling and order[0] >= factor * order[-1]:
                facts: dict[str, Fact] = {"bottom": order[0], "top": order[-1], "stack": stack, "layers": len(order)}
                return [_hit(None, held, None, facts)]
    return []


def _layers(held: _Held) -> dict[str, dict[int, float]]:
    """The rate of every layer by its stack; layers whose parameters have several are left out."""
    found: dict[str, dict[int, set[float]]] = {}
    for name, group in held.of.items():
        layer, rate = layer_of(name), group.values.get("initial_lr", group.lr)
        if layer is not None and isinstance(rate, (int, float)) and rate > 0:
            found.setdefault(layer[0], {}).setdefault(layer[1], set()).add(float(rate))
    return {stack: _only(layers) for stack, layers in found.items()}


def _only(layers: Mapping[int, Sequence[float] | set[float]]) -> dict[int, float]:
    return {number: next(iter(rates)) for number, rates in layers.items() if len(rates) == 1}


CHECKS: tuple[Check, ...] = (
    groups_lost_parameters,
    parameters_changed_decay,
    group_rate_stands_while_others_move,
    saved_adam_couples_decay,
    gains_in_a_decayed_group,
    group_rates_fall_towards_output,
)
