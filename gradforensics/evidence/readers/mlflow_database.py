"""MLflow's database (SQLite): every run that it holds.

The table `metrics` has one row per value: NaN is stored as 0 with is_nan = 1, an infinity as the largest double. Source
of the schema: mlflow.store.tracking.dbmodels.models.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from gradforensics.evidence.files import File
from gradforensics.evidence.mlflow import runs
from gradforensics.evidence.mlflow.database import MAGIC, Database, NotMlflowError, text
from gradforensics.evidence.readings import Reading
from gradforensics.tables import Fact

name = "mlflow-database"

RUN_LIMIT = 1000
_LARGEST = np.finfo(np.float64).max
_LONGEST_NAME = 250  # characters of a metric's name in MLflow
_MOST_NAMES = 100_000
_UNFIT = re.compile(r"[/\\\x00-\x1f\x7f]+")
_KNOWN_TAGS = ", ".join(f"'{tag}'" for tag in runs.FACTS)
_BESIDE = {
    "-wal": "its last rows are in a write-ahead log",
    "-journal": "it may hold half of its last change, which a rollback journal would undo",
}


def sniff(file: File) -> bool:
    """Any SQLite database; read() then asks for MLflow's tables."""
    return file.head.startswith(MAGIC)


def read(file: File) -> Reading:
    """One reading per run that has metrics or that failed."""
    reading = Reading()
    try:
        database = Database(file)
    except NotMlflowError:
        return Reading(claimed=False)
    try:
        reading.runs = _Store(database, file).readings(reading)
        reading.notices = [*_beside(file), *((None, said) for said in database.notices), *reading.notices]
    finally:
        database.close()
    return reading


def _beside(file: File) -> list[tuple[int | None, str]]:
    """A database that was not closed keeps its last rows in a file beside it."""
    if file.opener is not None:
        return []
    found: list[tuple[int | None, str]] = []
    for ending, what in _BESIDE.items():
        log = file.path.with_name(file.path.name + ending)
        if log.is_file() and log.stat().st_size:
            size = log.stat().st_size
            found.append((None, f"not closed: {what} ({log.name}, {size} bytes) that was not read"))
    return found


class _Codes(dict[Any, int]):
    """A number for every distinct key, in the order in which they are first met."""

    def __missing__(self, key: Any) -> int:
        self[key] = code = len(self)
        return code


@dataclass
class _Run:
    """A row of the table runs, with what the other tables say of it."""

    identity: str
    title: str = ""
    status: str = ""
    started: int = 0
    ended: int | None = None
    deleted: bool = False
    params: list[tuple[str, str]] = field(default_factory=list)
    tags: dict[str, str] = field(default_factory=dict)


@dataclass
class _Metrics:
    """Rows of the table metrics.

    owners, keys: int32 (n,), the codes of run and metric; values: float64 (n,); times, steps: int64 (n,); bad: bool
    (n,), what holds no number.
    """

    owners: np.ndarray
    keys: np.ndarray
    values: np.ndarray
    times: np.ndarray
    steps: np.ndarray
    bad: np.ndarray

    @classmethod
    def none(cls) -> _Metrics:
        """No rows."""
        return cls(*(np.zeros(0, dtype) for dtype in (np.int32, np.int32, np.float64, np.int64, np.int64, np.bool_)))


class _Store:
    """What one database holds, before it is given to its runs."""

    def __init__(self, database: Database, file: File) -> None:
        self.database = database
        self.file = file
        self.runs: dict[Any, _Run] = {}
        self.owners = _Codes()
        self.keys = _Codes()
        self.names: list[Any] = []  # the keys by their codes

    def readings(self, whole: Reading) -> dict[str, Reading]:
        """The runs by their names; `whole` takes the notices."""
        self._runs()
        self._texts()
        metrics = self._metrics(whole)
        order = np.lexsort((metrics.times, metrics.owners))
        borders = np.searchsorted(metrics.owners[order], np.arange(len(self.owners) + 1))
        rows = {owner: order[borders[code] : borders[code + 1]] for owner, code in self.owners.items()}
        told = [
            owner for owner in self.runs if len(rows.get(owner, ())) or self.runs[owner].status in ("FAILED", "KILLED")
        ]
        kept = [owner for owner in told if not self.runs[owner].deleted]
        silent = sum(not run.deleted for run in self.runs.values()) - len(kept)
        for count, said in (
            (sum(run.deleted for run in self.runs.values()), "deleted in MLflow: not read"),
            (silent, "without metrics: left out"),
        ):
            if count:
                whole.notices.append((None, f"{count} {'run' if count == 1 else 'runs'} {said}"))
        if len(kept) > RUN_LIMIT:
            whole.notices.append((None, f"{len(kept)} runs: only the {RUN_LIMIT} that were started last were read"))
            kept = sorted(kept, key=lambda owner: self.runs[owner].started)[-RUN_LIMIT:]
        found: dict[str, Reading] = {}
        for owner in kept:
            run = self.runs[owner]
            found[_distinct(run, found)] = self._reading(run, metrics, rows.get(owner, np.zeros(0, dtype=np.int64)))
        return found

    def _reading(self, run: _Run, metrics: _Metrics, rows: np.ndarray) -> Reading:
        reading = Reading(settings=[])
        keys, places = np.unique(metrics.keys[rows], return_inverse=True)
        points = runs.Points(
            names=[text(self.names[key]) for key in keys],
            keys=places.astype(np.int64),
            times=metrics.times[rows],
            steps=metrics.steps[rows],
            values=metrics.values[rows],
        )
        runs.add_points(reading, points, self.file.columns)
        runs.add_params(reading, run.params, self.file.name)
        facts = {runs.FACTS[tag]: value for tag, value in run.tags.items()}
        facts.setdefault("run_name", run.title)
        reading.facts = [Fact(key, value, self.file.name) for key, value in facts.items() if value]
        if run.status:
            runs.add_status(reading, run.status, self.file.name, ended=run.ended)
        return reading

    def _runs(self) -> None:
        for row in self._rows("runs"):
            identity = row["run_uuid"]
            if isinstance(identity, bytes):
                self.runs[identity] = _Run(
                    text(identity),
                    text(row.get("name")),
                    text(row.get("status")),
                    _whole(row.get("start_time")) or 0,
                    _whole(row.get("end_time")),
                    row.get("lifecycle_stage") == b"deleted",
                )

    def _texts(self) -> None:
        for row in self._rows("tags", f"WHERE key IN ({_KNOWN_TAGS})"):
            run = self.runs.get(row["run_uuid"])
            if run is not None and text(row["key"]) in runs.FACTS:
                run.tags[text(row["key"])] = text(row["value"])
        for row in self._rows("params"):
            run = self.runs.get(row["run_uuid"])
            if run is not None:
                run.params.append((text(row["key"]), text(row["value"])))

    def _rows(self, table: str, where: str = "") -> Iterable[dict[str, Any]]:
        columns = self.database.columns.get(table)
        if columns is None:
            return
        held = 0
        for batch in self.database.rows(table, where):
            held += sum(len(cell) for row in batch for cell in row if isinstance(cell, bytes))
            if held > self.database.size:
                self.database.notices.append(f'table "{table}": its rows have more bytes than the file: not read on')
                return
            for row in batch:
                yield dict(zip(columns, row, strict=False))

    def _metrics(self, whole: Reading) -> _Metrics:
        """The whole table; rows that MLflow cannot have written are left out and counted."""
        parts = [_Metrics.none(), *self._batches()]
        owners, keys, values, times, steps, bad = (
            np.concatenate([getattr(part, each.name) for part in parts]) for each in fields(_Metrics)
        )
        self.names = list(self.keys)
        unfit = np.array([not _is_name(key) for key in self.names], dtype=bool)
        strange = np.array([not isinstance(owner, bytes) for owner in self.owners], dtype=bool)
        if len(keys):
            bad |= unfit[keys] | strange[owners]
        if bad.any():
            said = f'table "metrics": {int(bad.sum())} rows hold no name, number or run: left out'
            whole.notices.append((None, said))
        for owner in self.owners:
            if isinstance(owner, bytes):
                self.runs.setdefault(owner, _Run(text(owner)))
        values = np.where(np.abs(values) >= _LARGEST, np.copysign(np.inf, values), values)
        good = ~bad
        return _Metrics(owners[good], keys[good], values[good], times[good], steps[good], bad[good])

    def _batches(self) -> Iterator[_Metrics]:
        """The table in batches, with runs and metrics as codes."""
        columns = self.database.columns.get("metrics")
        if columns is None:
            return
        held = 0
        for batch in self.database.rows("metrics"):
            cells = dict(zip(columns, zip(*batch, strict=True), strict=False))
            zeros = (0,) * len(batch)
            known = len(self.keys) + len(self.owners)
            owners = np.fromiter(map(self.owners.__getitem__, cells["run_uuid"]), np.int32, len(batch))
            keys = np.fromiter(map(self.keys.__getitem__, cells["key"]), np.int32, len(batch))
            if len(self.keys) + len(self.owners) > known:
                held += sum(len(cell) for cell in {*cells["run_uuid"], *cells["key"]} if isinstance(cell, bytes))
            nan = _floats(cells.get("is_nan", zeros))
            values = np.where(nan == 0, _floats(cells["value"]), np.nan)
            bad = np.isnan(nan) | (np.isnan(values) & (nan == 0))
            yield _Metrics(owners, keys, values, _wholes(cells["timestamp"]), _wholes(cells.get("step", zeros)), bad)
            if len(self.keys) > _MOST_NAMES or held > self.database.size:
                said = 'table "metrics": more names than a file of this size can hold: not read on'
                self.database.notices.append(said)
                return


def _is_name(key: Any) -> bool:
    return isinstance(key, bytes) and 0 < len(text(key)) <= _LONGEST_NAME


def _distinct(run: _Run, taken: Iterable[str]) -> str:
    """The name of a run as that of a folder; where two are called alike, with the first characters of its id."""
    short = _UNFIT.sub("_", run.identity[:8]) or "run"
    bare = _UNFIT.sub("_", run.title).strip(" .") or short
    for found in (bare, f"{bare} {short}", f"{bare} {_UNFIT.sub('_', run.identity[:64])}"):
        if found not in taken:
            return found
    return f"{bare} {len(list(taken))}"


def _floats(cells: tuple[Any, ...]) -> np.ndarray:
    """float64 (n,); NaN for what is no number."""
    try:
        return np.fromiter(cells, np.float64, len(cells))
    except (TypeError, ValueError):
        return np.array([float(c) if isinstance(c, (int, float)) else np.nan for c in cells], dtype=np.float64)


def _wholes(cells: tuple[Any, ...]) -> np.ndarray:
    """int64 (n,); 0 for what is no whole number."""
    try:
        return np.fromiter(cells, np.int64, len(cells))
    except (TypeError, ValueError, OverflowError):
        return np.array([_whole(c) or 0 for c in cells], dtype=np.int64)


def _whole(cell: Any) -> int | None:
    if isinstance(cell, float) and abs(cell) < 2**63:  # which a comparison with NaN denies
        return int(cell)
    return cell if isinstance(cell, int) else None
