"""The loss as a multiple, in other units, below the floor; and clipping."""

import math

import numpy as np
import pytest

from gradforensics import signals
from gradforensics.diagnosis.checks import CHECKS
from gradforensics.diagnosis.examples import evidence_of
from gradforensics.diagnosis.vocabulary import Missing

K8 = {"gradient_accumulation_steps": 8}
OF_EVAL = {"of": "accumulation", "least": 4.0, "tolerance": 0.1, "evals": 2, "record": "any"}
FLOOR = {"floor": 0.3, "start": 0.85, "most": 1.15, "least_vocabulary": 1000.0, "epoch": 1.0, "part": 0.05}
SATURATED = {"share": 0.9, "depth": 2.0, "points": 20, "warmup": 0.05, "exact": 1e-3}


def ask(check, arguments, **example):
    evidence = evidence_of({k: v for k, v in example.items() if k != "baseline"})
    evidence.baseline = example.get("baseline")
    return CHECKS[check](evidence, **arguments)


def curve(train, held_out, every=20):
    return {"series": {"loss": train, "eval/loss": held_out}, "every": {"eval/loss": every}}


def test_levels_are_those_between_two_windows():
    steps = np.array([100, 200, 300, 400])
    levels, change = signals.levels_around(steps, np.array([80.0, 16.0, 9.0, 9.0]), np.array([50, 100, 200, 300, 400]))
    assert math.isnan(levels[0])
    assert levels[1:].tolist() == pytest.approx([math.sqrt(80 * 16), 12.0, 9.0, 9.0])
    assert change[1:].tolist() == pytest.approx([math.log(5), math.log(16 / 9), 0.0, 0.0])


def test_a_ratio_that_wanders_is_no_multiple():
    """Overfitting: the ratio passes 8 on its way, and is 8 in the median."""
    example = curve("decay(4.0, 0.2, 200)", "ramp(0.1, 0.5, 10)")
    assert ask("train_loss_is_multiple_of_eval", OF_EVAL, settings=K8, **example) == []


def test_a_multiple_is_read_where_the_training_loss_has_settled():
    found = ask(
        "train_loss_is_multiple_of_eval", OF_EVAL, settings=K8,
        series={"loss": "240 160 40 25 24 23.8", "eval/loss": "9 6 3.4 3.1 3.0 2.98"},
        every={"loss": 100, "eval/loss": 100},
    )  # fmt: skip
    assert found[0].facts["expected"] == 8
    assert found[0].facts["ratio"] == pytest.approx(8.0, rel=0.05)


def test_steps_times_ranks_may_multiply_as_well():
    example = curve("decay(64.0, 50.0, 200)", "decay(4.0, 3.125, 10)")
    settings = {"gradient_accumulation_steps": 8, "world_size": 2}
    found = ask("train_loss_is_multiple_of_eval", OF_EVAL, settings=settings, **example)
    assert found[0].facts["of"].en == "8 accumulation steps x 2 ranks"


@pytest.mark.parametrize("missing", [None, "eval/loss", "settings"])
def test_what_is_missing_is_named(missing):
    example = curve("decay(32.0, 24.0, 200)", "decay(4.0, 3.0, 10)")
    if missing == "eval/loss":
        del example["series"]["eval/loss"]
    answer = ask("train_loss_is_multiple_of_eval", OF_EVAL, settings={} if missing == "settings" else K8, **example)
    assert isinstance(answer, Missing) == (missing is not None)


def test_losses_that_need_not_fall_are_not_compared():
    example = curve("decay(32.0, 24.0, 200)", "decay(4.0, 3.0, 10)")
    example["series"]["rewards"] = "1.0*200"
    assert isinstance(ask("train_loss_is_multiple_of_eval", OF_EVAL, settings=K8, **example), Missing)


def test_negative_and_zero_losses_are_left_out():
    example = curve("-1.0*100 0*100", "0*10")
    assert isinstance(ask("train_loss_is_multiple_of_eval", OF_EVAL, settings=K8, **example), Missing)


def test_an_untrained_evaluation_that_is_multiplied_too_is_no_accumulation():
    arguments = {"of": "accumulation", "least": 3.0, "low": 0.85, "high": 1.15}
    settings = {"vocab_size": 64, "gradient_accumulation_steps": 4}
    series = {"loss": "decay(16.6, 11.0, 100)", "eval/loss": "decay(16.6, 11.0, 10)"}
    answer = ask("starts_at_multiple_of_chance", arguments, settings=settings, series=series, every={"eval/loss": 1})
    assert answer == []
    del series["eval/loss"]
    assert ask("starts_at_multiple_of_chance", arguments, settings=settings, series=series)[0].facts["expected"] == 4


@pytest.mark.parametrize(
    ("settings", "of"),
    [
        ({"max_seq_length": 512, "per_device_train_batch_size": 4}, "512 tokens of a sequence"),
        ({"max_seq_length": 128, "per_device_train_batch_size": 4}, "4 x 128 tokens of a micro-batch"),
        (
            {"max_seq_length": 64, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2},
            "2 x 4 x 64 tokens of a step",
        ),
    ],
)
def test_a_sum_names_the_tokens_it_runs_over(settings, of):
    arguments = {"least": 20.0, "low": 0.85, "high": 1.15}
    series = {"loss": "decay(2129, 1500, 50)"}
    found = ask("starts_at_sum_over_tokens", arguments, series=series, settings={"vocab_size": 64, **settings})
    assert found[0].facts["of"].en == of


def test_a_sum_of_terms_is_not_judged():
    series = {"loss": "decay(2129, 1500, 50)", "ce_loss_0": "decay(4, 3, 50)"}
    answer = ask("starts_beyond_any_mean", {"times": 50.0}, series=series, settings={"vocab_size": 64})
    assert isinstance(answer, Missing)


def test_nats_beside_a_perplexity_are_in_order():
    series = {
        "loss": "decay(4.0, 3.0, 30)",
        "perplexity": " ".join(f"{math.exp(3 + math.exp(-5 * i / 30)):.4f}" for i in range(30)),
    }
    assert ask("loss_differs_from_log_perplexity", {"points": 5}, series=series) == []


def test_a_perplexity_logged_as_the_loss():
    found = ask(
        "starts_in_other_units", {"low": 0.97, "high": 1.06},
        series={"loss": "50500*3 decay(50000, 30, 100)"}, settings={"vocab_size": 50257},
    )  # fmt: skip
    assert found[0].facts["unit"].en == "a perplexity"


@pytest.mark.parametrize(
    ("series", "settings"),
    [
        ({"loss": "decay(10.8, 0.01, 100)"}, {"vocab_size": 64}),  # a synthetic task
        ({"loss": "decay(3.0, 0.01, 100)"}, {"vocab_size": 50257}),  # fine-tuning
        ({"loss": "decay(22.0, 0.01, 100)"}, {"vocab_size": 50257}),  # a confident model that learns other words
        ({"loss": "decay(10.8, 0.01, 100)"}, {"vocab_size": 50257, "peft_type": "LORA"}),
        ({"loss": "decay(10.8, 0.01, 100)", "eval/loss": "4.0*100"}, {"vocab_size": 50257}),  # learnt by heart
        ({"loss": "decay(10.8, 0.01, 60) 9.0*40"}, {"vocab_size": 50257}),  # does not stay
    ],
)
def test_a_low_loss_with_another_reason_is_no_leak(series, settings):
    planned = {"max_steps": 100, "num_train_epochs": 1}
    assert ask("falls_below_floor", FLOOR, series=series, settings=settings | planned) == []


def test_without_epochs_a_low_loss_is_not_judged():
    series = {"loss": "decay(10.8, 0.01, 100)"}
    assert isinstance(ask("falls_below_floor", FLOOR, series=series, settings={"vocab_size": 50257}), Missing)
    early = {"loss": "decay(10.8, 0.01, 30) 0.01*70"}
    settings = {"vocab_size": 50257, "max_steps": 1000}
    assert ask("falls_below_floor", FLOOR, series=early, settings=settings)[0].step < 50


def test_a_baseline_needs_the_gradient_norm_to_agree():
    healthy = evidence_of({"series": {"loss": "2.0*30", "grad_norm": "30*30"}})
    series = {"loss": "16.0*30", "grad_norm": "240*30"}
    arguments = {"tolerance": 0.1, "points": 10}
    found = ask("loss_is_multiple_of_baseline", arguments, series=series, settings=K8, baseline=healthy)
    assert found[0].facts["norm_ratio"] == pytest.approx(8.0)
    series["grad_norm"] = "30*30"
    assert ask("loss_is_multiple_of_baseline", arguments, series=series, settings=K8, baseline=healthy) == []


@pytest.mark.parametrize(
    ("settings", "outcome"),
    [
        ({"max_grad_norm": 1.0}, "hit"),
        ({"max_grad_norm": 5.0}, "clear"),
        ({"max_grad_norm": 0.0}, "clear"),
        ({"max_grad_norm": 1.0, "gradient_clip_algorithm": "value"}, "missing"),
        ({}, "missing"),
    ],
)
def test_saturation_depends_on_the_threshold(settings, outcome):
    answer = ask("clip_saturated", SATURATED, series={"grad_norm": "7.0*100 + noise(sd=1)"}, settings=settings)
    assert ("missing" if isinstance(answer, Missing) else "hit" if answer else "clear") == outcome


def test_a_warm_up_given_as_a_ratio_is_left_out():
    settings = {"max_grad_norm": 1.0, "warmup_ratio": 0.1, "max_steps": 100}
    series = {"grad_norm": "0.2*10 7.0*90"}
    assert ask("clip_saturated", SATURATED, series=series, settings=settings)[0].step == 11


def test_norms_of_zero_mean_not_measured():
    answer = ask("clip_saturated", SATURATED, series={"grad_norm": "0*100"}, settings={"max_grad_norm": 1.0})
    assert isinstance(answer, Missing)


def test_a_norm_taken_after_clipping_cannot_saturate():
    answer = ask("clip_saturated", SATURATED, series={"grad_norm": "1.0*100"}, settings={"max_grad_norm": 1.0})
    assert isinstance(answer, Missing)


def test_deepspeed_may_log_a_scaled_norm_and_clip_rightly():
    series = {"grad_norm": "900*40 1800*40 3600*40", "loss_scale": "1024*40 2048*40 4096*40"}
    settings = {"max_grad_norm": 1.0}
    bounds = {"least": 10.0, "tolerance": 0.3, "points": 20}
    assert ask("clipped_before_unscaling", bounds, series=series, settings=settings)
    answer = ask("clipped_before_unscaling", bounds, series=series, settings=settings, reader="deepspeed-config")
    assert isinstance(answer, Missing)
