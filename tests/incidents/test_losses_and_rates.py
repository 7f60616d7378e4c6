"""The patterns of public incidents, as the logs showed them: each must be named, or kept quiet about.

The lines are modelled on the reports that each test names (numbers as reported, repeated to a plausible length).
"""

import json

import pytest


def dict_lines(rows):
    return "\n".join(str(row) for row in rows) + "\n"


def test_loss_zero_beside_a_nan_gradient(judged):
    """transformers issue 31997, Qwen-VL-Series-Finetune issue 10: step 1 finite, then 0.0, grad_norm nan throughout."""
    rows = [{"loss": 2.3101, "grad_norm": float("nan"), "learning_rate": 4.0e-06, "epoch": 0.03}]
    rows += [
        {"loss": 0.0, "grad_norm": float("nan"), "learning_rate": 4e-6 * i, "epoch": 0.03 * i} for i in range(2, 12)
    ]
    diagnosis, verdicts = judged(dict_lines(rows))
    assert diagnosis.primary.rule.id == "GF11"
    assert verdicts["GF35"].alarm


def test_healthy_until_a_sixth_of_the_epoch_then_nan(judged):
    """LlamaFactory issue 4850: loss about 1.6, grad_norm 6.7 to 9.9, then nan and 0."""
    rows = [
        {"loss": 1.62 + 0.03 * (i % 3), "grad_norm": 9.3 - (i % 4), "learning_rate": 4.9e-06, "epoch": 0.005 * i}
        for i in range(1, 33)
    ]
    rows += [{"loss": 0.0, "grad_norm": float("nan"), "learning_rate": 4.9e-06, "epoch": 0.16} for _ in range(10)]
    diagnosis, verdicts = judged(dict_lines(rows))
    assert diagnosis.primary.rule.id == "GF11"
    assert verdicts["GF11"].onset == verdicts["GF35"].onset == 33
    assert verdicts["GF05"].outcome != "fired"


def test_zero_loss_of_a_policy_is_no_fault(judged):
    """trl issue 3857 and every GRPO run: loss 0.0 and grad_norm 0.0 while all rewards of a group are equal."""
    rows = [
        {"loss": 0.0, "grad_norm": 0.0, "learning_rate": 1.7e-06, "reward": 3.0, "reward_std": 0.0, "epoch": 0.01 * i}
        for i in range(1, 40)
    ]
    diagnosis, _ = judged(dict_lines(rows))
    assert diagnosis.alarms == []


def test_a_zero_rate_while_every_step_overflows_is_no_dead_learning_rate(judged):
    """transformers pull 10362: lr 0 and OVERFLOW lines from 2^32 downwards for the first dozens of steps."""
    lines = []
    for i in range(1, 25):
        scale = 2 ** (33 - i)
        lines.append(
            f"[deepscale] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: {scale}.0, reducing to {scale / 2}"
        )
        lines.append(str({"loss": 11.0, "learning_rate": 0, "epoch": 0.01 * i}))
    _, verdicts = judged("\n".join(lines))
    assert verdicts["GF06"].outcome == "clear"
    assert [a.case for a in verdicts["GF06"].refuted_by] == ["GF12"]


def test_six_skipped_steps_at_the_start_are_a_search(judged):
    """DeepSpeed issue 931: 65536 down to 1024 in the first steps, two more around step 500; training is fine."""
    rows, scale = [], 65536
    for i in range(1, 601):
        if i <= 6 or i in (500, 505):
            was = scale if i <= 6 else 2048
            rows.append(f"OVERFLOW! Rank 0 Skipping step. Attempted loss scale: {was}, reducing to {was // 2}")
            scale = was // 2
        rows.append(json.dumps({"step": i, "loss": 4.0 - i / 600, "lr": 1e-4}).replace("{", "").replace("}", ""))
    diagnosis, _ = judged("\n".join(rows).replace('"', ""))
    assert diagnosis.alarms == []


def test_a_lora_whose_loss_leaves_at_the_peak_rate(judged):
    """LLaVA issue 918: about 0.8, then 6.2 to 6.7 and flat, learning rate 1.76e-4 of a peak of 2e-4."""
    rows = []
    for i in range(1, 201):
        loss = 0.8 + 0.05 * ((i * 7) % 5 - 2) if i <= 50 else 6.2 + 0.25 * ((i * 3) % 3 - 1)
        rows.append({"step": 50 * i, "loss": loss, "learning_rate": 2e-4 * (1 - i / 400), "epoch": i / 200})
    diagnosis, verdicts = judged(json.dumps({"log_history": rows, "global_step": 10000}), "trainer_state.json")
    assert diagnosis.primary.rule.id == "GF05"
    assert verdicts["GF05"].variant == "diverged"
    assert 2500 <= verdicts["GF05"].onset <= 2600


@pytest.mark.parametrize("spelling", ["nan", "NaN", "Infinity", "-inf", '"nan"', "null"])
def test_a_loss_that_is_gone(judged, spelling):
    """NaN and infinity in every spelling are non-finite; null is no value."""
    lines = [f'{{"step": {i}, "loss": {3 - i / 100 if i < 60 else spelling}}}' for i in range(1, 101)]
    diagnosis, _ = judged("\n".join(lines), "log.jsonl")
    assert (diagnosis.primary is not None) == (spelling != "null")


def test_a_zero_that_a_console_rounds_is_no_zero(judged):
    """ "%.4f" prints a learning rate of 2e-5 as 0.0000."""
    lines = [f"step {i} loss {3 - i / 100:.4f} lr {0:.4f}" for i in range(1, 101)]
    _, verdicts = judged("\n".join(lines))
    assert verdicts["GF06"].outcome != "fired"
