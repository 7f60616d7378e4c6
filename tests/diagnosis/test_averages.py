"""Averaged copies that follow, stand still, are rounded away or are the weights themselves: all from real updates."""

import copy
import json

import pytest
import torch

from gradforensics.diagnosis.checks.averages import (
    average_never_updated,
    average_rounded_away,
    live_equals_average,
)
from gradforensics.diagnosis.vocabulary import Missing
from gradforensics.evidence.gather import gather

NUMBERS = {"moved": 0.02, "late": 0.5}
SAVED = (20, 40, 60)


def run(folder, update, *, key="ema", dtype=torch.float32, lr=1e-2, max_steps=60, counted=False, frozen=False):
    """Train 60 steps, call update(step, average, model) after each, and save both three times."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.LayerNorm(64), torch.nn.Linear(64, 8))
    model[0].requires_grad_(not frozen)
    average = copy.deepcopy(model).to(dtype)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=lr)
    updates = 0
    for step in range(1, 61):
        optimizer.zero_grad()
        (model(torch.randn(16, 32)) - 1).square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            updates += bool(update(step, average, model))
        if step in SAVED:
            held = {f"module.{name}": value for name, value in average.state_dict().items()}
            counter = {"n_averaged": torch.tensor(updates)} if counted else {}
            state = {"model": model.state_dict(), key: counter | held, "optimizer": optimizer.state_dict()}
            torch.save(state | {"step": step}, folder / f"checkpoint-{step}.pt")
    (folder / "config.json").write_text(json.dumps({"max_steps": max_steps, "learning_rate": lr}))
    (evidence,) = gather([folder])
    return evidence


def ema(decay):
    def update(_step, average, model):
        for mine, theirs in zip(average.parameters(), model.parameters(), strict=True):
            mine.lerp_(theirs.to(mine.dtype), 1 - decay)
        return True

    return update


def never(_step, _average, _model):
    return False


def replaced(steps):
    """The weights are overwritten by the average after these steps, which else follows them."""

    def update(step, average, model):
        ema(0.9)(step, average, model)
        if step in steps:
            model.load_state_dict(average.state_dict())
        return True

    return update


def hits_of(answer):
    assert isinstance(answer, list), answer
    return answer


def steps_of(answer):
    return [(hit.step, hit.after) for hit in hits_of(answer)]


@pytest.mark.parametrize("decay", [0.0, 0.9, 0.999, 0.9999, 0.99999])
def test_an_average_in_float32_moves_at_every_decay(tmp_path, decay):
    evidence = run(tmp_path, ema(decay))
    assert average_never_updated(evidence, **NUMBERS, elements=1000) == []
    assert isinstance(average_rounded_away(evidence, moved=0.02, stuck=0.25), Missing)
    assert steps_of(live_equals_average(evidence, late=0.5)) == ([(40, None), (60, None)] if decay == 0 else [])


def test_a_copy_that_stands_still_is_found_in_the_later_half_of_the_run(tmp_path):
    evidence = run(tmp_path, never)
    first, second = hits_of(average_never_updated(evidence, **NUMBERS, elements=1000))
    assert (first.step, second.step, first.facts["key"], first.facts["tensors"]) == (40, 60, "ema", 6)
    assert float(first.facts["travel"]) > 0.05


def test_an_average_that_stops_has_its_last_good_checkpoint(tmp_path):
    update = ema(0.9)
    evidence = run(tmp_path, lambda step, average, model: update(step, average, model) if step <= 35 else False)
    assert steps_of(average_never_updated(evidence, **NUMBERS, elements=1000)) == [(60, 40)]


def test_before_half_of_the_planned_steps_an_average_need_not_have_begun(tmp_path):
    evidence = run(tmp_path, never, max_steps=1000)
    assert average_never_updated(evidence, **NUMBERS, elements=1000) == []


def test_stochastic_weight_averaging_begins_late_and_says_so(tmp_path):
    assert average_never_updated(run(tmp_path, never, key="swa_model", counted=True), **NUMBERS, elements=1) == []


def test_a_counter_that_goes_on_over_a_copy_that_does_not_is_a_decay_of_one(tmp_path):
    evidence = run(tmp_path, ema(1.0), key="swa_model", counted=True, max_steps=1000)
    assert steps_of(average_never_updated(evidence, **NUMBERS, elements=1000)) == [(40, None), (60, None)]


def test_where_the_weights_do_not_move_nothing_is_said_of_their_average(tmp_path):
    assert isinstance(average_never_updated(run(tmp_path, never, lr=0.0), **NUMBERS, elements=1000), Missing)


@pytest.mark.parametrize(("decay", "lost"), [(0.9999, True), (0.99, False), (0.9, False)])
def test_in_bfloat16_a_large_decay_rounds_the_steps_away(tmp_path, decay, lost):
    evidence = run(tmp_path, ema(decay), dtype=torch.bfloat16)
    hits = average_rounded_away(evidence, moved=0.02, stuck=0.25)
    assert [step for step, _ in steps_of(hits)] == ([40, 60] if lost else [])
    assert average_never_updated(evidence, **NUMBERS, elements=1000) == []


def test_a_frozen_part_is_no_part_of_what_must_move(tmp_path):
    evidence = run(tmp_path, ema(0.9), dtype=torch.bfloat16, frozen=True)
    assert average_rounded_away(evidence, moved=0.02, stuck=0.25) == []
    assert live_equals_average(evidence, late=0.5) == []


def test_weights_that_were_overwritten_by_their_average(tmp_path):
    assert steps_of(live_equals_average(run(tmp_path, replaced((40,))), late=0.5)) == [(40, 20)]


def test_in_the_last_checkpoint_the_average_may_stand_in_place_of_the_weights(tmp_path):
    assert live_equals_average(run(tmp_path, replaced((60,))), late=0.5) == []


def test_without_a_copy_nothing_is_judged(tmp_path):
    evidence = run(tmp_path, never, key="notes")
    for answer in (
        average_never_updated(evidence, **NUMBERS, elements=1000),
        average_rounded_away(evidence, moved=0.02, stuck=0.25),
        live_equals_average(evidence, late=0.5),
    ):
        assert isinstance(answer, Missing)
