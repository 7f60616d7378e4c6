"""Zero weights, dead units and adapters that never learn: real trainings with torch, healthy ones and faulty ones."""

import polars as pl
import pytest

from gradforensics.diagnosis.checks.dead import (
    adapter_without_effect,
    units_never_respond,
    zero_weights,
    zero_weights_without_gradient,
)
from gradforensics.diagnosis.vocabulary import Missing
from gradforensics.evidence.gather import gather


@pytest.fixture
def torch():
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)
    return torch


def network(torch, bias=0.0):
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 20)
    )
    torch.nn.init.uniform_(model[2].bias, bias, 0.1)
    return model


def run(folder, torch, model, *, steps=(15, 40), states=True, outputs=20):
    """Train on noise with AdamW and save in a plain loop. outputs: how many of them the loss reads."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    for step in range(1, max(steps) + 1):
        optimizer.zero_grad()
        (model(torch.randn(32, 8))[:, :outputs] - 1).square().mean().backward()
        optimizer.step()
        if step in steps:
            state = {"model": model.state_dict(), "step": step}
            if states:
                state["optimizer"] = optimizer.state_dict()
            torch.save(state, folder / f"step_{step}.pt")
    (found,) = gather([folder])
    return found


def blocked(evidence, least=2):
    return zero_weights_without_gradient(evidence, steps=10, least=least)


def seen(evidence, certainty):
    return zero_weights(evidence, certainty=certainty, steps=10, pruned=0.02)


def dead(evidence):
    return units_never_respond(evidence, steps=10, share=0.3, units=16)


def zeros(torch, *modules):
    for module in modules:
        torch.nn.init.zeros_(module.weight)
        torch.nn.init.zeros_(module.bias)


def test_two_zero_factors_in_a_row_are_proven_by_their_moments(tmp_path, torch):
    model = network(torch)
    zeros(torch, model[0], model[2])
    hits = blocked(run(tmp_path, torch, model))
    assert isinstance(hits, list)
    assert [(h.step, h.tensor, h.facts["zeros"], h.facts["names"]) for h in hits] == [
        (15, "0.weight", 2, "0.weight, 2.weight")
    ]
    assert hits[0].facts["blocked"] == 3  # their biases, and the weight behind them, whose input is zero


def test_one_zero_factor_leaves_zero_with_the_first_update(tmp_path, torch):
    model = network(torch)
    zeros(torch, model[4])
    evidence = run(tmp_path, torch, model, steps=(1, 40))
    assert blocked(evidence) == []
    assert seen(evidence, "persist") == []
    assert seen(evidence, "seen") == []


def test_zero_weights_without_states_persist_or_are_only_seen(tmp_path, torch):
    for name, steps in (("two", (15, 40)), ("one", (40,)), ("early", (2, 5))):
        (tmp_path / name).mkdir()
        model = network(torch)
        zeros(torch, model[0], model[2])
        evidence = run(tmp_path / name, torch, model, steps=steps, states=False)
        found = {certainty: len(seen(evidence, certainty)) for certainty in ("persist", "seen")}
        assert (
            found
            == {"two": {"persist": 1, "seen": 1}, "one": {"persist": 0, "seen": 1}, "early": {"persist": 0, "seen": 0}}[
                name
            ]
        )
        assert isinstance(blocked(evidence), Missing)


def test_a_zero_weight_that_is_frozen_is_at_most_seen(tmp_path, torch):
    model = network(torch)
    model[2].weight.requires_grad_(False)
    zeros(torch, model[2])
    assert seen(run(tmp_path, torch, model), "persist") == []


@pytest.mark.parametrize("name", ["gate", "expert", "zero_conv", "adaLN_modulation"])
def test_modules_that_may_be_zero_by_design_do_not_count(tmp_path, torch, name):
    model = network(torch)
    model.add_module(name, torch.nn.Linear(20, 20))
    zeros(torch, model[2], model[5])
    evidence = run(tmp_path, torch, model, states=False)
    assert {h.facts["names"] for h in seen(evidence, "persist")} == {"2.weight"}


def test_a_pruned_model_is_no_finding(tmp_path, torch):
    model = network(torch)
    with torch.no_grad():
        model[2].weight.zero_()
        model[0].weight[model[0].weight.abs() < 0.1] = 0.0
    torch.save({"model": model.state_dict(), "step": 100}, tmp_path / "step_100.pt")
    (evidence,) = gather([tmp_path])
    assert seen(evidence, "seen") == []


def test_where_no_state_has_a_certain_name_the_names_are_what_is_missing(tmp_path, torch):
    model = network(torch)
    zeros(torch, model[0], model[2])
    evidence = run(tmp_path, torch, model)
    table = evidence.tables["checkpoints"]
    evidence.tables["checkpoints"] = table.with_columns(naming_sure=pl.lit("likely"))
    assert blocked(evidence) == Missing("checkpoints:named")


def test_most_units_of_a_layer_that_never_respond_are_found(tmp_path, torch):
    hits = dead(run(tmp_path, torch, network(torch, bias=-20.0)))
    assert isinstance(hits, list)
    assert [(h.step, h.tensor, h.facts["units"]) for h in hits] == [(15, "2.weight", 32)]
    assert hits[0].facts["share"] > 0.6


def test_healthy_units_and_outputs_that_did_not_occur_are_no_finding(tmp_path, torch):
    (tmp_path / "healthy").mkdir()
    (tmp_path / "outputs").mkdir()
    assert dead(run(tmp_path / "healthy", torch, network(torch))) == []
    assert dead(run(tmp_path / "outputs", torch, network(torch), outputs=5)) == []


def test_units_are_not_judged_after_a_few_updates_or_without_moments(tmp_path, torch):
    (tmp_path / "early").mkdir()
    (tmp_path / "bare").mkdir()
    assert isinstance(dead(run(tmp_path / "early", torch, network(torch, bias=-20.0), steps=(3, 6))), Missing)
    evidence = run(tmp_path / "bare", torch, network(torch, bias=-20.0), states=False)
    assert dead(evidence) == Missing("Adam's moments in a checkpoint after more updates")


def adapter(folder, torch, b, step=500, a=1.0):
    tensors = {
        f"h.{i}.q.lora_{x}.weight": torch.full((4, 4), value) for i in (0, 1) for x, value in (("A", a), ("B", b))
    }
    torch.save({"model": tensors} | ({} if step is None else {"step": step}), folder / "adapter.pt")
    (evidence,) = gather([folder])
    return {
        certainty: adapter_without_effect(evidence, certainty=certainty, steps=10)
        for certainty in ("learned", "unknown")
    }


def test_an_adapter_of_zeros_after_many_steps_never_learned(tmp_path, torch):
    found = adapter(tmp_path, torch, 0.0, a=0.0)
    assert isinstance(found["learned"], list)
    assert [(h.step, h.facts["adapters"], h.facts["also_zero"]) for h in found["learned"]] == [(500, 2, 2)]
    assert isinstance(found["unknown"], Missing)


def test_an_adapter_that_learned_is_clear_and_a_first_step_is_not_judged(tmp_path, torch):
    assert adapter(tmp_path, torch, 0.1)["learned"] == []
    assert isinstance(adapter(tmp_path, torch, 0.0, step=1)["learned"], Missing)
    assert len(adapter(tmp_path, torch, 0.0, step=None)["unknown"]) == 1
