"""The HTML report: escaping, self-containment, what is said where, size."""

from __future__ import annotations

import base64
import hashlib
import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gradforensics.diagnosis.causes import Diagnosis
from gradforensics.diagnosis.vocabulary import Hit
from gradforensics.languages import Text
from gradforensics.report.build import build
from gradforensics.report.html import render
from gradforensics.report.model import Report
from gradforensics.tables import Ending, Event, Evidence, Fact, Notice, Setting, Source
from tests.report.page import Page

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>{{ 7*7 }}&amp;"


def test_order_of_a_sick_run(report: Report) -> None:
    text = Page(render(report)).text
    told = [
        "Probable: Title of GF05.",
        "What of runs/exp-7: from step 120",
        "between step 115 (last good) and step 120",
        "stopped by an exception",
        "train.log:412",
        "GF11 step 200",
        "Do next Fix of GF05",
        "gradforensics analyze runs/exp-7 --set onset=120",
        "How sure, and why probable : strong signs, no proof",
        "For it sign 0 probable loss 1.65 step 120 log.jsonl:24 and 2 hits in all",
        "Not excluded GF17",
        "False alarm if A warm restart.",
        "Ruled out GF06 Title of GF06 The loss moved.",
        "Not judged 2 of 6 rules",
        "All series",
        "leads to",
        "What of runs/exp-7: from step 120",
        "log.jsonl:24",
        "Why of GF05",
        "Second fix",
        "A warm restart.",
        "Not excluded GF17",
        "two checkpoints of the run",
        "this version has no test for it",
        "refuted by GF05",
        "learning_rate",
        "the last line is torn",
        "Inventory of evidence",
        "too large to hash",
    ]
    at = 0
    for part in told:
        assert part in text[at:]
        at = text.index(part, at)


def test_only_the_primary_finding_is_open(report: Report) -> None:
    found = [a for t, a in Page(render(report)).tags if t == "details" and "finding" in (a["class"] or "")]
    assert [(a["id"], "open" in a) for a in found] == [("r1-GF05", True), ("r1-GF11", False), ("r1-GF12", False)]


def test_every_link_leads_somewhere(report: Report) -> None:
    page = Page(render(report))
    ids = {a["id"] for _, a in page.tags if a.get("id")}
    links = {(a.get("href") or "").removeprefix("#") for t, a in page.tags if t == "a"}
    assert links <= ids


def test_a_run_without_alarms_says_so(healthy: Diagnosis) -> None:
    text = Page(render(build([healthy], []))).text
    assert "No alarm: 1 rule judged clear on this evidence, 1 not judged." in text
    assert "Log scaler.get_scale() beside every loss." in text
    assert "Findings" not in text


def test_a_run_that_could_not_be_judged_is_not_acquitted() -> None:
    text = Page(render(build([Diagnosis(Evidence("run"), ())], []))).text
    assert "No verdict: none of the 0 rules could be judged on this evidence." in text
    assert "No alarm" not in text


def test_several_runs_have_an_overview(sick: Diagnosis, healthy: Diagnosis) -> None:
    page = Page(render(build([sick, healthy], [])))
    assert page.text.index("2 runs") < page.text.index("Probable: Title of GF05.")
    ids = [a["id"] for t, a in page.tags if t == "article"]
    assert ids == ["r1", "r2"]
    everything = [a["id"] for _, a in page.tags if a.get("id")]
    assert len(everything) == len(set(everything))


def test_hostile_text_is_escaped_wherever_it_comes_from(maker: Any) -> None:
    evidence = Evidence(HOSTILE)
    maker.series(evidence, HOSTILE, [1.0, 2.0, 3.0], tag=HOSTILE, source=HOSTILE)
    evidence.settings = [Setting(HOSTILE, "x" + HOSTILE, HOSTILE, HOSTILE)]
    evidence.events = [Event("exception", HOSTILE, HOSTILE, 1)]
    evidence.ending = Ending("exception", HOSTILE, HOSTILE, 1)
    evidence.notices = [Notice(HOSTILE, 1, HOSTILE)]
    hit = Hit(2, 1, HOSTILE, HOSTILE, 2.0, HOSTILE, 1, HOSTILE, {HOSTILE: HOSTILE})
    verdict = maker.fired(maker.rule("GF05"), [hit], run=HOSTILE, missing=(HOSTILE,))
    diagnosis = Diagnosis(evidence, (verdict,), verdict, (), HOSTILE)
    text = render(build([diagnosis, diagnosis], [Source(HOSTILE, 1, None, HOSTILE, HOSTILE)]))
    page = Page(text)
    assert not [t for t, _ in page.tags if t == "img"]
    assert [a for t, a in page.tags if t == "script"] == [
        {"type": "application/json", "id": "gradforensics-data"},
        {},
    ]
    assert not [a for _, a in page.tags if any(name.startswith("on") for name in a)]
    assert "{{ 7*7 }}" in page.text
    assert "49" not in page.text


def test_control_and_bidirectional_characters_are_spelled_out(healthy: Diagnosis) -> None:
    healthy.evidence.notices.append(Notice("a\x1b[31mb", None, "x\u202ey\x00\udce9"))
    text = render(build([healthy], []))
    assert "a\\x1b[31mb" in text
    assert "x\\u202ey\\x00\\udce9" in text
    text.encode("utf-8")


def test_nothing_is_loaded_from_anywhere(report: Report) -> None:
    text = render(report)
    page = Page(text)
    assert not [t for t, _ in page.tags if t in ("img", "link", "iframe", "object", "embed", "base")]
    assert not [a for _, a in page.tags if "src" in a or "style" in a]
    assert not re.findall(r"url\(|@import|import\(|fetch\(|XMLHttpRequest", text)
    assert set(re.findall(r"https?://[^\"' <)]+", text)) == {"http://www.w3.org/2000/svg"}


def test_only_our_own_script_and_style_are_obeyed(report: Report) -> None:
    text = render(report)
    (policy,) = re.findall(r'<meta http-equiv="Content-Security-Policy" content="([^"]+)">', text)
    assert policy.startswith("default-src 'none'; ")
    for kind in ("style", "script"):
        (inner,) = re.findall(rf"<{kind}>(.*?)</{kind}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inner.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy


def test_colours_do_not_need_the_style_sheet(report: Report) -> None:
    lines = [a for t, a in Page(render(report)).tags if t == "path" and "data-s" in a]
    assert lines
    assert all(a["stroke"] and a["fill"] == "none" for a in lines)


def test_the_mark_of_our_outputs_is_near_the_start(report: Report) -> None:
    assert '<meta name="generator" content="gradforensics ' in render(report)[:300]


@pytest.mark.parametrize("values", [[], [1.0], [math.nan] * 50, [None]], ids=["none", "one", "nan", "missing"])
def test_little_to_show(maker: Any, values: list[float | None]) -> None:
    evidence = Evidence("run")
    maker.series(evidence, "loss", values)
    verdict = maker.fired(maker.rule("GF05"), [Hit(1, None, "loss", "loss", math.nan)])
    Page(render(build([Diagnosis(evidence, (verdict,), verdict)], [])))


def test_a_long_run_stays_small(maker: Any) -> None:
    evidence = Evidence("run")
    noise = np.random.default_rng(0).standard_normal(100_000)
    for name in ("loss", "grad_norm", "lr", "loss_scale"):
        maker.series(evidence, name, (3 + noise).tolist())
    maker.series(evidence, "loss", (3 + noise).tolist(), phase="eval")
    hits = [Hit(50_000 + i, 49_999, "loss", "loss", 1.0, "log.jsonl", i + 1) for i in range(5000)]
    verdict = maker.fired(maker.rule("GF05"), hits)
    evidence.notices = [Notice("log.jsonl", i, "x" * 1000) for i in range(1, 5000)]
    evidence.settings = [Setting(f"k{i}", f"k{i}", "v" * 1000, "a.json") for i in range(2000)]
    text = render(build([Diagnosis(evidence, (verdict,), verdict)], [Source(f"{i}.log", i) for i in range(9000)]))
    assert len(text) < 1_000_000
    assert "4988 more hits are in the JSON report." in text


def test_chinese(sick: Diagnosis) -> None:
    page = Page(render(build([sick], [], language="zh")), "zh")
    assert "很可能：GF05 的标题。" in page.text
    assert ("html", {"lang": "zh-CN"}) in page.tags


def test_prose_to_verify_is_no_command(sick: Diagnosis) -> None:
    prose = replace(sick.verdicts[0], rule=replace(sick.verdicts[0].rule, verify=Text("Look at {run}.")))
    text = render(build([replace(sick, verdicts=(prose,), primary=prose)], []))
    assert "<p>Look at" in text


def test_environment_events_and_baselines_are_shown(sick: Diagnosis, healthy: Diagnosis) -> None:
    sick.evidence.environment = [Fact("gpu", "NVIDIA <H100>", "wandb-metadata.json", None, 3, "node07")]
    sick.evidence.events = [Event("xid", "NVRM: Xid (PCI:0000:9b:00): 79", "dmesg.log", 12, host="node07", step=118)]
    text = Page(render(build([sick, healthy], []))).text
    assert "Environment (1)" in text
    assert "gpu NVIDIA <H100> 3; node07 wandb-metadata.json" in text
    assert "Events (1)" in text
    assert "xid 118 node07 NVRM: Xid (PCI:0000:9b:00): 79 dmesg.log:12" in text
    assert "Compare with healthy no alarm on the same series in this analysis" in text
