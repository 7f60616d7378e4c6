"""A real browser for the tests of pages: Debian's Chromium through Playwright; skipped where either is missing."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.report.conftest import healthy, maker, report, sick, sources

__all__ = ["healthy", "maker", "report", "sick", "sources"]  # diagnoses made by hand, as the tests of the report have

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@dataclass
class Visit:
    """A page that was opened, what it complained about, and every address that it asked for."""

    page: Any
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    """One headless browser for all tests of this folder; it ends with them, as does the event loop it needs."""
    api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Visit]]:
    """`open_page(html, **options)` opens the text of a page as a file, in a context of its own with those options.

    The options are those of Playwright's `browser.new_context`: viewport, color_scheme, java_script_enabled ...
    """
    contexts: list[Any] = []

    def opened(html: str, **options: Any) -> Visit:
        path = tmp_path / f"page-{len(contexts)}.html"
        path.write_text(html, encoding="utf-8")
        contexts.append(browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options}))
        visit = Visit(contexts[-1].new_page())
        visit.page.on("console", lambda told: visit.errors.append(told.text) if told.type == "error" else None)
        visit.page.on("pageerror", lambda error: visit.errors.append(str(error)))
        visit.page.on("request", lambda request: visit.requests.append(request.url))
        visit.page.goto(path.as_uri())
        return visit

    yield opened
    for context in contexts:
        context.close()
