"""Charts with their captions, keys and tables."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradforensics.diagnosis.causes import Diagnosis
from gradforensics.evidence.gather import gather
from gradforensics.languages import LANGUAGES, Language
from gradforensics.report.charts import Chart, zooms
from gradforensics.report.figures import Figures
from gradforensics.report.markup import PageWords
from gradforensics.report.timeline import timeline
from gradforensics.tables import Evidence
from tests.report.page import Page

SAMPLES = Path(__file__).parents[2] / "sample_runs"


def figure(chart: Chart) -> str:
    return str(Figures(PageWords("en")).figure(chart, "c7"))


def key_of(html: str) -> str:
    found: list[str] = re.findall(r'<ul class="key">.*?</ul>', html)
    return found[0]


@pytest.mark.parametrize(
    ("language", "caption", "key"),
    [
        (
            "en",
            "Whole run (step 5 to 300)",
            (
                "onset of GF05: after 115, by 120 onsets of other alarms NaN or infinite values a new attempt begins "
                "evaluations: 3"
            ),
        ),
        (
            "zh",
            "整个运行（步 5 至 300）",
            "GF05 的起始：115 之后，不晚于 120 其他警报的起始 NaN 或无穷值 新的一次启动 评估：3 次",
        ),
    ],
)
def test_a_chart_says_what_it_shows_and_what_its_marks_mean(
    sick: Diagnosis, language: Language, caption: str, key: str
) -> None:
    fired = [v for v in sick.verdicts if v.outcome == "fired"]
    html = figure(timeline(sick.evidence, fired, sick.primary)[0])
    assert Page(html, language).text.startswith(caption)
    assert Page(key_of(html), language).text == key


def test_only_marks_that_the_chart_has_are_explained(healthy: Diagnosis) -> None:
    html = figure(timeline(healthy.evidence, [], None)[0])
    assert "key" not in re.findall(r'class="(\w+)"', html)


def test_the_drawing_is_named_by_its_caption(sick: Diagnosis) -> None:
    tags = Page(figure(timeline(sick.evidence, [], None)[0])).tags
    (drawing,) = (attributes for tag, attributes in tags if tag == "svg" and attributes.get("role") == "img")
    (caption,) = (attributes for tag, attributes in tags if tag == "figcaption")
    assert drawing["aria-labelledby"] == caption["id"] == "c7-t"


def test_a_chart_of_a_finding_names_its_series(sick: Diagnosis) -> None:
    (chart, *_) = zooms(sick.evidence, sick.verdicts[0])
    assert Page(figure(chart)).text.startswith("loss : Around the onset (step 5 to ")
    assert "values that the finding names" in figure(chart)


def test_the_table_tells_what_the_lines_show(maker: Any) -> None:
    evidence = Evidence("run")
    maker.series(evidence, "loss", [3.5, math.nan, 1.25, 9.0, 2.0], steps=[10, 20, 30, 40, 50])
    html = figure(timeline(evidence, [], None)[0])
    (row,) = re.findall(r"<tbody>(.*)</tbody>", html)
    assert Page(row).text.split() == ["loss", "4", "1", "3.5", "@10", "2", "@50", "1.25", "@30", "9", "@40"]
    assert '<th scope="row">' in row


def test_the_value_at_the_onset_is_told(sick: Diagnosis) -> None:
    fired = [v for v in sick.verdicts if v.outcome == "fired"]
    html = figure(timeline(sick.evidence, fired, sick.primary)[0])
    rows = [Page(row).text.split()[-2:] for row in re.findall(r"<tr><th.*?</tr>", html)[1:]]
    assert rows == [["1.65", "@120"], ["2.6", "@150"], ["5000", "@120"], ["0.0001", "@120"]]


def test_a_chart_that_does_not_draw_every_point_says_so(maker: Any) -> None:
    evidence = Evidence("run")
    maker.series(evidence, "loss", np.random.default_rng(0).standard_normal(5000).tolist())
    (chart,) = timeline(evidence, [], None)
    shown = len(chart.panels[0].lines[0].steps)
    assert f"{shown} of 5,000 points are drawn" in Page(figure(chart)).text
    evidence = Evidence("run")
    maker.series(evidence, "loss", [1.0, 2.0])
    assert "points are drawn" not in figure(timeline(evidence, [], None)[0])


def test_a_series_without_a_finite_point_is_a_figure_too(maker: Any) -> None:
    evidence = Evidence("run")
    maker.series(evidence, "loss", [math.nan, math.nan])
    text = Page(figure(timeline(evidence, [], None)[0])).text
    assert text.startswith("No finite point")
    assert "2 × NaN" in text


def test_names_of_series_are_text(maker: Any) -> None:
    evidence = Evidence("run")
    maker.series(evidence, "<script>alert(1)</script>&\u202e", [1.0, 2.0])
    html = figure(timeline(evidence, [], None)[0])
    assert "<script" not in html
    assert "\u202e" not in html
    assert "&lt;script&gt;alert(1)&lt;/script&gt;&amp;\\u202e" in html


@pytest.mark.parametrize("sample", ["gf12-counted-collapse", "gf12-scaler-reset", "gf27-reserved-growth"])
def test_figures_of_real_runs_are_well_formed_and_bilingual(sample: str) -> None:
    (evidence,) = gather([SAMPLES / sample / "run"])
    for chart in timeline(evidence, [], None):
        html = figure(chart)
        texts = {language: Page(html, language).text for language in LANGUAGES}
        assert texts["en"] != texts["zh"]
        assert not re.search("[\u4e00-\u9fff]", texts["en"])
