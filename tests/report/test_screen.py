"""The first screen: what happened, from which step, how sure, what now; and the frame around it."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from gradforensics.diagnosis import rules
from gradforensics.diagnosis.causes import Diagnosis
from gradforensics.diagnosis.judge import Holding, Verdict
from gradforensics.diagnosis.vocabulary import Hit
from gradforensics.languages import Text
from gradforensics.report.build import build, places
from gradforensics.report.html import render
from gradforensics.report.model import Report
from gradforensics.tables import Ending, Evidence
from tests.report.conftest import a_check
from tests.report.page import Page, page_of


def first_screen(report: Report, language: str = "en") -> str:
    """The visible text of the first screen."""
    (section,) = re.findall(r'<section class="hero.*?</section>', render(report), re.DOTALL)
    return Page(section, language).text


def class_of(report: Report) -> str:
    (found,) = re.findall(r'<section class="hero (\w+)">', render(report))
    return str(found)


def suspected(healthy: Diagnosis, maker: Any, **changes: Any) -> Diagnosis:
    rule = maker.rule("GF12", slug="fp16-range")
    fired = maker.fired(rule, [Hit(40, 30, "loss", "loss", 0.4)], strength="suspect", **changes)
    return replace(healthy, verdicts=(healthy.verdicts[0], fired))


def test_it_answers_the_four_questions(report: Report) -> None:
    text = first_screen(report)
    for told in (
        "Probable: Title of GF05.",
        "S1 run invalid or dead",
        "Onset between step 115 (last good) and step 120",
        "How sure, and why probable",
        "Do next Fix of GF05",
        "none: no saved weights in the evidence",
        "steps 5 to 300, 2 attempts",
    ):
        assert told in text


def test_it_speaks_chinese(report: Report) -> None:
    text = first_screen(report, "zh")
    for told in (
        "很可能：GF05 的标题。",
        "把握与理由",
        "下一步 GF05 的修复",
        "自第 120 步起",
        "起始处的批次重复出现。",
    ):
        assert told in text
    assert "Do next" not in text


def test_a_suspicion_is_not_hidden_behind_no_alarm(healthy: Diagnosis, maker: Any) -> None:
    report = build([suspected(healthy, maker, missing=("series:loss_scale",))], [])
    text = first_screen(report)
    assert "No alarm; one suspicion: Title of GF12." in text
    assert "if so: S1 run invalid or dead suspect" in text
    assert "What would settle it: Log scaler.get_scale() beside every loss." in text
    assert "1 rule clear, 0 not judged" in text
    assert class_of(report) == "warm"


def test_a_suspicion_that_lacks_nothing_is_settled_by_its_check(healthy: Diagnosis, maker: Any) -> None:
    text = first_screen(build([suspected(healthy, maker)], []))
    assert "What would settle it: gradforensics analyze run --set onset=40" in text


def test_several_suspicions_are_counted(healthy: Diagnosis, maker: Any) -> None:
    one = suspected(healthy, maker)
    other = replace(one.verdicts[1], rule=maker.rule("GF09"), severity="S2")
    report = build([replace(one, verdicts=(*one.verdicts, other))], [])
    assert "No alarm; 2 suspicions, the gravest: Title of GF12." in first_screen(report)


def test_a_note_is_called_a_note(healthy: Diagnosis, maker: Any) -> None:
    report = build([suspected(healthy, maker, severity="S4")], [])
    assert "No alarm; noted: Title of GF12." in first_screen(report)


def test_a_run_that_broke_off_is_not_shown_as_healthy(healthy: Diagnosis) -> None:
    healthy.evidence.ending = Ending("exception", "ValueError: sample 4711 holds no tokens", "train.log", 9)
    report = build([healthy], [])
    text = first_screen(report)
    assert "No alarm, but an exception stopped the run." in text
    assert "ValueError: sample 4711 holds no tokens train.log:9" in text
    assert class_of(report) == "warm"


def test_a_healthy_run_says_what_was_looked_for_and_what_clear_means(healthy: Diagnosis) -> None:
    report = build([healthy], [])
    text = first_screen(report)
    assert "Looked for and not found GF05 Title of GF05" in text
    assert "What was not logged or saved may still be wrong." in text
    assert "To judge more Log scaler.get_scale() beside every loss. Would help to judge GF12" in text
    assert class_of(report) == "calm"
    assert class_of(build([Diagnosis(Evidence("run"), ())], [])) == "blind"


def test_nothing_to_verify_leaves_no_empty_heading(sick: Diagnosis) -> None:
    bare = replace(sick.verdicts[0], rule=replace(sick.verdicts[0].rule, verify=Text("")))
    text = Page(render(build([replace(sick, verdicts=(bare,), primary=bare, chain=())], []))).text
    assert "Then verify" not in text
    assert "How to verify" not in text


def test_at_most_three_signs_the_strongest_first_and_a_link_to_the_rest(maker: Any) -> None:
    signs = tuple(
        rules.Sign(f"sign_{i}", rules.Test(a_check, {}), "proven" if i == 4 else "probable") for i in range(5)
    )  # fmt: skip
    rule = maker.rule("GF05", signs=5)
    holdings = tuple(Holding(sign, (Hit(10 + i, None, "loss", "loss", 2.5, "a.log", i + 1),)) for i, sign in
                     sorted(enumerate(signs), key=lambda one: one[1].strength != "proven"))  # fmt: skip
    verdict = maker.fired(rule, [], holdings=holdings, judged_signs=("sign_0", "other_sign"), onset=10)
    text = first_screen(build([Diagnosis(Evidence("run"), (verdict,), verdict)], []))
    told = text[text.index("For it") :]
    assert told.startswith("For it sign 4 proven loss 2.5 step 14 a.log:5")
    assert "sign 1" in told
    assert "sign 2" not in told
    assert "and 2 more" in told
    assert "No sign of other sign" in told


def test_look_alikes_are_excluded_only_where_a_test_said_so(maker: Any) -> None:
    those = (
        rules.LookAlike("GF01", Text("Tested, does not hold."), rules.Test(a_check, {})),
        rules.LookAlike("GF02", Text("For the eye.")),
        rules.LookAlike("GF03", Text("Could not be tested."), rules.Test(a_check, {})),
        rules.LookAlike("GF04", Text("Concerns another sign."), rules.Test(a_check, {}), ("another",)),
    )
    rule = maker.rule("GF05", look_alikes=those)
    verdict = maker.fired(rule, [Hit(1, None, "loss")], not_excluded=(those[2],))
    (run,) = build([Diagnosis(Evidence("run"), (verdict,), verdict)], []).runs
    assert run.primary is not None
    assert [one.case for one in run.primary.excluded] == ["GF01"]
    assert [one.case for one in run.primary.by_eye] == ["GF02"]
    assert [one.case for one in run.primary.not_excluded] == ["GF03"]
    clear = Verdict(rule, "clear")
    assert build([Diagnosis(Evidence("run"), (clear,))], []).runs[0].verdicts[0].excluded == ()


def test_lines_of_hits_are_quoted_and_the_value_is_marked(sick: Diagnosis) -> None:
    assert places(sick) == [("log.jsonl", 24), ("log.jsonl", 25), ("train.log", 412)]
    lines = {("log.jsonl", 24): '{"step": 120, "loss": 1.65, "x": "<b>"}'}
    report = build([sick], [], lines=[lines])
    text = render(report)
    assert "&#34;loss&#34;: <mark>1.65</mark>, &#34;x&#34;: &#34;&lt;b&gt;&#34;}" in text
    assert report.runs[0].findings[0].hits[0].excerpt == lines["log.jsonl", 24]


def test_a_hit_says_which_rank_on_which_host_wrote_it(sick: Diagnosis) -> None:
    sick.evidence.events = [replace(e, rank=3, host="node07") for e in sick.evidence.events or []]
    text = Page(render(build([sick], []))).text
    assert "step 200 rank 3 host node07 train.log:412 RuntimeError: loss is" in text


def test_needs_are_words_on_the_page(sick: Diagnosis) -> None:
    text = page_of(build([sick], []))
    assert "series:" not in text
    assert "eval/accuracy" in text
    assert "two checkpoints of the run" in text


# -- the frame -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["sick", "healthy"])
def test_headings_begin_at_the_run_and_skip_no_level(which: str, request: pytest.FixtureRequest) -> None:
    page = Page(render(build([request.getfixturevalue(which)], [])))
    levels = [int(t[1]) for t, _ in page.tags if re.fullmatch(r"h\d", t)]
    assert levels[:2] == [1, 2]
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


def test_the_navigation_lists_every_section_that_is_there(sick: Diagnosis, healthy: Diagnosis) -> None:
    page = Page(render(build([sick, healthy], [])))
    ids = [a["id"] for _, a in page.tags if a.get("id")]
    links = {a["href"] for t, a in page.tags if t == "a"}
    assert len(ids) == len(set(ids))
    assert {"#r1-chain", "#r1-timeline", "#r1-catalogue", "#r1-findings", "#r2-timeline", "#inventory"} <= links
    assert not {"#r2-chain", "#r2-findings"} & links
    assert {link.removeprefix("#") for link in links if link} <= set(ids)


def test_the_skip_link_comes_first_and_the_switch_is_a_labelled_group(report: Report) -> None:
    page = Page(render(report))
    assert next(a["href"] for t, a in page.tags if t == "a") == "#r1"
    radios = [a for t, a in page.tags if t == "input" and a["type"] == "radio"]
    labels = {a["for"] for t, a in page.tags if t == "label" and "for" in a}
    assert len(radios) == 2
    assert {a["id"] for a in radios} == labels
    assert "legend" in [t for t, _ in page.tags]


def test_commands_can_be_copied_only_with_a_script(report: Report) -> None:
    text = render(report)
    assert 'class="command"' in text
    outside = re.sub(r"<template.*?</template>", "", text, flags=re.DOTALL)
    assert "<button" not in outside


def test_a_record_without_steps_says_so_once(maker: Any) -> None:
    verdict = maker.fired(maker.rule("GF26"), [Hit(None, None, source="dmesg.log", line=3)], onset=None)
    text = first_screen(build([Diagnosis(Evidence("run"), (verdict,), verdict)], []))
    assert "Onset no steps in the record" in text
    assert "attempt" not in text
    assert '-timeline"' not in render(build([Diagnosis(Evidence("run"), (verdict,), verdict)], []))


def test_a_run_of_which_nothing_was_judged_is_neither_praised_nor_blamed() -> None:
    text = first_screen(build([Diagnosis(Evidence("run"), ())], []))
    assert "This says nothing about the run, good or bad." in text
    assert "Clear" not in text


def test_a_record_that_stops_too_early_says_where_the_reason_may_stand(healthy: Diagnosis) -> None:
    healthy.evidence.ending = Ending("truncated", "the record stops at step 60 of 100 planned steps", "log.jsonl", 60)
    assert "look into the scheduler's log, the console output and dmesg" in first_screen(build([healthy], []))
    assert "请查看当时的调度器日志" in first_screen(build([healthy], []), "zh")


def test_kin_of_a_sign_that_holds_is_not_called_absent(maker: Any) -> None:
    sign = rules.Sign("rank_missing_likely", rules.Test(a_check, {}), "probable")
    holdings = (Holding(sign, (Hit(10, None, source="a.log", line=1),)),)
    judged = ("rank_missing_likely", "rank_missing", "lost_by_xid", "lost", "mismatch")
    verdict = maker.fired(maker.rule("GF24"), [], holdings=holdings, judged_signs=judged)
    text = first_screen(build([Diagnosis(Evidence("run"), (verdict,), verdict)], []))
    assert "No sign of lost , mismatch" in text


def test_what_is_noted_and_known_well_enough_says_what_to_do(healthy: Diagnosis, maker: Any) -> None:
    rule = maker.rule("GF42", slug="throughput-drift")
    fired = maker.fired(rule, [Hit(40, 39, "loss", "loss", 0.4)], severity="S3", strength="probable")
    text = first_screen(build([replace(healthy, verdicts=(healthy.verdicts[0], fired))], []))
    assert "Do next: Fix of GF42" in text
    assert "What would settle it" not in text


def test_prose_and_commands_of_a_check_stand_apart(sick: Diagnosis, maker: Any) -> None:
    verify = Text("Do this:\ndcgmi diag -r 3\nThen that.", "先做这个：\ndcgmi diag -r 3\n再做那个。")
    first = replace(sick.verdicts[0], rule=replace(sick.verdicts[0].rule, verify=verify))
    report = build([replace(sick, verdicts=(first, *sick.verdicts[1:]), primary=first)], [])
    (screen,) = re.findall(r'<div class="next">.*?</div>', render(report), re.DOTALL)
    command = '<pre class="command" translate="no"><code>dcgmi diag <span class="option">-r</span> 3</code></pre>'
    assert screen.count(command) == 1
    assert "Then verify Do this: dcgmi diag -r 3 Then that." in Page(screen).text
    assert "先做这个： dcgmi diag -r 3 再做那个。" in Page(screen, "zh").text
