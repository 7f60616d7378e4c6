"""The catalogue in the page: a cell per rule, the article's cases apart, what stands behind each cell."""

from __future__ import annotations

import re
from typing import Any

from gradforensics.diagnosis.causes import Diagnosis
from gradforensics.diagnosis.judge import Verdict
from gradforensics.report.build import build
from gradforensics.report.catalogue_pieces import ADVICE
from gradforensics.report.model import Report
from gradforensics.tables import Evidence
from tests.report.page import Page, page_of


def section(page: str) -> str:
    start = page.index("<h2>Catalogue</h2>")
    return page[start : page.index("</section>", start)]


def test_a_cell_says_its_outcome_in_a_word_and_a_shape_and_is_linked(report: Report) -> None:
    cells = re.findall(r'<li class="(cell [^"]+)"><a href="#([^"]+)">(.*?)</a></li>', section(page_of(report)))
    told = [(kind, target, re.sub("<[^>]+>", "", text)) for kind, target, text in cells]
    assert told == [
        ("cell alarm", "r1-GF05", "GF05 ▲ probable Title of GF05"),
        ("cell clear", "r1-GF06", "GF06 ● clear Title of GF06"),
        ("cell alarm", "r1-GF11", "GF11 ▲ proven Title of GF11"),
        ("cell weak", "r1-GF12", "GF12 △ suspect Title of GF12"),
        ("cell not_judged", "r1-GF20", "GF20 ○ not judged Title of GF20"),
        ("cell untested", "r1-GF27", "GF27 – no test Title of GF27"),
    ]


def test_rules_beyond_the_27_have_a_list_of_their_own(maker: Any) -> None:
    verdicts = tuple(Verdict(maker.rule(rule), "clear") for rule in ("GF27", "GF28", "OWN01"))
    told = section(page_of(build([Diagnosis(Evidence("run"), verdicts)], [])))
    cases, beyond = told.split("Beyond the 27")
    assert "The 27 cases" in cases
    assert [re.findall(r"<b>(\w+)</b>", part) for part in (cases, beyond)] == [["GF27"], ["GF28", "OWN01"]]
    alone = section(page_of(build([Diagnosis(Evidence("run"), verdicts[1:])], [])))
    assert "27 cases" not in alone


def test_the_legend_explains_the_shapes_that_are_there(report: Report, healthy: Diagnosis) -> None:
    assert "▲ fired, alarm △ fired, below alarm level ● clear ○ not judged" in Page(page_of(report)).text
    assert "fired, alarm" not in Page(page_of(build([healthy], []))).text


def test_what_to_log_next_time_comes_with_links_the_most_useful_line_first(maker: Any) -> None:
    missing = [("series:loss_scale",), ("series:grad_norm",), ("series:grad_norm",)]
    verdicts = tuple(Verdict(maker.rule(f"GF0{i}"), "not_judged", missing=m) for i, m in enumerate(missing, 1))
    told = section(page_of(build([Diagnosis(Evidence("run"), verdicts)], [])))
    first, second = re.findall("<li>(.*?)</li>", told[told.index('class="advice"') :])[:2]
    assert '<a href="#r1-GF02">GF02</a>, <a href="#r1-GF03">GF03</a>' in first
    assert "#r1-GF01" in second


def test_few_lines_of_advice_are_listed_and_every_rule_has_its_own(maker: Any) -> None:
    names = [f"settings:key_{i}" for i in range(ADVICE + 3)]
    verdicts = tuple(Verdict(maker.rule(f"GF{i + 1:02}"), "not_judged", missing=(n,)) for i, n in enumerate(names))
    told = section(page_of(build([Diagnosis(Evidence("run"), verdicts)], [])))
    assert len(re.findall("<li>", told)) == ADVICE
    assert all(f"the setting key_{i}" in told for i in range(len(names)))
    assert all(f"--set key_{i}=VALUE" in told for i in range(len(names)))


def test_clear_rules_name_the_tests_that_looked_and_the_look_alike_that_refuted(report: Report) -> None:
    told = section(page_of(report))
    row = re.findall(r'<tr id="r1-GF06">(.*?)</tr>', told)[0]
    assert '<th scope="row">GF06</th>' in row
    assert '<code translate="no">sign 0</code>' in row
    assert "refuted by GF05" in Page(row).text
