"""A table of named cells (JSON lines, CSV) -> a Reading: which column is the step, the epoch, the time, the phase."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl

from gradforensics.evidence import names, numbers, rounding
from gradforensics.evidence.cells import SPELLINGS, CellColumn, Record, Table, unix_seconds
from gradforensics.evidence.log_table import Column, LogTable, settle
from gradforensics.evidence.readings import Reading

_TOTALS = frozenset({"total_steps", "max_steps", "total_iters"})
_SKIPPED = frozenset({"remaining_time", "eta", "eta_seconds", "percentage", "v_num"})


def flat(value: Mapping[str, Any], prefix: str = "", depth: int = 0) -> dict[str, Any]:
    """Nested objects as one, keys joined with "/"; {"num": 2, "mean": 0.5, "std": 0} is its mean; lists are dropped."""
    found: dict[str, Any] = {}
    for key, item in value.items():
        name = f"{prefix}{key}"
        if isinstance(item, Mapping):
            if "mean" in item and ("num" in item or "std" in item):
                found[name] = item["mean"]
            elif depth < 8:
                found |= flat(item, f"{name}/", depth + 1)
        elif not isinstance(item, list):
            found[name] = item
    return found


def looks_like_metrics(columns: Iterable[str], *, loose: bool = False) -> bool:
    """Whether columns are those of a training log: a metric, and (unless `loose`) a step, an epoch or a time."""
    columns = list(columns)
    placed = any(names.column_rank(kind, c) is not None for c in columns for kind in ("step", "epoch", "time"))
    return any(names.is_metric(c) for c in columns) and (loose or placed)


@dataclass
class _Plan:
    """The role of every column."""

    step: str | None = None
    epoch: str | None = None
    time: str | None = None
    phase: str | None = None
    series: list[str] = field(default_factory=list)


def read_records(records: Sequence[Record], columns: Mapping[str, str], *, rounds: bool = True) -> Reading:
    """Turn records into a Reading, as read_table() does."""
    table = Table(columns)
    table.take_records(records)
    return read_table(table, columns, rounds=rounds)


def read_table(table: Table, columns: Mapping[str, str], *, rounds: bool = True) -> Reading:
    """Turn a table into a Reading: tracks, notices and the trail.

    rounds: whether the numbers may tell how the writer rounded them.
    """
    reading = Reading(speaks_of_training=True)
    seen = table.columns()
    plan = _plan(seen, table.height, columns)
    reading.columns = {name.strip() for name in seen}
    reading.notices += _unused(seen, plan, columns)
    for name in plan.series:
        column = seen[name]
        if column.others:
            text = f'column "{name}": {column.others} values are no numbers (first: "{column.sample}")'
            reading.notices.append((column.line, text))
    log = _log(table, seen, plan)
    settled = settle(log, columns)
    reading.tracks = settled.tracks
    if rounds:
        padded = any(map(_is_padded, [text for name in plan.series for text in seen[name].spelled if text]))
        reading.tracks = rounding.settled(reading.tracks, by_the_others=not padded)
    reading.notices += settled.notices
    if log.steps is not None:
        reading.trail.last_step = log.steps.max()  # type: ignore[assignment]  # an Int64 column
    if log.lines is not None and len(log.lines):
        reading.trail.last_line = int(log.lines[-1])
    totals = {numbers.whole(_number(seen[t].first)) for t in _TOTALS & seen.keys()}
    reading.trail.planned = next((t for t in totals if t is not None and t > 0), None)
    return reading


def _log(table: Table, seen: Mapping[str, CellColumn], plan: _Plan) -> LogTable:
    """The table with every column in its role."""
    height = table.height
    phases = seen[plan.phase].phases(height) if plan.phase else None
    spelled = _spelled(seen, plan.series, height)
    found: list[tuple[int, int, Column]] = []
    for name in plan.series:
        column = seen[name]
        rows, values = column.rows, column.values
        codes = np.zeros(1, dtype=np.uint8) if phases is None else phases[rows]
        for code in np.unique(codes).tolist():
            kept = None if phases is None else np.flatnonzero(codes == code)
            mine = rows if kept is None else rows[kept]
            entry = Column(
                name,
                values if kept is None else values.gather(kept),
                None if len(mine) == height else mine.astype(np.int64),
                names.PHASES[code - 1] if code else None,
                texts=_texts(column, spelled if phases is None else spelled & (phases[: len(spelled)] == code)),
            )
            first = int(mine[0])
            found.append((first, column.place_at(first), entry))
    found.sort(key=lambda entry: entry[:2])
    return LogTable(
        height,
        [column for _, _, column in found],
        lines=table.lines,
        steps=_steps(seen[plan.step], height) if plan.step else None,
        epochs=_spread(seen[plan.epoch], height) if plan.epoch else None,
        times=seen[plan.time].moments(height) if plan.time else None,
    )


def _spelled(seen: Mapping[str, CellColumn], series: Sequence[str], height: int) -> np.ndarray:
    """bool (first rows,): whether all values of a row are texts, as in a table: they tell how fine it was printed."""
    found = np.ones(min(height, SPELLINGS), dtype=bool)
    for column in (seen[name] for name in series):
        if None in column.spelled:
            found[[row for row, text in zip(column.spelled_rows, column.spelled, strict=True) if text is None]] = False
    return found


def _texts(column: CellColumn, wanted: np.ndarray) -> list[str]:
    """The texts of the wanted ones among the first rows, in the order of the rows."""
    rows = np.array(column.spelled_rows, dtype=np.int64)
    at = np.flatnonzero(wanted[rows])
    return [text for i in at[np.argsort(rows[at], kind="stable")].tolist() if (text := column.spelled[i]) is not None]


def _spread(column: CellColumn, height: int) -> pl.Series:
    """Float64 (height,): the numbers of a column in every row of the table, null where there is none."""
    if len(column.rows) == height:
        return column.values
    found = np.full(height, np.nan)
    held = np.zeros(height, dtype=bool)
    held[column.rows] = column.values.is_not_null().to_numpy()
    found[column.rows] = column.values.to_numpy()
    return pl.Series(found).set(pl.Series(~held), None)


def _steps(column: CellColumn, height: int) -> pl.Series:
    """Int64 (height,): the whole numbers of a column."""
    values = _spread(column, height).to_numpy()
    whole = np.isfinite(values) & (np.floor(values) == values) & (np.abs(values) < 2.0**63)
    steps = pl.Series(np.where(whole, values, 0.0).astype(np.int64))
    return steps if whole.all() else steps.set(pl.Series(~whole), None)


def _unused(
    seen: Mapping[str, CellColumn], plan: _Plan, columns: Mapping[str, str]
) -> Iterator[tuple[int | None, str]]:
    """What the user may not expect of a column: one that --map makes the step, one with too few numbers."""
    places = {"step": plan.step, "epoch": plan.epoch, "time": plan.time, "phase": plan.phase}
    for kind, name in places.items():
        if name is not None and columns.get(name.strip()) == kind:
            yield None, f'column "{name}" is used as the {kind}, as --map says'
    for name, column in seen.items():
        if name in plan.series or name in places.values() or not column.others:
            continue
        if column.numbers or names.is_metric(name):
            some = f" and {column.numbers} are" if column.numbers else ""
            text = f'{column.others} values are no numbers{some} (first: "{column.sample}"): not read as a series'
            yield column.line, f'column "{name}": {text}'


def _is_padded(text: str) -> bool:
    """Whether a cell was printed with a fixed number of decimals: each column may then have its own."""
    return text[-1] == "0" and "." in text and not text.endswith(".0")


def _plan(seen: Mapping[str, CellColumn], rows: int, columns: Mapping[str, str]) -> _Plan:
    plan = _Plan()
    targets = {target: name for name in seen if (target := columns.get(name.strip()))}

    def best(kind: str, fits: Any) -> str | None:
        if kind in targets:
            return targets[kind]
        ranked = [
            (rank, name)
            for name, column in seen.items()
            if (rank := names.column_rank(kind, name)) is not None and fits(name, column)
        ]
        return min(ranked)[1] if ranked else None

    plan.step = best("step", lambda _, c: c.whole and c.numbers * 2 >= rows - c.absent and c.numbers)
    plan.epoch = best("epoch", lambda _, c: c.numbers)
    plan.time = best("time", lambda _, c: unix_seconds(c.first) is not None)
    plan.phase = best("phase", lambda _, c: c.others and names.phase_word(c.sample) is not None)
    taken = {plan.step, plan.epoch, plan.time, plan.phase}
    plan.series = [
        name
        for name, column in seen.items()
        if name not in taken
        and name.lower() not in _SKIPPED | _TOTALS
        and (column.numbers > column.others or name.strip() in columns)
        and column.numbers
    ]
    return plan


def _number(value: Any) -> float | None:
    try:
        return numbers.scalar(value)
    except ValueError:
        return None
