"""Checks on gradients that were never logged: those that two checkpoints one update apart hold (detector D10).

From Adam's first moments before and after an update follows g = (m_b - beta1 m_a) / (1 - beta1), the gradient as the
optimizer got it: after accumulation, unscaling and clipping. Its norm over all parameters is that of the log, cut to
max_norm; where it is not, something changed the gradient between the logged norm and the optimizer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gradforensics import checkpoint_signals
from gradforensics.checkpoint_signals import FULL, Group, Pair, adam_like, nonfinite, plain
from gradforensics.diagnosis.vocabulary import Answer, Check, Fact, Hit, Missing, check
from gradforensics.languages import Text
from gradforensics.tables import Evidence, Series

_PLAIN_ERROR = 1e-3  # of v: above, the two states are not one update apart by their betas
_INEXACT = "first moments of Adam in float32 in two checkpoints one update apart, and no decay within the gradient"


@dataclass(frozen=True, slots=True)
class _Recovered:
    """The gradient of one update. norm: over all parameters; largest: over those of one group, the largest of these.

    complete: every parameter of the optimizer is in `norm`.
    """

    pair: Pair
    norm: float
    largest: float
    complete: bool

    @property
    def step(self) -> int:
        return self.pair.last.step or 0


def _recovered(evidence: Evidence) -> list[_Recovered] | Missing:
    found = evidence.once("recovered gradients", lambda: list(_recover(evidence)))
    return found or Missing(_INEXACT)


def _recover(evidence: Evidence) -> Iterator[_Recovered]:
    for pair in checkpoint_signals.pairs(evidence) or []:
        groups = checkpoint_signals.groups_of(evidence, pair.last.path)
        if pair.one_update and groups and all(map(_uncoupled, groups)) and _exact(evidence, pair):
            found = _norms(pair, groups)
            if found is not None:
                yield found


def _uncoupled(group: Group) -> bool:
    """Whether the gradient of Adam's moments is that of the loss: no decay was added to it."""
    return adam_like(group) and (group.optimizer == "adamw" or not group.weight_decay)


def _exact(evidence: Evidence, pair: Pair) -> bool:
    """Whether the first moments of both are finite, exact enough, and of one process or shards that do not overlap.

    bfloat16 loses percents of a gradient in the difference of two moments.
    """
    rows = [
        row
        for path in (pair.first.path, pair.last.path)
        for row in checkpoint_signals.states_of(evidence, "exp_avg", path).values()
    ]
    return bool(rows) and all(
        row["dtype"] in FULL and not nonfinite(row) and (row["rank"] is None or row["placement"] == "sharded")
        for row in rows
    )


def _norms(pair: Pair, groups: Sequence[Group]) -> _Recovered | None:
    rows = {name: row for name, row in pair.rows.items() if row["grad_l2"] is not None}
    if not rows or any((row["v_error"] or 0.0) > _PLAIN_ERROR for row in rows.values()):
        return None
    owner = {name: (group.rank, group.number) for group in groups for name in group.names}
    parts: dict[int, float] = {}
    for name, row in rows.items():
        number = owner.get(plain(name), (None, -1))[1]
        parts[number] = parts.get(number, 0.0) + row["grad_l2"] ** 2
    complete = -1 not in parts and set(owner) == {plain(name) for name in rows}
    return _Recovered(pair, math.sqrt(sum(parts.values())), math.sqrt(max(parts.values())), complete)


def _hit(one: _Recovered, **facts: Fact) -> Hit:
    named: dict[str, Fact] = {"checkpoint": one.pair.last.path, "recovered": one.norm, **facts}
    before = one.pair.first.step
    return Hit(one.step, before, "travels", None, one.norm, one.pair.last.source, None, None, named)


# -- clipping ----------------------------------------------------------------------------------------------------------


def _thresholds(evidence: Evidence) -> list[float] | Missing:
    """Every max_norm that the settings name; clipping by value has none."""
    if str(evidence.setting("gradient_clip_algorithm") or "").lower() == "value":
        return Missing("clipping by norm (this run clips by value)")
    named = [s.value for s in evidence.settings or [] if s.key == "max_grad_norm"]
    found = [float(value) for value in named if isinstance(value, (int, float)) and not isinstance(value, bool)]
    return found or Missing("settings:max_grad_norm")


@check(
    needs=["travels:one-update", "groups", "settings:max_grad_norm"],
    facts=["checkpoint", "recovered", "max_norm", "times"],
)
def clip_not_applied(evidence: Evidence, *, margin: float) -> Answer:
    """The optimizer got a gradient that is larger than max_norm by more than `margin` of it: clipping did not act.

    The gradient of one group alone has to be that large, so that two optimizers, each clipped for itself, do not count.
    """
    limits, found = _thresholds(evidence), _recovered(evidence)
    if isinstance(limits, Missing):
        return limits
    if isinstance(found, Missing):
        return found
    if min(limits) <= 0:
        return []
    limit = max(limits)
    return [_hit(one, max_norm=limit, times=one.largest / limit) for one in found if one.largest > limit * (1 + margin)]


# -- against the log ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Compared:
    """A recovered gradient beside the log. logged: norm; expected: that cut to max_norm; limit: 0 where none is cut."""

    one: _Recovered
    logged: float
    expected: float
    limit: float

    @property
    def ratio(self) -> float:
        return self.one.norm / self.expected


def _compared(evidence: Evidence, exact: float) -> list[list[_Compared]] | Missing:
    """Every complete recovered gradient beside the norms that the log may mean by it; [] where they agree.

    A log that counts from 0, and one that counts finished steps, name the same update differently, so that two logged
    norms come into question.
    """
    found, limits, norm = _recovered(evidence), _thresholds(evidence), evidence.series("grad_norm")
    if isinstance(found, Missing):
        return found
    if isinstance(limits, Missing):
        return limits
    if norm is None or norm.step_unit != "step":
        return Missing("series:grad_norm")
    answers: list[list[_Compared]] = []
    for one in found:
        rows = [row for row in _beside(one, norm.good, limits) if one.complete]
        if rows:
            tolerance = exact + norm.resolution / min(row.logged for row in rows)
            answers.append([] if any(abs(row.ratio - 1) <= tolerance for row in rows) else rows)
    if not any(one.complete for one in found):
        return Missing("states of every parameter of the optimizer that are one update apart")
    return answers or Missing("series:grad_norm at the step between two checkpoints one update apart")


def _beside(one: _Recovered, norm: Series, limits: Sequence[float]) -> Iterator[_Compared]:
    for step, value in zip(norm.steps.tolist(), norm.values.tolist(), strict=True):
        if step in (one.step, one.step - 1) and value > 0:
            for limit in dict.fromkeys(limits):
                yield _Compared(one, value, min(value, limit) if limit > 0 else value, max(limit, 0.0))


@check(
    needs=["travels:one-update", "groups", "series:grad_norm", "settings:max_grad_norm"],
    facts=["checkpoint", "recovered", "logged", "expected", "max_norm", "ratio", "factor", "of"],
)
def gradient_rescaled_after_norm(evidence: Evidence, *, exact: float) -> Answer:
    """The gradient that the optimizer got is the logged and clipped one times, or divided by, a number of this run.

    Numbers that count: the accumulation steps, the processes, both together, and the loss scale (upwards: downwards it
    is clipping before unscaling). exact: relative distance within which it is that number. A mismatch of another size
    is not judged: the log may hold a mean, or another norm.
    """
    compared = _compared(evidence, exact)
    if isinstance(compared, Missing):
        return compared
    hits: list[Hit] = []
    unclear: _Compared | None = None
    for rows in compared:
        factors = _factors(evidence, rows[0].one) if rows else []
        matching = [(row, of, factor) for row in rows for of, factor in factors if _is(row.ratio, factor, exact)]
        if matching:
            row, of, factor = matching[0]
            hits.append(
                _hit(row.one, logged=row.logged, expected=row.expected, max_norm=row.limit, ratio=row.ratio,
                     factor=factor, of=of)
            )  # fmt: skip
        elif rows:
            unclear = rows[-1]
    if hits or unclear is None:
        return hits
    return Missing(
        f"a logged grad_norm that is that of an update (step {unclear.one.step}: the checkpoints hold "
        f"{unclear.one.norm:.4g}, the log {unclear.logged:.4g})"
    )


def _is(ratio: float, factor: float, exact: float) -> bool:
    return abs(ratio / factor - 1) <= exact


def _factors(evidence: Evidence, one: _Recovered) -> list[tuple[Text | str, float]]:
    """Numbers of this run that a gradient may be multiplied by or divided by, with their names."""
    steps = evidence.number("gradient_accumulation_steps") or 1.0
    processes = evidence.number("world_size") or 1.0
    named = [
        ("gradient_accumulation_steps", steps),
        ("world_size", processes),
        ("gradient_accumulation_steps * world_size", steps * processes),
    ]
    found = [(name, value) for name, value in dict.fromkeys(named) if value >= 2]
    return [
        *found,
        *((f"1 / ({name})" if "*" in name else f"1 / {name}", 1 / value) for name, value in found),
        *((Text("the loss scale", "损失缩放"), scale) for scale in _scales(evidence, one)),
    ]


def _scales(evidence: Evidence, one: _Recovered) -> list[float]:
    """The loss scales that the update may have had: of the checkpoints before and after it, and of the log."""
    found = [
        checkpoint_signals.facts(evidence, path).get("scaler.scale")
        for path in (one.pair.first.path, one.pair.last.path)
    ]
    scale = evidence.series("loss_scale")
    if scale is not None:
        good = scale.good
        found += good.values[(good.steps >= one.step - 1) & (good.steps <= one.step)].tolist()
    return list(dict.fromkeys(float(one) for one in found if isinstance(one, (int, float)) and one >= 2))


@check(
    needs=["travels:one-update", "groups", "series:grad_norm", "settings:max_grad_norm"],
    facts=["norm", "ratio", "clip", "scale", "changes", "checkpoint", "recovered"],
)
def recovered_gradient_clipped_while_scaled(evidence: Evidence, *, exact: float) -> Answer:
    """The optimizer got the logged norm, cut to max_norm, divided by the loss scale: clipped before it was unscaled."""
    compared = _compared(evidence, exact)
    if isinstance(compared, Missing):
        return compared
    hits: list[Hit] = []
    for rows in compared:
        for row in rows:
            scale = next((s for s in _scales(evidence, row.one) if _is(row.ratio, 1 / s, exact)), None)
            if scale is not None and 0 < row.limit < row.logged:
                facts = {"norm": row.logged, "ratio": row.logged / row.limit, "clip": row.limit, "scale": scale}
                hits.append(_hit(row.one, **facts, changes=_changes(evidence)))
                break
    return hits


def _changes(evidence: Evidence) -> int:
    scale = evidence.series("loss_scale")
    return 0 if scale is None else int((scale.good.values[1:] != scale.good.values[:-1]).sum())


CHECKS: tuple[Check, ...] = (
    clip_not_applied,
    gradient_rescaled_after_norm,
    recovered_gradient_clipped_while_scaled,
)
