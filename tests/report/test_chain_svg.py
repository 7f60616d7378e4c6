"""The drawn chain: where boxes stand, which arrows lead where, what stands apart."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree as ET

from gradforensics.diagnosis.causes import Diagnosis
from gradforensics.diagnosis.vocabulary import Hit
from gradforensics.report.build import build
from gradforensics.report.chain_svg import ChainDrawing, layout, wrapped
from gradforensics.report.html import render
from gradforensics.report.markup import PageWords
from gradforensics.report.words import columns
from gradforensics.tables import Evidence
from tests.report.page import Page, shown

SVG = "{http://www.w3.org/2000/svg}"


def alarms(maker: Any, rules: list[str], edges: list[tuple[str, str]], name: str = "run") -> Diagnosis:
    evidence = Evidence(name)
    fired = tuple(
        maker.fired(maker.rule(rule, slug=f"slug-{rule}"), [Hit(10 * (i + 1), None, "loss")])
        for i, rule in enumerate(rules)
    )
    return Diagnosis(evidence, fired, fired[0] if fired else None, tuple(edges))


def drawn(diagnosis: Diagnosis, language: str = "en") -> ET.Element:
    (run,) = build([diagnosis], []).runs
    svg = ChainDrawing(PageWords("en"), run, "r1").svg()
    return ET.fromstring(shown(svg, language))  # our own markup


def boxes(svg: ET.Element) -> dict[str, tuple[float, float]]:
    found = {}
    for link in svg.iter(f"{SVG}a"):
        frame = link.find(f"{SVG}rect")
        assert frame is not None
        found[link.attrib["href"]] = (float(frame.attrib["x"]), float(frame.attrib["y"]))
    return found


def test_causes_stand_left_of_their_effects_and_every_edge_has_an_arrow(maker: Any) -> None:
    svg = drawn(alarms(maker, ["A", "B", "C", "D"], [("A", "B"), ("A", "C"), ("B", "D"), ("C", "D")]))
    spots = boxes(svg)
    assert spots["#r1-A"][0] < spots["#r1-B"][0] == spots["#r1-C"][0] < spots["#r1-D"][0]
    assert spots["#r1-B"][1] != spots["#r1-C"][1]
    assert len([p for p in svg.iter(f"{SVG}path") if p.attrib["class"] == "way"]) == 4
    assert len([p for p in svg.iter(f"{SVG}path") if p.attrib["class"] == "head"]) == 4


def test_an_edge_that_a_longer_way_replaces_is_not_drawn(maker: Any) -> None:
    found = layout(["A", "B", "C"], [("A", "B"), ("B", "C"), ("A", "C")])
    assert found.drawn == (("A", "B"), ("B", "C"))
    assert [found.places[rule][0] for rule in "ABC"] == [0, 1, 2]


def test_a_root_stands_right_before_its_nearest_effect(maker: Any) -> None:
    found = layout(["A", "B", "C", "E"], [("A", "B"), ("B", "C"), ("E", "C")])
    assert {rule: place[0] for rule, place in found.places.items()} == {"A": 0, "B": 1, "C": 2, "E": 1}
    assert found.places["B"] != found.places["E"]


def test_boxes_never_stand_on_each_other(maker: Any) -> None:
    rules = [f"GF{i:02}" for i in range(12)]
    edges = [(rules[i], rules[j]) for i in range(10) for j in (i + 1, i + 3) if j < 10]
    spots = list(boxes(drawn(alarms(maker, rules, edges))).values())
    assert len(spots) == 12
    near = [(a, b) for a in spots for b in spots if a < b and abs(a[0] - b[0]) < 216 and abs(a[1] - b[1]) < 92]
    assert near == []


def test_a_circle_is_drawn_and_does_no_harm() -> None:
    found = layout(["A", "B", "C"], [("A", "B"), ("B", "C"), ("C", "A"), ("B", "B")])
    assert {rule: place[0] for rule, place in found.places.items()} == {"A": 0, "B": 1, "C": 2}
    assert set(found.drawn) == {("A", "B"), ("B", "C"), ("C", "A")}


def test_alarms_that_no_rule_links_stand_apart_and_are_called_so(maker: Any) -> None:
    svg = drawn(alarms(maker, ["A", "B", "X", "Y"], [("A", "B")]))
    spots = boxes(svg)
    assert min(spots["#r1-X"][1], spots["#r1-Y"][1]) > max(spots["#r1-A"][1], spots["#r1-B"][1]) + 92
    assert "No rule links these to the others." in "".join(svg.itertext())
    page = Page(render(build([alarms(maker, ["A", "B"], [])], [])))
    assert "No rule links these alarms: they stand side by side." in page.text


def test_a_box_tells_rule_title_and_onset_in_the_language_that_is_seen(sick: Diagnosis) -> None:
    english, chinese = ("".join(drawn(sick, language).itertext()) for language in ("en", "zh"))
    assert "GF05 lr-too-high" in english
    assert "Title of GF05" in english
    assert "step 120 · primary case" in english
    assert "GF05 的标题" in chinese
    assert "第 120 步 · 主因" in chinese
    assert "Title of" not in chinese


def test_the_other_language_is_not_drawn_without_a_style_sheet(sick: Diagnosis) -> None:
    (run,) = build([sick], []).runs
    svg = ET.fromstring(ChainDrawing(PageWords("zh"), run, "r1").svg())  # our own markup
    other = [t for t in svg.iter(f"{SVG}tspan") if t.attrib.get("lang") == "en"]
    assert other
    assert all(t.attrib.get("display") == "none" for t in other)
    assert not [e for e in svg.iter() if e.tag == f"{SVG}span" or "hidden" in e.attrib]


def test_colours_are_attributes_and_the_drawing_fits_its_box(sick: Diagnosis) -> None:
    svg = drawn(sick)
    assert all(e.attrib.get("fill") for e in svg.iter() if e.tag in (f"{SVG}rect", f"{SVG}path", f"{SVG}text"))
    width, height = float(svg.attrib["width"]), float(svg.attrib["height"])
    assert all(x + 216 <= width and y + 92 <= height for x, y in boxes(svg).values())


def test_the_list_beside_it_says_every_edge_with_links_a_keyboard_reaches(sick: Diagnosis) -> None:
    text = render(build([replace(sick, chain=(("GF05", "GF11"),))], []))
    page = Page(text)
    assert "GF05 lr-too-high (step 120) leads to GF11 nonfinite-origin (step 200)" in page.text
    inside = re.findall(r'<svg class="chain-drawing".*?</svg>', text, re.DOTALL)
    assert len(inside) == 1
    assert 'aria-hidden="true"' in inside[0]
    assert inside[0].count("<a ") == inside[0].count('tabindex="-1"') == 2


def test_titles_are_broken_between_words_and_cjk_texts_anywhere() -> None:
    assert wrapped("The learning rate is too high", 16, 2) == ["The learning", "rate is too high"]
    long = wrapped("A title that is much longer than the two lines of its box can ever hold", 16, 2)
    assert len(long) == 2
    assert long[1].endswith("…")
    chinese = wrapped("实际学习率与预期调度不一致而且持续很久", 16, 2)
    assert len(chinese) == 2
    assert all(columns(line) <= 18 for line in chinese)
    assert wrapped("", 10, 2) == []


def test_a_hostile_title_is_text(maker: Any) -> None:
    diagnosis = alarms(maker, ["A", "B"], [("A", "B")])
    texts = {k: replace(t, title="<script>x</script>") for k, t in diagnosis.verdicts[0].rule.texts.items()}
    hostile = replace(diagnosis.verdicts[0], rule=replace(diagnosis.verdicts[0].rule, texts=texts))
    svg = drawn(replace(diagnosis, verdicts=(hostile, diagnosis.verdicts[1]), primary=hostile))
    assert "<script>x</script>" in "".join(svg.itertext())
