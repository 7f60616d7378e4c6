"""The patterns of public incidents about gradients, NaN and precision: named, or kept quiet about.

The lines are modelled on the reports that each test names (numbers as reported, repeated to a plausible length).
"""

import json
import math

import numpy as np
import pytest

NAN = float("nan")


def lines(rows):
    return "\n".join(str(row) for row in rows) + "\n"


def json_lines(rows):
    return "\n".join(json.dumps(row) for row in rows) + "\n"


def noisy(level, n, sd, seed=0):
    return level + np.random.default_rng(seed).normal(0, sd, n)


def test_loss_zero_beside_a_constant_norm_is_a_reduction_gone_wrong(judged):
    """DeepSpeed pull request 7371: ZeRO-2, loss 0 and grad_norm 1.414 from the third step on."""
    rows = [{"loss": 1.9127, "grad_norm": 3.1, "learning_rate": 1e-7, "epoch": 0.0}] * 2
    rows += [
        {"loss": 0.0, "grad_norm": 1.4142135623730951, "learning_rate": 1e-7 * i, "epoch": 0.01 * i}
        for i in range(3, 30)
    ]
    diagnosis, verdicts = judged(lines(rows))
    assert diagnosis.primary.rule.id == "GF35"
    assert (verdicts["GF35"].variant, verdicts["GF35"].onset) == ("constant-norm", 3)


def test_a_gradient_that_is_nan_in_the_first_step_under_overlap_comm(judged):
    """Qwen-VL-Series-Finetune issue 10: loss 1.0446 and grad_norm nan, then 0.0 and nan, at a rate of 1.5e-8."""
    rows = [{"loss": 1.0446, "grad_norm": NAN, "learning_rate": 1.4925373134328357e-08, "epoch": 0.0}]
    rows += [
        {"loss": 0.0, "grad_norm": NAN, "learning_rate": 1.4925373134328357e-08 * i, "epoch": 0.01 * i}
        for i in range(2, 20)
    ]
    zero = {"zero_optimization": {"stage": 2, "overlap_comm": True}, "bf16": {"enabled": True}}
    diagnosis, verdicts = judged({"train.log": lines(rows), "ds_config.json": json.dumps(zero)})
    assert diagnosis.primary.rule.id == "GF11"
    assert verdicts["GF11"].variant == "overlap-comm"
    assert verdicts["GF11"].onset == 1


def test_a_gradient_that_is_nan_in_the_first_step_has_nothing_to_do_with_the_rate(judged):
    """transformers issue 31997: Gemma 2 under flash attention."""
    rows = [{"loss": 2.3101, "grad_norm": NAN, "learning_rate": 4.0e-06, "epoch": 0.03}]
    rows += [{"loss": 0.0, "grad_norm": NAN, "learning_rate": 4e-6 * i, "epoch": 0.03 * i} for i in range(2, 12)]
    _, verdicts = judged(lines(rows))
    assert verdicts["GF11"].variant == "gradient-from-start"
    assert verdicts["GF05"].outcome != "fired"


def test_no_label_left_is_told_from_a_nan_gradient(judged):
    """trl issue 6668: loss 0.0 at every step while the forward loss is NaN, because every label is masked."""
    rows = [{"loss": 0.0, "grad_norm": 0.0, "learning_rate": 5e-5, "epoch": 0.125 * i} for i in range(1, 9)]
    diagnosis, verdicts = judged(lines(rows))
    assert diagnosis.primary is not None
    assert (verdicts["GF35"].outcome, verdicts["GF35"].variant) == ("fired", "no-labels")


def test_a_norm_of_zero_beside_a_loss_that_falls_is_an_artefact(judged):
    """finetrainers issue 63: DeepSpeed has cleared the gradients before the script reads their norm."""
    rows = [
        {"step": i, "loss": 0.9 * 0.99**i + 0.02 * math.sin(7 * i), "grad_norm": 0.0, "lr": 1e-4} for i in range(1, 200)
    ]
    diagnosis, verdicts = judged(json_lines(rows), "metrics.jsonl")
    assert diagnosis.alarms == []
    assert verdicts["GF35"].outcome == "clear"


def test_the_first_spike_of_bloom_is_a_note(judged):
    """BigScience chronicles, 2022-04-12: the norm leads by some iterations, the loss is back after 36."""
    norms = [0.242, 0.947, 2.39, 15.886, 145.119, 960.351, 353.201, 500.0, 650.246, *np.geomspace(300, 0.3, 26)]
    losses = [2.198845, 2.220424, 2.595213, 2.241558, 2.345279, 5.098124, 3.492029, 3.1, 2.804948]
    losses += list(np.geomspace(2.75, 2.23, 26))
    loss = [*noisy(2.2, 150, 0.015), *losses, *noisy(2.21, 150, 0.015, 1)]
    norm = [*noisy(0.25, 150, 0.01, 2), *norms, *noisy(0.26, 150, 0.01, 3)]
    rows = [
        f" iteration {31064 + i}/  115311 | consumed samples: {i * 2048} | elapsed time per iteration (s): 105.2 | "
        f"learning rate: 5.279E-05 | global batch size: 2048 | lm loss: {a:.6E} | grad norm: {b:.3f} |"
        for i, (a, b) in enumerate(zip(loss, norm, strict=True))
    ]
    diagnosis, verdicts = judged(lines(rows))
    assert diagnosis.alarms == []
    found = verdicts["GF08"]
    assert (found.outcome, found.variant, found.severity) == ("fired", "slow", "S3")
    assert found.facts["lead"] > 0
    assert 31214 <= found.onset <= 31217


@pytest.mark.parametrize("norms", [noisy(400, 300, 40), np.linspace(0.2, 2.5, 300)], ids=["summed", "growing"])
def test_large_and_growing_norms_are_healthy(judged, norms):
    """WeDetect issue 15 (300 to 500 throughout, summed losses), OLMo issue 596 (growth over the whole run)."""
    rows = [
        {"step": i + 1, "loss": float(a), "grad_norm": float(b), "lr": 1e-4}
        for i, (a, b) in enumerate(zip(12.5 + 6 * 0.99 ** np.arange(300) + noisy(0, 300, 0.2), norms, strict=True))
    ]
    diagnosis, verdicts = judged(json_lines(rows), "metrics.jsonl")
    assert diagnosis.alarms == []
    assert verdicts["GF08"].outcome == "clear"


def test_a_scale_that_ends_at_its_minimum(judged):
    """onnxruntime pull request 17685: loss 0 and rate 0 from the start, every step skipped, then the exception."""
    rows = []
    for i in range(17):
        scale = 2 ** (16 - i)
        rows.append(
            f"[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: {scale}, reducing to {scale / 2}"
        )
        rows.append(str({"loss": 0.0, "learning_rate": 0, "epoch": 0.0}))
    rows += [
        "Traceback (most recent call last):",
        '  File "/workspace/train.py", line 10, in <module>',
        "    engine.step()",
        "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.",
    ]
    diagnosis, verdicts = judged(lines(rows))
    assert diagnosis.primary.rule.id == "GF12"
    assert verdicts["GF12"].variant == "at-minimum"


def test_t5_in_fp16_is_named_by_its_model(judged):
    """text-to-text-transfer-transformer issue 539: infinite hidden states of T5 under fp16."""
    rows = [{"step": i, "loss": 3.1 if i < 3 else NAN, "lr": 1e-4} for i in range(1, 40)]
    config = {"fp16": True, "model_name_or_path": "google/t5-v1_1-large", "learning_rate": 1e-4}
    diagnosis, verdicts = judged({"metrics.jsonl": json_lines(rows), "config.json": json.dumps(config)})
    assert diagnosis.primary.rule.id == "GF12"
    assert verdicts["GF12"].variant == "bf16-model"
    assert ("GF12", "GF11") in diagnosis.chain


def test_an_eps_that_is_zero_in_fp16(judged):
    """glide-finetune issue 5: loss and gradients finite at step 0, parameters NaN at step 1."""
    rows = [{"step": i, "loss": 0.42 if i == 0 else NAN, "grad_norm": 0.9 if i == 0 else NAN} for i in range(40)]
    config = {"precision": "fp16-true", "optim": "adamw", "adam_epsilon": 1e-8}
    diagnosis, verdicts = judged({"metrics.jsonl": json_lines(rows), "config.json": json.dumps(config)})
    assert diagnosis.primary.rule.id == "GF13"
    assert verdicts["GF13"].variant == "eps-rounds-to-zero"


def test_bf16_weights_at_a_tiny_rate_are_a_remark(judged):
    """torchtune issue 2254: lr 6e-7 on bf16 parameters lags behind fp32."""
    rows = [{"step": i, "loss": float(v), "lr": 6e-7} for i, v in enumerate(noisy(1.1, 120, 0.05), 1)]
    config = "dtype: bf16\noptimizer:\n  _component_: torch.optim.AdamW\n  lr: 6e-7\n"
    diagnosis, verdicts = judged({"metrics.jsonl": json_lines(rows), "config.yaml": config})
    assert diagnosis.alarms == []
    assert (verdicts["GF13"].outcome, verdicts["GF13"].variant) == ("fired", "coarse-weights")
    assert verdicts["GF13"].strength == "suspect"


def test_losses_in_steps_of_bf16_are_no_spikes(judged):
    """m4 chronicles: losses in steps of 1/128, because they were logged in bf16."""
    rows = [
        {"step": i, "loss": round(float(v) * 128) / 128, "grad_norm": 0.5, "lr": 1e-4}
        for i, v in enumerate(noisy(1.7, 300, 0.02), 1)
    ]
    diagnosis, _ = judged(json_lines(rows), "metrics.jsonl")
    assert diagnosis.alarms == []


def test_a_resume_may_search_its_scale_again(judged):
    """ultralytics pull request 22189: the scaler's state was not in the checkpoint; a note, not a collapse."""
    first = [2.0**16 / 2**i for i in range(6)] + [2048.0] * 80
    rows = [{"step": i, "loss": 3.0 - i / 500, "loss_scale": s} for i, s in enumerate(first, 1)]
    rows += [{"step": i, "loss": 3.0 - i / 500, "loss_scale": s} for i, s in enumerate(first, 61)]
    diagnosis, verdicts = judged(json_lines(rows), "metrics.jsonl")
    assert diagnosis.alarms == []
    assert (verdicts["GF12"].variant, verdicts["GF12"].severity) == ("scaler-reset", "S3")
