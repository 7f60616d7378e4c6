"""Whole reports of real runs in a real browser: what a reader sees, on which screen, in which light."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from gradforensics.diagnosis.causes import diagnose
from gradforensics.diagnosis.rules import load_rules
from gradforensics.evidence.gather import gather
from gradforensics.report.build import build
from gradforensics.report.comparison import FORMATS
from gradforensics.report.comparison.model import build as compare
from gradforensics.report.html import render
from gradforensics.report.model import Report

SAMPLES = Path(__file__).parents[2] / "sample_runs"
# a diverged loss with settings and a log; checkpoints with NaN; a hang with ranks and events; a healthy run
RUNS = ("gf05-diverged", "gf11-moments", "gf24-missing-rank", "healthy-hf")
STRICT = "sandbox; default-src 'none'"  # what CI servers send with artifacts
AXE = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]}


@cache
def report_of(*names: str) -> Report:
    found = gather([SAMPLES / name / "run" for name in names])
    rules = load_rules(examples=False)
    sources = [source for evidence in found for source in evidence.sources]
    return build([diagnose(evidence, rules) for evidence in found], sources)


@cache
def html_of(*names: str) -> str:
    return render(report_of(*names))


@pytest.fixture(params=RUNS)
def page_html(request: pytest.FixtureRequest) -> str:
    return html_of(request.param)


def serious(page: Any, *, contrast: bool = False) -> list[str]:
    """Serious and critical findings of axe-core, each with the first elements that it names.

    contrast: also that of every text on the page, which takes longer than everything else; test_palette.py computes it
    for the colours that are used together.
    """
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-core is not installed").Axe()
    options = {**AXE, "rules": {"color-contrast": {"enabled": contrast}}}
    found = axe.run(page, options=options).response["violations"]
    return [
        f"{one['id']}: {one['help']} ({', '.join(str(node['target']) for node in one['nodes'][:3])})"
        for one in found
        if one["impact"] in ("serious", "critical")
    ]


def picture(raw: bytes, size: tuple[int, int] = (200, 200)) -> Any:
    """A screenshot, made small, as numbers."""
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    return image.open(io.BytesIO(raw)).convert("RGB").resize(size)


def distance(one: Any, other: Any) -> float:
    """Mean difference of two pictures, as a share of the whole range."""
    pairs = zip(one.tobytes(), other.tobytes(), strict=True)
    return float(sum(abs(a - b) for a, b in pairs) / (255 * len(one.tobytes())))


def test_the_first_screen_answers_what_when_how_sure_and_what_now(
    open_page: Callable[..., Any], page_html: str
) -> None:
    page = open_page(page_html).page
    first = page.locator("article").first
    answers = [first.locator(where).first for where in (".hero h2", ".hero .facts", ".hero .sure", ".hero .next")]
    for answer in answers:
        box = answer.bounding_box()
        assert box["y"] + box["height"] <= 800
        assert len(answer.inner_text()) > 10


def test_nothing_complains_and_nothing_leaves_the_page(open_page: Callable[..., Any], page_html: str) -> None:
    visit = open_page(page_html)
    assert visit.errors == []
    assert len(visit.requests) == 1


@pytest.mark.parametrize("width", [400, 1280, 1600])
def test_the_page_never_scrolls_sideways(open_page: Callable[..., Any], page_html: str, width: int) -> None:
    page = open_page(page_html, viewport={"width": width, "height": 800}).page
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize(
    ("name", "look"),
    [
        *((name, {}) for name in RUNS),
        ("gf24-missing-rank", {"color_scheme": "dark"}),
        ("gf11-moments", {"viewport": {"width": 400, "height": 800}}),
    ],
    ids=[*RUNS, "dark", "narrow"],
)
def test_no_serious_barrier(open_page: Callable[..., Any], name: str, look: dict[str, Any]) -> None:
    page = open_page(html_of(name), **look).page
    page.evaluate("for (const d of document.querySelectorAll('details')) d.open = true")
    assert serious(page, contrast=name == "gf24-missing-rank") == []  # in the light and in the dark


def test_no_serious_barrier_in_chinese_and_over_several_runs(open_page: Callable[..., Any]) -> None:
    page = open_page(html_of("gf05-diverged", "healthy-hf")).page
    page.check("#language-zh", force=True)
    assert serious(page) == []


def test_the_switch_turns_every_text_over_without_a_script(open_page: Callable[..., Any], page_html: str) -> None:
    page = open_page(page_html, java_script_enabled=False).page
    english, chinese = page.locator("h2 [lang=en]").first, page.locator("h2 [lang=zh]").first
    assert (english.is_visible(), chinese.is_visible()) == (True, False)
    page.locator("label[for=language-zh]").click()
    assert (english.is_visible(), chinese.is_visible()) == (False, True)
    shown = page.locator(":is(span, tspan)[lang=en]").filter(visible=True).count()
    assert shown == 0


def test_the_switch_works_from_the_keyboard(open_page: Callable[..., Any], page_html: str) -> None:
    page = open_page(page_html).page
    page.locator("#language-en").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("h2 [lang=zh]").first.is_visible()
    assert page.evaluate("document.documentElement.lang").startswith("zh")


def test_without_scripts_the_page_is_complete(open_page: Callable[..., Any], page_html: str) -> None:
    with_scripts = open_page(page_html).page
    without = open_page(page_html, java_script_enabled=False).page
    texts = [page.locator("main").inner_text() for page in (with_scripts, without)]
    assert set(texts[1].split()) <= set(texts[0].split())
    pictures = [picture(page.screenshot()) for page in (with_scripts, without)]
    assert distance(*pictures) < 0.02


def test_under_a_ci_servers_policy_everything_stands_there_and_charts_keep_their_colours(
    open_page: Callable[..., Any], page_html: str
) -> None:
    visit = open_page("<p>first</p>")
    styled = open_page(page_html, java_script_enabled=False).page
    strict = visit.page
    strict.route(
        "http://ci.example/*",
        lambda route: route.fulfill(
            body=page_html, content_type="text/html", headers={"Content-Security-Policy": STRICT}
        ),
    )
    strict.goto("http://ci.example/report.html")
    words = re.findall(r"\w{4,}", strict.locator("main").inner_text())
    assert set(re.findall(r"\w{4,}", styled.locator("main").inner_text())) <= set(words)
    assert strict.locator("main [lang=zh]").filter(visible=True).count() == 0
    charts = [page.locator("svg.chart").first for page in (strict, styled)]
    if charts[0].count():
        assert distance(*(picture(chart.screenshot()) for chart in charts)) < 0.03


def test_dark_is_dark_and_paper_is_light(open_page: Callable[..., Any], page_html: str) -> None:
    page = open_page(page_html, color_scheme="dark").page
    background = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).map(Number)"
    assert max(page.evaluate(background)) < 60
    page.emulate_media(media="print", color_scheme="dark")
    assert min(page.evaluate(background)) > 240


def test_it_prints(open_page: Callable[..., Any], page_html: str) -> None:
    page = open_page(page_html).page
    printed = page.pdf(format="A4")
    assert printed.startswith(b"%PDF")
    assert 1 <= len(re.findall(rb"/Type\s*/Page[^s]", printed)) < 60
    page.emulate_media(media="print")
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280


def test_the_embedded_data_are_those_of_the_json_output(open_page: Callable[..., Any]) -> None:
    page = open_page(html_of("gf05-diverged")).page
    data = json.loads(page.locator("#gradforensics-data").text_content())
    assert data["runs"][0]["primary"] == "GF05"


def test_the_page_of_a_comparison_holds_to_the_same(open_page: Callable[..., Any]) -> None:
    hot, good = gather([SAMPLES / "gf05-diverged" / "run"]), gather([SAMPLES / "healthy-hf" / "run"])
    html = FORMATS["html"](compare(hot[0], good[0]))
    for look in ({}, {"viewport": {"width": 400, "height": 800}, "color_scheme": "dark"}):
        visit = open_page(html, **look)
        assert visit.errors == []
        assert len(visit.requests) == 1
        assert visit.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert serious(visit.page) == []


def test_the_filter_leaves_what_holds_its_words_and_escape_brings_all_back(open_page: Callable[..., Any]) -> None:
    page = open_page(html_of("gf05-diverged")).page
    section = page.locator("section").filter(has=page.locator(".filter")).first
    rows = section.locator("tbody tr, li")
    every, before = rows.count(), rows.filter(visible=True).count()
    section.locator(".filter input").fill("GF11")
    left = rows.filter(visible=True)
    assert 0 < left.count() < before
    assert all("gf11" in row.text_content().lower() for row in left.all())
    told = section.locator(".filter output").inner_text()
    assert told.endswith(f"/ {every}")
    section.locator(".filter input").press("Escape")
    assert rows.filter(visible=True).count() == before
    assert section.locator(".filter output").inner_text() == ""


def test_without_scripts_there_is_no_filter_that_does_nothing(open_page: Callable[..., Any]) -> None:
    page = open_page(html_of("gf05-diverged"), java_script_enabled=False).page
    assert page.locator(".filter").filter(visible=True).count() == 0
    assert page.locator(".tools, .copy").filter(visible=True).count() == 0
