"""One rule explained on the terminal: `gradforensics rules show GF07`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from gradforensics.diagnosis import frameworks, needs
from gradforensics.diagnosis.rules import Rule
from gradforensics.languages import Language
from gradforensics.report.words import Words, columns

_WIDTH = 100
_PLACEHOLDER = re.compile(r"\{(\w+)(?::[^}]*)?\}")
# What a line is not broken within: a word with the blanks before it, or one wide character with the marks after it.
_PIECE = re.compile(
    r"\s*(?:[\u2e80-\u9fff][，。：；！？、）”」』]*|[（“「『]?[^\s\u2e80-\u9fff，。：；！？、（）“”]+[，。：；！？、）”]*|\S)"
)


def render(rule: Rule, language: Language = "en") -> str:
    """The rule as plain text, ending in a newline."""
    return "\n".join(_lines(rule, Words(language))) + "\n"


def _lines(rule: Rule, words: Words) -> Iterator[str]:
    language = words.language
    texts = rule.text(language)
    yield f"{rule.id} {rule.slug}  ({rule.severity}, {rule.family})"
    yield texts.title
    yield ""
    yield from _wrapped(texts.what)
    yield ""
    yield from _wrapped(texts.why)
    yield from _section(words("rule_fix"), _items(texts.fix))
    yield from _codes(rule.code(None))
    for variant in rule.variants:
        own = rule.text(language, variant)
        severity = rule.variant_severity.get(variant, rule.severity)
        head = words("rule_variant", name=variant, severity=severity)
        yield from _section(head, [*_wrapped(own.what, _WIDTH - 2), *_items(own.fix)])
        yield from _codes(rule.codes.get(variant, {}))
    yield from _section(words("rule_signs"), _items(_signs(rule, words)))
    yield from _section(words("rule_needs"), _items(_needs(rule, words)))
    alikes = (words("rule_sign", name=a.case, about=a.tell.in_(language)) for a in rule.look_alikes)
    yield from _section(words("rule_look_alikes"), _items(alikes))
    yield from _section(words("rule_leads_to"), _items([*rule.leads_to, *_effects(rule, words)]))
    yield from _section(words("rule_false_alarms"), _items(text.in_(language) for text in rule.false_alarms))
    told = rule.verify.in_(language)
    verify = told if rule.verifiable else words("rule_unverifiable", verify=told)
    yield from _section(words("rule_verify"), _items(verify.splitlines() if told else []))
    yield from _section(words("rule_parameters"), _items(_parameters(rule, words)))
    yield from _section(words("rule_references"), _items(rule.references))


def _section(title: str, body: Iterable[str]) -> Iterator[str]:
    lines = list(body)
    if lines:
        yield from ("", title, *(f"  {line}" if line else "" for line in lines))


def _codes(codes: Mapping[str, str]) -> Iterator[str]:
    for name, text in codes.items():
        yield from (f"    {frameworks.title(name)}:", *(f"      {line}".rstrip() for line in text.splitlines()))


def _wrapped(text: str, width: int = _WIDTH) -> list[str]:
    """The lines of a text of at most `width` columns, in which wide characters take two; a longer word stays whole."""
    lines = [""]
    for piece in _PIECE.findall(_PLACEHOLDER.sub(r"<\1>", text)):  # what a verdict fills in
        if lines[-1] and columns(lines[-1] + piece) > width:
            lines.append("")
        lines[-1] += piece if lines[-1] else piece.lstrip()
    return lines


def _items(texts: Iterable[str]) -> list[str]:
    return [f"{'  ' if i else '- '}{line}" for text in texts for i, line in enumerate(_wrapped(text, _WIDTH - 6))]


def _signs(rule: Rule, words: Words) -> Iterator[str]:
    if not rule.signs:
        yield words("rule_untested")
    for sign in rule.signs:
        about = [words(sign.strength)]
        about += [words("rule_of_variant", name=sign.variant)] if sign.variant else []
        about += [sign.severity] if sign.severity else []
        about += [] if sign.acquits else [words("rule_no_acquittal")]
        yield words("rule_sign", name=sign.name, about=words("rule_comma").join(about))


def _needs(rule: Rule, words: Words) -> Iterator[str]:
    named = list(dict.fromkeys(n.text for sign in rule.signs for n in sign.test.needs)) or list(rule.needs)
    for need in named:
        hint = needs.advice(need, language=words.language)
        yield words("rule_hint", need=need, hint=hint) if hint else need


def _effects(rule: Rule, words: Words) -> Iterator[str]:
    for variant, rules in rule.variant_leads_to.items():
        if rules:
            yield words("rule_sign", name=words("rule_of_variant", name=variant), about=", ".join(rules))


def _parameters(rule: Rule, words: Words) -> Iterator[str]:
    for p in rule.parameters.values():
        told = words("rule_parameter", name=p.name, value=p.value, unit=p.unit, source=p.source)
        yield told + (words("rule_unused") if p.unused else "")
