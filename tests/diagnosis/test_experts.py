"""Experts without tokens, by Adam's moments alone, against what really happened to them."""

import pytest
import torch

from gradforensics.diagnosis.checks.experts import (
    expert_gradients_uneven,
    experts_without_gradient,
    experts_without_state,
)
from gradforensics.diagnosis.vocabulary import Missing
from gradforensics.evidence.gather import gather

STEPS = 260


class Layers(torch.nn.Module):
    def __init__(self, experts, shared=False):
        super().__init__()
        self.experts = torch.nn.ModuleList(torch.nn.Linear(8, 16) for _ in range(experts))
        if shared:
            self.shared_experts = torch.nn.ModuleList([torch.nn.Linear(8, 16), torch.nn.Linear(8, 16)])


def run(folder, gradient, *, experts=4, betas=(0.9, 0.999), kind=torch.optim.AdamW, shared=False):
    """Give expert e at step t random gradients times gradient(e, t), or none where that is None; save at the end."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Layers(experts, shared)
    optimizer = kind(model.parameters(), lr=1e-3, **({"betas": betas} if kind is not torch.optim.SGD else {}))
    for step in range(1, STEPS + 1):
        for number, expert in enumerate(model.experts):
            size = gradient(number, step)
            for parameter in expert.parameters():
                parameter.grad = None if size is None else size * torch.randn_like(parameter)
        optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": STEPS}
    torch.save(state, folder / f"checkpoint-{STEPS}.pt")
    (evidence,) = gather([folder])
    return evidence


def hits_of(answer):
    assert isinstance(answer, list), answer
    return answer


def found(evidence, *, steps=100, rounds=10):
    return hits_of(experts_without_gradient(evidence, steps=steps, rounds=rounds))


@pytest.mark.parametrize(("betas", "idle"), [((0.9, 0.999), 120), ((0.9, 0.95), 200), ((0.8, 0.99), 150)])
def test_the_steps_without_a_gradient_are_recovered(tmp_path, betas, idle):
    (hit,) = found(run(tmp_path, lambda e, t: 0.0 if e == 2 and t > STEPS - idle else 1.0, betas=betas))
    assert (hit.facts["expert"], hit.facts["dead"], hit.facts["experts"], hit.step) == (2, 1, 4, STEPS)
    assert abs(int(hit.facts["idle"]) - idle) <= 5


def test_experts_that_never_had_a_gradient_are_dead_from_the_start(tmp_path):
    (hit,) = found(run(tmp_path, lambda e, _t: 1.0 if e == 0 else 0.0))
    assert (hit.facts["dead"], hit.facts["idle"]) == (3, STEPS)


@pytest.mark.parametrize(
    "gradient",
    [
        lambda e, t: 1.0 if t % (1 + 9 * e) == 0 else 0.0,  # rare tokens, up to one in 28 steps
        lambda e, t: 1.0 if t % (1 + 9 * e) == 0 else None,  # the same where an expert without tokens is left out
        lambda e, _t: 1e-4**e,
        lambda e, t: 100.0 if (e, t) == (1, 50) else 1.0,  # a spike long ago stays in v
        lambda _e, t: 1.0 if t <= STEPS - 60 else 0.0,
    ],
    ids=["rare", "left out", "small", "spike", "all stopped at once"],
)
def test_experts_that_have_gradients_are_alive(tmp_path, gradient):
    assert found(run(tmp_path, gradient)) == []


def test_many_experts_must_wait_longer(tmp_path):
    evidence = run(tmp_path, lambda e, _t: float(e > 0), experts=4)
    assert isinstance(experts_without_gradient(evidence, steps=100, rounds=200), Missing)


def test_a_layer_without_any_gradient_is_another_case(tmp_path):
    assert isinstance(experts_without_gradient(run(tmp_path, lambda _e, _t: 0.0), steps=100, rounds=10), Missing)


def test_shared_experts_are_no_experts_of_the_mixture(tmp_path):
    evidence = run(tmp_path, lambda _e, _t: 1.0, shared=True)  # the shared ones have no gradient here
    assert found(evidence) == []
    assert experts_without_state(evidence, steps=100, share=0.8) == []


def test_experts_without_a_state(tmp_path):
    evidence = run(tmp_path, lambda e, _t: 1.0 if e < 2 else None)
    (hit,) = hits_of(experts_without_state(evidence, steps=100, share=0.8))
    assert (hit.facts["dead"], hit.facts["expert"]) == (2, 2)
    assert experts_without_state(evidence, steps=100, share=0.4) == []
    assert found(evidence) == []


def test_uneven_gradients(tmp_path):
    evidence = run(tmp_path, lambda e, _t: 0.01 if e == 3 else 1.0)
    (hit,) = hits_of(expert_gradients_uneven(evidence, ratio=30, steps=100))
    assert hit.facts["expert"] == 3
    assert 90 < float(hit.facts["ratio"]) < 110
    assert expert_gradients_uneven(evidence, ratio=300, steps=100) == []


def test_other_optimizers_are_not_judged(tmp_path):
    assert isinstance(found_or_missing(run(tmp_path, lambda e, _t: float(e > 0), kind=torch.optim.SGD)), Missing)


def found_or_missing(evidence):
    return experts_without_gradient(evidence, steps=100, rounds=10)


def test_experts_in_one_tensor_are_not_judged(tmp_path):
    weight = torch.nn.Parameter(torch.randn(4, 8, 16))
    optimizer = torch.optim.AdamW([("mlp.experts.gate_up_proj", weight)], lr=1e-3)
    weight.grad = torch.zeros_like(weight)
    optimizer.step()
    state = {"model": {"mlp.experts.gate_up_proj": weight.detach()}, "optimizer": optimizer.state_dict(), "step": 500}
    torch.save(state, tmp_path / "checkpoint-500.pt")
    (evidence,) = gather([tmp_path])
    assert found_or_missing(evidence) == Missing("the experts of a layer are one tensor: no statistics of each")
