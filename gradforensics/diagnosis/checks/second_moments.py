"""Checks on Adam's second moments: what they tell of the gradients over depth, and where they lag behind them.

v_hat = v / (1 - beta2^t) is a running mean of squared gradients, so that sqrt(mean(v_hat)) of a tensor is the root mean
square of its recent gradients (Kingma and Ba, 2015): this works from one checkpoint, without any gradient log.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from gradforensics import checkpoint_signals
from gradforensics.checkpoint_signals import Group, Pair, Saved, adam_like, plain
from gradforensics.diagnosis.checks.dynamics import joint_spikes, warm_up_ends
from gradforensics.diagnosis.vocabulary import Answer, Check, Fact, Hit, Missing, check
from gradforensics.parameter_names import kind_of, layer_of
from gradforensics.patterns import lazy
from gradforensics.spike_signals import Spike
from gradforensics.tables import Evidence, Series

_FAINT = 1e-36  # mean of v below which its elements vanish in float32: then the first moment tells the gradient's size
_TYPES = ("float32", "float64", "bfloat16")  # which hold the square of 1e-15
_FIRST = lazy(r"(?<![^.])\d+(?=\.|$)")
_NO_STATES = "Adam's second moments of a stack of layers"


# -- over depth --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Depth:
    """The gradients of one stack of layers in one checkpoint.

    slope: decades per layer by which they grow from first to last; ratio: first to last, as a power of ten. below:
    share of the first layer's elements with a gradient below ten eps, None where unknown.
    """

    saved: Saved
    updates: int
    stack: str
    layers: int
    slope: float
    ratio: float
    first: float
    last: float
    below: float | None
    tensor: str
    source: str


@check(
    needs=["tensors", "groups", "checkpoints:named"],
    facts=["checkpoint", "checkpoints", "layers", "slope", "ratio", "first", "last"],
)
def second_moment_fades_with_depth(
    evidence: Evidence,
    *,
    slope: float,
    ratio: float,
    layers: int,
    settled: int,
    apart: int,
    checkpoints: int,
    below: float,
) -> Answer:
    """From the last layer of a stack to the first the gradients in Adam's second moments shrink steadily (D36).

    Matrices of one kind and shape are compared with each other; of several kinds in a stack the median speaks. slope:
    least fall in decades per layer; ratio: largest ratio of first to last; layers: least number of them. It must hold
    in `checkpoints` checkpoints, the last one among them, after the warm-up and after `settled` updates, of which the
    first and the last are `apart` updates apart where there are two; and it must not get ten times better meanwhile.
    below: least share of the first layer's elements with a gradient below ten eps.
    """
    stacks = _stacks(evidence, layers)
    if isinstance(stacks, Missing):
        return stacks
    least, judged, hits = max(float(settled), warm_up_ends(evidence)), False, []
    for depths in stacks.values():
        late = [depth for depth in depths if depth.updates >= least]
        if len(late) < checkpoints:
            continue
        judged = True
        fading = [depth for depth in late if depth.slope > slope and depth.ratio < math.log10(ratio)]
        if len(fading) < checkpoints or fading[-1] is not late[-1] or late[-1].ratio > fading[0].ratio + 1:
            continue
        if checkpoints > 1 and fading[-1].updates - fading[0].updates < apart:
            continue
        if below > 0 and (late[-1].below is None or late[-1].below < below):
            continue
        before = [depth.saved.step for depth in late if depth not in fading and depth.saved.step is not None]
        hits.append(_depth_hit(fading, max(before, default=None)))
    if not judged:
        return Missing(f"{checkpoints} checkpoints with Adam states after {least:.0f} updates")
    return sorted(hits, key=lambda hit: hit.step or 0)


def _depth_hit(fading: Sequence[_Depth], after: int | None) -> Hit:
    one, last = fading[0], fading[-1]
    facts: dict[str, Fact] = {
        "checkpoint": last.saved.path,
        "checkpoints": len(fading),
        "layers": last.layers,
        "slope": last.slope,
        "ratio": 10**last.ratio,
        "first": last.first,
        "last": last.last,
    }
    earlier = after if after is not None and one.saved.step is not None and after < one.saved.step else None
    return Hit(one.saved.step, earlier, "tensors", None, one.first, one.source, None, one.tensor, facts)


def _stacks(evidence: Evidence, layers: int) -> dict[str, list[_Depth]] | Missing:
    """The gradients over depth, by stack, in the order of the checkpoints."""
    return evidence.once(("second moments over depth", layers), lambda: _find_stacks(evidence, layers))


def _find_stacks(evidence: Evidence, layers: int) -> dict[str, list[_Depth]] | Missing:
    saved = checkpoint_signals.checkpoints(evidence)
    if saved is None or not checkpoint_signals.states(evidence, "exp_avg_sq"):
        return Missing(_NO_STATES)
    small = _below_eps(evidence)
    found: dict[str, list[_Depth]] = {}
    for one in saved:
        groups = checkpoint_signals.adam_groups_of(evidence, one.path)
        if one.path not in checkpoint_signals.sure(evidence) or not groups:
            continue
        for stack, kinds in _by_stack(evidence, one, groups).items():
            depth = _over_depth(one, stack, [kind for kind in kinds if len(kind) >= layers], small)
            if depth is not None:
                found.setdefault(stack, []).append(depth)
    return found or Missing(_NO_STATES)


@dataclass(frozen=True, slots=True)
class _Layer:
    """A matrix of one layer: log10 of the root mean square of its gradients, and how often it was updated."""

    number: int
    name: str
    decades: float
    updates: int
    source: str


def _by_stack(evidence: Evidence, saved: Saved, groups: Mapping[str, Group]) -> dict[str, list[list[_Layer]]]:
    """The matrices of a checkpoint by their stack; those of one kind and shape together, first layer first.

    A kind with a tensor whose gradients are exactly 0 is left out: that is no fading (GF10).
    """
    first = checkpoint_signals.states_of(evidence, "exp_avg", saved.path)
    kinds: dict[tuple[str, str, tuple[int, ...]], dict[str, list[tuple[Any, Any]]]] = {}
    for (name, rank), row in checkpoint_signals.states_of(evidence, "exp_avg_sq", saved.path).items():
        shape = row["shape"]
        place = layer_of(name)
        if place is None or name not in groups or row["dtype"] not in _TYPES:
            continue
        if kind_of(name, shape) == "matrix":
            kind = place[0], _in_any_layer(name), shape
            kinds.setdefault(kind, {}).setdefault(name, []).append((row, first.get((name, rank))))
    found: dict[str, list[list[_Layer]]] = {}
    for (stack, _, _), rows in kinds.items():
        layers = [_layer(name, parts, groups[name]) for name, parts in rows.items()]
        if None not in layers:
            found.setdefault(stack, []).append(sorted(filter(None, layers), key=lambda layer: layer.number))
    return found


@lru_cache(maxsize=1 << 16)
def _in_any_layer(name: str) -> str:
    """A name with "*" for the number of its layer, the same for one kind of parameter in all of them."""
    return _FIRST.sub("*", name, count=1)


def _layer(name: str, parts: Sequence[tuple[Any, Any]], group: Group) -> _Layer | None:
    """The gradients of one matrix; `parts`: rows of v and m, for each rank. None where they are 0 or not finite."""
    place, updates, corrections = layer_of(name), group.step_max, group.corrections
    if place is None or updates is None or corrections is None:
        return None
    count = sum(row["count"] for row, _ in parts)
    square = _mean([(row["count"], row["mean"]) for row, _ in parts], count) / corrections[1]
    if square < _FAINT:
        moments = [(m["count"], m["l2"] ** 2 / m["count"]) for _, m in parts if m is not None and m["l2"] is not None]
        square = _mean(moments, count) / corrections[0] ** 2
    if not 0 < square < math.inf:
        return None
    return _Layer(place[1], name, math.log10(square) / 2, updates, parts[0][0]["source"])


def _mean(parts: Sequence[tuple[int, float | None]], count: int) -> float:
    return sum(number * (mean or 0.0) for number, mean in parts) / count if count else 0.0


def _below_eps(evidence: Evidence) -> dict[tuple[str, str], float]:
    """Share of elements with a gradient below ten eps, by checkpoint and parameter."""
    rows = checkpoint_signals.moments(evidence) or {}
    return {
        (path, plain(row["name"])): row["below_eps"]
        for path, part in rows.items()
        for row in part
        if row["below_eps"] is not None
    }


def _over_depth(
    saved: Saved, stack: str, kinds: Sequence[Sequence[_Layer]], small: Mapping[tuple[str, str], float]
) -> _Depth | None:
    """The median over the kinds of a stack."""
    if not kinds:
        return None
    slopes, ratios = [], []
    for kind in kinds:
        decades = np.array([layer.decades for layer in kind])
        depth = np.arange(len(kind)) - (len(kind) - 1) / 2
        slopes.append(float(depth @ decades / (depth @ depth)))
        ratios.append(float(decades[0] - decades[-1]))
    middle = kinds[int(np.argsort(ratios)[len(ratios) // 2])]
    shares = [small[saved.path, kind[0].name] for kind in kinds if (saved.path, kind[0].name) in small]
    return _Depth(
        saved,
        min(layer.updates for kind in kinds for layer in kind),
        stack,
        len(middle),
        float(np.median(slopes)),
        float(np.median(ratios)),
        10 ** middle[0].decades,
        10 ** middle[-1].decades,
        float(np.median(shares)) if shares else None,
        middle[0].name,
        middle[0].source,
    )


# -- over time ---------------------------------------------------------------------------------------------------------

_FEWEST = 3  # matrices whose median speaks for a model
_PLAIN_ERROR = 1e-2  # of v: above, the states are not one update apart by these betas


@check(
    needs=[
        "travels:one-update",
        "groups",
        "checkpoints:named",
        "series:loss:points>=80",
        "series:grad_norm:points>=80",
    ],
    facts=["checkpoint", "rms_t", "matrices", "beta2", "spike", "lead", "before", "peak"],
)
def second_moment_lags_before_spike(
    evidence: Evidence, *, high: float, within: int, window: int, score: float, back: float, rise: float
) -> Answer:
    """One update shows gradients `high` times what their second moment expects, and a spike follows in the log (D08).

    high: least median over the matrices of RMS_t; within: steps until loss and gradient norm spike together (`score`
    robust standard deviations above the `window` points before, over when the loss is back within `back`), by `rise` of
    its level or more. A step that is in a spike itself says nothing of the second moment: its batch may be to blame.
    """
    lags = _lags(evidence)
    if isinstance(lags, Missing):
        return lags
    found = joint_spikes(evidence, window, score, back)
    if isinstance(found, Missing):
        return found
    high_ones = [lag for lag in lags if lag.rms_t >= high]
    spiked = ((lag, _spike_after(found, lag.step, within, rise)) for lag in high_ones)
    return [_lag_hit(lag, **spike) for lag, spike in spiked if spike is not None]


@check(needs=["travels:one-update", "groups", "checkpoints:named"], facts=["checkpoint", "rms_t", "matrices", "beta2"])
def second_moment_lags(evidence: Evidence, *, high: float) -> Answer:
    """One update shows gradients whose root mean square is `high` times what their second moment expects (D08)."""
    lags = _lags(evidence)
    if isinstance(lags, Missing):
        return lags
    return [_lag_hit(lag) for lag in lags if lag.rms_t >= high]


@dataclass(frozen=True, slots=True)
class _Lag:
    """Two checkpoints one update apart: the median RMS_t of the matrices."""

    pair: Pair
    rms_t: float
    matrices: int
    beta2: float
    tensor: str

    @property
    def step(self) -> int:
        return self.pair.last.step or 0


def _lags(evidence: Evidence) -> list[_Lag] | Missing:
    found = evidence.once("second moments one update apart", lambda: list(_find_lags(evidence)))
    return found or Missing(f"Adam states of {_FEWEST} matrices in two checkpoints one update apart")


def _find_lags(evidence: Evidence) -> list[_Lag]:
    shapes = {(one.checkpoint, one.name): one.kind for one in checkpoint_signals.weights(evidence) or []}
    found: list[_Lag] = []
    for pair in checkpoint_signals.pairs(evidence) or []:
        groups = checkpoint_signals.adam_groups_of(evidence, pair.last.path)
        rows = {
            name: row["rms_t"]
            for name, row in pair.rows.items()
            if row["rms_t"] is not None
            and (row["v_error"] or 0.0) <= _PLAIN_ERROR
            and shapes.get((pair.last.path, plain(name))) == "matrix"
            and plain(name) in groups
        }
        named = {pair.first.path, pair.last.path} <= checkpoint_signals.sure(evidence)
        if not named or len(rows) < _FEWEST:
            continue
        betas = {group.betas for group in groups.values() if group.betas is not None}
        top = max(rows, key=lambda name: rows[name])
        found.append(_Lag(pair, float(np.median(list(rows.values()))), len(rows), max(betas)[1], plain(top)))
    return found


def _lag_hit(lag: _Lag, **more: Fact) -> Hit:
    facts: dict[str, Fact] = {
        "checkpoint": lag.pair.last.path, "rms_t": lag.rms_t, "matrices": lag.matrices, "beta2": lag.beta2, **more,
    }  # fmt: skip
    return Hit(lag.step, lag.pair.first.step, "travels", None, lag.rms_t, lag.pair.last.source, None, lag.tensor, facts)


def _spike_after(
    found: tuple[Series, Series, list[Spike]], step: int, within: int, rise: float
) -> dict[str, Fact] | None:
    """The first spike whose loss rises in the `within` steps after a step that was in none itself.

    rise: least height of its peak above the level before, as a fraction. The gradient norm may have risen before: large
    gradients that meet a small second moment make the loss spike later.
    """
    loss, _, spikes = found
    for spike in spikes:
        start = int(loss.steps[spike.start]) + max(spike.lead, 0)
        if start > step:
            facts: dict[str, Fact] = {"spike": start, "lead": start - step, "before": spike.base, "peak": spike.peak}
            return facts if start <= step + within and spike.peak >= (1 + rise) * spike.base else None
        if spike.end is None or loss.steps[spike.end] > step:
            return None
    return None


@check(
    needs=["tensors", "groups", "series:loss:points>=80", "series:grad_norm:points>=80"],
    facts=["checkpoint", "checkpoints", "first_step", "beta2", "fell", "pace", "spike", "lead", "before", "peak"],
)
def second_moment_decays_until_spike(
    evidence: Evidence,
    *,
    near: float,
    fall: float,
    checkpoints: int,
    within: int,
    window: int,
    score: float,
    back: float,
    rise: float,
) -> Answer:
    """Over a chain of checkpoints the second moments shrink as if there were no gradients, until a spike (D44).

    Free decay multiplies v by beta2 at every step. near: how close its logarithm's slope comes to that, as a fraction;
    fall: least factor by which the sum of all v fell over the chain; within: steps from its last checkpoint to a spike
    (see second_moment_lags_before_spike).
    """
    found = joint_spikes(evidence, window, score, back)
    if isinstance(found, Missing):
        return found
    chain = _sums(evidence)
    if len(chain) < checkpoints:
        return Missing(f"{checkpoints} checkpoints with Adam states of the same parameters")
    hits: list[Hit] = []
    for run in _free_falls(chain, near):
        spike = _spike_after(found, run[-1].saved.step or 0, within, rise)
        if len(run) >= checkpoints and run[0].total >= fall * run[-1].total and spike is not None:
            hits.append(_fall_hit(run, spike))
    return hits


def _free_falls(chain: Sequence[_Sum], near: float) -> list[list[_Sum]]:
    """The stretches of a chain in which the sum of v falls by at least `near` of the pace of free decay."""
    runs: list[list[_Sum]] = [[]]
    for before, after in pairwise(chain):
        free = (after.updates - before.updates) * math.log(after.beta2)
        if before.names != after.names or free >= 0 or math.log(after.total / before.total) > near * free:
            runs.append([])
        else:
            runs[-1] = [*(runs[-1] or [before]), after]
    return [run for run in runs if run]


@dataclass(frozen=True, slots=True)
class _Sum:
    """The sum of all second moments of one checkpoint."""

    saved: Saved
    updates: int
    total: float
    beta2: float
    names: frozenset[str]
    source: str


def _sums(evidence: Evidence) -> list[_Sum]:
    found: list[_Sum] = []
    for saved in checkpoint_signals.checkpoints(evidence) or []:
        groups = checkpoint_signals.groups_of(evidence, saved.path)
        betas = {g.betas for g in groups}
        rows = list(checkpoint_signals.states_of(evidence, "exp_avg_sq", saved.path).values())
        if not rows or not groups or not all(map(adam_like, groups)) or len(betas) != 1 or saved.step is None:
            continue
        (pair,) = betas
        updates = {g.step_max for g in groups}
        total = sum(row["count"] * (row["mean"] or 0.0) for row in rows)
        if pair is None or None in updates or not 0 < total < math.inf:
            continue
        names = frozenset(row["name"] for row in rows)
        found.append(_Sum(saved, max(filter(None, updates), default=0), total, pair[1], names, rows[0]["source"]))
    return found


def _fall_hit(run: Sequence[_Sum], spike: Mapping[str, Fact]) -> Hit:
    first, last = run[0], run[-1]
    free = (last.updates - first.updates) * math.log(last.beta2)
    facts: dict[str, Fact] = {
        "checkpoint": last.saved.path,
        "checkpoints": len(run),
        "first_step": first.saved.step,
        "beta2": last.beta2,
        "fell": first.total / last.total,
        "pace": math.log(last.total / first.total) / free,
        **spike,
    }
    return Hit(last.saved.step, first.saved.step, "tensors", None, last.total, last.source, None, None, facts)


CHECKS: tuple[Check, ...] = (
    second_moment_fades_with_depth,
    second_moment_lags_before_spike,
    second_moment_lags,
    second_moment_decays_until_spike,
)
