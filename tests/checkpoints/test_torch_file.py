"""torch.save files, zip and legacy, against what torch itself loads."""

import argparse
import collections
import datetime as dt
import pathlib
import random
import struct
import zipfile

import numpy as np
import pytest

from gradforensics.checkpoints import tree
from gradforensics.checkpoints.formats import torch_file
from gradforensics.untrusted.files import Memory, RefusedError
from gradforensics.untrusted.inert import Record, Tensor


@pytest.fixture(params=[True, False], ids=["zip", "legacy"])
def saved(request, tmp_path, tools):
    """Save an object in both layouts and read it."""
    import torch

    def save(value):
        path = tmp_path / "x.pt"
        torch.save(value, path, _use_new_zipfile_serialization=request.param)
        return torch_file.read(tools.regular(path))

    return save


def tensors_of(root):
    return {".".join(path): leaf for path, leaf, _ in tree.walk(root) if isinstance(leaf, tree.LEAVES)}


DTYPES = (
    "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int64", "int32", "int16", "int8",
    "uint8", "bool", "complex64", "complex128",
)  # fmt: skip


def test_every_dtype_has_the_bytes_that_torch_has(saved, tools):
    import torch

    made = {name: (torch.arange(12).reshape(3, 4) % 2).to(getattr(torch, name)) for name in DTYPES}
    found = tensors_of(saved(made).root)
    assert {name: (leaf.dtype, leaf.shape) for name, leaf in found.items()} == {n: (n, (3, 4)) for n in DTYPES}
    assert {n: tools.raw(tree.reference(leaf, "")) for n, leaf in found.items()} == {
        n: tools.bytes_of(t) for n, t in made.items()
    }


def test_views_transposes_and_empty_tensors(saved, tools):
    import torch

    base = torch.randn(6, 8, 3)
    made = {
        "slice": base[2:4, 1:5], "transposed": base.permute(2, 0, 1), "stepped": base[::2, ::3], "row": base[1, :, 2],
        "empty": torch.empty(0, 3), "scalar": torch.tensor(3.5), "shared": base, "again": base, "tail": base[5:],
    }  # fmt: skip
    found = tensors_of(saved(made).root)
    assert {n: tools.raw(tree.reference(leaf, "")) for n, leaf in found.items()} == {
        n: tools.bytes_of(t) for n, t in made.items()
    }


def test_an_expanded_tensor_is_read_once(saved, tools):
    import torch

    ref = tree.reference(tensors_of(saved({"x": torch.randn(1, 4).expand(1000, 4)}).root)["x"], "")
    assert (ref.count, ref.stored, ref.repeat) == (4000, 4, 1000)


def test_parameters_and_modules(saved, tools):
    import torch

    found = tensors_of(saved(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))).root)
    assert set(found) == {
        "0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var", "1.num_batches_tracked",
    }  # fmt: skip


def test_plain_values_around_tensors(saved, tools):
    read = saved(
        {
            "args": argparse.Namespace(lr=1e-3, out=pathlib.Path("/x")), "loss": np.float64(1.5), "step": 7,
            "rng": (np.random.default_rng(0).integers(0, 9, 5), random.getstate()[:1]),
            "when": dt.datetime(2026, 1, 1, tzinfo=dt.UTC), "d": collections.defaultdict(list, {"a": [1]}),
        }
    )  # fmt: skip
    root = read.root
    assert isinstance(root["args"], Record)
    assert dict(root["args"].attributes()) == {"lr": 1e-3, "out": "/x"}
    assert (root["loss"], root["step"], root["d"]) == (1.5, 7, {"a": [1]})
    assert root["when"].path == "datetime.datetime"
    assert (
        tools.values(tree.reference(root["rng"][0], "")).tolist() == np.random.default_rng(0).integers(0, 9, 5).tolist()
    )
    assert read.uses["argparse.Namespace"].times_called == 1


def test_a_cut_zip_keeps_the_storages_that_are_whole(tmp_path, tools):
    import torch

    path = tmp_path / "x.pt"
    made = {f"t{i}": torch.full((100,), float(i)) for i in range(10)}
    torch.save(made, path)
    whole = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        starts = {i.filename.rpartition("/")[2]: i.header_offset for i in archive.infolist()}
    path.write_bytes(whole[: starts["6"] + 10])
    read = torch_file.read(tools.regular(path))
    found = tensors_of(read.root)
    kept = {
        n: tools.values(tree.reference(leaf, "")).tolist()
        for n, leaf in found.items()
        if leaf.storage.offset is not None
    }
    assert kept == {f"t{i}": [float(i)] * 100 for i in range(6)}
    assert (read.complete, len(read.missing), len(read.checks())) == (False, 4, 6)
    assert read.notices == ["the zip archive has no end record: the file is cut; 6 of 10 storages are whole"]
    with pytest.raises(RefusedError, match="its bytes are not in the file"):
        tree.reference(found["t9"], "")


def test_a_cut_legacy_file_keeps_the_storages_before_the_cut(tmp_path, tools):
    import torch

    path = tmp_path / "x.pt"
    torch.save([torch.arange(50.0), torch.arange(60.0)], path, _use_new_zipfile_serialization=False)
    path.write_bytes(path.read_bytes()[:-8])
    read = torch_file.read(tools.regular(path))
    assert not read.complete
    assert len(read.missing) == 1
    assert len([t for t in tensors_of(read.root).values() if t.storage.offset is not None]) == 1


def test_a_changed_byte_in_the_pickle_is_refused_and_in_a_storage_is_left_to_the_scan(tmp_path, tools):
    import torch

    path = tmp_path / "x.pt"
    torch.save({"weight": torch.zeros(64)}, path)
    whole = path.read_bytes()
    at = whole.index(b"weight")
    path.write_bytes(whole[:at] + b"W" + whole[at + 1 :])
    with pytest.raises(RefusedError, match="CRC-32 is wrong"):
        torch_file.read(tools.regular(path))
    path.write_bytes(whole)
    (check,) = torch_file.read(tools.regular(path)).checks()
    assert (check.count, check.crc) == (256, 0x0D968558)  # of 256 zero bytes


def test_tensors_inside_of_a_plain_pickle(tmp_path, tools):
    import pickle

    import torch

    path = tmp_path / "x.pkl"
    path.write_bytes(pickle.dumps({"a": np.arange(6.0).reshape(2, 3), "t": torch.ones(2)}))
    read = torch_file.read(tools.regular(path))
    assert read.kind == "pickle"
    assert tools.values(tree.reference(read.root["a"], "")).tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert tools.values(tree.reference(read.root["t"], "")).tolist() == [1.0, 1.0]


def test_big_endian_and_unknown_layouts_are_refused(tmp_path, tools):
    import torch

    path = tmp_path / "x.pt"
    torch.save({"a": torch.ones(2)}, path)
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(tmp_path / "y.pt", "w") as other:
        for info in archive.infolist():
            other.writestr(info, b"big" if info.filename.endswith("byteorder") else archive.read(info))
    with pytest.raises(RefusedError, match="big-endian"):
        torch_file.read(tools.regular(tmp_path / "y.pt"))
    with pytest.raises(RefusedError, match=r"without a data\.pkl"):
        torch_file.read(_zip({"a.txt": b"1"}))


def _zip(entries):
    import io

    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return Memory("x.zip", stream.getvalue())


def test_a_storage_that_is_too_small_for_its_tensor_is_refused(tools):
    import pickle
    import pickletools  # noqa: F401  documents the opcodes below

    body = (
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(("
        b"X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x04tQK\x00"
        b"K\x08\x85K\x01\x85\x89ccollections\nOrderedDict\n)RtR."
    )
    assert struct.calcsize("f") == 4
    assert pickle.dumps(1, 2)[:2] == body[:2]
    with pytest.raises(RefusedError, match="needs 32 bytes of a storage of 16"):
        torch_file.read(_zip({"a/data.pkl": body, "a/data/0": bytes(16)}))


def test_tensor_is_a_reference_and_no_data(tmp_path, tools):
    import torch

    path = tmp_path / "x.pt"
    torch.save(torch.ones(3), path)
    leaf = torch_file.read(tools.regular(path)).root
    assert isinstance(leaf, Tensor)
    assert (leaf.shape, leaf.stride, leaf.storage.nbytes) == ((3,), (1,), 12)
