"""Which files are one run, which are several, what they are called, and which attempt comes first."""

# ruff: noqa: E501  lines of logs and files stand here as they are written

import json
import os
import random
from pathlib import Path

import numpy as np
import pytest

from gradforensics.errors import NoEvidenceError, UsageError
from gradforensics.evidence import grouping, names
from gradforensics.evidence.files import File
from gradforensics.evidence.gather import gather
from gradforensics.evidence.log_table import writers
from gradforensics.evidence.pieces import Piece
from gradforensics.evidence.readings import Reading, Track
from gradforensics.tables import SeriesFrame, series_frame


def csv(points):
    return "step,loss\n" + "".join(f"{s},{v}\n" for s, v in points)


def state(points, **top):
    rows = [{"step": s, "loss": v} for s, v in points]
    return json.dumps({"global_step": points[-1][0], "max_steps": 100, "log_history": rows, **top}, indent=2)


POINTS = [(s, 2.0 - s / 100 + (s % 7) / 50) for s in range(10, 110, 10)]


def test_all_files_of_a_trainer_folder_are_one_run(run):
    log = "".join(json.dumps({"current_steps": s, "total_steps": 100, "loss": v}) + "\n" for s, v in POINTS)
    console = "".join(f"{{'loss': {v}, 'epoch': {s / 100}}}\n" for s, v in POINTS) + "Killed\n"
    evidence = run.write(
        {
            "trainer_state.json": state(POINTS), "checkpoint-50/trainer_state.json": state(POINTS[:5]), "trainer_log.jsonl": log,
            "all_results.json": '{"train_loss": 1.0}', "logs/train.log": console, "training_args.json": '{"learning_rate": 0.1}',
            "checkpoint-50/model.safetensors": b"\x08\0\0\0\0\0\0\0{}      ",
        }
    ).one()  # fmt: skip
    assert evidence.name == "myrun"
    assert {k.source for k in evidence.keys("loss")} == {"trainer_state.json", "trainer_log.jsonl", "logs/train.log"}
    assert len(evidence.sources) == 7
    assert evidence.series("loss").source == "trainer_state.json"
    assert evidence.ending.kind == "killed"


def test_the_most_complete_state_counts_and_prefixes_add_nothing(run):
    evidence = run.write({f"checkpoint-{n}/trainer_state.json": state(POINTS[: n // 10]) for n in (100, 50, 20)}).one()
    (key,) = evidence.keys("loss")
    assert key.source == "checkpoint-100/trainer_state.json"
    assert evidence.series("loss").steps.tolist() == [s for s, _ in POINTS]
    assert evidence.notices == []


def test_states_that_part_are_attempts(run):
    other = POINTS[:3] + [(s, v + 1) for s, v in POINTS[3:5]]
    evidence = run.write({"trainer_state.json": state(POINTS), "checkpoint-50/trainer_state.json": state(other)}).one()
    older, newer = evidence.attempts("loss")
    assert older.steps.tolist() == [10, 20, 30, 40, 50]
    assert newer.steps.tolist() == [40, 50, 60, 70, 80, 90, 100]
    assert older.lines[3:].tolist() == [0, 0]
    assert evidence.series("loss").values.tolist() == pytest.approx([v for _, v in POINTS])
    assert [n.text for n in evidence.notices] == ["differs from trainer_state.json from step 40 on: an earlier attempt"]


def test_sub_folders_are_runs_of_their_own(run):
    a, b = run.write({"version_0/metrics.csv": csv(POINTS), "version_1/metrics.csv": csv(POINTS)}).all()
    assert (a.name, b.name) == ("myrun/version_0", "myrun/version_1")


def test_unrelated_logs_of_one_folder_are_several_runs(run):
    other = [(s, v * 1.01) for s, v in POINTS]
    found = [e.name for e in run.write({"llama.csv": csv(POINTS), "bert.csv": csv(other)}).all()]
    assert found == ["bert", "llama"]


def test_copies_of_one_log_are_one_run(run):
    text = "".join(f"step {s} loss {v:.3f}\n" for s, v in POINTS)
    evidence = run.write({"metrics.csv": csv(POINTS), "train.log": text}).one()
    assert {k.source for k in evidence.keys("loss")} == {"metrics.csv", "train.log"}
    assert evidence.series("loss").source == "metrics.csv"


def test_different_series_of_one_folder_are_one_run(run):
    evidence = run.write({"train.csv": csv(POINTS), "eval.csv": "step,val_loss\n50,1.5\n100,1.25\n"}).one()
    assert evidence.series("loss", "eval").steps.tolist() == [50, 100]


@pytest.mark.parametrize(("first", "second"), [((0, 5), (5, 10)), ((0, 6), (4, 10))])
def test_logs_that_continue_each_other_are_attempts_of_one_run(run, first, second):
    later = [(s, v + 0.3) for s, v in POINTS[slice(*second)]]
    evidence = run.write({"slurm-2.csv": csv(later), "slurm-1.csv": csv(POINTS[slice(*first)])}).one()
    attempts = evidence.attempts("loss")
    assert [len(a) for a in attempts] == [first[1], len(later)]
    assert attempts[0].steps[0] == 10
    assert evidence.series("loss").values.tolist()[-len(later) :] == pytest.approx([v for _, v in later])
    assert len(evidence.notices) == 1


def test_names_of_folders_and_files(tmp_path):
    for folder in ("plain", "exp7/run", "exp8/output/version_3"):
        path = tmp_path / folder
        path.mkdir(parents=True)
        (path / "log.csv").write_text(csv(POINTS))
    found = {f: gather([tmp_path / f])[0].name for f in ("plain", "exp7/run", "exp7", "exp8/output/version_3")}
    assert found == {
        "plain": "plain",
        "exp7/run": "exp7/run",
        "exp7": "exp7/run",
        "exp8/output/version_3": "exp8/output/version_3",
    }
    (single,) = gather([tmp_path / "plain" / "log.csv"])
    assert (single.name, single.sources[0].path) == ("log", "log.csv")


def test_several_inputs(tmp_path):
    for folder in ("x/run", "y/run"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "log.csv").write_text(csv(POINTS))
    found = gather([tmp_path / "x", tmp_path / "y", tmp_path / "x"])
    assert [e.name for e in found] == ["x/run", "y/run"]
    assert [e.sources[0].path for e in found] == ["x/run/log.csv", "y/run/log.csv"]
    both = gather([tmp_path / "x/run/log.csv", tmp_path / "y/run/log.csv"])
    assert [e.name for e in both] == ["x/run/log", "y/run/log"]
    assert [e.sources[0].path for e in both] == ["x/run/log.csv", "y/run/log.csv"]
    assert {k.run for k in both[1].frames} == {"y/run/log"}
    globbed = gather([tmp_path / "x/run", tmp_path / "y/run", tmp_path / "y" / "." / "run"])
    assert [e.name for e in globbed] == ["x/run", "y/run"]
    assert [e.sources[0].path for e in globbed] == ["x/run/log.csv", "y/run/log.csv"]
    mixed = gather([tmp_path / "x/run", tmp_path / "y/run/log.csv"])
    assert [e.name for e in mixed] == ["run", "log"]
    assert [e.sources[0].path for e in mixed] == ["run/log.csv", "log.csv"]


# -- what lies around --------------------------------------------------------------------------------------------------


def test_files_that_cannot_be_read_are_notices(run):
    later = {
        "events.out.tfevents.1.host": b"x",
        "model.pt": b"PK",
        "run-1.wandb": b":W&B",
        "mlflow.db": b"SQLite",
        "pytorch_model.bin": b"\x80",
    }
    run.write(
        {
            "log.csv": csv(POINTS), "empty.log": "", "lfs.json": "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n",
            "bin.log": bytes(range(256)) * 4, "bad.log.gz": b"no gzip", "photo.png": b"\x89PNG", "train.py": "loss = 1", **later,
        }
    )  # fmt: skip
    evidence = run.one()
    said = {n.source: n.text for n in evidence.notices}
    assert said == {
        "empty.log": "empty file",
        "lfs.json": "only a git-LFS pointer: the content was not fetched (git lfs pull)",
        "bin.log": "binary content under the name of a text",
        "bad.log.gz": "no valid gzip data",
        "events.out.tfevents.1.host": "no TensorBoard event file by its content",
        "model.pt": "not read: neither a zip archive nor a pickle: not written by torch.save",
        "pytorch_model.bin": "not read: no checkpoint by its content",
        "run-1.wandb": "no W&B file by its content",
        "mlflow.db": "no database that this version reads",
    }
    by_path = {s.path: s for s in evidence.sources}
    assert set(by_path) == {*said, "log.csv", "pytorch_model.bin"}
    assert by_path["log.csv"].reader == "csv"
    assert by_path["log.csv"].sha256 is not None
    assert by_path["model.pt"].reader is None
    assert by_path["model.pt"].bytes == 2


def test_large_files_are_not_hashed(run):
    run.write({"log.csv": csv(POINTS), "model.pt": b""})
    with (run.path / "model.pt").open("wb") as stream:
        stream.truncate((64 << 20) + 1)
    source = next(s for s in run.one().sources if s.path == "model.pt")
    assert (source.sha256, source.remark) == (
        None,
        "larger than 64 MB: no sha256",
    )


def test_pipes_loops_and_links_out_of_the_folder(run, tmp_path):
    run.write({"log.csv": csv(POINTS)})
    os.mkfifo(run.path / "pipe.log")
    (run.path / "loop").symlink_to(run.path, target_is_directory=True)
    (run.path / "self.log").symlink_to("self.log")
    outside = tmp_path / "outside.csv"
    outside.write_text(csv([(1, 9.0), (2, 8.0)]))
    (run.path / "out.csv").symlink_to(outside)
    (run.path / "gone.csv").symlink_to(run.path / "nowhere")
    evidence = run.one()
    assert len(evidence.series("loss")) == 10
    said = {n.source: n.text for n in evidence.notices}
    assert said["out.csv"] == "a symbolic link out of the directory: not followed"
    assert said["self.log"] == "a symbolic link that leads back to itself: not followed"
    assert said["gone.csv"] == "a symbolic link that leads nowhere"
    assert said["pipe.log"] == "a named pipe: not read"
    assert set(said) == {"out.csv", "gone.csv", "self.log", "pipe.log"}


def test_skipped_folders(run):
    run.write(
        {
            "log.csv": csv(POINTS),
            ".git/x.csv": csv(POINTS),
            "venv/a.csv": csv(POINTS),
            "env/pyvenv.cfg": "",
            "env/a.csv": csv(POINTS),
            "__pycache__/a.csv": csv(POINTS),
        }
    )
    assert [s.path for s in run.one().sources] == ["log.csv"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_files(run):
    run.write({"log.csv": csv(POINTS), "secret.log": "x", "dir/a.csv": csv(POINTS)})
    (run.path / "secret.log").chmod(0)
    (run.path / "dir").chmod(0)
    evidence = run.one()
    (run.path / "dir").chmod(0o755)
    assert {n.source: n.text for n in evidence.notices} == {
        "secret.log": "not read: Permission denied",
        "dir": "not read: Permission denied",
    }


def test_a_file_that_vanishes_or_fails_is_a_notice(run, monkeypatch):
    from gradforensics.evidence import files
    from gradforensics.untrusted import files as untrusted

    run.write({"log.csv": csv(POINTS), "secret.log": "x"})
    whole = untrusted.open_regular

    def broken(path):
        if path.name == "secret.log":
            raise PermissionError(13, "Permission denied")
        return whole(path)

    monkeypatch.setattr(files, "open_regular", broken)
    evidence = run.one()
    assert {n.source: n.text for n in evidence.notices} == {"secret.log": "not read: Permission denied"}


def test_progress_is_told_in_bytes(run):
    calls = []
    files = {"log.csv": csv(POINTS * 40_000), "b.log": "x", "c.json": "{}"}
    total = sum(map(len, files.values()))
    run.write(files).one(progress=lambda *call: calls.append(call))
    assert {(what, whole) for what, _, whole in calls} == {("reading", total)}
    done = [count for _, count, _ in calls]
    assert done == sorted(done)
    assert done[-1] == total
    assert any(0 < count < len(files["log.csv"]) for count in done)


def test_nothing_is_written(run):
    run.write({"log.csv": csv(POINTS), "a/trainer_state.json": state(POINTS)})
    before = {p: p.stat().st_mtime_ns for p in run.path.rglob("*")}
    run.all()
    assert {p: p.stat().st_mtime_ns for p in run.path.rglob("*")} == before


def test_paths_that_do_not_exist():
    with pytest.raises(UsageError, match="no such file"):
        gather([Path("/nowhere/at/all")])


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "among 0 files"),
        ({"model.pt": b"x", "a.ckpt": b"y"}, "a.ckpt: not read: neither a zip archive nor a pickle"),
        ({"a.db": b"x", "b.sqlite": b"y"}, "among 2 files (read: none that a reader knows; a.db: no database that"),
        ({"events.out.tfevents.1": b"x"}, "events.out.tfevents.1: no TensorBoard event file by its content"),
        ({"config.json": '{"learning_rate": 1}'}, "read: config.json (config)"),
        ({"x.log": "hello\n", "m.db": b"x"}, "m.db: no database that this version reads"),
        ({"trainer_state.json": ""}, "trainer_state.json: empty file"),
    ],
)
def test_no_evidence_says_what_was_looked_at(run, files, said):
    with pytest.raises(NoEvidenceError) as caught:
        run.write(files).all()
    assert said in str(caught.value)
    assert "What would count" in str(caught.value)
    assert caught.value.exit_code == 4


def test_files_of_ranks_are_one_run(run):
    files = {f"rank_{r}.csv": csv([(s, v + r) for s, v in POINTS]) for r in (0, 1)}
    evidence = run.write({**files, "rank_1.log": "Killed\n"}).one()
    assert evidence.ranks("loss") == [0, 1]
    assert evidence.series("loss", rank=1).source == "rank_1.csv"
    assert evidence.series("loss").source == "rank_0.csv"
    assert [(e.kind, e.rank) for e in evidence.events] == [("killed", 1)]


def test_many_unread_files_have_one_notice(run):
    many = {f"checkpoint-{i}/{name}": b"x" for i in range(3) for name in ("a.wandb", "b.wandb")}
    run.write({"log.csv": csv(POINTS), **many})
    (notice,) = run.one().notices
    assert (notice.source, notice.text) == (
        "checkpoint-0/a.wandb",
        "no W&B file by its content (6 such files)",
    )


def test_every_run_has_its_own_notices_of_unread_files(run):
    run.write({f"{r}/{n}": csv(POINTS) if n == "log.csv" else b"x" for r in "ab" for n in ("log.csv", "m.db", "o.db")})
    assert [[n.source for n in e.notices] for e in run.all()] == [["a/m.db", "a/o.db"], ["b/m.db", "b/o.db"]]


# -- console logs beside the folder of their run -----------------------------------------------------------------------

LOSSES = [3.0 - i / 7 for i in range(12)]


def console(losses, digits=3):
    return "".join(f"step {10 * i}: loss {v:.{digits}f}\n" for i, v in enumerate(losses)) + "Training completed\n"


def logged(losses):
    return csv([(10 * i, v) for i, v in enumerate(losses)])


@pytest.mark.parametrize(
    ("log", "table"),
    [("train.log", "out/metrics.csv"), ("stdout.log", "exp/version_0/a.csv"), ("exp/b/c.log", "exp/a.csv")],
)
def test_a_console_log_belongs_to_the_run_whose_values_it_prints(run, log, table):
    evidence = run.write({log: console(LOSSES), table: logged(LOSSES)}).one()
    assert {s.path for s in evidence.sources} == {log, table}
    assert (evidence.ending.kind, evidence.ending.source) == ("completed", log)
    assert [k.source for k in evidence.keys("loss")] == [table, log]


def test_a_console_log_of_other_values_stays_a_run_of_its_own(run):
    other = [v + 0.1 for v in LOSSES]
    assert len(run.write({"train.log": console(other), "out/metrics.csv": logged(LOSSES)}).all()) == 2


def test_a_console_log_that_agrees_with_two_runs_stays_alone(run):
    assert len(run.write({"t.log": console(LOSSES), "a/m.csv": logged(LOSSES), "b/m.csv": logged(LOSSES)}).all()) == 3


def test_the_log_of_a_sweep_is_shared_out(run):
    second = [v / 2 for v in LOSSES]
    files = {"sweep.log": console(LOSSES) + console(second), "a/m.csv": logged(LOSSES), "b/m.csv": logged(second)}
    a, b = run.write(files).all()
    assert [a.name, b.name] == ["a", "b"]
    assert [e.ending.line for e in (a, b)] == [13, 26]
    printed = [e.frames[next(k for k in e.keys("loss") if k.source == "sweep.log")].frame for e in (a, b)]
    assert [f["line"].to_list()[0] for f in printed] == [1, 14]
    assert [f["attempt"].max() for f in printed] == [0, 0]


def test_the_log_of_a_run_that_was_begun_anew_is_not_shared_out(run):
    lost = [9.0 - i for i in range(4)]
    evidence = run.write({"t.log": console(lost) + console(LOSSES), "out/m.csv": logged(LOSSES)}).one()
    assert evidence.frames[evidence.keys("loss")[-1]].frame["attempt"].max() == 1


def test_the_last_frame_of_a_bar_belongs_to_the_run(run):
    log = "`Trainer.fit` stopped: `max_epochs=4` reached.\nEpoch 3/3 ━━━━ 16/16 0:00:00 470.93it/s v_num: 0.000\n"
    table = "step,train_loss,val_loss\n59,0.2263,\n63,,0.2668\n"
    evidence = run.write({"out.log": log + " train_loss: 0.207\n val_loss: 0.267\n", "exp/metrics.csv": table}).one()
    assert evidence.ending.kind == "completed"


# -- columns of the user -----------------------------------------------------------------------------------------------


def test_a_mapped_column_that_no_file_has_is_a_notice(run):
    evidence = run.write({"log.csv": csv(POINTS)}).one(columns={"nosuch": "loss"})
    assert [(n.source, n.text) for n in evidence.notices] == [
        ("--map", 'no file has a column "nosuch" (--map nosuch=loss)')
    ]


def test_a_mapped_column_that_becomes_the_step_is_a_notice(run):
    evidence = run.write({"b.csv": "n,loss\n1,2\n2,3\n"}).one(columns={"n": "step"})
    assert [n.text for n in evidence.notices] == ['column "n" is used as the step, as --map says']


@pytest.mark.parametrize("series", ["", " ", "eval/"])
def test_a_mapped_column_needs_a_series(run, series):
    with pytest.raises(UsageError, match="--map"):
        run.write({"log.csv": csv(POINTS)}).one(columns={"x": series})


def test_a_column_with_few_numbers_is_a_notice(run):
    rows = "".join(f"{i},2.5,{'9' * 80 if i > 2 else i},n.a.\n" for i in range(1, 9))
    big, accuracy = run.write({"log.csv": "step,loss,big,accuracy\n" + rows}).one().notices
    assert big.line == 4
    assert big.text.startswith('column "big": 6 values are no numbers and 2 are (first: "999')
    assert accuracy.text == 'column "accuracy": 8 values are no numbers (first: "n.a."): not read as a series'


# -- what frameworks leave behind --------------------------------------------------------------------------------------


def test_the_versions_of_lightning_are_runs(run):
    files = {f"lightning_logs/version_{i}/metrics.csv": csv([(s, v + i) for s, v in POINTS]) for i in range(3)}
    files |= {f"lightning_logs/version_{i}/hparams.yaml": f"learning_rate: 0.{i + 1}\n" for i in range(3)}
    found = run.write(files).all()
    assert [e.name for e in found] == [f"lightning_logs/version_{i}" for i in range(3)]
    assert [e.number("learning_rate") for e in found] == [0.1, 0.2, 0.3]


def test_the_folders_of_a_wandb_run_are_one_run(run):
    folder = "wandb/run-20260101_120000-ab12cd34"
    files = {
        f"{folder}/files/output.log": console(LOSSES), f"{folder}/files/config.yaml": "learning_rate:\n  value: 0.1\nmax_steps:\n  value: 110\n",
        f"{folder}/logs/debug.log": "setup\n", "wandb/offline-run-20260102_120000-ef56ab78/files/output.log": console([v / 2 for v in LOSSES]),
    }  # fmt: skip
    run.write(files)
    (run.path / "wandb/latest-run").symlink_to("offline-run-20260102_120000-ef56ab78", target_is_directory=True)
    offline, online = run.all()
    assert [offline.name, online.name] == ["wandb/offline-run-20260102_120000-ef56ab78", folder]
    assert [(f.key, f.value) for f in offline.environment] == [("link", "wandb/latest-run")]
    assert (online.environment, online.notices, offline.notices) == (None, [], [])


def test_the_jobs_of_a_hydra_sweep_are_runs(run):
    files: dict[str, str] = {}
    for i in range(3):
        folder = f"multirun/2026-01-01/12-00-00/{i}"
        files |= {f"{folder}/main.log": console([v + i for v in LOSSES]), f"{folder}/.hydra/config.yaml": f"lr: 0.{i + 1}\nepochs: 3\n"}  # fmt: skip
        files |= {f"{folder}/.hydra/overrides.yaml": f"- lr=0.{i + 1}\n"}
    found = run.write({**files, "multirun/2026-01-01/12-00-00/multirun.yaml": "hydra:\n  mode: MULTIRUN\n"}).all()
    assert [e.name for e in found] == [f"multirun/2026-01-01/12-00-00/{i}" for i in range(3)]
    assert [e.number("learning_rate") for e in found] == [0.1, 0.2, 0.3]


def test_the_configuration_of_hydra_belongs_to_the_folder_above_it(run):
    folder = "outputs/2026-01-01/12-00-00"
    files = {f"{folder}/.hydra/config.yaml": "lr: 0.5\nepochs: 3\n", f"{folder}/tb/m.csv": csv(POINTS)}
    other = {"outputs/2026-01-02/12-00-00/m.csv": csv([(s, v + 1) for s, v in POINTS])}
    found = {e.name: e for e in run.write({**files, **other}).all()}
    assert found[f"{folder}/tb"].number("learning_rate") == 0.5
    assert found["outputs/2026-01-02/12-00-00"].number("learning_rate") is None


def test_slurm_jobs_are_attempts_where_one_continues_the_other(run):
    first, second = (
        console(LOSSES[:7]),
        "".join(f"step {10 * i}: loss {v:.3f}\n" for i, v in enumerate(LOSSES) if i > 4),
    )
    evidence = run.write({"slurm-123.out": first, "slurm-124.out": second}).one()
    assert [a.steps[0] for a in evidence.attempts("loss")] == [0, 50]
    reasons = {s.path: s.remark for s in evidence.sources}
    assert "continue" in reasons["slurm-123.out"] + reasons["slurm-124.out"] or "same values" in "".join(
        reasons.values()
    )


def test_slurm_jobs_of_other_values_are_runs(run):
    files = {f"slurm-12{i}.out": console([v + i for v in LOSSES]) for i in range(3)}
    assert [e.name for e in run.write(files).all()] == ["slurm-120", "slurm-121", "slurm-122"]


def test_the_array_of_a_slurm_job_is_no_family_of_ranks(run):
    files = {f"slurm-99_{i}.out": console([v + i for v in LOSSES]) for i in range(3)}
    assert [e.ranks("loss") for e in run.write(files).all()] == [[], [], []]


def test_a_file_goes_to_the_run_of_its_name(run):
    other = [(s, v + 1) for s, v in POINTS]
    evals = {f"{n}_eval.csv": f"step,val_loss\n50,{v}\n100,{v}\n" for n, v in (("bert", 1.5), ("llama", 2.5))}
    bert, llama = run.write({"bert_train.csv": csv(POINTS), "llama_train.csv": csv(other), **evals}).all()
    assert {s.path for s in bert.sources} == {"bert_train.csv", "bert_eval.csv"}
    assert {s.path for s in llama.sources} == {"llama_train.csv", "llama_eval.csv"}


def test_the_reason_why_files_are_one_run_is_recorded(run):
    files = {"metrics.csv": csv(POINTS), "train.log": "".join(f"step {s} loss {v:.3f}\n" for s, v in POINTS)}
    evidence = run.write(files).one()
    assert {s.path: s.remark for s in evidence.sources} == {
        "metrics.csv": "",
        "train.log": "same values at 10 common steps as metrics.csv; "
        "no known dialect: read by the names beside its numbers",
    }


def test_many_runs_of_one_folder_stay_apart_and_copies_together(run):
    curves = {i: [(s, v + i / 8) for s, v in POINTS] for i in range(40)}
    long = {i: [(s, 2 - s / 500 + i / 8 + (s % 7) / 50) for s in range(10, 400, 10)] for i in curves}
    files = {f"exp_{i}.csv": csv(points) for i, points in long.items()}
    copies = {f"copy_{i}.csv": csv([(s, round(v, 3)) for s, v in long[i]]) for i in range(5)}
    found = run.write({**files, **copies}).all()
    assert len(found) == 40
    assert sorted(len(e.sources) for e in found) == [1] * 35 + [2] * 5


# -- event files of TensorBoard, as pieces ------------------------------------------------------------------------------


def piece(name, points, tag="loss", reader="tensorboard"):
    frame = series_frame({"step": [s for s, _ in points]}, [v for _, v in points])
    phase, series = names.series_of(tag)
    reading = Reading(tracks=[Track(phase or "train", series, tag, SeriesFrame(frame))])
    return Piece(File(Path(name), name, 1), reader, reading)


def events(folder, began=1700000000):
    return f"{folder}/events.out.tfevents.{began}.host.1.0"


def test_sub_folders_of_event_files_are_phases(run):
    pieces = [piece(events(f"exp{i}/{part}"), POINTS) for i in (1, 2) for part in ("train", "validation")]
    groups = grouping.group(pieces)
    assert [str(g.folder) for g in groups] == ["exp1", "exp2"]
    assert [[p.reading.tracks[0].phase for p in g.pieces] for g in groups] == [["train", "eval"], ["train", "eval"]]


def test_the_evaluation_of_an_estimator_is_a_phase_of_the_run_above(run):
    (group,) = grouping.group([piece(events("model"), POINTS), piece(events("model/eval"), POINTS)])
    assert {p.file.name: p.reading.tracks[0].phase for p in group.pieces} == {
        events("model"): "train",
        events("model/eval"): "eval",
    }


def test_a_run_that_is_called_test_is_no_phase(run):
    groups = grouping.group([piece(events("runs/test"), POINTS), piece(events("runs/exp1"), POINTS)])
    assert [str(g.folder) for g in groups] == ["runs/exp1", "runs/test"]
    assert {p.reading.tracks[0].phase for g in groups for p in g.pieces} == {"train"}


def test_the_scalars_of_a_group_are_series_of_the_run_above(run):
    pieces = [
        piece(events("runs/a"), POINTS),
        *(piece(events(f"runs/a/grp_x_{k}"), POINTS, "grp/x") for k in ("u", "v_w")),
    ]
    (group,) = grouping.group(pieces)
    assert [t.tag for p in group.pieces for t in p.reading.tracks] == ["loss", "grp/x/u", "grp/x/v_w"]
    assert [t.series for p in group.pieces for t in p.reading.tracks][1:] == ["grp/x/u", "grp/x/v_w"]


def test_parameters_in_a_folder_of_their_own_belong_to_the_run_above(run):
    parameters = Piece(File(Path("x"), events("runs/a/1700000000.123"), 1), "tensorboard", Reading(settings=[]))
    (group,) = grouping.group([piece(events("runs/a"), POINTS), parameters])
    assert len(group.pieces) == 2


def test_the_event_files_of_a_folder_are_launches_in_the_order_of_their_times(run):
    other = [(s, v + 1) for s, v in POINTS]
    (group,) = grouping.group([piece(events("a", 1700000500), other), piece(events("a", 1700000000), POINTS)])
    assert [p.began for chain in group.chains for p in chain] == [1700000000, 1700000500]


# -- several writers of one file ---------------------------------------------------------------------------------------


def interleaved(a, b, seed=0):
    """Two sequences of rows, each in its order, mixed at random."""
    dice, rows, queues = random.Random(seed), [], [list(a), list(b)]
    while any(queues):
        queue = dice.choice([q for q in queues if q])
        rows.append(queue.pop(0))
    return rows


LONG = [(s, 2.0 - s / 1000 + (s % 7) / 50) for s in range(10, 610, 10)]


def test_two_writers_of_one_file_are_two_runs(run):
    other = [(s, v + 3) for s, v in LONG]
    second, first = run.write({"log.csv": csv(interleaved(LONG, other))}).all()
    values = sorted(float(e.series("loss").values[5]) for e in (first, second))
    assert values == pytest.approx([LONG[5][1], LONG[5][1] + 3])
    assert {len(e.series("loss")) for e in (first, second)} == {60}
    assert {e.name for e in (first, second)} == {"myrun", "log (writer 2)"}
    assert [n.text for n in first.notices] == [
        "2 writers interleave in this file",
        "of the writers of this file the rows of every other one are a run of their own",
    ]


def test_a_writer_that_repeats_the_other_is_left_out(run):
    evidence = run.write({"log.csv": csv(interleaved(LONG, LONG))}).one()
    assert evidence.series("loss").values.tolist() == pytest.approx([v for _, v in LONG])
    assert "one wrote the same values and is left out" in evidence.notices[-1].text


@pytest.mark.parametrize(
    "rows",
    [
        LONG[:30] + LONG[20:],
        [p for _ in range(5) for p in LONG[:12]],
        LONG,
        [(random.Random(s).randrange(600), v) for s, v in LONG],
    ],
)
def test_restarts_and_disorder_are_no_second_writer(run, rows):
    evidence = run.write({"log.csv": csv(rows)}).one()
    assert not any("writers" in n.text for n in evidence.notices)


def test_writers_at_other_steps_are_parted():
    steps = np.array([s for i in range(40) for s in (10 * i, 5000 + 10 * i)])
    found = writers(steps)
    assert found is not None
    assert found.tolist() == [0, 1] * 40


def test_an_input_named_like_the_folder_of_a_rank_can_be_one_of_several(tmp_path):
    for name in ("exp-rank-0", "other"):
        (tmp_path / name / "run").mkdir(parents=True)
        (tmp_path / name / "run" / "log.csv").write_text(csv(POINTS))
    inputs = [tmp_path / name / "run" for name in ("exp-rank-0", "other")]
    assert {evidence.path for evidence in gather(inputs)} == {str(path) for path in inputs}
