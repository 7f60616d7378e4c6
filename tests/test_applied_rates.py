"""What Adam applied between two checkpoints one step apart, against the truth of real optimizers."""

import pytest
import torch
from torch import nn

from gradforensics import applied_rates
from gradforensics.evidence.gather import gather


def train(folder, optimizer_of, *, dtype=torch.float32, saved_as=None, steps=40, after=lambda _model, _optimizer: None):
    """Train a small model, save after the last two steps, and give the evidence.

    after: called with model and optimizer after every step of the optimizer.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(64, 24), nn.LayerNorm(24), nn.Linear(24, 48), nn.GELU(), nn.Linear(48, 64))
    model.to(dtype)
    optimizer = optimizer_of(model)
    for step in range(1, steps + 1):
        tokens = torch.randint(64, (64,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(tokens).float(), (7 * tokens + 3) % 64).backward()
        optimizer.step()
        after(model, optimizer)
        if step >= steps - 1:
            weights = {name: value.to(saved_as or dtype) for name, value in model.state_dict().items()}
            state = {"model": weights, "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, folder / f"step_{step}.pt")
    (evidence,) = gather([folder])
    return evidence


def two_groups(lr, decay=0.1, kind=torch.optim.AdamW):
    """An optimizer with matrices in a group that decays, and another rate for the rest, which does not."""

    def make(model):
        parameters = list(model.parameters())
        groups = [
            {"params": [p for p in parameters if p.ndim > 1], "weight_decay": decay},
            {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0, "lr": 2 * lr},
        ]
        return kind(groups, lr=lr)

    return make


def told(evidence):
    (found,) = applied_rates.told(evidence)
    return found


@pytest.mark.parametrize("lr", [1e-3, 1e-4, 1e-5, 1e-6])
def test_rate_and_decay_of_every_group_are_recovered_from_float32(tmp_path, lr):
    decayed, other = told(train(tmp_path, two_groups(lr))).rates
    assert decayed.lr == pytest.approx(lr, rel=1e-3)
    assert other.lr == pytest.approx(2 * lr, rel=1e-3)
    assert abs(decayed.lr - lr) <= decayed.lr_error <= 0.01 * lr
    if decayed.wd is not None:
        assert decayed.wd == pytest.approx(0.1, rel=0.02)
        assert abs(decayed.wd - 0.1) <= decayed.wd_error
    if other.wd is not None:
        assert abs(other.wd) <= other.wd_error
    assert (decayed.wd is None) == (lr < 1e-5)  # a single step at less shows no decay in float32


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize("more", [{"amsgrad": True}, {"foreach": True}, {"fused": True}, {"betas": (0.8, 0.95)}])
def test_variants_of_adam_follow_the_same_formula(tmp_path, kind, more):
    evidence = train(tmp_path, lambda model: kind(model.parameters(), lr=1e-3, weight_decay=0.05, **more))
    (rate,) = told(evidence).rates
    assert rate.lr == pytest.approx(1e-3, rel=1e-4)
    # Adam adds the decay to the gradient: none of it reaches the weights by itself
    assert rate.wd == pytest.approx(0.05 if kind is torch.optim.AdamW else 0.0, abs=1e-3)


@pytest.mark.parametrize("lr", [1e-2, 1e-3, 1e-4, 1e-5, 1e-6])
@pytest.mark.parametrize("dtypes", [(torch.bfloat16, None), (torch.float32, torch.bfloat16)])
def test_weights_in_bfloat16_tell_nothing_and_say_so(tmp_path, lr, dtypes):
    dtype, saved_as = dtypes
    found = told(train(tmp_path, two_groups(lr), dtype=dtype, saved_as=saved_as, steps=20))
    assert found.rates == ()
    assert found.why == ("weights in float32: rounding to a shorter type hides a single step",)


def test_bfloat16_weights_that_are_stored_wider_tell_no_rate_that_was_not_applied(tmp_path):
    found = told(train(tmp_path, two_groups(1e-3), dtype=torch.bfloat16, saved_as=torch.float32))
    assert found.rates == ()
    assert found.why == ("weights that moved as their Adam states say",)


def clamped(model, _optimizer):
    for parameter in model.parameters():
        parameter.data.clamp_(-0.05, 0.05)


def test_weights_that_something_else_writes_tell_nothing(tmp_path):
    found = told(train(tmp_path, two_groups(1e-3), after=clamped))
    assert found.rates == ()
    assert found.why == ("weights that moved as their Adam states say",)


class PerTensor(torch.optim.AdamW):
    """Scales the update of every tensor by a factor of its own, as trust ratios and update clipping do."""

    def step(self, closure=None):
        parameters = [p for group in self.param_groups for p in group["params"]]
        before = [p.detach().clone() for p in parameters]
        super().step(closure)
        for number, (parameter, old) in enumerate(zip(parameters, before, strict=True), 1):
            parameter.data.copy_(old + (parameter.data - old) / number)


def test_tensors_of_a_group_that_disagree_tell_no_rate(tmp_path):
    found = told(train(tmp_path, lambda model: PerTensor(model.parameters(), lr=1e-3)))
    assert found.rates == ()
    assert found.why == ("one rate for all parameters of a group (here they moved at several)",)


@pytest.mark.parametrize("kind", [torch.optim.RAdam, torch.optim.NAdam, torch.optim.Adamax, torch.optim.SGD])
def test_other_optimizers_are_left_alone(tmp_path, kind):
    evidence = train(tmp_path, lambda model: kind(model.parameters(), lr=1e-3), steps=5)
    assert all(found.rates == () for found in applied_rates.told(evidence))
    assert applied_rates.lacking(evidence)


def test_checkpoints_further_apart_tell_nothing(tmp_path):
    evidence = train(tmp_path, two_groups(1e-3))
    (tmp_path / "step_39.pt").unlink()
    assert applied_rates.told(evidence) != []
    (alone,) = gather([tmp_path])
    assert applied_rates.told(alone) == []
    assert applied_rates.lacking(alone) == [applied_rates.PAIR]
