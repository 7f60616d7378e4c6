"""The overview of many runs: their order, who has an article of its own, and what stands for the others."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gradforensics.diagnosis.causes import Diagnosis
from gradforensics.diagnosis.vocabulary import Hit
from gradforensics.languages import Text
from gradforensics.report import as_json, overview_pieces
from gradforensics.report.build import build
from gradforensics.report.charts import Line
from gradforensics.report.html import render
from gradforensics.report.model import Report
from gradforensics.report.overview import WHOLE, by_weight, sparkline
from gradforensics.report.overview_pieces import spark
from gradforensics.report.provenance import Provenance
from gradforensics.tables import Evidence
from tests.report.page import Page, page_of

MADE = Provenance("2026-01-02T03:04:05Z", "gradforensics analyze runs", "0", "3.11", "Linux", "gradforensics analyze")


def many(one: Diagnosis, n: int) -> list[Diagnosis]:
    """Copies of a diagnosis under other names."""
    return [replace(one, evidence=replace(one.evidence, name=f"run-{i}", path=f"runs/run {i}")) for i in range(n)]


def overview(report: Report) -> str:
    page = page_of(report)
    return page[page.index('class="overview"') : page.index("</section>")]


def test_runs_with_the_gravest_alarms_come_first_and_keep_their_anchors(
    maker: Any, sick: Diagnosis, healthy: Diagnosis
) -> None:
    weak = maker.fired(maker.rule("GF12"), [Hit(None)], severity="S3", strength="suspect")
    proven = replace(sick.verdicts[2], severity="S1", strength="proven")
    blind = Diagnosis(Evidence("blind"), ())
    runs = [
        blind, healthy, Diagnosis(Evidence("weak"), (weak,)), sick,
        Diagnosis(Evidence("proven"), (proven,), proven),
    ]  # fmt: skip
    assert [d.evidence.name for d in by_weight(runs)] == ["proven", "runs/exp-7", "weak", "healthy", "blind"]
    page = Page(render(build(runs, [])))
    assert [a["id"] for t, a in page.tags if t == "article"] == ["r5", "r4", "r3", "r2", "r1"]
    assert (
        "5 runs ▲ 2 with an alarm, △ 1 with findings below alarm level, ● 1 without an alarm, ○ 1 without a verdict"
        in page.text
    )


def test_a_row_tells_verdict_onset_ending_steps_and_draws_the_loss(sick: Diagnosis, healthy: Diagnosis) -> None:
    told = overview(build([sick, healthy], []))
    first, second = re.findall(r'<tr>(<th scope="row".*?)</tr>', told)[:2]
    assert Page(first).text == "runs/exp-7 ▲ GF05 Title of GF05 probable 115–120 stopped by an exception 5–300"
    assert Page(second).text == "healthy ● no alarm reached its planned end 1–60"
    assert 'href="#r1"' in first
    assert '<svg class="spark"' in first


def test_cases_are_counted_over_all_runs(sick: Diagnosis, healthy: Diagnosis) -> None:
    told = overview(build([sick, sick, healthy], []))
    cases = Page(told[told.index("<details") : told.index("</details>") + 10]).text
    assert "3 cases fired" in cases
    assert "GF05 Title of GF05 2 GF11 Title of GF11 2 GF12 Title of GF12 2" in cases


def test_of_many_runs_the_gravest_are_whole_and_the_others_in_short(sick: Diagnosis, healthy: Diagnosis) -> None:
    report = build([*many(healthy, WHOLE), *many(sick, 2)], [], made=MADE)
    assert [run.whole for run in report.runs] == [True] * (WHOLE - 2) + [False] * 2 + [True] * 2
    short = report.runs[WHOLE - 1]
    assert short.timeline == ()
    page = page_of(report)
    assert len(re.findall('<article id="', page)) == WHOLE
    assert len(re.findall('<article class="card" id="', page)) == 2
    assert "2 runs are told in short on this page." in page
    name = f"run-{WHOLE - 1}"
    path = f"runs/run {WHOLE - 1}"
    assert f"<code>gradforensics analyze &#39;{path}&#39; -o gradforensics-{name}.html</code>" in page
    assert "1 rule judged clear on this evidence, 1 not judged" in page[page.index('class="cards"') :]
    assert Page(page).text.count("Runs in short") == 1


def test_a_few_runs_are_all_whole(sick: Diagnosis) -> None:
    report = build(many(sick, WHOLE), [], made=MADE)
    assert all(run.whole and run.timeline for run in report.runs)
    assert "told in short" not in page_of(report)


def test_findings_of_a_run_in_short_are_whole_in_the_json(sick: Diagnosis) -> None:
    runs = as_json.data(build(many(sick, WHOLE + 1), []))["runs"]
    assert {**runs[0], "name": "", "path": ""} == {**runs[-1], "name": "", "path": ""}


def test_the_command_for_one_run_names_the_sibling_that_it_was_judged_beside(
    sick: Diagnosis, healthy: Diagnosis
) -> None:
    beside = replace(healthy.evidence, path="runs/good")
    compared = [
        replace(d, evidence=replace(d.evidence, baseline=beside, baseline_is_sibling=True))
        for d in many(sick, WHOLE + 1)
    ]
    page = page_of(build(compared, [], made=MADE))
    assert f"analyze &#39;runs/run {WHOLE}&#39; --baseline runs/good -o gradforensics-run-{WHOLE}.html" in page


@pytest.mark.parametrize("made", [None, replace(MADE, again="")], ids=["unknown", "without options"])
def test_no_command_is_offered_where_it_is_not_known(sick: Diagnosis, made: Provenance | None) -> None:
    assert "-o gradforensics-" not in page_of(build(many(sick, WHOLE + 1), [], made=made))


def test_two_thousand_runs_make_a_page_of_bounded_size(healthy: Diagnosis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview_pieces, "RUNS", 150)
    monkeypatch.setattr(overview_pieces, "CARDS", 10)
    page = render(build(many(healthy, 200), [], made=MADE))
    assert len(re.findall("<article", page)) == WHOLE + 10
    assert "50 more are in the JSON report." in page
    linked = set(re.findall('href="#(r[0-9]+)"', page))
    assert len(linked) == WHOLE + 10
    assert linked <= set(re.findall(' id="(r[0-9]+)"', page))


def test_sparkline_breaks_where_points_are_not_finite(maker: Any) -> None:
    evidence = Evidence("run")
    maker.series(evidence, "loss", [4.0, 3.0, math.nan, 2.0, 1.0])
    assert str(spark(sparkline(evidence))).count("M") == 2


def test_a_sparkline_has_few_points_and_keeps_the_extremes(maker: Any) -> None:
    evidence = Evidence("run")
    values = np.ones(5000)
    values[1234] = 9.0
    maker.series(evidence, "loss", values.tolist())
    line = sparkline(evidence)
    assert line is not None
    assert len(line.values) < 50
    assert line.values.max() == 9.0


@pytest.mark.parametrize("values", [[], [1.0], [math.nan] * 9, [None]], ids=["none", "one", "nan", "missing"])
def test_little_to_draw(maker: Any, values: list[float | None]) -> None:
    evidence = Evidence("run")
    maker.series(evidence, "loss", values)
    assert spark(sparkline(evidence)) == ""


def test_a_flat_loss_is_a_level_line() -> None:
    line = Line("loss", np.array([1, 2, 3]), np.array([2.0, 2.0, 2.0]), np.zeros(3, dtype=int))
    assert 'd="M1 20L48 20L95 20"' in str(spark(line))


def test_titles_of_cases_are_in_both_languages(sick: Diagnosis, healthy: Diagnosis) -> None:
    page = Page(render(build([sick, healthy], [], language="zh")), "zh")
    assert "1 个有警报" in page.text
    assert Text("Title of GF05", "GF05 的标题").zh in page.text
