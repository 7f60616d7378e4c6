"""Which parameters were meant to be trained: settings, adapters, what the optimizer holds."""

import polars as pl
import pytest

from gradforensics import training_mask
from gradforensics.tables import TABLES, Evidence, Setting


def frame(name, rows):
    schema = TABLES[name]
    return pl.DataFrame([{c: row.get(c) for c in schema} for row in rows], schema=schema)


def tensor(name, shape=(4, 4), role="param", fingerprint=None):
    count = shape[0] * (shape[1] if len(shape) > 1 else 1)
    return {
        "checkpoint": "c", "step": 9, "role": role, "name": name, "shape": list(shape), "count": count, "nan": 0,
        "posinf": 0, "neginf": 0, "zero": 0, "one": 0, "min": -1.0, "max": 1.0, "dtype": "float32",
        "fingerprint": fingerprint or name,
    }  # fmt: skip


def evidence(tensors, *groups, form="torch-zip", sure="exact", settings=()):
    return Evidence(
        "run",
        settings=[Setting(key, key, value, "config.json") for key, value in settings],
        tables={
            "checkpoints": frame("checkpoints", [{"path": "c", "step": 9, "format": form, "naming_sure": sure}]),
            "tensors": frame("tensors", tensors),
            "groups": frame("groups", [{"checkpoint": "c", **group} for group in groups]),
        },
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("freeze_encoder", True),
        ("model.freeze_layers", 2),
        ("frozen_stages", 0),
        ("freeze_at", 2),
        ("finetuning_type", "lora"),
        ("train_type", "lora"),
        ("lora_r", 8),
        ("peft_type", "LORA"),
        ("modules_to_save", ["head"]),
        ("trainable", "head"),
        ("train_head_only", True),
        ("tune_vision_tower", False),
        ("trainable_params", 10),
    ],
)
def test_what_says_that_only_a_part_is_trained_excuses_what_is_frozen(key, value):
    assert training_mask.mask(evidence([tensor("a.weight")], settings=[(key, value)])).excuse


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("freeze_encoder", False),
        ("freeze_layers", 0),
        ("freeze", None),
        ("frozen_stages", -1),
        ("lora_r", 0),
        ("adapter", "none"),
        ("trainable_params", 16),
        ("finetuning_type", "full"),
        ("learning_rate", 1e-3),
    ],
)
def test_what_switches_freezing_off_excuses_nothing(key, value):
    assert not training_mask.mask(evidence([tensor("a.weight")], settings=[(key, value)])).excuse


def test_an_adapter_in_the_checkpoint_excuses_its_base():
    for name in ("q.lora_A.default.weight", "h.0.ia3_l", "prompt_encoder.embedding.weight"):
        assert training_mask.mask(evidence([tensor("q.weight"), tensor(name)])).excuse


def test_the_trainer_and_settings_of_full_fine_tuning_say_that_all_was_to_be_trained():
    assert training_mask.mask(evidence([tensor("a.weight")], form="hf-trainer+safetensors")).known
    assert training_mask.mask(evidence([tensor("a.weight")], settings=[("finetuning_type", "full")])).known
    assert training_mask.mask(evidence([tensor("a.weight")], settings=[("trainable_params", 16)])).known
    assert not training_mask.mask(evidence([tensor("a.weight")])).known


def test_an_optimizer_with_certain_names_says_which_it_holds_and_which_have_no_state():
    tensors = [tensor("a.weight"), tensor("b.weight"), tensor("c.weight"), tensor("a.weight", role="exp_avg_sq")]
    held = training_mask.held(evidence(tensors, {"names": ["a.weight", "b.weight"], "step_max": 9}), "c")
    assert held is not None
    assert [held.holds(name, 1) for name in ("a.weight", "b.weight", "c.weight")] == [True, True, False]
    assert (held.stateless, held.stateless_names, held.updates) == (1, frozenset({"b.weight"}), 9)


def test_without_names_the_number_of_parameters_tells():
    tensors = [tensor("a.weight"), tensor("b.weight"), tensor("o.state.0.exp_avg_sq", role="exp_avg_sq")]
    every = training_mask.held(evidence(tensors, {"names": ["0", "1"]}, sure="none"), "c")
    one = training_mask.held(evidence(tensors, {"names": ["0"]}, sure="none"), "c")
    assert every is not None
    assert one is not None
    assert (every.names, every.holds("b.weight", 1), every.stateless) == (None, True, 1)
    assert [one.holds("b.weight", moving) for moving in (1, 0)] == [False, None]


def test_a_tied_weight_counts_once():
    tied = [tensor("embed.weight", fingerprint="same"), tensor("head.weight", fingerprint="same"), tensor("a.weight")]
    held = training_mask.held(evidence(tied, {"names": ["0", "1"]}, sure="none"), "c")
    assert held is not None
    assert held.everything


def test_a_group_with_the_rate_0_beside_others_is_frozen():
    groups = [{"names": ["a.weight"], "lr": 0.0}, {"names": ["b.weight"], "lr": 1e-3}]
    for number, expected in ((2, True), (1, False)):
        held = training_mask.held(evidence([tensor("a.weight"), tensor("b.weight")], *groups[-number:]), "c")
        assert held is not None
        assert held.frozen_groups is expected


def test_parts_of_ranks_are_not_judged():
    assert training_mask.held(evidence([tensor("a.weight")], {"names": ["a.weight"], "rank": 1}), "c") is None
