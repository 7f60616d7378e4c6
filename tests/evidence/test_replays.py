"""Replay directories as evidence: what is read, what is a notice, what is an error, and which run they belong to."""

import json
import math

import numpy as np
import pytest
from safetensors.numpy import save_file

from gradforensics import experiment_rows
from gradforensics.errors import UsageError
from gradforensics.evidence import replays
from gradforensics.evidence.gather import gather
from gradforensics.experiments import HEADER, RESULTS, Code, Quantity, Replay, Result, append, write_header
from gradforensics.questions import QUESTIONS

CODE = Code("train.py", "build", "ab" * 32, "--program")


def made(folder, results=(), *, run="alpha", step=60, finished=True, **fields):
    folder.mkdir(parents=True)
    write_header(folder, Replay("gradforensics 0.1.0", run, step, "cpu", "capsule-60", finished=finished, **fields))
    for one in results:
        append(folder, one)
    return folder


def result(experiment="severed", outcome="clean", *quantities, step=60, text="seen"):
    return Result(experiment, step, QUESTIONS[experiment], "nothing", text, "so it is", outcome, quantities)


def changed(folder, **fields):
    data = json.loads((folder / HEADER).read_text()) | fields
    (folder / HEADER).write_text(json.dumps(data))
    return folder


@pytest.fixture
def run(tmp_path):
    return log_of(tmp_path / "alpha")


def log_of(folder):
    folder.mkdir(parents=True)
    lines = (json.dumps({"step": s, "loss": 3 - s / 100, "lr": 1e-3}) for s in range(1, 71))
    (folder / "log.jsonl").write_text("\n".join(lines))
    return folder


def table_of(evidence):
    table = evidence.table("experiments")
    assert table is not None
    return table


def texts(evidence):
    return [notice.text for notice in evidence.notices]


def test_results_become_rows_and_come_back_as_they_were(run, tmp_path):
    wanted = [
        result("reproduce", "clean", Quantity("loss", math.nan, "nats", "recorded"), Quantity("runs", 3.0)),
        result("anomaly", "fault", Quantity("module", text="blocks.3.attn"), Quantity("input_max", math.inf)),
        result("padding", "inconclusive"),
    ]
    folder = made(tmp_path / "replay", wanted, code=[CODE], environment={"torch": "2.13"}, notices=["rolled forward"])
    (evidence,) = gather([run], replayed=[folder])
    table = table_of(evidence)
    assert table["quantity"].to_list() == ["loss", "runs", "module", "input_max", None]
    assert table["value"].to_list() == [None, 3.0, None, None, None]  # no value of a table is NaN
    assert table["text"].to_list() == ["nan", "", "blocks.3.attn", "inf", None]
    assert table["verdict"].to_list() == ["clean", "clean", "fault", "fault", "inconclusive"]
    assert set(table["source"]) == {f"{folder}/{RESULTS}"}
    found = experiment_rows.results(evidence)
    assert [one.line for one in found] == [1, 2, 3]
    assert [one.result.experiment for one in found] == ["reproduce", "anomaly", "padding"]
    assert str(found[0].result.number("loss", "recorded")) == "nan"
    assert found[1].result.number("input_max") == math.inf
    assert found[1].result.text("module") == "blocks.3.attn"
    (replayed,) = evidence.replays
    assert (replayed.replay.code, replayed.replay.notices) == ([CODE], ["rolled forward"])
    read = [(s.path, s.reader, s.sha256 is not None) for s in evidence.sources if "replay" in s.path]
    assert read == [(f"{folder}/{HEADER}", "replay", True), (f"{folder}/{RESULTS}", "replay", True)]


def test_several_steps_are_one_table_in_the_order_of_the_steps(run, tmp_path):
    folders = [made(tmp_path / f"r{s}", [result(step=s)], step=s) for s in (60, 20)]
    (evidence,) = gather([run], replayed=[*folders, folders[0]])
    assert table_of(evidence)["step"].to_list() == [20, 60]
    assert [one.replay.step for one in evidence.replays] == [20, 60]


def test_bad_lines_are_notices_with_their_number_and_the_others_are_kept(run, tmp_path):
    folder = made(tmp_path / "replay", [result()])
    good = (folder / RESULTS).read_text()
    bad = [
        "[1]", '{"experiment": 3}', good.replace('"step": 60', '"step": "60"'), good.replace('"clean"', '"acquitted"'),
        good.replace('"step": 60', f'"step": {10**30}'), good.replace('"step": 60', '"step": -1'),
        good.replace('"quantities": []', '"quantities": [{"value": 1' + "0" * 400 + "}]"),
    ]  # fmt: skip
    (folder / RESULTS).write_text("\n".join([*(line.strip() for line in bad), good.strip(), good[: len(good) // 2]]))
    (evidence,) = gather([run], replayed=[folder])
    assert [one.line for one in experiment_rows.results(evidence)] == [8]
    told = [(n.line, n.text) for n in evidence.notices]
    assert (9, "the last line is torn or no result: no complete JSON") in told
    assert (1, "7 lines are no results, this is the first: a result is no JSON object") in told


def test_an_unfinished_replay_and_one_without_results_say_so(run, tmp_path):
    (evidence,) = gather([run], replayed=[made(tmp_path / "replay", finished=False)])
    assert "the replay did not come to its end: it tells what was found until then" in texts(evidence)
    assert "the replay left no result" in texts(evidence)
    assert table_of(evidence).height == 0


def test_texts_are_bounded_and_hold_no_lone_surrogates(run, tmp_path):
    folder = made(tmp_path / "replay", [result(text="x" * 20_000)])
    line = (folder / RESULTS).read_text().replace("so it is", "\\ud800 <script>")
    (folder / RESULTS).write_text(line)
    (evidence,) = gather([run], replayed=[folder])
    ((one, _, _),) = experiment_rows.results(evidence)
    assert len(one.result) == 4000
    assert one.conclusion == "\\ud800 <script>"


def test_too_many_results_are_cut_and_said(run, tmp_path, monkeypatch):
    monkeypatch.setattr(replays, "_RESULTS", 2)
    folder = made(tmp_path / "replay", [result()] * 3)
    (evidence,) = gather([run], replayed=[folder])
    assert len(evidence.replays[0].lines) == 2
    assert "more than 2 results: read up to here" in texts(evidence)


def test_fields_of_a_wrong_type_are_left_out_and_said(run, tmp_path):
    folder = changed(made(tmp_path / "replay"), device=7, code={"a": 1}, finished="yes", notices=[1, "b"])
    (evidence,) = gather([run], replayed=[folder])
    replay = evidence.replays[0].replay
    assert (replay.device, replay.code, replay.finished, replay.notices) == ("", [], False, ["1", "b"])
    assert {f"{key} is not as a replay writes it: left out" for key in ("device", "code", "finished")} <= set(
        texts(evidence)
    )


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "no replay directory .replay.json is not there"),
        ("{", "no replay directory .replay.json is no JSON"),
        ("[" * 100_000, "no replay directory"),
        ("[]", "was not written by gradforensics"),
        ('{"tool": "game 1.0", "step": 3}', "was not written by gradforensics"),
        ('{"tool": "gradforensics 9", "schema": 2, "step": 3}', "schema 2; this version reads 1"),
        ('{"tool": "gradforensics 9", "schema": 1, "step": true}', "names no step"),
    ],
)
def test_a_folder_that_no_replay_wrote_is_a_usage_error(run, tmp_path, content, complaint):
    folder = tmp_path / "other"
    folder.mkdir()
    if content is not None:
        (folder / HEADER).write_text(content)
    with pytest.raises(UsageError, match=complaint):
        gather([run], replayed=[folder])


def test_a_missing_folder_is_a_usage_error(run, tmp_path):
    with pytest.raises(UsageError, match="no such directory"):
        gather([run], replayed=[tmp_path / "nowhere"])


def test_what_a_user_may_pass_by_mistake_is_called_what_it_is(run, tmp_path):
    replay = made(tmp_path / "replay")
    capsule = tmp_path / "capsule-00000060"
    capsule.mkdir()
    (capsule / "capsule.json").write_text('{"schema": 1}')
    told = {run: "replay.json is not there", replay / HEADER: "but a file", capsule: "but a capsule"}
    for given, complaint in told.items():
        with pytest.raises(UsageError, match=f"{complaint}.*the folder that gradforensics replay wrote"):
            gather([run], replayed=[given])


def test_a_schema_of_any_length_is_shown_in_part(run, tmp_path):
    folder = changed(made(tmp_path / "replay"), schema="\x1b" * 9000)
    with pytest.raises(UsageError) as raised:
        gather([run], replayed=[folder])
    assert len(str(raised.value)) < 300 + len(str(folder))
    assert "\x1b" not in str(raised.value)


def test_nothing_is_left_out_without_a_notice(run, tmp_path, monkeypatch):
    monkeypatch.setattr(replays, "_QUANTITIES", 2)
    monkeypatch.setattr(replays, "_LISTED", 2)
    many = result("severed", "clean", *(Quantity("loss", float(n)) for n in range(3)))
    folder = made(tmp_path / "replay", [many, result(text="x" * 70_000)], notices=["n"] * 3)
    changed(folder, environment=dict.fromkeys("abc", "1"), code=[{"file": "a.py"}, 7, {"file": "b.py"}])
    (evidence,) = gather([run], replayed=[folder])
    told = {(n.line, n.text) for n in evidence.notices}
    assert {
        (1, "3 quantities: the first 2 are read"),
        (2, "the last line is torn or no result: longer than 64 KiB"),
        (None, "notices: the first 2 of 3 are read"),
        (None, "code: the first 2 of 3 are read"),
        (None, "code is not as a replay writes it: in part left out"),
        (None, "environment: the first 2 of 3 are read"),
    } <= told
    assert len(evidence.replays[0].replay.code) == 1


# -- which run -------------------------------------------------------------------------------------------------------


def test_with_one_run_it_goes_there_and_another_name_is_a_notice(run, tmp_path):
    (evidence,) = gather([run], replayed=[made(tmp_path / "replay", [result()], run="other")])
    assert len(evidence.replays) == 1
    assert "this is a replay of the run other, not of alpha; it is used all the same" in texts(evidence)


def test_with_several_runs_it_goes_to_the_one_that_it_names(run, tmp_path):
    second = log_of(tmp_path / "second")
    found = gather([run, second], replayed=[made(tmp_path / "replay", [result()], run="second")])
    assert {evidence.name: len(evidence.replays) for evidence in found} == {"alpha": 0, "second": 1}
    assert all("replay of the run" not in text for evidence in found for text in texts(evidence))


def test_with_several_runs_and_no_fitting_name_it_is_a_usage_error_that_lists_them(run, tmp_path):
    second = log_of(tmp_path / "second")
    with pytest.raises(UsageError, match="no run is called so: alpha, second"):
        gather([run, second], replayed=[made(tmp_path / "replay", run="third")])
    (tmp_path / "b").mkdir()
    twin = log_of(tmp_path / "b" / "alpha")
    with pytest.raises(UsageError, match="several runs fit it"):
        gather([run, twin], replayed=[made(tmp_path / "replay2", run="alpha")])


def test_a_replay_inside_the_run_counts_only_where_it_is_named(run):
    inside = made(run / "replays" / "r60", [result()])
    (evidence,) = gather([run])
    assert evidence.table("experiments") is None
    (notice,) = [n for n in evidence.notices if "--with" in n.text]
    assert notice.source == "replays/r60/replay.json"
    assert [s.path for s in evidence.sources] == ["log.jsonl"]
    (named,) = gather([run], replayed=[inside])
    assert table_of(named).height == 1
    assert not [text for text in texts(named) if "--with" in text]


def test_a_replay_json_of_something_else_is_read_as_before(run):
    (run / "game").mkdir()
    (run / "game" / HEADER).write_text('{"moves": [1, 2]}')
    (evidence,) = gather([run])
    assert not [text for text in texts(evidence) if "--with" in text]


def test_a_capsule_is_no_checkpoint_of_the_run(run):
    folder = run / "capsules" / "capsule-00000060"
    folder.mkdir(parents=True)
    (folder / "capsule.json").write_text('{"schema": 1}')
    for name in ("model", "gradients"):
        save_file({"weight": np.full(3, np.nan, dtype=np.float32)}, folder / f"{name}.safetensors")
    (evidence,) = gather([run])
    assert evidence.table("checkpoints") is None
    (notice,) = [n for n in evidence.notices if "capsule" in n.text]
    assert notice.source == "capsules/capsule-00000060/capsule.json"
    (folder / "capsule.json").rename(run / "capsules" / "capsule.json")  # not in the folder of a capsule
    (evidence,) = gather([run])
    assert evidence.table("checkpoints") is not None


def test_the_path_of_a_run_is_what_the_user_wrote(run, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    nested = log_of(tmp_path / "many" / "one")
    log_of(tmp_path / "many" / "two")
    assert [e.path for e in gather([nested.relative_to(tmp_path)])] == ["many/one"]
    assert [e.path for e in gather([nested.parent.relative_to(tmp_path)])] == ["many/one", "many/two"]
    assert [e.path for e in gather([nested.relative_to(tmp_path) / "log.jsonl"])] == ["many/one"]
    assert [e.path for e in gather([nested.relative_to(tmp_path), run])] == ["many/one", str(run)]
