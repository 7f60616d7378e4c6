"""The checkpoints of one run as tables."""

import numpy as np
import pytest

from gradforensics.checkpoints.measure import open_all, parameters, survey
from gradforensics.tables import TABLES


@pytest.fixture
def run(tmp_path, trained):
    """Checkpoints of one training at steps 3, 4 and 9."""
    import torch

    net, optimizer, schedule = trained.make(steps=3)
    for step in (3, 4, 9):
        now = int(optimizer.state[net.emb.weight]["step"])
        trained.advance(net, optimizer, schedule, step - now)
        blob = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": schedule.state_dict()}
        torch.save({**blob, "step": step}, tmp_path / f"step_{step}.pt")
    return tmp_path


def test_tables_have_their_schemas_and_the_order_of_the_steps(run, tools):
    found = survey(open_all(tools.files_of(run)))
    assert [c.path for c in found.checkpoints] == ["step_3.pt", "step_4.pt", "step_9.pt"]
    assert set(found.tables) == {"checkpoints", "tensors", "moments", "travels", "groups", "facts", "calls"}
    for name, table in found.tables.items():
        assert dict(table.schema) == TABLES[name]
    assert found.tables["checkpoints"].select("step", "complete", "parameters", "nonfinite").rows() == [
        (step, True, 762, 0) for step in (3, 4, 9)
    ]
    assert found.notices == []


def test_neighbours_are_compared_and_one_step_apart_the_rate_is_recovered(run, tools):
    found = survey(open_all(tools.files_of(run)))
    travels = found.tables["travels"]
    assert travels.select("first_step", "step").unique().sort("step").rows() == [(3, 4), (4, 9)]
    one = travels.filter(travels["step"] == 4)
    rates = {name: (lr, wd) for name, lr, wd in one.select("name", "recovered_lr", "recovered_wd").rows()}
    assert rates["l2.weight"][0] == pytest.approx(1e-3 / 4, rel=1e-3)  # the schedule's rate of the fourth step
    assert rates["l2.weight"][1] == pytest.approx(0.1, rel=0.02)
    assert travels.filter(travels["step"] == 9)["recovered_lr"].null_count() == 7
    moments = found.tables["moments"]
    assert moments.height == 21
    assert moments["bound_violations"].sum() == 0


@pytest.mark.parametrize("known_by", ["two checkpoints", "OneCycleLR", "the scheduler's state"])
def test_betas_that_a_schedule_moves_have_no_bound_and_recover_nothing(tmp_path, tools, trained, known_by):
    import torch

    net, optimizer, _ = trained.make(steps=3, one_group=True)
    group = optimizer.param_groups[0]
    for step in (3, 4):
        trained.advance(net, optimizer, torch.optim.lr_scheduler.ConstantLR(optimizer), step - 3)
        if known_by == "two checkpoints":
            group["betas"] = (0.9 + 0.01 * (step - 3), 0.999)
        elif known_by == "OneCycleLR":
            group["max_momentum"] = 0.95
        scheduler = {"last_epoch": step, "cycle_momentum": known_by == "the scheduler's state"}
        blob = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler}
        torch.save(blob, tmp_path / f"step_{step}.pt")
    tables = survey(open_all(tools.files_of(tmp_path))).tables
    assert tables["moments"]["bound_violations"].null_count() == tables["moments"].height == 14
    assert tables["travels"]["recovered_lr"].null_count() == tables["travels"]["grad_l2"].null_count() == 7
    assert tables["travels"]["changed"].gt(0).all()


def test_listing_reads_no_tensor(run, tools):
    found = survey(open_all(tools.files_of(run)), measured=False)
    assert "moments" not in found.tables
    assert found.tables["tensors"]["nan"].null_count() == found.tables["tensors"].height
    assert found.tables["checkpoints"]["nonfinite"].null_count() == 3
    assert found.tables["groups"]["lr"].to_list()[:2] == pytest.approx([1e-3 / 4] * 2)


def test_a_flipped_byte_is_found_and_named(run, tools):
    path = run / "step_4.pt"
    raw = bytearray(path.read_bytes())
    weight = np.frombuffer(
        tools.raw(next(t.ref for t in tools.load_all(run)[1].tensors if t.name == "l2.weight")), np.uint8
    )
    at = raw.index(weight.tobytes())
    raw[at + 5] ^= 1
    path.write_bytes(raw)
    found = survey(open_all(tools.files_of(run)))
    (notice,) = found.notices
    assert notice.source == "step_4.pt"
    assert notice.text == (
        "the CRC-32 of 1 record is wrong, such as tensor model.l2.weight: bytes were changed or damaged"
    )
    assert found.tables["checkpoints"]["complete"].to_list() == [True, False, True]


def test_a_number_that_is_not_finite_is_counted(run, tools):
    import torch

    blob = torch.load(run / "step_9.pt", weights_only=True)
    blob["model"]["l1.bias"][2] = float("nan")
    blob["optimizer"]["state"][0]["exp_avg"][1, 1] = float("-inf")
    torch.save(blob, run / "step_9.pt")
    found = survey(open_all(tools.files_of(run)))
    assert found.tables["checkpoints"]["nonfinite"].to_list() == [0, 0, 2]
    bad = found.tables["tensors"].filter((found.tables["tensors"]["nan"] + found.tables["tensors"]["neginf"]) > 0)
    assert sorted(bad.select("role", "name").rows()) == [("exp_avg", "emb.weight"), ("param", "l1.bias")]


def test_checkpoints_of_other_models_are_not_compared(run, tools):
    import torch

    torch.save({"model": {"other": torch.ones(3)}, "step": 6}, run / "step_6.pt")
    travels = survey(open_all(tools.files_of(run))).tables["travels"]
    assert travels.select("first_step", "step").unique().sort("step").rows() == [(3, 4)]


def test_trainings_of_two_seeds_in_one_folder_are_not_compared_with_each_other(run, tools):
    import torch

    for step in (3, 4, 9):
        (run / f"step_{step}.pt").rename(run / f"seed1_step{step}.pt")
    for step in (4, 9):
        blob = torch.load(run / f"seed1_step{step}.pt", weights_only=True)
        torch.save(blob | {"model": {k: v + 1 for k, v in blob["model"].items()}}, run / f"seed2_step{step}.pt")
    tables = survey(open_all(tools.files_of(run))).tables
    compared = tables["travels"].select("first_step", "checkpoint").unique().sort("checkpoint", "first_step").rows()
    assert compared == [(3, "seed1_step4.pt"), (4, "seed1_step9.pt"), (4, "seed2_step9.pt")]
    other = tables["travels"].filter(tables["travels"]["checkpoint"] == "seed2_step9.pt")["rel_travel"]
    assert max(other.to_list()) < 0.5
    assert set(tables["moments"]["checkpoint"]) == set(tables["checkpoints"]["path"])


def test_masters_stand_for_their_parameters(tools):
    from pathlib import Path

    (checkpoint,) = tools.load_all(Path(__file__).parent / "data" / "ds_zero1_bf16")
    found = {p.name: p for p in parameters(checkpoint)}
    assert {p.weight.dtype for p in found.values() if p.weight} == {"float32"}
    assert all(p.weight for p in found.values())
    assert {(p.hyper.beta1, p.hyper.beta2, p.hyper.step) for p in found.values()} == {(0.9, 0.999, 3)}


def test_states_without_a_name_have_moments_and_no_travel(tmp_path, tools):
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in (1, 2):
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        (tmp_path / f"checkpoint-{step}").mkdir()
        torch.save(optimizer.state_dict(), tmp_path / f"checkpoint-{step}" / "optimizer.pt")
    found = survey(open_all(tools.files_of(tmp_path)))
    assert found.tables["moments"]["name"].to_list() == ["state.0", "state.1", "state.2", "state.3"] * 2
    assert found.tables["moments"]["bound_violations"].to_list() == [0] * 8
    assert found.tables["travels"].height == 0
    assert not [n for n in found.notices if "not measured" in n.text]


def test_states_that_are_named_in_one_checkpoint_only_are_no_missing_parameters(tmp_path, tools):
    import torch

    def moments(size):
        return {"step": torch.tensor(5.0), "exp_avg": torch.full((size,), 0.1), "exp_avg_sq": torch.ones(size)}

    group = {"params": [0, 1], "lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8}
    for step, sizes in ((1, (4, 4)), (5, (4, 3))):  # two of one shape, then one of each
        # sorted by name: without the order of the parameters
        model = {name: torch.randn(size) for name, size in zip(("a", "b"), reversed(sizes), strict=True)}
        state = {"state": {i: moments(size) for i, size in enumerate(sizes)}, "param_groups": [group]}
        torch.save({"model": model, "optimizer": state}, tmp_path / f"step_{step}.pt")
    found = survey(open_all(tools.files_of(tmp_path)))
    assert {row["name"] for row in found.tables["moments"].to_dicts()} == {
        "optimizer.state.0", "optimizer.state.1", "a", "b",
    }  # fmt: skip
    assert [n.text for n in found.notices if "not in the" in n.text] == []


def test_alike_notices_are_one(tmp_path, tools):
    for index in range(4):
        (tmp_path / f"model-0000{index + 1}-of-00004.safetensors").write_bytes(
            b"version https://git-lfs.github.com/spec/v1\n"
        )
    (notice,) = survey(open_all(tools.files_of(tmp_path))).notices
    assert notice.text.endswith("(4 such files)")
