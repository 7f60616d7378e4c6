"""MLflow's file store and database, as MLflow 3.17 wrote them (data/mlflow/make.py)."""

import gzip
import math
import shutil
import sqlite3
import tarfile
from pathlib import Path

import numpy as np
import pytest

from gradforensics.evidence.files import File
from gradforensics.evidence.gather import gather
from gradforensics.evidence.mlflow import database
from gradforensics.evidence.readers import mlflow_database, mlflow_store

DATA = Path(__file__).parent / "data" / "mlflow"
ID = "0123456789abcdef0123456789abcdef"
BIG = 1.7976931348623157e308


@pytest.fixture
def store(tmp_path):
    with tarfile.open(DATA / "mlruns.tgz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "mlruns"


@pytest.fixture
def db(tmp_path):
    path = tmp_path / "mlflow.db"
    path.write_bytes(gzip.decompress((DATA / "store.db.gz").read_bytes()))
    return path


def made(path, *statements):
    """A small database with the columns of MLflow's tables."""
    connection = sqlite3.connect(path)
    connection.executescript(
        "CREATE TABLE runs (run_uuid TEXT, name TEXT, status TEXT, start_time INT, end_time INT, lifecycle_stage TEXT);"
        "CREATE TABLE metrics (key TEXT, value FLOAT, timestamp INT, run_uuid TEXT, step INT, is_nan BOOLEAN);"
        "CREATE TABLE params (key TEXT, value TEXT, run_uuid TEXT);"
        "CREATE TABLE tags (key TEXT, value TEXT, run_uuid TEXT);"
        f"INSERT INTO runs VALUES ('{ID}', 'one', 'RUNNING', 0, NULL, 'active');"
    )
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()
    return path


def points(path, count, width=1):
    connection = sqlite3.connect(path)
    rows = [("loss" + "x" * (width - 1), 1.0 / (1 + i), 1_750_000_000_000 + i, ID, i, 0) for i in range(count)]
    connection.executemany("INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?)", rows)
    connection.commit()
    connection.close()


def read(path):
    return mlflow_database.read(File(path, path.name, path.stat().st_size))


def series(evidence, tag):
    stored = next(stored for key, stored in evidence.frames.items() if key.tag == tag)
    return stored.frame


def by_name(found):
    return {evidence.name: evidence for evidence in found}


# -- both stores -------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["file store", "database", "compressed database"])
def runs(request, tmp_path):
    """The same runs out of either kind of store, by the name that MLflow gives them."""
    if request.param == "file store":
        with tarfile.open(DATA / "mlruns.tgz") as archive:
            archive.extractall(tmp_path, filter="data")
        found = gather([tmp_path / "mlruns"])
    else:
        packed = (DATA / "store.db.gz").read_bytes()
        name = "mlflow.db" if request.param == "database" else "mlflow.db.gz"
        (tmp_path / name).write_bytes(gzip.decompress(packed) if request.param == "database" else packed)
        found = gather([tmp_path])
    return {e.name.replace("1e-3_seed", "1e-3/seed"): e for e in found if e.name != "thrown away"}


def test_every_run_is_one_run_under_its_own_name(runs):
    assert set(runs) == {"adam 1e-3/seed=0", "failed", "killed", "stepless", "died before the first step"}


def test_nan_and_infinities_are_what_was_logged(runs):
    frame = series(runs["adam 1e-3/seed=0"], "val/loss")
    assert frame["step"].to_list() == [10, 20, 30, 31]
    assert frame["kind"].to_list() == ["finite", "nan", "posinf", "neginf"]
    assert frame["value"].to_list() == [0.5, None, None, None]


def test_values_steps_and_times_are_exact(runs):
    frame = series(runs["adam 1e-3/seed=0"], "train/loss")
    assert frame["step"].to_list() == list(range(40))
    assert frame["value"].to_list() == [2.5 * math.exp(-step / 20) + 0.1 for step in range(40)]
    assert frame["time"].to_list() == [1_750_000_000.0 + step for step in range(40)]


def test_parameters_are_settings_and_tags_are_facts(runs):
    evidence = runs["adam 1e-3/seed=0"]
    assert {s.key: s.value for s in evidence.settings} == {
        "learning_rate": 0.001, "adam_beta1": 0.9, "adam_beta2": 0.95, "fp16": True, "num_train_epochs": 3,
        "max_steps": None, "optim": "AdamW", "run_name": "a run",
    }  # fmt: skip
    assert {s.origin for s in evidence.settings} == {"runtime"}
    assert {f.key: f.value for f in evidence.environment} == {
        "command": "train.py",
        "git_commit": "0123456789abcdef0123456789abcdef01234567",
        "run_name": "adam 1e-3/seed=0",
        "mlflow_status": "FINISHED",
    }


def test_the_parameters_of_a_run_without_metrics_are_nobody_elses(runs):
    assert not any(s.value == 7.0 for evidence in runs.values() for s in evidence.settings or [])
    assert runs["stepless"].number("learning_rate") is None


def test_the_status_is_the_ending(runs):
    endings = {name: (e.ending.kind, e.ending.text) for name, e in runs.items()}
    assert endings == {
        "adam 1e-3/seed=0": ("completed", "MLflow recorded status FINISHED"),
        "failed": ("exception", "MLflow recorded status FAILED"),
        "killed": ("killed", "MLflow recorded status KILLED"),
        "stepless": ("unknown", ""),
        "died before the first step": ("exception", "MLflow recorded status FAILED"),
    }
    assert [e.time for e in runs["failed"].events] == [1_750_000_013.0]


def test_a_resumed_run_has_two_attempts(runs):
    frame = series(runs["killed"], "train/loss")
    assert frame["attempt"].to_list() == [0] * 20 + [1] * 5
    assert runs["killed"].series("loss").steps.tolist() == list(range(15))


def test_metrics_without_steps_are_numbered(runs):
    (stored,) = runs["stepless"].frames.values()
    assert stored.step_unit == "row"
    assert stored.frame["step"].to_list() == [1, 2, 3, 4, 5, 6]
    assert stored.frame["value"].to_list() == [6.0, 5.0, 4.0, 3.0, 2.0, 1.0]


def test_measurements_of_the_machine_count_samples_not_steps(runs):
    units = {key.tag: stored.step_unit for key, stored in runs["adam 1e-3/seed=0"].frames.items()}
    assert units == {
        "train/loss": "step",
        "lr": "step",
        "val/loss": "step",
        "system/gpu_0_utilization_percentage": "row",
    }
    assert runs["adam 1e-3/seed=0"].steps == (0, 39)


# -- the file store ----------------------------------------------------------------------------------------------------


def test_a_deleted_run_of_the_file_store_is_told(store):
    (notice,) = by_name(gather([store]))["thrown away"].notices
    assert notice.text == "this run was deleted in MLflow"
    assert notice.source.endswith("meta.yaml")


def test_the_folder_of_one_run_is_enough(store):
    folder = next(path.parent for path in store.glob("*/*/meta.yaml") if (path.parent / "metrics/system").exists())
    (evidence,) = gather([folder])
    assert evidence.name == "adam 1e-3/seed=0"
    assert len(evidence.frames) == 4
    assert evidence.number("learning_rate") == 0.001


def test_two_metrics_of_one_meaning_are_one_run(run):
    lines = [f"{1_750_000_000_000 + i} {i}.0 {i}\n" for i in range(5)]
    other = [f"{1_750_000_000_000 + i} {100 - i}.0 {i}\n" for i in range(5)]
    run.write({f"0/{ID}/metrics/loss": "".join(lines), f"0/{ID}/metrics/train_loss": "".join(other)})
    assert len(run.one().keys("loss")) == 2


def metric(read, text):
    return read(f"mlruns/0/{ID}/metrics/nested/loss", text)


def test_old_lines_without_a_step_and_in_seconds(read):
    evidence = metric(read, "1400000000 0.5\n1400000010 0.25\n")
    ((key, stored),) = evidence.frames.items()
    assert (key.tag, stored.step_unit) == ("nested/loss", "row")
    assert stored.frame["time"].to_list() == [1_400_000_000.0, 1_400_000_010.0]
    assert stored.frame["step"].to_list() == [1, 2]


def test_lines_with_a_data_set(read):
    evidence = metric(read, "1750000000000 0.5 1\n1750000000001 0.25 2 cifar10 8f2e61a0\n1750000000002 0.125 3\n")
    frame = series(evidence, "nested/loss")
    assert frame["step"].to_list() == [1, 2, 3]
    assert frame["line"].to_list() == [1, 2, 3]
    assert evidence.notices == []


def test_every_spelling_of_a_number(read):
    texts = ["nan", "NaN", "inf", "-inf", "Infinity", "1e-07", "-0.0", "5"]
    evidence = metric(read, "".join(f"1750000000000 {text} {i}\n" for i, text in enumerate(texts)))
    assert (
        series(evidence, "nested/loss")["kind"].to_list()
        == ["nan", "nan", "posinf", "neginf", "posinf"] + ["finite"] * 3
    )


def test_lines_that_are_none_are_counted(read):
    evidence = metric(read, "1750000000000 0.5 1\n<<<<<<< HEAD\n1750000000001 x 2\n\n1750000000002 0.25 3\n")
    assert series(evidence, "nested/loss")["line"].to_list() == [1, 5]
    (notice,) = evidence.notices
    assert (notice.line, notice.text) == (2, "2 lines have no time, value and step: the first is this")


@pytest.mark.parametrize("end", ["1750000000002 0.12", "1750000000002 0.125 1", "17500000", "1750000000002 0.125 -"])
def test_a_torn_last_line_is_told_and_left_out(read, end):
    evidence = metric(read, f"1750000000000 0.5 10\n1750000000001 0.25 11\n{end}")
    assert series(evidence, "nested/loss")["step"].to_list() == [10, 11]
    (notice,) = evidence.notices
    assert (notice.line, notice.text) == (3, "the last line is torn: no time, value and step")


def test_a_whole_last_line_without_its_end_counts(read):
    evidence = metric(read, "1750000000000 0.5 10\n1750000000001 0.25 11\n1750000000002 0.125 12")
    assert series(evidence, "nested/loss")["step"].to_list() == [10, 11, 12]
    assert evidence.notices == []


def test_lines_across_chunks_are_whole(tmp_path):
    path = tmp_path / ID / "metrics" / "loss"
    path.parent.mkdir(parents=True)
    path.write_text("".join(f"{1_750_000_000_000 + i} {i / 7!r} {i}\n" for i in range(150_000)))
    assert path.stat().st_size > 4 << 20
    (track,) = mlflow_store.read(File(path, f"{ID}/metrics/loss", path.stat().st_size)).tracks
    frame = track.stored.frame
    assert (frame["step"].to_numpy() == np.arange(150_000)).all()
    assert (frame["line"].to_numpy() == np.arange(1, 150_001)).all()
    assert (frame["value"].to_numpy() == np.arange(150_000) / 7).all()


def test_a_name_quoted_in_yaml_and_an_unknown_status(run):
    run.write(
        {
            f"0/{ID}/meta.yaml": f"run_id: {ID}\nrun_name: 'it''s'\nstatus: 9\n",
            f"0/{ID}/metrics/loss": "1750000000000 0.5 1\n1750000000000 0.4 2\n",
            f"0/{ID}/tags/mlflow.runName": "it's",
        }
    )
    evidence = run.one()
    assert evidence.name == "it's"
    (notice,) = evidence.notices
    assert (notice.line, notice.text) == (3, "no status that MLflow knows")


def test_other_texts_in_a_folder_called_metrics_are_left_alone(run):
    run.write({"metrics/train.csv": "step,loss\n1,2.0\n2,1.0\n", "params/notes": "nothing"})
    (source,) = run.one().sources
    assert source.reader == "csv"


# -- databases ---------------------------------------------------------------------------------------------------------


def test_what_is_left_out_of_a_database_is_told(db):
    texts = {notice.text for evidence in gather([db]) for notice in evidence.notices}
    assert {"1 run deleted in MLflow: not read", "1 run without metrics: left out"} <= texts


def test_nothing_is_written_beside_a_database(db):
    before = (sorted(db.parent.iterdir()), db.read_bytes(), db.stat().st_mtime_ns)
    gather([db])
    assert (sorted(db.parent.iterdir()), db.read_bytes(), db.stat().st_mtime_ns) == before


def test_a_database_that_was_not_closed_says_so(tmp_path):
    path = made(tmp_path / "mlflow.db")
    points(path, 10)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute(f"INSERT INTO metrics VALUES ('loss', 9.0, 1750000000100, '{ID}', 10, 0)")
    folder = tmp_path / "left behind"
    folder.mkdir()
    for file in tmp_path.glob("mlflow.db*"):
        shutil.copy(file, folder)
    connection.close()
    (folder / "mlflow.db-shm").unlink()
    size = (folder / "mlflow.db-wal").stat().st_size
    reading = read(folder / "mlflow.db")
    assert reading.notices == [
        (None, f"not closed: its last rows are in a write-ahead log (mlflow.db-wal, {size} bytes) that was not read")
    ]
    assert reading.runs["one"].tracks[0].stored.frame.height == 10
    assert sorted(p.name for p in folder.iterdir()) == ["mlflow.db", "mlflow.db-wal"]


def test_another_database_is_not_read(run):
    path = run.path / "optuna.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE trials (trial_id INTEGER)")
    connection.close()
    run.write({"log.csv": "step,loss\n1,2.0\n2,1.0\n"})
    evidence = run.one()
    (notice,) = [n for n in evidence.notices if n.source == "optuna.db"]
    assert "database" in notice.text
    assert next(s.reader for s in evidence.sources if s.path == "optuna.db") is None


def test_old_databases_without_steps_and_marks_of_nan(tmp_path):
    path = tmp_path / "mlflow.db"
    connection = sqlite3.connect(path)
    connection.executescript(
        "CREATE TABLE runs (run_uuid TEXT);"
        "CREATE TABLE metrics (key TEXT, value FLOAT, timestamp INT, run_uuid TEXT);"
        f"INSERT INTO metrics VALUES ('loss', 2.0, 1400000000, '{ID}'), ('loss', 1.0, 1400000001, '{ID}');"
    )
    connection.close()
    ((name, reading),) = read(path).runs.items()
    assert name == ID[:8]
    assert reading.tracks[0].stored.step_unit == "row"
    assert reading.tracks[0].stored.frame["time"].to_list() == [1_400_000_000.0, 1_400_000_001.0]


def test_rows_are_put_in_the_order_of_time(tmp_path):
    path = made(tmp_path / "mlflow.db")
    connection = sqlite3.connect(path)
    for step in (3, 1, 2):
        connection.execute(
            "INSERT INTO metrics VALUES ('loss', ?, ?, ?, ?, 0)", (step, 1_750_000_000_000 + step, ID, step)
        )
    connection.commit()
    connection.close()
    frame = read(path).runs["one"].tracks[0].stored.frame
    assert frame["step"].to_list() == [1, 2, 3]
    assert frame["attempt"].to_list() == [0, 0, 0]


def test_runs_that_are_called_alike_keep_their_ids(tmp_path):
    other = "f" * 32
    path = made(tmp_path / "mlflow.db", f"INSERT INTO runs VALUES ('{other}', 'one', 'RUNNING', 0, NULL, 'active')")
    points(path, 3)
    connection = sqlite3.connect(path)
    connection.execute(f"INSERT INTO metrics VALUES ('loss', 1.0, 1750000000000, '{other}', 1, 0)")
    connection.commit()
    connection.close()
    assert set(read(path).runs) == {"one", "one ffffffff"}


@pytest.mark.parametrize(
    ("value", "is_nan", "count"),
    [("'text'", 0, 0), ("NULL", 0, 0), ("2.0", "'x'", 0), ("x'00ff'", 0, 0), ("9e999", 0, 1)],
)
def test_cells_of_another_type_are_left_out_and_counted(tmp_path, value, is_nan, count):
    path = made(
        tmp_path / "mlflow.db", f"INSERT INTO metrics VALUES ('odd', {value}, 1750000000000, '{ID}', 1, {is_nan})"
    )
    points(path, 3)
    reading = read(path)
    odd = [t for t in reading.runs["one"].tracks if t.tag == "odd"]
    assert len(odd) == count
    assert len(reading.notices) == 1 - count
    if not count:
        assert reading.notices == [(None, 'table "metrics": 1 rows hold no name, number or run: left out')]


def test_a_cut_database_is_read_up_to_the_cut(tmp_path):
    path = made(tmp_path / "mlflow.db")
    points(path, 5000)
    data = path.read_bytes()
    cut = tmp_path / "cut.db"
    cut.write_bytes(data[: len(data) // 8192 * 4096])
    reading = read(cut)
    height = reading.runs["one"].tracks[0].stored.frame.height
    assert 1500 < height < 5000
    assert reading.notices[0] == (None, "damaged: database disk image is malformed")
    assert any(f"behind row {height}" in text for _, text in reading.notices)


def test_a_database_with_one_damaged_page_is_read_from_both_ends(tmp_path):
    path = made(tmp_path / "mlflow.db")
    points(path, 5000)
    data = bytearray(path.read_bytes())
    page = len(data) // 4096 // 2
    data[page * 4096 : (page + 1) * 4096] = b"\xff" * 4096
    path.write_bytes(bytes(data))
    reading = read(path)
    frame = reading.runs["one"].tracks[0].stored.frame
    assert (frame["step"][0], frame["step"][-1]) == (0, 4999)
    assert 4800 < frame.height < 5000
    ((_, text),) = reading.notices
    assert text.startswith('table "metrics": database disk image is malformed behind row')
    assert text.endswith("rows were read from its end")


def test_a_file_that_only_begins_like_a_database(tmp_path):
    path = tmp_path / "mlflow.db"
    path.write_bytes(database.MAGIC + bytes(range(256)) * 20)
    reading = read(path)
    assert reading.runs == {}
    assert all(text.startswith(("damaged: ", "not read: ")) for _, text in reading.notices)
    assert reading.notices


# -- hostile databases -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "hostile",
    [
        "CREATE VIEW metrics AS SELECT * FROM kept",
        "CREATE VIEW metrics AS WITH RECURSIVE n(k) AS (SELECT 1 UNION ALL SELECT k FROM n) SELECT k AS key FROM n",
        "CREATE TABLE metrics (key TEXT, value FLOAT AS (hex(zeroblob(1000000000))), timestamp INT, run_uuid TEXT)",
        "CREATE VIRTUAL TABLE metrics USING fts5(key, value, timestamp, run_uuid, step, is_nan)",
        "CREATE TABLE metrics (_rowid_ TEXT, key TEXT, value FLOAT, timestamp INT, run_uuid TEXT)",
    ],
)
def test_what_only_looks_like_the_table_of_metrics_is_refused(tmp_path, hostile):
    path = made(tmp_path / "mlflow.db", "ALTER TABLE metrics RENAME TO kept", hostile)
    reading = read(path)
    assert reading.runs == {}
    assert (None, '"metrics" is no table as MLflow makes it: not read') in reading.notices


def test_nothing_but_reading_the_known_tables_is_allowed(tmp_path):
    path = made(tmp_path / "mlflow.db", "CREATE TABLE secrets (word TEXT)")
    found = database.Database(File(path, path.name, path.stat().st_size))
    try:
        for statement in (
            "SELECT word FROM secrets",
            "SELECT load_extension('x')",
            "ATTACH DATABASE ':memory:' AS other",
            "CREATE TABLE more (a)",
            "DELETE FROM metrics",
            "PRAGMA writable_schema=ON",
            "PRAGMA journal_mode=WAL",
        ):
            with pytest.raises(sqlite3.DatabaseError, match=r"not authorized|prohibited"):
                found._connection.execute(statement)
    finally:
        found.close()


def test_a_table_without_an_end_comes_to_one(tmp_path, monkeypatch):
    monkeypatch.setattr(database, "_SECONDS", 0.2)
    path = made(tmp_path / "mlflow.db")
    points(path, 3000)
    data = bytearray(path.read_bytes())
    root = next(p for p in range(0, len(data), 4096) if data[p] == 5)  # an interior page, which gets itself as child
    count = int.from_bytes(data[root + 3 : root + 5], "big")
    for cell in range(count):
        at = root + int.from_bytes(data[root + 12 + 2 * cell : root + 14 + 2 * cell], "big")
        data[at : at + 4] = data[root + 8 : root + 12]
    path.write_bytes(bytes(data))
    reading = read(path)
    assert len(reading.runs) == 1
    assert reading.runs["one"].tracks[0].stored.frame.height > 0


def test_long_texts_do_not_fill_the_memory(tmp_path):
    path = made(tmp_path / "mlflow.db", f"INSERT INTO params VALUES ('prompt', '{'x' * 100_000}', '{ID}')")
    points(path, 3)
    reading = read(path)
    assert reading.runs["one"].settings == []
    ((_, text),) = reading.notices
    assert text.startswith('table "params": string or blob too big')


def test_names_longer_than_mlflow_allows_are_left_out(tmp_path):
    path = made(tmp_path / "mlflow.db")
    points(path, 3, width=300)
    reading = read(path)
    assert reading.notices[0] == (None, 'table "metrics": 3 rows hold no name, number or run: left out')


def test_only_the_last_runs_of_very_many_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(mlflow_database, "RUN_LIMIT", 2)
    path = made(tmp_path / "mlflow.db")
    connection = sqlite3.connect(path)
    for index in range(4):
        connection.execute(f"INSERT INTO runs VALUES ('r{index}', 'n{index}', 'RUNNING', {index}, NULL, 'active')")
        connection.execute(f"INSERT INTO metrics VALUES ('loss', 1.0, 1750000000000, 'r{index}', 1, 0)")
    connection.commit()
    connection.close()
    reading = read(path)
    assert set(reading.runs) == {"n2", "n3"}
    assert (None, "4 runs: only the 2 that were started last were read") in reading.notices


def test_the_largest_double_stands_for_infinity(tmp_path):
    path = made(
        tmp_path / "mlflow.db",
        f"INSERT INTO metrics VALUES ('a', {BIG!r}, 1750000000000, '{ID}', 1, 0)",
        f"INSERT INTO metrics VALUES ('b', 0.0, 1750000000000, '{ID}', 1, 1)",
    )
    kinds = {t.tag: t.stored.frame["kind"].to_list() for t in read(path).runs["one"].tracks}
    assert kinds == {"a": ["posinf"], "b": ["nan"]}


def test_an_archive_of_a_store_is_read_as_the_store_itself(tmp_path):
    shutil.copy(DATA / "mlruns.tgz", tmp_path / "mlruns.tgz")
    found = gather([tmp_path])
    assert {e.name.rpartition("mlruns/")[2] for e in found} >= {"failed", "killed", "stepless"}
