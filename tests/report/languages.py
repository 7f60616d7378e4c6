"""What stands in the wrong language, or in none: how pages and plain texts are looked through."""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path

from gradforensics.diagnosis.causes import Diagnosis, diagnose
from gradforensics.diagnosis.rules import load_rules
from gradforensics.evidence.gather import gather
from gradforensics.report.build import build
from gradforensics.report.model import Report
from tests.report.page import VOID

SAMPLES = Path(__file__).parents[2] / "sample_runs"
SHOWN = {
    "checkpoints that were cut": ["gf07-twin-resume"],
    "damaged checkpoints": ["gf30-damaged-file", "gf30-missing-shard"],
    "a learning rate too high": ["gf05-above-sibling"],
    "training data": ["gf14-ids-in-data"],
    "more training data": ["gf15-eos-out-data"],
    "states and weights": ["gf01-left-out"],
    "moments": ["gf34-eps-too-large"],
    "an exception": ["gf01-no-graph"],
    "a hang": ["gf24-mismatch"],
    "a rank that is missing": ["gf24-missing-rank"],
    "a slow rank": ["gf41-slow-data"],
    "hardware and nodes": ["gf25-driver-too-old"],
    "ranks": ["gf22-parted"],
    "a resume": ["gf19-changed-on-resume"],
    "memory": ["gf26-gpu-memory"],
    "nothing wrong": ["healthy-sgd"],
    "several runs": ["gf02-token-sum", "gf05-twin-sibling", "healthy-tied", "gf38-few-rows", "gf36-dead-experts"],
}
CHINESE = re.compile(r"[\u3400-\u9fff\u3000-\u303f\uff00-\uffef]")
LETTERS = re.compile(r"[A-Za-z]{2,}|[\u3400-\u9fff]")
EVIDENCE = {"code", "pre", "q", "kbd", "script", "style", "title"}
RULE = re.compile(r"\bGF\d\d\b|\bS[1-4]\b")
# Terms that are the same in both languages, and what stands outside of both by itself.
TERMS = {
    "NaN",
    "Inf",
    "inf",
    "eps",
    "betas",
    "sha256",
    "GFxx",
    "gradforensics",
    "English",
    "token",
    "id",
    "loss",
    "RMS",
    "SHA-256",
    "Rank",
    "中文",
}
UNITS = re.compile(r"\b[kMGT]?i?B\b|\bms\b|\bGPU\b|\brank\b|\bepoch\b")
PHRASE = re.compile(r"\b[a-z]{2,}(?:,? [a-z]{2,})+\b")
COMMAND = re.compile(r"gradforensics [a-z].*|--[\w-]+|`[^`]*`|dcgmi diag|tee [\w.]+|pip check|nvidia-smi nvlink")
QUOTED = re.compile(r"：[\w.]*: .*")  # exceptions
# What is called so in every language: products, errors of libraries, terms, a formula and a condition.
NAMES = re.compile(
    r"flight recorder|undefined symbol|no kernel image|device-side assert|world size|state dict|token id|pull request"
    r"|lr wd|weight is"
)


class Nodes(HTMLParser):
    """(language or "", text, path of tags and classes) of every text node outside of evidence."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[tuple[str, dict[str, str | None]]] = []
        self.found: list[tuple[str, str, str]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        if any(tag in EVIDENCE or given.get("translate") == "no" for tag, given in self.open):
            return
        spoken = [given["lang"] or "" for tag, given in self.open if "lang" in given and tag != "html"]
        path = " ".join(f"{tag}.{given.get('class') or ''}" for tag, given in self.open[2:])
        self.found.append((spoken[-1] if spoken else "", data.strip(), path))


def untranslated(page: str, evidence: Sequence[str] = ()) -> list[str]:
    """What is wrong with the texts of a page, each complaint once."""
    return sorted(set(_untranslated(page, evidence)))


def _untranslated(page: str, evidence: Sequence[str]) -> Iterator[str]:
    for language, text, path in Nodes(page).found:
        rest = UNITS.sub("", RULE.sub("", text))
        for term in TERMS:
            rest = rest.replace(term, "")
        if language == "zh":
            if not CHINESE.search(text) and LETTERS.search(rest):
                yield f"no Chinese: {text!r} in {path}"
            yield from (f"English in Chinese: {phrase!r} in {path}" for phrase in english(text, evidence))
        if language == "en" and CHINESE.search(text):
            yield f"Chinese in English: {text!r} in {path}"
        if not language and LETTERS.search(rest):
            yield f"in no language: {text!r} in {path}"


def english(text: str, evidence: Sequence[str] = ()) -> list[str]:
    """Phrases of small English words that are neither evidence nor commands."""
    found = []
    for line in text.splitlines():
        rest = re.sub(r" {2,}", " | ", line.strip())
        for one in evidence:
            rest = rest.replace(one, "").replace(one[:200], "")
        found += PHRASE.findall(QUOTED.sub("", NAMES.sub("", COMMAND.sub("", rest))))
    return found


def named(report: Report) -> list[str]:
    """Names, values and lines of the evidence, names of signs and titles of references, the longest first."""
    found = {one for rule in report.rules for one in rule.references}
    for run in report.runs:
        found |= {run.name, run.ending.text, ", ".join(run.baselines), *(event.text for event in run.events)}
        found |= {str(setting.value) for setting in run.settings} | {fact.value for fact in run.environment}
        for verdict in run.verdicts:
            found |= {str(value) for hit in verdict.hits for value in hit.facts.values()}
            found |= {text for hit in verdict.hits for text in (hit.excerpt, hit.sign.replace("_", " "))}
    return sorted((" ".join(one.split()) for one in found if " " in one), key=len, reverse=True)


@functools.cache
def diagnoses_of(name: str) -> tuple[Diagnosis, ...]:
    """The diagnoses of the sample runs of SHOWN."""
    found = []
    for one in SHOWN[name]:
        expected = tomllib.loads((SAMPLES / one / "expected.toml").read_text(encoding="utf-8"))
        runs = gather([SAMPLES / one / "run"], settings=expected.get("settings", {}))
        if "baseline" in expected:
            (runs[0].baseline,) = gather([SAMPLES / expected["baseline"] / "run"])
        found += runs
    rules = load_rules(examples=False)
    return tuple(diagnose(evidence, rules) for evidence in found)


@functools.cache
def report_of(name: str) -> Report:
    """The Chinese report of the sample runs of SHOWN."""
    diagnoses = diagnoses_of(name)
    return build(diagnoses, [source for one in diagnoses for source in one.evidence.sources], language="zh")
