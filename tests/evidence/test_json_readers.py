"""JSON in all its shapes: lines, states, results, histories; exact lines and every broken form."""

import json

import pytest

from gradforensics.errors import NoEvidenceError
from gradforensics.evidence.located_json import Cursor, TornJsonError, flatten


def notices(evidence):
    return [(n.line, n.text) for n in evidence.notices]


# -- lines -------------------------------------------------------------------------------------------------------------


def test_lines_with_every_kind(read):
    text = (
        '{"step": 1, "loss": 2.5}\n'
        '{"step": 2, "loss": NaN}\n'
        '{"step": 3, "loss": "nan"}\n'
        '{"step": 4, "loss": Infinity}\n'
        '{"step": 5, "loss": -Infinity}\n'
        '{"step": 6, "loss": null}\n'
        '{"step": 7, "loss": 1e999}\n'
        '{"step": 8, "loss": -0.0}\n'
        '{"step": 9}\n'
    )
    evidence = read("log.jsonl", text)
    frame = evidence.frames[evidence.keys("loss")[0]].frame
    assert frame["kind"].to_list() == ["finite", "nan", "nan", "posinf", "neginf", "missing", "posinf", "finite"]
    assert frame["value"].to_list() == [2.5, None, None, None, None, None, None, 0.0]
    assert frame["line"].to_list() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert evidence.series("loss").steps.tolist() == [1, 2, 3, 4, 5, 7, 8]
    assert evidence.notices == []
    assert evidence.settings is None
    assert evidence.events is None


def test_a_key_that_comes_late_and_nested_objects(read):
    rows = [{"step": i, "loss": 1.0, "extras": {"lr/AdamW": 1e-3}} for i in range(300)]
    rows.append({"step": 300, "loss": 1.0, "late": {"num": 2, "mean": 7.0, "std": 0.0}, "list": [1], "flag": True})
    evidence = read("metrics.jsonl", "\n".join(json.dumps(r) for r in rows))
    assert evidence.series("lr").values.tolist() == [1e-3] * 300
    assert evidence.series("late").values.tolist() == [7.0]
    assert evidence.series("late").lines.tolist() == [301]
    assert set(evidence.names("train")) == {"loss", "lr", "late"}


def test_bad_lines_are_counted_and_the_torn_last_line_has_its_own_notice(read):
    good = '{"step": %d, "loss": 1.0}\n'
    text = good % 1 + "oops\n" + good % 2 + "[1, 2]\n" + good % 3 + '{"step": 4, "lo'
    evidence = read("m.jsonl", text)
    assert len(evidence.series("loss")) == 3
    assert notices(evidence) == [
        (6, "the last line is torn: not complete JSON"),
        (2, "2 lines are no JSON objects, this is the first"),
    ]


def test_a_type_that_changes(read):
    text = '{"step": 1, "loss": 1.0}\n{"step": 2, "loss": "oops"}\n{"step": 3, "loss": "0.5"}\n'
    evidence = read("m.jsonl", text)
    frame = evidence.frames[evidence.keys("loss")[0]].frame
    assert frame["kind"].to_list() == ["finite", "missing", "finite"]
    assert notices(evidence) == [(2, 'column "loss": 1 values are no numbers (first: "oops")')]


@pytest.mark.parametrize(
    "key", ["step", "global_step", "iteration", "iter", "_step", "current_steps", "step_num", "trainer/global_step"]
)
def test_step_columns(read, key):
    evidence = read("m.jsonl", "".join(json.dumps({key: 10 * i, "loss": 1.0}) + "\n" for i in range(4)))
    assert evidence.series("loss").steps.tolist() == [0, 10, 20, 30]
    assert evidence.series("loss").step_unit == "step"


def test_without_a_step_rows_are_numbered(read):
    evidence = read("m.jsonl", '{"time": 1.5, "loss": 2}\n{"time": 1.6, "loss": 1}\n')
    assert evidence.series("loss").step_unit == "row"
    assert evidence.series("loss").steps.tolist() == [1, 2]
    assert "time" in evidence.names("train")


def test_epoch_is_the_step_where_there_is_no_other(read):
    evidence = read(
        "log.txt", '{"epoch": 0, "train_loss": 2, "test_loss": 3}\n{"epoch": 1, "train_loss": 1, "test_loss": 2}\n'
    )
    assert evidence.series("loss").step_unit == "epoch"
    assert evidence.series("loss", "test").steps.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("key", "value", "seconds"),
    [
        ("_timestamp", 1714470115.5, 1714470115.5), ("timestamp", 1714470115500, 1714470115.5),
        ("wall_time", "2024-04-30T09:41:55", 1714470115.0), ("time", 1714470115, 1714470115.0),
    ],
)  # fmt: skip
def test_times(read, key, value, seconds):
    evidence = read("m.jsonl", json.dumps({key: value, "step": 1, "loss": 1.0}) + "\n")
    assert evidence.series("loss").times.tolist() == [seconds]
    assert evidence.names("train") == ["loss"]


def test_a_split_column_sets_the_phase(read):
    text = '{"step": 1, "split": "train", "loss": 2}\n{"step": 1, "split": "val", "loss": 3}\n'
    evidence = read("m.jsonl", text)
    assert evidence.series("loss").values.tolist() == [2]
    assert evidence.series("loss", "eval").values.tolist() == [3]


def test_steps_that_go_back_are_attempts(read):
    steps = [1, 2, 3, 4, 3, 4, 5, 1, 2]
    evidence = read("m.jsonl", "".join(json.dumps({"step": s, "loss": float(i)}) + "\n" for i, s in enumerate(steps)))
    attempts = evidence.attempts("loss")
    assert [a.steps.tolist() for a in attempts] == [[1, 2, 3, 4], [3, 4, 5], [1, 2]]
    assert evidence.series("loss").values.tolist() == [7, 8]
    assert notices(evidence) == [(5, "steps go back 2 times: 3 attempts in this file")]


def test_series_of_one_restart_share_one_attempt(read):
    rows = [(1, "a_loss"), (2, "b_loss"), (1, "b_loss"), (1, "a_loss"), (2, "a_loss")]
    evidence = read("m.jsonl", "".join(json.dumps({"step": s, k: 1.0}) + "\n" for s, k in rows))
    assert evidence.attempts("a_loss")[-1].attempts.tolist() == [1, 1]
    assert evidence.attempts("b_loss")[-1].attempts.tolist() == [1]
    assert notices(evidence) == [(3, "steps go back once: 2 attempts in this file")]


def test_repeated_steps_have_one_notice(read):
    evidence = read(
        "m.jsonl", "".join(json.dumps({"step": s, "loss": float(i)}) + "\n" for i, s in enumerate([1, 1, 2, 2, 3]))
    )
    assert evidence.series("loss").values.tolist() == [1, 3, 4]
    assert notices(evidence) == [(2, "2 points repeat a step that was logged before: the last line counts")]


def test_steps_in_disorder_are_no_attempts(read):
    steps = [i ^ 1 for i in range(400)]
    evidence = read("m.jsonl", "".join(json.dumps({"step": s, "loss": 1.0}) + "\n" for s in steps))
    assert len(evidence.attempts("loss")) == 1
    assert len(evidence.series("loss")) == 400
    assert [n.text for n in evidence.notices] == ["steps go back 200 times: read as out of order"]


def test_steps_that_begin_anew_in_every_epoch(read):
    rows = [{"epoch": e, "step": s, "loss": 1.0} for e in range(3) for s in range(5)]
    evidence = read("m.jsonl", "".join(json.dumps(r) + "\n" for r in rows))
    assert evidence.series("loss").steps.tolist() == list(range(15))
    assert [n.text for n in evidence.notices] == [
        "steps begin anew in every epoch: counted through with 5 steps per epoch"
    ]


@pytest.mark.parametrize(
    "text",
    [
        '{"instruction": "a", "output": "b"}\n{"instruction": "c", "output": "d"}\n',
        '{"id": 1, "label": 0, "text": "x"}\n',
        '{"doc_id": 1, "acc": 1.0, "target": "x"}\n',
        '{"question": "%s", "loss": 1.0}\n' % ("x" * 400),
    ],
)
def test_data_sets_are_no_logs(read, text):
    with pytest.raises(NoEvidenceError):
        read("data.jsonl", text)


def test_mapping_a_column(read):
    evidence = read(
        "m.jsonl",
        '{"n": 5, "obj": 1.0, "dev_obj": 2.0}\n',
        columns={"obj": "loss", "dev_obj": "eval/loss", "n": "step"},
    )
    assert evidence.series("loss").values.tolist() == [1.0]
    assert evidence.series("loss", "eval").steps.tolist() == [5]


# -- states ------------------------------------------------------------------------------------------------------------


def state(rows, **top):
    return {"global_step": 30, "max_steps": 30, "num_train_epochs": 1, "log_history": rows, **top}


ROWS = [
    {"epoch": 0.1, "grad_norm": 1.5, "learning_rate": 1e-3, "loss": 2.5, "step": 10},
    {"epoch": 0.1, "eval_loss": 2.75, "step": 10},
    {"epoch": 0.2, "grad_norm": float("nan"), "learning_rate": 5e-4, "loss": 0.0, "step": 20},
    {"epoch": 0.3, "step": 30, "train_loss": 1.25, "train_runtime": 9.5},
]


@pytest.mark.parametrize("layout", ["indented", "compact", "odd"])
def test_trainer_state_lines_for_any_layout(read, layout):
    whole = state(ROWS)
    if layout == "indented":
        text = json.dumps(whole, indent=2)
    elif layout == "compact":
        text = json.dumps(whole)
    else:
        text = json.dumps(whole, indent=1).replace('"loss"', '\n\n  "loss"').replace('"epoch":', '"epoch"\n:')
    evidence = read("trainer_state.json", text)
    for name, tag in (("loss", "loss"), ("grad_norm", "grad_norm"), ("lr", "learning_rate")):
        series = evidence.series(name)
        assert series.steps.tolist() == [10, 20]
        lines = text.split("\n")
        for line in series.lines.tolist():
            assert f'"{tag}"' in lines[line - 1]
    assert evidence.series("grad_norm").kinds == ("finite", "nan")
    assert evidence.series("loss", "eval").values.tolist() == [2.75]
    assert evidence.series("train_loss").values.tolist() == [1.25]
    assert evidence.keys("loss")[0].tag == "loss"
    assert evidence.notices == []
    assert evidence.setting("max_steps") == 30
    assert {s.origin for s in evidence.settings} == {"runtime"}
    assert (evidence.ending.kind, evidence.events) == ("completed", None)


def test_torn_trainer_state_keeps_what_came_before(read):
    text = json.dumps(state(ROWS), indent=2)
    cut = text.index('"grad_norm": NaN')
    evidence = read("trainer_state.json", text[:cut])
    assert evidence.series("loss").steps.tolist() == [10]
    assert len(evidence.notices) == 1
    assert evidence.notices[0].line == text[:cut].count("\n") + 1
    assert "2 rows of log_history were read before" in evidence.notices[0].text


def test_rounded_losses_have_the_resolution_of_the_trainer(read):
    rows = [{"loss": round(2 + i / 7, 4), "learning_rate": 0.0003, "step": i} for i in range(1, 20)]
    evidence = read("trainer_state.json", json.dumps(state(rows)))
    assert evidence.series("loss").resolution == 1e-4
    assert evidence.series("lr").resolution == 0


def test_a_state_without_rows_and_one_with_odd_values(run):
    with pytest.raises(NoEvidenceError):
        run.write({"trainer_state.json": json.dumps(state([]))}).one()
    odd = [
        {"loss": "nan", "step": 1},
        "text",
        5,
        {"loss": [1], "step": 2},
        {"loss": None, "step": 3},
        {"step": "x", "loss": 1.0},
    ]
    (run.path / "trainer_state.json").write_text(json.dumps(state(odd)))
    evidence = run.one()
    assert evidence.frames[evidence.keys("loss")[0]].frame["kind"].to_list() == ["nan", "missing", "finite"]


# -- results and histories ---------------------------------------------------------------------------------------------


def test_results_are_points_of_their_own(run):
    results = {"epoch": 4.0, "train_loss": 0.25, "train_runtime": 10.0, "eval_loss": 0.5, "run_name": "x"}
    evidence = run.write({"all_results.json": json.dumps(results, indent=4)}).one()
    assert evidence.series("loss") is None
    assert evidence.series("loss", "eval") is None
    assert evidence.series("train_loss").values.tolist() == [0.25]
    assert evidence.series("eval_loss", "eval").lines.tolist() == [5]
    assert evidence.settings is None
    assert evidence.ending.kind == "completed"


def test_metrics_json_may_be_json_lines(read):
    evidence = read("metrics.json", '{"iteration": 19, "total_loss": 2.5}\n{"iteration": 39, "total_loss": 1.5}\n')
    assert evidence.sources[0].reader == "json-lines"
    assert evidence.series("loss").steps.tolist() == [19, 39]


def test_keras_history(read):
    evidence = read("history.json", json.dumps({"loss": [2.0, float("nan")], "val_loss": [3.0, 2.0]}, indent=1))
    assert evidence.series("loss").kinds == ("finite", "nan")
    assert evidence.series("loss").lines.tolist() == [3, 4]
    assert evidence.series("loss", "eval").step_unit == "row"


def test_a_list_of_rows(read):
    evidence = read("log_history.json", json.dumps([{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0}], indent=1))
    assert evidence.series("loss").steps.tolist() == [1, 2]
    assert evidence.series("loss").lines.tolist() == [2, 6]


def test_golden_values(read):
    golden = {"lm loss": {"start_step": 1, "values": {"1": 10.5, "2": "nan"}}, "num-zeros": {"values": {"1": 5}}}
    evidence = read("golden_values.json", json.dumps(golden, indent=4))
    assert evidence.series("loss").kinds == ("finite", "nan")
    assert evidence.series("loss").lines.tolist() == [5, 6]


# -- the cursor --------------------------------------------------------------------------------------------------------


def test_flatten_names_and_lines():
    text = '{"a": 1,\n "b": {"c": [1, 2],\n "d": {}},\n "e": null}'
    assert list(flatten(Cursor(text))) == [("a", 1, 1), ("b.c", [1, 2], 2), ("e", None, 4)]


@pytest.mark.parametrize(
    "text", ["", "{", '{"a"', '{"a":', '{"a": 1', '{"a": 1 "b": 2}', "[1", "nul", "{1: 2}", "[" * 200_000]
)
def test_broken_json_is_torn_with_a_line(text):
    cursor = Cursor(text)
    with pytest.raises(TornJsonError):
        _ = list(flatten(cursor)) if text.startswith("{") else cursor.value()
