"""Checks on the rate and decay that Adam applied: against the groups, the log and the settings."""

import json

import pytest

from gradforensics.diagnosis.checks import applied
from gradforensics.diagnosis.examples import evidence_of
from gradforensics.diagnosis.vocabulary import Missing

COSINE = "cosine(peak=1e-3, warmup=10, steps=200)"  # 5.1e-4 at step 104


def tensor(step, name):
    counts = dict.fromkeys(("nan", "posinf", "neginf", "zero", "one"), 0)
    return {
        "checkpoint": f"step_{step}", "step": step, "role": "param", "name": name, "dtype": "float32",
        "shape": [64, 64], "count": 4096, "fingerprint": f"{name}{step}", **counts,
    }  # fmt: skip


def moved(name, lr, wd=None, first=103, **more):
    common = {"changed": 1.0, "rel_travel": 1e-3, "residual": 1e-5, "v_error": 1e-7, "grad_l2": 1.0}
    decay = {} if wd is None else {"recovered_wd": wd, "wd_error": 1e-4}
    return {
        "first_step": first, "step": first + 1, "checkpoint": f"step_{first + 1}", "name": name, "count": 4096,
        "nonfinite": 0, "recovered_lr": lr, "lr_error": 1e-4 * lr, **common, **decay, **more,
    }  # fmt: skip


def group(step, lr, number=0, names=("a",), **more):
    values = more.pop("values", {})
    return {
        "checkpoint": f"step_{step}", "group": number, "optimizer": "adamw", "lr": lr, "betas": [0.9, 0.999],
        "eps": 1e-8, "weight_decay": 0.0, "names": list(names), "step_min": step, "step_max": step,
        "values": json.dumps(values), **more,
    }  # fmt: skip


def pair(groups, travels, names=("a",), first=103, **more):
    """The evidence of two checkpoints one step apart."""
    steps = (first, first + 1)
    return evidence_of({
        "checkpoints": [{"path": f"step_{s}", "step": s, "naming_sure": "exact"} for s in steps],
        "tensors": [tensor(s, name) for s in steps for name in names],
        "groups": groups,
        "travels": travels,
        **more,
    })  # fmt: skip


def saved(evidence):
    return applied.applied_rate_is_not_saved(evidence, tolerance=0.05)


def logged(evidence):
    return applied.applied_rate_stands_while_logged_moves(evidence, tolerance=0.05, moving=0.05)


# -- against the groups ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [5.1e-4, 5.0e-4, 5.05e-4, 5.3e-4])
def test_a_rate_between_the_saved_ones_or_near_them_is_no_hit(rate):
    assert saved(pair([group(103, 5.1e-4), group(104, 5.0e-4)], [moved("a", rate)])) == []


def test_a_rate_that_neither_checkpoint_holds_is_a_hit_with_the_nearest_one():
    (hit,) = saved(pair([group(103, 5.1e-4), group(104, 5.0e-4)], [moved("a", 1.02e-3)]))
    assert (hit.step, hit.tensor) == (104, "a")
    assert hit.facts["saved"] == 5.1e-4
    assert hit.facts["times"] == pytest.approx(2.0)


def test_a_rate_within_its_error_of_a_saved_one_is_no_hit():
    assert saved(pair([group(103, 5e-4), group(104, 5e-4)], [moved("a", 6e-4, lr_error=1e-4)])) == []


def test_weights_that_were_not_written_back_are_another_question():
    answer = saved(pair([group(103, 5e-4), group(104, 5e-4)], [moved("a", 0.0, residual=0.0, lr_error=1e-8)]))
    assert isinstance(answer, Missing)


def test_every_group_is_compared_with_its_own_rate():
    groups = [group(s, lr, n, names) for s in (103, 104) for n, (lr, names) in enumerate([(1e-3, "a"), (1e-5, "b")])]
    assert saved(pair(groups, [moved("a", 1e-3), moved("b", 1e-5)], "ab")) == []
    (hit,) = saved(pair(groups, [moved("a", 1e-3), moved("b", 1e-3)], "ab"))
    assert hit.facts["group"] == 1


def test_an_optimizer_that_does_not_correct_the_bias_is_no_hit():
    step, lr = 10, 1e-3
    as_told = lr / ((1 - 0.999**step) ** 0.5 / (1 - 0.9**step))  # what the formula with correction makes of it
    groups = [group(9, lr), group(10, lr)]
    assert saved(pair(groups, [moved("a", as_told, first=9)], first=9)) == []
    marked = [group(9, lr, values={"correct_bias": False}), group(10, lr, values={"correct_bias": False})]
    answer = saved(pair(marked, [moved("a", 5e-3, first=9)], first=9))
    assert answer == Missing("Adam with its bias corrected")


@pytest.mark.parametrize("wrong", [{"residual": 0.5}, {"v_error": 0.1}, {"nonfinite": 3}])
def test_tensors_that_did_not_move_as_their_states_say_do_not_count(wrong):
    groups = [group(103, 5e-4), group(104, 5e-4)]
    assert isinstance(saved(pair(groups, [moved("a", 1e-3, **wrong)])), Missing)


@pytest.mark.parametrize("kind", ["", "lion", "sgd", "adafactor", "adam-8bit", "muon", "radam"])
def test_other_optimizers_are_not_judged(kind):
    groups = [group(103, 5e-4, optimizer=kind), group(104, 5e-4, optimizer=kind)]
    assert isinstance(saved(pair(groups, [moved("a", 1e-3)])), Missing)


# -- against the log ---------------------------------------------------------------------------------------------------


def test_a_standing_rate_under_a_moving_log_is_a_hit():
    groups = [group(103, 1e-3), group(104, 1e-3)]
    (hit,) = logged(pair(groups, [moved("a", 1e-3)], series={"lr": COSINE}))
    assert hit.facts["scheduled"] == pytest.approx(5.1e-4, rel=0.02)
    assert hit.facts["peak"] == pytest.approx(1e-3)


def test_a_logged_rate_that_was_applied_is_no_hit_whichever_step_the_log_means():
    for rate in (5.0e-4, 5.1e-4, 5.2e-4):
        groups = [group(103, rate), group(104, rate)]
        assert logged(pair(groups, [moved("a", rate)], series={"lr": COSINE})) == []


def test_a_log_of_every_twentieth_step_is_read_between_its_points():
    groups = [group(103, 6e-4), group(104, 6e-4)]
    series = {"lr": "ramp(1e-3, 1e-4, 10)"}  # 6e-4 at 100, 5e-4 at 120
    assert logged(pair(groups, [moved("a", 5.5e-4)], series=series, every={"lr": 20})) == []


def test_a_constant_in_the_log_may_be_a_setting():
    groups = [group(103, 1e-3), group(104, 1e-3)]
    assert isinstance(logged(pair(groups, [moved("a", 1e-3)], series={"lr": "3e-4*200"})), Missing)


def test_one_of_several_groups_may_be_the_logged_one():
    rates = [(5.1e-4, "a"), (1e-5, "b")]
    groups = [group(s, lr, n, names) for s in (103, 104) for n, (lr, names) in enumerate(rates)]
    assert logged(pair(groups, [moved("a", 5.1e-4), moved("b", 1e-5)], "ab", series={"lr": COSINE})) == []
    rates = [(1e-4, "a"), (1e-5, "b")]
    groups = [group(s, lr, n, names) for s in (103, 104) for n, (lr, names) in enumerate(rates)]
    answer = logged(pair(groups, [moved("a", 1e-4), moved("b", 1e-5)], "ab", series={"lr": COSINE}))
    assert answer == Missing("one rate for all groups in both checkpoints")


def test_weights_of_another_optimizer_may_be_the_logged_ones():
    groups = [group(103, 1e-3), group(104, 1e-3)]
    answer = logged(pair(groups, [moved("a", 1e-3), moved("b", 1e-3)], "ab", series={"lr": COSINE}))
    assert answer == Missing("the optimizer of every weight that moved")


def test_a_log_in_another_unit_is_not_judged():
    groups = [group(103, 1e-3), group(104, 1e-3)]
    series = {"lr": "cosine(peak=1.0, warmup=10, steps=200)"}  # in thousandths
    answer = logged(pair(groups, [moved("a", 1e-3)], series=series))
    assert answer == Missing("a log and an optimizer that count the rate in one unit")


def test_a_log_that_counts_micro_steps_is_read_there_too():
    groups = [group(103, 1e-3), group(104, 1e-3)]
    series = {"lr": "1e-4*50 5e-4*350 1e-3*100"}
    more = {"series": series, "settings": {"gradient_accumulation_steps": 4}}
    assert logged(pair(groups, [moved("a", 1e-3)], **more)) == []


def distant(rate, series, **more):
    """Two checkpoints far apart, with one rate or two."""
    first, last = rate if isinstance(rate, tuple) else (rate, rate)
    return evidence_of({
        "checkpoints": [{"path": f"step_{s}", "step": s, "naming_sure": "exact"} for s in (50, 150)],
        "tensors": [tensor(s, "a") for s in (50, 150)],
        "groups": [group(50, first, **more), group(150, last, **more)],
        "travels": [moved("a", 1e-3, first=50, residual=None, grad_l2=None) | {
            "step": 150, "checkpoint": "step_150"}],
        "series": series,
    })  # fmt: skip


def test_a_saved_rate_that_stands_is_enough_where_checkpoints_lie_apart():
    def check(evidence):
        return applied.saved_rate_stands_while_logged_moves(evidence, tolerance=0.05, moving=0.05)

    (hit,) = check(distant(1e-3, {"lr": COSINE}))
    assert (hit.after, hit.step) == (50, 150)
    assert (check(distant(1e-3, {"lr": COSINE}, optimizer="sgd"))) != []
    assert isinstance(check(distant(1e-3, {"lr": COSINE}, optimizer="")), Missing)
    assert isinstance(check(distant(1e-3, {"lr": "1e-3*200"})), Missing)
    assert check(distant(1e-3, {"lr": "ramp(1e-4, 1e-3, 30) 1e-3*170"})) == []
    assert check(distant((1e-3, 9e-4), {"lr": COSINE})) == []  # it moves, whatever the log is of


# -- against the settings ----------------------------------------------------------------------------------------------

PLAN = {"lr_scheduler_type": "cosine", "learning_rate": 1e-3, "max_steps": 200, "warmup_steps": 10}


def configured(rate, **settings):
    groups = [group(103, rate), group(104, rate)]
    evidence = pair(groups, [moved("a", rate)], settings=PLAN | settings)
    return applied.applied_rate_stands_at_configured(evidence, tolerance=0.05)


def test_without_a_log_the_configured_rate_itself_is_a_hit_where_the_schedule_has_left_it():
    (hit,) = configured(1e-3)
    assert hit.facts["scheduled"] == pytest.approx(5.1e-4, rel=0.02)


def test_without_a_log_the_scheduled_rate_a_constant_schedule_and_any_third_rate_are_no_hits():
    assert configured(5.1e-4) == []
    assert configured(1e-3, lr_scheduler_type="constant") == []
    assert configured(4e-3) == []  # scaled with the batch, perhaps


# -- decay -------------------------------------------------------------------------------------------------------------


def decay(kind, optimizer, wd, configured_decay=0.1, **values):
    groups = [group(s, 1e-3, optimizer=optimizer, weight_decay=configured_decay, values=values) for s in (103, 104)]
    evidence = pair(groups, [moved("a", 1e-3, wd)])
    return applied.decay_not_in_the_weights(evidence, least=0.01, share=0.2, kind=kind)


def test_a_decay_that_is_not_in_the_weights_is_coupled_in_adam_and_lost_in_adamw():
    assert len(decay("coupled", "adam", 1e-5)) == 1
    assert decay("lost", "adam", 1e-5) == []
    assert len(decay("lost", "adamw", 1e-5)) == 1
    assert decay("coupled", "adamw", 1e-5) == []
    assert len(decay("lost", "amsgrad", 1e-5, decoupled_weight_decay=True)) == 1


def test_a_decay_that_is_in_the_weights_or_too_small_to_be_seen_is_no_hit():
    assert decay("coupled", "adam", 0.1) == []
    assert decay("lost", "adamw", 0.05) == []  # a schedule of its own, or one that divides by the first rate
    assert isinstance(decay("lost", "adamw", None), Missing)
    assert isinstance(decay("lost", "adamw", 0.0, configured_decay=1e-4), Missing)
