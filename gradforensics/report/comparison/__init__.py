"""What `gradforensics compare` shows, and the section that the report of a run with a baseline has of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradforensics.report.comparison.model import Comparison


def _html(found: Comparison) -> str:
    from gradforensics.report.comparison.page import render  # noqa: PLC0415  # jinja2 costs 50 ms

    return render(found)


def _json(found: Comparison) -> str:
    from gradforensics.report.comparison.as_json import render  # noqa: PLC0415  # pulls in polars

    return render(found)


def _markdown(found: Comparison) -> str:
    from gradforensics.report.comparison.markdown import render  # noqa: PLC0415  # pulls in polars

    return render(found)


FORMATS: Mapping[str, Callable[[Comparison], str]] = {"html": _html, "json": _json, "md": _markdown}
"""Name of an output format -> what renders a comparison in it."""
