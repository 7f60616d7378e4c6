"""Whatever bytes a file holds: no crash, no hang, no defect of a reader."""

# ruff: noqa: E501  lines of logs and files stand here as they are written

import json
import random
import time

import pytest

from gradforensics.errors import NoEvidenceError

JSONL = "".join(json.dumps({"step": i, "loss": 2.5 / (i + 1), "lr": 1e-3, "split": "train"}) + "\n" for i in range(20))
STATE = json.dumps(
    {"global_step": 5, "max_steps": 9, "log_history": [{"step": i, "loss": 1.5, "epoch": 0.5} for i in range(5)]},
    indent=1,
)
SEEDS = {
    "m.jsonl": JSONL,
    "trainer_state.json": STATE,
    "trainer_log.jsonl": '{"current_steps": 1, "total_steps": 9, "loss": 1.0, "remaining_time": "0:01:00"}\n' * 4,
    "all_results.json": '{"train_loss": 0.5, "epoch": 1.0, "train_runtime": 2}',
    "history.json": '{"loss": [1.0, 0.5, NaN], "val_loss": [1, 2, 3]}',
    "metrics.csv": 'epoch,step,train_loss,note\n0,1,0.5,"a, b"\n0,2,nan,\n1,3,inf,x\n',
    "train.log": "step 1/5 loss: 2.0 lr 1e-3\n{'loss': 2.0, 'epoch': 0.1}\r 1/5 [0:00]\nTraceback (most recent call last):\n  File \"x\"\nValueError: x\n",
    "config.yaml": "lr: 1e-4\nepochs: 3\nbetas: [0.9, 0.95]\nx: &a {y: 1}\nz: *a\n",
    "config.toml": 'lr = 1e-4\nepochs = 3\n[a]\nb = "c"\n',
    "dmesg.txt": "[  1.5000000] NVRM: Xid (PCI:0000:9b:00): 79, pid=7, name=python, x\n[  2.5000000] INFO: task python:7 blocked for more than 120 seconds.\n[  2.6000000] Call Trace:\n[  2.7000000]  schedule+0x1/0x2\n",
    "gpu.txt": "==============NVSMI LOG==============\nDriver Version : 525.60.13\nGPU 00000000:07:00.0\n    ECC Errors\n        Volatile\n            DRAM Uncorrectable : 3\n    Temperature\n        GPU Current Temp : 99 C\n        GPU Slowdown Temp : 89 C\n",
    "stacks.txt": 'Process 7: python train.py\nPython v3.11.7 (/usr/bin/python3.11)\n\nThread 7 (idle): "MainThread"\n    all_reduce (distributed_c10d.py:1)\n    <module> (train.py:2)\n',
    "config.json": '{"learning_rate": 0.1, "max_steps": 5, "a": {"b": [1, 2]}}',
}
TOKENS = [
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b'"',
    b"\n",
    b"\r",
    b"nan",
    b"1e999",
    b"-",
    b"\x00",
    b"\xff\xfe",
    b"\xe9",
    b"\t",
    b"'",
    b"/",
    b"9" * 40,
    b"\x1b[1m",
    b"&a",
    b"*a",
    b"null",
    b"true",
    b" " * 30,
]


def mutated(data, generator):
    data = bytearray(data)
    for _ in range(generator.randint(1, 6)):
        place = generator.randrange(len(data) + 1)
        match generator.randrange(4):
            case 0:
                data[place:place] = generator.choice(TOKENS)
            case 1:
                del data[place : place + generator.randint(1, 40)]
            case 2:
                data[place : place + 1] = bytes([generator.randrange(256)])
            case _:
                del data[place:]
        data = data or bytearray(b"x")
    return bytes(data)


@pytest.mark.parametrize("name", SEEDS)
def test_mutated_files(run, name):
    generator = random.Random(name)
    for _ in range(150):
        content = mutated(SEEDS[name].encode(), generator)
        run.write({name: content, "ok.csv": "step,my_loss\n1,2\n2,1\n"})
        found = run.all()
        defects = [n.text for e in found for n in e.notices if "defect" in n.text]
        assert not defects, (defects, content)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.log", b"\n" * 300_000), ("b.jsonl", b'{"loss": ' * 5000), ("c.csv", b"," * 2_000_000), ("d.csv", b"step,loss\n" + b'"' * 300_000),
        ("trainer_state.json", b"[" * 300_000), ("e.json", b'{"a":' * 50_000), ("f.yaml", b"lr: 1\nepochs: 2\n" + b"- " * 3000), ("g.log", b"step 1 loss: 1 " * 200_000),
        ("h.log", b"\r" * 2_000_000 + b"step 1 loss: 2\n"), ("i.log", b"loss " * 500_000), ("j.log", b"{'loss': " * 20_000), ("k.toml", b"a = " + b"[" * 5000),
        ("l.log", b"step 1 loss: " + b"1" * 1_000_000), ("m.log", b"\x1b[" * 500_000), ("n.log", b"a " * 30_000 + b"loss: 1 step 2\n"), ("o.log", (b"Traceback (most recent call last):\n" + b"  x\n" * 5) * 5000),
    ],
)  # fmt: skip
def test_hostile_files_are_read_in_bounded_time(run, name, content):
    run.write({name: content})
    start = time.perf_counter()
    try:
        found = run.all()
    except NoEvidenceError:
        found = []
    assert time.perf_counter() - start < 10
    assert not [n.text for e in found for n in e.notices if "defect" in n.text]


def test_every_file_may_be_a_directory_or_have_any_name(run):
    run.write(
        {
            "trainer_state.json/x.csv": "step,loss\n1,2\n2,1\n",
            "log.csv/metrics.jsonl": "{}",
            "a b\n'c.log": "x",
            "-rf.csv": "step,loss\n1,2\n",
        }
    )
    (run.path / b"caf\xe9.csv".decode("utf-8", "surrogateescape")).write_text("step,loss\n1,5\n2,4\n3,2\n")
    paths = {s.path for e in run.all() for s in e.sources}
    assert {"trainer_state.json/x.csv", "-rf.csv", "caf\\xe9.csv"} <= paths
