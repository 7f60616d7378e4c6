"""Charts as they are drawn: every kind of series, both languages, and what the script reads back."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from typing import Any

import numpy as np
import pytest

from gradforensics.diagnosis.causes import Diagnosis
from gradforensics.report import svg
from gradforensics.report.axes import Axis
from gradforensics.report.charts import BAD_RUNS, Chart, zooms
from gradforensics.report.markup import PageWords
from gradforensics.report.timeline import timeline
from gradforensics.tables import Evidence
from tests.report.packed import points_of_path, unpack

SVG = "{http://www.w3.org/2000/svg}"


def draw(chart: Chart) -> ET.Element:
    return ET.fromstring(svg.draw(chart, PageWords("en"), "c1"))


def lines(root: ET.Element) -> list[ET.Element]:
    return root.findall(f".//{SVG}path[@data-s]")


@pytest.mark.parametrize(
    "values",
    [
        [],
        [2.5],
        [math.nan],
        [None, None],
        [math.nan, math.inf, -math.inf] * 30,
        [1.0, math.nan] * 50,
        [0.0] * 5,
        [-3.0, -3.0],
        [1e-300, 1e300],
        [0.0] + [10.0**k for k in range(-5, 8)],
        [1e308, -1e308],
        [5e-324, 1.0],
    ],
    ids=str,
)
def test_every_series_can_be_drawn(maker: Any, values: list[float | None]) -> None:
    evidence = Evidence("run")
    maker.series(evidence, "loss", values)
    for chart in timeline(evidence, [], None):
        root = draw(chart)
        assert "nan" not in ET.tostring(root, encoding="unicode").replace("NaN", "").lower().replace("nan ×", "")
        assert root.tag == f"{SVG}svg"


def test_nonfinite_stretches_are_bounded(maker: Any) -> None:
    evidence = Evidence("run")
    maker.series(evidence, "loss", [1.0, math.nan] * 20_000)
    (chart,) = timeline(evidence, [], None)
    assert len(chart.panels[0].bad) == BAD_RUNS
    assert sum(b.count for b in chart.panels[0].bad) == 20_000
    assert len(svg.draw(chart, PageWords("en"), "c")) < 60_000


def test_marks_and_bands_outside_the_chart_are_not_drawn(sick: Diagnosis) -> None:
    (chart, *_) = zooms(sick.evidence, sick.verdicts[0])
    rings = draw(chart).findall(f".//{SVG}circle")
    assert len(rings) == 2


def test_words_of_a_chart_stand_in_it_in_both_languages(sick: Diagnosis) -> None:
    (chart,) = timeline(sick.evidence, [], None)
    root = draw(chart)
    told = {(e.get("lang"), e.text, e.get("display")) for e in root.iter(f"{SVG}tspan")}
    for english, chinese in (
        ("step", "步"),
        ("log scale", "对数坐标"),
        ("attempt 2", "第 2 次启动"),
        ("evaluations", "评估"),
    ):
        assert ("en", english, None) in told
        assert ("zh", chinese, "none") in told
    rest = " ".join(e.text or "" for e in root.iter(f"{SVG}text") if not len(e))
    assert set(re.findall(r"[A-Za-z_/]{3,}", rest)) == {"loss", "eval/loss", "grad_norm", "NaN"}


def test_the_script_reads_back_the_steps_values_and_gaps_of_every_line(sick: Diagnosis) -> None:
    for chart in timeline(sick.evidence, list(sick.verdicts), sick.primary):
        drawn = {e.attrib["data-n"]: e for e in lines(draw(chart))}
        assert set(drawn) == set(chart.names)
        for line in (line for panel in chart.panels for line in panel.lines):
            steps, cuts = unpack(drawn[line.name].attrib["data-s"])
            assert steps == line.steps.tolist()
            assert cuts[1:] == (np.diff(line.segment) != 0).tolist()
            assert [float(v) for v in drawn[line.name].attrib["data-v"].split(" ")] == line.values.tolist()


def test_the_path_of_a_line_goes_through_its_points(maker: Any) -> None:
    evidence = Evidence("run")
    maker.series(evidence, "loss", [*np.random.default_rng(1).standard_normal(700), math.nan, *[2.0] * 300])
    (chart,) = timeline(evidence, [], None)
    (line,) = chart.panels[0].lines
    (drawn,) = lines(draw(chart))
    (top, height), axis = (24, 190), Axis(chart.panels[0])
    x = svg.LEFT + (svg.WIDTH - svg.LEFT - svg.RIGHT) * (line.steps - line.steps[0]) / (line.steps[-1] - line.steps[0])
    y = top + height - height * axis.at(line.values)
    found, starts = points_of_path(drawn.attrib["d"])
    assert np.abs(found - np.stack([x, y], axis=1)).max() <= 0.051
    assert np.flatnonzero(starts).tolist() == [0, *np.flatnonzero(np.diff(line.segment)) + 1]


def test_few_points_are_dots_and_many_are_not(maker: Any) -> None:
    for count, dots in ((5, 5), (5000, 0)):
        evidence = Evidence("run")
        maker.series(evidence, "loss", [float(i) for i in range(count)])
        (chart,) = timeline(evidence, [], None)
        (drawn,) = (e for e in draw(chart).iter(f"{SVG}path") if "dots" in e.attrib["class"])
        assert drawn.attrib["d"].count("M") == dots


def test_lines_of_one_panel_differ_in_their_dashes(sick: Diagnosis) -> None:
    (chart,) = timeline(sick.evidence, list(sick.verdicts), sick.primary)
    dashes = {e.attrib["data-n"]: e.get("stroke-dasharray") for e in lines(draw(chart))}
    assert dashes["loss"] is None
    assert dashes["eval/loss"] not in (None, svg.REDONE)


def test_marks_carry_the_steps_at_which_the_script_moves_them(sick: Diagnosis) -> None:
    (chart,) = timeline(sick.evidence, list(sick.verdicts), sick.primary)
    root = draw(chart)
    for kind, steps in (("attempt", [100]), ("other", [200]), ("evaluation", [50, 100, 150])):
        marks = [e for e in root.iter(f"{SVG}path") if e.get("class") == kind]
        assert marks
        assert all(unpack(m.attrib["data-m"])[0] == steps for m in marks)
    bands = [e for e in root.iter(f"{SVG}rect") if e.get("class") == "band"]
    assert [unpack(b.attrib["data-b"])[0] for b in bands] == [[115, 120]] * 3
    (chart_of_hits, *_) = zooms(sick.evidence, sick.verdicts[0])
    (bad,) = (e for e in root.iter(f"{SVG}path") if e.get("class") == "bad")
    assert (unpack(bad.attrib["data-b"])[0], bad.attrib["data-k"], bad.attrib["data-n"]) == ([200, 300], "NaN", "loss")
    rings = [(r.attrib["data-m"], r.attrib["data-v"]) for r in draw(chart_of_hits).iter(f"{SVG}circle")]
    assert rings == [("120", "1.65"), ("125", "1.9")]


def test_a_chart_of_very_many_points_stays_small(maker: Any) -> None:
    evidence = Evidence("run")
    for name in ("loss", "grad_norm", "lr", "loss_scale", "memory_allocated"):
        maker.series(evidence, name, np.random.default_rng(len(name)).standard_normal(50_000).tolist())
    (chart,) = timeline(evidence, [], None)
    assert len(svg.draw(chart, PageWords("en"), "c")) < 100_000
