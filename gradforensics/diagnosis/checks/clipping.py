"""Checks on gradient clipping, and on the units of the logged gradient norm."""

from __future__ import annotations

import numpy as np

from gradforensics.diagnosis.gradient_units import gradient_unit
from gradforensics.diagnosis.vocabulary import Answer, Check, Missing, check, hit_at
from gradforensics.tables import Evidence, Series


def _norm_and_threshold(evidence: Evidence, points: int) -> tuple[Series, float] | Missing | None:
    """The finite gradient norms and max_norm; None where the settings say that nothing is clipped."""
    threshold = evidence.number("max_grad_norm")
    if threshold is None:
        return Missing("settings:max_grad_norm")
    if threshold <= 0:
        return None
    by_value = str(evidence.setting("gradient_clip_algorithm") or "").lower() == "value"
    if by_value:
        return Missing("clipping by norm (this run clips by value)")
    norm = evidence.series("grad_norm")
    norm = None if norm is None else norm.where(norm.finite & (norm.values > 0))  # 0 is how some write "not measured"
    if norm is None or len(norm) < points:
        return Missing(f"series:grad_norm:points>={points}")
    return norm, threshold


def _after_warmup(evidence: Evidence, norm: Series, part: float) -> Series:
    """Without the warm-up by the settings, or without the first `part` where they name none."""
    warmup = evidence.number("warmup_steps") or 0.0
    ratio, total = evidence.number("warmup_ratio"), evidence.number("max_steps")
    if warmup <= 0 and ratio and total:
        warmup = ratio * total
    rest = norm.where(norm.steps > warmup) if warmup > 0 else norm.where(np.arange(len(norm)) >= part * len(norm))
    return rest if 2 * len(rest) >= len(norm) else norm.where(np.arange(len(norm)) >= len(norm) // 2)


def _was_clipped(norm: Series, threshold: float, exact: float) -> bool:
    """Whether the log holds the norm after clipping: it never exceeds max_norm and lies exactly there again and again.

    clip_grad_norm_ scales by max_norm / (norm + 1e-6), so that a clipped norm stays a trace below the threshold.
    """
    at_limit = np.abs(norm.values / threshold - 1) <= exact
    return float(norm.values.max()) <= threshold * (1 + exact) and int(at_limit.sum()) >= max(5, len(norm) // 20)


@check(needs=["series:grad_norm:points>=20"], facts=["share", "max_norm", "level", "depth"])
def clip_saturated(
    evidence: Evidence, *, share: float, depth: float, points: int, warmup: float, exact: float
) -> Answer:
    """After the warm-up more than `share` of the logged norms exceed max_norm, half of them `depth` times or more.

    warmup: part of the record that is left out where the settings name no warm-up; exact: relative distance from
    max_norm within which a norm was logged after clipping. A norm that still holds the loss scale is another finding.
    """
    found = _norm_and_threshold(evidence, points)
    if not isinstance(found, tuple):
        return found or []
    norm, threshold = found
    unit = gradient_unit(evidence)
    if _was_clipped(norm, threshold, exact) or (unit is not None and unit.kind in ("loss-scale", "shard")):
        return Missing("series:grad_norm before clipping, unscaled and over all ranks")
    rest = _after_warmup(evidence, norm, warmup)
    above = rest.values >= threshold
    level = float(np.median(rest.values))
    if float(np.mean(above)) <= share or level < depth * threshold:
        return []
    facts = {"share": float(np.mean(above)), "max_norm": threshold, "level": level, "depth": level / threshold}
    return [hit_at(rest, int(np.argmax(above)), facts)]


@check(needs=["series:grad_norm:points>=20"], facts=["max_norm", "highest", "times"])
def clip_never_reached(evidence: Evidence, *, times: float, points: int) -> Answer:
    """In the whole record max_norm is never less than `times` the largest logged norm: it clips nothing at all."""
    found = _norm_and_threshold(evidence, points)
    if not isinstance(found, tuple):
        return found or []
    norm, threshold = found
    highest = float(norm.values.max())
    if threshold < times * highest or len(evidence.attempts("grad_norm")) > 1:
        return []
    return [hit_at(norm, int(np.argmax(norm.values)), max_norm=threshold, highest=highest, times=threshold / highest)]


@check(needs=["series:grad_norm:points>=20"], facts=["max_norm", "share"])
def norm_logged_after_clipping(evidence: Evidence, *, exact: float, points: int) -> Answer:
    """The logged norm stops at max_norm and lies exactly there again and again: it was taken after clipping."""
    found = _norm_and_threshold(evidence, points)
    if not isinstance(found, tuple):
        return found or []
    norm, threshold = found
    if not _was_clipped(norm, threshold, exact):
        return []
    at_limit = np.abs(norm.values / threshold - 1) <= exact
    return [hit_at(norm, int(np.argmax(at_limit)), max_norm=threshold, share=float(np.mean(at_limit)))]


@check(needs=["series:grad_norm:points>=20"], facts=["unit", "factor", "level"])
def gradient_norm_in_foreign_units(evidence: Evidence, *, kinds: str) -> Answer:
    """The logged gradient norm is in one of the units `kinds` names (see gradient_units), separated by commas."""
    norm = evidence.series("grad_norm")
    if norm is None or len(norm.good) < 20:
        return Missing("series:grad_norm:points>=20")
    unit = gradient_unit(evidence)
    if unit is None or unit.kind not in kinds.split(","):
        return []
    return [hit_at(norm.good, 0, unit=unit.words, factor=unit.factor, level=unit.level)]


@check(needs=["series:grad_norm:points>=20"], facts=["share", "max_norm", "level", "depth", "micro_batches"])
def clipped_from_the_first_step(evidence: Evidence, *, share: float, depth: float, points: int, exact: float) -> Answer:
    """With gradient accumulation, `share` of all norms from the very first on exceed max_norm `depth` times over.

    A gradient that is not divided by the number of micro-batches looks like this; so does a threshold that is too low.
    """
    steps = evidence.number("gradient_accumulation_steps")
    if steps is None:
        return Missing("settings:gradient_accumulation_steps")
    if steps < 2:
        return []
    found = _norm_and_threshold(evidence, points)
    if not isinstance(found, tuple):
        return found or []
    norm, threshold = found
    unit = gradient_unit(evidence)
    if _was_clipped(norm, threshold, exact) or (unit is not None and unit.kind in ("loss-scale", "shard")):
        return []
    above = norm.values >= threshold
    level = float(np.median(norm.values))
    if float(np.mean(above)) <= share or not above[:3].all() or level < depth * threshold:
        return []
    facts = {"share": float(np.mean(above)), "max_norm": threshold, "level": level, "depth": level / threshold}
    return [hit_at(norm, 0, facts, micro_batches=int(steps))]


CHECKS: tuple[Check, ...] = (
    clip_saturated,
    clip_never_reached,
    norm_logged_after_clipping,
    gradient_norm_in_foreign_units,
    clipped_from_the_first_step,
)
