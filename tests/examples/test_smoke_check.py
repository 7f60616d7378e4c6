"""The smoke check and the workflow as a user runs them."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from gradforensics.cli import commands, main

EXAMPLES = Path(__file__).parents[2] / "examples"
CHECK = EXAMPLES / "smoke_check"
WORKFLOW = EXAMPLES / "github_workflow" / "smoke-check.yml"


def smoke_check(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(CHECK / "smoke_check.py"), str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a check that found nothing."""
    folder = tmp_path_factory.mktemp("healthy")
    done = smoke_check(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No alarm" in done.stdout
    return folder


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a check that found the fault."""
    folder = tmp_path_factory.mktemp("faulty")
    done = smoke_check(folder, "--fault", "root")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "metrics.jsonl:20: GF11 [S1 proven]" in done.stdout
    return folder


def test_the_check_passes_without_the_fault_and_leaves_its_reports(healthy: Path) -> None:
    assert (healthy / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert "No alarm" in (healthy / "report.md").read_text(encoding="utf-8")


def test_the_check_fails_with_the_fault(faulty: Path) -> None:
    assert "`metrics.jsonl:20`" in (faulty / "report.md").read_text(encoding="utf-8")


def test_a_check_without_arguments_says_how_to_call_it() -> None:
    done = subprocess.run([sys.executable, str(CHECK / "smoke_check.py")], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "python smoke_check.py FOLDER" in done.stderr


# -- the workflow ------------------------------------------------------------------------------------------------------


def steps() -> list[dict[str, Any]]:
    """The steps of the workflow's one job."""
    workflow = YAML(typ="safe").load(WORKFLOW)
    (job,) = workflow["jobs"].values()
    found: list[dict[str, Any]] = job["steps"]
    return found


def own_commands() -> list[list[str]]:
    """The arguments of every call of gradforensics in the workflow."""
    lines = [line for step in steps() for line in step.get("run", "").splitlines()]
    return [shlex.split(line)[1:] for line in lines if line.startswith("gradforensics ")]


def test_the_workflow_asks_for_the_permissions_that_its_steps_need() -> None:
    workflow = YAML(typ="safe").load(WORKFLOW)
    assert workflow["permissions"] == {"contents": "read", "actions": "read", "security-events": "write"}
    assert {"pull_request", "workflow_dispatch"} <= set(workflow["on"])


@pytest.mark.parametrize(("kind", "code"), [("healthy", 0), ("faulty", 1)])
def test_the_commands_of_the_workflow_run_and_make_what_its_other_steps_use(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, code: int
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "report").mkdir()
    (tmp_path / "runs" / "smoke").symlink_to(request.getfixturevalue(kind) / "run")
    (command,) = own_commands()
    assert command[0] in commands.commands
    assert main(command) == code
    used = {
        str(step["with"].get("path", step["with"].get("sarif_file")))
        for step in steps()
        if "upload" in step.get("uses", "")
    }
    assert used == {"report/", "report/report.sarif"}
    assert {path.name for path in (tmp_path / "report").iterdir()} == {
        f"report.{suffix}" for suffix in ("html", "json", "md", "sarif", "xml")
    }


def test_the_training_step_is_what_the_check_ran(healthy: Path) -> None:
    (line,) = [step["run"] for step in steps() if step.get("name") == "Train 50 steps"]
    assert shlex.split(line, comments=True) == ["python", "train.py", "runs/smoke", "--steps", "50"]
    assert '"--steps", STEPS' in (CHECK / "smoke_check.py").read_text(encoding="utf-8")
    assert len((healthy / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()) == 50
