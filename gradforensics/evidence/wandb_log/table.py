"""The rows of a W&B history as a table: which key is the optimizer step, the epoch, the time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from gradforensics.evidence import names, numbers
from gradforensics.evidence.log_table import Column, LogTable
from gradforensics.evidence.wandb_log.history import Numbers
from gradforensics.tables import Setting, StepUnit

STEP, TIME, ELAPSED = "_step", "_timestamp", "_runtime"
_STEP_SETTINGS = ("warmup_steps", "decay_steps")
_NEARLY = 0.02  # of the planned steps may be missing where rows and steps are the same


@dataclass
class History:
    """A history before its table is built.

    series: the numbers of every key; steps: W&B's own step of rows that have no "_step"; metrics: the keys that the
    program named as the step of others (define_metric); settings: those of the run.
    """

    height: int
    series: Mapping[str, Numbers]
    steps: Mapping[int, int] = field(default_factory=dict)
    metrics: AbstractSet[str] = frozenset()
    settings: Sequence[Setting] = ()


def table_of(rows: History, mapping: Mapping[str, str]) -> tuple[LogTable, list[str]]:
    """The table of a history, and what is to be said about its steps. mapping: the user's --map."""
    series = {name: found for name, found in rows.series.items() if not name.startswith("_wandb.")}
    epoch = _epoch(series, rows, mapping)
    step = _step(series, rows, mapping)
    time = _mapped("time", series, mapping) or TIME
    unit: StepUnit = "step"
    notices: list[str] = []
    if step is not None:
        steps: pl.Series | None = _whole(series[step].spread(rows.height))
    else:
        steps = _own(rows)
        unit, said = _unit_of(steps, series.get(epoch or ""), rows)
        notices += said
    taken = {epoch, step, time, STEP}
    table = LogTable(
        height=rows.height,
        columns=[Column(name, pl.Series(n.values), n.rows) for name, n in series.items() if name not in taken],
        steps=None if unit == "epoch" and epoch is not None else steps,
        epochs=None if epoch is None else series[epoch].spread(rows.height),
        times=series[time].spread(rows.height) if time in series else None,
        unit=unit,
    )
    return table, notices


def _mapped(kind: str, series: Mapping[str, Numbers], mapping: Mapping[str, str]) -> str | None:
    return next((name for name in series if mapping.get(name.strip()) == kind), None)


def _epoch(series: Mapping[str, Numbers], rows: History, mapping: Mapping[str, str]) -> str | None:
    """The key that says in which epoch a row stands."""
    ranked = [(names.column_rank("epoch", name), name) for name in series]
    found = sorted((rank, name) for rank, name in ranked if rank is not None)
    named = [name for name in sorted(rows.metrics & series.keys()) if "epoch" in name]
    return _mapped("epoch", series, mapping) or next((name for _, name in found), None) or next(iter(named), None)


def _step(series: Mapping[str, Numbers], rows: History, mapping: Mapping[str, str]) -> str | None:
    """The key that counts the optimizer steps, which W&B's own step need not do: it counts the calls of log()."""
    if mapped := _mapped("step", series, mapping):
        return mapped
    measured = np.zeros(rows.height, dtype=bool)
    for name, found in series.items():
        if not name.startswith("_"):
            measured[found.rows] = True
    ranked = [(-1, name) for name in rows.metrics & series.keys() if "epoch" not in name]
    ranked += [(r, name) for name in series if name != STEP and (r := names.column_rank("step", name)) is not None]
    return next((name for _, name in sorted(ranked) if _counts(series[name], int(measured.sum()))), None)


def _counts(found: Numbers, rows: int) -> bool:
    """Whether these are whole numbers that never fall, in half of the rows at least."""
    values = found.values
    if len(values) * 2 < rows or not np.isfinite(values).all() or (np.abs(values) >= 2**53).any():
        return False
    return bool((values == np.floor(values)).all() and (np.diff(values) >= 0).all() and values[0] < values[-1])


def _whole(values: pl.Series) -> pl.Series:
    finite = values.is_finite().fill_null(value=False)
    return values.zip_with(finite, pl.Series([None], dtype=pl.Float64)).cast(pl.Int64, strict=False)


def _own(rows: History) -> pl.Series | None:
    """W&B's own step of every row, None where the file has none of it."""
    found = rows.series.get(STEP)
    if found is None and not rows.steps:
        return None
    known = np.zeros(rows.height, dtype=bool)
    steps = np.zeros(rows.height, dtype=np.int64)
    if found is not None:
        whole = np.isfinite(found.values) & (np.abs(found.values) < 2**53)
        steps[found.rows[whole]] = found.values[whole].astype(np.int64)
        known[found.rows[whole]] = True
    places = np.array(list(rows.steps), dtype=np.int64)
    steps[places] = np.array(list(rows.steps.values()), dtype=np.int64)
    known[places] = True
    return pl.Series(steps).zip_with(pl.Series(known), pl.Series([None], dtype=pl.Int64))


def _unit_of(steps: pl.Series | None, epochs: Numbers | None, rows: History) -> tuple[StepUnit, list[str]]:
    """What W&B's own step counts: steps that the program gave, or the calls of log(), which may be once per epoch.

    A program that gives no step leaves 0, 1, 2 ...: these are optimizer steps only where nothing speaks against it.
    """
    stated = {s.key: s.value for s in rows.settings if isinstance(s.value, (int, float)) and s.value}
    planned = numbers.scalar(stated["num_train_epochs"]) if "num_train_epochs" in stated else None
    if steps is None:
        return "step", []
    values = steps.to_numpy()
    if steps.null_count() or rows.height < 2 or (np.diff(values) != 1).any() or values[0] not in (0, 1):
        return "step", []
    if epochs is not None and len(epochs.rows) == rows.height and (np.diff(epochs.values) == 1).all():
        return "epoch", []
    if planned is not None and abs(rows.height - planned) <= 1:
        return "epoch", []
    if values[0]:
        return "step", []
    most = stated.get("max_steps")
    counted = (
        abs(rows.height - most) <= max(1, _NEARLY * most) if most else not any(k in stated for k in _STEP_SETTINGS)
    )
    if counted:
        return "step", []
    return "row", [f'"{STEP}" counts the calls of wandb.log() and no key the optimizer steps: the rows are numbered']
