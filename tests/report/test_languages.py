"""No text of ours stands in one language only: pages, terminals and JSON of sample runs, looked through."""

from __future__ import annotations

import functools
import json
import re
import tomllib
from collections.abc import Callable, Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path

import pytest

from gradforensics import experiments
from gradforensics.cli import main
from gradforensics.diagnosis.causes import diagnose
from gradforensics.diagnosis.rules import load_rules
from gradforensics.evidence.gather import gather
from gradforensics.experiments import Replay, Result
from gradforensics.languages import Language
from gradforensics.questions import QUESTIONS
from gradforensics.report import as_json, html, replayed, terminal
from gradforensics.report.build import build
from gradforensics.report.model import Report
from tests.report.page import VOID

SAMPLES = Path(__file__).parents[2] / "sample_runs"
SHOWN = {
    "checkpoints that were cut": ["gf07-twin-resume"],
    "a learning rate too high": ["gf05-above-sibling"],
    "training data": ["gf14-ids-in-data"],
    "more training data": ["gf15-eos-out-data"],
    "states and weights": ["gf01-left-out"],
    "an exception": ["gf01-no-graph"],
    "a hang": ["gf24-mismatch"],
    "a rank that is missing": ["gf24-missing-rank"],
    "hardware and nodes": ["gf25-driver-too-old"],
    "ranks": ["gf22-parted"],
    "a resume": ["gf19-changed-on-resume"],
    "memory": ["gf26-gpu-memory"],
    "nothing wrong": ["healthy-sgd"],
    "several runs": ["gf02-token-sum", "gf05-twin-sibling", "healthy-tied"],
}
CHINESE = re.compile(r"[\u3400-\u9fff\u3000-\u303f\uff00-\uffef]")
LETTERS = re.compile(r"[A-Za-z]{2,}|[\u3400-\u9fff]")
EVIDENCE = {"code", "pre", "q", "kbd", "script", "style", "title"}
RULE = re.compile(r"\bGF\d\d\b|\bS[1-4]\b")
# Terms that are the same in both languages, and what stands outside of both by itself.
TERMS = {
    "NaN",
    "Inf",
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
    "中文",
}
UNITS = re.compile(r"\b[kMGT]?i?B\b|\bms\b|\bGPU\b|\brank\b|\bepoch\b")
# Where texts stand that others are translating, by a piece of their path, and why.
PENDING = {
    "svg.chart": "charts are drawn anew with texts in both languages",
    "div.family h4": "the matrix is drawn anew with names of families in both languages",
    "div.body ul. li": "false alarms of rule files have no Chinese yet",
    "div.body p": "how to verify has no Chinese yet in some rule files",
    "div.next p": "how to verify has no Chinese yet in some rule files",
}


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


def untranslated(page: str) -> Iterator[str]:
    """Text nodes in a language of which nothing says which one it is, or in the wrong one."""
    for language, text, path in Nodes(page).found:
        if any(piece in path for piece in PENDING):
            continue
        rest = UNITS.sub("", RULE.sub("", text))
        for term in TERMS:
            rest = rest.replace(term, "")
        if language == "zh" and not CHINESE.search(text) and LETTERS.search(rest):
            yield f"no Chinese: {text!r} in {path}"
        if language == "en" and CHINESE.search(text):
            yield f"Chinese in English: {text!r} in {path}"
        if not language and LETTERS.search(rest):
            yield f"in no language: {text!r} in {path}"


@functools.cache
def report_of(name: str) -> Report:
    found = []
    for one in SHOWN[name]:
        expected = tomllib.loads((SAMPLES / one / "expected.toml").read_text())
        runs = gather([SAMPLES / one / "run"], settings=expected.get("settings", {}))
        if "baseline" in expected:
            (runs[0].baseline,) = gather([SAMPLES / expected["baseline"] / "run"])
        found += runs
    rules = load_rules()
    sources = [source for evidence in found for source in evidence.sources]
    return build([diagnose(evidence, rules) for evidence in found], sources, language="zh")


@pytest.mark.parametrize("name", SHOWN)
def test_every_text_of_a_page_stands_in_both_languages(name: str) -> None:
    assert sorted(set(untranslated(html.render(report_of(name))))) == []


# -- terminals ---------------------------------------------------------------------------------------------------------

PHRASE = re.compile(r"\b[a-z]{2,}(?:,? [a-z]{2,})+\b")
COMMAND = re.compile(r"gradforensics [a-z].*|--[\w-]+|`[^`]*`")
QUOTED = re.compile(r"验证 .*|：[\w.]*: .*|tee [\w.]+")  # how to verify (see PENDING), exceptions, a command


def named(report: Report) -> list[str]:
    """Names, values and lines of the evidence, the longest first."""
    found: set[str] = set()
    for run in report.runs:
        found |= {run.name, run.ending.text, ", ".join(run.baselines), *(event.text for event in run.events)}
        found |= {str(setting.value) for setting in run.settings} | {fact.value for fact in run.environment}
        for verdict in run.verdicts:
            found |= {str(value) for hit in verdict.hits for value in hit.facts.values()}
            found |= {hit.excerpt for hit in verdict.hits}
    return sorted((" ".join(one.split()) for one in found if " " in one), key=len, reverse=True)


def english(text: str, evidence: Sequence[str] = ()) -> list[str]:
    """Phrases of small English words that are neither evidence nor commands."""
    found = []
    for line in text.splitlines():
        rest = re.sub(r" {2,}", " | ", line.strip())
        for one in evidence:
            rest = rest.replace(one, "").replace(one[:200], "")
        found += PHRASE.findall(QUOTED.sub("", COMMAND.sub("", rest)))
    return found


@pytest.mark.parametrize("name", SHOWN)
def test_a_summary_in_chinese_holds_no_english_phrase(name: str) -> None:
    report = report_of(name)
    text = terminal.render(report, color=False, width=4000, written=["r.html"])
    assert english(text, named(report)) == []


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def run(*arguments: object, language: Language = "zh") -> str:
        assert main([*map(str, arguments), "--lang", language]) == 0
        return capsys.readouterr().out

    return run


def test_scan_diff_and_env_speak_chinese(shown: Callable[..., str], tmp_path: Path) -> None:
    run = SAMPLES / "gf01-left-out" / "run"
    for arguments in (
        ("scan", run, "--limit", 2),
        ("scan", run / "checkpoint-000030.pt", "--list"),
        ("diff", run / "checkpoint-000030.pt", run / "checkpoint-000090.pt", "--limit", 2),
        ("env", "-o", tmp_path / "env.json"),
    ):
        text = shown(*arguments)
        assert CHINESE.search(text)
        if arguments[0] != "env":  # which quotes the machine
            assert english(re.sub(r"[\w.]+\.\w+", "-", text)) == []  # names of tensors and files
        assert not CHINESE.search(shown(*arguments, "--force", language="en"))


def test_a_replay_speaks_chinese(tmp_path: Path) -> None:
    replay = Replay("gradforensics", "run", 120, "cpu", "capsule-00000120")
    made = (
        (
            "reproduce",
            "nothing",
            "3 runs: loss 2.31, gradient norm 0.5",
            "Deterministic: every run gave the same bits.",
        ),
        ("precision", "float16 -> float32", "share of the gradient that is 0: 12.0% -> 0.0%", "It fails in float16."),
        ("anomaly", "nothing", "micro-batch 0: ValueError: text, raised in layers.0", "The loss is finite."),
    )
    replay.results = [Result(name, 120, QUESTIONS[name], a, b, c, "clean") for name, a, b, c in made]
    replay.results.append(Result("fix", 120, QUESTIONS["fix"], "nothing", "not run", "--budget leaves 0", "not-run"))
    assert set(experiments.OUTCOMES) >= {one.outcome for one in replay.results}
    text = replayed.render(replay, run=None, folder=tmp_path, language="zh", color=False, width=4000)
    assert english(text.replace(str(tmp_path), "")) == []
    assert "确定性：每次运行得到相同的比特。" in text
    told = replayed.render(replay, run=None, folder=tmp_path, language="en", color=False, width=4000)
    assert not CHINESE.search(told)
    assert "Deterministic: every run gave the same bits." in told


def test_the_environment_variable_chooses_the_language(
    shown: Callable[..., str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(SAMPLES / "gf01-left-out" / "run" / "checkpoint-000030.pt")
    monkeypatch.setenv("GRADFORENSICS_LANG", "zh")
    assert main(["scan", path, "--list"]) == 0
    assert CHINESE.search(capsys.readouterr().out)
    assert not CHINESE.search(shown("scan", path, "--list", language="en"))
    monkeypatch.setenv("GRADFORENSICS_LANG", "fr")
    assert main(["scan", path, "--list"]) == 2
    assert "--lang" in capsys.readouterr().err


def test_messages_of_the_json_report_are_in_its_language() -> None:
    report = report_of("ranks")
    chinese, told = (json.loads(as_json.text_of(as_json.data(r))) for r in (report, _in_english(report)))
    for data, expected in ((chinese, True), (told, False)):
        (run,) = data["runs"]
        texts = [notice["text"] for notice in run["notices"]] + [s["remark"] for s in data["sources"] if s["remark"]]
        assert texts
        assert all(bool(CHINESE.search(text)) is expected for text in texts)
    keys = [[key for key in v["missing"] if ":" in key and " " not in key] for v in told["runs"][0]["verdicts"]]
    kept = [[key for key in v["missing"] if ":" in key and " " not in key] for v in chinese["runs"][0]["verdicts"]]
    assert all(set(k) <= set(o) for k, o in zip(keys, kept, strict=True))


def _in_english(report: Report) -> Report:
    return Report(report.tool, "en", report.runs, report.sources)
