"""One rule explained on the terminal, in both languages."""

import re

import pytest

from gradforensics.cli import main
from gradforensics.diagnosis.rules import load_rules
from gradforensics.report.rule_page import render
from gradforensics.report.words import columns

RULES = load_rules(examples=False)
CODE = re.compile(r"^ {6}.*\n", re.MULTILINE)  # is copied as it stands, and its comments are English
ENGLISH = re.compile(r"(?:\b[a-z]{2,} ){3,}[a-z]{2,}\b")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_the_chinese_page_is_chinese_up_to_where_numbers_come_from(rule):
    told = CODE.sub("", render(rule, "zh"))
    before, _, parameters = told.partition("\n参数（单位与出处为英文原文）\n")
    assert bool(parameters) == bool(rule.parameters)
    before = before.partition("\n参考\n")[0]
    assert not ENGLISH.findall(before)
    headings = re.findall(r"\n\n(\S.*)", before)
    assert len(headings) > 5
    assert all(re.search(r"[\u4e00-\u9fff]", line) for line in headings)


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_no_line_is_wider_than_a_hundred_columns_unless_it_is_one_word(rule, language):
    for line in CODE.sub("", render(rule, language)).splitlines():
        assert columns(line) <= 100 or " " not in line.strip().removeprefix("- ")


def test_nothing_is_lost_where_lines_break():
    rule = next(rule for rule in RULES if rule.id == "GF26")
    for language in ("en", "zh"):
        told = re.sub(r"\s", "", render(rule, language))
        for text in (
            rule.text(language).why,
            *rule.text(language).fix,
            *(a.tell.in_(language) for a in rule.look_alikes),
        ):
            assert re.sub(r"\s|:[^}]*(?=})", "", text).replace("{", "<").replace("}", ">") in told


def test_a_line_does_not_begin_with_a_mark_that_belongs_to_the_word_before_it():
    for rule in RULES:
        for line in render(rule, "zh").splitlines():
            assert not line.strip().startswith(tuple("，。：；！？、）”"))


def test_the_list_of_rules_is_in_the_language_that_was_asked_for(capsys):
    assert main(["rules", "list", "--lang", "zh"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(RULES)
    assert all(re.search(r"[\u4e00-\u9fff]", line) for line in lines)
