"""Optimizers and their values: what is exact, what is a habit, and what other libraries mean by the same word."""

import pytest

from gradforensics.diagnosis.examples import evidence_of
from gradforensics.diagnosis.judge import judge
from gradforensics.diagnosis.rules import load_rules
from gradforensics.evidence.gather import gather
from gradforensics.tables import Event, Evidence, Setting

RECIPE = next(rule for rule in load_rules() if rule.id == "GF18")


def verdict(events=None, **settings):
    stated = [Setting(k, k, v, "config.json") for k, v in settings.items()]
    return judge(RECIPE, Evidence("run", settings=stated or None, events=events))


@pytest.mark.parametrize("name", ["torch.optim.Adam", "torch.optim.adam.Adam", "torch.optim.nadam.NAdam"])
def test_the_class_of_pytorch_couples_its_decay(name):
    found = verdict(optim=name, weight_decay=0.1)
    assert (found.variant, found.strength, found.alarm) == ("coupled-decay", "proven", True)


@pytest.mark.parametrize(
    "name",
    ["torch.optim.AdamW", "adamw_torch", "apex.optimizers.FusedAdam", "sgd", "deepspeed.FusedAdam"],
)
def test_other_names_are_not_taken_for_it(name):
    assert verdict(optim=name, weight_decay=0.1).outcome == "clear"


@pytest.mark.parametrize("name", ["adam", "Adam"])
def test_a_bare_adam_is_a_suspicion_unless_its_library_means_adamw(name):
    found = verdict(optim=name, weight_decay=0.1)
    assert (found.variant, found.strength, found.alarm) == ("unclear-adam", "suspect", False)
    assert verdict(optim=name, weight_decay=0.001).outcome == "clear"
    assert verdict(optim=name, weight_decay=0.1, zero_optimization=1).outcome == "clear"
    assert verdict(optim=name, weight_decay=0.1, adam_w_mode=True).outcome == "clear"


def test_a_decoupled_adam_of_pytorch_is_adamw():
    assert verdict(optim="torch.optim.Adam", weight_decay=0.1, decoupled_weight_decay=True).outcome == "clear"


def test_a_decay_that_is_not_stated_is_named_as_missing():
    assert "settings:weight_decay" in verdict(optim="torch.optim.Adam").missing


@pytest.mark.parametrize(
    "name", ["lion_32bit", "paged_lion_8bit", "Lion", "LION", "lion", "DecoupledLionW", "bitsandbytes.optim.Lion8bit"]
)
def test_lion_by_all_its_names(name):
    assert verdict(optim=name, learning_rate=3e-3).variant == "lion-rate"
    assert verdict(optim=name, learning_rate=1e-4, weight_decay=1.0).outcome == "clear"


@pytest.mark.parametrize("name", ["million", "stallion_adam"])
def test_what_only_contains_the_word_is_no_lion(name):
    assert verdict(optim=name, learning_rate=3e-3).outcome == "clear"


def test_weights_in_half_precision_need_a_large_eps():
    assert verdict(optim="adamw", adam_epsilon=1e-4).variant == "large-eps"
    assert verdict(optim="adamw", adam_epsilon=1e-4, precision="16-true").outcome == "clear"
    assert verdict(optim="sgd", adam_epsilon=1e-4).outcome == "clear"


@pytest.mark.parametrize(
    "name", ["layer_decay", "optimizer.layer_lr_decay", "layerwise_lr_decay", "llrd", "model.lr_layer_decay"]
)
def test_a_layer_decay_above_one_by_its_names(name):
    assert verdict(optim="adamw", **{name: 1.1}).variant == "layer-decay-inverted"
    assert verdict(optim="adamw", **{name: 1.0}).outcome == "clear"
    assert verdict(optim="adamw", **{name: True}).outcome == "clear"


@pytest.mark.parametrize(
    ("message", "name"),
    [
        ("lion is not a valid OptimizerNames, please select one of ['adamw_torch']", "lion"),
        ("Trainer cannot instantiate unsupported optimizer: foo", "foo"),
        ("module 'torch.optim' has no attribute 'Lion'", "Lion"),
    ],
)
def test_a_name_that_is_refused(message, name):
    found = verdict([Event("exception", message, "train.log", data={"message": message})])
    assert (found.variant, found.facts["name"], found.alarm) == ("name-refused", name, True)


@pytest.mark.parametrize(
    ("second", "rate", "variant"),
    [("sgd", 3e-4, "switched"), ("lion", 3e-4, "switched"), ("sgd", 0.1, None), ("adamw_8bit", 3e-4, None)],
)
def test_an_optimizer_of_another_kind_at_the_same_rate(tmp_path, second, rate, variant):
    for attempt, (name, lr) in enumerate((("adamw", 3e-4), (second, rate))):
        folder = tmp_path / f"attempt_{attempt}" / "0"
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(f'{{"optim": "{name}", "learning_rate": {lr}, "max_steps": 60}}')
        lines = (f"step: {s} loss: {3 - s / 100}" for s in range(30 * attempt + 1, 30 * attempt + 31))
        (folder / "stdout.log").write_text("\n".join(lines) + "\n")
    (evidence,) = gather([tmp_path])
    found = judge(RECIPE, evidence)
    assert found.variant == variant
    assert found.onset == (31 if variant else None)


@pytest.mark.parametrize(
    ("files", "variant"),
    [
        ((("checkpoint-000100.pt", 100, "adamw"), ("checkpoint-000200.pt", 200, "sgd")), "switched"),
        ((("checkpoint-000100.pt", 100, "adamw"), ("checkpoint-000200.pt", 200, "adam")), None),
        ((("opt_adamw.pt", 100, "adamw"), ("opt_sgd.pt", 200, "sgd")), None),  # of two trainings
        ((("a_1.pt", 100, "adamw"), ("a_2.pt", 100, "sgd")), None),
    ],
)
def test_checkpoints_of_one_training_tell_that_the_optimizer_changed(files, variant):
    evidence = evidence_of({
        "checkpoints": [{"path": path, "step": step} for path, step, _ in files],
        "groups": [{"checkpoint": path, "group": 0, "optimizer": kind, "lr": 3e-4} for path, _, kind in files],
    })  # fmt: skip
    found = judge(RECIPE, evidence)
    assert found.variant == variant
    assert found.onset == (200 if variant else None)
