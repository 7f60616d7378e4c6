"""DeepSpeed directories: partitions of ZeRO 1 and 3 of two ranks, joined to parameters."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from gradforensics.checkpoints.formats import deepspeed
from gradforensics.checkpoints.refs import Lost
from gradforensics.checkpoints.tree import reference

DATA = Path(__file__).parent / "data"
NAMES = ["emb.weight", "l1.weight", "l1.bias", "norm.weight", "norm.bias", "l2.weight", "l2.bias"]
SHAPES = [(50, 16), (32, 16), (32,), (32,), (32,), (50, 32), (50,)]


def opened(folder, tools):
    return deepspeed.read({path.name: tools.regular(path) for path in sorted(folder.iterdir())})


def masters(found, tools):
    (part,) = found.parts
    return {t.name: tools.values(reference(t.leaf, "")) for t in part.content.tensors if t.role == "master"}


def weights(found, tools):
    (part,) = found.parts
    return {t.name: tools.values(reference(t.leaf, "")) for t in part.content.tensors if t.role == "param"}


def test_zero1_masters_are_the_weights_of_the_model(tools):
    found = opened(DATA / "ds_zero1_fp32" / "global_step3", tools)
    assert (found.complete, found.notices) == (True, [])
    joined, model = masters(found, tools), weights(found, tools)
    assert [(name, value.shape) for name, value in joined.items()] == list(zip(NAMES, SHAPES, strict=True))
    assert all(np.array_equal(joined[name], model[name]) for name in NAMES)


def test_zero1_masters_rounded_to_bfloat16_are_the_weights_of_the_model(tools):
    import torch

    found = opened(DATA / "ds_zero1_bf16" / "global_step3", tools)
    joined, model = masters(found, tools), weights(found, tools)
    for name in NAMES:
        rounded = torch.from_numpy(joined[name].copy()).bfloat16().float().numpy()
        assert np.array_equal(rounded, model[name])


def test_zero3_joins_to_what_zero1_trained_from_the_same_seed(tools):
    first = opened(DATA / "ds_zero1_fp32" / "global_step3", tools)
    third = opened(DATA / "ds_zero3_fp32" / "global_step3", tools)
    assert (third.complete, weights(third, tools)) == (True, {})  # empty tensors stand for the partitioned weights
    one, three = masters(first, tools), masters(third, tools)
    assert list(three) == NAMES
    assert all(np.allclose(one[name], three[name], rtol=1e-5, atol=1e-7) for name in NAMES)


@pytest.mark.parametrize("folder", ["ds_zero1_bf16", "ds_zero3_fp32"])
def test_groups_states_and_counters(folder, tools):
    (part,) = opened(DATA / folder / "global_step3", tools).parts
    ((_, optimizer),) = part.content.optimizers
    (group,) = optimizer["param_groups"]
    assert (group["betas"], group["eps"], group["weight_decay"]) == ((0.9, 0.999), 1e-8, 0.1)
    assert group["lr"] == pytest.approx(1e-3 * np.log(3) / np.log(5))  # WarmupLR warms up in the logarithm of the step
    assert group["params"] == NAMES
    assert {name: state["step"] for name, state in optimizer["state"].items()} == dict.fromkeys(NAMES, 3)
    assert all(np.isfinite(tools.values(state["exp_avg_sq"])).all() for state in optimizer["state"].values())
    assert (part.content.step, part.content.facts["skipped_steps"]) == (3, 0)
    assert ("ds_config.optimizer.params.lr", 1e-3) in [(f"ds_config.{n}", v) for n, v in part.content.settings]


@pytest.fixture
def copied(tmp_path):
    shutil.copytree(DATA / "ds_zero1_bf16" / "global_step3", tmp_path / "global_step3")
    return tmp_path / "global_step3"


def test_a_missing_rank_is_named_and_the_weights_are_still_read(copied, tools):
    (copied / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt").unlink()
    found = opened(copied, tools)
    assert not found.complete
    assert "1 of 2 ranks have saved their partition" in found.notices[0][1]
    assert list(weights(found, tools)) == NAMES
    assert masters(found, tools) == {}


def test_a_missing_rank_and_a_cut_one_are_faults(copied, tools):
    rank = copied / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"
    content = rank.read_bytes()
    rank.write_bytes(content[:400])
    assert [fault.kind for fault in opened(copied, tools).faults] == ["cut", "missing"]
    rank.unlink()
    assert [fault.kind for fault in opened(copied, tools).faults] == ["missing"]


def test_a_missing_model_file_is_named(copied, tools):
    (copied / "mp_rank_00_model_states.pt").unlink()
    found = opened(copied, tools)
    assert not found.complete
    assert "the model states of model-parallel rank 0 are missing" in found.notices[0][1]


def test_a_cut_rank_loses_only_what_lies_in_it(copied, tools):
    path = copied / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"
    path.write_bytes(path.read_bytes()[:9000])
    found = opened(copied, tools)
    (part,) = found.parts
    leaves = {t.name: t.leaf for t in part.content.tensors if t.role == "master"}
    lost = [name for name, leaf in leaves.items() if isinstance(leaf, Lost)]
    assert lost == ["l2.weight", "l2.bias"]
    assert not np.isnan(tools.values(leaves["emb.weight"])).any()
