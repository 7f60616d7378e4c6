"""Evidence that tries to act: everything of it appears as text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gradforensics.cli import main

ACTS = "window.__acted=1"
HOSTILE = (
    f"<script>{ACTS}</script>",
    f"<img src=x onerror={ACTS}>",
    f'"><svg onload="{ACTS}"><circle/></svg>',
    f"</script><script>{ACTS}</script><!--",
    f"</style></title></textarea><body onload={ACTS}>",
    "<a href=javascript:window.__acted=1>click</a>",
    "<iframe src=https://evil.example/></iframe><link rel=stylesheet href=https://evil.example/a.css>",
    "{{ 7*7 }} {% raw %} ${7*7} &lt;b&gt; &#x3c;b&#x3e;",
    "\x1b[31mred\x1b[0m \x1b]0;title\x07",
    "\u202eevil\u202c \u2066x\u2069 \u200f",
    "]]></svg><svg xmlns='http://www.w3.org/2000/svg'><script>window.__acted=1</script></svg>",
)


@pytest.fixture(scope="module")
def page_html(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A run whose names, settings, log, error and files all hold such text, and a line of a megabyte."""
    folder = tmp_path_factory.mktemp("hostile")
    run = folder / "run <img src=x onerror=alert(1)>"
    run.mkdir()
    lines = [f"step {i}: loss {2 - 0.01 * i:.4f} lr 0.0001" for i in range(60)]
    lines += [f"step {60 + i}: loss nan lr 0.0001" for i in range(20)]
    lines += HOSTILE
    lines.append("RuntimeError: " + "<b>long</b> " * 90_000)
    lines += [f"Traceback (most recent call last):\nRuntimeError: CUDA error: {text}" for text in HOSTILE]
    (run / "train.log").write_text("\n".join(lines) + "\n")
    settings = "\n".join(f"key_{i}: {text!r}" for i, text in enumerate(HOSTILE))
    (run / "config.yaml").write_text(f"learning_rate: 0.1\n{settings}\n")
    columns = ",".join(f'"{text.replace(chr(34), chr(34) * 2)}"' for text in HOSTILE if "\x1b" not in text)
    rows = [",".join(str(2 - 0.01 * i) for _ in range(len(HOSTILE) - 1)) for i in range(30)]
    (run / "metrics.csv").write_text(
        f"step,loss,{columns}\n" + "".join(f"{i},1.0,{row}\n" for i, row in enumerate(rows))
    )
    (run / "<svg onload=alert(2)>.txt").write_text(HOSTILE[0])
    out = folder / "out.html"
    assert main(["analyze", str(run), "-o", str(out)]) in (0, 1)
    return out.read_text(encoding="utf-8")


def test_hostile_text_appears_as_text_and_does_nothing(open_page: Callable[..., Any], page_html: str) -> None:
    visit = open_page(page_html)
    page = visit.page
    page.on("dialog", lambda dialog: visit.errors.append(dialog.message))
    page.evaluate("for (const d of document.querySelectorAll('details')) d.open = true")
    for chart in page.locator("svg.chart").all()[:3]:
        chart.hover()
    assert page.evaluate("window.__acted") is None
    assert visit.errors == []
    assert len(visit.requests) == 1
    assert page.locator("img, iframe, link, a[href^='javascript']").count() == 0
    handlers = "[...document.querySelectorAll('*')].flatMap(e => e.getAttributeNames()).filter(n => n.startsWith('on'))"
    assert page.evaluate(handlers) == []
    text = page.locator("main").inner_text()
    assert "onerror=" in text
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "{{ 7*7 }}" in text


def test_a_line_of_a_megabyte_does_not_make_a_page_of_a_megabyte(page_html: str) -> None:
    assert len(page_html) < 400_000


def test_hostile_names_are_no_problem_on_a_narrow_screen(open_page: Callable[..., Any], page_html: str) -> None:
    page = open_page(page_html, viewport={"width": 400, "height": 800}).page
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
