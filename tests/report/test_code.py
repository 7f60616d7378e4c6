"""The fix as code, and facts in both languages, in the page and in JSON."""

import json
from pathlib import Path

import pytest

from gradforensics.diagnosis.causes import diagnose
from gradforensics.diagnosis.rules import load_rules
from gradforensics.evidence.gather import gather
from gradforensics.report import as_json
from gradforensics.report.build import build
from gradforensics.report.html import render

SAMPLES = Path(__file__).parents[2] / "sample_runs"
RULES = load_rules(examples=False)


def report_of(sample, language="en"):
    (evidence,) = gather([SAMPLES / sample / "run"])
    return build([diagnose(evidence, RULES)], evidence.sources, language=language)


@pytest.mark.parametrize(
    ("sample", "rule", "frameworks"),
    [("gf28-saturated", "GF28", ["hf-trainer", "general"]), ("gf46-never-updated", "GF46", ["general"])],
)
def test_a_finding_has_the_code_for_the_runs_framework_and_for_a_plain_loop(sample, rule, frameworks):
    report = report_of(sample)
    (finding,) = (v for v in report.runs[0].findings if v.rule == rule)
    assert [one.framework for one in finding.code] == frameworks
    assert all(not v.code for v in report.runs[0].verdicts if v.outcome != "fired")
    told = json.loads(as_json.render(report))["runs"][0]["verdicts"]
    (verdict,) = (v for v in told if v["rule"] == rule)
    assert verdict["code"] == [{"framework": one.framework, "code": one.text} for one in finding.code]


def test_the_page_shows_it_to_be_copied_under_the_name_of_its_framework():
    page = render(report_of("gf28-saturated"))
    trainer, torch = page.index("Hugging Face Trainer</p>"), page.index("PyTorch</p>")
    assert trainer < page.index("<code>args = TrainingArguments(max_grad_norm=1.0)  # ") < torch
    assert page.index("clip_grad_norm_(model.parameters(), max_norm=1.0)") > torch


def test_a_fact_in_words_is_chinese_in_chinese_texts_and_english_for_programs():
    report = report_of("gf28-foreign-units", "zh")
    (finding,) = (v for v in report.runs[0].findings if v.rule == "GF28")
    unit = finding.hits[0].facts["unit"]
    assert unit.en in finding.what.en
    assert unit.zh in finding.what.zh
    assert unit.en not in finding.what.zh
    told = json.loads(as_json.render(report))["runs"][0]["verdicts"]
    (verdict,) = (v for v in told if v["rule"] == "GF28")
    assert verdict["hits"][0]["facts"]["unit"] == unit.en
    assert unit.zh in verdict["what"]
    assert f'<span lang="zh">{unit.zh}</span>' in render(report)
