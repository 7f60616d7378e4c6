"""Names of optimizer states that one update proves."""

from dataclasses import replace

import numpy as np
import pytest

from gradforensics.checkpoints import layout, stepping, tree
from gradforensics.checkpoints.formats import torch_file
from gradforensics.checkpoints.optimizer import read_optimizer
from gradforensics.untrusted.files import RegularFile


def opened(path):
    """Parameters by name, and the optimizer's state."""
    found = layout.understand(torch_file.read(RegularFile(path, path.name, path.stat().st_size)).root)
    parameters = {t.name: tree.reference(t.leaf, path.name) for t in found.tensors if t.role == "param"}
    return parameters, read_optimizer(found.optimizers[0][1])


@pytest.fixture
def stack(tmp_path):
    """Six layers of equal shapes under one optimizer; gives weights at a step and one update later, and its state."""
    import torch
    from torch import nn

    def make(apart=1, touch=None, *, kind="AdamW", begin=10, dtype=torch.float32, **options):
        torch.manual_seed(0)
        layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(6)).to(dtype)
        named = list(layers.named_parameters())
        optimizer = getattr(torch.optim, kind)([parameter for _, parameter in named], **options)

        def advance(steps):
            for _ in range(steps):
                hidden = x = torch.randn(64, 16, dtype=dtype)
                for layer in layers:
                    hidden = hidden + torch.tanh(layer(hidden))
                optimizer.zero_grad()
                (hidden - x.flip(1)).square().mean().backward()
                optimizer.step()

        def save(name):
            torch.save({"model": layers.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / name)
            return opened(tmp_path / name)

        advance(begin)
        before, _ = save("before.pt")
        advance(apart)
        if touch is not None:
            touch(dict(named))
        after, state = save("after.pt")
        return before, after, state, [name for name, _ in named]

    return make


@pytest.mark.parametrize(
    "options",
    [
        {"lr": 1e-3}, {"lr": 1e-5}, {"lr": 1e-3, "weight_decay": 0.0}, {"lr": 1e-3, "amsgrad": True},
        {"lr": 1e-3, "kind": "Adam", "weight_decay": 0.1},
    ],
)  # fmt: skip
def test_every_state_is_named_by_one_update_whatever_the_order(stack, options):
    before, after, state, truth = stack(**options)
    ids = [identity for group in state.groups for identity in group.names]

    found = stepping.names(state, ids, dict(sorted(before.items())), dict(sorted(after.items())))

    assert found == dict(zip(ids, truth, strict=True))


def test_only_the_ids_that_are_one_update_further_are_asked(stack):
    before, after, state, truth = stack()
    assert stepping.names(state, ["3"], before, after) == {"3": truth[3]}
    assert stepping.names(state, [], before, after) == {}


def test_two_updates_prove_nothing(stack):
    before, after, state, _ = stack(apart=2)
    ids = list(state.states)
    assert stepping.names(state, ids, before, after) == {}


def test_a_parameter_that_something_else_wrote_gets_no_name_and_misleads_no_other(stack):
    import torch

    def touch(parameters):
        with torch.no_grad():
            parameters["5.weight"].add_(torch.randn(16, 16), alpha=1e-3)

    before, after, state, truth = stack(touch=touch)
    found = stepping.names(state, list(state.states), before, after)
    assert "5.weight" not in found.values()
    assert found == {identity: truth[int(identity)] for identity in state.states if truth[int(identity)] != "5.weight"}


def test_a_copy_of_a_parameter_leaves_its_state_without_a_name(stack):
    before, after, state, truth = stack()
    for weights in (before, after):
        weights["copy.weight"] = weights["3.weight"]
    found = stepping.names(state, list(state.states), before, after)
    assert set(truth) - set(found.values()) == {"3.weight"}
    assert "copy.weight" not in found.values()


def test_other_optimizers_half_precision_and_betas_that_vary_prove_nothing(stack):
    import torch

    for options in ({"kind": "RAdam", "lr": 1e-3}, {"lr": 1e-3, "dtype": torch.bfloat16}):
        before, after, state, _ = stack(**options)
        assert stepping.names(state, list(state.states), before, after) == {}
    before, after, state, _ = stack()
    state.groups = [replace(group, varied=True) for group in state.groups]
    assert stepping.names(state, list(state.states), before, after) == {}


def test_first_updates_which_are_of_one_size_prove_names_of_large_tensors_only(stack):
    before, after, state, truth = stack(begin=0)
    weights = {str(place): name for place, name in enumerate(truth) if name.endswith("weight")}
    assert stepping.names(state, list(state.states), before, after) == weights  # biases have 16 elements


def test_what_is_left_unexplained_is_that_of_the_least_squares_fit():
    random = np.random.default_rng(0)
    u, d, w = random.normal(size=(2, 9)), random.normal(size=(3, 9)), random.normal(size=(3, 9))
    w[2] = 0.0
    left = stepping._unexplained(u, d, w)
    for row in range(2):
        for column in range(3):
            design = np.stack([-u[row], -w[column]], axis=1)
            fit, *_ = np.linalg.lstsq(design, d[column], rcond=None)
            share = np.linalg.norm(d[column] - design @ fit) / np.linalg.norm(d[column])
            assert left[row, column] == pytest.approx(share if fit[0] > 0 else 1.0, rel=1e-6)
