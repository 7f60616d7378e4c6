"""What `gradforensics compare` shows, and the section in the report of a run with a baseline."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from gradforensics.cli import main
from gradforensics.diagnosis.causes import diagnose
from gradforensics.diagnosis.examples import evidence_of
from gradforensics.evidence.gather import gather
from gradforensics.report import as_json
from gradforensics.report.build import build as build_report
from gradforensics.report.comparison import FORMATS
from gradforensics.report.comparison.model import Comparison, build
from gradforensics.report.comparison.terminal import render
from gradforensics.report.html import render as render_report
from gradforensics.report.write import write
from gradforensics.tables import Notice
from tests.report.page import Page

SAMPLES = Path(__file__).parent.parent.parent / "sample_runs"
HOT, GOOD = str(SAMPLES / "gf05-above-sibling" / "run"), str(SAMPLES / "gf05-twin-sibling" / "run")
_HAN = re.compile("[\u4e00-\u9fff]")


def schema_of(name: str) -> Any:
    return json.loads((files("gradforensics.report") / name).read_text("utf-8"))


@pytest.fixture(scope="module")
def hot() -> Comparison:
    """A run at twenty times the rate of its healthy sibling, and that sibling."""
    (here,), (there,) = gather([Path(HOT)]), gather([Path(GOOD)])
    return build(here, there)


@pytest.fixture
def many() -> Comparison:
    """Two runs that differ in everything that is compared, with names that are hostile."""
    rows = [{"checkpoint": f"c{s}", "path": f"c{s}", "step": s, "complete": True} for s in (0, 10)]
    checkpoints = [{k: v for k, v in row.items() if k != "checkpoint"} for row in rows]

    def made(mark: str, **more: Any) -> Any:
        tensors = [
            {"checkpoint": f"c{s}", "step": s, "role": role, "name": "w", "dtype": "F32", "shape": [2],
             "fingerprint": "same" if s == 0 else mark, "l2": 1.0 if mark == "a" else 1.1}
            for s in (0, 10) for role in ("param", "exp_avg")
        ]  # fmt: skip
        evidence = evidence_of({"checkpoints": checkpoints, "tensors": tensors, **more})
        evidence.name = f"<script>alert('{mark}')</script> | `{mark}`"
        return evidence

    here = made(
        "a",
        series={"loss": "4.0*10 ramp(4, 3, 90)", "eval/loss": "4.0 3.0 nan", "lr": "1e-3*100", "x|y`z": "1.0 2.0"},
        every={"eval/loss": 40},
        settings={"dropout": 0.1, "seed": 0, "learning_rate": 1e-3, "only_a": "<img src=x>", "dataset": "x/a"},
        environment=[{"key": "package:torch", "value": "2.4.0"}, {"key": "package:rich", "value": "13"}],
    )
    there = made(
        "b",
        series={
            "loss": "4.0*10 ramp(4, 2, 90)",
            "eval/loss": "4.0 2.0 2.0",
            "lr": "1e-3*9 2e-3*91",
            "x|y`z": "1.0 3.0",
        },
        every={"eval/loss": 40},
        settings={"dropout": 0.2, "seed": 0, "learning_rate": 2e-3, "dataset": "x/b"},
        environment=[{"key": "package:torch", "value": "2.6.0"}, {"key": "package:rich", "value": "14"}],
    )
    here.notices = [Notice("log<b>.jsonl", 3, "a torn <i>line</i>")]
    return build(here, there)


def test_the_summary_says_where_the_runs_part_what_differs_and_what_explains_it(hot: Comparison) -> None:
    text = render(hot, color=False, width=100, written=["out.html"])
    assert text.splitlines()[2:6] == [
        "Identical up to step 2, apart from step 3 on (loss).",
        "              Its difference leaves the noise for good at step 10, and ends at +31.9%.",
        "              The first to part is lr, at step 2.",
        "  differs     The only recorded difference is learning_rate (0.06 → 0.003).",
    ]
    assert "learning_rate (0.06 → 0.003) [likely] + it is the only difference that was recorded" in text
    assert re.search(r"^  loss +equal to 2, differs at 3 +240  for good from 10, ends at \+31\.9%$", text, re.MULTILINE)
    assert text.endswith("Report: out.html\n")


def test_more_than_one_thing_is_called_confounded_in_every_format(many: Comparison) -> None:
    text = "Confounded: 3 things differ"
    assert text in render(many, color=False, width=120)
    assert text in FORMATS["md"](many)
    assert text in Page(FORMATS["html"](many)).text
    data = json.loads(FORMATS["json"](many))
    assert (data["confounded"], data["things"]) == (True, 3)
    assert {one["key"] for one in data["changes"]} == {"dropout", "learning_rate", "package:torch"}
    assert {one["key"] for one in data["uncertain"]} == {"dataset", "package:rich"}


def test_the_json_keeps_the_schema(hot: Comparison, many: Comparison) -> None:
    schema = schema_of("compare.schema.json")
    jsonschema.Draft202012Validator.check_schema(schema)
    for one in (hot, many, build(evidence_of({}), evidence_of({}))):
        jsonschema.Draft202012Validator(schema).validate(json.loads(FORMATS["json"](one)))


def test_the_report_of_a_run_with_a_baseline_holds_the_same_and_keeps_its_schema(many: Comparison) -> None:
    (here,), (there,) = gather([Path(HOT)]), gather([Path(GOOD)])
    here.baseline = there
    report = build_report([diagnose(here, [])], [])
    (run,) = json.loads(json.dumps(report_data(report)))["runs"]
    assert (run["compared"]["confounded"], run["compared"]["things"]) == (False, 1)
    assert run["compared"]["partings"][0]["series"] == "loss"
    page = Page(render_report(report))
    assert "Beside gf05-twin-sibling/run" in page.text
    assert "Identical up to step 2, apart from step 3 on ( loss )." in page.text


def report_data(report: Any) -> Any:
    data = as_json.data(report)
    jsonschema.Draft202012Validator(schema_of("schema.json")).validate(data)
    return data


def test_both_schemas_describe_a_comparison_in_the_same_words() -> None:
    own, whole = schema_of("compare.schema.json"), schema_of("schema.json")
    for name in ("parting", "changed", "oneSided", "sharedCheckpoint", "candidate", "notice", "source"):
        assert own["$defs"][name] == whole["$defs"][name], name
    compared = whole["$defs"]["compared"]["properties"]
    assert {key: own["properties"][key] for key in own["properties"] if key in compared} == {
        key: compared[key] for key in compared if key in own["properties"]
    }


def test_the_page_is_whole_in_both_languages(many: Comparison, hot: Comparison) -> None:
    for found in (many, hot):
        text = FORMATS["html"](found)
        english, chinese = Page(text, "en"), Page(text, "zh")
        assert not _HAN.search(english.text.replace("中文", ""))
        assert "对照" in chinese.text
        heads = [name for name, _ in english.tags if name in ("h1", "h2", "h3", "h4")]
        assert heads[:3] == ["h1", "h2", "h2"]


def test_every_sentence_exists_in_chinese(many: Comparison) -> None:
    text = render(build_in("zh", many), color=False, width=120)
    for line in text.splitlines()[2:]:
        words = re.sub(r"[`'\w.:/|<>()=+−-]*[a-z]{3,}[\w.:/|`<>()=-]*", "", line)
        assert not re.search("[a-z]{4,}", words), line
    assert "混杂" in text


def build_in(language: Any, found: Comparison) -> Comparison:
    return replace(found, language=language)


def test_log_text_is_text_on_the_page_and_code_in_markdown(many: Comparison) -> None:
    page = Page(FORMATS["html"](many))
    assert [
        attrs for name, attrs in page.tags if name in ("img", "i", "b") and attrs not in ({}, {"translate": "no"})
    ] == []
    assert sum(name == "script" for name, _ in page.tags) == 1
    assert "<script>alert('a')</script>" in page.text
    text = FORMATS["md"](many)
    outside = re.sub(r"(?<!`)(`+)(?!`).*?(?<!`)\1(?!`)", "", text)
    assert "<script>" not in outside
    assert "x|y" not in outside


def test_our_own_markdown_is_written_over_and_others_are_not(many: Comparison, tmp_path: Path) -> None:
    path = tmp_path / "compare.md"
    write(path, FORMATS["md"](many))
    write(path, FORMATS["md"](many))
    assert path.read_text().startswith("<!-- gradforensics ")


def test_weights_of_the_checkpoints_are_told(many: Comparison) -> None:
    text = render(many, color=False, width=120)
    assert "The weights are equal in the checkpoints of step 0 and differ in those of step 10." in text
    assert "w (0.091)" in Page(FORMATS["html"](many)).text


# -- the command ------------------------------------------------------------------------------------------------------


def test_runs_that_part_and_runs_that_do_not_both_end_with_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "c.html"
    assert main(["compare", HOT, GOOD, "--output", f"html={page}", "--output", "json=-"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["parted"] is True
    assert "Identical up to step 2" in err
    assert page.read_text().startswith("<!doctype html>")
    assert main(["compare", GOOD, GOOD]) == 0
    assert "Identical at every shared step" in capsys.readouterr().out


def test_several_runs_in_one_place_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        (tmp_path / "sweep" / name).mkdir(parents=True)
        (tmp_path / "sweep" / name / "log.jsonl").write_bytes((Path(GOOD) / "metrics.jsonl").read_bytes())
        (tmp_path / "sweep" / name / "config.json").write_bytes((Path(GOOD) / "config.json").read_bytes())
    assert main(["compare", HOT, str(tmp_path / "sweep")]) == 2
    assert "RUN_B" in (said := capsys.readouterr().err)
    assert "holds 2 runs" in said


def test_no_evidence_ends_with_4_and_nothing_is_written_into_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    assert main(["compare", HOT, str(tmp_path / "empty")]) == 4
    assert main(["compare", HOT, GOOD, "--output", f"json={GOOD}/c.json"]) == 2
    assert "lies inside the run directory" in capsys.readouterr().err


def test_chinese_on_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", HOT, GOOD, "--lang", "zh"]) == 0
    assert "到第 2 步为止完全相同，从第 3 步起分开（loss）。" in capsys.readouterr().out
