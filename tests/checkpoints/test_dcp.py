"""torch.distributed.checkpoint directories, of one process and of several."""

from math import prod
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradforensics.checkpoints.formats import dcp
from gradforensics.checkpoints.refs import Lost, Run, TensorRef, read
from gradforensics.untrusted.files import Memory, RefusedError

DATA = Path(__file__).parent / "data"


def opened(folder, tools):
    files = {path.name: tools.regular(path) for path in folder.iterdir() if path.is_file()}
    return dcp.read(files[".metadata"], files)


@pytest.fixture
def saved(tmp_path, trained):
    """A directory that torch writes without a process group, and the objects in it."""
    import warnings

    import torch.distributed.checkpoint as torch_dcp

    net, optimizer, _ = trained.make()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that there is no process group
        torch_dcp.save(  # type: ignore[attr-defined]  # torch does not list it in __all__
            {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "step": 3}, checkpoint_id=tmp_path
        )
    return tmp_path, net, optimizer


def test_tensors_and_values_are_those_that_were_saved(saved, tools):
    folder, net, optimizer = saved
    found = opened(folder, tools)
    assert (found.complete, found.notices, found.ordered) == (True, [], True)
    assert list(found.root) == ["model", "optimizer", "step"]
    model = net.state_dict()
    assert list(found.root["model"]) == list(model)
    assert {n: tools.raw(r) for n, r in found.root["model"].items()} == {n: tools.bytes_of(t) for n, t in model.items()}
    theirs = optimizer.state_dict()
    mine = found.root["optimizer"]
    for index, state in theirs["state"].items():
        assert {k: tools.raw(r) for k, r in mine["state"][str(index)].items()} == {
            k: tools.bytes_of(t) for k, t in state.items()
        }
    assert [g["lr"] for g in mine["param_groups"]] == [g["lr"] for g in theirs["param_groups"]]
    assert [g["params"] for g in mine["param_groups"]] == [g["params"] for g in theirs["param_groups"]]
    assert found.root["step"] == 3


def test_a_missing_data_file_loses_the_tensors_but_not_their_names(saved, tools):
    folder, net, _ = saved
    (folder / "__0_0.distcp").unlink()
    found = opened(folder, tools)
    assert not found.complete
    assert found.notices == ["1 of 1 data files are missing, such as __0_0.distcp"]
    assert {n: t.shape for n, t in found.root["model"].items()} == {
        n: tuple(t.shape) for n, t in net.state_dict().items()
    }
    assert all(isinstance(t, Lost) for t in found.root["model"].values())


def test_a_cut_data_file_keeps_the_chunks_before_the_cut(saved, tools):
    folder, _, _ = saved
    path = folder / "__0_0.distcp"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    found = opened(folder, tools)
    leaves = [leaf for part in found.root["model"].values() for leaf in [part]]
    assert not found.complete
    assert any(isinstance(leaf, TensorRef) for leaf in leaves) or any(isinstance(leaf, Lost) for leaf in leaves)
    assert "chunks cannot be read" in found.notices[0]


def test_two_ranks_of_fsdp2_are_joined(tools):
    found = opened(DATA / "fsdp2_dcp", tools)
    assert found.files == ["__0_0.distcp", "__1_0.distcp"]
    weight = found.root["model"]["emb.weight"]
    assert (weight.shape, weight.stored, len({run.file.name for run in weight.runs})) == ((50, 16), 800, 2)
    reference = np.load(DATA / "fsdp2_dcp.npz")
    for name, ref in found.root["model"].items():
        assert np.array_equal(tools.values(ref), reference[f"model.{name}"])
    for name, state in found.root["optim"]["state"].items():
        assert np.array_equal(tools.values(state["exp_avg"]), reference[f"optim.{name}.exp_avg"])


def test_megatron_directories_have_no_paths(tools):
    found = opened(DATA / "megatron_dist" / "iter_0000010", tools)
    name = "decoder.layers.0.mlp.linear_fc1.weight"
    assert np.array_equal(tools.values(found.root[name]), np.arange(64 * 32, dtype=np.float32).reshape(64, 32))
    assert np.allclose(
        tools.values(found.root[f"optimizer.state.exp_avg.{name}"]), np.arange(2048).reshape(64, 32) * 0.1, rtol=1e-6
    )
    assert not found.ordered


def test_a_path_out_of_the_directory_is_not_followed(saved, tools, tmp_path_factory):
    folder, _, _ = saved
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "__0_0.distcp"
    (folder / "__0_0.distcp").rename(elsewhere)
    raw = (folder / ".metadata").read_bytes()
    target = b"/etc/pass/wd"  # as long as __0_0.distcp
    assert raw.count(b"__0_0.distcp") >= 1
    (folder / ".metadata").write_bytes(raw.replace(b"__0_0.distcp", target))
    found = opened(folder, tools)
    assert not found.complete
    assert all(isinstance(t, Lost) for t in found.root["model"].values())


# -- joining ----------------------------------------------------------------------------------------------------------


@st.composite
def grids(draw):
    """A shape and where it is cut along each of its dimensions."""
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=3)))
    return shape, [sorted({0, *draw(st.lists(st.integers(0, n), max_size=2)), n}) for n in shape]


@given(grids(), st.randoms(use_true_random=False))
def test_chunks_of_any_grid_are_put_together(grid, random):
    shape, cuts = grid
    whole = np.arange(prod(shape), dtype=np.float32).reshape(shape)
    parts = []
    for index in np.ndindex(*(len(c) - 1 for c in cuts)):
        low = tuple(c[i] for c, i in zip(cuts, index, strict=True))
        high = tuple(c[i + 1] for c, i in zip(cuts, index, strict=True))
        chunk = np.ascontiguousarray(whole[tuple(slice(a, b) for a, b in zip(low, high, strict=True))])
        memory = Memory(str(index), chunk.tobytes())
        parts.append((low, chunk.shape, TensorRef("float32", chunk.shape, (Run(memory, 0, chunk.size),))))
    random.shuffle(parts)
    joined = dcp.join("float32", shape, parts)
    data = read(joined)
    assert np.array_equal(data.view(np.float32).reshape(shape), whole)


def test_gaps_and_chunks_beyond_the_tensor_are_refused():
    memory = Memory("x", bytes(16))
    ref = TensorRef("float32", (2,), (Run(memory, 0, 2),))
    with pytest.raises(RefusedError, match="elements 2 to 4 are in no chunk"):
        dcp.join("float32", (4,), [((0,), (2,), ref)])
    with pytest.raises(RefusedError, match="beyond its tensor"):
        dcp.join("float32", (4,), [((3,), (2,), ref)])
    assert dcp.join("float32", (2,), [((0,), (2,), ref), ((0,), (2,), ref)]).stored == 2
