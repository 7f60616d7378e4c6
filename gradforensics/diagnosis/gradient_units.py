"""In which units a log holds its gradient norm: a large norm in foreign units is no explosion.

Known foreign units: still multiplied by the loss scale (logged, and often clipped, before `unscale_`), summed over the
tokens of a step instead of averaged, of one rank's shard or of its own batch only.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from gradforensics.languages import Text
from gradforensics.tables import Evidence, Series

Kind: TypeAlias = Literal["loss-scale", "tokens", "shard", "steady"]

NAMES: dict[Kind, Text] = {
    "loss-scale": Text("still multiplied by the loss scale", "仍乘着损失缩放"),
    "tokens": Text("summed over the tokens of a step", "是对一步的所有 token 求和得到的"),
    "shard": Text("those of each rank alone", "只属于各个 rank 自身"),
    "steady": Text("large from the first step on and steady", "从第一步起就大而稳定"),
}
_POINTS = 10  # of a norm below which its unit is not judged
_FOLLOWS = (
    0.7,
    1.3,
)  # slope of log norm on log scale across the changes of the scale: 1 where the norm holds the scale
_LARGE_SCALE = 1024.0  # scales below it do not stand out from ordinary norms
_SCALED = 1e3  # norm: clipped runs start between 0.1 and 200 (corpus), times a scale of 1024 and more
_ORDINARY = (1e-3, 1e2)  # norm of a mean loss, of healthy public runs from the first point to the last
_STEADY = 10.0  # times its median, up or down: a norm that never leaves this band has not exploded
_LARGE = 50.0  # norm; detectors with summed losses stand at 300 to 500 throughout (WeDetect issue 15)
_APART = 0.01  # relative difference of the norms of two ranks, which are equal once gradients are reduced


@dataclass(frozen=True, slots=True)
class GradientUnit:
    """What the logged norm is. factor: how many times too large it reads, None where unknown; level: its median.

    sure: the norm was seen to follow what it is multiplied by; otherwise only its size speaks for it.
    """

    kind: Kind
    level: float
    factor: float | None = None
    sure: bool = False

    @property
    def words(self) -> Text:
        """The unit in words."""
        return NAMES[self.kind]


def gradient_unit(evidence: Evidence) -> GradientUnit | None:
    """The foreign unit of the logged gradient norm, or None where it reads like the norm of a mean loss."""
    return evidence.once("gradient_unit", lambda: _unit(evidence))


def _unit(evidence: Evidence) -> GradientUnit | None:
    norm = evidence.series("grad_norm")
    if norm is None or len(norm.good) < _POINTS:
        return None
    norm = norm.where(norm.finite & (norm.values > 0))
    if len(norm) < _POINTS:
        return None
    return (
        _of_loss_scale(norm, evidence.series("loss_scale"))
        or _of_shard(evidence, norm)
        or _of_tokens(norm, tokens_per_step(evidence))
        or _steady(norm)
    )


def tokens_per_step(evidence: Evidence) -> float | None:
    """Tokens of one micro-batch by the settings: sequences times their length, None where one is unknown."""
    batch, length = evidence.number("per_device_train_batch_size"), evidence.number("max_seq_length")
    return batch * length if batch and length else None


def _of_loss_scale(norm: Series, scale: Series | None) -> GradientUnit | None:
    if scale is None:
        return None
    scale = scale.where(scale.finite & (scale.values > 0))
    steps, of_norm, of_scale = np.intersect1d(norm.steps, scale.steps, return_indices=True)
    if len(steps) < _POINTS:
        return None
    norms, scales = np.log2(norm.values[of_norm]), np.log2(scale.values[of_scale])
    level = float(np.median(norm.values))
    factor = float(2 ** np.median(scales))
    slope = _slope_at_changes(norms, scales)
    if slope is not None:
        return GradientUnit("loss-scale", level, factor, sure=True) if _FOLLOWS[0] <= slope <= _FOLLOWS[1] else None
    first = norm.values[of_norm][: max(3, len(steps) // 10)]
    bare = norm.values[of_norm] / scale.values[of_scale]
    ordinary = _ORDINARY[0] <= float(np.median(bare)) <= _ORDINARY[1]
    if factor >= _LARGE_SCALE and float(first.min()) >= _SCALED and level >= _SCALED and ordinary:
        return GradientUnit("loss-scale", level, factor)
    return None


def _slope_at_changes(norms: np.ndarray, scales: np.ndarray) -> float | None:
    """Slope of the norm on the scale across changes of the scale (both log2), None for fewer than two changes.

    Either side of a change is a median of up to five points at one scale: norms are noisy. A scale may be logged after
    its update and the norm before, so that the point next to a change counts on neither side.
    """
    edges = np.flatnonzero(np.diff(scales)) + 1
    bounds = np.concatenate(([0], edges, [len(scales)]))
    long = [(a, b) for a, b in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True) if b - a >= 4]
    rises = []
    for (a, b), (c, d) in itertools.pairwise(long):
        before, after = norms[max(a + 1, b - 6) : b - 1], norms[c + 1 : min(d - 1, c + 6)]
        rises.append((float(np.median(after) - np.median(before)), float(scales[c] - scales[a])))
    moved = np.array([r for r in rises if r[1]])
    if len(moved) < 2:
        return None
    return float(moved[:, 0] @ moved[:, 1] / (moved[:, 1] @ moved[:, 1]))


def _of_shard(evidence: Evidence, norm: Series) -> GradientUnit | None:
    ranks = evidence.ranks("grad_norm")
    if len(ranks) < 2:
        return None
    one, other = (evidence.series("grad_norm", rank=rank) for rank in ranks[:2])
    if one is None or other is None:
        return None
    _, left, right = np.intersect1d(one.good.steps, other.good.steps, return_indices=True)
    if len(left) < _POINTS:
        return None
    apart = np.abs(one.good.values[left] / np.maximum(np.abs(other.good.values[right]), 1e-300) - 1)
    # replicas that drift apart begin equal; norms of shards or of local batches differ from the start
    differs = float(np.median(apart)) > _APART and bool((apart[:3] > _APART).all())
    return GradientUnit("shard", float(np.median(norm.values)), None, sure=True) if differs else None


def _of_tokens(norm: Series, tokens: float | None) -> GradientUnit | None:
    level = float(np.median(norm.values))
    if tokens is None or tokens < _LARGE or level < _LARGE or not _is_steady(norm):
        return None
    if _ORDINARY[0] <= level / tokens <= _ORDINARY[1] / 10:
        return GradientUnit("tokens", level, tokens)
    return None


def _steady(norm: Series) -> GradientUnit | None:
    level = float(np.median(norm.values))
    return GradientUnit("steady", level) if level >= _LARGE and _is_steady(norm) else None


def _is_steady(norm: Series) -> bool:
    level = float(np.median(norm.values))
    within = (norm.values <= _STEADY * level) & (norm.values >= level / _STEADY)
    return bool(within[:3].all()) and float(np.mean(within)) >= 0.99
