"""Checkpoints of a run directory: whose they are, what of them becomes evidence, which is the last good one."""

import json

import pytest

from gradforensics.diagnosis.causes import diagnose
from gradforensics.diagnosis.rules import load_rules
from gradforensics.errors import NoEvidenceError
from gradforensics.evidence.gather import gather


def save(path, step, *, value=1.0, args=None):
    import torch

    path.parent.mkdir(parents=True, exist_ok=True)
    weight = torch.full((4, 3), value)
    torch.save({"model": {"w": weight}, "step": step, "args": args or {}}, path)


def state(losses):
    rows = [{"step": step, "epoch": step / 100, "loss": loss, "learning_rate": 1e-3} for step, loss in losses]
    return json.dumps({"global_step": losses[-1][0], "max_steps": losses[-1][0], "log_history": rows})


LOSSES = [(step, 3.0 - step / 100) for step in range(10, 210, 10)]


def test_checkpoints_belong_to_the_run_of_their_folder(run):
    for name in "ab":
        run.write({f"{name}/trainer_state.json": state(LOSSES)})
        for step in (100, 200):
            save(run.path / name / f"checkpoint-{step}" / "pytorch_model.bin", step)
    for name, evidence in zip("ab", run.all(), strict=True):
        assert evidence.name == name
        table = evidence.table("checkpoints")
        assert table.select("path", "step", "complete").rows() == [
            (f"{name}/checkpoint-{step}", step, True) for step in (100, 200)
        ]
        assert {s.reader for s in evidence.sources} == {"hf-trainer-state", "checkpoint (torch-zip)"}
        assert evidence.notices == []


def test_a_folder_of_checkpoints_is_a_run(run):
    save(run.path / "a.pt", 1)
    save(run.path / "b.pt", 2)
    evidence = run.one()
    assert (evidence.name, evidence.frames) == ("myrun", {})
    assert evidence.table("checkpoints")["path"].to_list() == ["a.pt", "b.pt"]


def test_far_away_checkpoints_are_a_run_of_their_own(run):
    run.write({"logs_of_a/x/trainer_state.json": state(LOSSES)})
    save(run.path / "other" / "checkpoint-5" / "model.pt", 5)
    assert [(e.name, e.table("checkpoints") is not None) for e in run.all()] == [
        ("logs_of_a/x", False), ("other", True),
    ]  # fmt: skip


def test_training_arguments_are_settings_of_the_runtime(run):
    import argparse

    import torch

    run.write({"trainer_state.json": state(LOSSES), "config.json": '{"learning_rate": 5e-5, "weight_decay": 0.5}'})
    torch.save(argparse.Namespace(learning_rate=1e-3, adam_beta2=0.95, seed=None), run.path / "training_args.bin")
    evidence = run.one()
    assert (evidence.number("learning_rate"), evidence.number("adam_beta2")) == (1e-3, 0.95)
    assert evidence.number("weight_decay") == 0.5
    assert evidence.table("checkpoints").height == 0
    assert "seed" not in {s.key for s in evidence.settings}


def test_settings_of_many_checkpoints_are_listed_once(run):
    run.write({"trainer_state.json": state(LOSSES)})
    for step in (100, 200):
        save(run.path / f"checkpoint-{step}" / "m.pt", step, args={"dropout": 0.1})
    assert [s.value for s in run.one().settings if s.name == "dropout"] == [0.1]


def test_without_tensors_they_are_listed_only(run):
    save(run.path / "a.pt", 1, value=float("nan"))
    listed = run.one(tensors=False)
    assert listed.table("checkpoints")["nonfinite"].to_list() == [None]
    assert (listed.table("moments"), listed.table("tensors").height) == (None, 1)
    assert run.one().table("checkpoints")["nonfinite"].to_list() == [12]


def test_the_logged_rate_bounds_how_far_the_weights_can_have_moved(run, trained_run):
    evidence = run.one()
    travels = evidence.table("travels")
    assert travels.height == 2
    assert travels["bound_ratio"].null_count() == 0
    assert travels["bound_ratio"].max() < 1


@pytest.fixture
def trained_run(run):
    """Two checkpoints of a plain loop 10 steps apart, and its log."""
    import torch

    torch.manual_seed(0)
    model = torch.nn.Linear(5, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    rows = ["step,loss,lr"]
    for step in range(1, 21):
        optimizer.zero_grad()
        loss = (model(torch.randn(8, 5)) ** 2).mean()
        loss.backward()
        optimizer.step()
        rows.append(f"{step},{loss.item()},0.001")
        if step % 10 == 0:
            torch.save(
                {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step},
                run.path / f"{step}.pt",
            )
    run.write({"log.csv": "\n".join(rows) + "\n"})


def test_broken_files_are_notices_and_the_analysis_goes_on(run):
    run.write({"trainer_state.json": state(LOSSES), "checkpoint-5/model.safetensors": b"\xff" * 40})
    save(run.path / "checkpoint-9" / "m.pt", 9)
    evidence = run.one()
    assert [n.source for n in evidence.notices] == ["checkpoint-5/model.safetensors"]
    assert evidence.table("checkpoints").select("path", "complete").rows() == [
        ("checkpoint-5", False), ("checkpoint-9/m.pt", True),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("pointer", "text", "there"),
    [
        ("latest", "global_step5", "global_step5/mp_rank_00_model_states.pt"),
        ("latest_checkpointed_iteration.txt", "5\n", "iter_0000005/mp_rank_00/model_optim_rng.pt"),
    ],
)
def test_a_latest_checkpoint_that_is_not_there(run, pointer, text, there):
    save(run.path / there, 5)
    run.write({pointer: text})
    assert [n.text for n in run.one().notices] == []
    run.write({pointer: text.replace("5", "9")})
    (notice,) = run.one().notices
    said = text.strip().replace("5", "9")
    assert (notice.source, notice.text) == (pointer, f"names {said} as the latest checkpoint, which is not there")


def test_nothing_but_unreadable_checkpoints_is_no_evidence(run):
    run.write({"model.pt": b"\x00" * 100, "x.bin": b"data"})
    with pytest.raises(NoEvidenceError, match=r"model\.pt: not read"):
        run.all()


def test_a_pickle_that_would_run_something_is_evidence(run):
    import pickle

    class Evil:
        def __reduce__(self):
            import os

            return os.system, ("true",)

    run.write({"a.pt": pickle.dumps(Evil())})
    assert run.one().table("calls").rows() == [("a.pt", "posix.system", True, "'true'")]


def test_losses_that_a_loop_kept_beside_its_weights_are_series(run):
    import torch

    kept = {"train_losses": [3.0, 2.5, float("nan"), 2.0], "val_losses": [3.1, 2.6, 2.4, 2.3], "sizes": [1, 2, 3]}
    rows = [{"step": 10 * n, "loss": torch.tensor(float(n))} for n in range(1, 5)]
    torch.save({"model": {"w": torch.ones(3)}, **kept}, run.path / "a.pt")
    evidence = run.one()
    assert {(k.tag, k.phase, k.series) for k in evidence.frames} == {
        ("train_losses", "train", "loss"), ("val_losses", "eval", "loss"),
    }  # fmt: skip
    assert evidence.series("loss").kinds == ("finite", "finite", "nan", "finite")
    torch.save({"model": {"w": torch.ones(3)}, "log": rows}, run.path / "a.pt")
    assert run.one().series("loss").steps.tolist() == [10, 20, 30, 40]


# -- the last good one ------------------------------------------------------------------------------------------------


def last_good(run, rules=load_rules(None)):  # noqa: B008  read once
    return diagnose(run.one(), rules).last_good_checkpoint


def test_the_newest_finite_and_complete_one_of_a_healthy_run(run):
    run.write({"trainer_state.json": state(LOSSES)})
    for step in (100, 150):
        save(run.path / f"checkpoint-{step}" / "m.pt", step)
    save(run.path / "checkpoint-200" / "m.pt", 200, value=float("inf"))
    assert last_good(run) == "checkpoint-150/m.pt"


def test_one_that_is_cut_is_not_good(run):
    run.write({"trainer_state.json": state(LOSSES)})
    for step in (100, 150):
        save(run.path / f"checkpoint-{step}" / "m.pt", step)
    path = run.path / "checkpoint-150" / "m.pt"
    path.write_bytes(path.read_bytes()[:-30])
    assert last_good(run) == "checkpoint-100/m.pt"


def test_one_from_after_the_fault_began_is_not_good(run):
    bad = [(step, float("nan") if step > 120 else loss) for step, loss in LOSSES]
    run.write({"trainer_state.json": state(bad).replace("NaN", "NaN")})
    for step in (50, 100, 119, 120, 130, 200):
        save(run.path / f"checkpoint-{step}" / "m.pt", step)
    assert last_good(run) == "checkpoint-119/m.pt"


def test_none_where_their_tensors_were_not_measured(run):
    save(run.path / "a.pt", 1)
    (evidence,) = gather([run.path], tensors=False)
    assert diagnose(evidence, load_rules(None)).last_good_checkpoint is None


# -- dumps of the Flight Recorder -------------------------------------------------------------------------------------


def dump(calls):
    """What a rank's recorder held: group 0 of two ranks, its calls numbered from 1."""
    import pickle

    entries = [
        {
            "record_id": n, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": n, "p2p_seq_id": 0,
            "op_id": n, "profiling_name": "nccl:all_reduce", "time_created_ns": 10**18 + n * 10**9,
            "time_discovered_started_ns": None, "time_discovered_completed_ns": None, "input_sizes": [[4]],
            "output_sizes": [[4]], "input_dtypes": ["Float"], "output_dtypes": ["Float"], "state": state_,
            "timeout_ms": 600000, "is_p2p": False, "retired": state_ == "completed", "frames": [],
        }
        for n, state_ in calls
    ]  # fmt: skip
    groups = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    return pickle.dumps(
        {"version": "2.9", "nccl_version": "2.27.3", "pg_config": groups, "pg_status": {}, "entries": entries}
    )


def test_dumps_of_the_flight_recorder_are_events_of_their_run(run):
    run.write(
        {
            "trainer_state.json": state(LOSSES),
            "fr/_dump_0": dump([(1, "completed"), (2, "scheduled")]),
            "fr/1.pkl": dump([(1, "completed")]),
            "fr/_dump_2": b"\x80\x04pg_config entries",
        }
    )
    evidence = run.one()
    (event,) = evidence.events_of("collective_timeout")
    assert (event.rank, event.source, event.data["waiting"]) == (1, "fr/_dump_0", [0])
    assert {s.path: s.reader for s in evidence.sources} == {
        "trainer_state.json": "hf-trainer-state", "fr/_dump_0": "flight-recorder", "fr/1.pkl": "flight-recorder",
        "fr/_dump_2": None,
    }  # fmt: skip
    assert [n.source for n in evidence.notices] == ["fr/_dump_2"]


def test_dumps_alone_are_a_run(run):
    run.write({f"_dump_{rank}": dump([(1, "completed")]) for rank in (0, 1)})
    assert run.one().events is None


def test_asking_for_names_says_where_there_is_nothing_to_ask(run, trained_run):
    evidence = run.one(names_from_config=True)
    assert {n.text for n in evidence.notices} == {"no config.json beside it: transformers was not asked for names"}


def test_a_configuration_beside_checkpoints_without_a_log_is_their_settings(tmp_path):
    import torch

    for step, rate in ((10, 1e-3), (20, 2e-3)):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        torch.save({"w": torch.ones(4, 4)}, folder / "pytorch_model.bin")
        (folder / "config.json").write_text(json.dumps({"tie_word_embeddings": True, "learning_rate": rate}))
    (evidence,) = gather([tmp_path])
    assert evidence.setting("tie_word_embeddings") is True
    assert [s.source for s in evidence.settings or [] if s.key == "learning_rate"] == [
        "checkpoint-10/config.json",
        "checkpoint-20/config.json",
    ]
