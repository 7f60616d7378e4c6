"""Adam's eps beside its second moments, in checkpoints of real trainings."""

import pytest
import torch
from torch import nn

from gradforensics import checkpoint_signals
from gradforensics.diagnosis.checks.eps_dominance import eps_dominates
from gradforensics.diagnosis.vocabulary import Missing
from gradforensics.evidence.gather import gather

LIMITS = {"share": 0.5, "weak": 0.02, "most": 0.5, "noise": 0.229, "steps": 20, "low": 0.0, "high": 1.0}


def trained(folder, *, eps=1e-8, factor=1.0, optimizer=torch.optim.AdamW, frozen=False, steps=60):
    """Fit a small net to noise and save it; factor: of the loss; frozen: a second branch never gets a gradient."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"one": nn.Linear(16, 32), "two": nn.Linear(32, 1), "idle": nn.Linear(64, 64)})
    made = optimizer(model.parameters(), lr=1e-3, eps=eps)
    for _ in range(steps):
        made.zero_grad()
        inputs = torch.randn(32, 16)
        loss = (
            (model.get_submodule("two")(model.get_submodule("one")(inputs).tanh()) - torch.randn(32, 1)).square().mean()
        )
        if frozen:
            loss = loss + 0.0 * model.get_parameter("idle.weight").sum()
        (factor * loss).backward()
        made.step()
    state = {"model": model.state_dict(), "optimizer": made.state_dict(), "step": steps}
    torch.save(state, folder / f"step_{steps}.pt")
    (found,) = gather([folder])
    return found


@pytest.mark.parametrize(
    ("eps", "factor", "dominates"),
    [
        (1e-8, 1.0, False),
        (1e-3, 1.0, False),  # below 10 eps for most elements, and the updates hardly suffer
        (10.0, 1.0, True),
        (1e-8, 1e-9, True),  # gradients below the default
        (1e-15, 1e-9, False),  # the remedy
    ],
)
def test_eps_dominates_where_it_is_large_or_the_gradients_are_tiny(tmp_path, eps, factor, dominates):
    hits = eps_dominates(trained(tmp_path, eps=eps, factor=factor), **LIMITS | {"high": 100.0})
    assert isinstance(hits, list)
    assert [hit.step for hit in hits] == [60] * dominates
    if dominates:
        update = hits[0].facts["update"]
        assert isinstance(update, float)
        assert update < 0.02
        assert hits[0].facts["weak"] == hits[0].facts["matrices"] == 2


def test_second_moments_near_eps_alone_are_no_fault(tmp_path):
    evidence = trained(tmp_path, factor=3e-7)
    rows = (checkpoint_signals.moments(evidence) or {})["step_60.pt"]
    assert max(row["below_eps"] for row in rows if row["name"].endswith("weight")) > 0.5
    assert eps_dominates(evidence, **LIMITS) == []


def test_a_matrix_that_never_had_a_gradient_is_not_counted(tmp_path):
    assert eps_dominates(trained(tmp_path, frozen=True), **LIMITS) == []


def test_the_range_of_eps_chooses_the_sign(tmp_path):
    evidence = trained(tmp_path, eps=10.0)
    assert eps_dominates(evidence, **LIMITS | {"low": 10.0, "high": 20.0})
    assert eps_dominates(evidence, **LIMITS | {"low": 0.0, "high": 10.0}) == []


@pytest.mark.parametrize("optimizer", [torch.optim.NAdam, torch.optim.RAdam, torch.optim.Adamax])
def test_optimizers_with_other_formulas_are_not_judged(tmp_path, optimizer):
    assert isinstance(eps_dominates(trained(tmp_path, eps=1.0, optimizer=optimizer), **LIMITS), Missing)


def test_the_first_steps_are_not_judged(tmp_path):
    assert isinstance(eps_dominates(trained(tmp_path, eps=1.0, steps=5), **LIMITS), Missing)
