"""Whole checkpoints: the frameworks' folders, and what is broken, mixed, missing or not fetched."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

DATA = Path(__file__).parent / "data"
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n"


def roles(checkpoint):
    counts: dict[str, int] = {}
    for tensor in checkpoint.tensors:
        counts[tensor.role] = counts.get(tensor.role, 0) + 1
    return counts


def texts(checkpoint):
    return [notice.text for notice in checkpoint.notices]


@pytest.fixture
def plain(tmp_path, trained):
    """One file of a plain loop."""
    import torch

    net, optimizer, schedule = trained.make()
    blob = {
        "model": net.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": schedule.state_dict(), "step": 3,
        "scaler": torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=True).state_dict(),
        "rng": torch.get_rng_state(), "args": {"lr": 1e-3, "model": {"width": 8}},
    }  # fmt: skip
    path = tmp_path / "ckpt_3.pt"
    torch.save(blob, path)
    return path, net, optimizer


def test_a_plain_loop(plain, tools, tmp_path):
    _, net, optimizer = plain
    found = tools.load_one(tmp_path)
    assert (found.path, found.format, found.step, found.complete) == ("ckpt_3.pt", "torch-zip", 3, True)
    assert roles(found) == {"param": 7, "buffer": 1, "other": 1, "exp_avg": 7, "exp_avg_sq": 7}
    params = dict(net.named_parameters())
    assert {t.name: tools.raw(t.ref) for t in found.tensors if t.role == "param"} == {
        n: tools.bytes_of(p) for n, p in params.items()
    }
    states = {id(p): s for p, s in optimizer.state.items()}
    for tensor in found.tensors:
        if tensor.role in ("exp_avg", "exp_avg_sq"):
            assert tools.raw(tensor.ref) == tools.bytes_of(states[id(params[tensor.name])][tensor.role])
    assert found.naming.sure == "confirmed"
    assert found.counters == dict.fromkeys(params, 3)
    decayed, others = found.groups
    assert (decayed.optimizer, decayed.betas, decayed.eps, decayed.weight_decay) == ("adamw", (0.9, 0.999), 1e-8, 0.1)
    assert decayed.lr == pytest.approx(1e-3 / 4)
    assert (decayed.names, others.weight_decay) == (["emb.weight", "l1.weight", "l2.weight"], 0.0)
    assert (decayed.step_min, decayed.step_max) == (3, 3)
    assert found.facts["scheduler.last_epoch"] == 3
    assert found.facts["scaler.scale"] == 1024.0
    assert ("lr", 1e-3, "ckpt_3.pt") in found.settings
    assert ("model.width", 8, "ckpt_3.pt") in found.settings


def test_every_record_is_verified_once(plain, tools, tmp_path):
    found = tools.load_one(tmp_path)
    with_own = [t for t in found.tensors if t.checksum is not None]
    assert len(with_own) == 23
    assert len(found.checksums) == 7  # the step counters, which are no tensors of their own


@pytest.fixture
def trainer(tmp_path, trained):
    """A folder as the Hugging Face Trainer leaves it, with the weights in safetensors."""
    import torch
    from safetensors.torch import save_file

    def save(step, folder=None, at=None, **options):
        net, optimizer, schedule = trained.make(steps=step, **options)
        folder = tmp_path / (folder or f"checkpoint-{step}")
        folder.mkdir()
        save_file({n: t.contiguous() for n, t in net.state_dict().items()}, folder / "model.safetensors")
        torch.save(optimizer.state_dict(), folder / "optimizer.pt")
        torch.save(schedule.state_dict(), folder / "scheduler.pt")
        torch.save({"cpu": torch.get_rng_state()}, folder / "rng_state.pth")
        (folder / "trainer_state.json").write_text(
            json.dumps({"epoch": 1.0, "global_step": at or step, "log_history": []})
        )
        return folder

    return save


def test_a_trainer_folder(trainer, tools, tmp_path):
    trainer(3)
    found = tools.load_one(tmp_path)
    assert (found.path, found.step, found.complete) == ("checkpoint-3", 3, True)
    assert found.format == "hf-trainer+safetensors+torch-zip"
    assert roles(found) == {"param": 7, "buffer": 1, "other": 1, "exp_avg": 7, "exp_avg_sq": 7}
    assert texts(found) == []


def test_names_by_two_checkpoints_are_right_where_they_are_given(trainer, tools, tmp_path):
    import torch

    for step in (3, 4):
        trainer(step)
    for found in tools.load_all(tmp_path):
        raw = torch.load(tmp_path / found.path / "optimizer.pt", weights_only=True)
        order = ["emb.weight", "l1.weight", "l2.weight", "l1.bias", "norm.weight", "norm.bias", "l2.bias"]
        named = {t.name: tools.raw(t.ref) for t in found.tensors if t.role == "exp_avg" and t.name in order}
        truth = {name: tools.bytes_of(raw["state"][i]["exp_avg"]) for i, name in enumerate(order)}
        assert {"emb.weight", "l1.weight", "l2.weight", "l2.bias"} <= named.keys()
        assert named.items() <= truth.items()


def test_two_trainer_folders_one_update_apart_are_named_whole_and_others_with_them(trainer, tools, tmp_path):
    for step in (8, 20, 21):
        trainer(step)
    order = ["emb.weight", "l1.weight", "l2.weight", "l1.bias", "norm.weight", "norm.bias", "l2.bias"]
    for found in tools.load_all(tmp_path):
        assert found.naming.sure == "confirmed"
        assert [name for group in found.groups for name in group.names] == order
        assert {t.name for t in found.tensors if t.role == "exp_avg"} == set(order)


def test_weights_of_one_step_and_an_optimizer_of_another(trainer, tools, tmp_path):
    old, new = trainer(3), trainer(5)
    shutil.copy(old / "optimizer.pt", new)
    shutil.copy(old / "scheduler.pt", new)
    found = tools.load_all(tmp_path)[1]
    assert found.complete is False
    assert "its parts are of different steps: it says 5, its optimizer and scheduler 3" in texts(found)


def test_skipped_steps_of_a_loss_scaler_are_no_mixture(trainer, tools, tmp_path):
    import torch

    folder = trainer(3, at=5)
    torch.save({"scale": 1024.0, "growth_factor": 2.0, "_growth_tracker": 1}, folder / "scaler.pt")
    found = tools.load_one(tmp_path)
    assert (found.step, found.complete, found.facts["optimizer.step"]) == (5, True, 3)


@pytest.mark.parametrize(("step", "whole"), [(3, True), (6, True), (12, True), (5, False), (2, False)])
def test_a_loop_that_counts_micro_batches_is_no_mixture(trained, tools, tmp_path, step, whole):
    import torch

    net, optimizer, schedule = trained.make()
    blob = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": schedule.state_dict()}
    torch.save({**blob, "step": step}, tmp_path / "a.pt")
    found = tools.load_one(tmp_path)
    assert (found.complete, any("different steps" in text for text in texts(found))) == (whole, not whole)


def test_a_folder_that_was_still_being_written(trainer, tools, tmp_path):
    trainer(3, folder="tmp-checkpoint-3")
    found = tools.load_one(tmp_path)
    assert found.complete is False
    assert "the folder has the name of one that was still being written" in texts(found)


def test_only_the_state_beside_the_weights(trainer, tools, tmp_path):
    folder = trainer(3)
    (folder / "model.safetensors").unlink()
    (folder / "optimizer.pt").unlink()
    found = tools.load_one(tmp_path)
    assert found.complete is False
    assert texts(found) == ["no weights: only the state beside them was saved"]


def test_a_pointer_of_git_lfs(trainer, tools, tmp_path):
    folder = trainer(3)
    (folder / "model.safetensors").write_bytes(LFS)
    found = tools.load_one(tmp_path)
    assert found.complete is False
    assert any("git-LFS pointer" in text for text in texts(found))
    assert roles(found)["exp_avg"] == 7


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt", "scheduler.pt"])
def test_an_empty_file_and_a_cut_one(trainer, tools, tmp_path, name):
    folder = trainer(3)
    whole = (folder / name).read_bytes()
    (folder / name).write_bytes(whole[: len(whole) // 2])
    assert tools.load_one(tmp_path).complete is False
    (folder / name).write_bytes(b"")
    found = tools.load_one(tmp_path)
    assert (found.complete, [n.text for n in found.notices if n.source.endswith(name)][:1]) == (
        False,
        ["not read: empty file"],
    )


def test_a_cut_safetensors_file_keeps_the_tensors_that_are_whole(trainer, tools, tmp_path):
    folder = trainer(3)
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:-100])
    found = tools.load_one(tmp_path)
    assert 0 < roles(found)["param"] < 7
    assert any("the file is cut" in text for text in texts(found))


def test_a_missing_shard_is_named(tmp_path, tools):
    import torch
    from safetensors.torch import save_file

    save_file({"a": torch.ones(2)}, tmp_path / "model-00001-of-00002.safetensors")
    index = {
        "metadata": {},
        "weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"},
    }
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    found = tools.load_one(tmp_path)
    assert found.complete is False
    assert texts(found) == ["1 of 2 shards are missing, such as model-00002-of-00002.safetensors"]


def test_ranks_of_different_steps(tmp_path, tools):
    import torch

    for rank in (0, 1):
        torch.save({"model": {"w": torch.ones(3) * rank}, "step": 10 + rank}, tmp_path / f"rank{rank}.pt")
    found = tools.load_one(tmp_path)
    assert found.complete is False
    assert texts(found) == ["its files are of different steps: rank0.pt 10, rank1.pt 11"]
    assert [(t.name, t.rank) for t in found.tensors] == [("w", 0), ("w", 1)]


def test_deepspeed_and_megatron_folders(tools):
    found = {c.path: c for c in tools.load_all(DATA)}
    zero = found["ds_zero1_bf16/global_step3"]
    assert (zero.step, zero.complete, zero.naming.sure) == (3, True, "exact")
    assert roles(zero) == {"buffer": 1, "param": 7, "master": 7, "exp_avg": 7, "exp_avg_sq": 7}
    assert {d.dtype for d in (t.ref for t in zero.tensors if t.role == "param")} == {"bfloat16"}
    assert zero.facts["scaler.cur_scale"] == 1.0
    assert [call.name for call in zero.calls if call.danger] == []
    megatron = found["megatron_dist/iter_0000010"]
    assert (megatron.step, megatron.complete) == (10, True)
    assert {t.role: t.name for t in megatron.tensors if t.role.startswith(("exp", "master"))} == dict.fromkeys(
        ("exp_avg", "exp_avg_sq", "master"), "decoder.layers.0.mlp.linear_fc1.weight"
    )
    assert (megatron.groups[0].lr, megatron.groups[0].betas) == (1e-4, (0.9, 0.95))
    fsdp = found["fsdp2_dcp"]
    assert (fsdp.step, fsdp.naming.sure, fsdp.groups[0].names[0]) == (3, "exact", "emb.weight")


def test_float32_masters_of_a_list_have_the_names_of_their_parameters(tmp_path, tools, trained):
    import torch

    net, optimizer, _ = trained.make()
    masters = [[p.detach().float().clone() for p in group["params"]] for group in optimizer.param_groups]
    torch.save(
        {
            "model": net.state_dict(),
            "optimizer": {"optimizer": optimizer.state_dict(), "fp32_from_fp16_params": masters},
        },
        tmp_path / "a.pt",
    )
    found = tools.load_one(tmp_path)
    names = {t.name: tools.values(t.ref) for t in found.tensors if t.role == "master"}
    assert all(np.array_equal(names[n], p.detach().numpy()) for n, p in net.named_parameters())


def test_a_flattened_optimizer_state_has_names_and_groups(tmp_path, tools):
    import torch

    flat: dict[str, object] = {
        f"state.{n}.{k}": torch.ones(3) for n in ("a.weight", "b.bias") for k in ("exp_avg", "exp_avg_sq")
    }
    flat |= {"param_groups.a.weight.lr": 1e-3, "param_groups.b.bias.lr": 1e-4}
    torch.save({"model": {"a.weight": torch.ones(3), "b.bias": torch.ones(3)}, "optimizer": flat}, tmp_path / "a.pt")
    found = tools.load_one(tmp_path)
    assert {(t.role, t.name) for t in found.tensors} == {
        (role, name) for role in ("param", "exp_avg", "exp_avg_sq") for name in ("a.weight", "b.bias")
    }
    assert [(g.lr, g.names) for g in found.groups] == [(1e-3, ["a.weight"]), (1e-4, ["b.bias"])]


def test_executable_content_is_listed(tmp_path, tools):
    import pickle

    class Evil:
        def __reduce__(self):
            import os

            return os.system, ("touch /tmp/never",)

    (tmp_path / "a.pt").write_bytes(pickle.dumps(Evil()))
    found = tools.load_one(tmp_path)
    assert [(c.name, c.danger, c.arguments) for c in found.calls] == [("posix.system", True, "'touch /tmp/never'")]


def test_two_networks_with_an_optimizer_each(tmp_path, tools):
    import torch

    blob: dict[str, object] = {}
    for name, width in (("actor", 3), ("critic", 4)):
        net = torch.nn.Sequential(torch.nn.Linear(width, 5), torch.nn.Linear(5, 2))
        optimizer = torch.optim.Adam(net.parameters())
        net(torch.randn(6, width)).sum().backward()
        optimizer.step()
        blob |= {name: net.state_dict(), f"{name}_optimizer": optimizer.state_dict()}
    torch.save(blob, tmp_path / "a.pt")
    found = tools.load_one(tmp_path)
    order = ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert [g.names for g in found.groups] == [[f"{net}.{name}" for name in order] for net in ("actor", "critic")]
    assert found.naming.sure == "confirmed"


def test_one_optimizer_of_two_networks(tmp_path, tools):
    import torch

    widths = {"actor": 3, "critic": 4}
    nets = {name: torch.nn.Sequential(torch.nn.Linear(width, 5)) for name, width in widths.items()}
    optimizer = torch.optim.Adam([p for net in nets.values() for p in net.parameters()])
    torch.stack([net(torch.ones(1, widths[name])).sum() for name, net in nets.items()]).sum().backward()
    optimizer.step()
    torch.save({**{n: net.state_dict() for n, net in nets.items()}, "opt": optimizer.state_dict()}, tmp_path / "a.pt")
    (group,) = tools.load_one(tmp_path).groups
    assert group.names == ["actor.0.weight", "actor.0.bias", "critic.0.weight", "critic.0.bias"]


def test_executable_content_of_text_pickles_and_of_broken_ones_is_listed(tmp_path, tools):
    (tmp_path / "a.pt").write_bytes(b"cposix\nsystem\n(Vtrue\ntR.")
    (tmp_path / "b.ckpt").write_bytes(b"\x80\x02cposix\nsystem\nX\x04\x00\x00\x00true\x85R\xff")
    found = {c.path: c for c in tools.load_all(tmp_path)}
    assert [(c.name, c.danger) for c in found["a.pt"].calls] == [("posix.system", True)]
    assert [(c.name, c.danger) for c in found["b.ckpt"].calls] == [("posix.system", True)]
    assert texts(found["b.ckpt"]) == ["not read: 0xff at byte 27 is no pickle opcode"]


def test_observers_of_quantization_are_buffers_and_may_hold_infinity(tmp_path, tools):
    import torch
    from torch.ao import quantization

    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    observers = {
        f"{i}.weight_fake_quant.{key}": value
        for i in (0, 2)
        for key, value in quantization.default_weight_fake_quant().state_dict().items()
    }
    assert any(value.isinf().any() for value in observers.values())
    torch.save({"model": model.state_dict() | observers, "step": 3}, tmp_path / "step_3.pt")
    (checkpoint,) = tools.load_all(tmp_path)
    params = {tensor.name for tensor in checkpoint.tensors if tensor.role == "param"}
    assert params == {"0.weight", "0.bias", "2.weight", "2.bias"}
