"""Files of checkpoints that were really damaged, after real writers had written them."""

import json
import shutil
import warnings
import zipfile

import pytest
import torch
from safetensors.torch import save_file

from gradforensics.diagnosis.checks.checkpoint_files import (
    checkpoint_damaged,
    checkpoint_partly_there,
    checkpoint_unfinished,
)
from gradforensics.diagnosis.vocabulary import Missing
from gradforensics.evidence.gather import gather
from gradforensics.tables import Evidence

KINDS = "changed cut empty missing hollow"


def write_torch(path, step):
    torch.manual_seed(step)
    model = torch.nn.Linear(40, 40)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    model(torch.randn(4, 40)).square().mean().backward()
    optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, path)


@pytest.fixture
def plain(tmp_path):
    """A run with checkpoints of steps 10 and 20, and a log that goes on to step 30."""
    for step in (10, 20):
        write_torch(tmp_path / f"step_{step}.pt", step)
    log(tmp_path, 30)
    return tmp_path


@pytest.fixture
def sharded(tmp_path):
    """A Trainer's folder with its weights in three shards."""
    log(tmp_path, 30)
    folder = tmp_path / "checkpoint-10"
    folder.mkdir()
    names = [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]
    for i, name in enumerate(names):
        save_file({f"h.{i}.weight": torch.randn(8, 8)}, folder / name)
    index = {"metadata": {}, "weight_map": {f"h.{i}.weight": name for i, name in enumerate(names)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": 10, "log_history": []}))
    return tmp_path


def log(folder, steps):
    rows = [json.dumps({"step": step, "loss": 3.0 - step / 100}) for step in range(1, steps + 1)]
    (folder / "metrics.jsonl").write_text("\n".join(rows))


def found(check, evidence, **arguments):
    """The hits of a check that could judge."""
    answer = check(evidence, **arguments)
    assert isinstance(answer, list)
    return answer


def damaged(folder, kinds=KINDS):
    (evidence,) = gather([folder])
    table = evidence.table("checkpoints")
    if table is None:
        return [], [], evidence
    answer = found(checkpoint_damaged, evidence, kinds=kinds)
    return [(hit.step, hit.after) for hit in answer], sorted(set(table["damage"].drop_nulls())), evidence


def flip(path, at):
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def cut(path, share=0.5):
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])


def test_whole_checkpoints_are_no_hits(plain):
    assert damaged(plain)[:2] == ([], [])
    assert checkpoint_unfinished(damaged(plain)[2]) == []
    assert isinstance(checkpoint_damaged(Evidence("x"), kinds=KINDS), Missing)


def test_checksums_that_were_not_compared_acquit_nobody(plain):
    (evidence,) = gather([plain], tensors=False)
    assert isinstance(checkpoint_damaged(evidence, kinds="changed"), Missing)
    assert checkpoint_damaged(evidence, kinds="cut empty") == []


def test_a_bit_in_a_tensor_of_a_torch_file_breaks_its_checksum(plain):
    with zipfile.ZipFile(plain / "step_20.pt") as archive:
        record = max(archive.infolist(), key=lambda item: item.file_size)
    flip(plain / "step_20.pt", record.header_offset + 1000)
    hits, kinds, evidence = damaged(plain)
    assert (hits, kinds) == ([(20, 10)], ["changed"])
    (hit,) = found(checkpoint_damaged, evidence, kinds="changed")
    assert hit.facts["file"] == "step_20.pt"
    assert "CRC-32" in hit.facts["damage"].en


@pytest.mark.parametrize("where", ["data.pkl", "byteorder"])
def test_a_bit_in_the_records_that_are_no_tensors_counts_too(plain, where):
    with zipfile.ZipFile(plain / "step_20.pt") as archive:
        record = next(item for item in archive.infolist() if item.filename.endswith(where))
    header = (plain / "step_20.pt").read_bytes()[record.header_offset :][:30]
    start = record.header_offset + 30 + header[26] + 256 * header[27] + header[28] + 256 * header[29]
    flip(plain / "step_20.pt", start + (record.file_size - 3 if where == "data.pkl" else 0))
    assert damaged(plain)[:2] == ([(20, 10)], ["changed"])


def test_a_file_that_was_saved_without_checksums_is_whole(plain):
    torch.serialization.set_crc32_options(False)
    try:
        write_torch(plain / "step_20.pt", 20)
    finally:
        torch.serialization.set_crc32_options(True)
    assert damaged(plain)[:2] == ([], [])
    assert damaged(plain)[2].table("checkpoints")["complete"].to_list() == [True, True]


@pytest.mark.parametrize("share", [0.1, 0.6, 0.999])
@pytest.mark.parametrize("legacy", [False, True])
def test_a_torch_file_that_was_cut(plain, share, legacy):
    if legacy:
        state = torch.load(plain / "step_10.pt")
        torch.save(state, plain / "step_10.pt", _use_new_zipfile_serialization=False)
    cut(plain / "step_10.pt", share)
    assert damaged(plain)[:2] == ([(10, None)], ["cut"])


def test_an_empty_file_and_one_of_zeros(plain):
    (plain / "step_10.pt").write_bytes(b"")
    assert damaged(plain)[:2] == ([(10, None)], ["empty"])
    (plain / "step_10.pt").write_bytes(bytes(5000))
    assert damaged(plain)[:2] == ([(10, None)], ["changed"])


def test_an_empty_file_that_is_no_checkpoints_is_none(plain):
    (plain / "best.pt").write_bytes(b"")
    (plain / "extra.bin").write_bytes(b"")
    assert damaged(plain)[0] == []


def test_a_shard_that_was_cut_and_one_whose_header_was_changed(sharded):
    assert damaged(sharded)[:2] == ([], [])
    shard = sharded / "checkpoint-10" / "model-00002-of-00003.safetensors"
    whole = shard.read_bytes()
    cut(shard, 0.7)
    assert damaged(sharded)[:2] == ([(10, None)], ["cut"])
    shard.write_bytes(whole[:8] + b"x" + whole[9:])
    assert damaged(sharded)[:2] == ([(10, None)], ["changed"])
    shard.write_bytes(whole[:6] + b"\x40" + whole[7:])
    assert damaged(sharded)[:2] == ([(10, None)], ["changed"])


def test_a_shard_that_is_missing_in_one_of_two_checkpoints_is_a_fault(sharded):
    shutil.copytree(sharded / "checkpoint-10", sharded / "checkpoint-5")
    (sharded / "checkpoint-5" / "trainer_state.json").write_text(json.dumps({"global_step": 5, "log_history": []}))
    sorted((sharded / "checkpoint-10").glob("*.safetensors"))[1].unlink()
    bad, kinds, evidence = damaged(sharded)
    assert (bad, kinds) == ([(10, 5)], ["missing"])
    assert found(checkpoint_partly_there, evidence) == []


def test_a_shard_that_is_missing_beside_the_states_of_the_optimizer_is_a_fault(sharded):
    parameter = torch.nn.Parameter(torch.randn(8, 8))
    optimizer = torch.optim.AdamW([parameter])
    parameter.square().sum().backward()
    optimizer.step()
    torch.save(optimizer.state_dict(), sharded / "checkpoint-10" / "optimizer.pt")
    sorted((sharded / "checkpoint-10").glob("*.safetensors"))[1].unlink()
    assert damaged(sharded)[:2] == ([(10, None)], ["missing"])


def test_some_shards_alone_may_be_all_that_was_copied_and_none_were_left_out(sharded):
    shards = sorted((sharded / "checkpoint-10").glob("*.safetensors"))
    shards[1].unlink()
    bad, kinds, evidence = damaged(sharded)
    assert (bad, kinds) == ([], ["missing"])
    assert [hit.step for hit in found(checkpoint_partly_there, evidence)] == [10]
    for shard in (shards[0], shards[2]):
        shard.unlink()
    assert damaged(sharded)[:2] == ([], [])


def test_storages_that_are_missing_within_a_file_were_not_left_out_by_a_copy(plain):
    with zipfile.ZipFile(plain / "step_20.pt") as old, zipfile.ZipFile(plain / "new.pt", "w") as new:
        for name in old.namelist():
            if not name.endswith("/data/1"):
                new.writestr(name, old.read(name))
    (plain / "step_10.pt").unlink()
    (plain / "new.pt").replace(plain / "step_20.pt")
    assert damaged(plain)[:2] == ([(20, None)], ["missing"])


def test_a_pointer_of_git_lfs_is_no_damage(sharded):
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 500\n"
    for shard in (sharded / "checkpoint-10").glob("*.safetensors"):
        shard.write_text(pointer)
    assert damaged(sharded)[:2] == ([], [])


@pytest.mark.parametrize("tensors", [{}, {"h.0.lora_A.weight": torch.zeros(0)}])
def test_an_adapter_without_weights_is_hollow(plain, tensors):
    folder = plain / "checkpoint-30"
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text("{}")
    assert damaged(plain)[:2] == ([(30, 20)], ["hollow"])


def test_an_adapter_that_is_all_there_is_whole(plain):
    folder = plain / "checkpoint-30"
    folder.mkdir()
    save_file({"h.0.lora_A.weight": torch.randn(2, 8)}, folder / "adapter_model.safetensors")
    assert damaged(plain)[:2] == ([], [])


def test_a_distributed_checkpoint_without_one_of_its_files_and_with_one_that_was_cut(tmp_path):
    import torch.distributed.checkpoint as dcp

    log(tmp_path, 30)
    state = {"model": {"w": torch.randn(40, 40), "b": torch.randn(40)}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it remarks that there is one process
        dcp.save(  # type: ignore[attr-defined]  # torch does not list it in __all__
            state, checkpoint_id=tmp_path / "checkpoint-10"
        )
    assert damaged(tmp_path)[:2] == ([], [])
    cut(tmp_path / "checkpoint-10" / "__0_0.distcp")
    assert damaged(tmp_path)[:2] == ([(10, None)], ["cut"])
    (tmp_path / "checkpoint-10" / "__0_0.distcp").unlink()
    assert damaged(tmp_path, "cut missing")[0] == []  # none of its data is there: left out on purpose


def test_the_last_checkpoint_of_a_run_that_ends_there_was_being_written(plain):
    cut(plain / "step_20.pt")
    assert damaged(plain)[0] == [(20, 10)]  # the log goes on: the save had come back
    log(plain, 20)
    hits, kinds, evidence = damaged(plain)
    assert (hits, kinds) == ([], ["cut"])
    (hit,) = found(checkpoint_unfinished, evidence)
    assert (hit.step, hit.after) == (20, 10)


def test_an_earlier_checkpoint_that_was_cut_was_not_being_written(plain):
    cut(plain / "step_10.pt")
    log(plain, 20)
    assert damaged(plain)[0] == [(10, None)]


def test_a_temporary_folder_is_unfinished(sharded):
    (sharded / "checkpoint-10").rename(sharded / "tmp-checkpoint-10")
    hits, _, evidence = damaged(sharded)
    assert hits == []
    assert [hit.step for hit in found(checkpoint_unfinished, evidence)] == [10]
