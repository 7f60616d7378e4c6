"""Reading one rule file: TOML -> Rule. Strict; a file is read to its end, so that all complaints come at once."""

from __future__ import annotations

import re
import string
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import tomli

from gradforensics.diagnosis import needs as needs_
from gradforensics.diagnosis.checks import CHECKS
from gradforensics.diagnosis.rule_layout import Layout
from gradforensics.diagnosis.rule_model import (
    SEVERITIES,
    STRENGTHS,
    LookAlike,
    Parameter,
    Rule,
    Severity,
    Sign,
    Test,
    Texts,
)
from gradforensics.errors import RuleError
from gradforensics.languages import LANGUAGES, NOTHING, Language, Text

_REQUIRED = ("id", "slug", "family", "title", "severity", "what", "why", "fix")
_KEYS = {
    *_REQUIRED, "leads_to", "needs", "verify", "false_alarms", "references", "variant", "parameters", "sign",
    "look_alike", "example", "zh", "code",
}  # fmt: skip
_TEXT_KEYS = {"title", "what", "why", "fix"}
_ZH_LISTS = frozenset({"verify", "false_alarms"})  # of the rule as a whole
_UNIT_KEYS = {"value", "unit", "source"}
_SPEC = re.compile(r",?(\.\d{1,2})?[gfe%d]?")
_NAME = re.compile(r"[a-z][a-z0-9_-]*")
_EXAMPLE = re.compile(r"^\[\[?example[\].].*\n(?:[^\[\n].*\n?|\n)*", re.MULTILINE)  # also [example.baseline]


class Reader:
    """Reads one rule file; keeps its text to find the line of a complaint, and all complaints."""

    def __init__(self, path: Path, *, examples: bool) -> None:
        self.path = path
        self.complaints: list[RuleError] = []
        try:
            text = path.read_text(encoding="utf-8")
            wanted = text if examples else _EXAMPLE.sub("", text)
            self.data = tomli.loads(wanted)
        except UnicodeDecodeError as error:
            raise RuleError(path, f"not UTF-8 text ({error.reason})") from None
        except tomli.TOMLDecodeError as error:
            found = re.search(r"at line (\d+)", str(error))
            raise RuleError(path, f"not TOML: {error}", int(found[1]) if found else None) from None
        self.text = text
        self._place = ("", 0)

    @cached_property
    def layout(self) -> Layout:
        """Where its tables stand."""
        return Layout(self.text)

    def error(self, text: str, needle: str = "") -> RuleError:
        """A complaint; `needle` is a piece of the file to point at, looked for first in the part that is read."""
        return RuleError(self.path, text, self.layout.near(needle, *self._place))

    def complain(self, text: str, needle: str = "", table: str = "", index: int = 0) -> None:
        """Note a complaint about a part of the file and go on."""
        with self.part(table, index):
            raise self.error(text, needle)

    @contextmanager
    def part(self, table: str = "", index: int = 0) -> Iterator[None]:
        """Read one part of the file: what breaks the format there is noted, and the reading goes on behind it."""
        before, self._place = self._place, (table, index)
        try:
            yield
        except RuleError as error:
            self.complaints.append(error)
        finally:
            self._place = before

    def strings(self, table: Mapping[str, Any], key: str) -> tuple[str, ...]:
        """A list of strings, () where it is absent."""
        value = table.get(key, [])
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise self.error(f"{key} must be a list of strings", key)
        return tuple(value)

    def string(self, table: Mapping[str, Any], key: str) -> str:
        """A string, "" where it is absent."""
        value = table.get(key, "")
        if not isinstance(value, str):
            raise self.error(f"{key} must be a string", key)
        return value

    def texts(self, table: Mapping[str, Any], *, extra: frozenset[str] = frozenset()) -> Texts:
        """The texts of a table; extra: keys that it may hold besides."""
        for key in sorted(set(table) - _TEXT_KEYS - extra):
            self.complain(f"unknown key {key!r} among the texts", key, *self._place)
        title, what, why = (self.string(table, k) for k in ("title", "what", "why"))
        return Texts(title, what, why, self.strings(table, "fix"))

    def rule(self) -> Rule:
        """Build the rule of what can be read; what breaks the format lies in `complaints` afterwards.

        Raises RuleError where the shape of the file is wrong, so that there is nothing to read.
        """
        data = self.data
        self.shapes()
        for key in sorted(set(data) - _KEYS):
            self.complain(f"unknown key {key!r}", key)
        for key in _REQUIRED:
            if not data.get(key):
                self.complaints.append(RuleError(self.path, f"{key} is missing or empty", 1))
        severity, names = self.head()
        texts, variant_severity, variant_leads_to = self.all_texts()
        parameters = self.parameters()
        signs: list[Sign] = []
        for i, table in enumerate(data.get("sign", [])):
            with self.part("sign", i):
                signs.append(self.sign(table, parameters, [s.name for s in signs]))
        look_alikes: list[LookAlike] = []
        for i, table in enumerate(data.get("look_alike", [])):
            with self.part("look_alike", i):
                look_alikes.append(self.look_alike(table, parameters))
        self.unused(parameters)
        lists: dict[str, tuple[str, ...]] = {}
        for key in ("leads_to", "needs", "references"):
            with self.part():
                lists[key] = self.strings(data, key)
        with self.part():
            self.needs(lists.get("needs", ()), signs)
        verify = NOTHING
        false_alarms: tuple[Text, ...] = ()
        with self.part():
            verify = Text(self.string(data, "verify"), self.string(data.get("zh", {}), "verify"))
        with self.part():
            false_alarms = self.false_alarms()
        rule = Rule(
            id=names["id"], slug=names["slug"], family=names["family"], severity=severity, path=self.path, texts=texts,
            verify=verify, variant_severity=variant_severity, variant_leads_to=variant_leads_to, parameters=parameters,
            signs=tuple(signs), look_alikes=tuple(look_alikes), examples=tuple(data.get("example", [])),
            false_alarms=false_alarms, codes=self.codes(), **lists,
        )  # fmt: skip
        self.placeholders(rule)
        return rule

    def codes(self) -> dict[str | None, Mapping[str, str]]:
        """The fix as code: [code] by framework, [code.VARIANT] the same for a variant."""
        out: dict[str | None, Mapping[str, str]] = {}
        table = self.data.get("code", {})
        own = {name: value for name, value in table.items() if not isinstance(value, dict)}
        parts = {None: own, **{name: value for name, value in table.items() if isinstance(value, dict)}}
        for variant, codes in parts.items():
            with self.part("code" if variant is None else f"code.{variant}"):
                if variant is not None and variant not in self.data.get("variant", {}):
                    raise self.error(f"code.{variant} belongs to a variant that does not exist", variant)
                if codes or variant is not None:
                    out[variant] = {name: self.string(codes, name).strip("\n") for name in codes}
        return out

    def false_alarms(self) -> tuple[Text, ...]:
        """When the verdict is a false alarm; a translation has as many entries."""
        english, chinese = (
            self.strings(self.data, "false_alarms"),
            self.strings(self.data.get("zh", {}), "false_alarms"),
        )
        if chinese and len(chinese) != len(english):
            raise self.error(f"zh false_alarms: {len(chinese)} entries, in English {len(english)}", "false_alarms")
        return tuple(map(Text, english, chinese or [""] * len(english)))

    def head(self) -> tuple[Severity, dict[str, str]]:
        """Severity, id, slug and family."""
        data = self.data
        severity: Severity = "S4"
        with self.part():
            severity = self.severity(data["severity"]) if data.get("severity") else severity
        names = {key: str(data.get(key, "")) for key in ("id", "slug", "family")}
        with self.part():
            if names["id"] and not re.fullmatch(r"[A-Z]{2,8}\d{2,4}", names["id"]):
                raise self.error(f"id {data['id']!r} must look like GF07", "id")
        for key in ("slug", "family"):
            with self.part():
                if names[key] and not _NAME.fullmatch(names[key]):
                    raise self.error(f"{key} {data[key]!r} must be lower case words with hyphens", key)
        return severity, names

    def unused(self, parameters: Mapping[str, Parameter]) -> None:
        """Every parameter is one of a sign, or says that it is only documented."""
        tests = (*self.data.get("sign", []), *(a.get("unless", {}) for a in self.data.get("look_alike", [])))
        used = {value[1:] for t in tests for value in t.get("with", {}).values() if isinstance(value, str)}
        for name in (n for n, p in parameters.items() if n not in used and not p.unused):
            self.complain(
                f"the parameter {name!r} is used by no sign (mark it unused = true if it is only documented)",
                name,
                "parameters",
            )

    def needs(self, declared: Sequence[str], signs: Sequence[Sign]) -> None:
        """Only a rule without signs lists what it needs."""
        if declared and signs:
            raise self.error("needs are declared by the checks; only a rule without signs lists them itself", "needs")
        for need in declared:
            try:
                needs_.parse(need)
            except ValueError as error:
                raise self.error(str(error), need) from None

    def shapes(self) -> None:
        """Tables must be tables and lists of tables lists of tables before anything looks into them."""
        tables = [(k, self.data.get(k, {})) for k in ("variant", "parameters", "zh", "code")]
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
        """One of the severities."""
        if value not in SEVERITIES:
            raise self.error(f"severity {value!r} must be one of {', '.join(SEVERITIES)}", "severity")
        return value  # type: ignore[no-any-return]  # checked against the literal's members just above

    def all_texts(
        self,
    ) -> tuple[dict[tuple[Language, str | None], Texts], dict[str, Severity], dict[str, tuple[str, ...]]]:
        """The texts by language and variant; the severities and the effects that variants have of their own."""
        data = self.data
        texts: dict[tuple[Language, str | None], Texts] = {("en", None): Texts()}
        severities: dict[str, Severity] = {}
        effects: dict[str, tuple[str, ...]] = {}
        with self.part():
            texts["en", None] = self.texts({k: v for k, v in data.items() if k in _TEXT_KEYS})
        for name, table in data.get("variant", {}).items():
            with self.part(f"variant.{name}"):
                texts["en", name] = Texts()
                texts["en", name] = self.texts(table, extra=frozenset({"severity", "leads_to"}))
                if "severity" in table:
                    severities[name] = self.severity(table["severity"])
                if "leads_to" in table:
                    effects[name] = self.strings(table, "leads_to")
        chinese = dict(data.get("zh", {}))
        variants = chinese.pop("variant", {})
        if chinese:
            with self.part("zh"):
                told = self.texts(chinese, extra=_ZH_LISTS)
                texts["zh", None] = self.translated(told, texts["en", None], "the rule")
        for name, table in variants.items():
            with self.part(f"zh.variant.{name}"):
                if ("en", name) not in texts:
                    raise self.error(f"zh.variant.{name} translates a variant that does not exist", name)
                texts["zh", name] = self.translated(self.texts(table), texts["en", name], name)
        return texts, severities, effects

    def translated(self, text: Texts, original: Texts, name: str) -> Texts:
        """A translation, which has as many fixes as the English text."""
        if len(text.fix) != len(original.fix):
            said = f"zh fix of {name}: {len(text.fix)} entries, in English {len(original.fix)}"
            self.complain(said, "fix" if text.fix else "[zh", *self._place)
        return text

    def parameters(self) -> dict[str, Parameter]:
        """The parameters by name."""
        out: dict[str, Parameter] = {}
        for name, table in self.data.get("parameters", {}).items():
            with self.part("parameters"):
                if not isinstance(table, dict) or not _UNIT_KEYS <= set(table) <= {*_UNIT_KEYS, "unused"}:
                    raise self.error(f"the parameter {name!r} must be {{ value = .., unit = .., source = .. }}", name)
                unit, source = self.string(table, "unit"), self.string(table, "source")
                out[name] = Parameter(name, table["value"], unit, source, bool(table.get("unused", False)))
        return out

    def test(self, table: Mapping[str, Any], parameters: Mapping[str, Parameter]) -> Test:
        """A check with its arguments filled in."""
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

    def sign(self, table: Mapping[str, Any], parameters: Mapping[str, Parameter], taken: Sequence[str]) -> Sign:
        """One [[sign]]; taken: the names of those before it."""
        for key in sorted(set(table) - {"check", "name", "variant", "strength", "severity", "acquits", "with"}):
            self.complain(f"unknown key {key!r} in a sign", key, *self._place)
        test = self.test(table, parameters)
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
        name = str(table.get("name", test.check.name))
        if name in taken:
            raise self.error(f"two signs are called {name!r}; give one a name of its own", name)
        return Sign(name, test, strength, variant, severity, bool(table.get("acquits", True)))

    def look_alike(self, table: Mapping[str, Any], parameters: Mapping[str, Parameter]) -> LookAlike:
        """One [[look_alike]]."""
        unknown = sorted(set(table) - {"case", "tell", "tell_zh", "unless", "signs"})
        if unknown or not self.string(table, "case") or not self.string(table, "tell"):
            raise self.error(
                f"a look_alike has case, tell and optionally unless and signs (found {sorted(table)})", "look_alike"
            )
        named = self.strings(table, "signs")
        known = {str(sign.get("name", sign.get("check"))) for sign in self.data.get("sign", [])}
        for name in named:
            if name not in known:
                raise self.error(f"the look_alike {table['case']} names the sign {name!r}, which does not exist", name)
        unless = self.test(table["unless"], parameters) if "unless" in table else None
        return LookAlike(table["case"], Text(table["tell"], self.string(table, "tell_zh")), unless, named)

    def placeholders(self, rule: Rule) -> None:
        """Every placeholder of a text that a sign can produce must be a fact of that sign's check."""
        always = frozenset({"run", "onset"})
        told: set[tuple[str, str]] = set()
        speakers = [(s.name, s.variant, s.test.check.facts | always) for s in rule.signs]
        for language in LANGUAGES:
            for name, variant, facts in speakers or [(rule.id, v, always) for v in (None, *rule.variants)]:
                texts = rule.text(language, variant)
                place = ".".join([*(["zh"] if language == "zh" else []), *(["variant", variant] if variant else [])])
                for text in (texts.what, *texts.fix, rule.verify.in_(language)):
                    for complaint, needle in _bad_placeholders(text, facts, name):
                        if (text, complaint) not in told:
                            told.add((text, complaint))
                            self.complain(complaint, needle, place)


def _bad_placeholders(text: str, facts: frozenset[str], name: str) -> Iterator[tuple[str, str]]:
    """What is wrong with the placeholders of a text, each with the piece of it to point at."""
    try:
        parts = list(string.Formatter().parse(text))
    except ValueError as error:
        yield f"{text!r}: {error}", text[:40]
        return
    for _, field_name, spec, conversion in parts:
        if field_name is None:
            continue
        if field_name not in facts:
            yield f"{{{field_name}}} is no fact of the sign {name} ({', '.join(sorted(facts))})", "{" + field_name
        if conversion or not _SPEC.fullmatch(spec or ""):
            yield f"{{{field_name}:{spec}}}: this format is not allowed", "{" + field_name
