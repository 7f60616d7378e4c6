"""Checks on parameter groups: what may change in them and what may not."""

import json

import polars as pl
import pytest

from gradforensics.diagnosis.checks import groups
from gradforensics.diagnosis.examples import evidence_of
from gradforensics.diagnosis.vocabulary import Missing


def group(step, names, number=0, lr=1e-3, decay=0.1, counted=None, **more):
    values = more.pop("values", {"initial_lr": 1e-3})
    return {
        "checkpoint": f"step_{step}", "group": number, "optimizer": "adamw", "lr": lr, "betas": [0.9, 0.999],
        "eps": 1e-8, "weight_decay": decay, "names": list(names), "step_min": counted or step,
        "step_max": counted or step, "values": json.dumps(values), **more,
    }  # fmt: skip


def tensor(step, name, role, shape):
    counts = dict.fromkeys(("nan", "posinf", "neginf", "zero", "one"), 0)
    path = f"optimizer.state.0.{role}" if role == "exp_avg" else name
    return {
        "checkpoint": f"step_{step}", "step": step, "role": role, "name": name, "dtype": "float32",
        "shape": shape, "count": 64, "fingerprint": f"{name}{step}", "key": path, "source": f"step_{step}.pt", **counts,
    }  # fmt: skip


def run(*found, names="abcd", naming="exact", optimizers=1, complete=True):
    steps = sorted({int(g["checkpoint"].removeprefix("step_")) for g in found})
    tensors = [tensor(s, n, role, [8, 8] if "." not in n else [8]) for s in steps for n in names
               for role in ("param", "exp_avg")]  # fmt: skip
    if optimizers > 1:
        tensors += [row | {"key": "second.state.0.exp_avg"} for row in tensors if row["role"] == "exp_avg"]
    return evidence_of({
        "checkpoints": [
            {"path": f"step_{s}", "step": s, "naming_sure": naming, "complete": complete} for s in steps
        ],
        "groups": found,
        "tensors": tensors,
    })  # fmt: skip


# -- who is in them ----------------------------------------------------------------------------------------------------


def lost(evidence):
    return groups.groups_lost_parameters(evidence, most=0.5)


def test_parameters_that_leave_the_groups_while_the_model_keeps_them_are_a_hit():
    (hit,) = lost(run(group(100, "abcd"), group(200, "abc")))
    assert (hit.after, hit.step, hit.tensor) == (100, 200, "d")
    assert hit.facts["lost"] == 1


def test_groups_that_grow_or_are_cut_into_others_are_no_hit():
    assert lost(run(group(100, "ab"), group(200, "abcd"))) == []
    assert lost(run(group(100, "abcd"), group(200, "ab"), group(200, "cd", 1, decay=0.0))) == []


def test_parameters_that_left_the_model_too_are_no_hit():
    assert lost(run(group(100, "abcd"), group(200, "abc"), names="abc")) == []


def test_a_parameter_that_became_tied_is_updated_under_its_other_name():
    evidence = run(group(100, "abcd"), group(200, "abc"))
    table = evidence.tables["tensors"]
    tied = pl.when((pl.col("name") == "d") & (pl.col("step") == 200)).then(pl.lit("a200"))
    evidence.tables["tensors"] = table.with_columns(fingerprint=tied.otherwise(pl.col("fingerprint")))
    assert lost(evidence) == []


def test_another_stage_of_training_is_no_drift():
    assert lost(run(group(100, "abcd"), group(200, "a"))) == []  # more than half left
    assert isinstance(lost(run(group(100, "abcd"), group(200, "abc", counted=50))), Missing)  # it counts anew
    assert isinstance(lost(run(group(100, "abcd"), group(200, "abc", optimizer="sgd"))), Missing)


def test_uncertain_names_and_broken_checkpoints_are_not_judged():
    assert lost(run(group(100, "abcd"), group(200, "abc"), naming="likely")) == Missing("checkpoints:named")
    assert isinstance(lost(run(group(100, "abcd"), group(200, "abc"), complete=False)), Missing)
    assert lost(run(group(100, ["a", "b", "7"]), group(200, ["a", "b"]), names=["a", "b", "7"])) == []  # 7 is an id


def test_states_that_other_ranks_hold_may_be_incomplete():
    before = group(100, "ab", rank=0), group(100, "cd", rank=1)
    assert isinstance(lost(run(*before, group(200, "ab", rank=0))), Missing)
    assert lost(run(*before, group(200, "abc", rank=0), group(200, "d", rank=1))) == []


def test_a_parameter_that_changes_its_decay_alone_is_a_hit_and_a_whole_group_is_none():
    def check(*found):
        return groups.parameters_changed_decay(run(*found))

    before = group(100, "abc"), group(100, "d", 1, decay=0.0)
    (hit,) = check(*before, group(200, "ab"), group(200, "cd", 1, decay=0.0))
    assert hit.facts["example"] == "c"
    assert check(*before, group(200, "abc", decay=0.0), group(200, "d", 1, decay=0.0)) == []
    assert check(*before, group(200, "abc", decay=0.05), group(200, "d", 1, decay=0.0)) == []


# -- whose rate moves --------------------------------------------------------------------------------------------------


def standing(evidence, kind="unknown"):
    return groups.group_rate_stands_while_others_move(evidence, moving=0.05, kind=kind)


def two(first, second, *, marks=({"initial_lr": 1e-3}, {}), counted=(None, None)):
    """A group that moves from 1e-3 to 5e-4, and another one with the rates `first` and `second`."""
    return [
        group(100, "ab", 0, 1e-3, values=marks[0]), group(100, "cd", 1, first, values=marks[1], counted=counted[0]),
        group(200, "ab", 0, 5e-4, values=marks[0]), group(200, "cd", 1, second, values=marks[1], counted=counted[1]),
    ]  # fmt: skip


def test_a_group_that_the_scheduler_does_not_know_and_that_stands_is_a_hit():
    (hit,) = standing(run(*two(3e-4, 3e-4)))
    assert hit.facts["group"] == 1
    assert (hit.facts["others_before"], hit.facts["others_now"]) == (1e-3, 5e-4)


@pytest.mark.parametrize("rates", [(3e-4, 1.5e-4), (0.0, 0.0)])
def test_a_group_that_moves_or_is_frozen_is_no_hit(rates):
    assert standing(run(*two(*rates))) == []


def test_a_group_that_the_scheduler_holds_is_no_hit():
    marks = {"initial_lr": 1e-3}, {"initial_lr": 3e-4}
    assert standing(run(*two(3e-4, 3e-4, marks=marks))) == []
    assert standing(run(*two(3e-4, 3e-4, marks=marks)), "unmarked") == []


def test_rates_set_by_hand_are_asked_of_apart():
    evidence = run(*two(3e-4, 3e-4, marks=({}, {})))
    assert standing(evidence) == []
    assert len(standing(evidence, "unmarked")) == 1


def test_gradual_unfreezing_is_no_hit():
    assert standing(run(*two(3e-4, 3e-4, counted=(50, 150)))) == []  # it joined before the first checkpoint
    late = [one for one in two(3e-4, 3e-4) if (one["checkpoint"], one["group"]) != ("step_100", 1)]
    assert standing(run(*late)) == []


def test_two_optimizers_may_have_a_schedule_each():
    assert isinstance(standing(run(*two(3e-4, 3e-4), optimizers=2)), Missing)


# -- what they decay ---------------------------------------------------------------------------------------------------


def test_torch_tells_adam_from_adamw_and_older_groups_do_not():
    def check(optimizer, values, decay=0.1):
        found = group(100, "ab", optimizer=optimizer, values=values, decay=decay)
        return groups.saved_adam_couples_decay(run(found), least=0.05)

    assert len(check("adam", {"decoupled_weight_decay": False})) == 1
    assert len(check("amsgrad", {"decoupled_weight_decay": False})) == 1
    assert check("adam", {"decoupled_weight_decay": False}, decay=1e-4) == []
    assert check("adamw", {"decoupled_weight_decay": True}) == []
    assert isinstance(check("adam", {}), Missing)
    assert check("adam", {}, decay=0.0) == []
    assert isinstance(check("sgd", {}), Missing)


def gains(*found, kind="saved", naming="exact"):
    names = ["w", "ln_1.weight", "ln_1.bias", "ln_2.weight"]
    return groups.gains_in_a_decayed_group(run(*found, names=names, naming=naming), kind=kind)


def test_some_gains_decayed_and_some_spared_is_a_remark():
    spared = group(100, ["ln_1.bias"], 1, decay=0.0)
    (hit,) = gains(group(100, ["w", "ln_1.weight", "ln_2.weight"]), spared)
    assert (hit.facts["decayed"], hit.facts["spared"]) == (2, 1)
    alone = gains(group(100, ["w", "ln_1.weight", "ln_2.weight"]), spared, kind="recovered")
    assert alone == Missing("travels:one-update")
    assert isinstance(gains(group(100, ["w", "ln_1.weight"]), spared, naming="likely"), Missing)


def test_all_decayed_all_spared_and_only_matrices_spared_are_choices():
    everything = ["w", "ln_1.weight", "ln_1.bias", "ln_2.weight"]
    assert gains(group(100, everything)) == []
    assert gains(group(100, ["w"]), group(100, everything[1:], 1, decay=0.0)) == []
    assert gains(group(100, everything[1:]), group(100, ["w"], 1, decay=0.0)) == []


# -- their order -------------------------------------------------------------------------------------------------------


def layers(*rates, initial=None):
    names = [f"h.{number}.w" for number in range(len(rates))]
    found = [
        group(100, [name], number, rate, values={} if initial is None else {"initial_lr": initial[number]})
        for number, (name, rate) in enumerate(zip(names, rates, strict=True))
    ]
    return groups.group_rates_fall_towards_output(run(*found, names=names), factor=1.05)


def test_rates_that_fall_towards_the_output_are_a_hit():
    (hit,) = layers(3e-3, 2e-3, 1e-3)
    assert (hit.facts["bottom"], hit.facts["top"], hit.facts["stack"]) == (3e-3, 1e-3, "h")


def test_rates_that_rise_stand_or_go_up_and_down_are_none():
    assert layers(1e-3, 2e-3, 3e-3) == []
    assert layers(1e-3, 1e-3, 1e-3) == []
    assert layers(3e-3, 1e-3, 2e-3) == []
    assert layers(3e-3, 1e-3) == []  # two layers are no order


def test_the_rates_that_the_schedule_started_from_count():
    assert layers(0.0, 0.0, 0.0, initial=[1e-3, 2e-3, 3e-3]) == []
    assert len(layers(1e-6, 1e-6, 1e-6, initial=[3e-3, 2e-3, 1e-3])) == 1
