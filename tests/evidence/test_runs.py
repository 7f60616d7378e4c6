"""Which files are one run, which are several, what they are called, and which attempt comes first."""

# ruff: noqa: E501  lines of logs and files stand here as they are written

import json
import os
from pathlib import Path

import pytest

from gradforensics.errors import NoEvidenceError, UsageError
from gradforensics.evidence import gather


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
    names = [e.name for e in run.write({"llama.csv": csv(POINTS), "bert.csv": csv(other)}).all()]
    assert names == ["bert", "llama"]


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
    assert [e.name for e in both] == ["log", "log (2)"]
    assert {k.run for k in both[1].frames} == {"log (2)"}


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
        "events.out.tfevents.1.host": "this version does not read TensorBoard event files",
        "model.pt": "this version does not read checkpoints (2 such files here)",
        "run-1.wandb": "this version does not read W&B files",
        "mlflow.db": "this version does not read databases",
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
        "this version does not read checkpoints; larger than 64 MB: no sha256",
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
    assert set(said) == {"out.csv", "gone.csv", "self.log"}


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

    run.write({"log.csv": csv(POINTS), "secret.log": "x"})
    whole = files.open_regular

    def broken(path):
        if path.name == "secret.log":
            raise PermissionError(13, "Permission denied")
        return whole(path)

    monkeypatch.setattr(files, "open_regular", broken)
    evidence = run.one()
    assert {n.source: n.text for n in evidence.notices} == {"secret.log": "not read: Permission denied"}


def test_progress_is_told_per_file(run):
    calls = []
    run.write({"log.csv": csv(POINTS), "b.log": "x", "c.json": "{}"}).one(progress=lambda *call: calls.append(call))
    assert calls == [("reading", 1, 3), ("reading", 2, 3), ("reading", 3, 3)]


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
        (
            {"model.pt": b"x", "a.ckpt": b"y"},
            "only checkpoints (2 files, such as a.ckpt), which this version does not read",
        ),
        ({"events.out.tfevents.1": b"x"}, "only TensorBoard event files (1 file"),
        ({"config.json": '{"learning_rate": 1}'}, "read: config.json (config)"),
        ({"x.log": "hello\n", "m.pt": b"x"}, "not read by this version: m.pt"),
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
    run.write({"log.csv": csv(POINTS), **{f"model-{i}.safetensors": b"x" for i in range(5)}})
    (notice,) = run.one().notices
    assert (notice.source, notice.text) == (
        "model-0.safetensors",
        "this version does not read checkpoints (5 such files here)",
    )
