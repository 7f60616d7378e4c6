"""What the checks read of checkpoints: kinds and layers by name, weights with their masters, pairs of neighbours."""

import pytest

from gradforensics import checkpoint_signals as cs
from gradforensics.evidence.gather import gather
from gradforensics.tables import Evidence


@pytest.fixture(scope="module")
def evidence(tmp_path_factory):
    """A plain loop that saved after steps 3, 4 and 9."""
    import torch

    folder = tmp_path_factory.mktemp("run")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(1, 10):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        if step in (3, 4, 9):
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, folder / f"step_{step}.pt")
    (found,) = gather([folder])
    return found


def test_pairs_are_neighbours_and_know_whether_they_are_one_update_apart(evidence):
    pairs = cs.pairs(evidence)
    assert pairs
    assert [(p.first.step, p.last.step, p.steps, p.one_update, p.named) for p in pairs] == [
        (3, 4, 1, True, True),
        (4, 9, 5, False, True),
    ]
    assert set(pairs[0].rows) == {"0.weight", "0.bias", "1.weight", "1.bias", "2.weight", "2.bias"}


def test_weights_groups_states_and_facts_are_typed(evidence):
    found, groups = cs.weights(evidence), cs.groups(evidence)
    assert found
    assert groups
    assert [w.checkpoint for w in found if w.name == "0.weight"] == ["step_3.pt", "step_4.pt", "step_9.pt"]
    assert {w.optimized for w in found} == {True}
    assert {w.shape for w in found if w.name == "2.weight"} == {(4, 16)}
    assert [g.lr for g in groups] == [1e-3] * 3
    assert all(cs.adam_like(g) for g in groups)
    assert ("step_9.pt", "0.weight", None) in cs.states(evidence, "exp_avg_sq")
    assert cs.facts(evidence, "step_9.pt")["optimizer.step"] == 9
    assert list(cs.weights_by_checkpoint(evidence)) == ["step_3.pt", "step_4.pt", "step_9.pt"]


def test_one_checkpoint_has_its_own_groups_states_and_counters(evidence):
    (group,) = cs.groups_of(evidence, "step_4.pt")
    assert cs.adam_groups_of(evidence, "step_4.pt") == dict.fromkeys(group.names, group)
    assert group.corrections == pytest.approx((1 - 0.9**4, 1 - 0.999**4))
    assert group._replace(step_max=None).corrections is None
    states = cs.states_of(evidence, "exp_avg", "step_4.pt")
    assert set(states) == {(name, None) for name in group.names}
    assert {row["checkpoint"] for row in states.values()} == {"step_4.pt"}
    assert states["2.weight", None]["shape"] == (4, 16)
    for nothing in (cs.groups_of, cs.adam_groups_of, cs.facts):
        assert not nothing(evidence, "step_5.pt")
    assert not cs.states_of(evidence, "exp_avg", "step_5.pt")


def test_infinities_count_but_for_those_of_a_mask():
    row = {"name": "fc.weight", "nan": 1, "posinf": 2, "neginf": 4}
    assert cs.nonfinite(row) == 7
    assert cs.nonfinite({**row, "name": "attn.causal_mask"}) == 3


def test_an_optimizer_of_as_many_ids_as_parameters_leaves_none_out(tmp_path):
    import torch
    from safetensors.torch import save_file

    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    for folder, trained in (("all", list(model.parameters())), ("part", list(model[0].parameters()))):
        where = tmp_path / folder / "checkpoint-1"
        where.mkdir(parents=True)
        optimizer = torch.optim.AdamW(trained)
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()
        save_file(model.state_dict(), where / "model.safetensors")
        torch.save(optimizer.state_dict(), where / "optimizer.pt")
    known = []
    for folder in ("all", "part"):
        (found,) = gather([tmp_path / folder])
        weights = cs.weights(found)
        assert weights
        known.append({w.optimized for w in weights})
    assert known == [{True}, {None}]


def test_a_master_is_measured_in_place_of_its_parameter():
    from pathlib import Path

    (found,) = gather([Path(__file__).parent / "checkpoints" / "data" / "ds_zero1_bf16"])
    weights = cs.weights(found)
    assert weights
    assert {(w.dtype, w.measured) for w in weights} == {("bfloat16", "float32")}


def test_without_checkpoints_there_is_nothing():
    empty = Evidence("run")
    assert (cs.checkpoints(empty), cs.weights(empty), cs.pairs(empty), cs.groups(empty), cs.moments(empty)) == (
        None,
        None,
        None,
        None,
        None,
    )
    assert cs.plain(cs.labelled("a.weight", 3)) == "a.weight"
    assert cs.labelled("a.weight", None) == "a.weight"
    assert cs.plain("a@b.weight") == "a@b.weight"


def averaged(folder, pack):
    """A plain loop that keeps an average of its weights and saves both after steps 4 and 8."""
    import torch
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    for step in range(1, 9):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        average.update_parameters(model)
        if step % 4 == 0:
            state = {"optimizer": optimizer.state_dict(), "step": step} | pack(model, average)
            torch.save(state, folder / f"step_{step}.pt")
    (found,) = gather([folder])
    return found


@pytest.mark.parametrize(
    ("key", "updates", "pack"),
    [
        ("ema", [4, 8], lambda model, average: {"model": model.state_dict(), "ema": average.state_dict()}),
        (
            "state_dict_ema",
            [None, None],
            lambda model, average: {
                "state_dict": model.state_dict(),
                "state_dict_ema": average.module.state_dict(),
            },
        ),
        (  # as Lightning's WeightAveraging saves
            "averaged",
            [4, 8],
            lambda model, average: {
                "state_dict": average.module.state_dict(),
                "current_model_state": model.state_dict(),
                "averaging_state": {"n_averaged": average.n_averaged},
            },
        ),
    ],
)
def test_averages_stand_beside_the_weights_and_the_states_belong_to_the_live_ones(tmp_path, key, updates, pack):
    evidence = averaged(tmp_path, pack)
    copies = cs.averages(evidence)
    weights = cs.weights(evidence)
    assert copies
    assert weights
    assert [(c.step, c.key, len(c.pairs), c.updates) for c in copies] == [
        (step, key, 6, count) for step, count in zip((4, 8), updates, strict=True)
    ]
    assert all(live.name == copy.name.split(".", 1)[1].removeprefix("module.") for copy, live in copies[0].pairs)
    assert {weight.name for weight in weights} == {live.name for _, live in copies[0].pairs}
    assert all(weight.optimized for weight in weights)
    (pair,) = cs.pairs(evidence) or []
    assert len(pair.rows) == len(pair.copies) == 6


def test_a_folder_with_an_average_is_no_neighbour(tmp_path):
    import torch

    (tmp_path / "train.log").write_text("".join(f"step: {step} loss: {3 - step / 10}\n" for step in range(1, 21)))
    for step in (10, 20):
        for name, shift in (("unet", 0.0), ("unet_ema", 1.0)):
            folder = tmp_path / f"checkpoint-{step}" / name
            folder.mkdir(parents=True)
            torch.save({"w": torch.full((4, 4), step + shift), "b": torch.ones(4)}, folder / "pytorch_model.bin")
    (evidence,) = gather([tmp_path])
    assert [(c.checkpoint, c.key, len(c.pairs)) for c in cs.averages(evidence) or []] == [
        ("checkpoint-10/unet", "unet_ema", 2),
        ("checkpoint-20/unet", "unet_ema", 2),
    ]
    assert [(p.first.path, p.last.path) for p in cs.pairs(evidence) or []] == [
        ("checkpoint-10/unet", "checkpoint-20/unet")
    ]


def trained(folder, name, step, seed, steps):
    """A checkpoint of a network that was trained for `steps` steps from the weights of a seed."""
    import torch

    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 32))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        x = torch.randn(16, 32)
        (model(x) - x.flip(1)).square().mean().backward()
        optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    torch.save(state, folder / name)


def test_weights_of_two_seeds_under_two_names_are_of_two_trainings(tmp_path):
    trained(tmp_path, "a.pt", 20, seed=0, steps=20)
    trained(tmp_path, "b.pt", 60, seed=0, steps=60)
    trained(tmp_path, "c.pt", 80, seed=1, steps=80)
    (found,) = gather([tmp_path])
    assert not cs.apart(found, "a.pt", "b.pt")
    assert cs.apart(found, "b.pt", "c.pt")


def test_weights_of_two_seeds_under_one_name_may_be_a_resume_that_lost_them(tmp_path):
    trained(tmp_path, "step_20.pt", 20, seed=0, steps=20)
    trained(tmp_path, "step_40.pt", 40, seed=1, steps=20)
    (found,) = gather([tmp_path])
    assert not cs.apart(found, "step_20.pt", "step_40.pt")
