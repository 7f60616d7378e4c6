"""What a capsule says about the code: the program with the files that it needs, and the model of transformers."""

import hashlib
import importlib.util
import logging
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import gradforensics
from gradforensics import Recorder, capsule
from gradforensics.recorder import sources
from gradforensics.replay.program import Request, load
from gradforensics.replay.recording import from_capsule
from gradforensics.replay.step import StepRunner

TRAIN = """
import torch
import own_parts.model

def build(request):
    model = own_parts.model.Model(request.settings["width"])
    return {"model": model, "loss": lambda model, x: model(x).square().mean()}
"""
MODEL = """
from torch import nn

class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layer = nn.Linear(3, width)

    def forward(self, x):
        return self.layer(x)
"""


@pytest.fixture
def user(tmp_path, monkeypatch):
    """The user's module train.py, with a package and a file that is never imported beside it."""
    folder = tmp_path / "code"
    (folder / "own_parts").mkdir(parents=True)
    (folder / "train.py").write_text(TRAIN)
    (folder / "own_parts" / "__init__.py").write_text("")
    (folder / "own_parts" / "model.py").write_text(MODEL)
    (folder / "secret.py").write_text("KEY = 1")
    monkeypatch.syspath_prepend(folder)
    spec = importlib.util.spec_from_file_location("user_train", folder / "train.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["user_train"] = module
    spec.loader.exec_module(module)
    yield module
    for name in ("user_train", "train", "own_parts", "own_parts.model"):
        sys.modules.pop(name, None)


def record(folder, model, program, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder(model, optimizer, folder, program=program, at_steps=(1,), **options) as recorder:
        x = recorder.batch(torch.randn(4, 3))
        recorder.loss(model(x).square().mean()).backward()
        optimizer.step()
    return next(iter(capsule.find(folder)))


def test_the_program_is_replayed_from_the_copies_in_the_capsule(user, tmp_path, monkeypatch):
    settings = {"width": 5, "path": tmp_path}  # what JSON cannot hold becomes its text
    folder = record(tmp_path / "run", user.own_parts.model.Model(5), user.build, settings=settings)
    header = capsule.read_header(folder)
    assert header.program is not None
    assert (header.program.kind, header.program.file, header.program.function) == ("function", "train.py", "build")
    assert header.program.settings == {"width": 5, "path": str(tmp_path)}
    copied = sorted(path.relative_to(folder / "code").as_posix() for path in (folder / "code").rglob("*.py"))
    assert copied == ["own_parts/__init__.py", "own_parts/model.py", "train.py"]
    monkeypatch.setattr(sys, "path", [*sys.path])
    program = load(folder / "code" / "train.py", "build", Request(1, "cpu", header.program.settings))
    assert StepRunner(from_capsule(folder), program, "cpu").compute().loss == header.steps[0].loss


def test_the_copies_are_those_of_the_training_not_of_a_later_edit(user, tmp_path):
    model = user.own_parts.model.Model(5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder(model, optimizer, tmp_path / "run", program=user.build, at_steps=(1,)) as recorder:
        (tmp_path / "code" / "train.py").write_text("broken")
        recorder.loss(model(recorder.batch(torch.randn(4, 3))).mean()).backward()
        optimizer.step()
    folder = next(iter(capsule.find(tmp_path)))
    assert (folder / "code" / "train.py").read_text() == TRAIN
    program = capsule.read_header(folder).program
    assert program is not None
    assert program.sha256 == hashlib.sha256(TRAIN.encode()).hexdigest()


def test_copies_are_bounded(user, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "_MOST_BYTES", len(TRAIN) + len(MODEL) - 1)
    found = sources.of_program(user.build, nn.Linear(1, 1), {})
    assert sorted(found.files) == ["own_parts/__init__.py", "train.py"]
    monkeypatch.setattr(sources, "_MOST_FILES", 1)
    assert sorted(sources.of_program(user.build, nn.Linear(1, 1), {}).files) == ["train.py"]


def test_a_function_inside_a_function_cannot_be_found_again_and_the_log_says_so(tmp_path, caplog):
    def build(request):
        return {}

    with caplog.at_level(logging.WARNING):
        header = capsule.read_header(record(tmp_path, nn.Linear(3, 2), build))
    assert header.program is None
    assert any("no function at the top level" in notice for notice in header.notices)
    assert any("replay then needs --program" in one.message for one in caplog.records)


def test_asking_for_the_recorder_is_what_loads_torch():
    code = "import gradforensics, gradforensics.cli, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert gradforensics.Recorder is Recorder
    with pytest.raises(AttributeError, match="no attribute 'Recording'"):
        _ = gradforensics.Recording


def test_frameworks_are_imported_in_their_adapters_only():
    frameworks = re.compile(r"^\s*(?:import|from) (transformers|lightning|accelerate|polars)\b", re.MULTILINE)
    folder = Path(sources.__file__).parent
    found = {path.stem: set(frameworks.findall(path.read_text(encoding="utf-8"))) for path in folder.glob("*.py")}
    assert {name: used for name, used in found.items() if used} == {
        "huggingface": {"transformers"}, "lightning": {"lightning"},
    }  # fmt: skip
