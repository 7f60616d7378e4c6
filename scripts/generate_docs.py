#!/usr/bin/env python3
"""Write the pages of docs/ that are made from the program: a page per case, their index, and the commands.

python scripts/generate_docs.py               writes docs/cases/*.md and docs/commands.md
python scripts/generate_docs.py --check       changes nothing; exit code 1 where a page is not up to date
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import click
import tomli

from gradforensics.cli import commands
from gradforensics.diagnosis import frameworks, needs
from gradforensics.diagnosis.rules import Rule, Sign, load_rules
from gradforensics.report import markdown

ROOT = Path(__file__).resolve().parent.parent
MADE = "<!-- made by scripts/generate_docs.py: change the program, not this page -->"
FAMILIES = {
    "graph": "Graph and objective",
    "learning-rate": "Learning rate and schedule",
    "gradient-flow": "Gradient flow",
    "numerics": "Numerics",
    "data": "Data and labels",
    "recipe": "Recipe and fit",
    "platform": "Processes, software and machines",
}
LAST_OF_ARTICLES = "GF27"
_PLACEHOLDER = re.compile(r"\{(\w+)(?::[^}]*)?\}")
_IN_MARKDOWN = re.compile(r"‹(\w+)›")
_DETECTOR = re.compile(r" \(detectors? D\d[^)]*\)")  # numbers of the project's own notes
_BACKTICKS = re.compile(r"\\`(.*?)\\`")  # as prose() leaves them
_ARXIV = re.compile(r"arXiv[: ](\d{4}\.\d{4,5})")
_ADDRESS = re.compile(r"https://[^\s),;]+[^\s),;.]")


def pages() -> dict[str, str]:
    """Every generated page: its path below docs/ and its text."""
    rules = load_rules(examples=False)
    samples = _samples()
    made = {f"cases/{rule.id}.md": "\n".join(_case(rule, rules, samples[rule.id])) for rule in rules}
    made["cases/README.md"] = "\n".join(_index(rules, samples))
    made["commands.md"] = "\n".join(_commands())
    return made


# --- the cases


def _samples() -> dict[str, list[tuple[str, bool, str]]]:
    """The sample runs of every case: name, whether it is a near miss, and what was done to it."""
    found: dict[str, list[tuple[str, bool, str]]] = defaultdict(list)
    for path in sorted((ROOT / "sample_runs").glob("*/expected.toml")):
        told = tomli.loads(path.read_text(encoding="utf-8"))
        found[told["case"]].append((path.parent.name, bool(told["twin"]), str(told["note"])))
    return found


def _index(rules: Sequence[Rule], samples: Mapping[str, Sequence[object]]) -> Iterator[str]:
    yield from (MADE, "# The cases", "")
    first = [rule for rule in rules if rule.id <= LAST_OF_ARTICLES]
    beyond = [rule for rule in rules if rule.id > LAST_OF_ARTICLES]
    yield (
        f"{len(rules)} cases: the {len(first)} of the [articles](../articles.md) that the project began with, and "
        f"{len(beyond)} beyond them. `gradforensics rules list` lists them, `gradforensics rules show GF07` explains "
        "one, in English or Chinese. Severity: S1 run invalid or dead, S2 result materially worse, S3 waste, S4 note; "
        "a variant may have its own. What the sources of the parameters mean: "
        "[limits](../limits.md#where-the-thresholds-come-from)."
    )
    for title, chosen in ((f"The {len(first)} of the articles", first), (f"The {len(beyond)} beyond them", beyond)):
        yield from ("", f"## {title}")
        for family, name in FAMILIES.items():
            members = [rule for rule in chosen if rule.family == family]
            if members:
                yield from ("", f"### {name}" + ("" if chosen is first else ": more"), "")
                yield markdown.table(["case", "what", "中文", "severity", "sample runs"], _rows(members, samples))
    yield ""


def _rows(rules: Sequence[Rule], samples: Mapping[str, Sequence[object]]) -> Iterator[list[str]]:
    for rule in rules:
        link = f"[{rule.id} {rule.slug}]({rule.id}.md)"
        titles = [_prose(rule.text(language).title) for language in ("en", "zh")]
        yield [link, *titles, rule.severity, str(len(samples[rule.id]))]


def _case(rule: Rule, rules: Sequence[Rule], samples: Sequence[tuple[str, bool, str]]) -> Iterator[str]:
    texts = rule.text()
    yield from (MADE, f"# {rule.id} {rule.slug}", "")
    yield from (f"**{_prose(texts.title)}**  ", _prose(rule.text("zh").title), "")
    yield f"Severity {rule.severity} · {FAMILIES[rule.family]} · [all cases](README.md)"
    yield from ("", _prose(texts.what), "", _prose(texts.why))
    yield from _section("Fix", _items(texts.fix))
    shown: dict[tuple[str, str], str] = {}
    yield from _codes(rule.codes.get(None, {}), "Fix", shown)
    if rule.variants:
        yield from ("", "## Variants")
    for variant in rule.variants:
        own = rule.text("en", variant)
        severity = rule.variant_severity.get(variant, rule.severity)
        yield from ("", f"### {variant} ({severity})", "", _prose(own.what))
        if own.why != texts.why:
            yield from ("", _prose(own.why))
        if own.fix != texts.fix:
            yield from ("", *_items(own.fix))
        yield from _codes(rule.codes.get(variant, {}), variant, shown)
    yield from _section("Signs", _signs(rule.signs))
    yield from _section("Needs", _items(_needs(rule), made=True))
    alikes = (f"{_link(a.case, rules)}: {_prose(a.tell.en)}" for a in rule.look_alikes)
    yield from _section("Look-alikes, and what tells them apart", _items(alikes, made=True))
    yield from _section("May lead to", _items(_effects(rule, rules), made=True))
    yield from _section("Can be a false alarm", _items(text.en for text in rule.false_alarms))
    yield from _section("Verify", _verify(rule))
    yield from _section("Parameters", _parameters(rule))
    yield from _section("References", _items((_cited(text) for text in rule.references), made=True))
    yield from _section("Sample runs", _sampled(samples))
    yield ""


def _section(title: str, body: Iterable[str]) -> Iterator[str]:
    lines = list(body)
    if lines:
        yield from ("", f"## {title}", "", *lines)


def _items(texts: Iterable[str], *, made: bool = False) -> list[str]:
    """A list; made: the texts are Markdown already."""
    return [f"- {text if made else _prose(text)}" for text in texts]


def _prose(text: str) -> str:
    """A text of the program: what it sets in backticks is code, what a verdict fills in is set in italics."""
    shown = markdown.prose(_PLACEHOLDER.sub(r"‹\1›", text), limit=10_000)
    shown = _BACKTICKS.sub(lambda m: markdown.code_cell(re.sub(r"\\(.)", r"\1", m[1])), shown)
    return _IN_MARKDOWN.sub(lambda m: f"*{m[1].replace('_', ' ')}*", shown)


def _codes(codes: Mapping[str, str], place: str, shown: dict[tuple[str, str], str]) -> Iterator[str]:
    """The fix as code, by framework; what stood on the page before is named instead."""
    languages = frameworks.code_languages()
    for name, text in codes.items():
        before = shown.setdefault((name, text), place)
        head = frameworks.title(name)
        if before != place:
            yield from ("", f"{head}: as under *{before}*.")
        else:
            language = languages[name] if languages[name] != "options" else "text"
            yield from ("", f"{head}:", "", markdown.block(text.strip("\n"), language))


def _signs(signs: Iterable[Sign]) -> Iterator[str]:
    yield "Two suspect signs that read different evidence make a probable finding; the strongest sign counts."
    yield ""
    rows = []
    for sign in signs:
        about = _DETECTOR.sub("", (inspect.getdoc(sign.test.check.function) or "").split("\n\n", maxsplit=1)[0])
        remarks: list[str] = [sign.severity] if sign.severity else []
        remarks += [] if sign.acquits else ["does not acquit"]
        variant = sign.variant or ""
        rows.append([markdown.code_cell(sign.name), sign.strength, variant, ", ".join(remarks), _prose(about)])
    yield markdown.table(["sign", "strength", "variant", "", "what its check looks for"], rows)


def _needs(rule: Rule) -> Iterator[str]:
    named = list(dict.fromkeys(n.text for sign in rule.signs for n in sign.test.needs)) or list(rule.needs)
    for need in named:
        hint = needs.advice(need)
        yield markdown.code(need) + (f": {_prose(hint)}" if hint else "")


def _link(case: str, rules: Sequence[Rule]) -> str:
    found = next((rule for rule in rules if rule.id == case), None)
    return f"[{case} {found.slug}]({case}.md)" if found else case


def _effects(rule: Rule, rules: Sequence[Rule]) -> Iterator[str]:
    for effect in rule.leads_to:
        yield _link(effect, rules)
    for variant, effects in rule.variant_leads_to.items():
        if effects:
            yield f"{variant}: " + ", ".join(_link(effect, rules) for effect in effects)


def _verify(rule: Rule) -> Iterator[str]:
    told = rule.verify.en
    if told:
        later = "" if rule.verifiable else " (not in this version)"
        is_command = told.startswith("gradforensics ")
        yield (markdown.code(_PLACEHOLDER.sub(lambda m: m[1].upper(), told)) if is_command else _prose(told)) + later


def _parameters(rule: Rule) -> Iterator[str]:
    if rule.parameters:
        rows = []
        for p in rule.parameters.values():
            unused = " (kept for reference, not used)" if p.unused else ""
            value = markdown.code_cell(str(p.value))
            rows.append([markdown.code_cell(p.name), value, _prose(p.unit), _prose(p.source) + unused])
        yield markdown.table(["parameter", "value", "unit", "source"], rows)


def _cited(text: str) -> str:
    """A reference; papers of arXiv and addresses are links."""
    links = _ARXIV.sub(lambda m: f"‹{m[0]}|https://arxiv.org/abs/{m[1]}›", text)
    links = _ADDRESS.sub(lambda m: m[0] if links[m.start() - 1 : m.start()] == "|" else f"‹{m[0]}|{m[0]}›", links)
    parts = re.split(r"‹([^|›]*)\|([^›]*)›", links)
    out = [_prose(parts[0])]
    for i in range(1, len(parts), 3):
        before, after = parts[i - 1], parts[i + 2]
        spaced = " " if before.endswith(" ") else ""
        out += [f"{spaced}[{parts[i]}]({parts[i + 1]})", " " if after.startswith(" ") else "", _prose(after)]
    return "".join(out)


def _sampled(samples: Sequence[tuple[str, bool, str]]) -> Iterator[str]:
    faults = [f"- {_sample(name)}: {_prose(note)}" for name, twin, note in samples if not twin]
    twins = [f"- {_sample(name)}: {_prose(note)}" for name, twin, note in samples if twin]
    if faults:
        yield from ("With the fault:", "", *faults)
    if twins:
        yield from ([""] if faults else [])
        yield from ("Near misses, which must stay silent:", "", *twins)


def _sample(name: str) -> str:
    return f"[{name}](../../sample_runs/{name})"


# --- the commands


def _commands() -> Iterator[str]:
    yield from (MADE, "# Commands and options", "")
    yield (
        "What `--help` says; `-h` and `--help` go with every command. "
        "The commands in one table: [README](../README.md#commands)."
    )
    for name, command in every_command(commands):
        if isinstance(command, click.Group) and name != "gradforensics":
            continue
        yield from ("", f"## {name}", "", *_told(command.help), "", *_usage(name, command))
        records = [record for p in command.params if (record := _record(p, name, command))]
        if records:
            yield from ("", markdown.table(["option", "meaning"], records))
        if command.epilog:
            yield from ("", _prose(command.epilog))
    yield ""


def every_command(command: click.Command, name: str = "gradforensics") -> Iterator[tuple[str, click.Command]]:
    """The command, and those below it, each with the words that call it."""
    yield name, command
    if isinstance(command, click.Group):
        for child in sorted(command.commands):
            yield from every_command(command.commands[child], f"{name} {child}")


def _context(name: str, command: click.Command) -> click.Context:
    return click.Context(command, info_name=name)


def _told(text: str | None) -> Iterator[str]:
    for i, paragraph in enumerate(inspect.cleandoc(text or "").split("\n\n")):
        if i:
            yield ""
        yield _prose(paragraph)


def _usage(name: str, command: click.Command) -> Iterator[str]:
    yield markdown.block(" ".join([name, *command.collect_usage_pieces(_context(name, command))]), "text")


def _record(parameter: click.Parameter, name: str, command: click.Command) -> list[str] | None:
    """An option as a row: how it is written, what it means; arguments stand in the usage."""
    if isinstance(parameter, click.Argument):
        return None
    record = parameter.get_help_record(_context(name, command))
    return [markdown.code_cell(record[0], limit=400), _prose(record[1])] if record else None


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pages, or compare them; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare only; exit code 1 where a page is not up to date")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="the folder (default: docs)")
    options = parser.parse_args(arguments)
    made = pages()
    there = {f"cases/{path.name}" for path in (options.docs / "cases").glob("*.md")}
    stale = sorted(there - made.keys())
    for name, text in made.items():
        path = options.docs / name
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
            if not options.check:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8", newline="\n")
    for name in stale:
        print(f"{name} {'is not up to date' if options.check else 'is written' if name in made else 'is no page'}")
    return 1 if options.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
