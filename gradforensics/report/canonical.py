"""The canonical tables of runs as frames to export: every table of `schemas.py` and what belongs to it, by run."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import polars as pl

from gradforensics import __version__
from gradforensics.report.write import PARQUET_MARK
from gradforensics.schemas import SERIES_SCHEMA, TABLES
from gradforensics.tables import Evidence

_KEY = ("run", "phase", "series", "tag", "source")
_RUNS: dict[str, Any] = {
    "run": pl.String, "path": pl.String, "first_step": pl.Int64, "last_step": pl.Int64, "ending": pl.String,
    "ending_text": pl.String, "ending_source": pl.String, "ending_line": pl.UInt32,
}  # fmt: skip
_SERIES: dict[str, Any] = {
    **dict.fromkeys(_KEY, pl.String), "step_unit": pl.String, "resolution": pl.Float64, "points": pl.Int64,
}  # fmt: skip
_SOURCES: dict[str, Any] = {
    "run": pl.String, "path": pl.String, "bytes": pl.UInt64, "sha256": pl.String, "reader": pl.String,
    "remark": pl.String,
}  # fmt: skip
_NOTICES: dict[str, Any] = {"run": pl.String, "source": pl.String, "line": pl.UInt32, "text": pl.String}


def frames(runs: Sequence[Evidence]) -> Iterator[tuple[str, pl.DataFrame | None]]:
    """Every table by name, one at a time, the rows of all runs told apart by the column `run`, which comes first.

    None: not available in any of the runs; a table without rows was read, and nothing was found. `points` is the long
    table of all series, with their keys; `series` has one row for each of them.
    """
    rows: Mapping[str, tuple[dict[str, Any], Callable[[Evidence], Iterator[tuple[Any, ...]]]]] = {
        "runs": (_RUNS, _run),
        "series": (_SERIES, _series),
        "sources": (_SOURCES, _sources),
        "notices": (_NOTICES, _notices),
    }
    for name, (schema, of) in rows.items():
        yield name, pl.DataFrame([row for run in runs for row in of(run)], schema=schema, orient="row")
    yield "points", _points(runs)
    for name in TABLES:
        found = [(run.name, frame) for run in runs if (frame := run.table(name)) is not None]
        yield name, pl.concat([_of_run(*one) for one in found]) if found else None


NAMES: tuple[str, ...] = ("runs", "series", "sources", "notices", "points", *TABLES)
"""All tables that can be exported."""


def as_parquet(frame: pl.DataFrame) -> bytes:
    """A table as a Parquet file that is known for ours."""
    buffer = io.BytesIO()
    frame.write_parquet(buffer, metadata={PARQUET_MARK: __version__})
    return buffer.getvalue()


def _of_run(run: str, frame: pl.DataFrame) -> pl.DataFrame:
    return frame if "run" in frame.columns else frame.select(pl.lit(run).alias("run"), pl.all())


def _points(runs: Sequence[Evidence]) -> pl.DataFrame:
    """The rows of all series. The keys are of type Enum: strings would take more memory than the points themselves."""
    found = [(key._replace(run=run.name), stored) for run in runs for key, stored in run.frames.items()]
    kinds = {name: pl.Enum(sorted({key[i] for key, _ in found})) for i, name in enumerate(_KEY)}
    schema = {**kinds, **SERIES_SCHEMA}
    parts = [
        stored.frame.select(*(pl.lit(value, kinds[name]).alias(name) for name, value in zip(_KEY, key, strict=True)),
                            *SERIES_SCHEMA)
        for key, stored in found
    ]  # fmt: skip
    return pl.concat(parts) if parts else pl.DataFrame(schema=schema)


def _run(run: Evidence) -> Iterator[tuple[Any, ...]]:
    first, last = run.steps or (None, None)
    yield run.name, run.path, first, last, run.ending.kind, run.ending.text, run.ending.source, run.ending.line


def _series(run: Evidence) -> Iterator[tuple[Any, ...]]:
    for key, stored in run.frames.items():
        yield run.name, *key[1:], stored.step_unit, stored.resolution, stored.frame.height


def _sources(run: Evidence) -> Iterator[tuple[Any, ...]]:
    for one in run.sources:
        yield run.name, one.path, one.bytes, one.sha256, one.reader, one.remark


def _notices(run: Evidence) -> Iterator[tuple[Any, ...]]:
    for one in run.notices:
        yield run.name, one.source, one.line, one.text
