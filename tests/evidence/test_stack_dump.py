"""Where processes stood: dumps of py-spy and of Python's faulthandler."""

# ruff: noqa: E501  lines of dumps stand here as they are written

from pathlib import Path

import pytest

from gradforensics.evidence.files import File
from gradforensics.evidence.readers import console, stack_dump
from gradforensics.evidence.readers.stack_dump import waits_for

DATA = Path(__file__).parent / "data" / "events"
FAULT = """\
Current thread 0x00007f98c3932b80 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait
  File "/r/train.py", line 13 in train
  File "/r/train.py", line 19 in <module>
"""


def dumped(path, text, name="stacks.txt"):
    path = path / name
    path.write_text(text, encoding="utf-8")
    file = File(path, name, path.stat().st_size)
    return stack_dump.read(file) if stack_dump.sniff(file) else None


def test_py_spy(tmp_path):
    reading = dumped(tmp_path, (DATA / "pyspy.txt").read_text())
    first, second = reading.events
    assert {key: first.data[key] for key in ("command", "threads", "state", "waits")} == {
        "command": "/venv/bin/python wait.py 0", "threads": 1, "state": "idle", "waits": "collective",
    }  # fmt: skip
    assert first.data["frames"][0] == "all_reduce (torch/distributed/distributed_c10d.py:3252)"
    assert (second.data["threads"], second.data["waits"], second.line) == (2, "data loader", 13)
    assert second.data["frames"][-1] == "<module> (load.py:20)" or len(second.data["frames"]) == 8
    assert reading.speaks_of_training


def test_faulthandler(tmp_path):
    reading = dumped(tmp_path, (DATA / "faulthandler.txt").read_text())
    (event,) = reading.events
    assert (event.kind, event.data["threads"], event.data["waits"]) == ("stack", 2, "data loader")
    assert event.data["frames"][0].startswith("select (")


def test_several_processes_of_faulthandler(tmp_path):
    reading = dumped(tmp_path, FAULT + "\n" + FAULT)
    assert [(e.data["threads"], e.data["waits"]) for e in reading.events] == [(1, "lock"), (1, "lock")]


def test_ranks_are_told_by_the_label_the_command_or_the_file(tmp_path, run):
    labelled = "".join(f"[rank3]: {line}\n" for line in FAULT.splitlines())
    assert [e.rank for e in dumped(tmp_path, labelled).events] == [3]
    spy = 'Process 7: python train.py --local_rank=2\n\nThread 7 (idle): "MainThread"\n    f (train.py:3)\n'
    assert [e.rank for e in dumped(tmp_path, spy).events] == [2]
    run.write({f"stacks/rank_{i}.txt": FAULT for i in range(3)})
    run.write({"log.csv": "step,loss\n1,2.0\n2,1.0\n"})
    assert [e.rank for e in run.one().events] == [0, 1, 2]


@pytest.mark.parametrize(
    ("frames", "what"),
    [
        (["all_reduce (torch/distributed/distributed_c10d.py:1)"], "collective"), (["wait (megatron/core/pipeline_parallel/p2p_communication.py:3)"], "collective"),
        (["barrier (distributed_c10d.py)"], "collective"), (["Work.wait (torch/distributed/x.py:1)"], "collective"),
        (["wait (threading.py:1)", "get (queue.py:2)", "_next_data (dataloader.py:3)"], "data loader"), (["write (train.py:3)"], "file system"), (["save (torch/serialization.py:9)"], "file system"),
        (["synchronize (torch/cuda/__init__.py:9)"], "GPU"), (["readinto (socket.py:9)"], "network"), (["Lock.acquire (threading.py:1)"], "lock"), (["forward (model.py:12)"], None), ([], None),
    ],
)  # fmt: skip
def test_what_a_thread_waits_for(frames, what):
    assert waits_for(frames) == what


def test_the_stack_at_the_end_of_a_console_log_belongs_to_that_log(tmp_path):
    log = "".join(f"step {i} loss: {3 - i / 100}\n" for i in range(60)) + (DATA / "crash.log").read_text()
    reading = dumped(tmp_path, log, "train.log")
    assert reading is None or not reading.claimed
    path = tmp_path / "train.log"
    kinds = [e.kind for e in console.read(File(path, "train.log", path.stat().st_size)).events or []]
    assert kinds == ["killed"]


@pytest.mark.parametrize(
    "text", ["Thread 3 is idle\nProcess 4: done\n", "Process 1: python train.py\n", "x (most recent call first)\n"]
)
def test_what_is_no_dump(tmp_path, text):
    assert dumped(tmp_path, text) is None


def test_dumps_alone_are_evidence_of_a_training_that_hangs(run):
    run.write({"pyspy.txt": (DATA / "pyspy.txt").read_text()})
    evidence = run.one()
    assert [e.kind for e in evidence.events] == ["stack", "stack"]
    assert evidence.sources[0].reader == "stack-dump"
