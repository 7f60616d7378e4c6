"""What `gradforensics scan` writes: JSON, schema version 1 (scan.schema.json), and Parquet."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from gradforensics import __version__
from gradforensics.report.as_json import plain, text_of
from gradforensics.report.canonical import as_parquet

if TYPE_CHECKING:
    from gradforensics.checkpoints.measure import Survey

SCHEMA = 1
_AS_JSON = {"groups": "values", "facts": "value"}  # columns that hold JSON as text


def render_json(found: Survey) -> str:
    """The survey as JSON text. Additions keep the version."""
    return text_of(data(found))


def data(found: Survey) -> dict[str, Any]:
    """The survey as plain lists, dictionaries, strings and numbers; null where nothing was measured."""
    return {
        "schema": SCHEMA,
        "tool": f"gradforensics {__version__}",
        "command": "scan",
        **{name: rows(found, name) for name in ("checkpoints", "tensors", "groups", "calls", "facts")},
        "notices": [{"source": n.source, "line": n.line, "text": n.text} for n in found.notices],
    }


def rows(found: Survey, name: str) -> list[dict[str, Any]]:
    """The rows of one table of a survey."""
    column = _AS_JSON.get(name)
    return [
        {key: plain(json.loads(value) if key == column else value) for key, value in row.items()}
        for row in found.tables[name].iter_rows(named=True)
    ]


def render_parquet(found: Survey) -> bytes:
    """The table of tensors as a Parquet file."""
    return as_parquet(found.tables["tensors"])
