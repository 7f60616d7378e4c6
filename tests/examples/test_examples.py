"""The examples as a user runs them, each command in a process of its own: train, replay, analyze."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from gradforensics.experiments import RESULTS, Result, result_from_json

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
PLAIN, TRAINER, LIGHTNING = (EXAMPLES / name for name in ("plain_loop", "hf_trainer", "lightning"))


def needs(framework: str) -> pytest.MarkDecorator:
    """Skip where a framework of the extra "samples" is not installed."""
    return pytest.mark.skipif(
        importlib.util.find_spec(framework) is None, reason=f"needs {framework} (pip install -e '.[samples]')"
    )


def process(*arguments: str | Path, codes: Iterable[int] = (0,)) -> str:
    """The standard output of a Python process that ended with one of the codes."""
    # on the CPU everywhere: what is compared bit for bit must run where it was recorded
    device = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    environment = {**os.environ, **device, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
        check=False,
    )
    assert done.returncode in codes, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def train(example: Path, run: Path, fault: str = "none") -> Path:
    """Run an example's script."""
    process(example / "train.py", run, "--fault", fault)
    return run


def replay(run: Path, folder: Path, *options: str | Path) -> dict[str, list[Result]]:
    """Replay a step with the experiments that are looked at; the results by experiment."""
    before = tree(run)
    asked = ("--experiment", "reproduce", "--experiment", "anomaly")
    process("-m", "gradforensics", "replay", run, "-o", folder, *asked, *options, codes=(0, 1))
    assert tree(run) == before, "replay wrote into the run directory"
    found: dict[str, list[Result]] = {}
    for line in (folder / RESULTS).read_text(encoding="utf-8").splitlines():
        result = result_from_json(json.loads(line))
        found.setdefault(result.experiment, []).append(result)
    return found


def tree(folder: Path) -> dict[Path, int]:
    """Every file and its time of change."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def analysis(run: Path, folder: Path, *options: str | Path) -> dict[str, Any]:
    """The one run in the JSON report."""
    report = folder / "report.json"
    html = folder / "report.html"
    process("-m", "gradforensics", "analyze", run, "-o", html, "--output", f"json={report}", *options, codes=(0, 1))
    (found,) = json.loads(report.read_text(encoding="utf-8"))["runs"]
    assert isinstance(found, dict)
    return found


def capsules(run: Path) -> list[str]:
    """The names of a run's capsules."""
    return sorted(path.name for path in (run / "capsules").glob("*")) if (run / "capsules").exists() else []


def assert_first_bad_value(results: dict[str, list[Result]], module: str, operation: str, sample: int) -> None:
    """The anomaly experiment and the fix."""
    (anomaly,) = results["anomaly"]
    assert anomaly.outcome == "fault"
    assert (anomaly.text("module"), anomaly.text("operation")) == (module, operation)
    assert anomaly.number("sample") == sample
    assert [result.outcome for result in results["fix"]] == ["verified"]


def assert_same_order(text: str, near_misses: Iterable[str] = ()) -> None:
    """Every step of every case was rebuilt with the samples that came."""
    cases = json.loads(text.splitlines()[-1])
    assert len(cases) >= 5
    for name, case in cases.items():
        wrong = [step for step, came in case["seen"].items() if came != case["rebuilt"][step]]
        assert len(case["seen"]) >= 6, name
        assert bool(wrong) == (name in near_misses), (name, wrong)


# -- the plain loop ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plain_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(PLAIN, tmp_path_factory.mktemp("plain") / "run", "entropy")


def test_the_plain_loop_leads_from_its_capsule_to_the_operation(plain_run, tmp_path):
    folder = tmp_path / "replay"
    found = replay(plain_run, folder, "--step", "60", "--trust-run-code", "--fix", PLAIN / "train.py:repaired")
    assert capsules(plain_run) == ["capsule-00000060"]
    assert_first_bad_value(found, "entropy", "log", 5)
    assert found["reproduce"][0].text("agreement") == "bitwise"
    report = analysis(plain_run, tmp_path, "--with", folder)
    assert report["primary"] == "GF11"
    assert "log" in json.dumps(next(v for v in report["verdicts"] if v["rule"] == "GF11"))


def test_the_plain_loop_without_the_fault_writes_no_capsule_and_raises_no_alarm(tmp_path):
    run = train(PLAIN, tmp_path / "run")
    assert capsules(run) == []
    assert not [v["rule"] for v in analysis(run, tmp_path)["verdicts"] if v["alarm"]]


# -- Hugging Face Trainer ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trainer_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(TRAINER, tmp_path_factory.mktemp("trainer") / "run", "mask")


@needs("transformers")
def test_the_trainer_example_leads_from_its_capsule_to_the_masked_row(trainer_run, tmp_path):
    folder = tmp_path / "replay"
    found = replay(trainer_run, folder, "--step", "6", "--fix", TRAINER / "train.py:repaired")
    assert "capsule-00000006" in capsules(trainer_run)
    assert_first_bad_value(found, "transformer.h.0.attn", "softmax", 3)
    assert found["anomaly"][0].number("micro_batch") == 1
    assert found["reproduce"][0].text("agreement") == "bitwise"
    report = analysis(trainer_run, tmp_path, "--with", folder)
    assert "softmax" in json.dumps(next(v for v in report["verdicts"] if v["rule"] == report["primary"]))


@needs("transformers")
def test_the_trainer_s_steps_come_out_as_logged_when_rolled_forward_from_a_checkpoint(trainer_run, tmp_path):
    state = json.loads((trainer_run / "checkpoint-6" / "trainer_state.json").read_text(encoding="utf-8"))
    (logged,) = (row for row in state["log_history"] if row["step"] == 5)
    program = ("--from", trainer_run / "checkpoint-3", "--program", TRAINER / "train.py:build")
    (result,) = replay(trainer_run, tmp_path / "5", "--step", "5", *program)["reproduce"]
    (recorded,) = (row for row in steps_of(trainer_run) if row["step"] == 5)
    assert result.number("loss", "replayed") == recorded["loss"]
    assert logged["loss"] == pytest.approx(recorded["loss"], rel=2e-7)  # the Trainer adds the micro-batches in float32
    assert result.outcome == "clean"


@needs("transformers")
def test_the_trainer_s_data_order_is_rebuilt_for_every_step(tmp_path):
    assert_same_order(process(HERE / "trainer_order.py", TRAINER, tmp_path))


# -- Lightning ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lightning_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(LIGHTNING, tmp_path_factory.mktemp("lightning") / "run", "distance")


@needs("lightning")
def test_the_lightning_example_leads_from_its_capsule_to_the_square_root(lightning_run, tmp_path):
    folder = tmp_path / "replay"
    options = ("--step", "6", "--trust-run-code", "--fix", LIGHTNING / "train.py:repaired")
    found = replay(lightning_run, folder, *options)
    assert "capsule-00000006" in capsules(lightning_run)
    assert_first_bad_value(found, "distance", "SqrtBackward0", 2)
    assert found["anomaly"][0].text("phase") == "backward"
    assert found["reproduce"][0].text("agreement") == "bitwise"
    report = analysis(lightning_run, tmp_path, "--with", folder)
    assert "SqrtBackward0" in json.dumps(next(v for v in report["verdicts"] if v["rule"] == report["primary"]))


@needs("lightning")
def test_lightning_s_steps_come_out_as_recorded_when_rolled_forward_over_the_end_of_an_epoch(tmp_path):
    run = train(LIGHTNING, tmp_path / "run")
    assert capsules(run) == []
    (recorded,) = (row for row in steps_of(run) if row["step"] == 10)
    program = ("--from", run / "checkpoints" / "step=6.ckpt", "--program", LIGHTNING / "train.py:build")
    (result,) = replay(run, tmp_path / "10", "--step", "10", *program)["reproduce"]
    assert result.number("loss", "replayed") == recorded["loss"]
    assert math.isfinite(recorded["loss"])


@needs("lightning")
def test_lightning_s_data_order_is_rebuilt_for_every_step(tmp_path):
    near_misses = {"near miss: dropout draws from the same generator"}
    assert_same_order(process(HERE / "lightning_order.py", LIGHTNING), near_misses)


def steps_of(run: Path) -> list[dict[str, Any]]:
    """The recorder's lines."""
    lines = (run / "gradforensics-steps.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]
