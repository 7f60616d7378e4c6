"""Averaged copies of weights are told by the keys that the packages use, and only where the model has their names."""

import pytest

from gradforensics import weight_copies
from gradforensics.weight_copies import Copy

LIVE = [("net.0.weight", (8, 8)), ("net.0.bias", (8,)), ("net.2.weight", (4, 8))]


@pytest.mark.parametrize(
    ("key", "written"),
    [
        ("state_dict_ema", "state_dict_ema.{}"),
        ("ema", "ema.module.{}"),
        ("swa_model", "swa_model.module.{}"),
        ("averaged", "averaged.{}"),
        ("ema.shadow", "ema.shadow.{}"),
        ("ema.ema_model", "ema.ema_model.{}"),
    ],
)
def test_the_keys_of_the_packages(key, written):
    named = LIVE + [(written.format(name), shape) for name, shape in LIVE]
    (copy,), hidden = weight_copies.find(named)
    assert copy == Copy(key, {written.format(name): name for name, _ in LIVE})
    assert hidden == set(copy.names)


def test_names_without_dots_and_of_a_part_of_the_model():
    live = [("model.diffusion.in.0.weight", (8, 8)), ("model.diffusion.out.weight", (4, 8)), ("first.weight", (2, 2))]
    copied = [
        ("model_ema.diffusionin0weight", (8, 8)),
        ("model_ema.diffusionoutweight", (4, 8)),
        ("model_ema.decay", ()),
    ]
    (copy,), hidden = weight_copies.find(live + copied)
    assert set(copy.names.values()) == {name for name, _ in live[:2]}
    assert hidden == {name for name, _ in copied}


def test_of_several_parts_the_copy_is_of_the_one_that_has_its_names():
    named = [
        (f"{part}.{name}", shape) for part in ("d", "g", "g_ema") for name, shape in LIVE[: 2 if part == "d" else 3]
    ]
    (copy,), _ = weight_copies.find(named)
    assert copy.names["g_ema.net.0.weight"] == "g.net.0.weight"


def test_a_list_of_tensors_is_in_the_order_of_the_parameters():
    listed = [(f"ema.shadow_params.{i}", shape) for i, (_, shape) in enumerate(LIVE)]
    (copy,), _ = weight_copies.find(LIVE + listed)
    assert copy.names["ema.shadow_params.2"] == "net.2.weight"
    assert weight_copies.find(LIVE[:2] + listed) == ([], frozenset())


def test_the_online_model_that_a_copy_keeps_is_hidden_with_it():
    both = [(f"ema.{part}.{name}", shape) for part in ("ema_model", "online_model") for name, shape in LIVE]
    (copy,), hidden = weight_copies.find(LIVE + both)
    assert copy.key == "ema.ema_model"
    assert hidden == {name for name, _ in both}


@pytest.mark.parametrize("name", ["layers.0.swa.q_proj.weight", "layers.0.ema.delta", "vq.ema_w", "schema.weight"])
def test_layers_that_are_only_called_so_are_weights(name):
    assert weight_copies.find([*LIVE, (name, (8, 8))]) == ([], frozenset())


def test_folders_and_files():
    paths = ["checkpoint-10/unet", "checkpoint-10/unet_ema", "model.pt", "model_ema.pt", "ema-10.pt"]
    assert [p for p in paths if weight_copies.is_copy_path(p)] == [paths[1], paths[3], paths[4]]
    assert weight_copies.beside(paths[1], paths) == paths[0]
    assert weight_copies.beside(paths[3], paths) == paths[2]
    assert weight_copies.beside(paths[4], paths) is None
    assert weight_copies.key_of("checkpoint-10/ema-10.pt") == "ema-#.pt"
