"""Which files are checkpoints and which of them belong together, by name."""

from pathlib import Path

import pytest

from gradforensics.checkpoints.discover import find, may_be_part, rank_at, rank_of, step_of
from gradforensics.untrusted.files import RegularFile


def found(*names):
    files = [RegularFile(Path("/x") / name, name, 1) for name in names]
    return {(c.path, c.kind): [f.name.rpartition("/")[2] for f in c.files] for c in find(files)}


def test_a_trainer_folder_is_one_checkpoint():
    names = ["model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state_0.pth", "rng_state_1.pth", "scaler.pt"]
    beside = ["config.json", "trainer_state.json", "training_args.bin"]
    assert found(*(f"out/checkpoint-5/{n}" for n in [*names, *beside, "tokenizer.json"])) == {
        ("out/checkpoint-5", "folder"): [*names, *beside]
    }


def test_shards_and_their_index():
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"]
    assert found(*names) == {(".", "folder"): names}
    assert found("a/pytorch_model.bin.index.json") == {("a", "folder"): ["pytorch_model.bin.index.json"]}


def test_parts_in_folders_of_their_own_belong_to_the_folder_above():
    assert found(
        "c/checkpoint-3/trainer_state.json", "c/checkpoint-3/rng_state_0.pth",
        "c/checkpoint-3/global_step3/mp_rank_00_model_states.pt", "c/checkpoint-3/optimizer_0/.metadata",
        "c/checkpoint-3/optimizer_0/__0_0.distcp",
    ) == {
        ("c/checkpoint-3", "folder"): [
            "rng_state_0.pth", "trainer_state.json", "mp_rank_00_model_states.pt", ".metadata", "__0_0.distcp",
        ]
    }  # fmt: skip


def test_checkpoints_beside_a_final_model_or_a_configuration_stay_apart():
    assert found(
        "config.json", "global_step3/mp_rank_00_model_states.pt", "global_step4/mp_rank_00_model_states.pt",
        "a/model.safetensors", "a/step-10/.metadata", "a/step-20/.metadata",
    ) == {
        (".", "folder"): ["config.json"], ("a", "folder"): ["model.safetensors"],
        ("a/step-10", "dcp"): [".metadata"], ("a/step-20", "dcp"): [".metadata"],
        ("global_step3", "deepspeed"): ["mp_rank_00_model_states.pt"],
        ("global_step4", "deepspeed"): ["mp_rank_00_model_states.pt"],
    }  # fmt: skip


def test_folders_of_distributed_frameworks():
    assert found(
        "a/step-10/.metadata", "a/step-10/__0_0.distcp", "b/iter_0000010/mp_rank_00/model_optim_rng.pt",
        "b/iter_0000010/mp_rank_01/model_optim_rng.pt", "d/global_step3/zero_pp_rank_0_mp_rank_00_optim_states.pt",
    ) == {
        ("a/step-10", "dcp"): [".metadata", "__0_0.distcp"],
        ("b/iter_0000010", "megatron"): ["model_optim_rng.pt", "model_optim_rng.pt"],
        ("d/global_step3", "deepspeed"): ["zero_pp_rank_0_mp_rank_00_optim_states.pt"],
    }  # fmt: skip


def test_single_files_and_files_of_ranks():
    assert found("a/best.pt", "a/last.ckpt", "b/rank0.pt", "b/rank1.pt", "b/rank10.pt", "c/rank_0.pt") == {
        ("a/best.pt", "file"): ["best.pt"],
        ("a/last.ckpt", "file"): ["last.ckpt"],
        ("b/rank*.pt", "ranks"): ["rank0.pt", "rank1.pt", "rank10.pt"],
        ("c/rank_0.pt", "file"): ["rank_0.pt"],
    }


def test_folders_of_ranks_are_one_checkpoint_in_each_file_or_together():
    assert found("a/rank_0/ckpt_10.pt", "a/rank_0/ckpt_20.pt", "a/rank_1/ckpt_10.pt", "c/rank0/last.pt") == {
        ("a/rank_*/ckpt_10.pt", "ranks"): ["ckpt_10.pt", "ckpt_10.pt"],
        ("a/rank_0/ckpt_20.pt", "file"): ["ckpt_20.pt"],
        ("c/rank0/last.pt", "file"): ["last.pt"],
    }
    assert found("b/step-10/rank0/model.pt", "b/step-10/rank0/optimizer.pt", "b/step-10/rank1/model.pt") == {
        ("b/step-10/rank*", "ranks"): ["model.pt", "optimizer.pt", "model.pt"],
    }
    assert [rank_at(name) for name in ("b/rank1/model.pt", "b/rank1/rank3.pt", "b/ranked/x.pt")] == [1, 3, None]


def test_training_arguments_alone_are_kept_for_their_settings():
    assert found("run/training_args.bin", "run/config.json") == {
        ("run/training_args.bin", "file"): ["training_args.bin"]
    }


@pytest.mark.parametrize("name", ["train.bin", "data/val.pt", "tokenizer.pkl", "x.npz", "log.txt", "vocab.bin"])
def test_data_and_logs_are_no_checkpoints(name):
    assert not may_be_part(name)


@pytest.mark.parametrize(
    ("path", "step"),
    [
        ("out/checkpoint-500", 500), ("epoch=0-step=4.ckpt", 4), ("iter_0000010", 10), ("global_step12", 12),
        ("ckpt_300.pt", 300), ("a/step-7/model.pt", 7), ("best.pt", None), ("llama-7b.pt", None), ("epoch_3.pt", None),
    ],
)  # fmt: skip
def test_steps_in_names(path, step):
    assert step_of(path) == step


@pytest.mark.parametrize(
    ("name", "rank"), [("rank0.pt", 0), ("a/optim_rank_12.pt", 12), ("frank3.pt", None), ("7.pt", None)]
)
def test_ranks_in_names(name, rank):
    assert rank_of(name) == rank
