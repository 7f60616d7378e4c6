"""The child may die in any way: what it was doing is told, the other experiments go on, and nothing stays behind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gradforensics.experiments import result_from_json
from gradforensics.replay import job as jobs
from gradforensics.replay import limits, parent
from gradforensics.replay.command import Options, carry_out, plan
from gradforensics.replay.sources import Wanted

# Every fault is met by one experiment, in this order; the last one meets none.
DEATHS = ("segfault", "abort", "exit")
SHORTAGES = ("python memory", "torch memory", "memory of a child", "device-side assert", "sys.exit")
EXPERIMENTS = ("reproduce", "anomaly", "precision", "severed", "accumulation", "checkpointing")


@pytest.fixture(scope="module")
def died(tmp_path_factory, capsules):
    """The results of two replays in which each experiment but the last meets a fault, by fault."""
    folder = tmp_path_factory.mktemp("died")
    started = []
    for faults, options in ((DEATHS, []), (SHORTAGES, ["--memory-limit", "0.65"])):
        home = folder / faults[0]
        settings = {"faults": list(faults), "count": str(home / "count")}
        capsules.write(home / "run", settings=settings, flags={"num_threads": 1})
        names = EXPERIMENTS[: len(faults) + 1]
        chosen = [part for name in names for part in ("--experiment", name)]
        command = ["-m", "gradforensics.cli", "replay", str(home / "run"), "--trust-run-code", "-o", str(home / "out")]
        process = subprocess.Popen(
            [sys.executable, *command, *chosen, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        started.append((faults, names, home, process))
    found = {}
    for faults, names, home, process in started:
        out, err = process.communicate(timeout=600)
        assert process.returncode == 0, out + err
        lines = (home / "out" / "experiments.jsonl").read_text().splitlines()
        results = [result_from_json(json.loads(line)) for line in lines]
        for name, fault in zip(names, [*faults, None], strict=True):
            found[fault or f"after {faults[-1]}"] = [one for one in results if one.experiment == name]
    found["home"] = folder
    return found


@pytest.mark.parametrize(
    ("fault", "how", "doing"),
    [
        ("segfault", "the process was killed by SIGSEGV", "faulty.py:"),
        ("abort", "the process was killed by SIGABRT", "faulty.py:"),
        ("exit", "the process ended with exit code 7", "giving up"),
        ("python memory", "it ran out of memory (memory limit 0.65 GB): MemoryError", "faulty.py:"),
        ("torch memory", "you tried to allocate 1099511627776 bytes", "faulty.py:"),
        ("memory of a child", "the memory limit of 0.65 GB was reached", "in misbehave"),
        ("device-side assert", "the device failed: RuntimeError: CUDA error: device-side assert", "faulty.py:"),
        ("sys.exit", "the program ended the process: exit code 5", "faulty.py:"),
    ],
)
def test_an_experiment_that_dies_says_how_and_where(died, fault, how, doing):
    (result,) = died[fault]
    assert result.outcome == "failed"
    assert how in result.result
    assert doing in result.result


@pytest.mark.parametrize("last", [f"after {DEATHS[-1]}", f"after {SHORTAGES[-1]}"])
def test_the_experiments_after_it_run_in_a_new_process(died, last):
    assert died[last]
    assert all(result.outcome not in ("failed", "not-run") for result in died[last])


def test_what_the_program_printed_is_kept(died):
    home = died["home"] / DEATHS[0] / "out"
    assert [f"about to misbehave: {fault}" for fault in DEATHS] == (home / "stdout.txt").read_text().splitlines()
    assert "giving up" in (home / "stderr.txt").read_text()
    header = json.loads((home / "replay.json").read_text())
    assert header["finished"] is True
    assert sorted(p.name for p in home.iterdir()) == ["experiments.jsonl", "replay.json", "stderr.txt", "stdout.txt"]


def test_one_that_hangs_is_ended_at_the_time_limit_with_all_that_it_started(tmp_path, capsules, monkeypatch):
    """The parent's clock races as long as the program hangs."""
    worker = tmp_path / "worker"
    settings = {"faults": ["hang with a worker"], "count": str(tmp_path / "count"), "worker": str(worker)}
    capsules.write(tmp_path / "run", settings=settings)

    ahead = 0.0

    def clock():
        nonlocal ahead
        if worker.exists() and worker.read_text() and is_alive(int(worker.read_text())):
            ahead += 1e5
        return time.monotonic() + ahead

    monkeypatch.setattr(parent, "time", SimpleNamespace(monotonic=clock, sleep=time.sleep))
    monkeypatch.setattr(parent, "_PATIENCE", 1e9)  # by the racing clock the usual seconds are over at once
    options = Options(Wanted(tmp_path / "run", trust=True), ("reproduce", "severed"), time_limit=5e5)
    replay = carry_out(plan(options), tmp_path / "out", force=False, say=lambda _: None)
    first, second = replay.results
    assert (first.experiment, first.outcome) == ("reproduce", "failed")
    assert "the time limit of 500000 s was reached" in first.result
    assert "faulty.py:" in first.text("doing")
    assert first.text("doing").endswith("in hang")
    assert (second.experiment, second.outcome) == ("severed", "clean")
    assert not is_alive(int(worker.read_text()))


def is_alive(process):
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_ctrl_c_ends_the_child_and_keeps_what_was_found(tmp_path, capsules):
    settings = {"faults": ["hang with a worker"], "count": str(tmp_path / "count"), "worker": str(tmp_path / "worker")}
    capsules.write(tmp_path / "run", settings=settings)
    command = [sys.executable, "-m", "gradforensics.cli", "replay", str(tmp_path / "run"), "--trust-run-code"]
    process = subprocess.Popen([*command, "-o", str(tmp_path / "out")], stderr=subprocess.PIPE, text=True)
    for _ in range(6000):
        if (tmp_path / "worker").exists() and (tmp_path / "worker").read_text():
            break
        time.sleep(0.05)
    worker = int((tmp_path / "worker").read_text())
    assert is_alive(worker)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "what was found until then lies in" in err
    assert "Traceback" not in err
    assert not is_alive(worker)
    assert json.loads((tmp_path / "out" / "replay.json").read_text())["finished"] is False


# -- limits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (MemoryError(), "memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"), "memory"),
        (RuntimeError("CUDA error: out of memory"), "memory"),
        (RuntimeError("CUDA error: device-side assert triggered"), "device"),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), "device"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling cublasGemmEx"), ""),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), ""),
        (ValueError("out of memory of what was said"), ""),
        (IndexError("index out of range in self"), ""),
    ],
)
def test_errors_that_end_a_process_are_told_from_those_that_do_not(error, kind):
    assert limits.fatal(error) == kind


def test_the_memory_of_all_processes_is_counted_and_shared_pages_once():
    code = (
        "import mmap, os, sys, time\n"
        "shared = mmap.mmap(-1, 60_000_000); shared.write(b'x' * 60_000_000)\n"
        "own = b'y' * 40_000_000\n"
        "for _ in range(2):\n"
        "    if os.fork() == 0: sum(own[::4096]); sum(shared[::4096]); time.sleep(60); os._exit(0)\n"
        "time.sleep(0.3); print('ready', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        mine = limits.processes_of(process.pid)
        assert len(mine) == 3
        used = limits.used_memory(mine, 0)
        assert 100e6 < used < 160e6
        assert limits.used_memory(mine, 1 << 60) > used  # the quick look counts shared pages for each process
    finally:
        limits.kill(process.pid)
        process.communicate()
    assert not any(is_alive(one) for one in mine)


def test_the_memory_that_is_available_is_known():
    available = limits.available_memory()
    assert available is not None
    assert 1 << 20 < available < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_the_last_words_are_those_at_the_end_of_a_long_output(tmp_path):
    errors = tmp_path / "stderr.txt"
    errors.write_text("of an earlier one\n" + "noise\n" * 400_000 + "the last words\n")
    child: Any = SimpleNamespace(
        _errors=errors, _said_before=18, _reason="", _process=SimpleNamespace(returncode=1), _place=lambda _: ""
    )
    assert parent._Child.ending(child).tail == "noise / noise / the last words"
    errors.write_text("of an earlier one\nown\n")
    assert parent._Child.ending(child).tail == "own"


# -- messages ----------------------------------------------------------------------------------------------------------


def test_messages_come_whole_out_of_pieces_and_foreign_lines_are_left_out():
    sent = jobs.line("started", experiment="anomaly", cost=1.5) + b"printed by a program\n[1]\n" + jobs.line("done")
    lines = jobs.Lines()
    found = [message for i in range(len(sent)) for message in lines.take(sent[i : i + 1])]
    assert [message["kind"] for message in found] == ["started", "done"]
    assert found[0]["cost"] == 1.5


def test_a_job_is_read_as_it_was_written(tmp_path):
    program = jobs.ProgramOf("function", "/a/b.py", "build", "00", {"seed": 1})
    job = jobs.Job(
        1, 7, "", "cpu", jobs.StateOf(checkpoint="c", first=3, capsules=("x",)), program, None, ("anomaly",), 3, None,
        {"loss": float("inf")}, None, False, ({"experiment": "reproduce"},),
    )  # fmt: skip
    read = jobs.read(jobs.write(tmp_path, job))
    assert read.program == program
    assert read.experiments == ("anomaly",)
    assert read.found == job.found
    assert read.logged == job.logged
    assert tuple(read.state.capsules) == ("x",)
