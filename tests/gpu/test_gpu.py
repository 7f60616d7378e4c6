"""What only a CUDA device can show. scripts/gpu_check runs these; without a device they are skipped."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from gradforensics import Recorder

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
FAULTS = Path(__file__).parents[1] / "replay" / "faults" / "tiny.py"
PROGRAMS = Path(__file__).parent / "programs.py"


@pytest.fixture
def tiny(load_module):
    return load_module("tiny", FAULTS)


@pytest.fixture
def programs(load_module):
    return load_module("gpu_programs", PROGRAMS)


def replay(run, tmp_path, *options):
    out = tmp_path / "replayed"
    command = [sys.executable, "-m", "gradforensics.cli", "replay", run, "-o", out, "--device", "cuda", *options]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, timeout=240)
    assert "Traceback" not in done.stderr
    lines = (out / "experiments.jsonl").read_text().splitlines()
    return done, [json.loads(line) for line in lines]


def text(results, experiment, name):
    found = [q for r in results if r["experiment"] == experiment for q in r["quantities"] if q["name"] == name]
    return found[0]["text"] if found else ""


def of(results, experiment):
    return [r for r in results if r["experiment"] == experiment]


def test_an_overflow_of_fp16_under_autocast_is_named_and_gone_in_float32(tiny, tmp_path):
    tiny.train("fp16-overflow", tmp_path / "run", "cuda", at_steps=())
    capsules = list((tmp_path / "run" / "capsules").iterdir())
    assert capsules, "the recorder wrote no capsule"
    done, results = replay(
        tmp_path / "run", tmp_path, "--trust-run-code", "--experiment", "anomaly", "--experiment", "precision"
    )
    assert done.returncode == 1, done.stderr
    assert text(results, "anomaly", "module").startswith("blocks.0.mlp")
    assert "verified" in [r["outcome"] for r in of(results, "precision")]


def test_a_device_side_assert_costs_one_experiment_and_the_content_is_judged_all_the_same(tiny, tmp_path):
    tiny.train("label-out-of-range", tmp_path / "run")  # on the CPU: an assert would end this process
    _, results = replay(
        tmp_path / "run", tmp_path, "--trust-run-code", "--experiment", "reproduce", "--experiment", "content"
    )
    assert of(results, "reproduce")
    assert "fault" in [r["outcome"] for r in of(results, "content")]


def test_running_out_of_device_memory_is_named_and_the_other_experiments_go_on(programs, tmp_path):
    _recorded(tmp_path / "run", programs.greedy())
    _, results = replay(
        tmp_path / "run", tmp_path, "--program", f"{PROGRAMS}:greedy", "--memory-limit", "2",
        "--experiment", "reproduce", "--experiment", "severed",
    )  # fmt: skip
    assert any("memory" in r["conclusion"] + r["result"] for r in of(results, "reproduce"))
    assert of(results, "severed")


def test_a_kernel_with_atomics_is_called_nondeterministic(programs, tmp_path):
    _recorded(tmp_path / "run", programs.scattering())
    _, results = replay(
        tmp_path / "run", tmp_path, "--program", f"{PROGRAMS}:scattering", "--experiment", "reproduce", "--runs", "5"
    )
    numbers = {q["name"]: q["value"] for r in of(results, "reproduce") for q in r["quantities"]}
    assert numbers["deterministic"] == 0


def test_steps_that_record_nothing_never_wait_for_the_device(tmp_path):
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    x, y = torch.randn(32, 64, device="cuda"), torch.randint(8, (32,), device="cuda")
    with Recorder(model, optimizer, tmp_path, log_every=5) as recorder:
        for step in range(40):
            if step == 5:  # whatever is set up once is set up by now
                torch.cuda.synchronize()
                torch.cuda.set_sync_debug_mode("error")
            recorder.batch((x, y))
            loss = recorder.loss(nn.functional.cross_entropy(model(x), y))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        torch.cuda.set_sync_debug_mode("default")
    lines = (tmp_path / "gradforensics-steps.jsonl").read_text().splitlines()
    assert len(lines) == 40


def _recorded(run, made):
    """A capsule of one step of a program of programs.py, recorded on the CPU."""
    optimizer = torch.optim.SGD(made["model"].parameters(), lr=0.1)
    with Recorder(made["model"], optimizer, run, at_steps=[1]) as recorder:
        batch = recorder.batch((torch.randn(4096, 16), torch.randint(4, (4096,))))
        recorder.loss(made["loss"](made["model"], batch)).backward()
        optimizer.step()
