"""When a report was made and by which command: shown, in the JSON, and without what gives access."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from gradforensics.cli import main
from gradforensics.diagnosis.causes import Diagnosis
from gradforensics.report import as_json
from gradforensics.report.build import build
from gradforensics.report.provenance import Provenance, provenance
from tests.report.page import Page, page_of

MADE = Provenance("2026-01-02T03:04:05Z", "gradforensics analyze 'my runs/a'", "0.1.0", "3.11.7", "Linux x86_64")


def test_the_footer_tells_date_command_and_version(healthy: Diagnosis) -> None:
    page = page_of(build([healthy], [], made=MADE))
    footer = page[page.index("<footer>") :]
    assert '<time datetime="2026-01-02T03:04:05Z">' in footer
    assert "<code>gradforensics analyze &#39;my runs/a&#39;</code>" in footer
    assert "Python 3.11.7, Linux x86_64" in Page(footer[: footer.index("</footer>") + 9]).text


def test_a_command_with_hundreds_of_paths_is_folded(healthy: Diagnosis) -> None:
    made = replace(MADE, command="gradforensics analyze " + " ".join(f"runs/{i}" for i in range(400)))
    page = page_of(build([healthy], [], made=made))
    footer = page[page.index("<footer>") :]
    assert "runs/399" not in footer[footer.index("<summary>") : footer.index("</summary>")]
    assert made.command in footer


def test_the_json_tells_it_too(healthy: Diagnosis) -> None:
    assert as_json.data(build([healthy], [], made=MADE))["made"]["date"] == "2026-01-02T03:04:05Z"
    assert as_json.data(build([healthy], []))["made"] is None


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (["analyze", "my runs/a"], "gradforensics analyze 'my runs/a'"),
        (["analyze", "a", "--set", "hub_token=abcdefgh1234"], "gradforensics analyze a --set 'hub_token=***'"),
        (["analyze", "a", "--set=hub_token=abcdefgh1234"], "gradforensics analyze a '--set=hub_token=***'"),
        (["analyze", "https://me:pw@host/x"], "gradforensics analyze https://host/x"),
        (["analyze", "a", "--set=vocab_size=32000"], "gradforensics analyze a --set=vocab_size=32000"),
        (["analyze", "$(rm x)"], "gradforensics analyze '$(rm x)'"),
    ],
)
def test_the_command_can_be_pasted_and_gives_no_access(typed: list[str], told: str) -> None:
    made = provenance(typed)
    assert made.command == told
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", made.date)
    assert made.again == ""


def test_the_command_line_hands_over_what_was_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run").mkdir()
    Path("run/log.csv").write_text("step,loss\n" + "".join(f"{s},{3 - s / 100}\n" for s in range(1, 30)))
    main(
        ["analyze", "run", "--set", "vocab_size=9", "--set", "api_key=abcdefgh12", "--no-tensors", "--output", "json=-"]
    )
    made = json.loads(capsys.readouterr().out)["made"]
    options = "--set vocab_size=9 --set 'api_key=***' --no-tensors"
    assert made["command"] == f"gradforensics analyze run {options} --output json=-"
    assert made["again"] == f"gradforensics analyze {options}"


@pytest.mark.parametrize(("told", "date"), [("0", "1970-01-01T00:00:00Z"), ("1700000000", "2023-11-14T22:13:20Z")])
def test_the_date_may_be_given_from_outside(monkeypatch: pytest.MonkeyPatch, told: str, date: str) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", told)
    assert provenance([]).date == date


@pytest.mark.parametrize("told", ["", "today", "-1", "9" * 30])
def test_a_date_that_is_none_is_passed_over(monkeypatch: pytest.MonkeyPatch, told: str) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", told)
    assert provenance([]).date >= "2026"
