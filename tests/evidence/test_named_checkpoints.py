"""Checkpoints that a user names: how they are called, and where they lie."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from gradforensics.errors import NoEvidenceError, UsageError
from gradforensics.evidence.named_checkpoints import open_named, open_one, open_pair


def weights(path: Path, name: str = "w") -> Path:
    """A safetensors file with one tensor of one number."""
    header = json.dumps({name: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(header)) + header + struct.pack("<f", 1.0))
    return path


def test_names_begin_with_the_folder_that_was_named(tmp_path: Path) -> None:
    weights(tmp_path / "run" / "checkpoint-3" / "model.safetensors")
    weights(tmp_path / "run" / "checkpoint-20" / "model.safetensors")
    found = open_named([tmp_path / "run"])
    assert [one.checkpoint.path for one in found.loaded] == ["run/checkpoint-3", "run/checkpoint-20"]
    assert [one.checkpoint.step for one in found.loaded] == [3, 20]
    assert [found.path(one.checkpoint) for one in found.loaded] == [
        (tmp_path / "run" / "checkpoint-3").resolve(), (tmp_path / "run" / "checkpoint-20").resolve(),
    ]  # fmt: skip
    (one,) = open_named([tmp_path / "run" / "checkpoint-3"]).loaded
    assert (one.checkpoint.path, one.checkpoint.step) == ("checkpoint-3", 3)


def test_a_file_alone_is_called_after_its_folder_too(tmp_path: Path) -> None:
    file = weights(tmp_path / "checkpoint-7" / "anything.safetensors")
    found = open_named([file])
    (one,) = found.loaded
    assert (one.checkpoint.path, one.checkpoint.step) == ("checkpoint-7/anything.safetensors", 7)
    assert found.path(one.checkpoint) == file.resolve()


def test_files_of_one_checkpoint_that_are_named_together_are_one(tmp_path: Path) -> None:
    files = [weights(tmp_path / f"model-0000{i}-of-00002.safetensors", f"w{i}") for i in (1, 2)]
    odd = weights(tmp_path / "odd.safetensors")
    (one,) = open_named(files).loaded
    assert [tensor.name for tensor in one.checkpoint.tensors] == ["w1", "w2"]
    assert len(open_named([*files, odd]).loaded) == 2


def test_inputs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    folders = [weights(tmp_path / run / "checkpoint-1" / "model.safetensors").parent for run in ("a", "b")]
    assert [one.checkpoint.path for one in open_named(folders).loaded] == ["a/checkpoint-1", "b/checkpoint-1"]
    one, other = open_pair(*folders)
    assert (one.checkpoint.path, other.checkpoint.path) == ("a/checkpoint-1", "b/checkpoint-1")


def test_what_holds_nothing_becomes_a_notice(tmp_path: Path) -> None:
    weights(tmp_path / "run" / "model.safetensors")
    (tmp_path / "run" / "junk.pt").write_bytes(b"no checkpoint")
    found = open_named([tmp_path / "run"])
    assert len(found.loaded) == 1
    assert [notice.source for notice in found.notices] == ["run/junk.pt"]


def test_a_path_without_checkpoints_is_an_error_that_says_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "cut.safetensors").write_bytes(b"\x10")
    with pytest.raises(NoEvidenceError, match=r"no checkpoint that could be read \(.*cut.safetensors: not read"):
        open_named([tmp_path])


def test_one_checkpoint_is_wanted(tmp_path: Path) -> None:
    for step in range(25):
        weights(tmp_path / f"checkpoint-{step}" / "model.safetensors")
    with pytest.raises(UsageError, match=r"holds 25 checkpoints; name one of them: .*checkpoint-0, .* and 5 more"):
        open_one(tmp_path)
