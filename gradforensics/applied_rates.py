"""What Adam really applied to every parameter group between two checkpoints that are one optimizer step apart.

The table of travels has a learning rate and a weight decay for every tensor, each with the error that it may have
(`checkpoints.adam.Fit.recover`). Here they are pooled over the tensors of a group. A tensor counts only where its
weights moved as its Adam state says: a state under a wrong name, another optimizer's formula, weights that something
else wrote or averaged and weights that were trained in a coarser type than they are stored in all leave a residual.
Nothing is judged here.

A rate of 0 says that nothing moved: then the weights were not written back, or were rounded in training to a coarser
type than they are stored in.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from gradforensics import checkpoint_signals as cs
from gradforensics.checkpoints.adam import UNIT_ROUNDOFF
from gradforensics.tables import Evidence

PAIR = "travels:one-update"

_RESIDUAL = 0.01  # of the movement, besides rounding: healthy tensors leave 1e-5 at lr 1e-3, 6e-3 at 1e-6
_RESIDUAL_MOST = 0.1
_V_ERROR = 0.01  # of v: 1e-8 in float32, 1e-3 in bfloat16; larger where the states are not one update apart
_FEWEST = 32  # elements of a tensor that stands for its group alone
_ROUND = 1e-4  # of the rate: what the sums of a fit may be off


class Rate(NamedTuple):
    """What one group's tensors tell together, pooled by inverse variance.

    first, last: the group in the two checkpoints. lr_error, wd_error: what lr and wd may be off; both of wd are None
    where no tensor tells it. names: of the tensors that told the rate.
    """

    first: cs.Group
    last: cs.Group
    lr: float
    lr_error: float
    wd: float | None
    wd_error: float | None
    names: tuple[str, ...]

    @property
    def saved(self) -> tuple[float, float] | None:
        """The lowest and highest rate that the two checkpoints hold for the group: one of them was to be applied.

        A scheduler that is stepped after the optimizer leaves the rate of the next step in a checkpoint, one that is
        stepped before it that of the last one.
        """
        if self.first.lr is None or self.last.lr is None:
            return None
        return min(self.first.lr, self.last.lr), max(self.first.lr, self.last.lr)

    @property
    def uncorrected(self) -> float | None:
        """The rate if the optimizer does not correct Adam's bias, None where its step is not known."""
        found = self.last.corrections
        if found is None or self.last.step_max != self.last.step_min:
            return None
        return self.lr * math.sqrt(found[1]) / found[0]


class Told(NamedTuple):
    """What a pair of checkpoints tells of the groups. rates: of the groups that told; why: why others, if any, not."""

    pair: cs.Pair
    rates: tuple[Rate, ...]
    why: tuple[str, ...]


def told(evidence: Evidence) -> list[Told]:
    """Every pair of checkpoints one optimizer step apart, in the order of the steps."""
    return evidence.once("applied_rates.told", lambda: list(_told(evidence)))


def lacking(evidence: Evidence) -> list[str]:
    """Why nothing, or not everything, is told, in words or as a need; never empty where nothing is."""
    found = told(evidence)
    return [*dict.fromkeys(why for one in found for why in one.why)] if found else [PAIR]


def _told(evidence: Evidence) -> Iterator[Told]:
    units = _units(evidence)
    for pair in cs.pairs(evidence) or []:
        if not pair.one_update:
            continue
        rates, why = [], []
        for first, last in _couples(*(cs.groups_of(evidence, one.path) for one in (pair.first, pair.last))):
            rate = _rate(pair, first, last, units)
            if isinstance(rate, Rate):
                rates.append(rate)
            else:
                why.append(rate)
        if not rates and not why:
            why = ["the same parameter groups in both checkpoints"]
        yield Told(pair, tuple(rates), tuple(dict.fromkeys(why)))


def _units(evidence: Evidence) -> dict[tuple[str, str], float]:
    """Unit roundoff of every measured parameter, by checkpoint and the name that travels have for it."""
    found = {}
    for weight in cs.weights(evidence) or []:
        found[weight.checkpoint, cs.labelled(weight.name, weight.rank)] = UNIT_ROUNDOFF.get(weight.measured, 1.0)
    return found


def _couples(before: Sequence[cs.Group], after: Sequence[cs.Group]) -> Iterator[tuple[cs.Group, cs.Group]]:
    """The groups that both checkpoints have, with as many parameters and of the same kind."""
    earlier = {(group.rank, group.number): group for group in before}
    for last in after:
        first = earlier.get((last.rank, last.number))
        if first is not None and last.names and len(first.names) == len(last.names):
            yield first, last


def _rate(pair: cs.Pair, first: cs.Group, last: cs.Group, units: Mapping[tuple[str, str], float]) -> Rate | str:
    """What a group's tensors tell, or in words what they lack."""
    if not (cs.adam_like(first) and cs.adam_like(last)):
        return "Adam or AdamW (for other optimizers no formula is known here that tells the rate)"
    if first.betas != last.betas or first.eps != last.eps:
        return "the same betas and eps in both checkpoints"
    if any(last.values.get(key) in (False, 0) for key in ("correct_bias", "bias_correction")):
        return "Adam with its bias corrected"
    if last.values.get("maximize") is True:
        return "an optimizer that minimizes"
    rows = [row for name in last.names if (row := pair.rows.get(cs.labelled(name, last.rank))) is not None]
    rows = [row for row in rows if row["residual"] is not None and not row["nonfinite"]]
    if not rows:
        return "states of the group's parameters that are one update apart" if pair.named else "checkpoints:named"
    unit = {row["name"]: max(units.get((c.path, row["name"]), 1.0) for c in (pair.first, pair.last)) for row in rows}
    fitting = [row for row in rows if _fits(row, unit[row["name"]])]
    if 2 * len(fitting) < len(rows):
        if any(size > UNIT_ROUNDOFF["float32"] for size in unit.values()):
            return "weights in float32: rounding to a shorter type hides a single step"
        return "weights that moved as their Adam states say"
    return _pooled(first, last, [row for row in fitting if row["recovered_lr"] is not None], rounded=unit)


def _fits(row: Mapping[str, Any], unit: float) -> bool:
    """Whether a tensor moved as its state says, up to the rounding of its weights."""
    travel = row["rel_travel"]
    if row["v_error"] is None or row["v_error"] > _V_ERROR or travel is None:
        return False
    rounding = 2.0 * unit / travel if travel > 0 else 0.0
    return bool(row["residual"] <= max(_RESIDUAL, min(_RESIDUAL + rounding, _RESIDUAL_MOST)))


def _pooled(
    first: cs.Group, last: cs.Group, rows: Sequence[Mapping[str, Any]], *, rounded: Mapping[str, float]
) -> Rate | str:
    if any(row["recovered_lr"] for row in rows):
        rows = [row for row in rows if row["recovered_lr"]]  # those that stood still are another question
    if not rows or sum(row["count"] for row in rows) < _FEWEST:
        if any(size > UNIT_ROUNDOFF["float32"] for size in rounded.values()):
            return "weights in float32: rounding to a shorter type hides a single step"
        return "a rate large enough to stand out from rounding in a single step"
    lr, lr_error, alike = _mean([(row["recovered_lr"], row["lr_error"]) for row in rows])
    if not alike:
        return "one rate for all parameters of a group (here they moved at several)"
    decays = [row for row in rows if row["recovered_wd"] is not None]
    wd, wd_error, alike = _mean([(row["recovered_wd"], row["wd_error"]) for row in decays])
    known = bool(decays) and alike
    return Rate(
        first, last, lr, lr_error, wd if known else None, wd_error if known else None,
        tuple(row["name"] for row in rows),
    )  # fmt: skip


def _mean(found: Sequence[tuple[float, float]]) -> tuple[float, float, bool]:
    """(mean by inverse variance, its error, whether all agree with it within their errors).

    The errors are worst cases that may all lie on one side, so the error of the mean is theirs, weighted alike.
    """
    if not found:
        return 0.0, 0.0, False
    weights = [1.0 / max(error, 1e-12 * abs(value), 1e-30) ** 2 for value, error in found]
    whole = math.fsum(weights)
    mean = math.fsum(w * value for w, (value, _) in zip(weights, found, strict=True)) / whole
    error = math.fsum(w * e for w, (_, e) in zip(weights, found, strict=True)) / whole
    return mean, error, all(abs(value - mean) <= e + error + _ROUND * abs(mean) for value, e in found)


def covered(evidence: Evidence, pair: cs.Pair) -> bool:
    """Whether the groups of the later checkpoint have at least as many parameters as weights moved in between.

    Where they have not, another optimizer trained the rest, and a logged rate may be its own.
    """
    held: dict[int | None, int] = {}
    for group in cs.groups_of(evidence, pair.last.path):
        held[group.rank] = held.get(group.rank, 0) + len(group.names)
    prints = {w.name: w.fingerprint for w in cs.weights_by_checkpoint(evidence).get(pair.last.path, [])}
    moved = {prints.get(name, name) for row in pair.rows.values() if row["changed"] and (name := cs.plain(row["name"]))}
    return len(moved) <= max(held.values(), default=0)
