"""Checks on tensors that several ranks saved whole: data-parallel replicas, and what tensor parallelism replicates."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import polars as pl

from gradforensics import checkpoint_signals as cs
from gradforensics.diagnosis.checks.replicas import replicated
from gradforensics.diagnosis.vocabulary import Answer, Check, Fact, Hit, Missing, check
from gradforensics.parameter_names import kind_of
from gradforensics.patterns import lazy
from gradforensics.tables import Evidence

_MODEL_RANK = lazy(r"(?:^|/|_)mp_rank_(?P<tensor>\d+)(?P<rest>(?:_\d+){0,2})(?=/|_|$)")
# What every tensor-parallel rank holds whole, in the layers of Megatron-LM, DeepSpeed and transformers: gains and
# biases of norms, and biases that are added after the reduction of a row-parallel layer.
_NORM_BIAS = lazy(
    r"(?:^|[._])(?:\w*norm\w*|ln|ln_?\w{1,2}|layernorm\w*)\.bias$|(?:^|[._])layer_norm_(?:weight|bias)$", re.IGNORECASE
)
_ROW_BIAS = lazy(r"(?:attention|attn)\.dense\.bias$|(?:linear_proj|linear_fc2|dense_4h_to_h|o_proj|down_proj)\.bias$")
# Norms of single heads, of Mamba's inner width and of experts are sharded in some models.
_PERHAPS_SHARDED = lazy(r"(?:^|[._])(?:q|k|query|key|qk)_?(?:layer)?_?(?:norm|ln)|mixer|expert|moe", re.IGNORECASE)
_EXPERT = lazy(r"expert|moe", re.IGNORECASE)
# Largest relative difference of two equal numbers that were rounded differently, a few times over.
_ROUNDING = {"bfloat16": 2.0**-6, "float16": 2.0**-9, "float32": 1e-6, "float64": 1e-12}
_LEAST = 1e-30


class _Set(NamedTuple):
    """The ranks of one checkpoint that hold the same tensors. differing: rows of `_compared` whose bytes are not equal.

    compared: how many tensors they hold. ranks: how many hold them.
    """

    checkpoint: str
    step: int | None
    compared: int
    ranks: int
    differing: list[Mapping[str, Any]]


def _place(source: str, where: str) -> str | None:
    """Which set of replicas a file belongs to; None for none of this kind.

    Tensor-parallel ranks of one pipeline stage (and one part of the experts) are a set; stages number their layers from
    0, each for itself. Files that are called after plain ranks are one set.
    """
    matched = _MODEL_RANK.search(source)
    if where == "tensor-parallel":
        return None if matched is None else matched["rest"]
    return "" if matched is None else None


def _held_whole(name: str, shape: tuple[int, ...]) -> bool:
    """Whether every tensor-parallel rank holds this parameter whole, by its name."""
    if _PERHAPS_SHARDED.search(name):
        return False
    return kind_of(name, shape) == "norm" or bool(_NORM_BIAS.search(name) or _ROW_BIAS.search(name))


def _sets(evidence: Evidence, where: str) -> list[_Set]:
    """Every set of ranks with tensors to compare, in the order of the steps."""
    return evidence.once(("saved_replicas", where), lambda: list(_find_sets(evidence, where)))


def _find_sets(evidence: Evidence, where: str) -> Iterator[_Set]:
    table, saved = evidence.table("tensors"), cs.checkpoints(evidence)
    if table is None or saved is None:
        return
    rows = table.filter(
        pl.col("rank").is_not_null() & pl.col("nan").is_not_null() & (pl.col("placement") != "sharded")
        & pl.col("role").is_in(["param", "master"]) & pl.col("fingerprint").is_not_null()
    )  # fmt: skip
    places = {source: _place(source, where) for source in rows["source"].unique().to_list()}
    of = pl.DataFrame(
        {"source": list(places), "place": list(places.values())}, schema={"source": pl.String, "place": pl.String}
    )
    found = _compared(rows.join(of, on="source").filter(pl.col("place").is_not_null()))
    kept = found.filter(_names_kept(found, where))
    parts = dict(kept.group_by("checkpoint", "place", maintain_order=True))
    for one in saved:
        if one.complete is False:  # such as files of different steps
            continue
        for (path, _), part in parts.items():
            if path == one.path:
                differing = part.filter(pl.col("versions") > 1).to_dicts()
                yield _Set(one.path, one.step, part.height, int(part["ranks"].max()), differing)  # type: ignore[arg-type]  # UInt32, no null


def _compared(rows: pl.DataFrame) -> pl.DataFrame:
    """One row per tensor that several ranks hold in the same shape and type: how far it differs at the least.

    The difference of two vectors is at least that of their norms, of their means (times the root of their length) and
    of their largest and smallest elements: all relative, to the norm or to the largest magnitude.
    """
    span = {
        name: pl.col(name).max() - pl.col(name).min() for name in ("l2", "mean", "min", "max")
    }  # null where an element is not finite
    norm, top = pl.col("l2").max(), pl.max_horizontal(pl.col("min").abs().max(), pl.col("max").abs().max())
    by_norm = pl.max_horizontal(span["l2"], span["mean"] * pl.col("count").first().sqrt()) / (norm + _LEAST)
    by_element = pl.max_horizontal(span["min"], span["max"]) / (top + _LEAST)
    grouped = rows.group_by("checkpoint", "place", "role", "name", "shape", "dtype", maintain_order=True)
    made = grouped.agg(
        ranks=pl.col("rank").n_unique(), versions=pl.col("fingerprint").n_unique(), by_norm=by_norm,
        by_element=by_element, low=pl.col("l2").min(), high=norm, source=pl.col("source").first(),
    )  # fmt: skip
    return made.filter(pl.col("ranks") > 1)


def _names_kept(found: pl.DataFrame, where: str) -> pl.Series:
    if where == "tensor-parallel":
        kept = [_held_whole(name, tuple(shape)) for name, shape in found.select("name", "shape").iter_rows()]
    else:  # the experts of different ranks have the same names and are different experts
        kept = [not _EXPERT.search(name) for name in found["name"].to_list()]
    return pl.Series(kept, dtype=pl.Boolean)


def _distance(row: Mapping[str, Any], apart: float) -> float:
    """How far a tensor differs at the least, beyond rounding of its type; 0 where that is less than `apart`."""
    by_norm, by_element = row["by_norm"] or 0.0, row["by_element"] or 0.0
    limit = max(apart, _ROUNDING.get(row["dtype"], 0.0))
    return max(by_norm if by_norm >= apart else 0.0, by_element if by_element >= limit else 0.0)


_FACTS = ("tensors", "compared", "ranks", "spread", "worst", "low", "high")


@check(needs=["tensors:ranks>=2", "checkpoints"], facts=_FACTS)
def saved_replicas_differ(evidence: Evidence, *, where: str, apart: float, size: str) -> Answer:
    """Ranks saved different values of a tensor that each of them holds whole (detector D37).

    where: "data-parallel" (files that are called after ranks, under settings that name plain data parallelism, or in
    which all tensors were equal in an earlier checkpoint) or "tensor-parallel" (norms and the biases that are added
    after a reduction, in files of model-parallel ranks of one pipeline stage). Buffers, shards, experts and states of
    random generators may differ. apart: how far they must differ at the least, relative to the norm or to the largest
    element. size: "beyond" it, or "within" it, where bytes differ as by rounding.
    """
    found = _sets(evidence, where)
    if not found:
        return Missing("tensors of several ranks that each of them holds whole")
    equal: list[_Set] = [one for one in found if not one.differing]
    sure = where == "tensor-parallel" or replicated(evidence) is True
    for one in found:
        if not one.differing:
            continue
        before = [e.step for e in equal if e.step is not None and one.step is not None and 0 < e.step < one.step]
        if not sure and not before:
            return Missing("settings that say whether the ranks hold replicas (strategy, such as ddp)")
        far = [(_distance(row, apart), row) for row in one.differing]
        worst, row = max(far, key=lambda pair: (pair[0], pair[1]["by_norm"] or 0.0))
        if (worst > 0) != (size == "beyond"):
            continue
        facts: dict[str, Fact] = {
            "tensors": len([d for d, _ in far if d > 0]) or len(far), "compared": one.compared, "ranks": one.ranks,
            "spread": worst or max(row["by_norm"] or 0.0, row["by_element"] or 0.0), "worst": row["name"],
            "low": row["low"], "high": row["high"],
        }  # fmt: skip
        after = max(before, default=None)
        return [Hit(one.step, after, "tensors", None, row["high"], row["source"], None, row["name"], facts)]
    return []


@check(needs=["groups:ranks>=2", "checkpoints"], facts=["ranks", "fewest", "most", "behind", "ahead"])
def rank_step_counters_differ(evidence: Evidence) -> Answer:
    """The optimizers of ranks that train one model have made different numbers of steps, in one checkpoint.

    Files of model-parallel ranks, or files that are called after ranks under settings that name plain data parallelism.
    """
    groups, saved = cs.groups(evidence) or [], {one.path: one for one in cs.checkpoints(evidence) or []}
    made: dict[str, dict[int, int]] = {}
    for group in groups:
        if group.rank is not None and group.step_max is not None and group.checkpoint in saved:
            by_rank = made.setdefault(group.checkpoint, {})
            by_rank[group.rank] = max(by_rank.get(group.rank, 0), group.step_max)
    told = [(saved[path], by_rank) for path, by_rank in made.items() if len(by_rank) > 1]
    judged = False
    for one, by_rank in sorted(told, key=lambda pair: (pair[0].step is None, pair[0].step or 0)):
        model_parallel = _MODEL_RANK.search(one.source or "") is not None
        if one.complete is False or not (model_parallel or replicated(evidence) is True):
            continue
        judged = True
        behind, ahead = min(by_rank, key=lambda r: by_rank[r]), max(by_rank, key=lambda r: by_rank[r])
        if by_rank[behind] != by_rank[ahead]:
            facts: dict[str, Fact] = {
                "ranks": len(by_rank), "fewest": by_rank[behind], "most": by_rank[ahead], "behind": behind,
                "ahead": ahead,
            }  # fmt: skip
            return [Hit(one.step, None, "groups", value=by_rank[ahead], source=one.source, facts=facts)]
    return [] if judged else Missing("optimizer states of several ranks that train one model")


CHECKS: tuple[Check, ...] = (saved_replicas_differ, rank_step_counters_differ)
