"""The rule files of a folder: TOML -> Rule. Strict; every complaint names the file and, where possible, the line.

A rule is inert data: no arithmetic, no conditions, no code. Numbers live in [parameters] with a unit and a source, and
a sign refers to them as "$name"; placeholders in texts are facts that the check declares.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from gradforensics.diagnosis.rule_layout import complaint
from gradforensics.diagnosis.rule_model import (
    SEVERITIES,
    STRENGTHS,
    LookAlike,
    Parameter,
    Rule,
    Severity,
    Sign,
    Strength,
    Test,
    Texts,
    fill,
)
from gradforensics.diagnosis.rule_reader import Reader
from gradforensics.errors import RuleError

__all__ = [
    "SEVERITIES",
    "STRENGTHS",
    "LookAlike",
    "Parameter",
    "Rule",
    "Severity",
    "Sign",
    "Strength",
    "Test",
    "Texts",
    "catalogue_ids",
    "fill",
    "load_rule",
    "load_rules",
    "read_rules",
    "rules_folder",
]

_ID = re.compile(r'^id\s*=\s*"([^"\n]*)"', re.MULTILINE)


def load_rule(path: Path, *, examples: bool = True) -> Rule:
    """Read one rule file, with its examples or without; RuleError for the first thing wrong."""
    reader = Reader(path, examples=examples)
    rule = reader.rule()
    for error in reader.complaints:
        raise error
    return rule


def rules_folder() -> Path:
    """Where the catalogue lies: in the installed package, or beside it in a checkout."""
    here = Path(__file__).resolve().parent.parent
    inside = here / "rules"
    return inside if inside.is_dir() else here.parent / "rules"


def catalogue_ids() -> frozenset[str]:
    """The ids of the cases of the catalogue, its rule files unread."""
    texts = (path.read_text(encoding="utf-8") for path in rules_folder().rglob("*.toml"))
    return frozenset(found[1] for text in texts if (found := _ID.search(text)))


def load_rules(folder: Path | None = None, *, examples: bool = True) -> list[Rule]:
    """Every rule below a folder, by id; raises RuleError for a bad file and for contradictions between files.

    folder: None is the catalogue. examples: False where nobody runs them; they are half of what is read.
    """
    loaded = (load_rule(path, examples=examples) for path in _files(folder))
    rules = sorted(loaded, key=lambda r: r.id)
    for error in contradictions(rules):
        raise error
    return rules


def read_rules(folder: Path) -> tuple[list[Rule], list[RuleError]]:
    """Every rule below a folder that can be read, by id, and everything that is wrong with the format of their files.

    A rule with a complaint holds what could be read of it. Raises RuleError where there is no rule file.
    """
    rules: list[Rule] = []
    complaints: list[RuleError] = []
    for path in _files(folder):
        try:
            reader = Reader(path, examples=True)
            rules.append(reader.rule())
            complaints += reader.complaints
        except RuleError as error:
            complaints.append(error)
    rules.sort(key=lambda r: r.id)
    return rules, [*complaints, *contradictions(rules)]


def _files(folder: Path | None) -> list[Path]:
    folder = rules_folder() if folder is None else folder
    paths = sorted(folder.rglob("*.toml"))
    if not paths:
        raise RuleError(folder, "no rule files (*.toml) found here")
    return paths


def contradictions(rules: Sequence[Rule]) -> Iterator[RuleError]:
    """What is wrong between rule files: ids taken twice, effects that no case has, circles of causes.

    Cases of the catalogue count as known: a folder of rules of one's own may lead to them.
    """
    known: dict[str, Rule] = {}
    for rule in rules:
        if rule.id in known:
            yield complaint(rule.path, f"the id {rule.id} is taken by {known[rule.id].path}", "id")
        else:
            known[rule.id] = rule
    dangling = [(rule, effect) for rule in rules for effect in _all_effects(rule) if effect not in known]
    built_in = catalogue_ids() if dangling else frozenset()
    for rule, effect in dangling:
        if effect not in built_in:
            yield complaint(rule.path, f"leads_to names {effect}, which does not exist", f'"{effect}"')
    yield from _circles(known)


def _all_effects(rule: Rule) -> tuple[str, ...]:
    return (*rule.leads_to, *(effect for effects in rule.variant_leads_to.values() for effect in effects))


def _circles(known: Mapping[str, Rule]) -> Iterator[RuleError]:
    done: set[str] = set()

    def walk(name: str, path: tuple[str, ...]) -> Iterator[RuleError]:
        if name in path:
            circle = " -> ".join((*path[path.index(name) :], name))
            yield complaint(known[name].path, f"leads_to runs in a circle: {circle}", "leads_to")
        elif name not in done and name in known:
            for effect in _all_effects(known[name]):
                yield from walk(effect, (*path, name))
            done.add(name)

    for name in known:
        yield from walk(name, ())
