"""Where what stands still ends, and whether it still has the values of its initialisation."""

import pytest

from gradforensics.checkpoint_signals import weights
from gradforensics.evidence.gather import gather
from gradforensics.frozen_signals import chain, cut, never_trained, standing


class Names:
    """Weights that are names and shapes only."""

    def __init__(self, *names):
        from gradforensics.parameter_names import kind_of, layer_of

        shapes = [(4,) if "norm" in n or n.endswith("bias") else (4, 4) for n in names]
        self.every = [
            type("W", (), {"name": n, "shape": s, "kind": kind_of(n, s), "layer": layer_of(n)})()
            for n, s in zip(names, shapes, strict=True)
        ]

    def cut(self, *still, ordered=True):
        moving = [w for w in self.every if w.name not in still]
        return cut(set(still), moving, self.every, ordered=ordered)


LM = Names(
    "embed.weight", "position.weight", "h.0.norm.weight", "h.0.up.weight", "h.0.up.bias", "h.1.up.weight", "head.weight"
)
FIRST = ("embed.weight", "position.weight", "h.0.norm.weight", "h.0.up.weight", "h.0.up.bias")


def test_first_layers_with_all_that_comes_before_them_end_at_a_cut():
    assert LM.cut(*FIRST) == ("h.1", "h.0")
    assert LM.cut(*FIRST, ordered=False) == ("h.1", "h.0")


def test_embeddings_of_tokens_and_positions_end_at_a_cut():
    assert LM.cut("embed.weight", "position.weight") == ("h.0", "position.weight")
    assert LM.cut("embed.weight") is None  # inputs that are embedded outside


def test_a_tied_embedding_moves_with_the_head():
    tied = Names("embed.weight", "position.weight", "h.0.up.weight", "h.1.up.weight")
    assert tied.cut("position.weight", "h.0.up.weight") == ("h.1", "h.0")


@pytest.mark.parametrize(
    "still",
    [
        ("h.1.up.weight",),
        ("head.weight",),
        (*FIRST[1:],),
        (*FIRST, "head.weight"),
        ("h.0.norm.weight",),
        (*FIRST[:3],),
        (*FIRST[:4],),
    ],
)
def test_other_sets_are_no_single_cut(still):
    assert LM.cut(*still) is None


def test_a_chain_of_modules_is_cut_in_the_order_of_its_file_only():
    flat = Names("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias", "fc3.weight")
    assert flat.cut("fc1.weight", "fc1.bias") == ("fc2", "fc1")
    assert flat.cut("fc1.weight", "fc1.bias", ordered=False) is None
    assert flat.cut("fc2.weight", "fc2.bias") is None
    assert flat.cut("fc1.weight", "fc1.bias", "fc2.weight") is None  # half of a module


def test_a_whole_tower_that_stands_still_is_no_cut():
    towers = Names("vision.0.up.weight", "vision.1.up.weight", "text.0.up.weight", "text.1.up.weight")
    assert towers.cut("vision.0.up.weight", "vision.1.up.weight") is None


def test_members_of_a_list_that_may_lie_side_by_side_are_no_stack():
    names = ("experts.0.weight", "experts.1.weight", "out.weight")
    assert Names(*names).cut("experts.0.weight") is None
    assert Names("stem.weight", *names).cut("stem.weight", "experts.0.weight") == ("experts.1", "experts.0")


def run(folder, model, parameters, steps=(5, 30, 60), rate=1e-2, **more):
    """Train a model on noise with an Adam of some of its parameters and save it in a plain loop."""
    import torch

    optimizer = torch.optim.AdamW(parameters, lr=rate)
    for step in range(1, max(steps) + 1):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        if step in steps:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step} | more
            torch.save(state, folder / f"step_{step}.pt")
    (found,) = gather([folder])
    return found


def small():
    import torch

    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)
    )


@pytest.fixture(scope="module")
def frozen_run(tmp_path_factory):
    model = small()
    model[0].requires_grad_(False)
    model[1].requires_grad_(False)
    return run(tmp_path_factory.mktemp("run"), model, model.parameters())


def test_what_stands_still_is_found_by_bytes_over_all_checkpoints(frozen_run):
    found = standing(frozen_run)
    assert found is not None
    assert [one.step for one in chain(frozen_run)] == [5, 30, 60]
    assert (found.first.step, found.last.step, found.steps) == (5, 60, 55)
    assert {w.name for w in found.frozen} == {"0.weight", "0.bias", "1.weight", "1.bias"}
    assert {w.name for w in found.moving} == {"2.weight", "2.bias", "4.weight", "4.bias"}
    assert not found.stopped


def test_fresh_values_are_known_and_trained_ones_are_not(frozen_run, tmp_path):
    found = standing(frozen_run)
    assert found is not None
    assert never_trained(found.frozen)
    assert not never_trained(found.moving)
    model = small()
    trained = standing(run(tmp_path, model, model.parameters()))
    assert trained is not None
    assert not trained.frozen
    assert not never_trained(trained.moving)


def test_a_single_fresh_tensor_tells_too_little(frozen_run):
    first = [w for w in weights(frozen_run) or [] if w.name == "0.weight"]
    assert not never_trained(first[:1])


def test_a_large_fresh_matrix_tells_enough_and_a_slightly_trained_one_is_not_fresh(tmp_path):
    import torch

    torch.manual_seed(0)
    layer, other = torch.nn.Linear(64, 32), torch.nn.Linear(64, 32)
    with torch.no_grad():
        other.weight.add_(1e-3 * torch.randn_like(other.weight).sign())
    torch.save({"model": {"a.weight": layer.weight.data, "b.weight": other.weight.data}}, tmp_path / "model.pt")
    (evidence,) = gather([tmp_path])
    fresh, moved = weights(evidence) or []
    assert (fresh.name, moved.name) == ("a.weight", "b.weight")
    assert never_trained([fresh])
    assert not never_trained([moved])
