"""Checks on the tensors of checkpoints."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from gradforensics.checkpoints.model import is_mask
from gradforensics.diagnosis.vocabulary import Answer, Check, Fact, Hit, Missing, check
from gradforensics.languages import Text
from gradforensics.tables import Evidence

_WEIGHTS = ("param", "master")
_MOMENTS = ("exp_avg", "exp_avg_sq", "momentum")
_NONE = Text("none", "无")
_ROLES = {
    "param": Text("weights", "权重"),
    "master": Text("weights", "权重"),
    "momentum": Text("momentum", "动量"),
    "exp_avg": Text("exp_avg", "exp_avg"),
    "exp_avg_sq": Text("exp_avg_sq", "exp_avg_sq"),
}
_FACTS = ("checkpoint", "tensors", "of", "values", "checkpoints", "first_in", "last_finite")


@check(needs=["tensors"], facts=_FACTS)
def weights_nonfinite(evidence: Evidence) -> Answer:
    """A checkpoint holds NaN or infinity in a weight, once for each such checkpoint (detector D35).

    Buffers do not count, and -inf does not in a tensor that is named as a mask.
    """
    return _nonfinite(evidence, _WEIGHTS, spared=())


@check(needs=["tensors"], facts=_FACTS)
def moments_nonfinite_beside_finite_weights(evidence: Evidence) -> Answer:
    """A checkpoint holds NaN or infinity in the optimizer's moments, its weights are finite (detector D35).

    One poisoned gradient does that; the next step carries it into the weights.
    """
    return _nonfinite(evidence, _MOMENTS, spared=_WEIGHTS)


def _nonfinite(evidence: Evidence, roles: tuple[str, ...], spared: tuple[str, ...]) -> Answer:
    """The checkpoints with a bad value in a tensor of `roles` and none in a tensor of `spared`, the earliest first."""
    table = evidence.table("tensors")
    if table is None:
        return Missing("tensors")
    measured = table.filter(pl.col("nan").is_not_null() & pl.col("role").is_in([*roles, *spared]))
    if not measured.filter(pl.col("role").is_in(roles)).height:
        return Missing("tensors")
    counted = _with_bad(measured).filter(pl.col("bad") > 0)
    excused = set(counted.filter(pl.col("role").is_in(spared))["checkpoint"].to_list())
    bad = counted.filter(pl.col("role").is_in(roles) & ~pl.col("checkpoint").is_in(excused))
    groups = [rows for _, rows in bad.group_by("checkpoint", maintain_order=True)]
    held = measured.filter(pl.col("role").is_in(roles)).group_by("checkpoint").len()
    of = dict(held.iter_rows())
    told = _history(table) if groups else {}
    hits = [_hit(table, rows, set(bad["checkpoint"].to_list()), of, told) for rows in groups]
    return sorted(hits, key=lambda h: (h.step is None, h.step or 0))


def _with_bad(rows: pl.DataFrame) -> pl.DataFrame:
    """With a column `bad`: how many values of a tensor are not finite and not so on purpose."""
    masks = [name for name in rows.filter(pl.col("neginf") > 0)["name"].unique() if is_mask(name)]
    infinite = pl.when(pl.col("name").is_in(masks)).then(0).otherwise(pl.col("neginf"))
    return rows.with_columns(bad=pl.col("nan") + pl.col("posinf") + infinite)


def _history(table: pl.DataFrame) -> dict[str, Fact]:
    """Which kind of tensor shows it first, and the last checkpoint before that without it; none where no step tells."""
    mine = _with_bad(table.filter(pl.col("nan").is_not_null() & pl.col("role").is_in(list(_ROLES))))
    steps = mine.group_by("checkpoint", maintain_order=True).agg(pl.col("step").first(), pl.col("bad").sum())
    ordered = steps.sort("step", nulls_last=True).iter_rows()
    last: Text | str = _NONE
    first = None
    for path, step, bad in ordered:
        if bad:
            first = path
            last = last if step is not None else _NONE
            break
        last = path if step is not None else last
    roles = mine.filter((pl.col("checkpoint") == first) & (pl.col("bad") > 0))["role"].unique(maintain_order=True)
    named = dict.fromkeys(_ROLES[role] for role in roles)
    listed = sorted(named)
    first_in = Text(", ".join(one.en for one in listed), "、".join(one.zh for one in listed))
    return {"first_in": first_in, "last_finite": last}


def _hit(
    table: pl.DataFrame, rows: pl.DataFrame, bad: set[str], of: Mapping[str, int], told: Mapping[str, Fact]
) -> Hit:
    """The hit for the bad tensors of one checkpoint (`rows`); `bad`: every checkpoint that has some."""
    step = rows["step"][0]
    before = None
    if step is not None:
        earlier = table.filter((pl.col("step") < step) & ~pl.col("checkpoint").is_in(bad))
        before = None if not earlier.height else int(earlier["step"].max())  # type: ignore[arg-type]  # Int64, no null
    facts: dict[str, Fact] = {
        "checkpoint": rows["checkpoint"][0],
        "tensors": rows.height,
        "of": of[rows["checkpoint"][0]],
        "values": int(rows["bad"].sum()),
        "checkpoints": len(bad),
        **told,
    }
    value = float("nan") if int(rows["nan"].sum()) else float("inf")
    return Hit(step, before, "tensors", None, value, rows["source"][0], None, rows["name"][0], facts)


CHECKS: tuple[Check, ...] = (
    weights_nonfinite,
    moments_nonfinite_beside_finite_weights,
)
