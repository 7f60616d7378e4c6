"""Adam's moments against the truth: nothing in healthy trainings, and exactly what was changed in others."""

import json

import pytest
import torch

from gradforensics.diagnosis.checks.state_integrity import (
    moments_above_bound,
    moments_impossible,
    second_moments_not_continued,
    state_of_another_shape,
)
from gradforensics.diagnosis.vocabulary import Missing
from gradforensics.evidence.gather import gather

LIMITS = {"elements": 8, "share": 0.001, "ratio": 100.0}


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def network(width, seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Embedding(256, width), torch.nn.Flatten(), torch.nn.Linear(4 * width, width),
        torch.nn.LayerNorm(width), torch.nn.GELU(), torch.nn.Linear(width, width), torch.nn.GELU(),
        torch.nn.Linear(width, 256, bias=False),
    )  # fmt: skip


def save(folder, step, model, optimizer):
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    torch.save(state, folder / f"step_{step}.pt")


def train(model, optimizer, steps, first=1):
    """Many rows of the embedding are never seen, and one gradient is fifty times too large."""
    for step in range(first, steps + 1):
        inputs = torch.randint(0, 256, (16, 4)) ** 2 // 256
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs).float(), inputs.sum(1) * 7 % 256)
        loss.backward()
        if step == 17:
            for parameter in model.parameters():
                parameter.grad *= 50
        optimizer.step()


def small(folder, **more):
    model = network(16)
    optimizer = torch.optim.AdamW(model.named_parameters(), 1e-3, **{"betas": (0.9, 0.95)} | more)
    train(model, optimizer, 20)
    save(folder, 20, model, optimizer)
    return model, optimizer


def answer_of(check, folder, **arguments):
    (evidence,) = gather([folder])
    return check(evidence, **arguments)


def found(check, folder, **arguments):
    """The hits of a check that could judge."""
    answer = answer_of(check, folder, **arguments)
    assert isinstance(answer, list)
    return answer


def column(evidence, table, name):
    """The values of one column, as a list."""
    rows = evidence.table(table)
    assert rows is not None
    return rows[name].to_list()


HEALTHY = [
    ((0.9, 0.95), torch.float32, {"foreach": True}),
    ((0.9, 0.999), torch.float32, {"fused": True}),
    ((0.95, 0.98), torch.float32, {"foreach": False}),
    ((0.9, 0.95), torch.float32, {"amsgrad": True}),
    ((0.9, 0.999), torch.bfloat16, {"foreach": True}),
    ((0.9, 0.95), torch.bfloat16, {"foreach": False}),
]


@pytest.mark.parametrize(("betas", "dtype", "how"), HEALTHY)
def test_no_moment_of_a_healthy_training_breaks_the_bound(tmp_path, betas, dtype, how):
    """Six trainings, 420 000 elements in two checkpoints of each: 2.5 million."""
    model = network(160).to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, betas=betas, **how)
    train(model, optimizer, 3)
    save(tmp_path, 3, model, optimizer)
    train(model, optimizer, 30, first=4)
    save(tmp_path, 30, model, optimizer)
    (evidence,) = gather([tmp_path])
    assert sum(column(evidence, "moments", "count")) == 2 * sum(p.numel() for p in model.parameters()) > 400_000
    assert sum(column(evidence, "moments", "bound_violations")) == sum(column(evidence, "moments", "v_negative")) == 0
    assert max(column(evidence, "moments", "bound_ratio_max")) > 0.7  # near enough for the bound to mean something
    assert moments_impossible(evidence, **LIMITS) == moments_above_bound(evidence, **LIMITS) == []
    if dtype == torch.float32:
        assert second_moments_not_continued(evidence, tolerance=0.001) == []


@pytest.mark.parametrize(
    ("change", "elements", "negative"),
    [
        (lambda _, v: v.view(-1)[5].zero_(), 1, 0),
        (lambda m, _: m.view(-1)[9].mul_(1e6), 1, 0),
        (lambda _, v: v.view(-1)[7].mul_(-1), 1, 1),
        (lambda m, v: (v.view(-1)[5].zero_(), m.view(-1)[9].mul_(1e6)), 2, 0),
        (lambda _, v: v[0, :7].zero_(), 7, 0),
    ],
)
def test_exactly_the_elements_that_were_changed_are_found(tmp_path, change, elements, negative):
    model, optimizer = small(tmp_path)
    train(model, optimizer, 25, first=21)
    state = optimizer.state[model[2].weight]
    change(state["exp_avg"], state["exp_avg_sq"])
    save(tmp_path, 25, model, optimizer)
    (hit,) = found(moments_impossible, tmp_path, **LIMITS)
    assert (hit.step, hit.after, hit.tensor) == (25, 20, "2.weight")
    assert (hit.facts["elements"], hit.facts["negative"], hit.facts["tensors"]) == (elements, negative, 1)
    assert found(moments_above_bound, tmp_path, **LIMITS) == []


def test_a_flipped_bit_in_the_exponent_of_a_second_moment_is_found(tmp_path):
    model, optimizer = small(tmp_path)
    second = optimizer.state[model[2].weight]["exp_avg_sq"].view(torch.int32)
    second[1, 1] &= ~(1 << 28)  # a factor of 2^-32
    save(tmp_path, 20, model, optimizer)
    (hit,) = found(moments_impossible, tmp_path, **LIMITS)
    assert hit.facts["elements"] == 1


def test_second_moments_that_began_anew_are_only_suspected(tmp_path):
    model, optimizer = small(tmp_path, betas=(0.9, 0.999))
    (tmp_path / "step_20.pt").unlink()
    for state in optimizer.state.values():
        state["exp_avg_sq"].zero_()
    train(model, optimizer, 21, first=21)
    save(tmp_path, 21, model, optimizer)
    assert found(moments_impossible, tmp_path, **LIMITS) == []
    (hit,) = found(moments_above_bound, tmp_path, **LIMITS)
    assert hit.facts["elements"] > 1000


def test_moments_in_float16_are_another_case(tmp_path):
    model, optimizer = small(tmp_path)
    for state in optimizer.state.values():
        state["exp_avg_sq"] = state["exp_avg_sq"].half()
    save(tmp_path, 20, model, optimizer)
    (evidence,) = gather([tmp_path])
    assert sum(column(evidence, "moments", "bound_violations")) > 100
    assert isinstance(moments_impossible(evidence, **LIMITS), Missing)


def test_betas_that_a_schedule_moves_have_no_bound(tmp_path):
    model = network(16)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=60)
    for step in range(1, 31):
        train(model, optimizer, step, first=step)
        schedule.step()
    optimizer.state[model[2].weight]["exp_avg_sq"].view(-1)[5] = 0.0
    save(tmp_path, 30, model, optimizer)
    assert isinstance(answer_of(moments_impossible, tmp_path, **LIMITS), Missing)


def test_an_optimizer_with_other_groups_than_adams_is_judged_by_single_elements_alone(tmp_path):
    model, optimizer = small(tmp_path)
    state = optimizer.state_dict()
    for group in state["param_groups"]:
        group["freeze_step"] = 10
        group["rank"] = 4  # as GaLore's have
    torch.save({"model": model.state_dict(), "optimizer": state, "step": 20}, tmp_path / "step_20.pt")
    assert isinstance(answer_of(moments_above_bound, tmp_path, **LIMITS), Missing)


# -- states of other parameters ---------------------------------------------------------------------------------------


def resumed(folder, change, updates=10):
    """Two checkpoints; between them the states are changed, as a wrong resume would."""
    model, optimizer = small(folder, betas=(0.9, 0.99))
    change(model, optimizer)
    train(model, optimizer, 20 + updates, first=21)
    save(folder, 20 + updates, model, optimizer)
    return found(second_moments_not_continued, folder, tolerance=0.01)


def test_second_moments_continue_where_nothing_happened_and_rows_are_never_seen(tmp_path):
    assert resumed(tmp_path, lambda _model, _optimizer: None) == []


def test_a_second_moment_that_fell_faster_than_its_age_is_not_the_same(tmp_path):
    def shrink(model, optimizer):
        optimizer.state[model[2].weight]["exp_avg_sq"].mul_(0.01)

    (hit,) = resumed(tmp_path, shrink)
    assert (hit.step, hit.after, hit.tensor) == (30, 20, "2.weight")
    assert (hit.facts["tensors"], hit.facts["updates"]) == (1, 10)


def test_a_checkpoint_behind_the_end_of_the_log_is_of_another_launch(tmp_path):
    rows = [{"step": step, "loss": 3.0 - step / 100} for step in range(1, 26)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)))
    model, optimizer = small(tmp_path, betas=(0.9, 0.99))
    optimizer.state[model[2].weight]["exp_avg_sq"].mul_(0.01)
    train(model, optimizer, 30, first=21)
    save(tmp_path, 30, model, optimizer)
    assert isinstance(answer_of(second_moments_not_continued, tmp_path, tolerance=0.01), Missing)


def test_states_that_changed_places_show_in_the_one_that_became_smaller(tmp_path):
    def swap(model, optimizer):
        first, second = (optimizer.state[model[i].weight]["exp_avg_sq"] for i in (2, 5))
        first[:16, :16], second[:] = second.clone(), first[:16, :16].clone() * 1e-3

    assert resumed(tmp_path, swap)[0].tensor == "5.weight"


def test_an_optimizer_that_began_anew_is_another_case(tmp_path):
    model, _ = small(tmp_path)
    optimizer = torch.optim.AdamW(model.named_parameters(), 1e-3, betas=(0.9, 0.95))
    train(model, optimizer, 60, first=21)
    save(tmp_path, 60, model, optimizer)
    assert isinstance(answer_of(second_moments_not_continued, tmp_path, tolerance=0.01), Missing)


def test_states_without_certain_names_are_not_judged(tmp_path):
    model, optimizer = small(tmp_path)
    for step in (20, 30):
        optimizer.state[model[2].weight]["exp_avg_sq"].mul_(0.01)
        states = optimizer.state_dict()
        for group in states["param_groups"]:
            del group["param_names"]
        weights = dict(sorted(model.state_dict().items(), key=lambda item: (item[1].numel(), item[0])))
        state = {"model": weights, "optimizer": states, "step": step}
        torch.save(state, tmp_path / f"step_{step}.pt")
    (evidence,) = gather([tmp_path])
    assert not {"exact", "confirmed"} & set(column(evidence, "checkpoints", "naming_sure"))
    assert isinstance(second_moments_not_continued(evidence, tolerance=0.01), Missing)


def test_a_state_of_another_shape_than_its_parameter_is_found_where_the_file_names_it(tmp_path):
    model, optimizer = small(tmp_path)
    assert found(state_of_another_shape, tmp_path) == []
    model[0] = torch.nn.Embedding(260, 16)
    save(tmp_path, 20, model, optimizer)
    (hit,) = found(state_of_another_shape, tmp_path)
    assert (hit.tensor, hit.facts["shape"], hit.facts["state_shape"]) == ("0.weight", "[260, 16]", "[256, 16]")
