"""The optimizers of torch, and states as other packages lay them out, read as plain data."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradforensics.checkpoints import layout
from gradforensics.checkpoints.formats import torch_file
from gradforensics.checkpoints.optimizer import parameter_shape, read_optimizer, role_of
from gradforensics.checkpoints.refs import Lost, Run, TensorRef
from gradforensics.untrusted.files import Memory, RefusedError, RegularFile

SHARED = Path(__file__).parents[2].parent / "shared" / "checkpoints"


def tensor(array, dtype=None):
    array = np.asarray(array)
    runs = (Run(Memory("m", array.tobytes()), 0, array.size),) if array.size else ()
    return TensorRef(dtype or str(array.dtype), array.shape, runs)


def zeros(*shape, dtype="float32"):
    return tensor(np.zeros(shape, dtype))


def optimizers(path):
    """The state dicts of all optimizers in a file of torch.save, as the reader gives them."""
    found = torch_file.read(RegularFile(path, path.name, path.stat().st_size))
    return [state_dict for _, state_dict in layout.understand(found.root).optimizers]


def one_group(states, **values):
    return read_optimizer({"state": {0: states}, "param_groups": [{"params": [0], **values}]})


def kind(states, **values):
    return one_group(states, **values).groups[0].optimizer


ADAM = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0}


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("Adam", {}, "adam"),
        ("AdamW", {}, "adamw"),
        ("AdamW", {"amsgrad": True}, "amsgrad"),
        ("AdamW", {"fused": True}, "adamw"),
        ("RAdam", {}, "radam"),
        ("NAdam", {}, "nadam"),
        ("Adamax", {}, "adamax"),
        ("SGD", {"lr": 0.1}, "sgd"),
        ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}, "sgd"),
        ("RMSprop", {}, "rmsprop"),
        ("RMSprop", {"momentum": 0.9, "centered": True}, "rmsprop"),
        ("Adagrad", {}, "adagrad"),
        ("Adadelta", {}, "adadelta"),
        ("Adafactor", {}, "adafactor"),
        ("ASGD", {}, "asgd"),
        ("Rprop", {}, "rprop"),
        ("Muon", {}, "muon"),
    ],
)
@pytest.mark.parametrize("steps", [0, 2])
def test_every_optimizer_of_torch_is_told_with_and_without_states(tmp_path, name, values, expected, steps):
    import torch

    made = getattr(torch.optim, name, None)
    if made is None:
        pytest.skip(f"this torch has no {name}")
    parameter = torch.nn.Parameter(torch.ones(3, 4))
    optimizer = made([parameter], **values)
    for _ in range(steps):
        (parameter**2).sum().backward()
        optimizer.step()
    torch.save({"optimizer": optimizer.state_dict()}, tmp_path / "a.pt")

    [state_dict] = optimizers(tmp_path / "a.pt")
    found = read_optimizer(state_dict)

    [group] = found.groups
    # before the first step, nothing in the groups of these two is theirs alone
    assert group.optimizer == (expected if steps or name not in {"RAdam", "Adamax"} else "")
    assert group.names == ["0"]
    assert group.lr == optimizer.param_groups[0]["lr"]
    assert group.weight_decay == optimizer.param_groups[0].get("weight_decay")
    assert group.momentum == optimizer.param_groups[0].get("momentum")
    if steps and "step" in optimizer.state[parameter]:
        assert (group.step_min, group.step_max) == (2, 2)
        assert found.steps == {"0": 2}
    if steps and optimizer.state[parameter]:
        states = {k for k, v in optimizer.state[parameter].items() if k != "step" and torch.is_tensor(v)}
        assert found.states["0"].keys() == states
        assert parameter_shape(found.states["0"]) == (3, 4)
    assert not found.notices


def test_what_a_group_holds_besides_is_kept_as_plain_data(tmp_path):
    import torch

    parameters = [torch.nn.Parameter(torch.ones(3, 4)), torch.nn.Parameter(torch.ones(4))]
    groups = [{"params": parameters[:1], "lr_mult": 2.0}, {"params": parameters[1:], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=torch.tensor(0.01), betas=(0.8, 0.99), capturable=True, foreach=False)
    torch.save({"optimizer": optimizer.state_dict()}, tmp_path / "a.pt")

    first, second = read_optimizer(optimizers(tmp_path / "a.pt")[0]).groups

    assert (first.names, second.names) == (["0"], ["1"])
    assert first.lr == np.float32(0.01)
    assert first.betas == (0.8, 0.99)
    assert first.eps == 1e-8
    assert (first.weight_decay, second.weight_decay) == (0.01, 0.0)
    assert first.values["lr_mult"] == 2.0
    assert first.values["capturable"] is True
    assert first.values["fused"] is None
    assert not {"lr", "betas", "params", "weight_decay", "eps"} & first.values.keys()


@pytest.mark.parametrize(
    ("keys", "values", "expected"),
    [
        (("exp_avg", "exp_avg_sq"), {"bias_correction": True}, "adam"),  # apex, DeepSpeed
        (("exp_avg", "exp_avg_sq"), {"correct_bias": True}, "adamw"),  # transformers before 5
        (("exp_avg", "exp_avg_sq"), {"grad_averaging": True}, ""),  # LAMB
        (("exp_avg", "exp_avg_sq"), {"rank": 8, "update_proj_gap": 200}, ""),  # GaLore
        (("exp_avg", "exp_avg_sq", "s"), {"d0": 1e-6}, ""),  # Prodigy
        (("exp_avg", "exp_avg_sq", "exp_avg_diff"), {}, ""),  # Adan
        (("exp_avg", "exp_avg_sq", "compensation"), {"use_kahan_summation": True}, ""),
        (("exp_avg", "exp_avg_sq"), {"use_kahan_summation": False}, "adam"),
        (("exp_avg", "exp_avg_sq"), {"bf16_stochastic_round": True}, ""),
        (("exp_avg", "exp_avg_sq"), {"use_muon": False}, "adam"),
        (("z", "exp_avg_sq"), {"train_mode": True}, ""),  # schedule-free
        (("unheard_of",), {}, ""),
    ],
)
def test_optimizers_with_moments_are_adam_only_where_nothing_says_otherwise(keys, values, expected):
    assert kind({key: zeros(2, 2) for key in keys} | {"step": 1}, **ADAM, **values) == expected


def test_momentum_buffers_are_of_sgd_only_with_its_dampening():
    buffer = {"momentum_buffer": zeros(2, 2)}

    assert kind(buffer, lr=0.1, momentum=0.9, dampening=0, nesterov=False) == "sgd"
    assert kind(buffer, lr=0.1, momentum=0.95, nesterov=True, ns_steps=5) == "muon"
    assert kind(buffer, lr=0.1, momentum=0.95, use_muon=True) == "muon"
    assert kind(buffer, lr=0.1, momentum=0.95) == ""


def test_lion_is_told_by_a_single_moment_and_no_eps():
    assert kind({"exp_avg": zeros(2, 2)}, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0) == "lion"
    assert kind({"exp_avg": zeros(2, 2)}, **ADAM) == ""


def test_states_of_8_bits_are_marked_and_have_no_role_of_moments():
    states = {
        "step": 3,
        "state1": zeros(4, 4, dtype="uint8"),
        "state2": zeros(4, 4, dtype="uint8"),
        "qmap1": zeros(256),
        "absmax1": zeros(1),
    }
    found = one_group(states, **ADAM)

    assert found.groups[0].optimizer == "adam-8bit"
    assert parameter_shape(found.states["0"]) == (4, 4)
    assert {role_of(key, ref.dtype) for key, ref in found.states["0"].items()} == {"state"}
    assert role_of("exp_avg", "uint8") == "state"
    assert kind({"state1": zeros(4, 4, dtype="uint8"), "qmap1": zeros(256)}, **ADAM) == "8-bit"
    assert kind({"state1": zeros(4, 4), "state2": zeros(4, 4)}, **ADAM) == "bitsandbytes"


def test_roles_follow_the_keys_of_the_states():
    keys = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "master_param", "square_avg")

    assert [role_of(key, "float32") for key in keys] == [
        "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum", "master", "state",
    ]  # fmt: skip


def test_factored_moments_tell_the_shape_of_their_parameter():
    assert parameter_shape({"exp_avg_sq_row": zeros(2, 5), "exp_avg_sq_col": zeros(2, 7)}) == (2, 5, 7)
    assert parameter_shape({"row_var": zeros(2, 5, 1), "col_var": zeros(2, 1, 7)}) == (2, 5, 7)
    assert parameter_shape({"exp_avg_sq": zeros(5), "RMS": zeros()}) == (5,)


def test_states_that_do_not_tell_a_shape_have_none():
    assert parameter_shape({}) is None
    assert parameter_shape({"exp_avg": zeros(2, 3), "exp_avg_sq": zeros(6)}) is None
    assert parameter_shape({"left": zeros(2, 2), "right": zeros(3, 3)}) is None
    assert parameter_shape({"row_var": zeros(), "col_var": zeros()}) is None
    assert parameter_shape({"mine": zeros(2, 2), "scale": zeros()}) == (2, 2)


def test_lost_tensors_still_tell_their_shape():
    found = one_group({"exp_avg": Lost("float32", (2, 3), "cut"), "exp_avg_sq": Lost("float32", (2, 3), "cut")}, **ADAM)

    assert parameter_shape(found.states["0"]) == (2, 3)


def test_nested_tensors_are_found_under_paths():
    states = {"GG": [zeros(2, 2), zeros(3, 3)], "inner": {"deep": {"x": zeros(1)}}}

    assert one_group(states).states["0"].keys() == {"GG.0", "GG.1", "inner.deep.x"}


def test_a_step_counter_of_the_group_counts_for_all_of_its_parameters():
    states = {0: {"exp_avg": zeros(2), "exp_avg_sq": zeros(2)}, 1: {"exp_avg": zeros(3), "exp_avg_sq": zeros(3)}}
    found = read_optimizer({"state": states, "param_groups": [{"params": [0, 1], "step": 7, **ADAM}]})

    assert found.steps == {"0": 7, "1": 7}
    assert (found.groups[0].step_min, found.groups[0].step_max) == (7, 7)


def test_step_counters_that_differ_show_in_their_range():
    states = {0: {"step": tensor(np.float32(4))}, 1: {"step": 9}, 2: {"step": tensor(np.float32(2.5))}, 3: {"step": -1}}
    found = read_optimizer({"state": states, "param_groups": [{"params": [0, 1, 2, 3]}]})

    assert found.steps == {"0": 4, "1": 9}
    assert (found.groups[0].step_min, found.groups[0].step_max) == (4, 9)


def test_names_in_groups_and_in_keys_are_found():
    grouped = read_optimizer({"state": {}, "param_groups": [{"params": [0, 1], "param_names": ["a.w", "a.b"]}]})
    keyed = read_optimizer({"state": {"a.w": {"step": 1}}, "param_groups": [{"params": ["a.w", "a.b"]}]})
    numbered = read_optimizer({"state": {"0": {"step": 1}}, "param_groups": [{"params": ["0"]}]})

    assert (grouped.names, grouped.named_by) == ({"0": "a.w", "1": "a.b"}, "param_names")
    assert (keyed.names, keyed.named_by) == ({"a.w": "a.w", "a.b": "a.b"}, "keys")
    assert (numbered.names, numbered.named_by) == ({}, "")


def test_a_list_of_names_of_another_length_is_not_believed():
    found = read_optimizer({"state": {}, "param_groups": [{"params": [0, 1], "param_names": ["a.w"]}]})

    assert (found.names, found.named_by) == ({}, "")


def test_ids_that_are_none_or_come_twice_are_left_out_and_said():
    groups = [{"params": [0, 1, 1, None, 10**5000]}, {"params": [1, 2]}, "no group"]
    states = {0: {"step": 1}, 7: {"step": 1}, (1, 2): {"step": 1}, 2: "no state"}
    found = read_optimizer({"state": states, "param_groups": groups})

    assert [group.names for group in found.groups] == [["0", "1"], ["2"]]
    assert found.notices == [
        "2 entries of the optimizer's state are no parameter's and were left out",
        "parameter group 0 lists 3 parameters twice, or that are none",
        "parameter group 1 lists 1 parameters twice, or that are none",
        "parameter group 2 is no dictionary and was left out",
        "1 entries of the optimizer's state belong to no parameter group",
    ]


def test_what_is_no_optimizer_is_refused():
    with pytest.raises(RefusedError, match="neither 'state' nor 'param_groups'"):
        read_optimizer({"model": {}})


def test_one_list_shared_by_many_groups_does_not_multiply():
    shared = list(range(3000))
    with pytest.raises(RefusedError, match="more than"):
        read_optimizer({"state": {}, "param_groups": [{"params": shared}] * 1000})


keys = st.one_of(
    st.sampled_from([
        "state", "param_groups", "params", "param_names", "lr", "betas", "eps", "step", "exp_avg", "exp_avg_sq",
        "momentum_buffer", "state1", "row_var", "col_var", "weight_decay", "momentum", "amsgrad",
    ]),
    st.integers(-2, 5),
    st.text(max_size=3),
    st.none(),
)  # fmt: skip
cut = TensorRef("float32", (), (Run(Memory("m", b"\0"), 0, 1),))
values = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.just(10**400), st.floats(), st.text(max_size=3),
        st.just(zeros(2, 2)), st.just(cut), st.just(tensor(np.float32(np.nan))), st.just(zeros(0, 3)),
        st.just(Lost("float32", (2,), "gone")), st.just(zeros(dtype="complex64")),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.tuples(inner, inner), st.dictionaries(keys, inner, max_size=4)
    ),
    max_leaves=20,
)  # fmt: skip


@given(st.dictionaries(keys, values, max_size=4), st.dictionaries(keys, values, max_size=4), values)
def test_forged_states_raise_nothing_but_refusals(state, group, other):
    for forged in (
        {"state": state, "param_groups": [group]},
        {"state": {0: state, 1: group}, "param_groups": [{**group, "params": [0, 1]}, other]},
        {"state": other, "param_groups": other},
    ):
        try:
            found = read_optimizer(forged)
        except RefusedError:
            continue
        listed = [identity for group in found.groups for identity in group.names]
        assert len(listed) == len(set(listed))
        for tensors in found.states.values():
            parameter_shape(tensors)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("hf_llama/checkpoint-6/optimizer.pt", "adamw"),
        ("hf_adafactor/checkpoint-6/optimizer.pt", "adafactor"),
        ("hf_sgd/checkpoint-6/optimizer.pt", "sgd"),
        ("accelerate_no/optimizer.bin", "adamw"),
        ("fsdp2_full/full.pt", "adamw"),
        ("plain/legacy.pt", "adamw"),
    ],
)
def test_optimizers_of_real_checkpoints_are_told(name, expected):
    path = SHARED / name
    if not path.exists():
        pytest.skip("no shared samples")
    [state_dict] = optimizers(path)
    found = read_optimizer(state_dict)

    assert {group.optimizer for group in found.groups} == {expected}
    assert not found.notices
    assert "checkpoint-6" not in name or set(found.steps.values()) == (set() if expected == "sgd" else {6})
