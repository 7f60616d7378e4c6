"""Capsules from strangers: whatever they hold, a message names the file, before the step runs."""

import json
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from gradforensics import capsule as formats
from gradforensics.errors import CapsuleError, GradforensicsError
from gradforensics.replay.program import understood
from gradforensics.replay.recording import from_capsule
from gradforensics.replay.step import StepRunner

DEEP: dict[str, Any] = {"value": 1}
for _ in range(40):
    DEEP = {"list": [DEEP]}


@pytest.fixture(scope="module")
def written(tmp_path_factory, capsules):
    folder = capsules.write(tmp_path_factory.mktemp("run"), 7, flags={"num_threads": 1})
    return folder, json.loads((folder / formats.HEADER).read_text())


def changed(header, path, value):
    """A copy with another value at a path; NotImplemented: without it."""
    header = json.loads(json.dumps(header))
    *parents, last = path
    inner = header
    for key in parents:
        inner = inner[key]
    if value is NotImplemented:
        del inner[last]
    else:
        inner[last] = value
    return header


STEP, MICRO = ("steps", 0), ("steps", 0, "micro_batches", 0)


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        (("step",), 7.0, "step is number, no whole number"),
        (("step",), True, "step is true or false"),
        (("step",), 1 << 62, "step is out of range"),
        (("reason",), NotImplemented, "'reason' is missing"),
        (("tool",), ["x"], "tool is list, no text"),
        (("flags",), [], "flags is list, no object"),
        (("scalars",), 3, "scalars is whole number"),
        (("tied",), {"a": ["b"]}, "tied a is list"),
        (("frozen",), "0.weight", "frozen is text, no list"),
        (("groups",), [3], "a group is whole number"),
        (("settings",), {"deep": DEEP}, "settings is nested more than 32 deep"),
        (("time",), 10**400, "beyond the range of float64"),
        (("program", "file"), None, "file is null, no text"),
        (("program", "settings"), None, "settings is null, no object"),
        (STEP, None, "a step is null, no object"),
        ((*STEP, "step"), float("inf"), "step is number"),
        ((*STEP, "loss"), -(10**400), "beyond the range of float64"),
        ((*STEP, "options"), [[1]], "options is list, no object"),
        ((*MICRO, "autocast"), {"device": "cpu", "enabled": 1, "dtype": "float16"}, "enabled is whole number"),
        ((*MICRO, "autocast"), {"device": "cpu", "enabled": True, "dtype": "save"}, "'save' is no dtype of torch"),
        ((*MICRO, "backward"), "missing", "'missing' is missing"),
        ((*MICRO, "backward"), "0.0", "a backward that starts from torch.float32 of [4, 4]"),
        ((*MICRO, "batch"), DEEP, "nested more than 16 deep"),
        ((*MICRO, "batch"), {"tensor": "missing"}, "the tensor 'missing' is missing"),
        ((*MICRO, "rng", "numpy", "pos"), 10**6, "NumPy's random state"),
        ((*MICRO, "rng", "numpy", "pos"), float("inf"), "infinity"),
        ((*MICRO, "rng", "cpu"), "0.0", "ByteTensor"),
        ((*MICRO, "rng", "python", "words"), "0.0", ""),
    ],
)
def test_a_header_that_is_not_as_it_should_be_is_refused_by_name_before_the_step_runs(written, path, value, complaint):
    folder, header = written
    from_capsule(folder, formats.read_header(folder))
    try:
        (folder / formats.HEADER).write_text(json.dumps(changed(header, path, value)))
        with pytest.raises(CapsuleError) as error:
            from_capsule(folder, formats.read_header(folder))
    finally:
        (folder / formats.HEADER).write_text(json.dumps(header))
    assert str(folder / formats.HEADER) in str(error.value)
    assert complaint in str(error.value)


def test_a_step_without_micro_batches_is_refused_and_not_called_clean(written, tmp_path):
    folder, header = written
    (tmp_path / formats.HEADER).write_text(json.dumps(changed(header, (*STEP, "micro_batches"), [])))
    for file in folder.glob("*.safetensors"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    with pytest.raises(CapsuleError, match="step 7 has no micro-batch"):
        from_capsule(tmp_path)


def test_reading_a_capsule_leaves_the_random_generators_alone(written):
    before = torch.get_rng_state()
    from_capsule(written[0])
    assert torch.equal(torch.get_rng_state(), before)


def test_a_broken_tensor_file_is_named(written, tmp_path):
    folder, _ = written
    for name in (formats.MODEL, formats.BATCHES):
        whole = (folder / name).read_bytes()
        for broken in (b"", whole[:100], b"\xff" * 64, whole[:-4]):
            (folder / name).write_bytes(broken)
            with pytest.raises(CapsuleError, match=name):
                from_capsule(folder)
        (folder / name).write_bytes(whole)


@pytest.mark.parametrize("value", [torch.zeros(8, 5), torch.zeros(8, 4, dtype=torch.int64), None])
def test_weights_of_another_model_are_refused(written, capsules, value):
    folder, _ = written
    tensors = load_file(folder / formats.MODEL)
    spoiled = {name: tensor for name, tensor in tensors.items() if name != "0.weight"}
    save_file(spoiled if value is None else {**spoiled, "0.weight": value}, folder / formats.MODEL)
    try:
        recording = from_capsule(folder)
        with pytest.raises(GradforensicsError, match=r"0\.weight"):
            StepRunner(recording, understood(capsules.build(), "x"), "cpu")
    finally:
        save_file(tensors, folder / formats.MODEL)
