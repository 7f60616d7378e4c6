"""Checks on NaN whose answer depends on who wrote the log."""

import json
import math

import pytest

from gradforensics.diagnosis.judge import judge
from gradforensics.diagnosis.rules import load_rules
from gradforensics.evidence.gather import gather

MASKED = next(rule for rule in load_rules() if rule.id == "GF35")


@pytest.mark.parametrize(("name", "outcome"), [("metrics.jsonl", "fired"), ("gradforensics-steps.jsonl", "clear")])
def test_a_finite_loss_beside_nan_gradients_is_masked_unless_the_recorder_wrote_it(tmp_path, name, outcome):
    rows = [
        {"step": step, "loss": 3.5 - 0.01 * step if step < 20 else 3.3, "grad_norm": 1.0 if step < 20 else math.nan}
        for step in range(1, 40)
    ]
    (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (evidence,) = gather([tmp_path])
    assert judge(MASKED, evidence).outcome == outcome
