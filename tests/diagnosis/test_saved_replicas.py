"""Tensors that several ranks saved whole, in files that torch really wrote."""

import pytest
import torch

from gradforensics.diagnosis.checks.saved_replicas import rank_step_counters_differ, saved_replicas_differ
from gradforensics.diagnosis.vocabulary import Missing
from gradforensics.evidence.gather import gather
from gradforensics.tables import Setting


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.norm = torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16)
        self.experts = torch.nn.ModuleList([torch.nn.Linear(4, 4)])


def evidence(folder, **settings):
    (found,) = gather([folder])
    found.settings = [*(found.settings or []), *(Setting(k, k, v, "x") for k, v in settings.items())]
    return found


def differ(found, size="beyond", where="data-parallel"):
    return saved_replicas_differ(found, where=where, apart=1e-3, size=size)


def unchanged(_rank, _model):
    """Every rank saves the same."""


def write(folder, step, change=unchanged, name="rank{}.pt", **more):
    """One file per rank; `change` gets the rank and its model, without gradients."""
    place = folder / f"step_{step}"
    for rank in (0, 1):
        model = Net()
        with torch.no_grad():
            change(rank, model)
        path = place / name.format(rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save({"model": model.state_dict(), "step": step} | more, path)


def shift(rank, model, by=0.01):
    model.inner.weight += by * rank


def test_replicas_of_data_parallel_ranks_that_parted(tmp_path):
    write(tmp_path, 10)
    write(tmp_path, 20, shift)
    found = evidence(tmp_path, strategy="ddp")
    answer = differ(found)
    assert isinstance(answer, list)
    (hit,) = answer
    assert (hit.step, hit.after, hit.tensor) == (20, 10, "inner.weight")
    assert hit.facts["tensors"] == 1
    assert hit.facts["compared"] == 4
    # of the norm of the difference, which is 0.01 times the root of 128, at most
    assert 0.01 < hit.facts["spread"] <= 0.01 * 128**0.5 / 2.0
    assert differ(found, size="within") == []


def test_equal_replicas_acquit_and_experts_and_buffers_may_differ(tmp_path):
    def change(rank, model):
        model.norm.running_mean += rank
        model.experts[0].weight += rank

    write(tmp_path, 10, change)
    assert differ(evidence(tmp_path, strategy="ddp")) == []


def test_a_difference_as_by_rounding_is_no_proof(tmp_path):
    write(tmp_path, 10, lambda rank, model: shift(rank, model, by=1e-7))
    found = evidence(tmp_path, strategy="ddp")
    assert differ(found) == []
    (hit,) = differ(found, size="within")
    assert hit.facts["spread"] < 1e-5


def test_files_of_ranks_may_hold_shards_where_nothing_says_otherwise(tmp_path):
    write(tmp_path, 10, shift)
    assert isinstance(differ(evidence(tmp_path)), Missing)
    assert isinstance(differ(evidence(tmp_path, strategy="fsdp")), Missing)


def test_ranks_that_were_equal_in_an_earlier_checkpoint_are_replicas(tmp_path):
    write(tmp_path, 10)
    write(tmp_path, 20, shift)
    (hit,) = differ(evidence(tmp_path))
    assert (hit.step, hit.after) == (20, 10)


def test_a_rank_file_of_another_step_is_no_replica(tmp_path):
    write(tmp_path, 10, shift)
    model = Net()
    torch.save({"model": model.state_dict(), "step": 5}, tmp_path / "step_10" / "rank1.pt")
    assert isinstance(differ(evidence(tmp_path, strategy="ddp")), Missing)


class Shard(torch.nn.Module):
    def __init__(self, rank):
        super().__init__()
        torch.manual_seed(rank)
        self.input_layernorm, self.q_norm = torch.nn.LayerNorm(8), torch.nn.LayerNorm(4)
        self.mlp = torch.nn.Module()
        self.mlp.dense_h_to_4h, self.mlp.dense_4h_to_h = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)
        torch.nn.init.constant_(self.mlp.dense_4h_to_h.bias, 0.1)


def megatron(folder, drift, stages=("mp_rank_00", "mp_rank_01")):
    for rank, stage in enumerate(stages):
        model = Shard(rank)
        with torch.no_grad():
            drift(rank, model)
        place = folder / "iter_0000010" / stage
        place.mkdir(parents=True)
        torch.save({"model": model.state_dict(), "iteration": 10}, place / "model_optim_rng.pt")


def norms(rank, model):
    model.input_layernorm.weight += 0.02 * rank
    model.q_norm.weight += rank  # of single heads: sharded in some models


@pytest.mark.parametrize(
    ("drift", "tensor"),
    [
        (norms, "input_layernorm.weight"),
        (lambda rank, model: model.mlp.dense_4h_to_h.bias.add_(0.01 * rank), "mlp.dense_4h_to_h.bias"),
    ],
)
def test_what_tensor_parallel_ranks_hold_whole_must_agree(tmp_path, drift, tensor):
    megatron(tmp_path, drift)
    (hit,) = differ(evidence(tmp_path), where="tensor-parallel")
    assert (hit.step, hit.tensor) == (10, tensor)
    assert (hit.facts["tensors"], hit.facts["compared"]) == (1, 3)


def test_shards_of_tensor_parallel_ranks_differ_by_design(tmp_path):
    megatron(tmp_path, unchanged)
    assert differ(evidence(tmp_path), where="tensor-parallel") == []
    assert isinstance(differ(evidence(tmp_path)), Missing)


def test_layers_of_two_pipeline_stages_have_the_same_names_and_are_different_layers(tmp_path):
    megatron(tmp_path, norms, stages=("mp_rank_00_000", "mp_rank_00_001"))
    assert isinstance(differ(evidence(tmp_path), where="tensor-parallel"), Missing)


def test_step_counters_of_ranks_must_agree(tmp_path):
    def save(skipped):
        for rank in (0, 1):
            model = Net()
            optimizer = torch.optim.AdamW(model.parameters())
            for step in range(6):
                model.inner(torch.randn(2, 8)).sum().backward()
                if not (skipped and rank == 1 and step == 3):
                    optimizer.step()
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 6}
            torch.save(state, tmp_path / f"step_6_rank{rank}.pt")

    save(skipped=True)
    hits = rank_step_counters_differ(evidence(tmp_path, strategy="ddp"))
    assert isinstance(hits, list)
    (hit,) = hits
    assert hit.facts == {"ranks": 2, "fewest": 5, "most": 6, "behind": 1, "ahead": 0}
    assert isinstance(rank_step_counters_differ(evidence(tmp_path)), Missing)
    save(skipped=False)
    assert rank_step_counters_differ(evidence(tmp_path, strategy="ddp")) == []
