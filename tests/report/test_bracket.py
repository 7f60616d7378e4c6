"""From the log to the checkpoints around a finding, layer by layer."""

import json
import math
from html import unescape
from importlib.resources import files
from pathlib import Path

import jsonschema  # type: ignore[import-untyped]
import pytest

from gradforensics.diagnosis.causes import diagnose
from gradforensics.diagnosis.rules import load_rules
from gradforensics.evidence.gather import gather
from gradforensics.report import as_json
from gradforensics.report.bracket import bracket
from gradforensics.report.build import build
from tests.report.page import page_of

SAMPLES = Path(__file__).parents[2] / "sample_runs"


def judged(folder):
    (evidence,) = gather([folder])
    return diagnose(evidence, load_rules())


@pytest.fixture(scope="module")
def poisoned():
    return judged(SAMPLES / "gf11-moments" / "run")


def test_the_way_goes_from_the_log_to_the_checkpoints_before_and_after_the_onset(poisoned):
    found = bracket(poisoned)
    assert found is not None
    assert (found.rule, found.before, found.after) == ("GF11", "checkpoint-000096.pt", "checkpoint-000144.pt")
    assert [(n.kind, n.step, n.late, n.nonfinite) for n in found.nodes] == [
        ("log", 90, False, None),
        ("checkpoint", 96, False, 0),
        ("log", 120, False, None),
        ("checkpoint", 144, True, 600),
    ]
    assert poisoned.last_good_checkpoint == "checkpoint-000096.pt"


def test_layers_are_those_of_the_two_files(poisoned):
    import torch

    found = bracket(poisoned)
    assert found is not None
    rows = {row.layer: row for row in found.layers}
    a, b = (
        torch.load(SAMPLES / "gf11-moments" / "run" / f"checkpoint-000{step}.pt", weights_only=True)
        for step in ("096", "144")
    )
    for side, state in enumerate((a, b)):
        weights = torch.cat([state["model"][f"inner.{part}"].flatten() for part in ("weight", "bias")]).double()
        assert rows["inner"].weight_rms[side] == pytest.approx(float(weights.square().mean().sqrt()), rel=1e-5)
    v = torch.cat([a["optimizer"]["state"][index]["exp_avg_sq"].flatten() for index in (0, 1)]).double()
    assert rows["inner"].gradient_rms[0] == pytest.approx(math.sqrt(float(v.mean()) / (1 - 0.999**96)), rel=1e-5)
    moved = [(b["model"][f"inner.{part}"] - a["model"][f"inner.{part}"]).double() for part in ("weight", "bias")]
    before = [a["model"][f"inner.{part}"].double() for part in ("weight", "bias")]
    distance, norm = (math.sqrt(sum(float(x.square().sum()) for x in one)) for one in (moved, before))
    assert rows["inner"].travel == pytest.approx(distance / norm, rel=1e-4)
    assert rows["inner"].nonfinite == (0, 400)
    assert rows["mask"].nonfinite == (0, 0)  # -inf on purpose


def test_a_layer_that_is_all_nan_has_neither_size_nor_travel():
    found = bracket(judged(SAMPLES / "gf11-weights" / "run"))
    assert found is not None
    rows = {row.layer: row for row in found.layers}
    before, after = rows["inner"].weight_rms
    assert before == pytest.approx(0.23, rel=0.1)
    assert after is not None
    assert math.isnan(after)
    assert (rows["inner"].travel, rows["inner"].changed) == (None, 1.0)


def test_html_and_json_show_it(poisoned):
    report = build([poisoned], [])
    page = page_of(report)
    assert "From the log to the checkpoints" in page
    assert page.index("checkpoint-000096.pt</code>") < page.index("checkpoint-000144.pt</code>")
    data = as_json.data(report)
    schema = json.loads((files("gradforensics.report") / "schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(data, schema)
    assert [row["layer"] for row in data["runs"][0]["bracket"]["layers"]] == [
        "mask",
        "inner",
        "outer",
    ]  # as in the file
    chinese = page_of(build([poisoned], [], language="zh"))
    assert "从日志到检查点" in chinese


def test_without_checkpoints_or_a_finding_there_is_no_such_section():
    assert bracket(judged(SAMPLES / "gf11-twin-checkpoints" / "run")) is None
    assert bracket(judged(SAMPLES / "gf11-forward-first" / "run")) is None


@pytest.mark.parametrize(
    ("name", "checkpoint", "how"),
    [
        (
            "gf29-twin-trainer-counters",
            "checkpoint-150",
            'trainer.train(resume_from_checkpoint="checkpoint-150") with save_steps=1',
        ),
        (
            "gf07-twin-lightning-counters",
            "epoch=0-step=60.ckpt",
            'trainer.fit(model, ckpt_path="epoch=0-step=60.ckpt") with ModelCheckpoint(every_n_train_steps=1',
        ),
        ("gf11-moments", "checkpoint-000096.pt", "Load checkpoint-000096.pt, make one more optimizer step"),
    ],
)
def test_two_checkpoints_far_apart_lead_to_the_advice_how_to_make_a_pair_in_that_framework(name, checkpoint, how):
    report = build([judged(SAMPLES / name / "run")], [])
    (run,) = report.runs
    assert run.pair is not None
    assert run.pair.checkpoint == checkpoint
    assert {"GF03", "GF07"} <= set(run.pair.rules)
    assert run.pair.advice.en.startswith(how)
    text = unescape(page_of(report))
    assert (
        f"A checkpoint one optimizer step after {checkpoint} would prove more ({', '.join(run.pair.rules)}): " in text
    )
    assert how in text


@pytest.mark.parametrize("name", ["gf07-twin-checkpoints", "healthy-sgd"])
def test_no_pair_is_advised_where_there_is_one_or_it_would_prove_nothing(name):
    (run,) = build([judged(SAMPLES / name / "run")], []).runs
    assert run.pair is None
