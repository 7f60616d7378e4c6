"""Checks on the formats and the values of buffers that are saved beside the weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from gradforensics.checkpoint_signals import HALF, nonfinite
from gradforensics.checkpoints.adam import UNIT_ROUNDOFF
from gradforensics.diagnosis.vocabulary import Answer, Check, Fact, Hit, Missing, check
from gradforensics.tables import Evidence

_ROTARY = r"(?:^|[._])inv_freq$"
_STATISTICS = r"(?:^|[._])running_(?:mean|var)$"
_COLUMNS = ("checkpoint", "step", "name", "dtype", "nan", "posinf", "neginf", "source")


@check(needs=["tensors"], facts=["checkpoint", "buffers", "dtype", "positions"])
def rotary_frequencies_in_16_bits(evidence: Evidence) -> Answer:
    """A checkpoint keeps the frequencies of rotary position embeddings (inv_freq) in bfloat16 or float16.

    positions: from there on the angle of a frequency near 1 may be off by a radian, because each one has a relative
    error of up to the unit roundoff. Whoever computes them anew when the model is loaded is not touched by it.
    """
    rows = _named(evidence, _ROTARY)
    if not rows:
        return Missing("frequencies of rotary embeddings (inv_freq) in a checkpoint: few models save them")
    coarse = [row for row in rows if row["dtype"] in HALF]
    if not coarse:
        return []
    first = coarse[0]
    facts: dict[str, Fact] = {
        "checkpoint": first["checkpoint"], "dtype": first["dtype"],
        "positions": round(1 / UNIT_ROUNDOFF[first["dtype"]]),
        "buffers": sum(row["checkpoint"] == first["checkpoint"] for row in coarse),
    }  # fmt: skip
    return [Hit(first["step"], None, "tensors", None, None, first["source"], None, first["name"], facts)]


@check(needs=["tensors"], facts=["checkpoint", "buffers", "dtype", "values", "checkpoints"])
def norm_statistics_overflow(evidence: Evidence) -> Answer:
    """Running statistics of a normalisation in 16 bits hold infinity or NaN, while the weights are finite.

    float16 ends at 65504, which the variance of an activation reaches at a standard deviation of 256.
    """
    rows = _named(evidence, _STATISTICS)
    if not rows:
        return Missing("running statistics of a normalisation (running_var) in a checkpoint")
    bad: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["dtype"] in HALF and nonfinite(row):
            bad.setdefault(row["checkpoint"], []).append(row)
    broken = _with_bad_weights(evidence)
    bad = {path: part for path, part in bad.items() if path not in broken}
    if not bad:
        return []
    path, part = next(iter(bad.items()))
    first = part[0]
    good = [row["step"] for row in rows if row["checkpoint"] not in bad and row["step"] is not None]
    before = max((step for step in good if first["step"] is not None and step < first["step"]), default=None)
    facts: dict[str, Fact] = {
        "checkpoint": path, "buffers": len(part), "dtype": first["dtype"], "checkpoints": len(bad),
        "values": sum(nonfinite(row) for row in part),
    }  # fmt: skip
    return [Hit(first["step"], before, "tensors", None, None, first["source"], None, first["name"], facts)]


def _named(evidence: Evidence, pattern: str) -> list[Mapping[str, Any]]:
    """The measured tensors of the model whose name matches, in the order of the steps."""
    table = evidence.table("tensors")
    if table is None:
        return []
    found = table.filter(
        pl.col("role").is_in(["param", "buffer"]) & pl.col("name").str.contains(pattern) & pl.col("nan").is_not_null()
    )
    return list(found.sort("step", nulls_last=True, maintain_order=True).select(_COLUMNS).iter_rows(named=True))


def _with_bad_weights(evidence: Evidence) -> set[str]:
    """The checkpoints in which a weight is NaN or infinite: there the statistics follow."""
    table = evidence.table("tensors")
    if table is None:
        return set()
    bad = table.filter(
        pl.col("role").is_in(["param", "master"])
        & ~pl.col("name").str.contains(_STATISTICS)
        & (pl.col("nan") + pl.col("posinf") > 0)
    )
    return set(bad["checkpoint"].to_list())


CHECKS: tuple[Check, ...] = (rotary_frequencies_in_16_bits, norm_statistics_overflow)
