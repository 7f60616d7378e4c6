"""--redact takes out who, where and on which machine, and leaves what proves the finding."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from gradforensics.diagnosis.causes import Diagnosis
from gradforensics.report import FORMATS
from gradforensics.report.build import build
from gradforensics.report.comparison import FORMATS as COMPARISONS
from gradforensics.report.comparison.model import build as compare
from gradforensics.report.model import Report
from gradforensics.report.redact import Redactor, redacted, redacted_comparison
from gradforensics.report.terminal import render as on_terminal
from gradforensics.tables import Event, Fact, Notice, Setting, Source

# every place where a record tells who ran it and where, as frameworks write it
TELLING = ("janedoe", "gpu-node-17", "10.11.12.13", "jane.doe@example.org", "secret-project", "corp.example", "Doe")


@pytest.fixture
def telling(sick: Diagnosis) -> Report:
    evidence = sick.evidence
    evidence.name = "exp-7"
    evidence.path = "/home/janedoe/secret-project/exp-7"
    evidence.settings = [
        *(evidence.settings or []),
        Setting("output_dir", "output_dir", "/home/janedoe/secret-project/out", "config.yaml", 9),
        Setting("user", "user", "Jane Doe", "config.yaml", 10),
        Setting("master_addr", "MASTER_ADDR", "10.11.12.13", "config.yaml", 11),
        Setting("data", "data", "s3://secret-project/data.parquet", "config.yaml", 12),
    ]
    evidence.events = [
        Event("exception", "RuntimeError: loss is nan", "train.log", 412, host="gpu-node-17"),
        Event(
            "exception", '  File "/home/janedoe/secret-project/train.py", line 40, in main', "train.log", 411,
            host="gpu-node-17",
        ),
        Event("nccl", "[W socket.cpp] connect to [gpu-node-17.corp.example]:29500 (10.11.12.13) failed", "x.log", 3),
        Event("resume", "pushed by jane.doe@example.org to https://git.corp.example/secret-project", "x.log", 4),
        Event("resume", r"loading C:\Users\janedoe\secret-project\last.pt", "x.log", 5),
    ]  # fmt: skip
    evidence.environment = [Fact("host", "gpu-node-17", "env.json"), Fact("username", "janedoe", "env.json")]
    evidence.notices = [Notice("x.log", 1, "gpu-node-17: the file /scratch/users/janedoe/x.log changed")]
    fired = tuple(
        replace(v, facts={**v.facts, "run": evidence.path}) if v.outcome == "fired" else v for v in sick.verdicts
    )
    diagnosis = replace(sick, verdicts=fired, primary=fired[0])
    return redacted(build([diagnosis], [Source("train.log", 5, "ab" * 32, "console")]), [Path(evidence.path)])


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_no_output_tells_who_and_where(telling: Report, name: str) -> None:
    text = FORMATS[name](telling)
    assert [word for word in TELLING if word in text] == []
    assert socket.gethostname() not in text


def test_the_terminal_does_not_tell_it_either(telling: Report) -> None:
    text = on_terminal(telling, color=False, width=100)
    assert [word for word in TELLING if word in text] == []


def test_the_proofs_stay_and_hosts_can_be_told_apart(telling: Report) -> None:
    text = FORMATS["json"](telling)
    run = json.loads(text)["runs"][0]
    assert (run["name"], run["primary"], run["ending"]["line"]) == ("exp-7", "GF05", 412)
    assert 'File \\"train.py\\", line 40' in text
    assert "What of exp-7: from step 120" in text
    hosts = {event["host"] for event in run["events"] if event["host"]}
    assert len(hosts) == 1
    assert hosts.pop().startswith("host-")
    assert "RuntimeError: loss is nan" in text
    assert "ab" * 32 in text


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("/data/jane/x/train.py:12", "…/train.py:12"),
        ("/opt/conda/lib/python3.11/site-packages/torch/nn/modules/linear.py", "…/torch/nn/modules/linear.py"),
        ("~/runs/exp/loss.csv", "…/loss.csv"),
        (r"D:\work\jane\a.pt", "…/a.pt"),
        ("file:///home/jane/a.html", "file://…/a.html"),
        ("see https://git.example.org/jane/x", "see https://…"),
        ("write to a.b+c@example.co.uk, please", "write to e-mail, please"),
        ("peer 10.0.0.5 lost", "peer address-1 lost"),
        ("checkpoint-300/trainer_state.json", "checkpoint-300/trainer_state.json"),
        ("loss 0.5/1.0, tokens/s and/or N/A", "loss 0.5/1.0, tokens/s and/or N/A"),
        ("nvidia-cublas-cu12==12.4.5.8", "nvidia-cublas-cu12==12.4.5.8"),
        ("12.4.5.8", "12.4.5.8"),
        ("listening on 127.0.0.1:6006", "listening on 127.0.0.1:6006"),
        ("step 12:30:45", "step 12:30:45"),
        ("a@1 of model.layers.0", "a@1 of model.layers.0"),
    ],
)
def test_texts_lose_places_and_keep_the_rest(text: str, left: str) -> None:
    assert Redactor([], []).text(text) == left


def test_one_name_becomes_one_word_everywhere_and_only_as_a_whole() -> None:
    redactor = Redactor(["node1", "node10"], ["jane", "root", "ab"])
    assert (
        redactor.text("node10 and node1 by jane (janet, root, ab)") == "host-2 and host-1 by user-1 (janet, root, ab)"
    )


def test_what_is_marked_in_a_quoted_line_stays_marked(sick: Diagnosis) -> None:
    line = '/home/janedoe/secret-project/log.py: {"loss": 1.65, "step": 120}'
    report = build([sick], [], lines=[{("log.jsonl", 24): line}])
    redact = redacted(report, [Path("runs/exp-7")])
    for before, after in zip(report.runs[0].findings, redact.runs[0].findings, strict=True):
        for old, new in zip(before.hits, after.hits, strict=True):
            assert [old.excerpt[a:b] for a, b in old.marked] == [new.excerpt[a:b] for a, b in new.marked]
    (hit,) = [h for h in redact.runs[0].findings[0].hits if h.line == 24]
    assert hit.excerpt == '…/log.py: {"loss": 1.65, "step": 120}'
    assert [hit.excerpt[a:b] for a, b in hit.marked] == ["1.65"]
    assert redact.runs[0].primary is redact.runs[0].findings[0]


def test_a_comparison_does_not_tell_it_either(sick: Diagnosis) -> None:
    here = sick.evidence
    here.path = "janedoe/exp-7"
    here.environment = [Fact("host", "gpu-node-17", "env.json"), Fact("gpu", "H100", "env.json")]
    here.notices = [Notice("x.log", 1, "/home/janedoe/x.log changed on gpu-node-17")]
    there = replace(here, name="exp-8", path="janedoe/exp-8", environment=[Fact("gpu", "A100", "env.json")])
    found = redacted_comparison(compare(here, there), [here, there], [Path(here.path), Path(there.path)])
    for name, render in COMPARISONS.items():
        text = render(found)
        assert [word for word in TELLING if word in text] == [], name
    assert (found.here.path, found.there.path) == ("exp-7", "exp-8")
