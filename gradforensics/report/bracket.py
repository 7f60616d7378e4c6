"""From the log to the checkpoints: what was saved before and after a finding began, layer by layer.

Selected and added up from the tables of checkpoints; nothing is measured or judged here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from gradforensics import checkpoint_signals as saved
from gradforensics.diagnosis.causes import Diagnosis
from gradforensics.diagnosis.judge import Verdict
from gradforensics.diagnosis.needs import OF_CHECKPOINTS
from gradforensics.diagnosis.vocabulary import label
from gradforensics.parameter_names import kind_of, layer_of, module_of
from gradforensics.tables import Evidence, Series

_STATES = ("exp_avg", "exp_avg_sq", "momentum")


@dataclass(frozen=True, slots=True)
class Node:
    """One place on the way from the log to the checkpoints.

    kind: a logged point or a checkpoint; name: of the series, or the checkpoint's path; value: of the logged point.
    nonfinite: NaN and infinities of a checkpoint. late: at or after the onset.
    """

    kind: Literal["log", "checkpoint"]
    step: int
    name: str
    value: float | None
    nonfinite: int | None
    late: bool


@dataclass(frozen=True, slots=True)
class LayerRow:
    """One layer in the two checkpoints, (before, after); None where a checkpoint does not tell.

    weight_rms: of its finite weights, NaN where none is. gradient_rms: root of the mean of Adam's v, corrected for its
    start: what the gradients of the last 1 / (1 - beta2) updates were like. nonfinite: in weights and moments. travel:
    norm of its movement in norms of its weights before; changed: share of its weights that changed: both only between
    neighbours.
    """

    layer: str
    parameters: int
    weight_rms: tuple[float | None, float | None]
    gradient_rms: tuple[float | None, float | None]
    nonfinite: tuple[int | None, int | None]
    travel: float | None
    changed: float | None


@dataclass(frozen=True, slots=True)
class Bracket:
    """The checkpoints around the onset of one finding.

    nodes: in the order of their steps. before, after: paths, "" where there is none on that side.
    """

    rule: str
    nodes: tuple[Node, ...]
    before: str
    after: str
    layers: tuple[LayerRow, ...]


def bracket(diagnosis: Diagnosis) -> Bracket | None:
    """The checkpoints around the primary case or, without one, around the first finding that checkpoints show.

    None where no such finding has an onset, or the run saved nothing.
    """
    evidence = diagnosis.evidence
    held = [one for one in saved.checkpoints(evidence) or [] if one.step is not None]
    fired = [v for v in diagnosis.verdicts if v.outcome == "fired" and _shown_by_checkpoints(v)]
    verdict = diagnosis.primary or (fired[0] if fired else None)
    if verdict is None or verdict.onset is None or not held or not saved.weights(evidence):
        return None
    onset = verdict.onset
    last_good = verdict.onset_after if verdict.onset_after is not None else onset - 1
    before = max((one for one in held if _step(one) <= last_good), key=_step, default=None)
    after = min((one for one in held if _step(one) >= onset), key=_step, default=None)
    nodes = [_checkpoint(one, onset) for one in (before, after) if one is not None]
    nodes += _logged(evidence, verdict, last_good)
    return Bracket(
        verdict.rule.id,
        tuple(sorted(nodes, key=lambda node: (node.step, node.kind == "checkpoint"))),
        "" if before is None else before.path,
        "" if after is None else after.path,
        tuple(_layers(evidence, before, after)),
    )


def _step(one: saved.Saved) -> int:
    return one.step or 0


def _shown_by_checkpoints(verdict: Verdict) -> bool:
    return any(hit.series in OF_CHECKPOINTS for one in verdict.holdings for hit in one.hits)


def _checkpoint(one: saved.Saved, onset: int) -> Node:
    return Node("checkpoint", _step(one), one.path, None, one.nonfinite, _step(one) >= onset)


def _logged(evidence: Evidence, verdict: Verdict, last_good: int) -> list[Node]:
    """The last logged point up to the last good step and the first after it, of the finding's series or the loss."""
    named = next((h.series for one in verdict.holdings for h in one.hits if h.series not in OF_CHECKPOINTS), None)
    series = _series(evidence, named) or evidence.series("loss")
    if series is None or series.step_unit not in ("step", "micro_step") or not len(series):
        return []
    place = int(series.steps.searchsorted(last_good, "right"))
    points = [index for index in (place - 1, place) if 0 <= index < len(series)]
    onset = verdict.onset or 0
    steps = series.steps.tolist()
    return [Node("log", steps[i], label(series), float(series.values[i]), None, steps[i] >= onset) for i in points]


def _series(evidence: Evidence, name: str | None) -> Series | None:
    return None if name is None or "/" in name else evidence.series(name)


@dataclass(slots=True)
class _Sums:
    """Of one layer in one checkpoint."""

    count: int = 0
    finite: int = 0
    squares: float = 0.0
    gradient: float = 0.0
    gradients: int = 0
    nonfinite: int = 0


def _layers(evidence: Evidence, before: saved.Saved | None, after: saved.Saved | None) -> list[LayerRow]:
    sides = [None if one is None else _sums(evidence, one) for one in (before, after)]
    moved = _moved(evidence, before, after)
    labels = sorted({key for side in sides if side for key in side})
    rows: list[LayerRow] = []
    for key in labels:
        of = [None if side is None else side.get(key) for side in sides]
        travel, changed = moved.get(key, (None, None))
        count = max(one.count for one in of if one is not None)
        rows.append(
            LayerRow(
                key[-1],
                count,
                (_rms(of[0]), _rms(of[1])),
                (_gradient(of[0]), _gradient(of[1])),
                (None if of[0] is None else of[0].nonfinite, None if of[1] is None else of[1].nonfinite),
                travel,
                changed,
            )
        )
    return rows


def _rms(sums: _Sums | None) -> float | None:
    if sums is None or not sums.count:
        return None
    return math.sqrt(sums.squares / sums.finite) if sums.finite else math.nan


def _gradient(sums: _Sums | None) -> float | None:
    return None if sums is None or not sums.gradients else math.sqrt(sums.gradient / sums.gradients)


_Key = tuple[int, str, int, str]


def _key(name: str, shape: tuple[int, ...]) -> _Key:
    """Where a parameter's layer stands: embeddings first, then the stacks, then what has no layer."""
    layer = layer_of(name)
    if layer is not None:
        stack, number = layer
        return 1, stack, number, f"{stack}.{number}".lstrip(".")
    own = module_of(name)
    return (0 if kind_of(name, shape) == "embedding" else 2), own, 0, own


def _sums(evidence: Evidence, one: saved.Saved) -> dict[_Key, _Sums]:
    found: dict[_Key, _Sums] = {}
    second = saved.states_of(evidence, "exp_avg_sq", one.path)
    states = [saved.states_of(evidence, role, one.path) for role in _STATES]
    groups = saved.adam_groups_of(evidence, one.path)
    for weight in saved.weights_by_checkpoint(evidence).get(one.path, []):
        sums = found.setdefault(_key(weight.name, weight.shape), _Sums())
        label = weight.name, weight.rank
        sums.count += weight.count
        sums.finite += weight.count - weight.nonfinite
        sums.squares += (weight.l2 or 0.0) ** 2
        sums.nonfinite += weight.nonfinite + sum(saved.nonfinite(part[label]) for part in states if label in part)
        v, group = second.get(label), groups.get(weight.name)
        corrections = None if group is None else group.corrections
        if v is not None and v["mean"] is not None and v["mean"] >= 0 and corrections is not None:
            sums.gradient += v["mean"] * v["count"] / corrections[1]
            sums.gradients += v["count"]
    return found


def _moved(
    evidence: Evidence, before: saved.Saved | None, after: saved.Saved | None
) -> dict[_Key, tuple[float | None, float | None]]:
    """Relative travel and share of changed weights of every layer, where the two were compared."""
    pair = next((p for p in saved.pairs(evidence) or [] if p.first == before and p.last == after), None)
    if pair is None:
        return {}
    norms = {w.name: w for w in saved.weights_by_checkpoint(evidence).get(pair.first.path, [])}
    sums: dict[_Key, list[float]] = {}
    for name, row in pair.rows.items():
        weight = norms.get(saved.plain(name))
        if weight is None or weight.l2 is None:
            continue
        part = sums.setdefault(_key(weight.name, weight.shape), [0.0, 0.0, 0.0, 0.0])
        if row["rel_travel"] is not None:  # where no element is finite there is no way to tell
            part[0] += (row["rel_travel"] * weight.l2) ** 2
            part[1] += weight.l2**2
        part[2] += row["changed"] * row["count"]
        part[3] += row["count"]
    return {
        key: (math.sqrt(moved / norm) if norm else None, changed / count if count else None)
        for key, (moved, norm, changed, count) in sums.items()
    }
