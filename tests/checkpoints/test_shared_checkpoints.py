"""The collection of real checkpoints beside the checkout, where it is: every tensor against what torch itself loads."""

import json
import warnings
from pathlib import Path

import numpy as np
import pytest

from gradforensics.checkpoints import tree
from gradforensics.checkpoints.formats import safetensors, torch_file
from gradforensics.checkpoints.measure import open_all, survey

SHARED = Path(__file__).parents[3] / "shared"
SAMPLES = SHARED / "checkpoints"
FIXTURES = SHARED / "corpus" / "checkpoint-fixtures-labelled"
OTHERS = {".py", ".md", ".txt", ".json", ".distcp", ""}

pytestmark = pytest.mark.skipif(not SAMPLES.exists(), reason="the collection of checkpoints is not here")

FILES = [p for p in sorted(SAMPLES.rglob("*")) if p.is_file() and p.suffix not in OTHERS and p.name != ".metadata"]
# torch cannot load these without the framework that wrote them, or at all (odd_legacy: float8 in the legacy layout)
BEYOND_TORCH = (
    "_optim_states.pt",
    "training_args.bin",
    "model_optim_rng.pt",
    "torchscript.pt",
    "odd_legacy.pt",
    "whole_module.pt",
    "whole_module_legacy.pt",
)
BEYOND_FOLDERS = ("fsdp1_local", "fsdp1_sharded", "fsdp2_rawsave")


def loaded_by_torch(path):
    import torch

    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.load(path, weights_only=False)


def flat(value, path=(), found=None):
    """Every dense tensor below a value that torch loaded, by its path."""
    import torch

    found = {} if found is None else found
    if isinstance(value, torch.Tensor):
        dense = value.layout == torch.strided and not value.is_quantized and not value.is_meta and not value.is_nested
        if dense:
            found[".".join(path)] = value.resolve_conj()
    elif isinstance(value, dict):
        for key, item in value.items():
            flat(item, (*path, str(key)), found)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            flat(item, (*path, str(index)), found)
    return found


@pytest.mark.parametrize("path", FILES, ids=[str(p.relative_to(SAMPLES)) for p in FILES])
def test_every_tensor_has_the_bytes_that_torch_loads(path, tools):
    file = tools.regular(path)
    if path.suffix == ".safetensors":
        mine: dict[str, tree.Leaf] = dict(safetensors.read(file).tensors)
    else:
        opened = torch_file.read(file)
        assert (opened.complete, opened.notices, opened.missing) == (True, [], [])
        mine = {".".join(p): leaf for p, leaf, _ in tree.walk(opened.root) if isinstance(leaf, tree.LEAVES)}
    if path.name.endswith(BEYOND_TORCH) or path.parent.name in BEYOND_FOLDERS:
        assert mine or path.name == "training_args.bin"
        return
    theirs = {k: t for k, t in flat(loaded_by_torch(path)).items() if k not in ("conj", "nested")}
    for key, tensor in theirs.items():
        ref = tree.reference(mine[key], "")
        assert ref.dtype == str(tensor.dtype).removeprefix("torch.")
        assert ref.shape == tuple(tensor.shape)
        if ref.repeat == 1:
            assert tools.raw(ref) == tools.bytes_of(tensor)


EXPECTED = {  # step, (lr, weight decay) by group, as the scripts that made them set them
    "plain/zip.pt": (3, [(5e-4, 0.1), (5e-4, 0.0)]),
    "plain/legacy.pt": (3, [(5e-4, 0.1), (5e-4, 0.0)]),
    "dcp_plain": (3, [(5e-4, 0.1), (5e-4, 0.0)]),
    "fsdp2_dcp": (3, [(1e-3, 0.01)]),
    "fsdp1_dcp": (3, [(1e-3, 0.01)]),
    "accelerate_no": (4, [(1e-3, 0.01)]),
    "lightning_32-true/epoch=0-step=4.ckpt": (4, [(1e-3 * (1 + np.cos(np.pi / 10)) / 2, 0.01)]),
    "hf_llama/checkpoint-3": (3, [((1e-3 + 1e-3 * np.cos(np.pi / 4)) / 2, wd) for wd in (0.1, 0.0)]),
    "hf_llama/checkpoint-6": (6, [(0.0, 0.1), (0.0, 0.0)]),
    "hf_sgd/checkpoint-6": (6, [(0.0, 0.1), (0.0, 0.0)]),
    "ds_zero2_fp16/global_step3": (3, [(1e-3 * np.log(3) / np.log(5), 0.1)]),
    "megatron_legacy/iter_0000010": (10, [(1e-4, 0.1), (1e-4, 0.0)]),
    "megatron_dist/iter_0000010": (10, [(1e-4, 0.1)]),
    "peft_trainer/checkpoint-6": (6, [(0.0, 0.1), (0.0, 0.0)]),
}  # fmt: skip


def test_every_checkpoint_is_complete_with_its_step_and_groups(tools):
    checkpoints = {c.path: c for c in tools.load_all(SAMPLES)}
    assert len(checkpoints) == 74
    wrong = {p: [n.text for n in c.notices] for p, c in checkpoints.items() if c.complete is not True or c.notices}
    assert wrong == {}
    for path, (step, groups) in EXPECTED.items():
        found = checkpoints[path]
        assert found.step == step, path
        assert [(g.lr, g.weight_decay) for g in found.groups] == [
            (pytest.approx(lr, rel=1e-6, abs=1e-12), wd) for lr, wd in groups
        ], path
        assert {g.betas for g in found.groups} <= {(0.9, 0.999), (0.9, 0.95), None}


def optimizers(value):
    """Every optimizer state dict below a value that torch loaded, in file order."""
    if isinstance(value, dict):
        if isinstance(value.get("param_groups"), list) and "state" in value:
            yield value
            return
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from optimizers(item)


def hyper(group):
    betas = group.get("betas")
    return group["lr"], None if betas is None else tuple(betas), group.get("weight_decay"), len(group["params"])


def test_every_optimizer_that_torch_loads_has_the_same_groups_and_counters(tools):
    checked = 0
    mine = {}
    for checkpoint in tools.load_all(SAMPLES):
        for file in checkpoint.files:
            ranked = [g for g in checkpoint.groups if g.rank is None or f"rank{g.rank}.pt" in file]
            mine[file] = checkpoint, [(g.lr, g.betas, g.weight_decay, len(g.names)) for g in ranked], ranked
    for path in FILES:
        if path.suffix == ".safetensors" or path.name.endswith(BEYOND_TORCH) or path.parent.name in BEYOND_FOLDERS:
            continue
        for state_dict in optimizers(loaded_by_torch(path)):
            checkpoint, groups, ranked = mine[str(path.relative_to(SAMPLES))]
            assert groups == [hyper(group) for group in state_dict["param_groups"]], path
            assert [g.eps for g in ranked if g.betas] == [g["eps"] for g in state_dict["param_groups"] if "betas" in g]
            steps = {int(state["step"]) for state in state_dict["state"].values() if "step" in state}
            if steps:
                assert {s for g in ranked if g.names for s in (g.step_min, g.step_max)} == steps, path
                assert checkpoint.facts["optimizer.step"] == max(steps)
            checked += 1
    assert checked >= 40


def test_the_measured_numbers_are_those_of_numpy(tools):
    import torch

    found = survey(open_all(tools.files_of(SAMPLES / "plain")))
    assert [n.text for n in found.notices if "CRC" in n.text or "not measured" in n.text] == []
    table = found.tables["tensors"]
    for row in table.filter(table["checkpoint"] == "zip.pt").iter_rows(named=True):
        tensor = flat(torch.load(SAMPLES / "plain" / "zip.pt", weights_only=True))[row["key"]].double().numpy()
        assert (row["min"], row["max"], row["zero"]) == (tensor.min(), tensor.max(), (tensor == 0).sum())
        assert row["l2"] == pytest.approx(np.linalg.norm(tensor), rel=1e-5)


def test_labelled_fixtures_agree_with_their_oracle(tools):
    truth = json.loads((FIXTURES / "oracle.json").read_text())
    found = survey(open_all(tools.files_of(FIXTURES)))
    table = found.tables["tensors"]
    groups = set(found.tables["groups"]["checkpoint"].to_list())
    assert set(found.tables["checkpoints"]["path"].to_list()) == set(truth)
    for name, entry in truth.items():
        assert (name in groups) == entry["has_optimizer"], name
        rows = table.filter((table["checkpoint"] == name) & (table["role"] == "param"))
        mine = {
            row["name"]: {
                "dtype": row["dtype"], "shape": row["shape"], "numel": row["count"], "nan_count": row["nan"],
                "inf_count": row["posinf"] + row["neginf"], "is_all_zero": row["zero"] == row["count"],
            }
            for row in rows.iter_rows(named=True)
        }  # fmt: skip
        assert mine == entry["tensors"], name
    bad = dict(zip(found.tables["checkpoints"]["path"], found.tables["checkpoints"]["nonfinite"], strict=True))
    assert {n for n, count in bad.items() if count} == {"nan_weights.pt", "inf_weights.pt"}
