"""Gradients from two checkpoints one update apart, against those that real training really had."""

import math
from pathlib import Path

import pytest
import torch
from torch import nn

from gradforensics import checkpoint_signals
from gradforensics.diagnosis.checks import recovered_gradient as checks
from gradforensics.diagnosis.vocabulary import Missing
from gradforensics.evidence.gather import gather
from gradforensics.tables import SeriesFrame, SeriesKey, Setting, series_frame

STEPS = 4


def hit_of(answer):
    """The one hit of an answer."""
    assert isinstance(answer, list)
    (hit,) = answer
    return hit


def trained(folder: Path, make, *, clip=None, after=None, dtype=torch.float32):
    """Train, save after the last two updates; the true gradients of the last update as the optimizer got them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).to(dtype)
    optimizer = make(model.parameters())
    norm, gradients = 0.0, dict[str, torch.Tensor]()
    for step in range(1, STEPS + 1):
        optimizer.zero_grad()
        model(torch.randn(32, 8, dtype=dtype)).square().mean().backward()
        norm = float(nn.utils.clip_grad_norm_(model.parameters(), clip or math.inf))
        gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
        assert len(gradients) == 4
        for gradient in gradients.values():
            gradient.mul_(1.0 if after is None else after)
        gradients = {name: gradient.clone() for name, gradient in gradients.items()}
        optimizer.step()
        if step >= STEPS - 1:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, folder / f"checkpoint-{step}.pt")
    (evidence,) = gather([folder])
    return evidence, gradients, norm


def logged(evidence, norm, step=STEPS, **settings):
    """Add a logged gradient norm and settings."""
    evidence.frames[SeriesKey("run", "train", "grad_norm", "grad_norm", "log")] = SeriesFrame(
        series_frame({"step": [step]}, [norm])
    )
    evidence.settings = [Setting(key, key, value, "config") for key, value in settings.items()]
    return evidence


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)


@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("make", [adamw, lambda p: torch.optim.Adam(p, lr=1e-3), torch.optim.AdamW])
def test_recovered_gradients_are_the_true_ones_and_rms_t_is_the_direct_computation(tmp_path, make, clip):
    evidence, gradients, norm = trained(tmp_path, make, clip=clip)
    (pair,) = checkpoint_signals.pairs(evidence) or []
    state = torch.load(tmp_path / f"checkpoint-{STEPS}.pt")["optimizer"]
    beta2 = state["param_groups"][0]["betas"][1]
    for index, (name, gradient) in enumerate(gradients.items()):
        row = pair.rows[name]
        assert row["grad_l2"] == pytest.approx(float(gradient.double().norm()), rel=1e-5)
        expected = state["state"][index]["exp_avg_sq"].double() / (1 - beta2**STEPS)
        direct = float((gradient.double().square() / expected.clamp(min=1e-16)).mean().sqrt())
        assert row["rms_t"] == pytest.approx(direct, rel=1e-4)
    found = hit_of(checks._recovered(evidence))
    assert found.complete
    assert found.norm == pytest.approx(min(norm, clip or math.inf), rel=1e-5)


def test_a_gradient_that_is_the_logged_one_cut_to_max_norm_is_no_finding(tmp_path):
    evidence, _, norm = trained(tmp_path, adamw, clip=0.05)
    logged(evidence, norm, max_grad_norm=0.05, gradient_accumulation_steps=4)
    assert checks.gradient_rescaled_after_norm(evidence, exact=1e-3) == []
    assert checks.clip_not_applied(evidence, margin=0.01) == []


def test_a_log_that_counts_from_0_agrees_too(tmp_path):
    evidence, _, norm = trained(tmp_path, adamw)
    logged(evidence, norm, step=STEPS - 1, max_grad_norm=100.0)
    assert checks.gradient_rescaled_after_norm(evidence, exact=1e-3) == []


@pytest.mark.parametrize(
    ("after", "of"), [(0.25, "1 / gradient_accumulation_steps"), (4.0, "gradient_accumulation_steps")]
)
def test_a_division_or_a_multiplication_after_the_norm_was_taken_is_named(tmp_path, after, of):
    evidence, _, norm = trained(tmp_path, adamw, clip=0.05, after=after)
    logged(evidence, norm, max_grad_norm=0.05, gradient_accumulation_steps=4)
    hit = hit_of(checks.gradient_rescaled_after_norm(evidence, exact=1e-3))
    assert (hit.step, hit.after, hit.facts["of"]) == (STEPS, STEPS - 1, of)
    assert hit.facts["ratio"] == pytest.approx(after, rel=1e-4)


def test_a_mismatch_of_another_size_is_not_judged_and_says_both_norms(tmp_path):
    evidence, _, norm = trained(tmp_path, adamw, clip=0.05)
    answer = checks.gradient_rescaled_after_norm(
        logged(evidence, norm * 0.1, max_grad_norm=0.05, gradient_accumulation_steps=4), exact=1e-3
    )
    assert isinstance(answer, Missing)
    assert "the checkpoints hold 0.05" in answer.what[0]


def test_clipping_that_does_not_act_is_proven_by_one_group_alone(tmp_path):
    evidence, _, norm = trained(tmp_path, adamw)
    hit = hit_of(checks.clip_not_applied(logged(evidence, norm, max_grad_norm=norm / 3), margin=0.01))
    assert hit.facts["times"] == pytest.approx(3.0, rel=1e-3)
    assert checks.clip_not_applied(logged(evidence, norm, max_grad_norm=0.0), margin=0.01) == []


def test_a_scale_of_the_log_by_which_the_clipped_norm_is_divided_is_clipping_before_unscaling(tmp_path):
    evidence, _, norm = trained(tmp_path, adamw, clip=0.05, after=1 / 1024)
    logged(evidence, norm, max_grad_norm=0.05)
    evidence.frames[SeriesKey("run", "train", "loss_scale", "scale", "log")] = SeriesFrame(
        series_frame({"step": [STEPS]}, [1024.0])
    )
    hit = hit_of(checks.recovered_gradient_clipped_while_scaled(evidence, exact=1e-3))
    assert hit.facts["scale"] == 1024.0
    assert hit.facts["clip"] == 0.05


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.Adam(p, lr=1e-3, weight_decay=0.1),  # the decay is within the gradient
        lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9),
    ],
)
def test_other_optimizers_are_not_judged(tmp_path, make):
    evidence, _, norm = trained(tmp_path, make)
    answer = checks.clip_not_applied(logged(evidence, norm, max_grad_norm=1e-6), margin=0.01)
    assert isinstance(answer, Missing)


def test_states_in_bfloat16_are_not_judged(tmp_path):
    evidence, _, norm = trained(tmp_path, adamw, dtype=torch.bfloat16)
    assert isinstance(checks.clip_not_applied(logged(evidence, norm, max_grad_norm=1e-6), margin=0.01), Missing)


def test_a_first_moment_that_is_no_number_leaves_nothing_to_recover(tmp_path):
    trained(tmp_path, adamw)
    for path in tmp_path.iterdir():
        saved = torch.load(path)
        saved["optimizer"]["state"][0]["exp_avg"][0, 0] = math.nan
        torch.save(saved, path)
    (evidence,) = gather([tmp_path])
    assert isinstance(checks._recovered(evidence), Missing)


def test_clipping_by_value_has_no_norm(tmp_path):
    evidence, _, norm = trained(tmp_path, adamw)
    logged(evidence, norm, max_grad_norm=1e-6, gradient_clip_algorithm="value")
    assert isinstance(checks.clip_not_applied(evidence, margin=0.01), Missing)
