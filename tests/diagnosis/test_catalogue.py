"""The rule files of the catalogue: every example, and what every file must hold."""

from dataclasses import replace

import pytest

from gradforensics.diagnosis.examples import check_example
from gradforensics.diagnosis.lint import check_rule
from gradforensics.diagnosis.rules import load_rules

RULES = load_rules()
EXAMPLES = [pytest.param(r, e, id=f"{r.id}-{e.get('note', i)}") for r in RULES for i, e in enumerate(r.examples)]


@pytest.mark.parametrize(("rule", "example"), EXAMPLES)
def test_example(rule, example):
    assert check_example(rule, example) == ""


def test_the_27_cases_exist():
    assert {f"GF{n:02}" for n in range(1, 28)} <= {r.id for r in RULES}


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.id)
def test_the_linter_has_nothing_to_say(rule):
    """Texts in both languages, examples of every kind, sources of parameters, harmless fixes, folder and name."""
    assert check_rule(rule, frozenset(r.id for r in RULES)) == []


def test_without_examples_the_rules_are_the_same():
    bare = load_rules(examples=False)
    assert [rule.examples for rule in bare] == [()] * len(RULES)
    assert bare == [replace(rule, examples=()) for rule in RULES]
