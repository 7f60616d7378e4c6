"""The summary on the terminal."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gradforensics.diagnosis.causes import Diagnosis
from gradforensics.diagnosis.vocabulary import Hit
from gradforensics.report.build import build
from gradforensics.report.model import Report
from gradforensics.report.terminal import render
from gradforensics.tables import Evidence

SICK = """\
runs/exp-7 (steps 5 to 300, 2 attempts)
log.jsonl:24: GF05 [S1 probable] What of runs/exp-7: from step 120 (step 120)
train.log:412: GF11 [S1 proven] What of runs/exp-7: from step 200 (step 200)
runs/exp-7: GF12 [S3 suspect] What of runs/exp-7: from step unknown
  chain       GF05 -> GF11
  ended       stopped by an exception: RuntimeError: loss is nan (train.log:412)
  fix         Fix of GF05
  verify      gradforensics analyze runs/exp-7 --set onset=120
  not judged  2 of 6 rules (1 of them has no test in this version). Log accuracy of the
              evaluation. (Would help to judge GF20)

2 alarms, 1 finding below alarm level, 1 clear, 2 not judged
Report: out/report.html
"""

HEALTHY = """\
healthy (steps 1 to 60, 1 attempt)
No alarm: 1 rule judged clear on this evidence, 1 not judged.
  ended       reached its planned end (log.jsonl:60)
  not judged  1 of 2 rules. Log scaler.get_scale() beside every loss. (Would help to judge GF12)

0 alarms, 1 clear, 1 not judged
"""


def test_a_sick_run(report: Report) -> None:
    assert render(report, color=False, width=90, written=["out/report.html"]) == SICK


def test_a_healthy_run(healthy: Diagnosis) -> None:
    assert render(build([healthy], []), color=False, width=100) == HEALTHY


def test_several_runs(sick: Diagnosis, healthy: Diagnosis) -> None:
    text = render(build([sick, healthy], []), color=False, width=100)
    assert text.startswith(
        "GF05  runs/exp-7  steps 5 to 300, stopped by an exception\n"
        "no alarm  healthy  steps 1 to 60, reached its planned end\n\n"
    )
    assert "\n  compare     healthy (no alarm on the same series in this analysis; pass one with --baseline)\n" in text
    assert text.endswith("\n2 runs, 2 alarms, 1 finding below alarm level, 2 clear, 3 not judged\n")


def test_colour_only_when_asked(report: Report) -> None:
    assert "\x1b[31;1mGF05\x1b[0m" in render(report, color=True, width=80)


def test_log_text_cannot_steer_the_terminal(sick: Diagnosis) -> None:
    sick.evidence.name = "a\x1b]0;b\x07\nc"
    sick.evidence.ending = replace(sick.evidence.ending, text="x\x1b[2Jy\r\nz")
    text = render(build([sick], []), color=False, width=80)
    assert not set(text) & {"\x1b", "\x07", "\r"}
    assert text.startswith("a\\x1b]0;b\\x07 c (steps")


def test_a_narrow_terminal_wraps_all_but_what_is_to_be_copied(report: Report) -> None:
    lines = render(report, color=False, width=50).splitlines()
    assert all(len(line) <= 50 for line in lines if line.startswith("  ") and "gradforensics analyze" not in line)


def test_of_many_runs_only_the_gravest_are_told_in_full(maker: Any) -> None:
    many = []
    for n in range(9):
        verdict = maker.fired(maker.rule("GF05"), [Hit(2, 1, "loss")], severity="S1" if n == 8 else "S2")
        many.append(Diagnosis(Evidence(f"run-{n}"), (verdict,), verdict))
    lines = render(build(many, []), color=False, width=100).splitlines()
    told = [line for line in lines if line.endswith("(no steps logged, 1 attempt)")]
    assert [line.split()[0] for line in told] == ["run-8", "run-0", "run-1", "run-2", "run-3"]
    assert "The details of 4 more: analyze a folder alone, or open the HTML report." in lines
    assert sum(line.startswith("GF05  run-") for line in lines) == 9
