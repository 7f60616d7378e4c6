"""Schedules that run too fast, start anew or never start, and resumes that lose a part of the state.

The lines are modelled on the reports that each test names (numbers as reported, repeated to a plausible length).
"""

import json
import math
import random

import pytest


def json_lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def falling(step, of, start=4.0, end=3.0):
    """A loss that falls, with noise of 1 %."""
    return end + (start - end) * math.exp(-5 * step / of) + 0.01 * random.Random(step).gauss()


def test_one_line_of_zeros_while_the_scale_is_searched(judged):
    """transformers pull 10362: a rate of 0 and "returning lr=0" while DeepSpeed halves the scale from 2^32."""
    lines = []
    for i in range(1, 31):
        lines.append("[WARNING] tried to get lr value before scheduler/optimizer started stepping, returning lr=0")
        lines.append(str({"loss": 11.0 - 0.0002 * i, "learning_rate": 0, "epoch": round(0.01 * i, 2)}))
    diagnosis, verdicts = judged("\n".join(lines))
    assert diagnosis.alarms == []
    assert verdicts["GF06"].outcome != "fired"


@pytest.mark.parametrize(("fp16", "fires"), [(True, False), (False, True)])
def test_the_order_of_steps_under_a_loss_scaler(judged, fp16, fires):
    """pytorch issue 44511: the warning comes although the order is right, because the scaler skipped the first step."""
    warning = (
        "lr_scheduler.py:136: UserWarning: Detected call of `lr_scheduler.step()` before `optimizer.step()`. "
        "In PyTorch 1.1.0 and later, you should call them in the opposite order"
    )
    lines = [f"step: {i} loss: {falling(i, 200):.4f} lr: {3e-4 * (1 - i / 200):.6g}" for i in range(1, 200)]
    lines.insert(1, warning)
    diagnosis, verdicts = judged("\n".join(lines), fp16=fp16)
    assert diagnosis.alarms == []
    assert (verdicts["GF07"].variant == "order") == fires


def test_a_rate_at_its_end_after_a_quarter_of_the_steps(judged):
    """LTX-Video-Trainer issue 67: 10000 steps, 4 processes, the rate at its final value at about 2500."""
    rows = [
        {"step": s, "loss": falling(s, 10000, 0.6, 0.3), "lr": max(0.0, 1e-4 * (1 - 4 * s / 10000))}
        for s in range(20, 10001, 20)
    ]
    text = {"metrics.jsonl": json_lines(rows)}
    settings = {"max_steps": 10000, "num_processes": 4, "learning_rate": 1e-4, "lr_scheduler_type": "linear"}
    diagnosis, verdicts = judged(text, **settings)
    assert diagnosis.primary.rule.id == "GF07"
    assert verdicts["GF07"].variant == "per-process"


def test_a_cosine_that_goes_through_several_cycles(judged):
    """diffusers issue 3954: 4 GPUs, so that the cosine ends early and rises again."""
    rows = [
        {"step": s, "loss": falling(s, 800), "lr": 1e-4 * 0.5 * (1 + math.cos(math.pi * 4 * s / 800))}
        for s in range(1, 801, 2)
    ]
    settings = {"max_steps": 800, "world_size": 4, "learning_rate": 1e-4, "lr_scheduler_type": "cosine"}
    _, verdicts = judged(json_lines(rows), "metrics.jsonl", **settings)
    assert (verdicts["GF07"].variant, verdicts["GF07"].strength) == ("per-process", "proven")


def test_a_scheduler_that_counts_micro_batches(judged):
    """accelerate issue 963: 1000 batches, 4 of which make a step: 250 updates under a schedule for 250 (4 per step)."""
    rows = [{"step": s, "loss": falling(s, 250), "lr": max(0.0, 5e-5 * (1 - 4 * s / 250))} for s in range(1, 251)]
    settings = {
        "max_steps": 250, "gradient_accumulation_steps": 4, "learning_rate": 5e-5, "lr_scheduler_type": "linear"
    }  # fmt: skip
    diagnosis, verdicts = judged(json_lines(rows), "metrics.jsonl", **settings)
    assert diagnosis.primary.rule.id == "GF07"
    assert verdicts["GF07"].variant == "per-micro-batch"


def restarted_rows(peak, warmup, total, at):
    def rate(step):
        return peak * step / warmup if step < warmup else peak * 0.5 * (1 + math.cos(math.pi * step / total))

    return [
        {"step": s, "loss": falling(s, total), "lr": rate(s if s <= at else s - at)} for s in range(10, total + 1, 10)
    ]


def test_a_schedule_that_restarts_at_a_resume(judged):
    """IDEFICS-80B chronicles, the_well pull 63, lightly-train pull 301: the warm-up begins again, nothing says so."""
    diagnosis, verdicts = judged(json_lines(restarted_rows(1.875e-5, 200, 4000, 1050)), "metrics.jsonl")
    assert diagnosis.primary.rule.id == "GF07"
    assert verdicts["GF07"].variant == "restarted"
    assert verdicts["GF07"].onset == 1060
    assert (verdicts["GF29"].variant, verdicts["GF29"].alarm) == ("schedule", False)


def test_a_loss_scaler_that_was_not_restored_is_a_remark(judged):
    """ultralytics pull 22189: the checkpoint lacked the scaler; the scale is searched again after the resume."""
    rows = []
    for s in range(1, 601):
        since = s if s <= 300 else s - 300
        rows.append({"step": s, "loss": falling(s, 600), "loss_scale": 65536.0 / 2 ** min(since - 1, 6), "lr": 1e-4})
        rows[-1]["elapsed"] = float(since)
    _, verdicts = judged(json_lines(rows), "metrics.jsonl")
    found = verdicts["GF29"]
    assert (found.variant, found.severity, found.onset, found.alarm) == ("scaler", "S3", 301, False)


def test_a_small_spike_at_every_resume_is_no_alarm(judged):
    """IDEFICS-80B chronicles: a small rise after each resume came from the order of the data, the state was whole."""
    rows = []
    for s in range(1, 601):
        bump = 0.05 if s % 200 < 5 and s > 100 else 0.0
        rows.append({"step": s, "loss": falling(s, 600) + bump, "lr": 1e-4, "elapsed": float(s % 200)})
    diagnosis, _ = judged(json_lines(rows), "metrics.jsonl")
    assert diagnosis.alarms == []


def test_a_loss_that_rises_where_only_weights_were_loaded_is_a_suspicion(judged):
    """Mask_RCNN issue 1726: the loss jumps up at the restart, whose checkpoint holds weights only."""
    rows = []
    for s in range(1, 401):
        bump = 0.6 * math.exp(-(s - 200) / 25) if s > 200 else 0.0
        rows.append({"step": s, "loss": falling(s, 400, 2.0, 1.2) + bump, "elapsed": float(s if s <= 200 else s - 200)})
    diagnosis, verdicts = judged(json_lines(rows), "metrics.jsonl")
    assert diagnosis.alarms == []
    assert (verdicts["GF29"].variant, verdicts["GF29"].onset) == ("loss-jump", 201)


def test_seen_data_after_a_resume_lose_no_state(judged):
    """ml-engineering, "impacts of repeat data": the loss drops at the resume and steps up later."""
    rows = []
    for s in range(1, 601):
        seen = -0.2 if 300 < s <= 450 else 0.0
        rows.append({"step": s, "loss": falling(s, 600) + seen, "lr": 1e-4, "elapsed": float(s % 300)})
    diagnosis, verdicts = judged(json_lines(rows), "metrics.jsonl")
    assert verdicts["GF29"].outcome == "clear"
    assert [v.rule.id for v in diagnosis.alarms if v.rule.id in ("GF05", "GF29")] == []


def test_a_policy_that_hardly_moves_is_no_dead_learning_rate(judged):
    """GRPO and DPO run at rates near 1e-6; a loss that stands still there is no alarm."""
    rows = [
        {"loss": 0.0001 * math.sin(i), "learning_rate": 1e-6, "reward": 1.0 + i / 100, "kl": 0.001, "epoch": i / 100}
        for i in range(1, 101)
    ]
    diagnosis, _ = judged("\n".join(map(str, rows)) + "\n")
    assert [v.rule.id for v in diagnosis.alarms if v.rule.id == "GF06"] == []


@pytest.mark.parametrize(
    "rate",
    [
        lambda s: 0.1 * 0.1 ** (s // 100),
        lambda s: 1e-3 * (0.5 if 140 < s < 260 else 0.25 if s >= 260 else 1.0),
        lambda s: 1e-3 * 0.5 * (1 + math.cos(math.pi * (s % 100) / 100)),
        lambda s: 1e-3 * (0.1 + 0.9 * abs((s % 80) / 40 - 1)),
        lambda s: 1e-3 * min(s / 90, max(0.0, (300 - s) / 210)),
        lambda s: 1e-3 / math.sqrt(max(s, 10) / 10),
    ],
    ids=["steps", "plateau", "warm restarts", "triangle", "one cycle", "inverse root"],
)
def test_undeclared_schedules_that_are_meant_so(judged, rate):
    rows = [{"step": s, "loss": falling(s, 300), "grad_norm": 1.0, "lr": rate(s)} for s in range(1, 301)]
    diagnosis, verdicts = judged(json_lines(rows), "metrics.jsonl")
    assert [v.rule.id for v in diagnosis.verdicts if v.outcome == "fired"] == []
    assert verdicts["GF06"].outcome == "clear"
