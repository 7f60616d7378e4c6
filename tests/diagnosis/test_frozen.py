"""Weights that no update reached: real trainings with torch, healthy ones and ones with a fault."""

import pytest

from gradforensics.diagnosis.checks.frozen import (
    gradient_exactly_zero_before_cut,
    updates_never_reach_weights,
    updates_stopped_before_cut,
    weights_stand_still,
)
from gradforensics.diagnosis.vocabulary import Missing
from gradforensics.evidence.gather import gather
from gradforensics.tables import Setting

FINDINGS = ("proven", "untrained", "possible", "left_out", "no_gradient")
LAYERS = ("0.weight", "0.bias", "1.weight", "1.bias")


@pytest.fixture
def torch():
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)
    return torch


def network(torch):
    return torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.Linear(16, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)
    )


def run(
    folder, torch, model, parameters=None, *, hook=None, steps=(30, 60), settings=(), save=None, rate=1e-2, **saved
):
    """Train on noise, save in a plain loop. hook: of the inputs of the third module, called with step and tensor."""
    optimizer = torch.optim.AdamW(model.parameters() if parameters is None else parameters, lr=rate)
    now = {"step": 0}
    if hook is not None:
        model[2].register_forward_pre_hook(lambda _m, inputs: (hook(now["step"], inputs[0]),))
    for step in range(1, max(steps) + 1):
        now["step"] = step
        optimizer.zero_grad()
        (model(torch.randn(4, 8)) - 1).square().mean().backward()
        optimizer.step()
        if step in steps:
            state = {"model": (save or model).state_dict(), "optimizer": optimizer.state_dict(), "step": step} | saved
            torch.save(state, folder / f"step_{step}.pt")
    (found,) = gather([folder])
    found.settings = [Setting(key, key, value, "config.json") for key, value in settings]
    return found


def detached(_step, hidden):
    return hidden.detach()


def findings(evidence):
    answers = {name: weights_stand_still(evidence, finding=name, steps=20) for name in FINDINGS}
    missing = next((a for a in answers.values() if isinstance(a, Missing)), None)
    return missing or [name for name, hits in answers.items() if hits]


def only(answer):
    assert isinstance(answer, list)
    (hit,) = answer
    return hit


def zero(evidence):
    return gradient_exactly_zero_before_cut(evidence, steps=20, spread=1e-5, off=1e-4)


def trained(model, torch):
    """The model with values that are no initialisation's."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5).add_(0.01 * torch.randn_like(parameter))
    return model


def test_a_detach_before_fresh_layers_is_found_and_located(tmp_path, torch):
    evidence = run(tmp_path, torch, network(torch), hook=detached)
    hit = only(weights_stand_still(evidence, finding="untrained", steps=20))
    assert findings(evidence) == ["untrained"]
    assert (hit.step, hit.after, hit.tensor, hit.facts["module"], hit.facts["before"]) == (
        60,
        None,
        "0.weight",
        "2",
        "1",
    )
    assert (hit.facts["frozen"], hit.facts["parameters"]) == (4, 8)


def test_a_detach_before_trained_layers_looks_like_freezing_and_is_a_suspicion_only(tmp_path, torch):
    assert findings(run(tmp_path, torch, trained(network(torch), torch), hook=detached)) == ["possible"]


def test_where_all_was_to_be_trained_a_detach_is_proven(tmp_path, torch):
    full = [("finetuning_type", "full")]
    evidence = run(tmp_path, torch, trained(network(torch), torch), hook=detached, settings=full)
    assert findings(evidence) == ["proven"]


def test_a_last_layer_alone_that_trains_is_a_suspicion_even_on_fresh_layers(tmp_path, torch):
    model = network(torch)
    model[4].register_forward_pre_hook(lambda _m, inputs: (inputs[0].detach(),))
    assert findings(run(tmp_path, torch, model)) == ["possible"]


def test_freezing_that_a_setting_speaks_of_is_healthy(tmp_path, torch):
    assert findings(run(tmp_path, torch, network(torch), hook=detached, settings=[("freeze_layers", 1)])) == []


def test_first_layers_that_the_optimizer_was_not_given_are_healthy(tmp_path, torch):
    model = network(torch)
    assert findings(run(tmp_path, torch, model, [*model[2].parameters(), *model[4].parameters()])) == []


def test_fresh_last_layers_that_the_optimizer_was_not_given_were_left_out(tmp_path, torch):
    model = network(torch)
    model.append(torch.nn.LayerNorm(4))
    model.append(torch.nn.Linear(4, 16))
    parts = [p for module in model[:5] for p in module.parameters()]
    evidence = run(tmp_path, torch, model, parts)
    hit = only(weights_stand_still(evidence, finding="left_out", steps=20))
    assert findings(evidence) == ["left_out"]
    assert hit.facts["names"] == "5.weight, 5.bias, 6.weight, 6.bias"


def test_training_the_head_of_a_fresh_model_is_healthy(tmp_path, torch):
    model = network(torch)
    assert findings(run(tmp_path, torch, model, list(model[4].parameters()))) == []


def test_a_healthy_run_is_clear_and_one_checkpoint_is_not_judged(tmp_path, torch):
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    healthy = run(tmp_path / "two", torch, network(torch))
    assert findings(healthy) == []
    assert zero(healthy) == []
    assert updates_never_reach_weights(healthy, steps=20, felt=8) == []
    assert updates_stopped_before_cut(healthy, certainty="unknown", steps=20) == []
    assert isinstance(findings(run(tmp_path / "one", torch, network(torch), steps=(30,))), Missing)


def test_checkpoints_a_few_steps_apart_are_not_judged(tmp_path, torch):
    assert isinstance(findings(run(tmp_path, torch, network(torch), hook=detached, steps=(30, 45))), Missing)


def test_low_precision_weights_that_rounding_may_keep_are_not_judged(tmp_path, torch):
    model = network(torch).to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(1, 61):
        for name, parameter in model.named_parameters():
            parameter.grad = torch.randn_like(parameter) * (1.0 if name[0] > "1" else 0.0)
        optimizer.param_groups[0]["weight_decay"] = 0.0
        optimizer.step()
        if step in (30, 60):
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, tmp_path / f"step_{step}.pt")
    (evidence,) = gather([tmp_path])
    assert isinstance(findings(evidence), Missing)


def test_a_gradient_of_exactly_zero_is_told_from_none_and_its_decay_is_counted(tmp_path, torch):
    evidence = run(tmp_path, torch, network(torch), hook=lambda _step, h: h.detach() + 0.0 * h)
    hit = only(zero(evidence))
    assert (hit.facts["frozen"], hit.facts["module"], hit.facts["updates"]) == (4, "2", 60)
    assert hit.facts["decayed"] == 3  # a bias of norms is 0 and has nothing to decay
    assert findings(evidence) == []


def test_zero_gradients_beside_a_zero_weight_are_left_to_its_case(tmp_path, torch):
    model = network(torch)
    torch.nn.init.zeros_(model[2].weight)
    model[2].weight.requires_grad_(False)
    assert zero(run(tmp_path, torch, model)) == []


def test_counters_that_stand_still_name_the_step_of_the_last_gradient(tmp_path, torch):
    def late(step, hidden):
        return hidden.detach() if step > 25 else hidden

    evidence = run(tmp_path, torch, network(torch), hook=late)
    hit = only(updates_stopped_before_cut(evidence, certainty="unknown", steps=20))
    assert (hit.step, hit.after, hit.facts["counter"], hit.facts["updates"]) == (26, 25, 25, 60)
    assert updates_stopped_before_cut(evidence, certainty="known", steps=20) == []
    evidence.settings = [Setting("freeze_from", "freeze_from", 25, "config.json")]
    evidence._cache.clear()
    assert updates_stopped_before_cut(evidence, certainty="unknown", steps=20) == []


def test_counters_that_lag_and_go_on_are_conditional_use(tmp_path, torch):
    evidence = run(tmp_path, torch, network(torch), hook=lambda step, h: h if step % 3 == 0 else h.detach())
    assert updates_stopped_before_cut(evidence, certainty="unknown", steps=20) == []
    assert findings(evidence) == []


def test_updates_that_do_not_reach_the_saved_weights_are_proven(tmp_path, torch):
    import copy

    model = network(torch)
    evidence = run(tmp_path, torch, model, save=copy.deepcopy(model))
    hit = only(updates_never_reach_weights(evidence, steps=20, felt=8))
    assert (hit.facts["updates"], hit.facts["parameters"], hit.facts["lr"]) == (30, 8, 1e-2)


def test_updates_below_the_rounding_of_the_weights_are_no_finding(tmp_path, torch):
    import copy

    model = network(torch)
    assert updates_never_reach_weights(
        run(tmp_path, torch, model, save=copy.deepcopy(model), rate=1e-9), steps=20, felt=8
    ) == []  # fmt: skip
