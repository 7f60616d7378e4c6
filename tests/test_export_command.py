"""gradforensics export: what was read, as Parquet."""

from pathlib import Path

import polars as pl
import pytest

from gradforensics.cli import main
from gradforensics.evidence.gather import gather
from gradforensics.report.canonical import NAMES
from gradforensics.schemas import SERIES_SCHEMA, TABLES
from tests.test_cli import BAD, GOOD

SAMPLES = Path(__file__).parent.parent / "sample_runs"
KEY = ["run", "phase", "series", "tag", "source"]


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "log.jsonl").write_text(BAD)
    return folder


def tables(folder: Path) -> dict[str, pl.DataFrame]:
    return {path.stem: pl.read_parquet(path) for path in sorted(folder.iterdir())}


def test_a_plain_log_comes_back_point_for_point(run, tmp_path, capsys):
    assert main(["export", str(run), "--to", str(tmp_path / "out"), "--set", "vocab_size=32000"]) == 0
    found = tables(tmp_path / "out")
    points = found["points"]
    assert points.columns == [*KEY, *SERIES_SCHEMA]
    loss = points.filter(pl.col("series") == "loss")
    assert loss.height == 100
    assert loss["value"].head(59).to_list() == [2 + 2 / step for step in range(1, 60)]
    assert loss["value"].tail(41).null_count() == 41
    assert set(loss["kind"].tail(41)) == {"nan"}
    assert loss["line"].to_list() == list(range(1, 101))
    assert found["settings"].select("key", "value", "origin").rows() == [("vocab_size", "32000", "user")]
    assert found["sources"]["path"].to_list() == ["log.jsonl"]
    assert found["series"].select("series", "points").rows() == [("loss", 100), ("lr", 100)]
    assert found["runs"].select("first_step", "last_step", "ending").rows() == [(1, 100, "unknown")]
    assert found["runs"]["run"].to_list() == found["points"]["run"].unique().to_list()
    assert "checkpoints" not in found  # there are none: that is not the same as an empty table
    out = capsys.readouterr().out
    assert [line.split()[:2] for line in out.splitlines() if line.lstrip().startswith("points")] == [["points", "200"]]
    assert "no data" in out
    assert f"written to {tmp_path / 'out'}" in out


def test_a_run_with_checkpoints_comes_back_table_for_table(tmp_path, capsys):
    run = SAMPLES / "gf07-applied-other" / "run"
    assert main(["export", str(run), "--to", str(tmp_path / "out")]) == 0
    found = tables(tmp_path / "out")
    (evidence,) = gather([run])
    for name in TABLES:
        expected = evidence.table(name)
        assert (name in found) == (expected is not None), name
        if expected is not None:
            assert found[name].columns[0] == "run"
            assert found[name].select(expected.columns).equals(expected), name
    assert {"checkpoints", "tensors", "moments", "travels", "groups", "facts", "calls"} <= set(found)
    assert found["points"].height == sum(stored.frame.height for stored in evidence.frames.values())


def test_no_tensors_lists_without_measuring(tmp_path, capsys):
    run = SAMPLES / "gf07-applied-other" / "run"
    assert main(["export", str(run), "--to", str(tmp_path / "out"), "--no-tensors"]) == 0
    found = tables(tmp_path / "out")
    assert found["checkpoints"]["nonfinite"].null_count() == found["checkpoints"].height == 2


def test_several_runs_are_told_apart(run, tmp_path, capsys):
    other = tmp_path / "other"
    other.mkdir()
    (other / "log.jsonl").write_text(GOOD)
    assert main(["export", str(run), str(other), "--to", str(tmp_path / "out"), "--map", "lr=loss_scale"]) == 0
    points = tables(tmp_path / "out")["points"]
    counts = points.group_by("run", "series").len().sort("run", "series")
    assert [row[1:] for row in counts.rows()] == [("loss", 100), ("loss_scale", 100)] * 2
    assert counts["run"].n_unique() == 2


def test_nothing_is_written_into_the_run_directory_or_over_foreign_files(run, tmp_path, capsys):
    assert main(["export", str(run), "--to", str(run / "tables")]) == 2
    assert "lies inside the run directory" in capsys.readouterr().err
    out = tmp_path / "out"
    out.mkdir()
    foreign = out / "travels.parquet"
    pl.DataFrame({"mine": [1]}).write_parquet(foreign)
    assert main(["export", str(run), "--to", str(out)]) == 2
    assert "travels.parquet exists and was not written by gradforensics" in capsys.readouterr().err
    assert [path.name for path in out.iterdir()] == ["travels.parquet"]
    assert pl.read_parquet(foreign).columns == ["mine"]
    assert [path.name for path in run.iterdir()] == ["log.jsonl"]


def test_an_earlier_export_is_replaced_whole(run, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["export", str(SAMPLES / "gf07-applied-other" / "run"), "--to", str(out)]) == 0
    (out / "notes.txt").write_text("mine")
    assert main(["export", str(run), "--to", str(out)]) == 0
    left = {path.name for path in out.iterdir()}
    assert "travels.parquet" not in left
    assert "notes.txt" in left
    assert pl.read_parquet(out / "points.parquet").height == 200


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (["export", "RUN"], 2, "Missing option '--to'"),
        (["export", "RUN", "--to", ""], 2, "empty"),
        (["export", "RUN", "--to", "RUN/log.jsonl"], 2, "inside the run directory"),
        (["export", "RUN", "--to", "FILE"], 2, "is no folder"),
        (["export", "nowhere", "--to", "OUT"], 2, "nowhere"),
        (["export", "RUN", "--to", "OUT", "--set", "x"], 2, "--set NAME=VALUE"),
        (["export", "EMPTY", "--to", "OUT"], 4, "gradforensics:"),
    ],
)
def test_exit_codes(run, tmp_path, capsys, arguments, code, complaint):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    names = {"RUN": run, "EMPTY": tmp_path / "empty", "OUT": tmp_path / "out", "FILE": tmp_path / "file"}
    for name, path in names.items():
        arguments = [a.replace(name, str(path)) for a in arguments]
    assert main(arguments) == code
    assert complaint in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_replays_are_the_table_of_experiments(run, tmp_path, capsys):
    from gradforensics.experiments import Quantity, Replay, Result, append, write_header

    folder = tmp_path / "replay"
    folder.mkdir()
    write_header(folder, Replay("gradforensics 0", "run", 60, "cpu", "capsule", finished=True))
    append(folder, Result("anomaly", 60, "where?", "nothing", "log", "", "fault", (Quantity("sample", 5.0),)))
    assert main(["export", str(run), "--to", str(tmp_path / "out"), "--with", str(folder)]) == 0
    experiments = tables(tmp_path / "out")["experiments"]
    assert experiments.select("experiment", "step", "quantity", "value").rows() == [("anomaly", 60, "sample", 5.0)]


def test_every_table_has_a_name_of_its_own():
    assert len(set(NAMES)) == len(NAMES)
    assert set(TABLES) < set(NAMES)
