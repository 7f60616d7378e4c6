"""Diagnosis -> model -> HTML, JSON, Markdown, SARIF, JUnit, terminal. What a format needs is imported with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradforensics.checkpoints.measure import Survey
    from gradforensics.report.model import Report


def _html(report: Report) -> str:
    from gradforensics.report.html import render  # noqa: PLC0415  # jinja2 costs 50 ms

    return render(report)


def _json(report: Report) -> str:
    from gradforensics.report.as_json import render  # noqa: PLC0415  # pulls in polars

    return render(report)


def _markdown(report: Report) -> str:
    from gradforensics.report.as_markdown import render  # noqa: PLC0415  pulls in polars

    return render(report)


def _sarif(report: Report) -> str:
    from gradforensics.report.as_sarif import render  # noqa: PLC0415  pulls in polars

    return render(report)


def _junit(report: Report) -> str:
    from gradforensics.report.as_junit import render  # noqa: PLC0415  pulls in polars

    return render(report)


def _scan_json(found: Survey) -> str:
    from gradforensics.report.scan_data import render_json  # noqa: PLC0415  pulls in polars

    return render_json(found)


def _scan_parquet(found: Survey) -> bytes:
    from gradforensics.report.scan_data import render_parquet  # noqa: PLC0415  pulls in polars

    return render_parquet(found)


FORMATS: Mapping[str, Callable[[Report], str]] = {
    "html": _html, "json": _json, "md": _markdown, "sarif": _sarif, "junit": _junit
}  # fmt: skip
"""Name of an output format -> what renders a report in it."""
SCAN_FORMATS: Mapping[str, Callable[[Survey], str | bytes]] = {"json": _scan_json, "parquet": _scan_parquet}
"""The same for a survey of checkpoints."""
BINARY = ("parquet",)
"""The formats that are no text."""
