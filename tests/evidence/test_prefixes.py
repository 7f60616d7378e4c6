"""What stands in front of a log line: ranks, hosts, moments."""

# ruff: noqa: E501  lines of logs stand here as they are written

import random

import pytest

from gradforensics.evidence import prefixes
from gradforensics.evidence.prefixes import Prefix, read

NEW_YEAR = 1767225600.0  # 2026-01-01 00:00:00 UTC


@pytest.mark.parametrize(
    ("line", "want"),
    [
        ("[rank3]: Traceback", (3, None, None, "Traceback", "[rank3]:")),
        ('[rank3]:   File "x"', (3, None, None, '  File "x"', "[rank3]:")),
        ("[default5]:x", (5, None, None, "x", "[default5]:")),
        ("[trainer3|0]:x", (3, None, None, "x", "[trainer3|0]:")),
        ("12: x", (12, None, None, "x", "12:")), (" 3: x", (3, None, None, "x", "3:")), ('7:   File "x"', (7, None, None, '  File "x"', "7:")),
        ("0: [default0]:[2026-01-01 00:00:00,250] [INFO] x", (0, "task 0", NEW_YEAR + 0.25, "[INFO] x", "0: [default0]:")),
        ("3: [default5]: x", (5, "task 3", None, "x", "3: [default5]:")), ("3: [rank29]: x", (29, None, None, "x", "3: [rank29]:")),
        ("node3: [rank12]: x", (12, "node3", None, "x", "node3: [rank12]:")), ("worker-1: x", (None, "worker-1", None, "x", "worker-1:")),
        ("10.0.0.3: x", (None, "10.0.0.3", None, "x", "10.0.0.3:")), ("ip-10-0-0-3.ec2.internal: x", (None, "ip-10-0-0-3.ec2.internal", None, "x", "ip-10-0-0-3.ec2.internal:")),
        ("jz-iam06: [rank1]: x", (1, "jz-iam06", None, "x", "jz-iam06: [rank1]:")),
        ("(WorkerDict pid=12, ip=10.0.0.2)   File", (None, "10.0.0.2", None, "  File", "(WorkerDict pid=12, ip=10.0.0.2)")),
        ("(TaskRunner pid=1) x", (None, None, None, "x", "(TaskRunner pid=1)")), ("(EngineCore_0 pid=77) x", (None, None, None, "x", "(EngineCore_0 pid=77)")),
        ("(VllmWorker rank=2 pid=88) x", (2, None, None, "x", "(VllmWorker rank=2 pid=88)")), ("(WorkerDict pid=9) [rank3]: x", (3, None, None, "x", "(WorkerDict pid=9) [rank3]:")),
        ("[node07:0] x", (0, "node07", None, "x", "[node07:0]")), ("[1,3]<stdout>:x", (3, None, None, "x", "[1,3]<stdout>:")), ("[prterun-n1-2@1,3]<stderr>: x", (3, None, None, "x", "[prterun-n1-2@1,3]<stderr>:")),
        ("[rank: 0] Received SIGTERM: 15", (0, None, None, "Received SIGTERM: 15", "[rank: 0]")),
        ("2026-01-01T00:00:00.500000000Z stderr F   File", (None, None, NEW_YEAR + 0.5, "  File", "")), ("2026-01-01T01:00:00+01:00 12: x", (12, None, NEW_YEAR, "x", "12:")),
        ("[2026-01-01 00:00:00,000][__main__][INFO] - [rank: 2] x", (2, None, NEW_YEAR, "[__main__][INFO] - [rank: 2] x", "")),
        ("Thu Jan  1 00:00:00 2026 x", (None, None, NEW_YEAR, "x", "")), ("[Thu Jan  1 00:00:00 2026] x", (None, None, NEW_YEAR, "x", "")),
        ("1767225600.500000 node1 kernel: x", (None, None, NEW_YEAR + 0.5, "node1 kernel: x", "")),
        ("Nov 30 00:12:10 node7 kernel: x", (None, "node7", None, "kernel: x", "")),  # syslog names no year
        ("I1129 12:00:00.123456 12345 file.cc:12] x", (None, None, None, "x", "")),  # nor does glog
        ("[rank0]:[E321 02:07:08.408271257 ProcessGroupNCCL.cpp:607] [Rank 2] Watchdog", (0, None, None, "Watchdog", "[rank0]:")),
        ("[E ProcessGroupNCCL.cpp:458] [Rank 7] Watchdog", (7, None, None, "[E ProcessGroupNCCL.cpp:458] [Rank 7] Watchdog", "")),
        ("[12:00:01] x", (None, None, None, "x", "")),
    ],
)  # fmt: skip
def test_prefixes(line, want):
    assert read(line) == Prefix(*want)


@pytest.mark.parametrize(
    "line",
    [
        "Epoch 3: loss 1.0", "step 5: loss 1.0", "Error: 3", "[engine.py:123] x", "[INFO|trainer.py:2128] x", "loss: 2.3", "checkpoint-500: saved", "layer12: 0.3", "{'loss': 1}", "  indented",
        "", "[", "(", "[rank]: x", "(pid) x", "[1,2,3] x", "{12: 3}",
    ],
)  # fmt: skip
def test_lines_without_a_prefix(line):
    assert read(line) == Prefix(None, None, None, line, "")


def test_a_moment_that_is_none_is_not_told():
    assert read("2026-13-41 00:00:00 x").time is None
    assert read("Mon Feb 31 00:12:10 2026 x").time is None
    assert prefixes.iso_seconds("2026/01/01 00:00:00") == NEW_YEAR


def test_the_rank_of_a_row_is_only_told_in_brackets():
    assert prefixes.rank_of("[rank3]: step 1 loss 2") == 3
    assert prefixes.rank_of("[2026-01-01 00:00:00,250] [INFO] [Rank 1] step=1") == 1
    assert prefixes.rank_of("100: loss 2.0") is None


def test_any_text_is_read_in_bounded_time():
    generator = random.Random(3)
    parts = [
        "[rank",
        "3",
        "]: ",
        "(",
        "pid=",
        ")",
        " ",
        "2026-01-01",
        "T",
        "00:00:00",
        ":",
        "12",
        "node",
        "-",
        ".",
        "é",
        "\t",
        "[1,",
        "]<stdout>",
    ]
    for _ in range(3000):
        text = "".join(generator.choices(parts, k=generator.randint(1, 60)))
        assert text.endswith(read(text).rest)
    for text in (
        "(" * 5000,
        "[" * 5000,
        "a-" * 3000,
        "a." * 3000,
        "(x " * 2000 + "pid=1",
        "1: " * 2000,
        "[rank1]: " * 2000,
    ):
        assert text.endswith(read(text).rest)
