"""Checks on spikes and on gradients over depth, where the examples of the rules do not reach."""

import json

import numpy as np
import pytest

from gradforensics.diagnosis.judge import judge
from gradforensics.diagnosis.rules import load_rules
from gradforensics.evidence.gather import gather

RULES = {rule.id: rule for rule in load_rules(examples=False)}


def verdict(tmp_path, case, rows, name="metrics.jsonl"):
    (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (evidence,) = gather([tmp_path])
    return judge(RULES[case], evidence)


@pytest.mark.parametrize(
    "tag",
    [
        "grad_2.0_norm/model.layers.{}.weight",
        "grad_norm/blocks.{}.attn.qkv",
        "train/grad_norm/encoder.layer.{}.output.dense.weight",
        "gradients/layer_{}",
        "layer_{}/grad_norm",
        "optim/transformer.blocks.{}.att_proj.weight.grad_norm",
    ],
)
def test_layers_are_ordered_by_their_number_whatever_the_logger_calls_them(tmp_path, tag):
    rows = [
        {"step": step, "loss": 4.1} | {tag.format(layer): 10.0 ** (layer - 12) for layer in range(12)}
        for step in range(1, 30)
    ]
    found = verdict(tmp_path, "GF09", rows)
    assert found.outcome == "fired"
    assert found.facts["layers"] == 12
    assert found.facts["slope"] == pytest.approx(1.0)


def test_a_gradient_that_grows_towards_the_first_layer_does_not_fade(tmp_path):
    rows = [
        {"step": step, "loss": 4.1} | {f"grad_norm/layers.{i}.weight": 10.0 ** (-i) for i in range(12)}
        for step in range(1, 30)
    ]
    assert verdict(tmp_path, "GF09", rows).outcome == "clear"


def test_norms_of_the_recorder_are_judged(tmp_path):
    rows = [
        {"step": step, "loss": 4.1, "grad_norm": 0.2}
        | {f"grad_norm/layers.{layer}": 6.0 ** (layer - 15) for layer in range(16)}
        for step in range(1, 30)
    ]
    assert verdict(tmp_path, "GF09", rows, "gradforensics-steps.jsonl").outcome == "fired"


def test_biases_and_other_numbers_make_no_stack(tmp_path):
    rows = [
        {"step": step, "loss": 4.1} | {f"grad_norm/layers.{i}.bias": 10.0 ** (i - 12) for i in range(12)}
        for step in range(1, 30)
    ]
    assert verdict(tmp_path, "GF09", rows).outcome == "not_judged"


def spiky(steps, *, every=1, at=200, height=2.0, width=2):
    noise = np.random.default_rng(0)
    for index in range(steps):
        high = at <= index < at + width
        yield {
            "step": (index + 1) * every,
            "loss": 3.0 + float(noise.normal(0, 0.03)) + height * high,
            "grad_norm": 0.5 + float(noise.normal(0, 0.02)) + 9 * high,
            "lr": 1e-4,
        }


def test_a_log_of_every_tenth_step_only_suspects_a_spike(tmp_path):
    assert verdict(tmp_path, "GF08", list(spiky(300))).strength == "probable"
    (tmp_path / "other").mkdir()
    found = verdict(tmp_path / "other", "GF08", list(spiky(300, every=10, width=1)))
    assert (found.variant, found.strength) == ("fast", "suspect")


def test_a_spike_inside_the_warmup_is_not_judged(tmp_path):
    rows = [{**row, "lr": 1e-6 * min(row["step"], 250)} for row in spiky(300)]
    assert verdict(tmp_path, "GF08", rows).outcome == "clear"


def test_losses_of_adversaries_are_not_judged(tmp_path):
    rows = [{**row, "discriminator_loss": 0.7} for row in spiky(300)]
    assert verdict(tmp_path, "GF08", rows).outcome == "not_judged"
