"""The report as SARIF 2.1.0."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from gradforensics.diagnosis.causes import Diagnosis
from gradforensics.diagnosis.ignoring import Ignore, Ignores, ignoring
from gradforensics.diagnosis.rules import Texts
from gradforensics.diagnosis.vocabulary import Hit
from gradforensics.evidence.readers import binary_readers
from gradforensics.report.as_sarif import NO_TEXT, render
from gradforensics.report.build import build
from gradforensics.report.model import Report
from gradforensics.tables import Event, Evidence, Source
from tests.report.conftest import Maker
from tests.report.hostile import HOSTILE


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft4Validator:
    text = (Path(__file__).parent / "data" / "sarif-2.1.0-rtm.5.json").read_text("utf-8")
    return jsonschema.Draft4Validator(json.loads(text))


def log_of(report: Report) -> dict[str, Any]:
    (run,) = json.loads(render(report))["runs"]
    assert isinstance(run, dict)
    return run


def test_logs_keep_the_schema(
    validator: jsonschema.Draft4Validator, sick: Diagnosis, healthy: Diagnosis, sources: list[Source]
) -> None:
    empty = Diagnosis(Evidence("empty"), ())
    for diagnoses in ([], [sick], [healthy], [sick, healthy], [empty]):
        for language in ("en", "zh"):
            report = build(diagnoses, [*sources, *sources], language=language)
            validator.validate(json.loads(render(report)))


def test_the_schema_refuses_what_is_no_log(validator: jsonschema.Draft4Validator, report: Report) -> None:
    log = json.loads(render(report))
    log["runs"][0]["results"][0]["level"] = "fatal"
    assert not validator.is_valid(log)


def test_a_result_points_at_the_line_of_its_onset(sick: Diagnosis, sources: list[Source]) -> None:
    sick.evidence.events = [Event("warning", "loss=1.65", "log.jsonl", 24)]
    run = log_of(build([sick], sources))
    first = run["results"][0]
    assert first["ruleId"] == run["tool"]["driver"]["rules"][first["ruleIndex"]]["id"] == "GF05"
    assert first["level"] == "error"
    assert first["locations"] == [
        {
            "physicalLocation": {
                "artifactLocation": {"uri": "log.jsonl", "uriBaseId": "EVIDENCE"},
                "region": {"startLine": 24, "snippet": {"text": "loss=1.65"}},
            }
        }
    ]
    assert [one["physicalLocation"]["region"]["startLine"] for one in first["relatedLocations"]] == [25]
    assert first["properties"]["onset"] == 120
    assert first["message"]["text"].startswith("runs/exp-7: What of runs/exp-7: from step 120 (S1, probable)")
    assert [one["level"] for one in run["results"]] == ["error", "error", "note"]
    assert all(one["locations"] for one in run["results"])


@pytest.mark.parametrize(
    ("severity", "strength", "level"),
    [
        ("S1", "proven", "error"),
        ("S2", "probable", "error"),
        ("S2", "suspect", "warning"),
        ("S3", "proven", "warning"),
        ("S3", "suspect", "note"),
        ("S4", "proven", "note"),
    ],
)
def test_levels_follow_severity_and_strength(maker: Maker, severity: Any, strength: Any, level: str) -> None:
    verdict = maker.fired(maker.rule("GF05"), [Hit(1)], severity=severity, strength=strength)
    assert log_of(build([Diagnosis(Evidence("run"), (verdict,))], []))["results"][0]["level"] == level


def test_fingerprints_stay_while_the_log_grows_and_tell_runs_and_rules_apart(maker: Maker) -> None:
    def prints(run: str, line: int, rule: str = "GF05") -> dict[str, str]:
        hit = Hit(line, None, "loss", source="log.txt", line=line)
        diagnosis = Diagnosis(Evidence(run), (maker.fired(maker.rule(rule), [hit]),))
        found: dict[str, str] = log_of(build([diagnosis], []))["results"][0]["partialFingerprints"]
        return found

    assert prints("a", 10) == prints("a", 99)
    assert prints("a", 10) != prints("b", 10)
    assert prints("a", 10) != prints("a", 10, "GF06")


def test_a_source_without_lines_of_text_has_no_region(maker: Maker) -> None:
    paths = {"events.out.tfevents.1": "tensorboard", "log.txt.gz": "console", "log.txt": "console"}
    hits = [Hit(n, None, "loss", source=path, line=7) for n, path in enumerate(paths)]
    diagnosis = Diagnosis(Evidence("run"), (maker.fired(maker.rule("GF05"), hits),))
    result = log_of(build([diagnosis], [Source(p, 1, None, r) for p, r in paths.items()]))["results"][0]
    places = [one["physicalLocation"] for one in (*result["locations"], *result["relatedLocations"])]
    assert [place["artifactLocation"]["uri"] for place in places if "region" in place] == ["log.txt"]
    assert {reader.name for reader in binary_readers()} == NO_TEXT


def test_what_a_verdict_fills_in_is_named_in_the_help_of_a_rule(maker: Maker) -> None:
    texts = {("en", None): Texts("Title", "What", "Why", ("Lower it {speed:.3g} times.",))}
    diagnosis = Diagnosis(Evidence("run"), (maker.fired(maker.rule("GF05", texts=texts), [Hit(1)]),))
    rule = log_of(build([diagnosis], []))["tool"]["driver"]["rules"][0]
    assert "Lower it <speed> times." in rule["help"]["text"]
    assert r"Lower it \<speed\> times." in rule["help"]["markdown"]


def test_the_rest_of_the_log(sick: Diagnosis, sources: list[Source]) -> None:
    run = log_of(build([sick], sources))
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["GF05", "GF06", "GF11", "GF12", "GF20", "GF27"]
    rule = run["tool"]["driver"]["rules"][0]
    assert (rule["name"], rule["shortDescription"]["text"]) == ("LrTooHigh", "Title of GF05")
    assert rule["defaultConfiguration"] == {"level": "error"}
    assert "Fix of GF05" in rule["help"]["text"]
    assert run["artifacts"][0]["hashes"] == {"sha-256": "ab" * 32}
    assert run["invocations"][0]["exitCode"] == 1
    told = [one["message"]["text"] for one in run["invocations"][0]["toolExecutionNotifications"]]
    assert told == ["runs/exp-7: 2 of 6 rules not judged", "log.jsonl: the last line is torn"]
    assert run["properties"]["notJudged"]["runs/exp-7"]["GF20"] == ["series:eval/accuracy"]


def test_an_ignored_finding_is_suppressed_with_its_reason(
    validator: jsonschema.Draft4Validator, sick: Diagnosis
) -> None:
    (known,) = ignoring([sick], Ignores((Ignore("GF05", "known since May"),)))
    log = json.loads(render(build([known], [])))
    results = {one["ruleId"]: one for one in log["runs"][0]["results"]}
    assert results["GF05"]["suppressions"] == [
        {"kind": "external", "status": "accepted", "justification": "known since May"}
    ]
    assert results["GF05"]["level"] == "error"
    assert "suppressions" not in results["GF11"]
    validator.validate(log)


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_evidence_stays_text(validator: jsonschema.Draft4Validator, maker: Maker, text: str) -> None:
    evidence = Evidence(text)
    maker.series(evidence, "loss", [1.0, math.nan])
    evidence.events = [Event("warning", text, text, 1)]
    evidence.ending = replace(evidence.ending, text=text)
    rule = maker.rule("GF05")
    verdict = maker.fired(rule, [Hit(2, 1, text, text, math.inf, text, 1, text)], run=text, facts={"run": text})
    raw = render(build([Diagnosis(evidence, (verdict,))], [Source(text, 1)]))
    log = json.loads(raw.encode())
    validator.validate(log)
    result = log["runs"][0]["results"][0]
    uri = result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert set(uri) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~%/")
    assert "](" not in result["message"]["text"]
    assert "{" not in result["message"]["text"].replace("{{", "")
