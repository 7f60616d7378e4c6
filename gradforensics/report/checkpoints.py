"""The checkpoints of one run as rows of the report: selected from the evidence, nothing measured or judged."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from gradforensics.report.tensors import worst_first
from gradforensics.tables import Evidence

WORST = 20  # tensors with NaN or infinities that are shown of the first checkpoint that holds any


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    """One checkpoint. complete: None where nothing tells; nonfinite: NaN and infinities, None where not measured."""

    path: str
    step: int | None
    format: str
    complete: bool | None
    bytes: int
    tensors: int
    parameters: int
    nonfinite: int | None
    naming: str | None
    naming_sure: str | None
    last_good: bool


@dataclass(frozen=True, slots=True)
class TensorRow:
    """One tensor that holds NaN or infinities; count: its elements, min and max: of those that are finite."""

    name: str
    rank: int | None
    role: str
    dtype: str
    shape: tuple[int, ...]
    count: int
    nan: int
    inf: int
    min: float | None
    max: float | None


@dataclass(frozen=True, slots=True)
class GroupRow:
    """One parameter group of an optimizer; parameters: how many it has."""

    group: int
    rank: int | None
    optimizer: str
    lr: float | None
    betas: tuple[float, ...] | None
    eps: float | None
    weight_decay: float | None
    momentum: float | None
    step_min: int | None
    step_max: int | None
    parameters: int


@dataclass(frozen=True, slots=True)
class CallRow:
    """What loading a pickle would import and call; arguments: of the first call, as text."""

    source: str
    name: str
    danger: bool
    arguments: str


@dataclass(frozen=True)
class Checkpoints:
    """All checkpoints of a run, in the order of their steps.

    sick: the path of the first one in which a tensor of the model or its optimizer is not finite; worst: up to WORST of
    its `bad` such tensors. groups: of the newest checkpoint that has any, its path in `newest`. calls: the dangerous
    first.
    """

    rows: tuple[CheckpointRow, ...]
    sick: str = ""
    bad: int = 0
    worst: tuple[TensorRow, ...] = ()
    newest: str = ""
    groups: tuple[GroupRow, ...] = ()
    calls: tuple[CallRow, ...] = ()

    @property
    def dangerous(self) -> tuple[CallRow, ...]:
        """The calls that are known to run commands or other code."""
        return tuple(call for call in self.calls if call.danger)


def checkpoints(evidence: Evidence, last_good: str | None) -> Checkpoints | None:
    """The rows of a run; None where it has neither checkpoints nor pickles."""
    table, called = evidence.table("checkpoints"), evidence.table("calls")
    rows = [] if table is None else [_row(row, last_good) for row in table.iter_rows(named=True)]
    calls = (
        [] if called is None else [CallRow(**row) for row in called.unique(maintain_order=True).iter_rows(named=True)]
    )
    if not rows and not calls:
        return None
    calls.sort(key=lambda call: not call.danger)
    sick = next((row for row in rows if row.nonfinite), None)
    worst, bad = ((), 0) if sick is None else _worst(evidence, sick.path)
    newest, groups = _groups(evidence, rows)
    return Checkpoints(tuple(rows), sick.path if sick else "", bad, worst, newest, groups, tuple(calls))


def _row(row: dict[str, object], last_good: str | None) -> CheckpointRow:
    given = {name: row[name] for name in CheckpointRow.__dataclass_fields__ if name != "last_good"}
    return CheckpointRow(**given, last_good=row["path"] == last_good)  # type: ignore[arg-type]  # columns of TABLES


def _worst(evidence: Evidence, path: str) -> tuple[tuple[TensorRow, ...], int]:
    table = evidence.table("tensors")
    if table is None:
        return (), 0
    inf = pl.col("posinf") + pl.col("neginf")
    bad = table.filter(
        (pl.col("checkpoint") == path) & (pl.col("nan") + inf > 0) & ~pl.col("role").is_in(["other", "grad"])
    )
    found = worst_first(bad).head(WORST).with_columns(inf.alias("inf"))
    columns = tuple(TensorRow.__dataclass_fields__)
    rows = (dict(zip(columns, row, strict=True)) for row in found.select(columns).iter_rows())
    return tuple(TensorRow(**(row | {"shape": tuple(row["shape"])})) for row in rows), bad.height


def _groups(evidence: Evidence, rows: list[CheckpointRow]) -> tuple[str, tuple[GroupRow, ...]]:
    table = evidence.table("groups")
    for row in reversed(rows if table is not None else []):
        assert table is not None
        mine = table.filter(pl.col("checkpoint") == row.path)
        if mine.height:
            counted = mine.with_columns(pl.col("names").list.len().cast(pl.Int64).alias("parameters"))
            columns = tuple(GroupRow.__dataclass_fields__)
            found = (dict(zip(columns, values, strict=True)) for values in counted.select(columns).iter_rows())
            return row.path, tuple(
                GroupRow(**(group | {"betas": None if group["betas"] is None else tuple(group["betas"])}))
                for group in found
            )
    return "", ()
