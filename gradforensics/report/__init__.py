"""Diagnosis -> model -> HTML, JSON, terminal. Formats and their libraries are imported when they are used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradforensics.report.model import Report


def _html(report: Report) -> str:
    from gradforensics.report.html import render  # noqa: PLC0415  # jinja2 costs 50 ms

    return render(report)


def _json(report: Report) -> str:
    from gradforensics.report.as_json import render  # noqa: PLC0415  # pulls in polars

    return render(report)


FORMATS: Mapping[str, Callable[[Report], str]] = {"html": _html, "json": _json}
"""Name of an output format -> what renders a report in it."""
