"""NaN that fills cells where nothing was measured is missing; NaN that was measured stays."""

import json

import pytest

NAN = float("nan")


def table(columns, count, cell):
    rows = [",".join(("step", *columns))]
    rows += [",".join((str(i), *(str(v) for v in cell(i)))) for i in range(1, count + 1)]
    return "\n".join(rows) + "\n"


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def fillers(evidence):
    return [n.text for n in evidence.notices if "nothing was measured" in n.text]


def test_training_and_validation_rows_fill_each_other_with_nan(read):
    def cell(i):
        return (NAN, 2.5 - i / 100) if i % 10 == 0 else (2.0 - i / 100, NAN)

    evidence = read("log.csv", table(("train_loss", "val_loss"), 40, cell))
    assert len(evidence.series("loss")) == 36
    assert not evidence.series("loss").bad.any()
    assert evidence.series("loss", "eval").steps.tolist() == [10, 20, 30, 40]
    assert fillers(evidence) == [
        'column "train_loss": 4 NaN where nothing was measured: read as missing',
        'column "val_loss": 36 NaN where nothing was measured: read as missing',
    ]


def test_a_divergence_stays_beside_fillers(read):
    rows = []
    for i in range(1, 61):
        rows.append({"step": i, "train_loss": 2.0 if i < 35 else NAN, "val_loss": NAN})
        if i % 10 == 0:
            rows.append({"step": i, "train_loss": NAN, "val_loss": 2.5 if i < 40 else NAN})
    evidence = read("log.jsonl", lines(rows))
    loss, val = evidence.series("loss"), evidence.series("loss", "eval")
    assert int(loss.steps[loss.bad][0]) == 35
    assert val.good.steps.tolist() == [10, 20, 30]
    assert int(val.steps[val.bad][0]) in (35, 40)


def test_an_evaluation_at_intervals(read):
    def cell(i):
        return 2.0 - i / 200, 2.5 if i % 20 == 0 else NAN

    evidence = read("log.csv", table(("loss", "eval_loss"), 110, cell))
    assert evidence.series("loss", "eval").steps.tolist() == [20, 40, 60, 80, 100]
    assert len(evidence.series("loss")) == 110


def test_an_evaluation_that_ends_in_nan_stays_one(read):
    def cell(i):
        return 2.0, 2.5 if i in (20, 40) else NAN

    val = read("log.csv", table(("loss", "eval_loss"), 200, cell)).series("loss", "eval")
    assert val.good.steps.tolist() == [20, 40]
    assert val.steps[val.bad][0] == 60


@pytest.mark.parametrize(
    "cell",
    [
        lambda i: (2.0 if i < 50 else NAN, 2.5),  # diverged while the evaluation goes on
        lambda i: (2.0 if i < 50 else NAN, 2.5 if i >= 50 else ""),  # one begins where the other ends
        lambda i: (2.0 if i != 50 else NAN, 2.5 if i % 10 == 0 else ""),  # one NaN on the row of an evaluation
        lambda _: (NAN, 2.5),
        lambda i: (2.5, 2.0 if i < 50 else NAN),
        lambda i: (2.5, 2.0 if i != 50 else NAN),  # an evaluation on every row, one of them NaN
        lambda _: (2.5, NAN),
    ],
)
def test_what_was_measured_stays(read, cell):
    evidence = read("log.csv", table(("train_loss", "val_loss"), 100, cell))
    wanted = [sum(str(cell(i)[column]) == "nan" for i in range(1, 101)) for column in (0, 1)]
    found = [s.bad.sum() if (s := evidence.series("loss", phase)) else 0 for phase in ("train", "eval")]
    assert found == wanted
    assert fillers(evidence) == []


def test_fillers_do_not_count_as_repeated_steps(read):
    rows = [{"step": s, "loss": a, "val_loss": b} for s in range(1, 30) for a, b in ((2.0, NAN), (NAN, 2.5))]
    evidence = read("log.jsonl", lines(rows))
    assert not evidence.series("loss").bad.any()
    assert [n.text for n in evidence.notices] == fillers(evidence)
