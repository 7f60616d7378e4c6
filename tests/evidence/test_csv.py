"""Tables with any column names, from the tidy to the broken."""

# ruff: noqa: E501  lines of logs and files stand here as they are written

import pytest

from gradforensics.errors import NoEvidenceError
from gradforensics.evidence.gather import gather


def frame_of(evidence, name, phase="train"):
    return evidence.frames[evidence.keys(name, phase)[0]].frame


def notices(evidence):
    return [(n.line, n.text) for n in evidence.notices]


def test_lightning_metrics_with_sparse_columns(read):
    text = (
        "epoch,step,train_loss_step,train_loss_epoch,val_loss,lr-AdamW,test_RMSE\n"
        "0,9,2.5,,,,\n0,9,,,,0.001,\n0,19,nan,,,,\n0,19,,,3.5,,\n0,19,,2.25,,,\n1,29,inf,,,,\n1,30,,,,,0.5\n"
    )
    evidence = read("metrics.csv", text)
    keys = {(k.series, k.tag, k.phase) for k in evidence.frames}
    assert keys == {
        ("loss", "train_loss_step", "train"), ("loss", "train_loss_epoch", "train"), ("loss", "val_loss", "eval"),
        ("lr", "lr-AdamW", "train"), ("RMSE", "test_RMSE", "test"),
    }  # fmt: skip
    loss = evidence.series("loss")
    assert (loss.tag, loss.steps.tolist(), loss.kinds) == ("train_loss_step", [9, 19, 29], ("finite", "nan", "posinf"))
    assert loss.lines.tolist() == [2, 4, 7]
    assert loss.epochs.tolist() == [0, 0, 1]
    assert evidence.notices == []
    assert (evidence.ending.kind, evidence.ending.line) == ("completed", 8)


def test_keras_logger_counts_epochs(read):
    evidence = read("training.csv", "epoch,loss,val_loss\n0,1.5,1.75\n1,1.25,NaN\n")
    assert evidence.series("loss").step_unit == "epoch"
    assert evidence.series("loss").steps.tolist() == [0, 1]
    assert evidence.series("loss", "eval").kinds == ("finite", "nan")


def test_ultralytics_padded_names(read):
    text = "                  epoch,         train/box_loss,       metrics/mAP50(B),           val/box_loss,                 lr/pg0\n                      1,                 1.5,                   0.25,                  1.75,               0.01\n"
    evidence = read("results.csv", text)
    assert frame_of(evidence, "train/box_loss")["value"].to_list() == [1.5]
    assert frame_of(evidence, "box_loss", "eval")["value"].to_list() == [1.75]
    assert frame_of(evidence, "mAP50(B)", "eval")["value"].to_list() == [0.25]
    assert evidence.series("lr").step_unit == "epoch"


def test_baselines_progress_without_a_step(read):
    evidence = read(
        "progress.csv", "agent acc,loss,value loss,mean 100 episode reward\n0.8,10.5,21.5,25.75\n0.7,5.0,10.5,62.0\n"
    )
    assert evidence.series("loss").step_unit == "row"
    assert evidence.series("loss").steps.tolist() == [1, 2]
    assert evidence.series("value loss").values.tolist() == [21.5, 10.5]
    assert evidence.series("reward").values.tolist() == [25.75, 62.0]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "\ufeffstep,loss\n1,0.5\n2,0.25\n"), ("b.csv", "step;loss\n1;0,5\n2;0,25\n"), ("c.tsv", "step\tloss\n1\t0.5\n2\t0.25\n"),
        ("d.txt", "step\tloss\n1\t0.5\n2\t0.25\n"), ("e.csv", "# step,loss\r\n1,0.5\r\n\r\n2,0.25\r\n"), ("f.csv", '"step","loss"\n"1","0.5"\n"2","0.25"\n'),
        ("g.csv", "step,loss\n1,0.5,\n2,0.25,\n"),
    ],
)  # fmt: skip
def test_dialects(read, name, text):
    evidence = read(name, text)
    assert evidence.series("loss").steps.tolist() == [1, 2]
    assert evidence.series("loss").values.tolist() == [0.5, 0.25]
    assert evidence.notices == []


def test_lines_stay_right_behind_quoted_newlines(read):
    evidence = read("m.csv", 'step,note,loss\n1,"a\nb\nc",0.5\n2,d,0.25\n')
    assert evidence.series("loss").lines.tolist() == [2, 5]
    assert notices(evidence) == []


def test_a_quote_that_never_closes(read):
    rows = "".join(f"{i},x,0.5\n" for i in range(3, 30_000))
    evidence = read("m.csv", 'step,note,loss\n1,"open,0.5\n2,x,0.25\n' + rows)
    assert len(evidence.series("loss")) == 29_999


def test_every_kind(read):
    cells = ["1.5", "nan", "NaN", "-nan", "inf", "-inf", "Infinity", "", "None", "NA", "1e999", "-0.0"]
    evidence = read("m.csv", "step,loss\n" + "".join(f"{i},{c}\n" for i, c in enumerate(cells)))
    kinds = [
        "finite",
        "nan",
        "nan",
        "nan",
        "posinf",
        "neginf",
        "posinf",
        "missing",
        "missing",
        "missing",
        "posinf",
        "finite",
    ]
    assert frame_of(evidence, "loss")["kind"].to_list() == kinds
    assert evidence.series("loss").lines.tolist() == [2, 3, 4, 5, 6, 7, 8, 12, 13]


def test_ragged_rows_and_a_torn_end(read):
    evidence = read("m.csv", "step,loss,lr\n1,0.5,1\n2,0.5\n3,0.5,1,9\n4,0.5,1\n5,0.")
    assert evidence.series("loss").steps.tolist() == [1, 2, 3, 4]
    assert notices(evidence) == [
        (6, "the last line is torn: it has fewer cells than the header"),
        (3, "1 rows have fewer cells than the header, this is the first"),
        (4, "1 rows have more cells than the header, this is the first"),
    ]


def test_a_repeated_header(read):
    evidence = read("m.csv", "epoch,loss\n0,2\n1,1\nepoch,loss\n0,2\n1,1.5\n")
    assert [len(a) for a in evidence.attempts("loss")] == [2, 2]
    assert (4, "the header is repeated 1 times: several launches wrote this file") in notices(evidence)


def test_text_in_a_numeric_column(read):
    evidence = read("m.csv", "step,loss,comment\n1,0.5,a\n2,oops,b\n3,0.25,c\n")
    assert frame_of(evidence, "loss")["kind"].to_list() == ["finite", "missing", "finite"]
    assert notices(evidence) == [(3, 'column "loss": 1 values are no numbers (first: "oops")')]
    assert evidence.names("train") == ["loss"]


def test_a_table_without_header(read):
    evidence = read("losses.txt", "1 8.05\n2 7.75\n3 7.03\n")
    assert evidence.series("column_2").steps.tolist() == [1, 2, 3]
    assert evidence.series("column_2").lines.tolist() == [1, 2, 3]


def test_mapping_names_a_column(read):
    evidence = read("losses.txt", "1 8.05\n2 7.75\n", columns={"column_2": "loss"})
    assert evidence.series("loss").values.tolist() == [8.05, 7.75]


@pytest.mark.parametrize("text", ["id,text\n1,hello\n2,world\n", "x,y\n1,2\n", "text\nhello\n"])
def test_other_tables_are_no_logs(read, text):
    with pytest.raises(NoEvidenceError):
        read("data.csv", text)


def test_any_table_named_by_the_user_is_read(run):
    run.write({"odd.csv": "x,y\n1,2\n3,4\n"})
    from gradforensics.evidence.gather import gather

    (evidence,) = gather([run.path / "odd.csv"])
    assert (evidence.name, evidence.names("train")) == ("odd", ["x", "y"])


@pytest.mark.parametrize(
    ("printed", "resolution"), [("0.0", 0.0), ("0", 0.0), ("0.0000", 1e-4), ("0.0e+00", 0.0), ("1e-05", 0.0)]
)
def test_a_table_tells_how_fine_its_numbers_are_printed(tmp_path, printed, resolution):
    (tmp_path / "log.csv").write_text("step,loss,lr\n" + "".join(f"{s},{3 - s / 7},{printed}\n" for s in range(1, 30)))
    (evidence,) = gather([tmp_path])
    rate, loss = evidence.series("lr"), evidence.series("loss")
    assert rate is not None
    assert rate.resolution == pytest.approx(resolution)
    assert loss is not None
    assert loss.resolution == 0.0
