"""What two runs differ in, and the bounds of published recipes."""

import pytest

from gradforensics.diagnosis.checks.learning_rate import (
    Recipe,
    differing_settings,
    recipe_bound,
    weights_hardly_travel,
)
from gradforensics.diagnosis.examples import evidence_of
from gradforensics.diagnosis.vocabulary import Missing

RECIPE = Recipe(lora=1e-3, full=1e-4, large=2048, pretrain=6e-3, width=768, lion=0.33)
COMMON = {"learning_rate": 1e-3, "optim": "adamw", "seed": 0, "max_steps": 100}


def of(**settings):
    return evidence_of({"settings": settings})


def test_names_places_and_the_rate_itself_do_not_count():
    one = of(**COMMON, output_dir="a", run_name="x", logging_steps=5)
    other = of(**COMMON | {"learning_rate": 1e-2}, output_dir="b", run_name="y", logging_steps=5)
    assert differing_settings(one, other) == []


@pytest.mark.parametrize("change", [{"seed": 1}, {"optim": "sgd"}, {"weight_decay": 0.1}])
def test_everything_else_counts(change):
    assert differing_settings(of(**COMMON), of(**COMMON | change)) == list(change)


def test_two_runs_without_settings_cannot_be_said_to_agree():
    assert isinstance(differing_settings(of(seed=0), of(seed=0)), Missing)


def test_bounds_depend_on_optimizer_adapter_and_start():
    plain = {"optim": "adamw_torch", "hidden_size": 768}
    assert recipe_bound(of(**plain), RECIPE) == pytest.approx(6e-3)
    assert recipe_bound(of(**plain | {"optim": "lion_32bit"}), RECIPE) == pytest.approx(0.33 * 6e-3)
    assert recipe_bound(of(**plain, peft_type="LORA"), RECIPE) == pytest.approx(1e-3)
    assert isinstance(recipe_bound(of(optim="sgd", hidden_size=768), RECIPE), Missing)
    large = {"settings": {"optim": "adamw", "hidden_size": 4096, "vocab_size": 32000}}
    trained = evidence_of({**large, "series": {"loss": "1.5*20"}})
    fresh = evidence_of({**large, "series": {"loss": "10.4*20"}})
    assert recipe_bound(trained, RECIPE) == pytest.approx(1e-4)
    assert recipe_bound(fresh, RECIPE) == pytest.approx(6e-3 * (768 / 4096) ** 0.5)


def travelled(*travels, lr="3e-5*300", loss="4.17*300 + noise(sd=0.01)", size=10.0, dtype="float32"):
    """Checkpoints every 100 steps from 0 on between which a matrix of norm `size` moved by `travels` of itself."""
    steps = range(0, 100 * len(travels) + 1, 100)
    counts = dict.fromkeys(("nan", "posinf", "neginf", "zero", "one"), 0)
    row = {"role": "param", "shape": [8, 8], "count": 64, "dtype": dtype, **counts}
    norms = {"w": size, "bias": 1e-6, "frozen": 1e3}
    evidence = evidence_of({
        "series": {"lr": lr, "loss": loss},
        "checkpoints": [{"path": f"s{s}", "step": s} for s in steps],
        "tensors": [
            row | {"checkpoint": f"s{s}", "step": s, "name": name, "l2": norm, "fingerprint": f"{name}{s}"}
            for s in steps for name, norm in norms.items()
        ],
        "travels": [
            {"first_step": s, "step": s + 100, "checkpoint": f"s{s + 100}", "name": name, "count": 64, "nonfinite": 0,
             "changed": float(moved > 0), "rel_travel": moved}
            for s, part in zip(steps, travels, strict=False)
            for name, moved in (("w", part), ("bias", 5.0), ("frozen", 0.0))
        ],
    })  # fmt: skip
    return weights_hardly_travel(evidence, least=1e-3, share=0.1, steps=50, late=0.1, change=0.01, errors=2.0)


def test_travel_is_of_all_weights_that_moved_and_adds_up_over_checkpoints():
    (hit,) = travelled(2e-4, 3e-4, 4e-4)
    assert hit.facts["travel"] == pytest.approx(9e-4, rel=1e-3)  # a fresh bias that moved five times its size is tiny
    assert (hit.after, hit.step) == (0, 300)
    assert travelled(2e-4, 3e-4, 6e-4) == []


def test_little_travel_is_no_hit_where_the_loss_moves_or_the_rate_has_decayed():
    assert travelled(1e-4, loss="decay(4.2, 3.0, 300) + noise(sd=0.01)") == []
    assert isinstance(travelled(1e-2, 1e-4, 1e-4, lr="3e-5*40 1e-7*260"), Missing)
    assert travelled(1e-2, 1e-4, 1e-4, lr="3e-5*100 1e-7*200") == []  # what counts lies before the decay


def test_weights_in_bfloat16_are_held_by_rounding():
    assert isinstance(travelled(1e-4, dtype="bfloat16"), Missing)
