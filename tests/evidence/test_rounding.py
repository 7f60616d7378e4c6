"""Rounded numbers show how fine they are, in every format."""

import json
import math

import numpy as np
import pytest

from gradforensics.evidence.rounding import own_resolution

LOSS = [2.0 + math.exp(-i / 9) / 3 for i in range(40)]


def jsonl(rows):
    return "".join(json.dumps({"step": i, **row}) + "\n" for i, row in enumerate(rows))


def resolutions(evidence):
    return tuple(evidence.series(name).resolution for name in ("loss", "lr"))


@pytest.mark.parametrize(
    ("digits", "rate", "wanted"),
    [
        (4, 0.0, (1e-4, 1e-4)),
        (None, 0.0, (0, 0)),
        (4, 4e-6, (1e-4, 0)),  # finer than the loss: not rounded like it
        (6, 4e-6, (1e-6, 1e-6)),
    ],
)
@pytest.mark.parametrize("form", ["jsonl", "csv", "array"])
def test_a_constant_rate_is_judged_by_the_loss(read, form, digits, rate, wanted):
    rows = [{"loss": v if digits is None else round(v, digits), "lr": rate} for v in LOSS]
    if form == "jsonl":
        evidence = read("log.jsonl", jsonl(rows))
    elif form == "csv":
        evidence = read(
            "log.csv", "step,loss,lr\n" + "".join(f"{i},{r['loss']},{r['lr']}\n" for i, r in enumerate(rows))
        )
    else:
        evidence = read("history.json", json.dumps({key: [r[key] for r in rows] for key in ("loss", "lr")}))
    assert resolutions(evidence) == pytest.approx(wanted)


def test_a_second_exact_metric_says_that_the_writer_does_not_round(read):
    rows = [{"loss": round(v, 4), "grad_norm": v / 7, "lr": 0.0} for v in LOSS]
    assert resolutions(read("log.jsonl", jsonl(rows))) == pytest.approx((1e-4, 0))


def test_cells_of_a_fixed_width_say_nothing_about_another_column(read):
    text = "step,loss,lr\n" + "".join(f"{i},{v:.4f},0.0\n" for i, v in enumerate([*LOSS, 1.5]))
    assert resolutions(read("log.csv", text)) == pytest.approx((1e-4, 0))


def test_the_trainer_rounds_the_loss_only(read):
    rows = [{"step": i, "loss": round(v, 4), "learning_rate": 0.0, "epoch": 1.0} for i, v in enumerate(LOSS)]
    state = {"global_step": 40, "log_history": rows}
    assert resolutions(read("trainer_state.json", json.dumps(state))) == pytest.approx((1e-4, 0))


def test_a_rounded_rate_of_many_values(read):
    rows = [{"loss": v, "lr": round(3e-4 * math.cos(i / 40), 6)} for i, v in enumerate(LOSS)]
    assert resolutions(read("log.jsonl", jsonl(rows))) == pytest.approx((0, 1e-6))


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        (np.arange(30.0), None),
        (np.arange(30.0) / 8, 1e-3),
        (np.arange(30.0) / 10, 0.1),
        (np.arange(5.0) / 10, None),
        (np.sqrt(np.arange(30.0)), 0),
    ],
)
def test_own_resolution(values, wanted):
    assert own_resolution(values) == (wanted if wanted is None else pytest.approx(wanted))
