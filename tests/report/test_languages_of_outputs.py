"""The outputs for other tools are in the language of the report: Markdown, SARIF, JUnit, JSON, comparisons."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from gradforensics.evidence.gather import gather
from gradforensics.report import as_json, as_junit, as_markdown, as_sarif
from gradforensics.report.comparison import FORMATS
from gradforensics.report.comparison.model import Comparison, build
from gradforensics.report.markdown import prose
from gradforensics.report.model import Report
from tests.report.languages import CHINESE, SAMPLES, SHOWN, english, named, report_of, untranslated

PAIRS = {  # the runs of a comparison
    "a rate": ("gf05-above-sibling", "gf05-twin-sibling"),
    "notices": ("gf01-left-out", "gf30-damaged-file"),
    "ranks": ("gf22-parted", "healthy-sgd"),
}
CODE = re.compile(r"(`{3,})\w*\n.*?\n\1|(`+)[^`].*?\2", re.DOTALL)


def in_english(report: Report) -> Report:
    return replace(report, language="en")


def prosaic(report: Report) -> list[str]:
    """What is named, also as Markdown writes it."""
    return sorted({form for one in named(report) for form in (one, prose(one))}, key=len, reverse=True)


# -- Markdown, SARIF, JUnit --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHOWN)
def test_markdown_holds_no_english_phrase(name: str) -> None:
    text = as_markdown.render(report_of(name))
    assert CHINESE.search(text)
    assert english(CODE.sub("", text), prosaic(report_of(name))) == []


def messages(part: Any) -> Iterator[str]:
    """The texts of a SARIF log that a reader sees; snippets are evidence."""
    if isinstance(part, list):
        for one in part:
            yield from messages(one)
    for key, value in part.items() if isinstance(part, dict) else ():
        if key in ("text", "markdown") and isinstance(value, str):
            yield value
        elif key == "notJudged":
            yield from (need for run in value.values() for needs in run.values() for need in needs)
        elif key != "snippet":
            yield from messages(value)


@pytest.mark.parametrize("name", SHOWN)
def test_sarif_speaks_the_language_of_the_report(name: str) -> None:
    report = report_of(name)
    log = json.loads(as_sarif.render(report))
    assert log["runs"][0]["tool"]["driver"]["language"] == "zh-CN"
    texts = list(messages(log))
    assert len(texts) > 100
    assert english("\n".join(texts), prosaic(report)) == []
    other = json.loads(as_sarif.render(in_english(report)))
    assert other["runs"][0]["tool"]["driver"]["language"] == "en"
    assert [text for text in messages(other) if CHINESE.search(text)] == []


@pytest.mark.parametrize("name", SHOWN)
def test_junit_speaks_the_language_of_the_report(name: str) -> None:
    def texts(report: Report) -> list[str]:
        root = ET.fromstring(as_junit.render(report))
        cases = [case.get("name", "") for case in root.iter("testcase")]
        return cases + [t for e in root.iter() for t in (e.get("message", ""), e.text or "") if t.strip()]

    report = report_of(name)
    assert all(CHINESE.search(text) for text in texts(report))
    assert english("\n".join(texts(report)), named(report)) == []
    assert [text for text in texts(in_english(report)) if CHINESE.search(text)] == []


# -- JSON --------------------------------------------------------------------------------------------------------------


def test_messages_of_the_json_report_are_in_its_language() -> None:
    report = report_of("ranks")
    chinese, told = (json.loads(as_json.text_of(as_json.data(r))) for r in (report, in_english(report)))
    for data, expected in ((chinese, True), (told, False)):
        (run,) = data["runs"]
        texts = [notice["text"] for notice in run["notices"]] + [s["remark"] for s in data["sources"] if s["remark"]]
        assert texts
        assert all(bool(CHINESE.search(text)) is expected for text in texts)
    keys = [[key for key in v["missing"] if ":" in key and " " not in key] for v in told["runs"][0]["verdicts"]]
    kept = [[key for key in v["missing"] if ":" in key and " " not in key] for v in chinese["runs"][0]["verdicts"]]
    assert all(set(k) <= set(o) for k, o in zip(keys, kept, strict=True))


# -- comparisons -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=PAIRS)
def compared(request: pytest.FixtureRequest) -> Comparison:
    (here,), (there,) = (gather([SAMPLES / name / "run"]) for name in PAIRS[request.param])
    return build(here, there, language="zh")


def test_the_page_of_a_comparison_stands_in_both_languages(compared: Comparison) -> None:
    assert untranslated(FORMATS["html"](compared)) == []


def test_markdown_of_a_comparison_holds_no_english_phrase(compared: Comparison) -> None:
    text = FORMATS["md"](compared)
    assert CHINESE.search(text)
    assert english(CODE.sub("", text)) == []
    assert not CHINESE.search(FORMATS["md"](replace(compared, language="en")))


def test_json_of_a_comparison_speaks_its_language(compared: Comparison) -> None:
    def texts(found: Comparison) -> list[str]:
        data = json.loads(FORMATS["json"](found))
        sides = [data["a"], data["b"]]
        return [
            *data["text"],
            *(notice["text"] for side in sides for notice in side["notices"]),
            *(source["remark"] for side in sides for source in side["sources"] if source["remark"]),
        ]

    assert all(CHINESE.search(text) for text in texts(compared))
    assert not any(CHINESE.search(text) for text in texts(replace(compared, language="en")))
