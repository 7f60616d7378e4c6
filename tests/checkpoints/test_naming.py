"""Names for optimizer states: found where something says them, withheld where nothing does."""

from pathlib import Path
from random import Random

import numpy as np
import pytest

from gradforensics.checkpoints import correlating, layout, tree
from gradforensics.checkpoints.formats import safetensors, torch_file
from gradforensics.checkpoints.naming import (
    Pair,
    config_source,
    name_states,
    saved_source,
    unordered_source,
    with_names,
)
from gradforensics.checkpoints.optimizer import read_optimizer
from gradforensics.checkpoints.refs import Run, TensorRef
from gradforensics.untrusted.files import Memory, RegularFile

SHARED = Path(__file__).parents[2].parent / "shared" / "checkpoints"


def tensor(shape, dtype="float32", seed=None):
    """A tensor in a file of its own: equal to no other."""
    array = np.zeros(shape, dtype) if seed is None else np.random.default_rng(seed).standard_normal(shape).astype(dtype)
    return TensorRef(str(array.dtype), tuple(shape), (Run(Memory("m", array.tobytes()), 0, array.size),))


def weights(*named):
    return {name: tensor(shape) for name, shape in named}


def adam(*groups, decays=None, **values):
    """An Adam optimizer whose groups have parameters of these shapes; None is one without a state."""
    states, listed, number = {}, [], 0
    for index, shapes in enumerate(groups):
        ids = range(number, number + len(shapes))
        number += len(shapes)
        for identity, shape in zip(ids, shapes, strict=True):
            if shape is not None:
                states[identity] = {"step": 1.0, "exp_avg": tensor(shape), "exp_avg_sq": tensor(shape)}
        decay = {} if decays is None else {"weight_decay": decays[index]}
        listed.append({"params": list(ids), "lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, **decay, **values})
    return read_optimizer({"state": states, "param_groups": listed})


def names_in_order(found):
    names, naming = found
    return [names.get(str(index)) for index in range(len(names))], naming.sure


# -- what the file says -----------------------------------------------------------------------------------------------


def test_names_that_the_groups_hold_are_exact():
    state = {"state": {}, "param_groups": [{"params": [0, 1], "param_names": ["b", "a"]}]}

    names, naming = name_states(read_optimizer(state), [])

    assert names == {"0": "b", "1": "a"}
    assert naming.sure == "exact"
    assert naming.how == "The optimizer's groups hold the names of their parameters."


def test_names_that_are_the_keys_are_exact():
    state = {"state": {"a.w": {"step": 1}}, "param_groups": [{"params": ["a.w", "a.b"]}]}

    names, naming = name_states(read_optimizer(state), [])

    assert names == {"a.w": "a.w", "a.b": "a.b"}
    assert naming.sure == "exact"


def test_names_are_spelled_as_the_weights_are():
    state = {"state": {}, "param_groups": [{"params": [0, 1], "param_names": ["module.a.w", "lora_A.default.weight"]}]}
    source = unordered_source("f", weights(("a._orig_mod.w", (2,)), ("lora_A.weight", (2,))))

    names, _ = name_states(read_optimizer(state), [source])

    assert names == {"0": "a._orig_mod.w", "1": "lora_A.weight"}


def test_groups_get_their_names():
    optimizer = adam([(2,), (3,)])

    assert [group.names for group in with_names(optimizer.groups, {"1": "b"})] == [["0", "b"]]
    assert [group.names for group in optimizer.groups] == [["0", "1"]]


# -- by order ---------------------------------------------------------------------------------------------------------

NET = [("z.weight", (5, 3)), ("z.bias", (5,)), ("norm.weight", (5,)), ("norm.bias", (5,)), ("a.weight", (3, 5))]


def test_the_order_of_a_saved_state_dict_names_one_group():
    found = name_states(adam([shape for _, shape in NET]), [saved_source("model.pt", weights(*NET))])

    assert names_in_order(found) == ([name for name, _ in NET], "confirmed")
    assert found[1].how == "The order of model.pt names the states, in the only way in which all shapes fit."


def test_groups_by_dimension_are_dealt_in_the_only_way():
    optimizer = adam([(5, 3), (3, 5)], [(5,), (5,), (5,)])

    found = name_states(optimizer, [saved_source("model.pt", weights(*NET))])

    assert names_in_order(found) == (["z.weight", "a.weight", "z.bias", "norm.weight", "norm.bias"], "confirmed")


def test_integer_buffers_batch_statistics_and_averages_are_no_parameters():
    held = {
        "steps": tensor((), "int64"),
        "bn.weight": tensor((4,)),
        "bn.bias": tensor((4,)),
        "bn.running_mean": tensor((4,)),
        "bn.running_var": tensor((4,)),
        "model_ema.bn.weight": tensor((4,)),
        "model_ema.bn.bias": tensor((4,)),
    }

    found = name_states(adam([(4,), (4,)]), [saved_source("model.pt", held)])

    assert names_in_order(found) == (["bn.weight", "bn.bias"], "confirmed")


def test_a_parameter_called_like_a_buffer_is_named_where_it_must_be_one():
    found = name_states(adam([(4,), (3,)]), [saved_source("m", weights(("rope.inv_freq", (4,)), ("b", (3,))))])

    assert names_in_order(found) == (["rope.inv_freq", "b"], "confirmed")


def test_tied_weights_count_once():
    held = weights(("wte.weight", (7, 4)))
    held["lm_head.weight"] = held["wte.weight"]
    held |= weights(("ln.weight", (4,)))

    found = name_states(adam([(7, 4), (4,)]), [saved_source("m", held)])

    assert names_in_order(found) == (["wte.weight", "ln.weight"], "confirmed")


def test_frozen_parameters_are_left_out_only_where_one_way_remains():
    held = saved_source("m", weights(("w.a", (4, 4)), ("h.b", (4, 4)), ("head", (9, 4)), ("bias", (9,))))

    found = name_states(adam([(9, 4), (9,)]), [held])

    assert names_in_order(found) == (["head", "bias"], "confirmed")
    assert "2 tensors are not the optimizer's" in found[1].how
    assert name_states(adam([(4, 4), (9, 4)]), [held])[1].sure == "none"


def test_two_halves_of_equal_shapes_stay_without_names():
    halves = [("encoder.w", (4, 4)), ("encoder.b", (4,)), ("decoder.w", (4, 4)), ("decoder.b", (4,))]
    optimizer = adam([(4, 4), (4,)], [(4, 4), (4,)])

    names, naming = name_states(optimizer, [saved_source("m.pt", weights(*halves))])

    assert names == {}
    assert naming.sure == "none"
    assert naming.how == "The states keep their ids: the order of m.pt fits the shapes of the states in several ways."


def test_a_rule_names_what_shapes_leave_open():
    named = [("conv.weight", (4, 3)), ("bn.weight", (4,)), ("bn.bias", (4,))]
    optimizer = adam([(4, 3), (4,)], [(4,)], decays=[0.1, 0.0])

    found = name_states(optimizer, [saved_source("m", weights(*named))])

    assert names_in_order(found) == (["conv.weight", "bn.weight", "bn.bias"], "confirmed")
    assert "'no weight decay for biases'" in found[1].how


def test_an_order_that_fits_no_way_gives_no_names():
    found = name_states(adam([(3, 5), (5,), (5,), (5,), (5, 3)]), [saved_source("m.pt", weights(*NET))])

    assert found[0].keys() == {"0", "4"}  # whose shapes occur once
    assert "the order of m.pt fits the shapes of the states in no way" in found[1].how


def test_a_sorted_state_dict_has_lost_its_order():
    named = [(f"layers.{n}.attn.{part}_proj.lora_A", (2, 4)) for n in range(2) for part in "kqv"]

    found = name_states(adam([(2, 4)] * 6), [saved_source("adapter_model.bin", weights(*named))])

    assert found[0] == {}
    assert "no file keeps the order" in found[1].how


def test_shards_of_a_state_dict_are_put_together():
    shards = [saved_source(f"model-{n}.bin", weights(*NET[2 * n : 2 * n + 2])) for n in (2, 0, 1)]

    found = name_states(adam([shape for _, shape in NET]), shards)

    assert names_in_order(found) == ([name for name, _ in NET], "confirmed")


def test_two_state_dicts_that_fit_with_different_names_decide_nothing():
    sources = [saved_source(name, weights((f"{name}.w", (3, 2)), (f"{name}.b", (3,)))) for name in ("q1", "q2")]

    names, naming = name_states(adam([(3, 2), (3,)]), sources)

    assert (names, naming.sure) == ({}, "none")
    assert "several state dicts fit" in naming.how


@pytest.mark.parametrize("copy", ["ema.module", "target_network", "critic_target", "teacher"])
def test_of_a_network_and_its_copy_the_optimizer_is_the_networks(copy):
    sources = [saved_source(name, weights((f"{name}.w", (3, 2)), (f"{name}.b", (3,)))) for name in (copy, "critic")]

    assert names_in_order(name_states(adam([(3, 2), (3,)]), sources)) == (["critic.w", "critic.b"], "confirmed")


def test_the_order_of_the_configured_model_names_tensors_of_a_sorted_file():
    parameters = [("frozen.w", (5, 3), False), *((name, shape, True) for name, shape in NET)]
    file = unordered_source("model.safetensors", weights(*sorted(NET), ("frozen.w", (5, 3))))
    optimizer = adam([(5, 3), (3, 5)], [(5,), (5,), (5,)])

    found = name_states(optimizer, [file, config_source("config.json", parameters)])

    assert names_in_order(found) == (["z.weight", "a.weight", "z.bias", "norm.weight", "norm.bias"], "confirmed")
    assert found[1].how.startswith("The model that config.json describes names the states, dealt to 2 groups")


@pytest.mark.parametrize("other", [("other.weight", (3, 5)), ("a.weight", (5, 3))])
def test_a_configured_model_of_other_parameters_is_not_believed(other):
    parameters = [(name, shape, True) for name, shape in NET]
    file = unordered_source("model.safetensors", weights(*NET[:-1], other))

    names, naming = name_states(adam([shape for _, shape in NET]), [file, config_source("config.json", parameters)])

    assert "z.bias" not in names.values()
    assert "has other parameters than the files with weights" in naming.how


# -- what nothing confirms --------------------------------------------------------------------------------------------


def test_sgd_without_momentum_confirms_nothing():
    state = {"state": {}, "param_groups": [{"params": [0, 1], "lr": 0.1, "momentum": 0, "dampening": 0}]}

    names, naming = name_states(read_optimizer(state), [saved_source("m", weights(("w", (3, 2)), ("b", (3,))))])

    assert (names, naming.sure) == ({}, "none")


def test_an_order_needs_states_for_half_of_the_parameters():
    sources = [saved_source("m", weights(("w", (3, 2)), ("v", (3,)), ("b", (3,))))]

    assert name_states(adam([(3, 2), None, (3,)]), sources)[1].sure == "confirmed"
    names, naming = name_states(adam([(3, 2), None, None]), sources)
    assert (names, naming.sure) == ({}, "none")
    assert naming.how == "The states keep their ids: only 1 of 3 parameters have a state that tells their shape."


def test_factored_moments_confirm_an_order_by_the_shapes_that_they_tell():
    states = {
        0: {"exp_avg_sq_row": tensor((5,)), "exp_avg_sq_col": tensor((3,)), "RMS": tensor(())},
        1: {"exp_avg_sq": tensor((5,))},
    }
    optimizer = read_optimizer({"state": states, "param_groups": [{"params": [0, 1], "clip_threshold": 1.0}]})
    right, transposed = [("z.w", (5, 3)), ("b", (5,))], [("z.w", (3, 5)), ("b", (5,))]

    assert name_states(optimizer, [saved_source("m", weights(*right))])[1].sure == "confirmed"
    assert name_states(optimizer, [saved_source("m", weights(*transposed))])[1].sure == "none"


def test_the_order_of_a_sorted_file_is_never_used():
    layers = [(f"h.{n}.w", (4, 4)) for n in range(12)]

    names, naming = name_states(adam([shape for _, shape in layers]), [unordered_source("f", weights(*sorted(layers)))])

    assert (names, naming.sure) == ({}, "none")


def test_shapes_that_occur_once_need_no_order():
    file = unordered_source(
        "f",
        weights(
            ("b", (5,)),
            ("c", (5,)),
            ("a", (5, 3)),
            (
                "n",
                (),
            ),
        ),
    )

    found = name_states(adam([(5, 3), (5,), (), (5,)]), [file])

    assert found[0] == {"0": "a", "2": "n"}
    assert found[1].sure == "confirmed"
    assert found[1].how == (
        "2 of 4 states have a name: 2 by a shape that occurs once; 2 keep their ids; "
        "no file keeps the order of the parameters."
    )
    frozen = unordered_source("f", weights(("b", (5,)), ("a", (5, 3)), ("frozen", (9, 9))))
    assert name_states(adam([(5, 3), (5,)]), [frozen])[0] == {}


# -- by what moved ----------------------------------------------------------------------------------------------------


def trained(tmp_path, order=None, layers=11, optimizer="AdamW", **values):
    """A stack of equal blocks: its weights after 20 and 23 steps, the optimizer after 23, and its true names."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    embed, head = nn.Embedding(40, 16), nn.Linear(16, 40)
    blocks = [(nn.Linear(16, 24), nn.Linear(24, 16)) for _ in range(layers)]
    stack = nn.ModuleList(nn.ModuleDict({"up": up, "down": down}) for up, down in blocks)
    net = nn.ModuleDict({"embed": embed, "h": stack, "head": head})
    named = list(net.named_parameters())
    if order is not None:
        named = order(named)
    states = getattr(torch.optim, optimizer)([parameter for _, parameter in named], **values)

    def advance(steps, file):
        for _ in range(steps):
            x = torch.randint(0, 40, (64,))
            y = embed(x)
            for up, down in blocks:
                y = y + down(torch.relu(up(y)))
            states.zero_grad()
            nn.functional.cross_entropy(head(y), (3 * x + 1) % 40).backward()
            states.step()
        torch.save({"model": net.state_dict(), "optimizer": states.state_dict()}, file)
        return content(file)

    before, _ = advance(20, tmp_path / "20.pt")
    after, state = advance(3, tmp_path / "23.pt")
    return before, after, read_optimizer(state), [name for name, _ in named]


def content(path):
    """Parameters in saved order, and the optimizer's state dict."""
    found = layout.understand(torch_file.read(RegularFile(path, path.name, path.stat().st_size)).root)
    parameters = {t.name: tree.reference(t.leaf, path.name) for t in found.tensors if t.role in ("param", "buffer")}
    return parameters, found.optimizers[0][1] if found.optimizers else {}


@pytest.mark.parametrize(
    ("optimizer", "values"),
    [("AdamW", {}), ("AdamW", {"amsgrad": True}), ("SGD", {"lr": 0.05, "momentum": 0.9}), ("RAdam", {"lr": 0.01})],
)
def test_states_are_named_by_how_their_parameters_moved(tmp_path, optimizer, values):
    before, after, state, truth = trained(tmp_path, optimizer=optimizer, **values)
    shuffled = dict(sorted(after.items()))

    names, naming = name_states(state, [unordered_source("f", shuffled)], pair=Pair(before, after))

    assert naming.sure == "likely"
    assert len(names) >= 0.6 * len(truth)
    assert {truth[int(identity)]: name for identity, name in names.items() if truth[int(identity)] != name} == {}


def test_an_order_against_which_the_weights_moved_is_not_confirmed(tmp_path):
    def backwards(named):
        first, *middle, weight, bias = named
        blocks = [middle[at : at + 4] for at in range(0, len(middle), 4)]
        return [first, *(pair for block in reversed(blocks) for pair in block), weight, bias]

    before, after, state, truth = trained(tmp_path, order=backwards)
    sources = [saved_source("a.pt", after)]

    believed, _ = name_states(state, sources)
    names, naming = name_states(state, sources, pair=Pair(before, after))

    # all shapes fit, and without a second checkpoint nothing tells that the order is another
    assert [believed[str(index)] for index in range(len(truth))] != truth
    assert naming.sure != "likely"
    assert {truth[int(identity)]: name for identity, name in names.items() if truth[int(identity)] != name} == {}
    assert "moved between two checkpoints as others say" in naming.how


def test_one_chance_match_does_not_shake_an_order(tmp_path, monkeypatch):
    before, after, state, truth = trained(tmp_path)
    sources = [saved_source("a.pt", after)]
    wrong = {"0": next(name for name in after if name != truth[0] and after[name].shape == after[truth[0]].shape)}
    agreed, sure = name_states(state, sources, pair=Pair(before, after))

    monkeypatch.setattr(correlating, "match", lambda rows, _: {i: n for i, n in wrong.items() if i in rows})
    names, naming = name_states(state, sources, pair=Pair(before, after))

    assert (names, naming.sure) == (agreed, sure.sure) == (agreed, "confirmed")


def test_an_order_with_which_the_weights_moved_says_so(tmp_path):
    before, after, state, truth = trained(tmp_path, layers=2)

    names, naming = name_states(state, [saved_source("a.pt", after)], pair=Pair(before, after))

    assert [names[str(index)] for index in range(len(truth))] == truth
    assert naming.sure == "confirmed"
    assert naming.how.endswith("of them moved between two checkpoints as their states say.")


def test_weights_that_did_not_move_tell_nothing(tmp_path):
    _, after, state, _ = trained(tmp_path, layers=2)
    named = list(after.items())
    Random(0).shuffle(named)

    names, _ = name_states(state, [unordered_source("f", dict(named))], pair=Pair(after, after))

    shapes = [ref.shape for ref in after.values()]
    assert set(names.values()) == {name for name, ref in after.items() if shapes.count(ref.shape) == 1}


# -- real checkpoints -------------------------------------------------------------------------------------------------

LLAMA_LAYER = (
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj",
    "mlp.down_proj",
)  # fmt: skip
LLAMA = [
    "model.embed_tokens.weight",
    *(f"model.layers.{n}.{part}.weight" for n in range(2) for part in LLAMA_LAYER),
    "lm_head.weight",
    *(f"model.layers.{n}.{part}_layernorm.weight" for n in range(2) for part in ("input", "post_attention")),
    "model.norm.weight",
]
NET_NAMES = ["emb.weight", "l1.weight", "l1.bias", "norm.weight", "norm.bias", "l2.weight", "l2.bias"]


def opened(path):
    if not path.exists():
        pytest.skip("no shared samples")
    return content(path)


def header(path):
    return safetensors.read(RegularFile(path, path.name, path.stat().st_size)).tensors


@pytest.mark.parametrize("step", [3, 6])
@pytest.mark.parametrize(("name", "least"), [("hf_llama", 19), ("hf_bf16", 19), ("hf_fp16", 19)])
def test_trainer_checkpoints_are_named_by_two_of_them(name, least, step):
    folder = SHARED / name
    _, state = opened(folder / f"checkpoint-{step}" / "optimizer.pt")
    before, after = (header(folder / f"checkpoint-{n}" / "model.safetensors") for n in (3, 6))
    source = unordered_source("model.safetensors", after)

    alone = name_states(read_optimizer(state), [source])
    names, naming = name_states(read_optimizer(state), [source], pair=Pair(before, after))

    assert alone[0] == {}
    assert naming.sure == "likely"
    assert len(names) >= least
    assert all(LLAMA[int(identity)] == name for identity, name in names.items())


def test_model_order_names_a_trainer_checkpoint_whole():
    folder = SHARED / "hf_llama" / "checkpoint-6"
    _, state = opened(folder / "optimizer.pt")
    tensors = header(folder / "model.safetensors")
    norms = [name for name in LLAMA if "norm" in name]
    order = [name for name in LLAMA if "norm" not in name]
    for n in range(2):  # a layer's norms come behind its other parameters
        at = order.index(f"model.layers.{n}.mlp.down_proj.weight")
        order[at + 1 : at + 1] = norms[2 * n : 2 * n + 2]
    order.insert(-1, "model.norm.weight")
    config = config_source("config.json", [(name, tensors[name].shape, True) for name in order])

    found = name_states(read_optimizer(state), [unordered_source("model.safetensors", tensors), config])

    assert names_in_order(found) == (LLAMA, "confirmed")


@pytest.mark.parametrize("name", ["hf_adafactor", "hf_sgd", "accelerate_no"])
def test_nothing_but_shapes_that_occur_once_is_named_where_the_order_is_lost(name):
    folder = SHARED / name / ("" if name == "accelerate_no" else "checkpoint-6")
    _, state = opened(folder / ("optimizer.bin" if name == "accelerate_no" else "optimizer.pt"))

    names, _ = name_states(read_optimizer(state), [unordered_source("f", header(folder / "model.safetensors"))])

    once = {"0": "emb.weight", "1": "l1.weight", "5": "l2.weight", "6": "l2.bias"}
    assert names == (once if name == "accelerate_no" else {})


@pytest.mark.parametrize(
    ("name", "sure"),
    [
        ("plain/named_params.pt", "exact"),
        ("plain/zip.pt", "confirmed"),
        ("plain/legacy.pt", "confirmed"),
        ("plain/opt_sgd_mom.pt", "confirmed"),
        ("plain/opt_adafactor.pt", "confirmed"),
        ("lightning_32-true/epoch=0-step=4.ckpt", "confirmed"),
        ("fsdp2_full/full.pt", "exact"),
        ("fsdp1_full/rank0.pt", "exact"),
        ("ds_zero0_fp32/global_step3/mp_rank_00_model_states.pt", "confirmed"),
    ],
)
def test_files_with_weights_and_optimizer_are_named_whole(name, sure):
    parameters, state = opened(SHARED / name)

    names, naming = name_states(read_optimizer(state), [saved_source(name, parameters)])

    plain = [found.removeprefix("net.") for found in names.values()]
    assert sorted(plain) == sorted(NET_NAMES)
    assert naming.sure == sure


def test_megatrons_groups_are_told_apart():
    parameters, state = opened(SHARED / "megatron_legacy/iter_0000010/mp_rank_00/model_optim_rng.pt")
    optimizer = read_optimizer(state)

    names, naming = name_states(optimizer, [saved_source("model_optim_rng.pt", parameters)])

    assert naming.sure == "confirmed"
    decayed, others = with_names(optimizer.groups, names)
    in_model_order = list(parameters)
    for group in (decayed, others):
        assert group.names == sorted(group.names, key=in_model_order.index)
    assert all(len(parameters[name].shape) == 1 or name.endswith(".bias") for name in others.names)
    assert not any(len(parameters[name].shape) == 1 or name.endswith(".bias") for name in decayed.names)
