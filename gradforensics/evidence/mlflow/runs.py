"""What MLflow's records of one run mean: metrics are series, parameters settings, tags facts, the status an ending."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from gradforensics.evidence import rounding
from gradforensics.evidence import settings as configuration
from gradforensics.evidence.log_table import Column, LogTable, settle
from gradforensics.evidence.readings import Reading
from gradforensics.tables import Event, Fact, StepUnit

SETTING_LIMIT = 5000
# tag -> fact; the file store has one file per tag
FACTS: Mapping[str, str] = {
    "mlflow.source.name": "command",
    "mlflow.source.git.commit": "git_commit",
    "mlflow.runName": "run_name",
}
# the numbers of the file store (mlflow.entities.RunStatus); a database has the words
STATUS: Mapping[str, str] = {"1": "RUNNING", "2": "SCHEDULED", "3": "FINISHED", "4": "FAILED", "5": "KILLED"}
_CLOSERS: Mapping[str, str] = {"FAILED": "exception", "KILLED": "killed"}
_SYSTEM = "system/"  # MLflow's own measurements of the machine count samples, not steps of the training
_TOGETHER = 1000  # milliseconds within which values of one step are one row
_PAIR = re.compile(r"[(\[]\s*([-+.\deE]+)\s*,\s*([-+.\deE]+)\s*[)\]]$")
_EARLIEST = 100_000_000_000  # smaller times are seconds: the first versions of MLflow wrote those


@dataclass
class Points:
    """The metrics of one run, one record per value, in the order in which they were logged.

    names: the metrics; keys: int64 (n,), the place of each record's metric in `names`; times: int64 (n,), Unix
    milliseconds; steps: int64 (n,), None where the store has none; values: float64 (n,); lines: int64 (n,), None for
    databases.
    """

    names: list[str]
    keys: np.ndarray
    times: np.ndarray
    steps: np.ndarray | None
    values: np.ndarray
    lines: np.ndarray | None = None

    def taken(self, rows: np.ndarray, steps: np.ndarray) -> Points:
        """These records only, with other steps."""
        lines = None if self.lines is None else self.lines[rows]
        return Points(self.names, self.keys[rows], self.times[rows], steps[rows], self.values[rows], lines)


def add_points(reading: Reading, points: Points, mapping: Mapping[str, str]) -> None:
    """Settle the metrics of a run into tracks. mapping: the user's --map."""
    for unit, part in _parts(points):
        settled = settle(_table(part, unit), mapping)
        reading.tracks += settled.tracks
        reading.notices += settled.notices
        if unit == "step" and part.steps is not None:
            reading.trail.last_step = int(part.steps.max())
            if part.lines is not None:
                reading.trail.last_line = int(part.lines[-1])
    reading.tracks = rounding.settled(reading.tracks)
    reading.speaks_of_training = bool(reading.tracks)


def add_status(reading: Reading, status: str, source: str, line: int | None = None, ended: int | None = None) -> None:
    """What MLflow noted about the end of a run; ended: Unix milliseconds."""
    text = f"MLflow recorded status {status}"
    reading.facts.append(Fact("mlflow_status", status, source, line))
    if status == "FINISHED":
        reading.trail.finished, reading.trail.finished_line = text, line
    elif status in _CLOSERS:
        reading.speaks_of_training = True
        when = None if ended is None else ended / 1000
        reading.events = [*(reading.events or []), Event(_CLOSERS[status], text, source, line, time=when)]


def add_params(reading: Reading, params: Sequence[tuple[str, str]], source: str) -> None:
    """Parameters as settings of the run itself: MLflow keeps every value as text."""
    if len(params) > SETTING_LIMIT:
        reading.notices.append((None, f"only the first {SETTING_LIMIT} of {len(params)} parameters were read"))
    given = ((name, _parameter(text), source) for name, text in params[:SETTING_LIMIT])
    reading.settings = [*(reading.settings or []), *configuration.from_checkpoint(given)]


def _parameter(text: str) -> object:
    bare = text.strip()
    if pair := _PAIR.match(bare[:80]):
        return [configuration.parse_value(pair[1]), configuration.parse_value(pair[2])]
    return configuration.parse_value(bare)


def seconds(times: np.ndarray) -> np.ndarray:
    """Unix seconds, float64 (n,), of MLflow's times."""
    found: np.ndarray = np.where(np.abs(times) < _EARLIEST, times.astype(np.float64), times / 1000.0)
    return found


def _parts(points: Points) -> Iterator[tuple[StepUnit, Points]]:
    """The records whose steps are those of the training, those of the machine, and those that were given no step."""
    if not len(points.keys):
        return
    order = np.argsort(points.keys, kind="stable")
    keys = points.keys[order]
    firsts = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
    counts = np.diff(np.append(firsts, len(keys)))
    numbered = np.empty(len(keys), dtype=np.int64)
    numbered[order] = np.arange(len(keys)) - np.repeat(firsts, counts) + 1
    machine = np.array([name.startswith(_SYSTEM) for name in points.names], dtype=bool)
    bare = np.zeros(len(points.names), dtype=bool)
    if points.steps is None:
        bare[:] = True
    else:  # MLflow writes step 0 where none is given
        stepped = np.maximum.reduceat(np.abs(points.steps[order]), firsts) > 0
        bare[keys[firsts]] = ~stepped & (counts > 1)
    stated = numbered if points.steps is None else points.steps
    plan: tuple[tuple[StepUnit, np.ndarray, np.ndarray], ...] = (
        ("step", ~machine & ~bare, stated),
        ("row", machine & ~bare, stated),
        ("row", bare, numbered),
    )
    for unit, wanted, steps in plan:
        rows = np.flatnonzero(wanted[points.keys])
        if len(rows):
            yield unit, points.taken(rows, steps)


def _table(points: Points, unit: StepUnit) -> LogTable:
    """The records as a table: values of one step that were logged at one time share a row."""
    steps = points.steps if points.steps is not None else np.zeros(len(points.keys), dtype=np.int64)
    apart = (steps[1:] != steps[:-1]) | (np.abs(np.diff(points.times)) > _TOGETHER)
    blocks = np.concatenate(([0], np.cumsum(apart)))
    order = np.lexsort((points.keys, blocks))
    keys, inside = points.keys[order], blocks[order]
    same = np.concatenate(([False], (keys[1:] == keys[:-1]) & (inside[1:] == inside[:-1])))
    places = np.arange(len(keys))
    again = np.empty(len(keys), dtype=np.int64)  # how often a metric was logged before in its block
    again[order] = places - np.maximum.accumulate(np.where(same, 0, places))
    _, firsts, rows = np.unique(blocks * (int(again.max()) + 1) + again, return_index=True, return_inverse=True)
    columns = []
    for records in np.split(order[np.argsort(keys, kind="stable")], _borders(np.sort(keys))):
        own = np.sort(records)
        lines = None if points.lines is None else points.lines[own].astype(np.uint32)
        tag = points.names[int(points.keys[own[0]])]
        columns.append(Column(tag, pl.Series(points.values[own]), rows[own].astype(np.int64), lines=lines))
    return LogTable(
        height=len(firsts),
        columns=columns,
        lines=None if points.lines is None else points.lines[firsts].astype(np.uint32),
        steps=pl.Series(steps[firsts], dtype=pl.Int64),
        times=pl.Series(seconds(points.times[firsts])),
        unit=unit,
    )


def _borders(keys: np.ndarray) -> np.ndarray:
    return np.flatnonzero(keys[1:] != keys[:-1]) + 1
