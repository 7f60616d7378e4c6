"""The report's data inside of its page: the same as the JSON report, harmless, and bounded."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from gradforensics.diagnosis.causes import Diagnosis
from gradforensics.report import as_json, data_block
from gradforensics.report.build import build
from gradforensics.report.html import render
from gradforensics.report.model import Report
from gradforensics.tables import Evidence, Notice, Source

BLOCK = re.compile(r'<script type="application/json" id="gradforensics-data">(.*?)</script>', re.DOTALL)


def embedded(page: str) -> Any:
    (block,) = BLOCK.findall(page)
    return json.loads(block)


def test_it_is_the_json_report(report: Report) -> None:
    assert embedded(render(report)) == as_json.data(report)


def test_no_text_can_end_it() -> None:
    hostile = "</script><script>alert(1)</script><!--<script>]]>&lt;&\u2028\u2029\u202e\udce9\x7f"
    report = build([Diagnosis(Evidence("run", notices=[Notice(hostile, 1, hostile)]), ())], [Source(hostile, 1)])
    page = render(report)
    (block,) = BLOCK.findall(page)
    assert not re.search("[<>&\u2028\u2029\u202e\x7f\ud800-\udfff]", block)
    assert embedded(page) == as_json.data(report)


def test_large_data_are_left_out_and_the_page_says_how_to_have_them(
    report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = len(BLOCK.findall(render(report))[0].encode())
    monkeypatch.setattr(data_block, "MOST", size)
    assert BLOCK.search(render(report))
    monkeypatch.setattr(data_block, "MOST", size - 1)
    page = render(report)
    assert not BLOCK.search(page)
    assert "<code>--output json=PATH</code>" in page


def test_data_that_are_too_large_for_certain_are_not_put_together(
    sick: Diagnosis, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = build([sick] * 200, [])
    monkeypatch.setattr(as_json, "data", lambda _: pytest.fail("it was put together"))
    assert data_block.data_block(report) is None
