"""Weights that no optimizer wrote: the travel bound, flipped bits, changed shapes, on real trainings."""

import json
from typing import Any

import pytest
import torch

from gradforensics.diagnosis.checks.weight_integrity import (
    parameter_shape_changed,
    weight_outlier,
    weight_outlier_from_nowhere,
    weights_beyond_travel,
)
from gradforensics.diagnosis.vocabulary import Missing
from gradforensics.evidence.gather import gather

LR, FIRST, LAST = 1e-3, 20, 40
OUTLIER = {"contrast": 1000.0}
NOWHERE = {"contrast": 1000.0, "bits": 1e6}


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def found(check, evidence, **arguments):
    """The hits of a check that could judge."""
    answer = check(evidence, **arguments)
    assert isinstance(answer, list)
    return answer


def column(evidence, table, name):
    """The values of one column, as a list."""
    rows = evidence.table(table)
    assert rows is not None
    return rows[name].to_list()


def nothing(_model, _optimizer):
    pass


def run(
    folder,
    *,
    schedule=None,
    every=1,
    between=nothing,
    at_end=nothing,
    logged=LR,
    decimals=9,
    groups=None,
    dtype=torch.float32,
    updates=1,
    **more,
):
    """Train for 40 steps with a checkpoint after 20 and at the end; give the evidence."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(12, 16), torch.nn.LayerNorm(16), torch.nn.GELU(), torch.nn.Linear(16, 16), torch.nn.GELU(),
        torch.nn.Linear(16, 6),
    ).to(dtype)  # fmt: skip
    parts = groups(model) if groups else model.parameters()
    options: dict[str, Any] = {"betas": (0.9, 0.95), "weight_decay": 0.1} | more
    optimizer = torch.optim.AdamW(parts, LR, **options)
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule) if schedule else None
    with (folder / "metrics.jsonl").open("w") as log:
        for step in range(1, LAST + 1):
            for _ in range(updates):
                optimizer.zero_grad()
                loss = model(torch.randn(16, 12, dtype=dtype)).float().square().mean()
                loss.backward()
                optimizer.step()
            rate = optimizer.param_groups[0]["lr"] if schedule else logged
            if step % every == 0:
                log.write(json.dumps({"step": step, "loss": loss.item(), "lr": round(rate, decimals)}) + "\n")
            if rates is not None:
                rates.step()
            if step == FIRST:
                save(folder, step, model, optimizer)
                between(model, optimizer)
    at_end(model, optimizer)
    save(folder, LAST, model, optimizer)
    (evidence,) = gather([folder])
    return evidence


def save(folder, step, model, optimizer):
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    torch.save(state, folder / f"step_{step}.pt")


def beyond(evidence, ratio=1.5):
    return {extent: found(weights_beyond_travel, evidence, ratio=ratio, extent=extent) for extent in ("few", "many")}


NONE: dict[str, list[Any]] = {"few": [], "many": []}


# -- the travel bound -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [{}, {"betas": (0.9, 0.999)}, {"amsgrad": True}, {"dtype": torch.bfloat16}])
def test_no_weight_of_a_healthy_training_leaves_the_bound(tmp_path, more):
    evidence = run(tmp_path, **more)
    assert beyond(evidence) == NONE
    assert max(column(evidence, "travels", "bound_ratio")) < 1.0


def test_a_matrix_that_was_drawn_again_is_found_alone(tmp_path):
    evidence = run(tmp_path, between=lambda model, _: torch.nn.init.normal_(model[3].weight, std=0.3))
    beyond_it = beyond(evidence)
    assert [hit.tensor for hit in beyond_it["few"]] == ["3.weight"]
    assert beyond_it["few"][0].facts["tensors"] == 1
    assert (beyond_it["few"][0].step, beyond_it["few"][0].after, beyond_it["many"]) == (LAST, FIRST, [])


def test_another_model_in_its_place_is_found_everywhere(tmp_path):
    def replace(model, _optimizer):
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter)

    beyond_it = beyond(run(tmp_path, at_end=replace))
    assert beyond_it["few"] == []
    assert beyond_it["many"][0].facts["tensors"] == 8


def two_rates(model):
    parameters = list(model.parameters())
    return [{"params": parameters[:4]}, {"params": parameters[4:], "lr": 20 * LR}]


def test_a_group_with_a_larger_rate_than_the_logged_one_reaches_farther(tmp_path):
    evidence = run(tmp_path, groups=two_rates)
    assert max(column(evidence, "travels", "bound_ratio")) > 1.5
    assert beyond(evidence) == NONE


def test_several_updates_in_one_logged_step_reach_farther(tmp_path):
    evidence = run(tmp_path, updates=10)
    assert beyond(evidence) == NONE


def test_a_cycle_of_the_schedule_between_two_lines_of_the_log_reaches_farther(tmp_path):
    evidence = run(tmp_path, schedule=lambda step: 1.0 if step % 10 in range(3, 7) else 0.01, every=10)
    assert max(column(evidence, "travels", "bound_ratio")) > 1.5
    assert beyond(evidence) == NONE


def test_a_log_of_another_rate_than_the_optimizers_own_judges_nothing(tmp_path):
    assert isinstance(weights_beyond_travel(run(tmp_path, logged=LR / 20), ratio=1.5, extent="many"), Missing)


def test_a_rate_that_was_printed_as_zero_judges_nothing(tmp_path):
    assert isinstance(weights_beyond_travel(run(tmp_path, decimals=2), ratio=1.5, extent="many"), Missing)


# -- outliers ---------------------------------------------------------------------------------------------------------


def flip(bit, layer=3):
    def fault(model, _optimizer):
        model[layer].weight.detach().view(torch.int32)[2, 3] ^= 1 << bit

    return fault


@pytest.mark.parametrize("bit", [30])
def test_a_flipped_exponent_bit_is_a_weight_from_nowhere(tmp_path, bit):
    evidence = run(tmp_path, at_end=flip(bit))
    (hit,) = found(weight_outlier_from_nowhere, evidence, **NOWHERE)
    assert (hit.step, hit.after, hit.tensor) == (LAST, FIRST, "3.weight")
    assert hit.facts["peak"] > 1e30
    assert hit.facts["before"] < 1.0
    assert len(found(weight_outlier, evidence, **OUTLIER)) == 1


@pytest.mark.parametrize("value", [900.0, 1e5, 1e12])
def test_a_weight_that_no_step_can_have_reached_is_from_nowhere(tmp_path, value):
    def overwrite(model, _optimizer):
        model[3].weight.detach()[2, 3] = value

    (hit,) = found(weight_outlier_from_nowhere, run(tmp_path, at_end=overwrite), **NOWHERE)
    assert hit.facts["peak"] == pytest.approx(value)
    assert 500 * hit.facts["rms"] < value


@pytest.mark.parametrize("bit", [0, 10, 20, 22, 31])
def test_bits_that_harm_nothing_are_not_seen(tmp_path, bit):
    evidence = run(tmp_path, at_end=flip(bit))
    assert weight_outlier(evidence, **OUTLIER) == found(weight_outlier_from_nowhere, evidence, **NOWHERE) == []


def test_a_large_weight_without_a_checkpoint_before_it_is_only_an_outlier(tmp_path):
    def overwrite(model, _optimizer):
        model[3].weight.detach()[2, 3] = 900.0

    run(tmp_path, at_end=overwrite)
    (tmp_path / f"step_{FIRST}.pt").unlink()
    (evidence,) = gather([tmp_path])
    assert weight_outlier_from_nowhere(evidence, **NOWHERE) == []
    assert [hit.tensor for hit in found(weight_outlier, evidence, **OUTLIER)] == ["3.weight"]


@pytest.mark.parametrize(
    "weights",
    [
        {"w": torch.randn(64, 64) * 0.02 + torch.nn.functional.pad(torch.tensor([[6.0]]), (0, 63, 0, 63))},  # massive
        {"w": torch.nn.functional.pad(torch.randn(1, 64), (0, 0, 0, 63))},  # one row of an embedding was trained
        {"w": torch.eye(64)[:1] * 5.0},
        {"b": torch.cat([torch.tensor([50.0]), 1e-3 * torch.randn(255)])},
        {"attn.mask": torch.cat([torch.tensor([[-1e9]]), torch.randn(1, 127)], 1)},
        {"h.masked_bias": torch.tensor(-1e4)},
    ],
)
def test_what_is_large_on_purpose_is_no_outlier(tmp_path, weights):
    torch.save({"model": weights, "step": 5}, tmp_path / "step_5.pt")
    (evidence,) = gather([tmp_path])
    answer = weight_outlier(evidence, **OUTLIER)
    assert answer == [] or isinstance(answer, Missing)


def test_two_large_elements_are_no_flipped_bit(tmp_path):
    weight = torch.randn(64, 64) * 0.02
    weight[3, 4], weight[9, 9] = 500.0, 490.0
    torch.save({"model": {"w": weight}, "step": 5}, tmp_path / "step_5.pt")
    (evidence,) = gather([tmp_path])
    assert weight_outlier(evidence, **OUTLIER) == []


# -- shapes -----------------------------------------------------------------------------------------------------------


def shapes(folder, before, after, **how):
    for step, sizes in ((10, before), (20, after)):
        weights = {name: torch.randn(*size) for name, size in sizes.items()}
        torch.save({"model": weights, "step": step}, folder / f"step_{step}.pt")
    (evidence,) = gather([folder])
    return found(parameter_shape_changed, evidence, **{"share": 0.5, "tables": "no"} | how)


MODEL = {"embed.weight": (32, 8), "up.weight": (16, 8), "down.weight": (8, 16), "head.weight": (32, 8)}


def test_a_matrix_of_another_shape_is_found_and_an_extended_vocabulary_apart(tmp_path):
    (hit,) = shapes(tmp_path, MODEL, MODEL | {"up.weight": (20, 8)})
    assert (hit.step, hit.after, hit.tensor, hit.facts["was"], hit.facts["shape"]) == (
        20, 10, "up.weight", "[16, 8]", "[20, 8]",
    )  # fmt: skip
    larger = MODEL | {"embed.weight": (40, 8), "head.weight": (40, 8)}
    assert shapes(tmp_path, MODEL, larger) == []
    assert shapes(tmp_path, MODEL, larger, tables="yes")[0].facts["tensors"] == 2


def test_two_models_in_one_folder_are_no_change_of_shapes(tmp_path):
    assert shapes(tmp_path, MODEL, {name: (size[0] + 1, size[1]) for name, size in MODEL.items()}) == []
    assert shapes(tmp_path, MODEL, MODEL) == []
