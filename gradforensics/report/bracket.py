"""From the log to the checkpoints: what was saved before and after a finding began, layer by layer.

Selected and added up from the tables of checkpoints; nothing is measured or judged here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

from gradforensics import checkpoint_signals as saved
from gradforensics.diagnosis.causes import Diagnosis
from gradforensics.diagnosis.judge import Verdict
from gradforensics.diagnosis.needs import OF_CHECKPOINTS
from gradforensics.diagnosis.vocabulary import label
from gradforensics.report import layers
from gradforensics.tables import Evidence, Series

T = TypeVar("T")


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


def _layers(evidence: Evidence, before: saved.Saved | None, after: saved.Saved | None) -> list[LayerRow]:
    sides = [{} if one is None else layers.sums(evidence, one.path) for one in (before, after)]
    moved = layers.moved(evidence, before, after)
    rows: list[LayerRow] = []
    for layer in layers.in_order(evidence):
        held = sides[0].get(layer), sides[1].get(layer)
        if not any(held):
            continue
        travel, changed = moved.get(layer, (None, None))
        rows.append(
            LayerRow(
                layer,
                max(one.count for one in held if one is not None),
                _two(held, lambda one: one.weight_rms),
                _two(held, lambda one: one.gradient_rms),
                _two(held, lambda one: one.nonfinite),
                travel,
                changed,
            )
        )
    return rows


def _two(
    held: tuple[layers.Sums | None, layers.Sums | None], told: Callable[[layers.Sums], T]
) -> tuple[T | None, T | None]:
    first, last = held
    return None if first is None else told(first), None if last is None else told(last)
