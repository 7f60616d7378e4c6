"""One rule explained on the terminal: `gradforensics rules show GF07`."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator

from gradforensics.diagnosis import needs
from gradforensics.diagnosis.rules import Rule
from gradforensics.languages import Language

_WIDTH = 100
_PLACEHOLDER = re.compile(r"\{(\w+)(?::[^}]*)?\}")


def render(rule: Rule, language: Language = "en") -> str:
    """The rule as plain text, ending in a newline."""
    text = "\n".join(_lines(rule, language)) + "\n"
    return _PLACEHOLDER.sub(r"<\1>", text)  # what a verdict fills in


def _lines(rule: Rule, language: Language) -> Iterator[str]:
    texts = rule.text(language)
    yield f"{rule.id} {rule.slug}  ({rule.severity}, {rule.family})"
    yield texts.title
    yield ""
    yield from _paragraph(texts.what)
    yield ""
    yield from _paragraph(texts.why)
    yield from _section("Fix", _items(texts.fix))
    for variant in rule.variants:
        own = rule.text(language, variant)
        severity = rule.variant_severity.get(variant, rule.severity)
        yield from _section(f"Variant {variant} ({severity})", [*_paragraph(own.what), *_items(own.fix)])
    yield from _section("Signs", _signs(rule))
    yield from _section("Needs", _items(_needs(rule, language)))
    yield from _section("Look-alikes", _items(f"{a.case}: {a.tell.in_(language)}" for a in rule.look_alikes))
    effects = [f"variant {variant}: {', '.join(rules)}" for variant, rules in rule.variant_leads_to.items() if rules]
    yield from _section("May lead to", _items([*rule.leads_to, *effects]))
    yield from _section("Can be a false alarm", _items(text.in_(language) for text in rule.false_alarms))
    told = rule.verify.in_(language)
    verify = told if rule.verifiable else f"{told} (not in this version)"
    yield from _section("Verify", _items([verify] if told else []))
    yield from _section("Parameters", _parameters(rule))
    yield from _section("References", _items(rule.references))


def _section(title: str, body: Iterable[str]) -> Iterator[str]:
    lines = list(body)
    if lines:
        yield from ("", title, *(f"  {line}" if line else "" for line in lines))


def _paragraph(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, break_on_hyphens=False) or [""]


def _items(texts: Iterable[str]) -> list[str]:
    out: list[str] = []
    for text in texts:
        out += textwrap.wrap(text, _WIDTH - 4, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False)
    return out


def _signs(rule: Rule) -> list[str]:
    if not rule.signs:
        return ["this version has no test for it"]
    return [
        f"- {sign.name}: {sign.strength}"
        + (f", variant {sign.variant}" if sign.variant else "")
        + (f", {sign.severity}" if sign.severity else "")
        + ("" if sign.acquits else ", does not acquit")
        for sign in rule.signs
    ]


def _needs(rule: Rule, language: Language) -> list[str]:
    named = list(dict.fromkeys(n.text for sign in rule.signs for n in sign.test.needs)) or list(rule.needs)
    return [f"{text}  ({hint})" if (hint := needs.advice(text, language=language)) else text for text in named]


def _parameters(rule: Rule) -> list[str]:
    return [
        f"- {p.name} = {p.value} ({p.unit}; {p.source})" + (" [kept for reference, not used]" if p.unused else "")
        for p in rule.parameters.values()
    ]
