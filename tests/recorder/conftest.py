"""The small trainings of this folder, a recorder for them, and a replay of what it wrote."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from gradforensics import Recorder, capsule
from gradforensics.replay.program import Program
from gradforensics.replay.recording import from_capsule
from gradforensics.replay.step import StepRunner

_NAME = "recorder_trainings"
_SPEC = importlib.util.spec_from_file_location(_NAME, Path(__file__).with_name("trainings.py"))
assert _SPEC is not None
assert _SPEC.loader is not None
_TRAININGS = importlib.util.module_from_spec(_SPEC)
sys.modules[_NAME] = _TRAININGS  # the workers of a DataLoader look for its classes
_SPEC.loader.exec_module(_TRAININGS)


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def trainings():
    _TRAININGS.Training().run(steps=1)  # the first optimizer of a process loads much of torch
    return _TRAININGS


@pytest.fixture
def recording(tmp_path):
    """recording(**options) makes what Training.run takes: a maker of recorders that write to tmp_path."""

    def options_to_maker(**options):
        def make(model, optimizer, scaler, training):
            return Recorder(
                model, optimizer, tmp_path, scaler=scaler, max_grad_norm=training.clip,
                accumulation=training.accumulation, **options,
            )  # fmt: skip

        return make

    return options_to_maker


@pytest.fixture
def headers(tmp_path):
    """headers() are those of all capsules, by step."""
    return lambda: {header.step: header for header in map(capsule.read_header, capsule.find(tmp_path))}


@pytest.fixture
def runner(tmp_path):
    """runner(training, step) is a replay of the capsule of that step."""

    def of(training, step):
        folder = tmp_path / "capsules" / capsule.folder_name(step, 0, 1)
        return StepRunner(from_capsule(folder), Program(training.model(), _TRAININGS.loss_of), "cpu")

    return of
