"""Checks on weights that are exactly zero, and on units and adapters that never learn (detector D30)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gradforensics.checkpoint_signals import (
    SURE,
    Saved,
    Weight,
    adam_like,
    checkpoints,
    groups_of,
    states,
    states_of,
    weights,
    weights_by_checkpoint,
)
from gradforensics.diagnosis.vocabulary import Answer, Check, Fact, Hit, Missing, check
from gradforensics.frozen_signals import chain, listed
from gradforensics.parameter_names import is_untrained, module_of
from gradforensics.patterns import lazy
from gradforensics.tables import Evidence
from gradforensics.training_mask import is_adapter, mask

_WEIGHT = lazy(r"(?:^|\.)(?:weight|kernel|w\d?)$", re.IGNORECASE)
# Modules that may be zero by design: gates and modulations, experts without tokens, zero convolutions, adapters.
_MAY_BE_ZERO = lazy(r"gate|expert|moe|ada_?ln|modulation|film|zero|adapter|mask|lora|scale|controlnet", re.IGNORECASE)
_EXPERT = lazy(r"expert|moe|router", re.IGNORECASE)
_SMALLEST = 16  # elements of a weight that is called a zero tensor


def _is_zero_weight(weight: Weight) -> bool:
    """Whether a matrix of a layer is zero in every element; embeddings and zero modules by design do not count."""
    rest = weight.count // max(weight.shape[0], 1) if weight.shape else 0
    return (
        weight.zero == weight.count
        and weight.kind in ("matrix", "head")
        and weight.count >= _SMALLEST
        and rest > 1
        and _WEIGHT.search(weight.name) is not None
        and not _MAY_BE_ZERO.search(weight.name)
        and not is_untrained(weight.name)
    )


class _Optimized:
    """One checkpoint whose states belong for certain to the parameters that they are named after."""

    def __init__(self, evidence: Evidence, saved: Saved, own: Sequence[Weight]) -> None:
        mine = [group for group in groups_of(evidence, saved.path) if group.names]
        self.saved, self.own = saved, own
        self.updates = max((group.step_max for group in mine if group.step_max is not None), default=0)
        self.adam = bool(mine) and all(adam_like(group) for group in mine)
        self.first = _rows(evidence, "exp_avg", saved.path)
        self.second = _rows(evidence, "exp_avg_sq", saved.path)

    def silent(self, name: str) -> bool:
        """Whether both moments of a parameter are zero in every element: its gradient always was."""
        rows = self.first.get(name), self.second.get(name)
        return all(row is not None and row["count"] and row["zero"] == row["count"] for row in rows)

    @property
    def others_learn(self) -> bool:
        """Whether some second moment is above zero."""
        return any((row["max"] or 0.0) > 0 for row in self.second.values())


def _rows(evidence: Evidence, role: str, path: str) -> Mapping[str, Mapping[str, Any]]:
    """The states of one role that no rank holds a part of, by name."""
    return {name: row for (name, rank), row in states_of(evidence, role, path).items() if rank is None}


def _optimized(evidence: Evidence, steps: float) -> Iterator[_Optimized]:
    """The checkpoints with Adam's moments under certain names after `steps` updates, in their order."""
    saved = {one.path: one for one in checkpoints(evidence) or []}
    for path, own in weights_by_checkpoint(evidence).items():
        if path in saved and saved[path].naming in SURE:
            one = _Optimized(evidence, saved[path], own)
            if one.adam and one.updates >= steps and one.others_learn:
                yield one


_NO_MOMENTS = "Adam's moments in a checkpoint after more updates"


def _no_moments(evidence: Evidence) -> Missing:
    """Why no checkpoint is one of _optimized."""
    naming = {one.naming for one in checkpoints(evidence) or [] if one.naming}
    return Missing("checkpoints:named" if naming.isdisjoint(SURE) and naming else _NO_MOMENTS)


@check(needs=["tensors"], facts=["zeros", "names", "blocked", "updates", "checkpoint"])
def zero_weights_without_gradient(evidence: Evidence, *, steps: float, least: int) -> Answer:
    """Weights that are all zero have had a gradient of exactly zero in every one of `steps` updates, others have not.

    least: zero weights. That is so where two zero factors follow each other: each blocks the other's gradient. blocked:
    further parameters whose moments are all zero.
    """
    judged = bool(states(evidence, "exp_avg_sq")) and not any(map(_is_zero_weight, weights(evidence) or []))
    for one in _optimized(evidence, steps):
        judged = True
        zeros = [w for w in one.own if _is_zero_weight(w) and one.silent(w.name)]
        if len(zeros) >= least:
            silent = [w for w in one.own if one.silent(w.name)]
            known: dict[str, Fact] = {
                "zeros": len(zeros), "names": listed([w.name for w in zeros]), "blocked": len(silent) - len(zeros),
                "updates": one.updates, "checkpoint": one.saved.path,
            }  # fmt: skip
            return [_hit(one.saved, zeros[0], 0.0, known)]
    return [] if judged else _no_moments(evidence)


@check(needs=["tensors"], facts=["zeros", "weights", "names", "checkpoint"])
def zero_weights(evidence: Evidence, *, certainty: str, steps: float, pruned: float) -> Answer:
    """Weights of layers are exactly zero in every element, whatever the optimizer holds (D30).

    certainty: persist where they are so in two checkpoints that are `steps` apart, while others move, and no state says
    more; else seen, as in one checkpoint of unknown step. No finding at a step below `steps`, where they may have been
    initialised so, and in pruned models: those in which more than the share `pruned` of the other weights is zero.
    """
    if weights(evidence) is None:
        return Missing("tensors")
    hits = []
    for path, own in weights_by_checkpoint(evidence).items():
        saved = next((one for one in checkpoints(evidence) or [] if one.path == path), None)
        zeros = [w for w in own if _is_zero_weight(w)]
        rest = [w for w in own if w.kind == "matrix" and w not in zeros]
        share = sum(w.zero for w in rest) / max(sum(w.count for w in rest), 1)
        if saved is None or not zeros or not rest or share > pruned or _excused(evidence, zeros):
            continue
        if saved.step is not None and saved.step < steps:
            continue
        if ("persist" if _persist(evidence, saved, zeros, steps) else "seen") == certainty:
            known: dict[str, Fact] = {
                "zeros": len(zeros), "weights": len(zeros) + len(rest), "names": listed([w.name for w in zeros]),
                "checkpoint": path,
            }  # fmt: skip
            hits.append(_hit(saved, zeros[0], 0.0, known))
    return hits


def _excused(evidence: Evidence, zeros: Sequence[Weight]) -> bool:
    """Whether they are said to be frozen: then they are a part that was switched off."""
    return bool(mask(evidence).excuse) and not any(w.optimized for w in zeros)


def _persist(evidence: Evidence, saved: Saved, zeros: Sequence[Weight], steps: float) -> bool:
    """Whether a weight is zero in an earlier checkpoint too, and the states do not say that it has none.

    A weight without a state while others have one is frozen, or cut off: not for this check to say.
    """
    row = chain(evidence)
    earlier = {one.path for one in row if one.step is not None and one.step + steps <= (saved.step or 0)}
    if saved not in row:
        return False
    names = {w.name for w in zeros}
    held = {name for name, _ in states_of(evidence, "exp_avg_sq", saved.path)}
    found = weights_by_checkpoint(evidence)
    before = {w.name for path in earlier for w in found.get(path, []) if _is_zero_weight(w)}
    return bool(names & before) and (not held or bool(names & held))


@check(
    needs=["tensors", "groups", "checkpoints:named"],
    facts=["dead", "units", "share", "layers", "names", "updates", "checkpoint"],
)
def units_never_respond(evidence: Evidence, *, steps: float, share: float, units: int) -> Answer:
    """More than `share` of a layer's units had a gradient of exactly zero in all updates (D30): dead ReLU units.

    Told by rows of both moments that are all zero beside rows that are not; where no unit of a layer responds, by the
    layer behind it, whose bias learns while its weight cannot. Layers of fewer than `units` units,
    embeddings, heads and the last layer (classes or actions that did not occur), experts and pruned rows do not count.
    """
    judged = False
    for one in _optimized(evidence, steps):
        judged = True
        last = next((w.name for w in reversed(one.own) if w.kind == "matrix"), None)
        found = [
            (dead / w.shape[0], dead, w)
            for w in one.own
            if w.kind == "matrix" and w.name != last and w.shape[0] >= units and not w.zero_rows
            if (dead := _dead_rows(one, w.name)) > share * w.shape[0] and (dead < w.shape[0] or _feeds_nothing(one, w))
            if not _EXPERT.search(w.name) and not is_adapter(w.name)
        ]
        if found:
            worst, dead, weight = max(found, key=lambda item: item[0])
            known: dict[str, Fact] = {
                "dead": dead, "units": weight.shape[0], "share": worst, "layers": len(found),
                "names": module_of(weight.name), "updates": one.updates, "checkpoint": one.saved.path,
            }  # fmt: skip
            return [_hit(one.saved, weight, worst, known)]
    return [] if judged else Missing(_NO_MOMENTS)


def _dead_rows(one: _Optimized, name: str) -> int:
    rows = one.first.get(name), one.second.get(name)
    return min((row["zero_rows"] or 0) if row is not None else 0 for row in rows)


def _feeds_nothing(one: _Optimized, weight: Weight) -> bool:
    """Whether the next layer that fits gets zeros only: the gradient of its weight is zero, that of its bias is not."""
    matrices = [w for w in one.own if w.kind in ("matrix", "head")]
    behind = matrices[matrices.index(weight) + 1 :]
    following = next((w for w in behind if w.shape[1] == weight.shape[0]), None)
    if following is None or following.zero == following.count or weight.zero == weight.count:
        return False
    bias = one.second.get(f"{module_of(following.name)}.bias")
    return one.silent(following.name) and bias is not None and (bias["max"] or 0.0) > 0


@check(needs=["tensors"], facts=["adapters", "names", "also_zero", "checkpoint"])
def adapter_without_effect(evidence: Evidence, *, certainty: str, steps: float) -> Answer:
    """Every B of a low-rank adapter is exactly zero: the adapter adds nothing to its base.

    certainty: learned where the checkpoint is of step `steps` or later, unknown where no step is known: an adapter that
    was saved before training looks so. also_zero: how many of the A are zero too, which then block them.
    """
    if not any(w.kind == "lora_b" and w.count for w in weights(evidence) or []):
        return Missing("tensors of a low-rank adapter")
    hits, judged = [], False
    for path, own in weights_by_checkpoint(evidence).items():
        saved = next((one for one in checkpoints(evidence) or [] if one.path == path), None)
        if saved is None or (saved.step is not None and saved.step < steps):
            continue
        if ("unknown" if saved.step is None else "learned") != certainty:
            continue
        judged = True
        second = [w for w in own if w.kind == "lora_b" and w.count]
        if second and all(w.zero == w.count for w in second):
            known: dict[str, Fact] = {
                "adapters": len(second), "names": listed([w.name for w in second]), "checkpoint": path,
                "also_zero": sum(w.kind == "lora_a" and w.count and w.zero == w.count for w in own),
            }  # fmt: skip
            hits.append(_hit(saved, second[0], 0.0, known))
    return hits if judged else Missing("an adapter after more updates")


def _hit(saved: Saved, weight: Weight, value: float, known: Mapping[str, Fact]) -> Hit:
    return Hit(saved.step, None, "tensors", None, value, weight.source, None, weight.name, known)


CHECKS: tuple[Check, ...] = (
    zero_weights_without_gradient,
    zero_weights,
    units_never_respond,
    adapter_without_effect,
)
