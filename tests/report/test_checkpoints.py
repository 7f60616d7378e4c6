"""The report's section on checkpoints and the optimizer."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.resources import files
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from gradforensics.checkpoints.measure import frame
from gradforensics.diagnosis.causes import Diagnosis
from gradforensics.report import FORMATS, checkpoint_pieces
from gradforensics.report.build import build
from gradforensics.report.checkpoints import checkpoints
from gradforensics.report.terminal import render as summary
from gradforensics.tables import Evidence
from tests.report.page import page_of

HOSTILE = "<b onmouseover=alert(1)>\x1b[2J"


def checkpoint(step: int, **changes: Any) -> dict[str, Any]:
    return {
        "path": f"checkpoint-{step}", "format": "torch-zip", "step": step, "complete": True, "bytes": 4_200_000,
        "tensors": 3, "parameters": 1_000_000, "nonfinite": 0, "naming": "The order of the file names the states.",
        "naming_sure": "confirmed", **changes,
    }  # fmt: skip


def tensor(step: int, name: str, role: str = "param", **changes: Any) -> dict[str, Any]:
    return {
        "checkpoint": f"checkpoint-{step}", "step": step, "role": role, "name": name, "dtype": "bfloat16",
        "shape": [40, 25], "count": 1000, "nan": 0, "posinf": 0, "neginf": 0, "zero": 0, "subnormal": 0, "min": -1.0,
        "max": 2.0, "mean": 0.0, "std": 1.0, "key": name, "source": "model.pt", **changes,
    }  # fmt: skip


def group(step: int, number: int, **changes: Any) -> dict[str, Any]:
    return {
        "checkpoint": f"checkpoint-{step}", "group": number, "optimizer": "adamw", "lr": 3e-4, "betas": [0.9, 0.95],
        "eps": 1e-8, "weight_decay": 0.1, "names": ["a", "b"], "step_min": step, "step_max": step, "values": "{}",
        **changes,
    }  # fmt: skip


@pytest.fixture
def stored(sick: Diagnosis) -> Diagnosis:
    """A run with three checkpoints: one good, one with NaN, one later with more of them and a dangerous pickle."""
    sick.evidence.tables |= {
        "checkpoints": frame(
            "checkpoints",
            [checkpoint(100), checkpoint(200, nonfinite=7), checkpoint(300, nonfinite=2000, complete=False)],
        ),
        "tensors": frame(
            "tensors",
            [
                tensor(100, "a"),
                tensor(200, "few", nan=1),
                tensor(200, "many", "exp_avg", nan=4, neginf=2),
                tensor(200, "fine"),
                tensor(200, "a mask", "other", posinf=500),
                tensor(300, "later", nan=1000),
            ],
        ),
        "groups": frame("groups", [group(100, 0), group(300, 0, lr=0.0), group(300, 1, weight_decay=0.0, step_min=1)]),
        "calls": frame(
            "calls",
            [
                {"source": "a.bin", "name": "argparse.Namespace", "danger": False, "arguments": "()"},
                {"source": "b.pt", "name": "posix.system", "danger": True, "arguments": f"('{HOSTILE}')"},
                {"source": "c.pt", "name": "builtins.exec", "danger": True, "arguments": "('x')"},
            ],
        ),
    }
    return replace(sick, last_good_checkpoint="checkpoint-100")


def test_the_rows_of_a_run(stored: Diagnosis) -> None:
    found = checkpoints(stored.evidence, stored.last_good_checkpoint)
    assert found is not None
    assert [(row.path, row.last_good, row.nonfinite) for row in found.rows] == [
        ("checkpoint-100", True, 0), ("checkpoint-200", False, 7), ("checkpoint-300", False, 2000),
    ]  # fmt: skip
    assert (found.sick, found.bad) == ("checkpoint-200", 2)
    assert [(t.name, t.nan, t.inf) for t in found.worst] == [("many", 4, 2), ("few", 1, 0)]
    assert (found.newest, [g.lr for g in found.groups]) == ("checkpoint-300", [0.0, 3e-4])
    assert [call.name for call in found.calls] == ["posix.system", "builtins.exec", "argparse.Namespace"]
    assert [call.name for call in found.dangerous] == ["posix.system", "builtins.exec"]


def test_a_run_without_checkpoints_has_no_section(sick: Diagnosis) -> None:
    assert checkpoints(sick.evidence, None) is None
    report = build([sick], [])
    assert "Checkpoints and optimizer" not in page_of(report)
    (run,) = json.loads(FORMATS["json"](report))["runs"]
    assert (run["checkpoints"], run["calls"]) == (None, [])


def test_the_section_tells_it_all(stored: Diagnosis) -> None:
    page = page_of(build([stored], []))
    section = page[page.rindex("Checkpoints and optimizer") : page.rindex("Settings and notices")]
    told = [
        "would run this when they are loaded",
        "posix.system(",
        "builtins.exec(&#39;x&#39;)",
        "checkpoint-100",
        "last good",
        "4.2 MB",
        "1,000,000",
        "2,000",
        "Tensors that are not finite in checkpoint-200, the first with any",
        "many",
        "bfloat16 [40, 25]",
        "few",
        "Optimizer of checkpoint-300",
        "0.9, 0.95",
        "1–300",
        "The order of the file names the states.",
        "argparse.Namespace(",
    ]
    places = [section.index(text) for text in told]
    assert places == sorted(places)
    assert "a mask" not in section
    assert section.count("last good</span>") == 1


def test_what_was_not_measured_is_not_called_good(stored: Diagnosis) -> None:
    stored.evidence.tables["checkpoints"] = frame("checkpoints", [checkpoint(100, nonfinite=None, complete=None)])
    page = page_of(build([replace(stored, last_good_checkpoint=None)], []))
    section = page[page.rindex("Checkpoints and optimizer") : page.rindex("Settings and notices")]
    assert "not measured" in section
    assert "unknown" in section
    assert "not finite" not in section
    assert "last good" not in section


def test_names_and_arguments_are_hostile_input(stored: Diagnosis) -> None:
    stored.evidence.tables["checkpoints"] = frame("checkpoints", [checkpoint(1, path=HOSTILE, naming=HOSTILE)])
    stored.evidence.tables["groups"] = frame("groups", [group(1, 0, checkpoint=HOSTILE, optimizer=HOSTILE)])
    page = page_of(build([stored], []))
    assert "<b onmouseover" not in page
    assert "\x1b" not in page
    assert page.count("&lt;b onmouseover=alert(1)&gt;\\x1b[2J") >= 4


def test_many_rows_are_cut_and_the_newest_are_shown(stored: Diagnosis) -> None:
    many = [checkpoint(step) for step in range(checkpoint_pieces.CHECKPOINTS + 5)]
    stored.evidence.tables["checkpoints"] = frame("checkpoints", many)
    page = page_of(build([stored], []))
    assert f"checkpoint-{len(many) - 1}<" in page
    assert "checkpoint-4<" not in page
    assert "5 more are in the JSON report." in page


def test_the_section_in_chinese(stored: Diagnosis) -> None:
    page = page_of(build([stored], [], language="zh"))
    for text in ("检查点与优化器", "最后正常", "非有限张量", "checkpoint-300 的优化器", "此处未执行任何内容"):
        assert text in page


def test_the_json_report_holds_checkpoints_and_calls(stored: Diagnosis) -> None:
    data = json.loads(FORMATS["json"](build([stored], [])))
    jsonschema.Draft202012Validator(json.loads((files("gradforensics.report") / "schema.json").read_text())).validate(
        data
    )
    (run,) = data["runs"]
    assert run["last_good_checkpoint"] == "checkpoint-100"
    assert run["checkpoints"][1] == {
        "path": "checkpoint-200", "step": 200, "format": "torch-zip", "complete": True, "bytes": 4_200_000,
        "tensors": 3, "parameters": 1_000_000, "nonfinite": 7, "naming": "The order of the file names the states.",
        "naming_sure": "confirmed", "last_good": False,
    }  # fmt: skip
    assert run["calls"][1] == {"source": "c.pt", "name": "builtins.exec", "danger": True, "arguments": "('x')"}


def test_the_summary_names_the_last_good_checkpoint_and_the_danger(stored: Diagnosis) -> None:
    lines = summary(build([stored], []), color=False, width=100).splitlines()
    assert "  last good   checkpoint-100" in lines
    told = next(i for i, line in enumerate(lines) if line.startswith("  danger      posix.system('<b onmouseover"))
    assert "\x1b" not in lines[told]
    assert lines[told + 1].strip().endswith("nothing was run here (and 1 more)")


def test_pickles_alone_make_a_section(maker: Any) -> None:
    evidence = Evidence("run")
    evidence.tables["calls"] = frame("calls", [{"source": "a", "name": "os.system", "danger": True, "arguments": ""}])
    page = page_of(build([Diagnosis(evidence, ())], []))
    section = page[page.index("Checkpoints and optimizer") :]
    assert "os.system()" in section
    assert "<th>Checkpoint</th>" not in section
