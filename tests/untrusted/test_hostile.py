"""Every malicious or broken file by name: nothing is executed, it costs little, and the outcome is the expected one."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gradforensics.checkpoints import load
from gradforensics.checkpoints.discover import find
from gradforensics.checkpoints.formats import torch_file
from gradforensics.untrusted.files import RegularFile
from tests.untrusted.hostile import PICKLES
from tests.untrusted.hostile_costs import COSTS, SAFETENSORS
from tests.untrusted.hostile_files import FILES

CASES = [*PICKLES, *FILES, *COSTS, *SAFETENSORS]


def watched(folder, *options):
    """The child's reports by file name; whatever is written to no certain place is written into the folder."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("watched.py")), str(folder), *options],
        check=True, capture_output=True, text=True, cwd=folder,
    )  # fmt: skip
    return {report["file"]: report for report in map(json.loads, done.stdout.splitlines())}


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """What became of every file. They lie in a folder in which anything that is executed leaves a trace."""
    folder = tmp_path_factory.mktemp("hostile")
    command = f"touch {folder / 'CANARY'}"
    for case in CASES:
        (folder / case.file).write_bytes(case.make(command))
    before = sorted(path.name for path in folder.iterdir())
    found = watched(folder)
    assert sorted(path.name for path in folder.iterdir()) == before  # no CANARY, nothing removed
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.file)
def test_a_hostile_file_is_only_data(case, reports):
    report = reports[case.file]
    assert "crashed" not in report
    assert "raised" not in report
    assert report["events"] == []
    assert report["seconds"] < 5
    assert report["megabytes"] < 300
    if case.refused:
        assert report["refused"]
        assert re.search(case.refused, report["refused"])
        assert len(report["refused"]) < 500
    else:
        assert report["refused"] is None
        assert not case.notice or any(re.search(case.notice, text) for text in report["notices"])
    assert set(report["danger"]) == set(case.danger)
    assert set(report["other"]) == set(case.other)


def test_no_two_hostile_files_share_a_name():
    assert len({case.file for case in CASES}) == len(CASES)


def test_the_arguments_of_a_dangerous_call_are_listed(reports):
    report = reports["say-inst.pt"]
    assert re.fullmatch(r"'touch .*CANARY'", report["arguments"][0])


def test_a_healthy_file_beside_hostile_ones_is_read_and_they_are_named(tmp_path):
    import torch

    torch.save({"weight": torch.arange(6.0)}, tmp_path / "healthy.pt")
    cases = {case.file.replace(".pkl", ".pt"): case for case in CASES if case not in COSTS}
    for name, case in cases.items():
        (tmp_path / name).write_bytes(case.make("true"))
    files = [RegularFile(path, path.name, path.stat().st_size) for path in sorted(tmp_path.iterdir())]
    found = {loaded.checkpoint.path: loaded.checkpoint for loaded in map(load.load, find(files))}
    assert [tensor.name for tensor in found["healthy.pt"].tensors] == ["weight"]
    for name, case in cases.items():
        if name.endswith(".pt") and torch_file.looks_like_one((tmp_path / name).read_bytes()[:4]):
            assert {call.name for call in found[name].calls if call.danger} == set(case.danger)
        if name in found and case.refused:
            assert found[name].notices


def test_the_watching_sees_what_a_pickle_does(tmp_path):
    folder = tmp_path / "evidence"
    folder.mkdir()
    evil = next(case for case in PICKLES if case.file == "break-nothing-behind.pkl")
    (folder / "evil.pkl").write_bytes(evil.make(f"touch {tmp_path / 'CANARY'}"))
    (folder / "opens.pkl").write_bytes(f"cbuiltins\nopen\n(V{tmp_path / 'opened'}\nVw\ntR.".encode())
    (folder / "imports.pkl").write_bytes(b"ccolorsys\nrgb_to_hsv\n.")
    found = watched(folder, "evil")
    assert (tmp_path / "CANARY").exists()
    assert any(event.startswith("os.system") for event in found["evil.pkl"]["events"])
    assert any(event.startswith(f"open ('{tmp_path / 'opened'}'") for event in found["opens.pkl"]["events"])
    assert any(event.startswith("import ('colorsys'") for event in found["imports.pkl"]["events"])
