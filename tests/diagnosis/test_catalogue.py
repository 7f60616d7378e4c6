"""The rule files of the catalogue: every example, and what every file must hold."""

import re
from dataclasses import replace

import pytest

from gradforensics.diagnosis.examples import check_example
from gradforensics.diagnosis.rules import load_rules

RULES = load_rules()
TESTED = [r for r in RULES if r.signs]
EXAMPLES = [pytest.param(r, e, id=f"{r.id}-{e.get('note', i)}") for r in RULES for i, e in enumerate(r.examples)]


@pytest.mark.parametrize(("rule", "example"), EXAMPLES)
def test_example(rule, example):
    assert check_example(rule, example) == ""


def test_the_27_cases_exist():
    assert {f"GF{n:02}" for n in range(1, 28)} <= {r.id for r in RULES}


@pytest.mark.parametrize("rule", TESTED, ids=lambda r: r.id)
def test_each_tested_rule_has_a_firing_example_per_variant_a_near_miss_and_a_missing_one(rule):
    fired = {e.get("variant") for e in rule.examples if "fires_at" in e or "fires" in e}
    assert set(rule.variants) <= fired
    assert any("fires_at" in e for e in rule.examples)
    if any(s.acquits for s in rule.signs):
        assert any(e.get("clear") for e in rule.examples)
    else:  # looked, found nothing, and says nothing about the rest of the run
        assert any(e.get("missing") == [] for e in rule.examples)
    assert any(e.get("missing") for e in rule.examples)


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.id)
def test_texts_are_complete_in_both_languages(rule):
    for language in ("en", "zh"):
        for variant in (None, *rule.variants):
            texts = rule.texts.get((language, variant))
            assert texts is not None, f"no {language} texts for {variant}"
            assert texts.what
    for language in ("en", "zh"):
        texts = rule.texts[language, None]
        assert all((texts.title, texts.why, texts.fix))
    assert len(rule.title) <= 72
    assert re.search(r"[\u4e00-\u9fff]", rule.text("zh").title)
    assert rule.verify
    assert rule.look_alikes
    if not rule.signs:
        assert rule.needs


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.id)
def test_rule_lies_in_the_folder_of_its_family_under_its_slug(rule):
    assert (rule.path.parent.name, rule.path.stem) == (rule.family, rule.slug)


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.id)
def test_fixes_do_not_recommend_what_is_known_to_harm(rule):
    fixes = " ".join(f for texts in rule.texts.values() for f in texts.fix)
    harmful = (
        r"xavier|eps\s*=?\s*1e-5|NCCL_SOCKET_TIMEOUT|optim=.lion|loss_scale=128"
        r"|requires_grad_\(True\)|zero_grad\(\) before every"
    )
    assert not re.search(harmful, fixes, re.IGNORECASE)


@pytest.mark.parametrize("rule", TESTED, ids=lambda r: r.id)
def test_every_parameter_says_where_it_comes_from(rule):
    for parameter in rule.parameters.values():
        assert parameter.unit
        assert len(parameter.source) > 8


def test_look_alikes_name_cases_that_exist():
    known = {r.id for r in RULES}
    assert {a.case for r in RULES for a in r.look_alikes} <= known


def test_without_examples_the_rules_are_the_same():
    bare = load_rules(examples=False)
    assert [rule.examples for rule in bare] == [()] * len(RULES)
    assert bare == [replace(rule, examples=()) for rule in RULES]
