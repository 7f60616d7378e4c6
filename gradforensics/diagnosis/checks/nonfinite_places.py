"""Checks that tell from the moments in a checkpoint where in the model a gradient stopped being a number.

In the backward pass NaN flows from the operation that makes it to everything before that operation, and to nothing
behind it. Adam's first moment keeps it for every parameter. Once it is in the weights, the next loss is NaN and with it
every gradient: moments that hold it in one part of the model only are those of the very update in which it came up.
clip_grad_norm_ and a NaN loss spread it over all tensors, and then no place can be told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gradforensics import checkpoint_signals
from gradforensics.checkpoint_signals import Saved, nonfinite
from gradforensics.diagnosis.vocabulary import Answer, Check, Fact, Hit, Missing, check
from gradforensics.languages import Text
from gradforensics.parameter_names import kind_of, layer_of
from gradforensics.tables import Evidence

_FEWEST = 2  # layers of a stack in which there is a before and a behind
_FACTS = ("checkpoint", "place", "bad", "good", "values", "last_finite")


@dataclass(frozen=True, slots=True)
class _Spread:
    """The first moments of the first checkpoint in which some are not finite, and not all of them.

    bad, good: names of parameters; rows: of the table of tensors, by name.
    """

    saved: Saved
    before: Saved | None
    bad: frozenset[str]
    good: frozenset[str]
    rows: Mapping[str, Mapping[str, Any]]


def _spread(evidence: Evidence) -> _Spread | Missing | None:
    """None where no first moment is bad, or all are in the first checkpoint that holds a bad one."""
    return evidence.once("nonfinite_places.spread", lambda: _first_bad(evidence))


def _first_bad(evidence: Evidence) -> _Spread | Missing | None:
    saved = checkpoint_signals.checkpoints(evidence)
    if saved is None or not checkpoint_signals.states(evidence, "exp_avg"):
        return Missing("first moments of an optimizer in a checkpoint")
    before: Saved | None = None
    for one in saved:
        mine = checkpoint_signals.states_of(evidence, "exp_avg", one.path).values()
        rows = {row["name"]: row for row in mine}
        bad = frozenset(row["name"] for row in mine if nonfinite(row))
        if bad:
            if one.path not in checkpoint_signals.sure(evidence):
                return Missing("checkpoints:named")
            good = frozenset(rows) - bad
            return _Spread(one, before, bad, good, rows) if good else None
        before = one if rows else before
    return None


def _hit(spread: _Spread, place: str, tensor: str) -> Hit:
    facts: dict[str, Fact] = {
        "checkpoint": spread.saved.path,
        "place": place,
        "bad": len(spread.bad),
        "good": len(spread.good),
        "values": sum(map(nonfinite, spread.rows.values())),
        "last_finite": Text("none", "无") if spread.before is None else spread.before.path,
    }
    after = None if spread.before is None else spread.before.step
    source = spread.rows[tensor]["source"]
    return Hit(spread.saved.step, after, "tensors", None, float("nan"), source, None, tensor, facts)


def _layers(names: frozenset[str], stack: str) -> set[int]:
    places = (layer_of(name) for name in names)
    return {place[1] for place in places if place is not None and place[0] == stack}


def _stack(spread: _Spread) -> str | None:
    """The stack with most layers; None where there is none with two."""
    places = {place for name in spread.rows if (place := layer_of(name)) is not None}
    counted = Counter(stack for stack, _ in places).most_common(1)
    return counted[0][0] if counted and counted[0][1] >= _FEWEST else None


def _kind(spread: _Spread, name: str) -> str:
    return kind_of(name, spread.rows[name]["shape"])


@check(needs=["tensors"], facts=_FACTS)
def gradient_nonfinite_before_a_layer(evidence: Evidence) -> Answer:
    """In the first checkpoint with NaN in m, everything before one layer has it and everything behind is finite.

    The operation that made it lies in this layer, in the backward pass.
    """
    spread = _spread(evidence)
    if spread is None or isinstance(spread, Missing):
        return spread or []
    stack = _stack(spread)
    if stack is None:
        return []
    bad, good = _layers(spread.bad, stack), _layers(spread.good, stack)
    embeddings = frozenset(name for name in spread.rows if _kind(spread, name) == "embedding")
    if not bad or not good or min(good) < max(bad):
        return []
    upstream = len(bad) >= _FEWEST or embeddings & spread.bad
    if not upstream or (embeddings and not embeddings & spread.bad):
        return []
    if any(_kind(spread, name) == "head" for name in spread.bad):
        return []
    within = sorted(name for name in spread.bad if layer_of(name) == (stack, max(bad)))
    return [_hit(spread, f"{stack}.{max(bad)}".lstrip("."), within[-1])]


@check(needs=["tensors"], facts=_FACTS)
def gradient_nonfinite_in_one_place(evidence: Evidence) -> Answer:
    """In the first checkpoint with NaN in m, it is in the tensors of one layer, or of the embeddings, and nowhere else.

    In a layer: an operation on its own weights, or on their way to the loss alone. In embeddings: the operation follows
    them directly, and their rows are those of the batch.
    """
    spread = _spread(evidence)
    if spread is None or isinstance(spread, Missing):
        return spread or []
    first = min(spread.bad)
    place = layer_of(first)
    if all(_kind(spread, name) == "embedding" for name in spread.bad):
        return [_hit(spread, ", ".join(sorted(spread.bad)), first)]
    if place is None:
        return [_hit(spread, first, first)] if len(spread.bad) == 1 else []
    if any(layer_of(name) != place for name in spread.bad) or len(_layers(frozenset(spread.rows), place[0])) < _FEWEST:
        return []
    return [_hit(spread, f"{place[0]}.{place[1]}".lstrip("."), first)]


CHECKS: tuple[Check, ...] = (
    gradient_nonfinite_before_a_layer,
    gradient_nonfinite_in_one_place,
)
