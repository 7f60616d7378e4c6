"""The report as JUnit XML."""

from __future__ import annotations

import math
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from gradforensics.diagnosis.causes import Diagnosis
from gradforensics.diagnosis.ignoring import Ignore, Ignores, ignoring
from gradforensics.diagnosis.vocabulary import Hit
from gradforensics.report.as_junit import render
from gradforensics.report.build import build
from gradforensics.report.model import Report
from gradforensics.tables import Event, Evidence
from tests.report.conftest import Maker
from tests.report.hostile import HOSTILE


def cases(report: Report) -> dict[str, ET.Element]:
    """The test cases of the only run, by rule."""
    root = ET.fromstring(render(report))
    assert len(root) == 1
    return {case.get("name", "")[:4]: case for case in root.iter("testcase")}


def outcome(case: ET.Element) -> list[str]:
    return [child.tag for child in case]


def test_every_rule_is_a_test_case(sick: Diagnosis) -> None:
    found = cases(build([sick], []))
    assert {rule: outcome(case) for rule, case in found.items()} == {
        "GF05": ["failure"],
        "GF06": [],
        "GF11": ["failure"],
        "GF12": ["system-out"],
        "GF20": ["skipped"],
        "GF27": ["skipped"],
    }
    failure = found["GF05"][0]
    assert failure.attrib == {"message": "What of runs/exp-7: from step 120", "type": "S1 probable"}
    assert (failure.text or "").splitlines() == [
        "What of runs/exp-7: from step 120",
        "Onset: between step 115 (last good) and step 120",
        "log.jsonl:24: sign 0 step 120",
        "log.jsonl:25: sign 0 step 125",
        "Fix: Fix of GF05",
        "Fix: Second fix",
        "How to verify: gradforensics analyze runs/exp-7 --set onset=120",
    ]
    assert found["GF20"][0].get("message") == "not judged. Missing: eval/accuracy"
    assert found["GF20"][0].text == "not judged. Missing: eval/accuracy\nLog accuracy of the evaluation."
    assert found["GF27"][0].get("message") == "not judged: this version has no test for it"
    assert found["GF05"].get("classname") == "runs/exp-7.learning-rate"


def test_counts_are_those_of_the_cases(sick: Diagnosis, healthy: Diagnosis) -> None:
    root = ET.fromstring(render(build([sick, healthy], [])))
    keys = ("tests", "failures", "errors", "skipped")
    assert [root.get(key) for key in keys] == ["8", "2", "0", "3"]
    assert [[suite.get(key) for key in ("name", *keys)] for suite in root] == [
        ["runs/exp-7", "6", "2", "0", "2"],
        ["healthy", "2", "0", "0", "1"],
    ]


def test_fail_on_decides_what_fails(sick: Diagnosis, maker: Maker) -> None:
    s2 = maker.fired(maker.rule("GF05"), [Hit(1)], severity="S2", strength="proven")
    diagnosis = replace(sick, verdicts=(s2,), primary=s2, chain=())
    assert outcome(cases(build([diagnosis], [], fail_on="S2"))["GF05"]) == ["failure"]
    assert outcome(cases(build([diagnosis], [], fail_on="S1"))["GF05"]) == ["system-out"]
    assert [build([diagnosis], [], fail_on=severity).exit_code for severity in ("S2", "S1")] == [1, 0]


def test_an_ignored_finding_is_skipped_with_its_reason(sick: Diagnosis) -> None:
    (known,) = ignoring([sick], Ignores((Ignore("GF05", "known since May"),)))
    case = cases(build([known], []))["GF05"]
    assert outcome(case) == ["skipped", "system-out"]
    assert case[0].get("message") == "ignored: known since May"


@pytest.mark.parametrize("text", HOSTILE)
def test_it_is_well_formed_whatever_the_evidence_wrote(maker: Maker, text: str) -> None:
    evidence = Evidence(text)
    maker.series(evidence, "loss", [1.0, math.nan])
    evidence.events = [Event("warning", text, text, 1)]
    verdict = maker.fired(maker.rule("GF05"), [Hit(2, 1, text, text, 1.0, text, 1, text)], run=text)
    root = ET.fromstring(render(build([Diagnosis(evidence, (verdict,), verdict)], [])).encode())
    assert root.get("failures") == "1"
    assert len(root[0].get("name") or "") <= 4000
