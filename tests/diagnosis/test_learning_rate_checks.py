"""What two runs differ in, and the bounds of published recipes."""

import pytest

from gradforensics.diagnosis.checks.learning_rate import Recipe, differing_settings, recipe_bound
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
