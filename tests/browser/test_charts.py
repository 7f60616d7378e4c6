"""Charts in a browser: values under the pointer and the arrow keys, and zoom."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest

from gradforensics.diagnosis.causes import Diagnosis
from gradforensics.diagnosis.vocabulary import Hit
from gradforensics.report.build import build
from gradforensics.report.html import render
from gradforensics.tables import Evidence
from tests.report.conftest import Maker

OPEN = Callable[..., Any]
STEPS = range(790)


@pytest.fixture
def html(maker: Maker) -> str:
    """A run whose loss jumps after step 500 and is NaN for a while; its second attempt begins at step 300."""
    evidence = Evidence("jump")
    loss: list[float | None] = [3.0 - s / 1000 if s <= 500 else 9.0 + s % 7 for s in STEPS]
    loss[600:610] = [math.nan] * 10
    maker.series(evidence, "loss", loss, steps=STEPS, attempt=[int(s >= 300) for s in STEPS])
    maker.series(evidence, "loss", [2.5, 2.25, 12.125], steps=[250, 500, 750], phase="eval")
    maker.series(evidence, "grad_norm", [10.0 ** (s % 5) for s in STEPS], steps=STEPS)
    verdict = maker.fired(maker.rule("GF05"), [Hit(501, 500, "loss", value=9.0 + 501 % 7)])
    return render(build([Diagnosis(evidence, (verdict,), verdict)], []))


def place(chart: Any, step: float) -> tuple[float, float]:
    """Where in the window a step of the chart as it is drawn at first lies, in the middle of its height."""
    low, high, left, plot = map(float, chart.get_attribute("data-x").split(","))
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    width = float(chart.get_attribute("width"))
    x = box["x"] + box["width"] * (left + plot * (step - low) / (high - low)) / width
    return x, box["y"] + box["height"] / 2


def drag(page: Any, chart: Any, first: float, last: float) -> None:
    page.mouse.move(*place(chart, first))
    page.mouse.down()
    page.mouse.move(*place(chart, last), steps=3)
    page.mouse.up()


def drawn(chart: Any) -> dict[str, Any]:
    """The texts and shapes of a chart."""
    found: dict[str, Any] = chart.evaluate(
        """svg => {
            const all = (what, told) => [...svg.querySelectorAll(what)].map(told), path = e => e.getAttribute("d");
            const kinds = ["attempt", "evaluation", "bad", "tick", "grid"].map(k => [k, all("path." + k, path)]);
            const box = e => [e.getAttribute("x"), e.getAttribute("width")];
            const labels = all(".xt,.yt", e => e.textContent).sort();  // in any order: they are made anew
            return {bands: all("rect.band", box), labels, ...Object.fromEntries(kinds)};
        }"""
    )
    return found


def numbers(told: Any) -> list[int]:
    return [round(float(n)) for n in re.findall(r"-?\d+(?:\.\d+)?", str(told))]


def test_hover_tells_the_exact_values_of_all_panels_at_the_nearest_step(open_page: OPEN, html: str) -> None:
    visit = open_page(html)
    chart = visit.page.locator("svg.chart").first
    visit.page.mouse.move(*place(chart, 500))
    tip = visit.page.locator(".tip").first
    assert tip.inner_text().splitlines() == ["step 500", "loss  2.5", "eval/loss  2.25", "grad_norm  1"]
    visit.page.mouse.move(*place(chart, 605))
    assert tip.inner_text().splitlines() == ["step 605", "loss  NaN", "eval/loss  2.25  @500", "grad_norm  1"]
    visit.page.mouse.move(2, 2)
    assert not tip.is_visible()
    assert visit.errors == []


def test_the_words_of_the_tip_follow_the_language(open_page: OPEN, html: str) -> None:
    visit = open_page(html)
    visit.page.locator("label[for=language-zh]").click()
    chart = visit.page.locator("svg.chart").first
    visit.page.mouse.move(*place(chart, 500))
    assert visit.page.locator(".tip").first.inner_text().splitlines()[0] == "步 500"
    assert chart.locator("tspan[lang=en]").first.evaluate("e => getComputedStyle(e).display") == "none"


def test_arrow_keys_walk_from_point_to_point(open_page: OPEN, html: str) -> None:
    visit = open_page(html)
    chart = visit.page.locator("svg.chart").first
    chart.focus()
    tip = visit.page.locator(".tip").first

    def step(key: str) -> str:
        visit.page.keyboard.press(key)
        return str(tip.inner_text().splitlines()[0])

    assert [step(k) for k in ("ArrowRight", "ArrowRight", "ArrowLeft", "End", "ArrowRight", "ArrowLeft", "Home")] == [
        f"step {s}" for s in (0, 1, 0, 789, 789, 788, 0)
    ]


def test_dragging_zooms_and_marks_move_along_and_escape_brings_the_whole_back(open_page: OPEN, html: str) -> None:
    visit = open_page(html)
    page, chart = visit.page, visit.page.locator("svg.chart").first
    before = drawn(chart)
    drag(page, chart, 400, 600)
    during = drawn(chart)
    low, high, left, plot = map(float, chart.get_attribute("data-x").split(","))
    assert (low, high) == (0, 789)
    for (x, width), (x0, _) in zip(during["bands"], before["bands"], strict=True):
        assert float(x) == pytest.approx(left + plot / 2, abs=plot / 100)  # step 500 in the window 400 to 600
        assert float(width) == pytest.approx(plot / 200, abs=0.5)
        assert x != x0
    assert numbers(during["evaluation"])[0] == pytest.approx(left + plot / 2, abs=plot / 100)
    assert before["attempt"] != during["attempt"] == ["", ""]  # the attempt began outside of the window
    assert during["bad"] != before["bad"]
    assert "500" in during["labels"]
    assert "700" not in during["labels"]
    page.keyboard.press("Escape")
    after = drawn(chart)
    assert after["labels"] == before["labels"]
    for kind in set(before) - {"labels"}:
        assert numbers(after[kind]) == pytest.approx(numbers(before[kind]), abs=1)
    drag(page, chart, 400, 600)
    page.mouse.dblclick(*place(chart, 500))
    assert drawn(chart)["labels"] == before["labels"]
    assert visit.errors == []


def test_the_value_axis_follows_the_window_and_the_line_goes_through_its_points(open_page: OPEN, html: str) -> None:
    visit = open_page(html)
    chart = visit.page.locator("svg.chart").first
    loss = chart.locator("path[data-s][data-n=loss]")
    drag(visit.page, chart, 100, 400)  # 2.9 to 2.6: flat beside the jump to 15
    first, last = numbers(loss.get_attribute("d"))[:2], numbers(loss.get_attribute("d"))[-2:]
    assert last[1] - first[1] > 100
    labels = [float(t.text_content()) for t in chart.locator("g").first.locator(".yt").all()]
    assert min(labels) >= 2.5
    assert max(labels) <= 3


def test_buttons_zoom_and_work_from_the_keyboard(open_page: OPEN, html: str) -> None:
    visit = open_page(html)
    page, chart = visit.page, visit.page.locator("svg.chart").first
    before = drawn(chart)["labels"]
    inside, out, whole = (
        page.locator(".tools").first.locator("button", has_text=t) for t in ("Zoom in", "Zoom out", "Whole chart")
    )
    inside.focus()
    page.keyboard.press("Enter")
    closer = drawn(chart)["labels"]
    assert closer != before
    out.click()
    assert drawn(chart)["labels"] == before
    inside.click()
    inside.click()
    assert drawn(chart)["labels"] not in (before, closer)
    whole.click()
    assert drawn(chart)["labels"] == before


def test_a_touch_tells_values(open_page: OPEN, html: str) -> None:
    visit = open_page(html, has_touch=True, viewport={"width": 400, "height": 800})
    chart = visit.page.locator("svg.chart").first
    visit.page.touchscreen.tap(200, place(chart, 0)[1])
    assert visit.page.locator(".tip").first.inner_text().startswith("step ")
    assert visit.errors == []


def test_without_scripts_there_are_no_tools_and_the_chart_stands(open_page: OPEN, html: str) -> None:
    visit = open_page(html, java_script_enabled=False)
    assert visit.page.locator("svg.chart").first.is_visible()
    assert visit.page.locator(".tools").count() == 0


def test_every_chart_of_a_page_zooms_by_itself(open_page: OPEN, html: str) -> None:
    visit = open_page(html)
    charts = visit.page.locator("svg.chart").all()
    assert len(charts) >= 3
    before = [drawn(c)["labels"] for c in charts]
    visit.page.locator(".tools").nth(1).locator("button", has_text="Zoom in").click()
    assert [drawn(c)["labels"] == b for c, b in zip(charts, before, strict=True)][:3] == [True, False, True]
