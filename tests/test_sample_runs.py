"""Every sample run gives exactly its expected case and variant; every twin is silent and judged clear."""

import re
import tomllib
from pathlib import Path

import pytest

from gradforensics.diagnosis.causes import diagnose
from gradforensics.diagnosis.rules import load_rules
from gradforensics.evidence.gather import gather

SAMPLES = Path(__file__).parent.parent / "sample_runs"
NAMES = sorted(p.parent.name for p in SAMPLES.glob("*/expected.toml"))
RULES = load_rules()


def diagnosis_of(name):
    expected = tomllib.loads((SAMPLES / name / "expected.toml").read_text())
    found = gather([SAMPLES / name / "run"], settings=expected.get("settings", {}))
    assert len(found) == 1
    if "baseline" in expected:  # what the user would name with --baseline
        (found[0].baseline,) = gather([SAMPLES / expected["baseline"] / "run"])
    return expected, diagnose(found[0], RULES)


def reads_checkpoints(sign):
    tables = {"checkpoints", "tensors", "moments", "travels", "groups", "facts"}
    return any(need.kind == "table" and need.name in tables for need in sign.test.needs)


@pytest.mark.parametrize("name", NAMES)
def test_sample(name):
    expected, diagnosis = diagnosis_of(name)
    primary = diagnosis.primary
    assert (primary.rule.id if primary else "") == expected["primary"]
    assert diagnosis.evidence.ending.kind == expected["ending"]
    verdict = next((v for v in diagnosis.verdicts if v.rule.id == expected["case"]), None)
    if expected["twin"]:
        assert diagnosis.alarms == []
        assert [v.rule.id for v in diagnosis.verdicts if v.outcome == "fired"] == []
        # where what is there to be read acquits nobody (a cut graph need not speak), there is nothing to be clear of
        acquits = verdict is not None and any(
            s.acquits and not s.experiments and (expected.get("checkpoints", False) or not reads_checkpoints(s))
            for s in verdict.rule.signs
        )
        assert verdict is None or verdict.outcome == ("clear" if acquits else "not_judged")
    else:
        assert verdict is not None
        assert verdict.outcome == "fired"
        assert (verdict.variant or "") == expected["variant"]


def test_every_variant_has_a_faulty_sample_and_every_tested_rule_a_twin():
    facts = [tomllib.loads((SAMPLES / n / "expected.toml").read_text()) for n in NAMES]
    faulty = {(f["case"], f["variant"]) for f in facts if not f["twin"]}
    logged = {r.id: [s for s in r.signs if not s.experiments] for r in RULES}  # what a run directory alone can show
    replayed = {(r.id, s.variant) for r in RULES for s in r.signs if s.experiments}
    wanted = {(r.id, v) for r in RULES if logged[r.id] for v in (r.variants or ("",))} - replayed
    assert wanted <= faulty
    assert {r.id for r in RULES if logged[r.id]} <= {f["case"] for f in facts if f["twin"]}


@pytest.mark.parametrize("name", NAMES)
def test_sample_is_small_and_holds_no_weights_but_where_they_are_the_evidence(name):
    files = [p for p in (SAMPLES / name / "run").rglob("*") if p.is_file()]
    assert sum(p.stat().st_size for p in files) < 300_000
    expected = tomllib.loads((SAMPLES / name / "expected.toml").read_text())
    assert expected.get("checkpoints", False) == bool(
        [p for p in files if p.suffix in (".pt", ".pth", ".bin", ".ckpt", ".safetensors", ".pkl", ".distcp")]
    )


def test_every_recipe_with_samples_is_made_with_the_others():
    recipes = SAMPLES / "recipes"
    made = re.search(r"^MODULES = \((.*?)^\)", (recipes / "__main__.py").read_text(), re.DOTALL | re.MULTILINE)
    assert made is not None
    holding = {path.stem for path in recipes.glob("*.py") if re.search(r"^SAMPLES\b", path.read_text(), re.MULTILINE)}
    assert holding - set(re.findall(r'"(\w+)"', made[1])) == {"wandb_runs"}  # which needs wandb
