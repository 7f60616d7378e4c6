"""The layers of a network: its parameters put together, in the order of the network, checkpoint by checkpoint.

Added up from the tables of checkpoints; nothing is measured or judged here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gradforensics import checkpoint_signals as saved
from gradforensics.parameter_names import kind_of, layer_of, module_of
from gradforensics.tables import Evidence

_STATES = ("exp_avg", "exp_avg_sq", "momentum")
_SORTED = "safetensors"  # its files are sorted by type and name: their order tells nothing
_STACK, _BEHIND = 1, 3
_CLASSES = {"embedding": 0, "norm": 2, "head": 4}


@dataclass(slots=True)
class Sums:
    """Of one layer in one checkpoint.

    squares: of the finite weights. gradient, gradients: sum and number of the elements of Adam's v, corrected for its
    start; update, updates: the same of the squared updates. nonfinite: in weights and moments.
    """

    count: int = 0
    finite: int = 0
    squares: float = 0.0
    gradient: float = 0.0
    gradients: int = 0
    update: float = 0.0
    updates: int = 0
    nonfinite: int = 0

    @property
    def weight_rms(self) -> float | None:
        """Of the finite weights; NaN where none is finite."""
        if not self.count:
            return None
        return math.sqrt(self.squares / self.finite) if self.finite else math.nan

    @property
    def gradient_rms(self) -> float | None:
        """Root of the mean of Adam's v, corrected for its start; None where it is not known."""
        return math.sqrt(self.gradient / self.gradients) if self.gradients else None

    @property
    def update_rms(self) -> float | None:
        """Root mean square of m_hat / (sqrt(v_hat) + eps); None where it is not known."""
        return math.sqrt(self.update / self.updates) if self.updates else None


def layer_name(name: str) -> str:
    """The layer that a parameter belongs to: "model.layers.3.mlp.w" -> "model.layers.3"; else its module."""
    layer = layer_of(name)
    return f"{layer[0]}.{layer[1]}".lstrip(".") if layer is not None else module_of(name)


def sums(evidence: Evidence, checkpoint: str) -> dict[str, Sums]:
    """Every layer of one checkpoint, by name, not in order."""
    return evidence.once(("report.layers.sums", checkpoint), lambda: _sums(evidence, checkpoint))


def _sums(evidence: Evidence, path: str) -> dict[str, Sums]:
    found: dict[str, Sums] = {}
    second = saved.states_of(evidence, "exp_avg_sq", path)
    states = [saved.states_of(evidence, role, path) for role in _STATES]
    groups = saved.adam_groups_of(evidence, path)
    moments = {row["name"]: row for row in (saved.moments(evidence) or {}).get(path, ())}
    for weight in saved.weights_by_checkpoint(evidence).get(path, []):
        part = found.setdefault(layer_name(weight.name), Sums())
        label = weight.name, weight.rank
        part.count += weight.count
        part.finite += weight.count - weight.nonfinite
        part.squares += (weight.l2 or 0.0) ** 2
        part.nonfinite += weight.nonfinite + sum(saved.nonfinite(rows[label]) for rows in states if label in rows)
        v, group = second.get(label), groups.get(weight.name)
        corrections = None if group is None else group.corrections
        if v is not None and v["mean"] is not None and v["mean"] >= 0 and corrections is not None:
            part.gradient += v["mean"] * v["count"] / corrections[1]
            part.gradients += v["count"]
        moment = moments.get(saved.labelled(weight.name, weight.rank))
        if moment is not None and moment["update_rms"] is not None:
            elements = moment["count"] - moment["nonfinite"]
            part.update += moment["update_rms"] ** 2 * elements
            part.updates += elements
    return found


def moved(
    evidence: Evidence, first: saved.Saved | None, last: saved.Saved | None
) -> dict[str, tuple[float | None, float | None]]:
    """Relative travel and share of changed weights of every layer between two checkpoints, where they were compared."""
    pair = next((p for p in saved.pairs(evidence) or [] if p.first == first and p.last == last), None)
    return {} if pair is None else travels(evidence, pair)


def travels(evidence: Evidence, pair: saved.Pair) -> dict[str, tuple[float | None, float | None]]:
    """Relative travel and share of changed weights of every layer between the two checkpoints of a pair."""
    norms = {w.name: w for w in saved.weights_by_checkpoint(evidence).get(pair.first.path, [])}
    parts: dict[str, list[float]] = {}
    for name, row in pair.rows.items():
        weight = norms.get(saved.plain(name))
        if weight is None or weight.l2 is None:
            continue
        part = parts.setdefault(layer_name(weight.name), [0.0, 0.0, 0.0, 0.0])
        if row["rel_travel"] is not None:  # where no element is finite there is no way to tell
            part[0] += (row["rel_travel"] * weight.l2) ** 2
            part[1] += weight.l2**2
        part[2] += row["changed"] * row["count"]
        part[3] += row["count"]
    return {
        key: (math.sqrt(distance / norm) if norm else None, changed / count if count else None)
        for key, (distance, norm, changed, count) in parts.items()
    }


# -- their order ------------------------------------------------------------------------------------------------------


def in_order(evidence: Evidence) -> tuple[str, ...]:
    """The layers of all checkpoints in the order of the network, as the checkpoint with most of them has it.

    That is the order of the parameters in its file or, where files are sorted by name, in its optimizer's group. Where
    neither tells, embeddings stand first, then the stacks, norms, the rest and the head.
    """
    return evidence.once("report.layers.in_order", lambda: _in_order(evidence))


def _in_order(evidence: Evidence) -> tuple[str, ...]:
    formats = {one.path: one.format for one in saved.checkpoints(evidence) or []}
    orders: list[tuple[bool, list[str]]] = []
    for path, weights in saved.weights_by_checkpoint(evidence).items():
        told = [w.name for w in weights]
        known = _SORTED not in formats.get(path, "")
        if not known:
            grouped = _grouped(evidence, path)
            known = {layer_name(name) for name in grouped} >= {layer_name(name) for name in told}
            told = grouped if known else told
        orders.append((known, ordered(told) if known else _by_kind(weights)))
    orders.sort(key=lambda one: (-len(one[1]), not one[0]))
    return tuple(dict.fromkeys(layer for _, order in orders for layer in order))


def _grouped(evidence: Evidence, path: str) -> list[str]:
    """The parameters of an optimizer's only group, which are those of the network in its order; else nothing."""
    groups = saved.groups_of(evidence, path)
    return list(groups[0].names) if len(groups) == 1 and path in saved.sure(evidence) else []


def ordered(names: Iterable[str]) -> list[str]:
    """The layers of parameters that come in the order of the network; those of one stack by their numbers."""
    firsts: dict[str, int] = {}
    keys: dict[str, tuple[int, int]] = {}
    for place, name in enumerate(names):
        layer = layer_of(name)
        stack, number = (module_of(name), 0) if layer is None else (f"{layer[0]}.#", layer[1])
        keys.setdefault(layer_name(name), (firsts.setdefault(stack, place), number))
    return sorted(keys, key=keys.__getitem__)


def _by_kind(weights: Sequence[saved.Weight]) -> list[str]:
    classes: dict[str, int] = {}
    for weight in weights:
        kind = kind_of(weight.name, weight.shape)
        if weight.layer is not None:
            classes[layer_name(weight.name)] = _STACK
        elif kind != "bias" or layer_name(weight.name) not in classes:
            classes[layer_name(weight.name)] = _CLASSES.get(kind, _BEHIND)
    listed = ordered(weight.name for weight in weights)
    return sorted(listed, key=classes.__getitem__)
