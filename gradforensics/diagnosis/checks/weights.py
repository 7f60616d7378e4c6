"""Checks on the tensors of checkpoints."""

from __future__ import annotations

import polars as pl

from gradforensics.checkpoints.model import is_mask
from gradforensics.diagnosis.vocabulary import Answer, Check, Fact, Hit, Missing, check
from gradforensics.tables import Evidence

_WEIGHTS = ("param", "master")
_MOMENTS = ("exp_avg", "exp_avg_sq", "momentum")


@check(needs=["tensors"], facts=["checkpoint", "tensors", "values", "checkpoints"])
def weights_nonfinite(evidence: Evidence) -> Answer:
    """A checkpoint holds NaN or infinity in a weight, once for each such checkpoint (detector D35).

    Buffers do not count, and -inf does not in a tensor that is named as a mask.
    """
    return _nonfinite(evidence, _WEIGHTS, spared=())


@check(needs=["tensors"], facts=["checkpoint", "tensors", "values", "checkpoints"])
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
    masks = [name for name in measured.filter(pl.col("neginf") > 0)["name"].unique() if is_mask(name)]
    counted = measured.with_columns(
        bad=pl.col("nan") + pl.col("posinf") + pl.when(pl.col("name").is_in(masks)).then(0).otherwise(pl.col("neginf"))
    ).filter(pl.col("bad") > 0)
    excused = set(counted.filter(pl.col("role").is_in(spared))["checkpoint"].to_list())
    bad = counted.filter(pl.col("role").is_in(roles) & ~pl.col("checkpoint").is_in(excused))
    groups = [rows for _, rows in bad.group_by("checkpoint", maintain_order=True)]
    hits = [_hit(table, rows, set(bad["checkpoint"].to_list())) for rows in groups]
    return sorted(hits, key=lambda h: (h.step is None, h.step or 0))


def _hit(table: pl.DataFrame, rows: pl.DataFrame, bad: set[str]) -> Hit:
    """The hit for the bad tensors of one checkpoint (`rows`); `bad`: every checkpoint that has some."""
    step = rows["step"][0]
    before = None
    if step is not None:
        earlier = table.filter((pl.col("step") < step) & ~pl.col("checkpoint").is_in(bad))
        before = None if not earlier.height else int(earlier["step"].max())  # type: ignore[arg-type]  # Int64, no null
    facts: dict[str, Fact] = {
        "checkpoint": rows["checkpoint"][0],
        "tensors": rows.height,
        "values": int(rows["bad"].sum()),
        "checkpoints": len(bad),
    }
    value = float("nan") if int(rows["nan"].sum()) else float("inf")
    return Hit(step, before, "tensors", None, value, rows["source"][0], None, rows["name"][0], facts)


CHECKS: tuple[Check, ...] = (
    weights_nonfinite,
    moments_nonfinite_beside_finite_weights,
)
