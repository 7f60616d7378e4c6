"""Rows of named values (JSON lines, CSV) -> a RowLog: which column is the step, the epoch, the time, the phase."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from gradforensics.evidence import names, numbers, rounding
from gradforensics.evidence.rows import Reading, RowLog
from gradforensics.tables import Phase

Record = tuple[int, Mapping[str, Any]]
_TOTALS = frozenset({"total_steps", "max_steps", "total_iters"})
_SPELLINGS = 4096  # rows whose texts are looked at
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
class _Column:
    numbers: int = 0
    others: int = 0
    whole: bool = True
    sample: str = ""
    line: int = 0
    first: Any = None
    absent: int = 0


@dataclass
class _Plan:
    """The role of every column."""

    step: str | None = None
    epoch: str | None = None
    time: str | None = None
    phase: str | None = None
    series: list[str] = field(default_factory=list)


def read_records(records: Sequence[Record], columns: Mapping[str, str], *, rounds: bool = True) -> Reading:
    """Turn records into a Reading: tracks, notices and the trail.

    rounds: whether the numbers may tell how the writer rounded them.
    """
    reading = Reading(speaks_of_training=True)
    seen, parsed = _survey(records)
    plan = _plan(seen, len(records), columns)
    reading.columns = {name.strip() for name in seen}
    reading.notices += _unused(seen, plan, columns)
    for name in plan.series:
        column = seen[name]
        if column.others:
            text = f'column "{name}": {column.others} values are no numbers (first: "{column.sample}")'
            reading.notices.append((column.line, text))
    log = RowLog(columns)
    wanted = frozenset(plan.series)
    for index, ((line, record), row) in enumerate(zip(records, parsed, strict=True)):
        values = {name: number for name, number in row.items() if name in wanted}
        texts = _spellings(record, values) if index < _SPELLINGS else None
        phase: Phase | None = names.phase_word(str(record.get(plan.phase, ""))) if plan.phase else None
        step = numbers.whole(row.get(plan.step)) if plan.step else None
        epoch = row.get(plan.epoch) if plan.epoch else None
        time = _time(record.get(plan.time)) if plan.time else None
        log.add(line, values, step=step, epoch=epoch, time=time, phase=phase, texts=texts)
        if step is not None:
            reading.trail.last_step = max(step, reading.trail.last_step or step)
    reading.tracks = log.finish()
    if rounds:
        padded = any(_is_padded(record.get(name)) for _, record in records[:_SPELLINGS] for name in plan.series)
        reading.tracks = rounding.settled(reading.tracks, by_the_others=not padded)
    reading.notices += log.notices
    reading.trail.last_line = records[-1][0] if records else None
    totals = {numbers.whole(_number(seen[t].first)) for t in _TOTALS & seen.keys()}
    reading.trail.planned = next((t for t in totals if t is not None and t > 0), None)
    return reading


def _survey(records: Sequence[Record]) -> tuple[dict[str, _Column], list[dict[str, float | None]]]:
    """What every column holds, and every row with its values as numbers (None: missing, or no number)."""
    seen: dict[str, _Column] = {}
    parsed: list[dict[str, float | None]] = []
    for line, record in records:
        row: dict[str, float | None] = {}
        parsed.append(row)
        for name, value in record.items():
            column = seen.get(name)
            if column is None:
                column = seen[name] = _Column(first=value)
            try:
                number = value if type(value) is float else numbers.scalar(value)
            except ValueError:
                column.whole = False
                if isinstance(value, bool):
                    continue
                row[name] = number = numbers.clock_seconds(str(value)[:40])
                if number is not None:
                    column.numbers += 1
                    continue
                if not column.others:
                    column.sample, column.line = str(value)[:40], line
                column.others += 1
                continue
            row[name] = number
            if number is None:
                column.absent += 1
                continue
            if not column.numbers:
                column.first = value
            column.numbers += 1
            column.whole = column.whole and number.is_integer()
    return seen, parsed


def _spellings(record: Mapping[str, Any], values: Mapping[str, float | None]) -> dict[str, str] | None:
    """The texts of the values where a table gives texts: they tell how fine its numbers are printed."""
    texts = {name: text for name in values if isinstance(text := record[name], str)}
    return texts if len(texts) == len(values) else None


def _unused(seen: Mapping[str, _Column], plan: _Plan, columns: Mapping[str, str]) -> Iterator[tuple[int | None, str]]:
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


def _is_padded(text: Any) -> bool:
    """Whether a cell was printed with a fixed number of decimals: each column may then have its own."""
    return isinstance(text, str) and text.endswith("0") and "." in text and not text.endswith(".0")


def _plan(seen: Mapping[str, _Column], rows: int, columns: Mapping[str, str]) -> _Plan:
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
    plan.time = best("time", lambda _, c: _time(c.first) is not None)
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


def _time(value: Any) -> float | None:
    """Unix seconds of a time column's value; None for relative times and for texts that are no dates."""
    number = _number(value)
    if number is not None:
        if 1e9 < number < 4e9:
            return number
        return number / 1000 if 1e12 < number < 4e12 else None
    if not isinstance(value, str) or len(value) > 40 or len(value) < 16:
        return None
    try:
        moment = datetime.fromisoformat(value.strip())
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
