"""Checks on mixtures of experts, by the states that Adam keeps of every expert."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

from gradforensics import checkpoint_signals as cs
from gradforensics.checkpoint_signals import SURE, Saved
from gradforensics.diagnosis.vocabulary import Answer, Check, Fact, Hit, Missing, check
from gradforensics.patterns import lazy
from gradforensics.tables import Evidence

_EXPERT = lazy(r"^(.*?(?:^|\.)experts)\.(?:local_experts\.|deepspeed_experts\.)?(\d+)\.")
_FUSED = lazy(r"(?:^|\.)experts\.\w+(?:\.weight)?$")
_TOP_K = ("num_experts_per_tok", "moe_topk", "moe_router_topk", "num_experts_per_token", "moe_top_k", "top_k_experts")
_NO_EXPERTS = "experts of a mixture with one tensor each (experts.0, experts.1 ...)"


@dataclass(slots=True)
class _Expert:
    """One expert's moments over all its tensors: the sum of v, the sum of m², and the elements."""

    squares: float = 0.0
    first: float = 0.0
    count: int = 0
    tensor: str = ""
    source: str = ""

    @property
    def ratio(self) -> float:
        """‖m‖ / sqrt(sum of v): 0.2 to 1 while gradients come, and falling by beta1 / sqrt(beta2) a step without."""
        return math.sqrt(self.first / self.squares) if self.squares > 0 else 0.0

    @property
    def gradient(self) -> float:
        """The root mean square of the gradients, as v remembers it."""
        return math.sqrt(self.squares / self.count) if self.count else 0.0


@dataclass(slots=True)
class _Layer:
    """The experts of one layer in one checkpoint. steps: the optimizer's steps; betas: of their group."""

    saved: Saved
    name: str
    steps: int
    betas: tuple[float, float]
    experts: dict[int, _Expert] = field(default_factory=dict)


def _layers(evidence: Evidence) -> list[_Layer] | Missing:
    """Every layer whose experts have Adam states with certain names, in the order of the checkpoints."""
    return evidence.once("experts.layers", lambda: _find_layers(evidence))


def _find_layers(evidence: Evidence) -> list[_Layer] | Missing:
    saved = cs.checkpoints(evidence)
    if saved is None:
        return Missing("tensors")
    second, first = cs.states(evidence, "exp_avg_sq"), cs.states(evidence, "exp_avg")
    if not any(_EXPERT.search(name) for _, name, _ in second):
        fused = any(_FUSED.search(name) for _, name, _ in second)
        return Missing("the experts of a layer are one tensor: no statistics of each" if fused else _NO_EXPERTS)
    found: dict[tuple[str, str], _Layer] = {}
    order = {one.path: one for one in saved if one.naming in SURE}
    for (path, name, rank), row in second.items():
        expert = _EXPERT.search(name)
        group = None if expert is None or path not in order else cs.adam_groups_of(evidence, path).get(name)
        moment = first.get((path, name, rank))
        if expert is None or group is None or group.betas is None or moment is None:
            continue
        if cs.nonfinite(row) or cs.nonfinite(moment):
            continue
        where = cs.labelled(expert[1], rank)
        steps = group.step_max or order[path].step or 0
        layer = found.setdefault((path, where), _Layer(order[path], where, steps, group.betas))
        one = layer.experts.setdefault(int(expert[2]), _Expert(tensor=name, source=row["source"]))
        one.squares += (row["mean"] or 0.0) * row["count"]
        one.first += (moment["l2"] or 0.0) ** 2
        one.count += row["count"]
    if not found:
        return Missing("Adam states of experts" if order else "checkpoints:named")
    return list(found.values())


def _idle(layer: _Layer, expert: _Expert, usual: float) -> float:
    """For how many steps an expert has had no gradient, at least: all of them where its moments are exactly zero."""
    if expert.ratio == 0.0:
        return float(layer.steps)
    beta1, beta2 = layer.betas
    fall = math.log(math.sqrt(beta2) / beta1) if 0 < beta1 < math.sqrt(beta2) else 0.0
    return min(float(layer.steps), math.log(usual / expert.ratio) / fall) if fall > 0 else 0.0


def _top_k(evidence: Evidence) -> float:
    """How many experts a token goes to, 1 where nothing says it."""
    return next((number for key in _TOP_K if (number := evidence.number(key))), 1.0)


@check(needs=["tensors"], facts=["checkpoint", "layer", "experts", "dead", "idle", "expert", "layers"])
def experts_without_gradient(evidence: Evidence, *, steps: float, rounds: float) -> Answer:
    """Experts that have had no gradient for many steps while others of their layer have: no token reaches them.

    With every step without a gradient ‖m‖ / sqrt(v) falls by beta1 / sqrt(beta2); how far it lies below that of the
    other experts tells the number of steps. At least `steps`, and so many that `rounds` tokens would have reached each
    expert if one token a step were spread evenly over them.
    """
    layers = _layers(evidence)
    if isinstance(layers, Missing):
        return layers
    judged, hits = 0, list[tuple[_Layer, dict[int, float]]]()
    clean: dict[str, int] = {}
    for layer in layers:
        enough = max(steps, rounds * len(layer.experts) / _top_k(evidence))
        alive = [one.ratio for one in layer.experts.values() if one.ratio > 0]
        if len(layer.experts) < 2 or layer.steps < enough or not alive:
            continue
        judged += 1
        usual = median(sorted(alive)[len(alive) // 2 :])  # of the better half: dead ones may be many
        idle = {number: _idle(layer, one, usual) for number, one in layer.experts.items()}
        dead = {number: count for number, count in idle.items() if count >= enough}
        if dead:
            hits.append((layer, dead))
        elif layer.saved.step is not None:
            clean[layer.name] = layer.saved.step
    if not judged:
        return Missing("a checkpoint late enough that every expert should have had tokens")
    return [_dead(layer, dead, len(hits), clean.get(layer.name)) for layer, dead in hits]


def _dead(layer: _Layer, dead: Mapping[int, float], layers: int, good: int | None) -> Hit:
    number = min(dead)
    expert = layer.experts[number]
    facts: dict[str, Fact] = {
        "checkpoint": layer.saved.path,
        "layer": layer.name,
        "experts": len(layer.experts),
        "dead": len(dead),
        "idle": int(min(dead.values())),
        "expert": number,
        "layers": layers,
    }
    step = layer.saved.step
    after = good if good is not None and step is not None and good < step else None
    return Hit(step, after, "tensors", None, float(len(dead)), expert.source, None, expert.tensor, facts)


@check(needs=["tensors"], facts=["checkpoint", "layer", "experts", "ratio", "expert"])
def expert_gradients_uneven(evidence: Evidence, *, ratio: float, steps: float) -> Answer:
    """Within a layer the gradients of one expert are `ratio` times as large as those of another, by sqrt(v).

    Gradients grow with the share of the tokens, by its root at least; other things change them too.
    """
    layers = _layers(evidence)
    if isinstance(layers, Missing):
        return layers
    judged = [layer for layer in layers if len(layer.experts) > 1 and layer.steps >= steps]
    if not judged:
        return Missing("a checkpoint late enough that every expert should have had tokens")
    hits: list[Hit] = []
    for layer in judged:
        sizes = {number: one.gradient for number, one in layer.experts.items() if one.squares > 0}
        low, high = min(sizes, key=sizes.__getitem__, default=-1), max(sizes.values(), default=0.0)
        if low >= 0 and high >= ratio * sizes[low]:
            one = layer.experts[low]
            facts: dict[str, Fact] = {
                "checkpoint": layer.saved.path,
                "layer": layer.name,
                "experts": len(layer.experts),
                "ratio": high / sizes[low],
                "expert": low,
            }
            hits.append(
                Hit(layer.saved.step, None, "tensors", None, high / sizes[low], one.source, None, one.tensor, facts)
            )
    return hits


@check(needs=["tensors"], facts=["checkpoint", "layer", "experts", "dead", "expert", "steps"])
def experts_without_state(evidence: Evidence, *, steps: float, share: float) -> Answer:
    """Experts that stand in the optimizer and have no state, while others of their layer have one.

    PyTorch makes a state with the first gradient: no token has reached them, or they are frozen on purpose. Layers in
    which more than a share `share` of the experts has none are rather frozen.
    """
    layers = _layers(evidence)
    if isinstance(layers, Missing):
        return layers
    held: dict[tuple[str, str], set[int]] = {}
    for group in cs.groups(evidence) or []:
        for name in group.names:
            if expert := _EXPERT.search(name):
                where = cs.labelled(expert[1], group.rank)
                held.setdefault((group.checkpoint, where), set()).add(int(expert[2]))
    hits: list[Hit] = []
    for layer in layers:
        every = held.get((layer.saved.path, layer.name), set())
        without = sorted(every - layer.experts.keys())
        if without and layer.steps >= steps and len(without) <= share * len(every):
            facts: dict[str, Fact] = {
                "checkpoint": layer.saved.path,
                "layer": layer.name,
                "experts": len(every),
                "dead": len(without),
                "expert": without[0],
                "steps": layer.steps,
            }
            source = layer.saved.source
            hits.append(Hit(layer.saved.step, None, "tensors", None, float(len(without)), source, None, None, facts))
    return hits


CHECKS: tuple[Check, ...] = (
    experts_without_gradient,
    expert_gradients_uneven,
    experts_without_state,
)
