"""What a rule file must hold beyond its format: `gradforensics rules check` and the tests of the catalogue ask here."""

from __future__ import annotations

import ast
import json
import re
import string
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gradforensics.diagnosis.examples import check_example
from gradforensics.diagnosis.frameworks import code_languages
from gradforensics.diagnosis.rule_layout import Layout
from gradforensics.diagnosis.rule_model import is_command
from gradforensics.diagnosis.rules import Rule, Texts, catalogue_ids, read_rules
from gradforensics.languages import LANGUAGES, Text

LONGEST_TITLE = 72
_CHINESE = re.compile(r"[\u4e00-\u9fff]")
_ENGLISH = re.compile(
    r"(?:\b[a-z]{2,} ){3,}[a-z]{2,}\b"
)  # four words in a row: a sentence that was left, no name or command
MOST_LINES, WIDEST_LINE = 8, 100  # of a piece of code
SHORTEST_SOURCE = 9  # characters: "own default" says where a number comes from, "measured" does not


@dataclass(frozen=True, slots=True)
class Complaint:
    """Something that is wrong with a rule file, or only a matter of style (`warning`)."""

    path: Path
    line: int
    text: str
    warning: bool = False

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {'warning: ' if self.warning else ''}{self.text}"


@dataclass(frozen=True, slots=True)
class Checked:
    """What was found in a folder of rule files: all complaints, by file and line, and how much was looked at."""

    complaints: tuple[Complaint, ...]
    rules: int
    examples: int

    @property
    def wrong(self) -> int:
        """The complaints that are no mere warnings."""
        return sum(not one.warning for one in self.complaints)


Say = Callable[..., Complaint]
Lint = Callable[[Rule, Say], Iterator[Complaint]]


def check_folder(folder: Path) -> Checked:
    """Check every rule file below a folder: its format, what it must hold, and its examples.

    Cases of the catalogue count as known. Raises RuleError where there is no rule file.
    """
    rules, errors = read_rules(folder)
    complaints = [Complaint(Path(error.path), error.line or 1, error.text) for error in errors]
    broken = {one.path for one in complaints}
    known = frozenset(rule.id for rule in rules) | catalogue_ids()
    for rule in rules:
        complaints += check_rule(rule, known)
        if rule.path not in broken:  # an example tells nothing about signs that could not be read
            complaints += failing_examples(rule)
    complaints = list(dict.fromkeys(sorted(complaints, key=lambda c: (str(c.path), c.line, c.text))))
    return Checked(tuple(complaints), len(rules), sum(len(rule.examples) for rule in rules))


def check_rule(rule: Rule, known: frozenset[str]) -> list[Complaint]:
    """What a rule lacks; known: ids of the cases that it may name. Its examples are not run."""
    layout = Layout(rule.path.read_text(encoding="utf-8"))

    def say(text: str, needle: str = "", table: str = "", index: int = 0, *, warning: bool = False) -> Complaint:
        return Complaint(rule.path, layout.line(needle, table, index), text, warning)

    found = [complaint for lint in LINTS for complaint in lint(rule, say)]
    return [*found, *_unknown_cases(rule, known, say)]


def failing_examples(rule: Rule) -> Iterator[Complaint]:
    """The examples whose outcome is not the one that they state."""
    layout = Layout(rule.path.read_text(encoding="utf-8"))
    for i, example in enumerate(rule.examples):
        if wrong := check_example(rule, example):
            note = str(example.get("note", "?"))
            yield Complaint(rule.path, layout.line("", "example", i), f"the example {note!r} {wrong}")


def _place(rule: Rule, say: Say) -> Iterator[Complaint]:
    if (rule.path.parent.name, rule.path.stem) != (rule.family, rule.slug):
        yield say(f"the file must be {rule.family}/{rule.slug}.toml, after its family and slug", "slug")


def _texts(rule: Rule, say: Say) -> Iterator[Complaint]:
    """Everything that a report shows must be there."""
    for variant in rule.variants:
        if not rule.texts["en", variant].what:
            yield say(f"the variant {variant} has no text of its own (what)", "", f"variant.{variant}")
    if not rule.verify.en:
        yield say("verify is missing: how can a reader check the verdict?")
    if not rule.look_alikes:
        yield say("no look_alike: what looks the same, and what separates it?")
    if len(rule.title) > LONGEST_TITLE:
        yield say(f"the title has {len(rule.title)} characters; {LONGEST_TITLE} fit a line", "title", warning=True)


@dataclass(frozen=True, slots=True)
class _Translated:
    """One text in both languages: what it is called, and the table and its key where the Chinese one belongs."""

    name: str
    text: Text
    key: str
    table: str
    index: int = 0


def _translations(rule: Rule, say: Say) -> Iterator[Complaint]:
    """Everything that a report shows must stand in Chinese, too, and tell of the same facts."""
    for told in _told(rule):
        at = (told.table, told.index)
        english, chinese = told.text
        if not chinese:
            yield say(f"the Chinese {told.name} is missing ([{told.table}])", "", *at)
            continue
        if not _CHINESE.search(chinese):
            yield say(f"the Chinese {told.name} is not in Chinese", told.key, *at)
        elif found := _ENGLISH.search(chinese):
            yield say(f"the Chinese {told.name} holds English words: {found[0]!r}", found[0], *at)
        if differ := set(_placeholders(english)) ^ set(_placeholders(chinese)):
            named = "}, {".join(sorted(differ))
            yield say(f"the Chinese {told.name} tells of other facts: {{{named}}}", told.key, *at)


def _told(rule: Rule) -> Iterator[_Translated]:
    """The texts of a rule that a reader of either language sees; a command alone needs no translation."""
    for variant in (None, *rule.variants):
        english = rule.texts["en", variant]
        chinese = rule.texts.get(("zh", variant), Texts())
        table, of = ("zh", "") if variant is None else (f"zh.variant.{variant}", f" of the variant {variant}")
        for key in ("title", "what", "why"):
            if getattr(english, key):
                yield _Translated(f"{key}{of}", Text(getattr(english, key), getattr(chinese, key)), key, table)
        for one in _listed(english.fix, chinese.fix):
            yield _Translated(f"fix{of}", one, one.zh[:30] or "fix", table)
    if not all(map(is_command, rule.verify.en.splitlines())):
        yield _Translated("verify", rule.verify, "verify", "zh")
    alarms = [one.zh for one in rule.false_alarms]
    for one in _listed([one.en for one in rule.false_alarms], alarms if any(alarms) else []):
        yield _Translated("false_alarms", one, one.zh[:30] or "false_alarms", "zh")
    for i, alike in enumerate(rule.look_alikes):
        yield _Translated(f"tell of the look_alike {alike.case} (tell_zh)", alike.tell, "tell_zh", "look_alike", i)


def _listed(english: Sequence[str], chinese: Sequence[str]) -> list[Text]:
    """The entries of a list side by side; of a list that is not translated at all only the first."""
    return (
        [Text(a, b) for a, b in zip(english, chinese, strict=False)] if chinese else [Text(one) for one in english[:1]]
    )


def _verify(rule: Rule, say: Say) -> Iterator[Complaint]:
    """A line that begins as a command is shown to be pasted: it must be one to its end, and prose has other lines."""
    for verify, table in zip(rule.verify, ("", "zh"), strict=True):
        for line in verify.splitlines():
            if is_command(line) and re.search(r"[,;:] |[，；：]", line):
                yield say("verify: a line begins with a command and goes on in prose: give it a line", "verify", table)
            elif not is_command(line) and re.search(r"gradforensics \w+ (?:[-{]|[A-Z_]{3})", line):
                yield say("verify: a command stands in the midst of prose: give it a line", "verify", table)
    if rule.verify.zh and [*map(is_command, rule.verify.en.splitlines())] != [
        *map(is_command, rule.verify.zh.splitlines())
    ]:
        yield say("the Chinese verify has other lines than the English one", "verify", "zh")


def _unfilled(rule: Rule, say: Say) -> Iterator[Complaint]:
    """Placeholders where nobody fills them."""
    for language in LANGUAGES:
        for variant in (None, *rule.variants):
            texts = rule.texts.get((language, variant))
            place = ".".join([*(["zh"] if language == "zh" else []), *(["variant", variant] if variant else [])])
            for key in ("title", "why") if texts is not None else ():
                if names := _placeholders(getattr(texts, key)):
                    yield say(f"{key} is shown as it stands: {{{names[0]}}} would not be filled in", key, place)
    listed = {"false_alarms": [told for text in rule.false_alarms for told in text], "references": rule.references}
    for key, those in listed.items():
        if names := [name for text in those for name in _placeholders(text)]:
            yield say(f"{key} are shown as they stand: {{{names[0]}}} would not be filled in", key)


def _placeholders(text: str) -> list[str]:
    try:
        return [name for _, name, _, _ in string.Formatter().parse(text) if name]
    except ValueError:  # a brace that stands for itself
        return []


def _parameters(rule: Rule, say: Say) -> Iterator[Complaint]:
    for name, parameter in rule.parameters.items():
        if not parameter.unit.strip():
            yield say(f"the parameter {name} has no unit", name, "parameters")
        if len(parameter.source.strip()) < SHORTEST_SOURCE:
            yield say(f"the parameter {name} does not say where it comes from (source)", name, "parameters")


def _examples(rule: Rule, say: Say) -> Iterator[Complaint]:
    """A firing example per variant, a near miss, and one whose evidence is missing."""
    if not rule.signs:
        if not rule.needs:
            yield say("a rule without signs must say what it would need (needs)")
        return
    spoken = {sign.variant for sign in rule.signs}
    fired = {example.get("variant") for example in rule.examples if "fires_at" in example or example.get("fires")}
    for variant in rule.variants:
        if variant not in spoken:
            yield say(f"no sign speaks of the variant {variant}", "", f"variant.{variant}")
        elif variant not in fired:
            yield say(f"the variant {variant} has no example that fires", "", f"variant.{variant}")
    if not fired:
        yield say("no example fires")
    if not any(sign.acquits for sign in rule.signs):  # looked, found nothing, and says nothing about the rest of a run
        if not any(example.get("missing") == [] for example in rule.examples):
            yield say("no sign acquits: an example must look and find nothing (missing = [])")
    elif not any(example.get("clear") for example in rule.examples):
        yield say("no near miss: an example that looks like the case and is clear (clear = true)")
    if not any(example.get("missing") for example in rule.examples):
        yield say("no example without the evidence: what is missing then (missing = [..])?")


def _unknown_cases(rule: Rule, known: frozenset[str], say: Say) -> Iterator[Complaint]:
    """Ids of cases that do not exist (those in leads_to are contradictions between files, see rules.py)."""
    for i, look_alike in enumerate(rule.look_alikes):
        if look_alike.case not in known:
            yield say(f"the look_alike {look_alike.case} does not exist", look_alike.case, "look_alike", i)
    for i, example in enumerate(rule.examples):
        named = example.get("refuted_by", [])
        for case in named if isinstance(named, list) else [named]:
            if case not in known:
                yield say(f"refuted_by names {case}, which does not exist", "refuted_by", "example", i)


# Advice that is common and does harm, in either language; each with the reason why.
_HARMFUL: tuple[tuple[str, str], ...] = (
    (r"\bxavier|\bglorot", "initialising anew throws away what a loaded model knows"),
    (r"\beps(?:ilon)?\w*\s*(?:=|:|to|of|为|到|至|设为|提高到|增大到)?\s*(?:1e-0?5|0\.00001|10\^-5)(?!.*\bnorm)",
     "an Adam eps of 1e-5 freezes parameters with small gradients"),
    (r"zero_grad\b.*\b(?:before|at) (?:every|each) forward|每次前向.*zero_grad|zero_grad.*每次前向",
     "it clears the gradients that accumulation collects"),
    (r"\bNCCL_SOCKET_TIMEOUT\b", "NCCL has no such variable"),
    (r"\boptim\s*=\s*[\"']?lion\b(?!_)", "no optimizer has that name (lion_32bit, lion_8bit)"),
    (r"\bloss[_ ]scale\s*(?:=|:|of|to|为|设为)?\s*128\b", "a fixed loss scale is no cure for a lost one"),
    (r"requires_grad_\(\s*True\s*\)", "it makes a new leaf: what lies before it still gets no gradient"),
    (r"\b(?:only (?:on|from) rank 0|rank[- ]0[- ]only|on rank 0 only)\b|(?:仅|只)在?\s*rank ?0",
     "a fault of one rank shows on that rank"),
    (r"^(?:first,? )?(?:clip|(?:use|apply|add|lower|turn on)\b.{0,30}\bclip).*\b(?:NaNs?|not finite|non-finite)\b",
     "clipping spreads a NaN to all gradients; find where it arises first"),
    (r"^(?:首先|先)?(?:使用|添加|启用|对梯度)?.{0,6}裁剪.*(?:NaN|非有限)", "clipping spreads a NaN to all gradients"),
)  # fmt: skip
_WARNS = re.compile(
    r"\b(?:not|never|cannot|without|instead of|rather than|avoid)\b|n't\b|"
    r"不要|不应|不可|不能|不会|而不是|切勿|勿|别|而非|无法",
    re.IGNORECASE,
)
_SENTENCES = re.compile(r"(?<=[.;:!?])\s+|(?<=[。；：！？])")


def _harmful(rule: Rule, say: Say) -> Iterator[Complaint]:
    """Fixes that recommend what is known to do harm; to warn of it is no fault."""
    for (language, variant), texts in rule.texts.items():
        place = ".".join([*(["zh"] if language == "zh" else []), *(["variant", variant] if variant else [])])
        for fix in texts.fix:
            for harm in _harm(_SENTENCES.split(fix)):
                yield say(f"this fix does harm {harm}", fix[:30], place)
    for variant, codes in rule.codes.items():
        for line in (line for text in codes.values() for line in text.splitlines()):
            for harm in _harm([line]):
                yield say(f"this code does harm {harm}", line, _code_table(variant))


def _harm(sentences: Iterable[str]) -> Iterator[str]:
    for sentence in sentences:
        for pattern, reason in _HARMFUL:
            found = re.search(pattern, sentence, re.IGNORECASE)
            if found and not _WARNS.search(sentence):
                yield f"({found[0][:40]!r}): {reason}"


def _code_table(variant: str | None) -> str:
    return "code" if variant is None else f"code.{variant}"


def _code(rule: Rule, say: Say) -> Iterator[Complaint]:
    """Code that a reader copies: short, of a known framework, and whole in its language."""
    languages = code_languages()
    for variant, codes in rule.codes.items():
        for framework, text in codes.items():
            wrong = _wrong_code(languages.get(framework, ""), text)
            if framework not in languages:
                wrong = f"is for no framework of advice.toml ({', '.join(languages)})"
            if wrong:
                yield say(f"the code for {framework} {wrong}", framework, _code_table(variant))


def _wrong_code(language: str, text: str) -> str:
    """What is wrong with a piece of code, "" where nothing is."""
    lines = text.splitlines()
    if not 1 <= len(lines) <= MOST_LINES:
        return f"has {len(lines)} lines (1 to {MOST_LINES})"
    if longest := max((line for line in lines if len(line) > WIDEST_LINE), key=len, default=""):
        return f"has a line of {len(longest)} characters ({WIDEST_LINE} at most)"
    try:
        if language == "python":
            ast.parse(text)
        elif language == "json":
            json.loads(text)
    except ValueError as error:  # of both: SyntaxError is none
        return f"is no {language}: {error}"
    except SyntaxError as error:
        return f"is no {language}: {error.msg} (its line {error.lineno})"
    return ""


LINTS: tuple[Lint, ...] = (_place, _texts, _translations, _verify, _unfilled, _parameters, _examples, _harmful, _code)
