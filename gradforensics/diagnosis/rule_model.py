"""The model of a rule: what one TOML file of the catalogue says, as inert data."""

from __future__ import annotations

import re
import shlex
import string
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from gradforensics import COMMANDS
from gradforensics.diagnosis import needs as needs_
from gradforensics.diagnosis.vocabulary import Check, Fact
from gradforensics.languages import NOTHING, Language, Text
from gradforensics.questions import QUESTIONS

Severity: TypeAlias = Literal["S1", "S2", "S3", "S4"]
Strength: TypeAlias = Literal["suspect", "probable", "proven"]

SEVERITIES: tuple[Severity, ...] = ("S1", "S2", "S3", "S4")
STRENGTHS: tuple[Strength, ...] = ("suspect", "probable", "proven")

_COMMAND = re.compile(r"\bgradforensics (\w+)")
_UNKNOWN: Mapping[Language, str] = {"en": "unknown", "zh": "未知"}
_EXPERIMENT = re.compile(r"--experiment (\w+)")
_OPTIONAL = re.compile(r"\[\[(?P<text>.*?)(?:\|(?P<other>.*?))?\]\]")


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
    tell: Text
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
    verify: Text = NOTHING
    false_alarms: tuple[Text, ...] = ()
    references: tuple[str, ...] = ()
    codes: Mapping[str | None, Mapping[str, str]] = field(default_factory=dict)
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
        known = set(_COMMAND.findall(self.verify.en)) <= set(COMMANDS)
        return bool(self.verify.en) and known and set(_EXPERIMENT.findall(self.verify.en)) <= set(QUESTIONS)

    def effects(self, variant: str | None) -> tuple[str, ...]:
        """The rules of the cases that this one leads to, in one of its variants."""
        return self.variant_leads_to.get(variant or "", self.leads_to)

    def code(self, variant: str | None) -> Mapping[str, str]:
        """The fix of a variant as code, by framework: its own table, even an empty one, else that of the rule."""
        return self.codes.get(variant, self.codes.get(None, {}))

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


def is_command(line: str) -> bool:
    """Whether a line of a rule's `verify` is a command line to be pasted rather than prose."""
    return line.startswith(("gradforensics ", "dcgmi "))


def fill(template: str, facts: Mapping[str, Fact], language: Language = "en", *, quote_run: bool = False) -> str:
    """Put facts into a text of this language; `run` is shell-quoted in commands.

    `[[ on host {host}]]` is left out where one of its facts is not known, `[[host {host}|the host]]` gives what stands
    behind the bar; a fact outside of brackets that is not known is called so.
    """
    known = {k: v.in_(language) if isinstance(v, Text) else v for k, v in facts.items() if v is not None}
    text = _OPTIONAL.sub(lambda found: _optional(found, known), template)
    return _filled(text, known, _UNKNOWN[language], quote_run=quote_run)


def _optional(found: re.Match[str], known: Mapping[str, object]) -> str:
    names = {name for _, name, _, _ in string.Formatter().parse(found["text"]) if name}
    return found["text"] if names <= known.keys() else found["other"] or ""


def _filled(template: str, known: Mapping[str, object], unknown: str, *, quote_run: bool) -> str:
    out: list[str] = []
    for literal, name, spec, _ in string.Formatter().parse(template):
        out.append(literal)
        if name is None:
            continue
        if name not in known:
            out.append(unknown)
        elif name == "run" and quote_run:
            out.append(shlex.quote(str(known[name])))
        else:
            try:
                out.append(format(known[name], spec or ""))
            except ValueError:
                out.append(str(known[name]))
    return "".join(out)
