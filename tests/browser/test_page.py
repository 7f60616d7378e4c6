"""The page of a report in a browser."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradforensics.report.html import render
from gradforensics.report.model import Report


def test_the_page_opens_without_complaint_and_asks_for_nothing_else(
    open_page: Callable[..., Any], report: Report
) -> None:
    visit = open_page(render(report))
    assert visit.errors == []
    (address,) = visit.requests
    assert address.startswith("file:")
