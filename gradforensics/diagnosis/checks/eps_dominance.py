"""Checks on Adam's eps beside its second moments, as a checkpoint holds both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from gradforensics import checkpoint_signals as signals
from gradforensics.checkpoint_signals import Group
from gradforensics.diagnosis.vocabulary import Answer, Check, Fact, Hit, Missing, check
from gradforensics.parameter_names import kind_of
from gradforensics.tables import Evidence

_ALIVE = 0.5  # of a tensor's elements: a tensor with fewer second moments above 0 is frozen, dead or seldom seen


class _Matrix(NamedTuple):
    """The moments of one matrix. alive, below: elements with v > 0, and those of them with sqrt(v_hat) < 10 eps."""

    name: str
    alive: int
    below: float
    update: float


@check(
    needs=["moments", "tensors", "groups"],
    facts=["checkpoint", "eps", "share", "update", "weak", "matrices", "noise"],
)
def eps_dominates(
    evidence: Evidence, *, share: float, weak: float, most: float, noise: float, steps: int, low: float, high: float
) -> Answer:
    """Adam's eps outweighs float32 second moments, and its updates are small for that (detector D26).

    share: of the elements of all matrices, above which sqrt(v_hat) < 10 eps. weak: a matrix whose update has a smaller
    root mean square hardly moves; most: share of the matrices that must be so; noise: what gradients of nothing but
    noise give, for the text. steps: that the states have seen at least. low, high: low <= eps < high.
    Embeddings, and tensors in which most second moments are 0, are not counted. Other optimizers are not judged.
    """
    table, saved = signals.moments(evidence), signals.checkpoints(evidence)
    if table is None or saved is None:
        return Missing("moments")
    hits: list[Hit] = []
    reasons: list[str] = []
    judged = False
    for one in saved:
        found = _matrices(evidence, one.path, table.get(one.path, []), steps)
        if isinstance(found, str):
            reasons.append(found)
            continue
        judged = True
        eps, matrices = found
        alive = sum(matrix.alive for matrix in matrices)
        below = sum(matrix.below for matrix in matrices) / alive
        few = [matrix for matrix in matrices if matrix.update < weak]
        if not low <= eps < high or below <= share or len(few) <= most * len(matrices):
            continue
        facts: dict[str, Fact] = {
            "checkpoint": one.path, "eps": eps, "share": below, "weak": len(few), "matrices": len(matrices),
            "update": float(np.median([matrix.update for matrix in matrices])), "noise": noise,
        }  # fmt: skip
        worst = min(matrices, key=lambda matrix: matrix.update).name
        hits.append(Hit(one.step, None, "moments", None, below, one.source, None, signals.plain(worst), facts))
    return hits if judged else Missing(*dict.fromkeys(reasons))


def _matrices(
    evidence: Evidence, checkpoint: str, rows: list[Mapping[str, Any]], steps: int
) -> tuple[float, list[_Matrix]] | str:
    """eps and the matrices of one checkpoint that had gradients; or why they cannot be judged, in plain words.

    rows: of the table of moments.
    """
    groups = signals.groups_of(evidence, checkpoint)
    if not groups or not all(signals.adam_like(group) for group in groups):
        return "an optimizer whose formula is known: Adam or AdamW"
    eps = {group.eps for group in groups}
    if len(eps) > 1 or None in eps or not _seen(groups, steps):
        return f"one eps for all parameters, and states of at least {steps} updates"
    found = evidence.once(("eps_dominance", checkpoint), lambda: list(_found(evidence, checkpoint, rows)))
    constant = groups[0].eps
    return (constant, found) if found and constant is not None else "matrices with moments in float32"


def _found(evidence: Evidence, checkpoint: str, rows: list[Mapping[str, Any]]) -> Iterator[_Matrix]:
    held = signals.states_of(evidence, "exp_avg_sq", checkpoint)
    states = {signals.labelled(name, rank): row for (name, rank), row in held.items()}
    for row in rows:
        matrix = _matrix(row, states)
        if matrix is not None:
            yield matrix


def _seen(groups: list[Group], steps: int) -> bool:
    return all(group.step_min is not None and group.step_min >= steps for group in groups)


def _matrix(row: Mapping[str, Any], states: Mapping[str, Mapping[str, Any]]) -> _Matrix | None:
    """The matrix of a row of moments; a state whose parameter is not known is called by the path of its keys."""
    name = row["name"]
    state = states.get(name) or states.get(f"{name}.exp_avg_sq")
    if state is None or row["below_eps"] is None or row["update_rms"] is None or state["dtype"] not in signals.FULL:
        return None
    shape = state["shape"]
    alive = state["count"] - state["zero"]
    if len(shape) < 2 or kind_of(signals.plain(name), shape) == "embedding" or alive < _ALIVE * state["count"]:
        return None
    return _Matrix(name, alive, max(row["below_eps"] * row["count"] - state["zero"], 0.0), row["update_rms"])


CHECKS: tuple[Check, ...] = (eps_dominates,)
