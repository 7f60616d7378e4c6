"""Rule files: TOML -> Rule. Strict; every complaint names the file and, where it can be found, the line.

A rule is inert data: no arithmetic, no conditions, no code. Numbers live in [parameters] with a unit and a source, and
a sign refers to them as "$name"; placeholders in texts are facts that the check declares.
"""

from __future__ import annotations

import re
import shlex
import string
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from gradforensics import COMMANDS
from gradforensics.diagnosis import needs as needs_
from gradforensics.diagnosis.checks import CHECKS
from gradforensics.diagnosis.vocabulary import Check, Fact
from gradforensics.errors import RuleError
from gradforensics.questions import QUESTIONS

Severity: TypeAlias = Literal["S1", "S2", "S3", "S4"]
Strength: TypeAlias = Literal["suspect", "probable", "proven"]
Language: TypeAlias = Literal["en", "zh"]

SEVERITIES: tuple[Severity, ...] = ("S1", "S2", "S3", "S4")
LANGUAGES: tuple[Language, ...] = ("en", "zh")
STRENGTHS: tuple[Strength, ...] = ("suspect", "probable", "proven")

_REQUIRED = ("id", "slug", "family", "title", "severity", "what", "why", "fix")
_KEYS = {
    *_REQUIRED, "leads_to", "needs", "verify", "false_alarms", "references", "variant", "parameters", "sign",
    "look_alike", "example", "zh",
}  # fmt: skip
_TEXT_KEYS = {"title", "what", "why", "fix"}
_SPEC = re.compile(r",?(\.\d{1,2})?[gfe%d]?")
_NAME = re.compile(r"[a-z][a-z0-9_-]*")
_COMMAND = re.compile(r"\bgradforensics (\w+)")
_EXPERIMENT = re.compile(r"--experiment (\w+)")
_EXAMPLE = re.compile(r"^\[\[example\]\].*\n(?:[^\[\n].*\n|\n)*", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A named number (or list of them) of a rule, with its unit and where it comes from."""

    name: str
    value: Any
    unit: str
    source: str
    unused: bool = False


@dataclass(frozen=True, slots=True)
class Test:
    """A check with its arguments filled in."""

    check: Check
    arguments: Mapping[str, Any]
    seed: bool = False

    @property
    def needs(self) -> list[needs_.Need]:
        """The check's needs, its arguments filled in."""
        return [needs_.parse(n.format(**self.arguments)) for n in self.check.needs]


@dataclass(frozen=True, slots=True)
class Sign:
    """One piece of a rule that can speak for the case."""

    name: str
    test: Test
    strength: Strength
    variant: str | None = None
    severity: Severity | None = None
    acquits: bool = True

    @property
    def experiments(self) -> tuple[str, ...]:
        """The experiments of a replay that it reads."""
        return tuple(need.name for need in self.test.needs if need.kind == "experiments")


@dataclass(frozen=True, slots=True)
class LookAlike:
    """A case that looks the same and how to tell; where `unless` holds, the signs it concerns are refuted."""

    case: str
    tell: str
    unless: Test | None = None
    signs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Texts:
    """The user-facing texts of a rule or a variant in one language; empty where the rule's own text serves."""

    title: str = ""
    what: str = ""
    why: str = ""
    fix: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rule:
    """One case of the catalogue."""

    id: str
    slug: str
    family: str
    severity: Severity
    path: Path
    texts: Mapping[tuple[Language, str | None], Texts]
    leads_to: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    verify: str = ""
    false_alarms: tuple[str, ...] = ()
    references: tuple[str, ...] = ()
    variant_severity: Mapping[str, Severity] = field(default_factory=dict)
    variant_leads_to: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    signs: tuple[Sign, ...] = ()
    look_alikes: tuple[LookAlike, ...] = ()
    examples: tuple[Mapping[str, Any], ...] = ()

    @property
    def title(self) -> str:
        """The English title."""
        return self.texts["en", None].title

    @property
    def verifiable(self) -> bool:
        """Whether this version has every command and every experiment that `verify` names."""
        known = set(_COMMAND.findall(self.verify)) <= set(COMMANDS)
        return bool(self.verify) and known and set(_EXPERIMENT.findall(self.verify)) <= set(QUESTIONS)

    def effects(self, variant: str | None) -> tuple[str, ...]:
        """The rules of the cases that this one leads to, in one of its variants."""
        return self.variant_leads_to.get(variant or "", self.leads_to)

    @property
    def variants(self) -> tuple[str, ...]:
        """Names of the variants, in file order."""
        return tuple(dict.fromkeys(v for _, v in self.texts if v))

    def text(self, language: Language = "en", variant: str | None = None) -> Texts:
        """Texts of a variant in a language: its own, else the rule's; English where there is no translation."""
        layers = [self.texts.get(k) for k in ((language, variant), (language, None), ("en", variant), ("en", None))]
        if variant is not None and layers[0] is None and layers[2] is not None:
            layers = [layers[2], *layers]  # an untranslated variant is more exact than the translated general text
        known = [t for t in layers if t is not None]
        return Texts(
            next((t.title for t in known if t.title), ""),
            next((t.what for t in known if t.what), ""),
            next((t.why for t in known if t.why), ""),
            next((t.fix for t in known if t.fix), ()),
        )


def fill(template: str, facts: Mapping[str, Fact], *, quote_run: bool = False) -> str:
    """Put facts into a text. A fact that is not known shows as "?"; `run` is shell-quoted in commands."""
    out: list[str] = []
    for literal, name, spec, _ in string.Formatter().parse(template):
        out.append(literal)
        if name is None:
            continue
        value = facts.get(name)
        if value is None:
            out.append("?")
        elif name == "run" and quote_run:
            out.append(shlex.quote(str(value)))
        else:
            try:
                out.append(format(value, spec or ""))
            except ValueError:
                out.append(str(value))
    return "".join(out)


class _Reader:
    """Reads one rule file; keeps its text to find the line of a complaint."""

    def __init__(self, path: Path, *, examples: bool) -> None:
        self.path = path
        try:
            self.text = path.read_text(encoding="utf-8")
            self.data = tomllib.loads(self.text if examples else _EXAMPLE.sub("", self.text))
        except UnicodeDecodeError as error:
            raise RuleError(path, f"not UTF-8 text ({error.reason})") from None
        except tomllib.TOMLDecodeError as error:
            found = re.search(r"at line (\d+)", str(error))
            raise RuleError(path, f"not TOML: {error}", int(found[1]) if found else None) from None

    def error(self, text: str, needle: str = "") -> RuleError:
        """A complaint; `needle` is a piece of the file to point at."""
        line = next((n for n, row in enumerate(self.text.splitlines(), 1) if needle and needle in row), None)
        return RuleError(self.path, text, line)

    def strings(self, table: Mapping[str, Any], key: str) -> tuple[str, ...]:
        value = table.get(key, [])
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise self.error(f"{key} must be a list of strings", key)
        return tuple(value)

    def string(self, table: Mapping[str, Any], key: str) -> str:
        value = table.get(key, "")
        if not isinstance(value, str):
            raise self.error(f"{key} must be a string", key)
        return value

    def texts(self, table: Mapping[str, Any], *, extra: frozenset[str] = frozenset()) -> Texts:
        unknown = set(table) - _TEXT_KEYS - extra
        if unknown:
            raise self.error(f"unknown key {min(unknown)!r} among the texts", min(unknown))
        title, what, why = (self.string(table, k) for k in ("title", "what", "why"))
        return Texts(title, what, why, self.strings(table, "fix"))

    def rule(self) -> Rule:
        """Build the rule; raises RuleError at the first thing that breaks the format."""
        data = self.data
        unknown = sorted(set(data) - _KEYS)
        if unknown:
            raise self.error(f"unknown key {unknown[0]!r}", unknown[0])
        for key in _REQUIRED:
            if not data.get(key):
                raise self.error(f"{key} is missing or empty")
        self.shapes()
        if not re.fullmatch(r"[A-Z]{2,8}\d{2,4}", str(data["id"])):
            raise self.error(f"id {data['id']!r} must look like GF07", "id")
        for key in ("slug", "family"):
            if not _NAME.fullmatch(str(data[key])):
                raise self.error(f"{key} {data[key]!r} must be lower case words with hyphens", key)
        severity = self.severity(data["severity"])
        texts, variant_severity = self.all_texts()
        variant_leads_to = {
            name: self.strings(table, "leads_to")
            for name, table in data.get("variant", {}).items()
            if "leads_to" in table
        }
        parameters = self.parameters()
        used: set[str] = set()
        signs = tuple(self.sign(s, parameters, used) for s in data.get("sign", []))
        names = [s.name for s in signs]
        for name in names:
            if names.count(name) > 1:
                raise self.error(f"two signs are called {name!r}; give one a name of its own", name)
        look_alikes = tuple(self.look_alike(entry, parameters, used, names) for entry in data.get("look_alike", []))
        for name, parameter in parameters.items():
            if name not in used and not parameter.unused:
                raise self.error(
                    f"the parameter {name!r} is used by no sign (mark it unused = true if it is only documented)", name
                )
        declared = self.strings(data, "needs")
        if declared and signs:
            raise self.error("needs are declared by the checks; only a rule without signs lists them itself", "needs")
        for need in declared:
            try:
                needs_.parse(need)
            except ValueError as error:
                raise self.error(str(error), need) from None
        rule = Rule(
            id=data["id"], slug=data["slug"], family=data["family"], severity=severity, path=self.path, texts=texts,
            leads_to=self.strings(data, "leads_to"), needs=declared, verify=self.string(data, "verify"),
            false_alarms=self.strings(data, "false_alarms"), references=self.strings(data, "references"),
            variant_severity=variant_severity, variant_leads_to=variant_leads_to, parameters=parameters, signs=signs,
            look_alikes=look_alikes, examples=tuple(data.get("example", [])),
        )  # fmt: skip
        self.placeholders(rule)
        return rule

    def shapes(self) -> None:
        """Tables must be tables and lists of tables lists of tables before anything looks into them."""
        tables = [(k, self.data.get(k, {})) for k in ("variant", "parameters", "zh")]
        tables += (
            [(f"zh.{k}", v) for k, v in tables[2][1].items() if k == "variant"]
            if isinstance(tables[2][1], dict)
            else []
        )
        for key, value in tables:
            if not isinstance(value, dict):
                raise self.error(f"{key} must be a table", key)
            if key.endswith("variant") and not all(isinstance(v, dict) for v in value.values()):
                raise self.error(f"{key} must hold tables: [{key}.name]", key)
        for key in ("sign", "look_alike", "example"):
            value = self.data.get(key, [])
            if not isinstance(value, list) or not all(isinstance(v, dict) for v in value):
                raise self.error(f"{key} must be written as [[{key}]]", key)
        for table in (*self.data.get("sign", []), *(a.get("unless", {}) for a in self.data.get("look_alike", []))):
            if not isinstance(table, dict) or not isinstance(table.get("with", {}), dict):
                raise self.error("a check is written as { check = .., with = { .. } }", "with")

    def severity(self, value: Any) -> Severity:
        if value not in SEVERITIES:
            raise self.error(f"severity {value!r} must be one of {', '.join(SEVERITIES)}", "severity")
        return value  # type: ignore[no-any-return]  # checked against the literal's members just above

    def all_texts(self) -> tuple[dict[tuple[Language, str | None], Texts], dict[str, Severity]]:
        data = self.data
        own = {k: v for k, v in data.items() if k in _TEXT_KEYS}
        texts: dict[tuple[Language, str | None], Texts] = {("en", None): self.texts(own)}
        severities: dict[str, Severity] = {}
        for name, table in data.get("variant", {}).items():
            texts["en", name] = self.texts(table, extra=frozenset({"severity", "leads_to"}))
            if "severity" in table:
                severities[name] = self.severity(table["severity"])
        chinese = dict(data.get("zh", {}))
        variants = chinese.pop("variant", {})
        if chinese:
            texts["zh", None] = self.texts(chinese)
        for name, table in variants.items():
            if ("en", name) not in texts:
                raise self.error(f"zh.variant.{name} translates a variant that does not exist", name)
            texts["zh", name] = self.texts(table)
        for (language, variant), text in texts.items():
            original = texts["en", variant]
            if language == "zh" and len(text.fix) != len(original.fix):
                raise self.error(
                    f"zh fix of {variant or 'the rule'}: {len(text.fix)} entries, in English {len(original.fix)}",
                    "[zh",
                )
        return texts, severities

    def parameters(self) -> dict[str, Parameter]:
        out: dict[str, Parameter] = {}
        for name, table in self.data.get("parameters", {}).items():
            if not isinstance(table, dict) or not {"value", "unit", "source"} <= set(table) <= {
                "value",
                "unit",
                "source",
                "unused",
            }:
                raise self.error(f"the parameter {name!r} must be {{ value = .., unit = .., source = .. }}", name)
            out[name] = Parameter(
                name, table["value"], table["unit"], table["source"], bool(table.get("unused", False))
            )
        return out

    def test(self, table: Mapping[str, Any], parameters: Mapping[str, Parameter], used: set[str]) -> Test:
        name = str(table.get("check", ""))
        found = CHECKS.get(name)
        if found is None:
            raise self.error(f"there is no check {name!r} (known: {', '.join(sorted(CHECKS))})", name or "check")
        arguments: dict[str, Any] = {}
        seed = False
        for key, value in table.get("with", {}).items():
            if key not in found.parameters:
                raise self.error(
                    f"the check {name} takes no {key!r} (it takes {', '.join(found.parameters) or 'nothing'})", key
                )
            if not isinstance(value, str):
                raise self.error(f'{key} = {value!r}: a bare number; name it in [parameters] and write "$name"', key)
            if not value.startswith("$"):
                arguments[key] = value
                continue
            if value[1:] not in parameters:
                raise self.error(f"{value} is no parameter of this rule", value)
            used.add(value[1:])
            seed = seed or value.startswith("$seed_")
            arguments[key] = parameters[value[1:]].value
        for key, kind in found.parameters.items():
            if key not in arguments:
                raise self.error(f"the check {name} needs {key!r}", name)
            if kind is float and isinstance(arguments[key], int) and not isinstance(arguments[key], bool):
                arguments[key] = float(arguments[key])
            if type(arguments[key]) is not kind:
                raise self.error(f"{key} of the check {name} must be {kind.__name__}, not {arguments[key]!r}", key)
        return Test(found, arguments, seed)

    def sign(self, table: Mapping[str, Any], parameters: Mapping[str, Parameter], used: set[str]) -> Sign:
        unknown = sorted(set(table) - {"check", "name", "variant", "strength", "severity", "acquits", "with"})
        if unknown:
            raise self.error(f"unknown key {unknown[0]!r} in a sign", unknown[0])
        test = self.test(table, parameters, used)
        strength = table.get("strength")
        if strength not in STRENGTHS:
            raise self.error(f"the sign {test.check.name} needs a strength: {', '.join(STRENGTHS)}", test.check.name)
        if test.seed and strength != "suspect":
            raise self.error(
                f"the sign {test.check.name} rests on a seed_ parameter and may only be suspect", test.check.name
            )
        variant = table.get("variant")
        if variant is not None and variant not in self.data.get("variant", {}):
            raise self.error(f"there is no [variant.{variant}]", variant)
        severity = self.severity(table["severity"]) if "severity" in table else None
        return Sign(
            str(table.get("name", test.check.name)), test, strength, variant, severity, bool(table.get("acquits", True))
        )

    def look_alike(
        self, table: Mapping[str, Any], parameters: Mapping[str, Parameter], used: set[str], signs: Sequence[str]
    ) -> LookAlike:
        unknown = sorted(set(table) - {"case", "tell", "unless", "signs"})
        if unknown or not self.string(table, "case") or not self.string(table, "tell"):
            raise self.error(
                f"a look_alike has case, tell and optionally unless and signs (found {sorted(table)})", "look_alike"
            )
        named = self.strings(table, "signs")
        for name in named:
            if name not in signs:
                raise self.error(f"the look_alike {table['case']} names the sign {name!r}, which does not exist", name)
        unless = self.test(table["unless"], parameters, used) if "unless" in table else None
        return LookAlike(table["case"], table["tell"], unless, named)

    def placeholders(self, rule: Rule) -> None:
        """Every placeholder of a text that a sign can produce must be a fact of that sign's check."""
        for sign in rule.signs:
            for language in LANGUAGES:
                texts = rule.text(language, sign.variant)
                for text in (texts.what, *texts.fix, rule.verify):
                    self.placeholder(text, sign.test.check.facts | {"run", "onset"}, sign.name)
        if not rule.signs:
            for texts in rule.texts.values():
                for text in (texts.what, *texts.fix, rule.verify):
                    self.placeholder(text, frozenset({"run", "onset"}), rule.id)

    def placeholder(self, text: str, facts: frozenset[str], name: str) -> None:
        try:
            parts = list(string.Formatter().parse(text))
        except ValueError as error:
            raise self.error(f"{text!r}: {error}", text[:40]) from None
        for _, field_name, spec, conversion in parts:
            if field_name is None:
                continue
            if field_name not in facts:
                raise self.error(
                    f"{{{field_name}}} is no fact of the sign {name} ({', '.join(sorted(facts))})", "{" + field_name
                )
            if conversion or not _SPEC.fullmatch(spec or ""):
                raise self.error(f"{{{field_name}:{spec}}}: this format is not allowed", "{" + field_name)


def load_rule(path: Path, *, examples: bool = True) -> Rule:
    """Read one rule file, with its examples or without them; raises RuleError."""
    return _Reader(path, examples=examples).rule()


def rules_folder() -> Path:
    """Where the catalogue lies: in the installed package, or beside it in a checkout."""
    here = Path(__file__).resolve().parent.parent
    inside = here / "rules"
    return inside if inside.is_dir() else here.parent / "rules"


def load_rules(folder: Path | None = None, *, examples: bool = True) -> list[Rule]:
    """Every rule below a folder, by id; raises RuleError for a bad file and for contradictions between files.

    folder: None is the catalogue. examples: False where nobody runs them; they are more than half of what is read.
    """
    folder = rules_folder() if folder is None else folder
    paths = sorted(folder.rglob("*.toml"))
    if not paths:
        raise RuleError(folder, "no rule files (*.toml) found here")
    rules = sorted((load_rule(p, examples=examples) for p in paths), key=lambda r: r.id)
    known: dict[str, Rule] = {}
    for rule in rules:
        if rule.id in known:
            raise RuleError(rule.path, f"the id {rule.id} is taken by {known[rule.id].path}")
        known[rule.id] = rule
    for rule in rules:
        for effect in _all_effects(rule):
            if effect not in known:
                raise RuleError(rule.path, f"leads_to names {effect}, which does not exist")
    _refuse_cycles(known)
    return rules


def _all_effects(rule: Rule) -> tuple[str, ...]:
    return (*rule.leads_to, *(effect for effects in rule.variant_leads_to.values() for effect in effects))


def _refuse_cycles(known: Mapping[str, Rule]) -> None:
    done: set[str] = set()

    def walk(name: str, path: tuple[str, ...]) -> None:
        if name in path:
            raise RuleError(known[name].path, f"leads_to runs in a circle: {' -> '.join((*path, name))}")
        if name not in done:
            for effect in _all_effects(known[name]):
                walk(effect, (*path, name))
            done.add(name)

    for name in known:
        walk(name, ())
