"""The JSON report: schema version 1."""

from __future__ import annotations

import json
import math
from importlib.resources import files
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from gradforensics.diagnosis.causes import Diagnosis
from gradforensics.report import FORMATS, as_json
from gradforensics.report.build import build
from gradforensics.report.model import Report
from gradforensics.tables import Evidence, Notice, Setting, Source


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    schema = json.loads((files("gradforensics.report") / "schema.json").read_text("utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_reports_keep_the_schema(
    validator: jsonschema.Draft202012Validator, sick: Diagnosis, healthy: Diagnosis, sources: list[Source]
) -> None:
    for diagnoses in ([], [sick], [healthy], [sick, healthy], [Diagnosis(Evidence("empty"), ())]):
        validator.validate(json.loads(FORMATS["json"](build(diagnoses, sources))))


def test_the_contract(report: Report) -> None:
    data = json.loads(as_json.render(report))
    assert list(data)[:2] == ["schema", "tool"]
    assert data["schema"] == 1
    assert data["tool"].startswith("gradforensics ")
    (run,) = data["runs"]
    assert run["primary"] == "GF05"
    assert run["chain"] == [["GF05", "GF11"]]
    assert run["ending"] == {
        "kind": "exception",
        "text": "RuntimeError: loss is nan",
        "source": "train.log",
        "line": 412,
    }
    first = run["verdicts"][0]
    assert {
        k: first[k]
        for k in ("rule", "outcome", "severity", "strength", "alarm", "onset", "onset_after", "missing", "not_excluded")
    } == {
        "rule": "GF05",
        "outcome": "fired",
        "severity": "S1",
        "strength": "probable",
        "alarm": True,
        "onset": 120,
        "onset_after": 115,
        "missing": ["travels"],
        "not_excluded": ["GF17"],
    }
    assert run["verdicts"][1]["refuted_by"] == ["GF05"]
    assert run["notices"] == [{"source": "log.jsonl", "line": 60, "text": "the last line is torn"}]
    assert run["series"][0] == {
        "series": "loss",
        "tag": "loss",
        "phase": "train",
        "points": 60,
        "first": 1.975,
        "last": 5.4,
        "min": 1.425,
        "max": 5.4,
        "nonfinite": 21,
        "first_step": 5,
        "last_step": 300,
        "step_unit": "step",
        "source": "log.jsonl",
    }


def test_nonfinite_numbers_are_strings(report: Report) -> None:
    text = as_json.render(report)
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    hits = json.loads(text)["runs"][0]["verdicts"][2]["hits"]
    assert [h["value"] for h in hits] == ["nan"]


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        (math.nan, "nan"),
        ({"a": [math.nan, 1, (True, None)]}, {"a": ["nan", 1, [True, None]]}),
        (b"x", "b'x'"),
    ],
)
def test_plain(value: Any, plain: Any) -> None:
    assert as_json.plain(value) == plain


def test_undecodable_names_and_odd_values_survive(validator: jsonschema.Draft202012Validator) -> None:
    evidence = Evidence("caf\udce9")
    evidence.settings = [Setting("x", "x", {"n": math.nan, 1: object}, "a.json")]
    evidence.notices = [Notice("a.json", None, "\x00\x1b[31m")]
    text = as_json.render(build([Diagnosis(evidence, ())], [Source("caf\udce9", 1)]))
    data = json.loads(text.encode())
    validator.validate(data)
    assert data["runs"][0]["name"] == "caf\udce9"
    assert data["runs"][0]["settings"][0]["value"]["n"] == "nan"
