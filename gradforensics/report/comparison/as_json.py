"""A comparison as JSON, schema version 1 (compare.schema.json beside the package). Additions keep the version."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from gradforensics.languages import Language
from gradforensics.report.as_json import plain, said, text_of
from gradforensics.report.comparison import told
from gradforensics.report.comparison.contrast_data import contrast_data
from gradforensics.report.comparison.model import Comparison, Side
from gradforensics.report.words import Words

SCHEMA = 1


def render(found: Comparison) -> str:
    """The comparison as JSON text."""
    return text_of(data(found))


def data(found: Comparison) -> dict[str, Any]:
    """The comparison as plain lists, dictionaries, strings and numbers."""
    words = Words(found.language)
    return {
        "schema": SCHEMA,
        "tool": found.tool,
        "command": "compare",
        "a": _side(found.here, found.language),
        "b": _side(found.there, found.language),
        "text": [
            told.bare(line) for line in (told.headline(words, found.contrast), *told.details(words, found.contrast))
        ],
        **plain(contrast_data(found.contrast)),
    }


def _side(side: Side, language: Language) -> dict[str, Any]:
    return {
        "name": side.name,
        "path": side.path,
        "steps": None if side.steps is None else list(side.steps),
        "attempts": side.attempts,
        "ending": said(asdict(side.ending), language, "text"),
        "notices": [said(asdict(notice), language, "text") for notice in side.notices],
        "sources": [said(asdict(source), language, "remark") for source in side.sources],
    }
