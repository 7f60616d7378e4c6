"""Whose state is it: pairs of vectors that correlate, and the order of layers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradforensics.checkpoints.correlating import change_of, fill, in_order, match, place, update_of
from gradforensics.checkpoints.refs import Lost, Run, TensorRef
from gradforensics.untrusted.files import Memory


def tensor(values, dtype="float32"):
    array = np.asarray(values, dtype)
    return TensorRef(dtype, array.shape, (Run(Memory("m", array.tobytes()), 0, array.size),))


def listed(vector):
    return None if vector is None else vector.tolist()


def test_updates_follow_the_optimizers():
    m, v = tensor([1.0, -2.0, 0.0]), tensor([4.0, 1.0, 0.0])

    assert listed(update_of({"exp_avg": m, "exp_avg_sq": v}, 0.5)) == [-0.4, 2.0 / 1.5, 0.0]
    assert listed(update_of({"exp_avg": m}, None)) == [-1.0, 1.0, 0.0]
    assert listed(update_of({"momentum_buffer": m}, None)) == [-1.0, 2.0, 0.0]
    assert update_of({"square_avg": v}, None) is None
    assert update_of({"exp_avg": m, "exp_avg_sq": Lost("float32", (3,), "cut")}, None) is None
    assert update_of({"exp_avg": m, "exp_avg_sq": tensor([1.0])}, None) is None


def test_changes_are_differences_of_tensors_of_one_shape():
    assert listed(change_of(tensor([1.0, 2.0]), tensor([1.5, 0.0]))) == [0.5, -2.0]
    assert change_of(tensor([1.0, 2.0]), tensor([[1.0, 2.0]])) is None
    assert change_of(tensor([1, 2], "int32"), tensor([1, 2], "int32")) is None


@given(st.integers(2, 12), st.integers(0, 10**6))
def test_each_state_finds_its_own_parameter(count, seed):
    random = np.random.default_rng(seed)
    updates = {f"id{n}": random.standard_normal(400) for n in range(count)}
    # a common drift and noise of the same size as the update, as ten further steps make
    drift = 3.0
    changes = {
        f"p{n}": updates[f"id{n}"] * 1e-4 + random.standard_normal(400) * 1e-4 + drift
        for n in random.permutation(count).tolist()
    }

    assert match(updates, changes) == {f"id{n}": f"p{n}" for n in range(count)}


@pytest.mark.parametrize("size", [8, 16, 32, 128, 1000])
@pytest.mark.parametrize("count", [1, 2, 5, 20])
def test_what_does_not_correlate_is_not_matched(count, size):
    random = np.random.default_rng(0)
    for _ in range(100):
        updates = {f"id{n}": random.standard_normal(size) for n in range(count)}
        changes = {f"p{n}": random.standard_normal(size) for n in range(count)}

        assert match(updates, changes) == {}


def test_states_that_fit_two_parameters_stay_without_a_name():
    random = np.random.default_rng(0)
    update = random.standard_normal(500)

    assert match({"0": update}, {"a": update, "b": update + 0.3 * random.standard_normal(500)}) == {}
    assert match({"0": update, "1": update}, {"a": update}) == {}


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e308])
def test_numbers_that_are_none_do_not_disturb_the_others(bad):
    random = np.random.default_rng(0)
    updates = {str(n): random.standard_normal(500) for n in range(3)}
    changes = {str(n): update.copy() for n, update in updates.items()}
    changes["0"][7] = bad
    updates["1"][:] = bad
    changes["2"][:] = 0.0

    assert match(updates, changes) == ({} if bad == 1e308 else {"0": "0"})


def test_layers_are_found_in_names():
    assert place("model.layers.10.mlp.experts.3.w") == ("model.layers", 10)
    assert place("0.weight") == ("", 0)
    assert place("layer1.0.conv2.weight") == ("layer1", 0)
    assert place("lm_head.weight") is None


def test_layer_2_stands_before_layer_10():
    names = {"0": "embed", "1": "h.2.w", "2": "h.10.w", "3": "g.0.w", "4": "norm"}

    assert in_order(["0", "1", "2", "3", "4"], names)
    assert not in_order(["0", "2", "1", "3", "4"], names)
    assert in_order(["2"], names)


def test_the_order_of_the_layers_leaves_one_candidate():
    group = [str(n) for n in range(6)]
    names = {"0": "h.0.a", "2": "h.1.a", "4": "h.2.a"}
    free = ["h.0.b", "h.1.b", "h.2.b"]

    # ids 1 and 3 stand between two layers, each of which could be theirs
    assert fill(group, names, dict.fromkeys(["1", "3", "5"], free)) == {"5": "h.2.b"}
    assert fill(group, {**names, "5": "h.2.b"}, dict.fromkeys(["1", "3"], free[:2])) == {"3": "h.1.b"}
    assert fill(group, {**names, "3": "h.1.b"}, {"1": free[:1]}) == {"1": "h.0.b"}
