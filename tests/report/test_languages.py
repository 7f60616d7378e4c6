"""No text of ours stands in one language only: pages and terminals, looked through."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import click
import pytest

from gradforensics import experiment_rows, experiments, languages
from gradforensics.cli import commands, main
from gradforensics.diagnosis.ignoring import Ignore, Ignores, ignoring
from gradforensics.diagnosis.rules import load_rules
from gradforensics.experiment_rows import Located
from gradforensics.experiments import Replay, Result
from gradforensics.language_option import VARIABLE
from gradforensics.languages import Language
from gradforensics.questions import QUESTIONS
from gradforensics.report import as_markdown, html, replayed, rule_page, terminal
from gradforensics.report.build import build
from gradforensics.report.canonical import NAMES
from gradforensics.report.labels import LABELS, SECTIONS
from gradforensics.report.words import Words
from gradforensics.tables import Replayed
from tests.report.languages import CHINESE, SAMPLES, SHOWN, diagnoses_of, english, named, report_of, untranslated

RUN = SAMPLES / "gf01-left-out" / "run"


def test_a_label_belongs_to_one_section_and_stands_in_both_languages() -> None:
    assert sum(map(len, SECTIONS)) == len(LABELS)
    for key, (told, chinese) in LABELS.items():
        assert not CHINESE.search(told), key
        assert CHINESE.search(chinese) or not english(chinese), key


# -- pages -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHOWN)
def test_every_text_of_a_page_stands_in_both_languages(name: str) -> None:
    report = report_of(name)
    assert untranslated(html.render(report), named(report)) == []


def test_the_walk_sees_what_is_wrong() -> None:
    page = (
        "<html><body><p>{}</p><code>the log</code><span translate='no'>the name</span>"
        "<span lang='en'>{}</span><span lang='zh'>{}</span></body></html>"
    )
    assert untranslated(page.format("GF07 12 ms", "the rate", "速率 rate")) == []
    (first,) = untranslated(page.format("Evidence", "the rate", "速率"))
    assert first.startswith("in no language: 'Evidence'")
    (second,) = untranslated(page.format("", "速率", "速率"))
    assert second.startswith("Chinese in English")
    assert len(untranslated(page.format("", "the rate", "the rate"))) == 2
    (last,) = untranslated(page.format("", "the rate", "速率 of every step"))
    assert last.startswith("English in Chinese: 'of every step'")
    assert untranslated(page.format("", "the rate", "速率 of every step"), ["of every step"]) == []


def made_replay() -> Replay:
    """What a replay found, as its experiments tell it."""
    told = (
        (
            "reproduce",
            "nothing",
            "3 runs: loss 2.31, gradient norm 0.5",
            "Deterministic: every run gave the same bits.",
        ),
        ("precision", "float16 -> float32", "share of the gradient that is 0: 12.0% -> 0.0%", "It fails in float16."),
        ("anomaly", "nothing", "micro-batch 0: ValueError: text, raised in layers.0", "The loss is finite."),
    )
    replay = Replay("gradforensics", "run", 120, "cpu", "capsule-00000120")
    replay.results = [Result(name, 120, QUESTIONS[name], a, b, c, "clean") for name, a, b, c in told]
    replay.results.append(Result("fix", 120, QUESTIONS["fix"], "nothing", "not run", "--budget leaves 0", "not-run"))
    assert set(experiments.OUTCOMES) >= {one.outcome for one in replay.results}
    return replay


def test_a_page_with_a_replay_stands_in_both_languages() -> None:
    (diagnosis,) = diagnoses_of("states and weights")
    replay = made_replay()
    evidence = replace(diagnosis.evidence, replays=[Replayed("replays/r120", replay, (1, 2, 3, 4))])
    located = [Located(r, "replays/r120/experiments.jsonl", n) for n, r in enumerate(replay.results, 1)]
    evidence.tables = {**evidence.tables, "experiments": experiment_rows.frame(located)}
    report = build([replace(diagnosis, evidence=evidence)], [], language="zh")
    page = html.render(report)
    assert "确定性：每次运行得到相同的比特。" in page
    assert untranslated(page, [*named(report), "ValueError: text, raised in layers.0"]) == []


def test_ignored_findings_stand_in_both_languages_on_the_page_and_in_the_summary() -> None:
    (diagnosis,) = diagnoses_of("a learning rate too high")
    diagnosis = replace(diagnosis, evidence=replace(diagnosis.evidence, notices=[]))
    entries = (Ignore("GF05", "meant", source="i.toml"), Ignore("GF30", "meant", source="i.toml"))
    report = build(ignoring([diagnosis], Ignores(entries)), [], language="zh")
    assert [one.rule for one in report.runs[0].ignored] == ["GF05"]
    page = html.render(report)
    assert "GF30 的条目与本次分析的任何发现都不对应：meant" in page
    assert untranslated(page, named(report)) == []
    assert english(terminal.render(report, color=False, width=4000), named(report)) == []
    assert english(re.sub("`[^`]*`", "", as_markdown.render(report)), named(report)) == []


# -- terminals ---------------------------------------------------------------------------------------------------------


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


def test_the_other_commands_speak_chinese(shown: Callable[..., str], tmp_path: Path) -> None:
    for arguments in (
        ("scan", RUN, "--limit", 2),
        ("scan", RUN / "checkpoint-000030.pt", "--list"),
        ("diff", RUN / "checkpoint-000030.pt", RUN / "checkpoint-000090.pt", "--limit", 2),
        ("env", "-o", tmp_path / "env.json", "--force"),
        ("export", RUN, "--to", tmp_path / "tables", "--force"),
        ("compare", SAMPLES / "gf05-above-sibling" / "run", SAMPLES / "gf05-twin-sibling" / "run"),
    ):
        text = shown(*arguments)
        assert CHINESE.search(text)
        if arguments[0] != "env":  # which quotes the machine
            tables = NAMES if arguments[0] == "export" else ()
            assert english(re.sub(r"[\w.]+\.\w+", "-", text), tables) == []  # names of tensors and files
        assert not CHINESE.search(shown(*arguments, language="en"))


def test_a_replay_speaks_chinese(tmp_path: Path) -> None:
    replay = made_replay()
    text = replayed.render(replay, run=None, folder=tmp_path, language="zh", color=False, width=4000)
    assert english(text.replace(str(tmp_path), "")) == []
    assert "确定性：每次运行得到相同的比特。" in text
    told = replayed.render(replay, run=None, folder=tmp_path, language="en", color=False, width=4000)
    assert not CHINESE.search(told)
    assert "Deterministic: every run gave the same bits." in told


def test_rules_are_listed_and_explained_in_chinese(shown: Callable[..., str]) -> None:
    assert all(CHINESE.search(line) for line in shown("rules", "list").splitlines())
    assert not CHINESE.search(shown("rules", "list", language="en"))
    heads = [Words("zh")(key) for key in ("rule_parameters", "rule_references", "rule_needs", "rule_leads_to")]
    for rule in load_rules(examples=False):
        text = rule_page.render(rule, "zh")
        # code, keys, numbers with their sources and titles are the same in every language
        sections = [s for s in text.split("\n\n") if s.splitlines()[0] not in heads]
        plain = "\n".join(line for s in sections for line in s.splitlines() if not line.startswith("    "))
        assert english(plain) == [], rule.id
        assert CHINESE.search(plain)


# -- the option --------------------------------------------------------------------------------------------------------


def test_every_command_that_shows_texts_has_the_same_option() -> None:
    found: dict[str, click.Option] = {}

    def walk(group: click.Group, name: str) -> None:
        for key, command in group.commands.items():
            if isinstance(command, click.Group):
                walk(command, f"{name}{key} ")
            for option in command.params:
                if isinstance(option, click.Option) and "--lang" in option.opts:
                    found[name + key] = option

    walk(commands, "")
    assert set(found) == {
        "analyze", "compare", "diff", "env", "export", "replay", "rules list", "rules show", "scan",
    }  # fmt: skip
    for option in found.values():
        assert (option.name, option.default, option.envvar) == ("language", "en", VARIABLE)
        assert isinstance(option.type, click.Choice)
        assert tuple(option.type.choices) == languages.LANGUAGES
        assert option.help


def test_the_environment_variable_chooses_the_language(
    shown: Callable[..., str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(RUN / "checkpoint-000030.pt")
    monkeypatch.setenv(VARIABLE, "zh")
    for arguments in (["scan", path, "--list"], ["rules", "list"], ["rules", "show", "GF07"]):
        assert main(arguments) == 0
        assert CHINESE.search(capsys.readouterr().out)
    assert not CHINESE.search(shown("scan", path, "--list", language="en"))
    monkeypatch.setenv(VARIABLE, "fr")
    assert main(["scan", path, "--list"]) == 2
    assert "--lang" in capsys.readouterr().err
