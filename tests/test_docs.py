"""The documentation tells the truth: pages are fresh, links lead somewhere, commands parse, examples work."""

import json
import re
import shlex
import struct
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest
from click.testing import CliRunner

from gradforensics.cli import commands
from gradforensics.diagnosis.lint import check_folder
from gradforensics.diagnosis.rules import load_rules
from gradforensics.evidence.console import dialects

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]
WRITTEN = [page for page in PAGES if page.parent.name != "cases" and page.name != "commands.md"]
EXAMPLES = sorted((ROOT / "examples").rglob("*.md"))
REPORT_SCHEMAS = ROOT / "gradforensics" / "report"

FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)


def name(page):
    return str(page.relative_to(ROOT))


@cache
def generator():
    module = ModuleType("generate_docs")
    path = ROOT / "scripts" / "generate_docs.py"
    module.__file__ = str(path)
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), vars(module))
    return module


def blocks(page, language):
    return [text for kind, text in FENCED.findall(page.read_text(encoding="utf-8")) if kind == language]


def prose(page):
    """A page without its blocks of code and code spans."""
    return INLINE.sub("", FENCED.sub("", page.read_text(encoding="utf-8")))


def anchors(page):
    """The anchors that GitHub gives to the headings of a page."""
    heads = HEADING.findall(FENCED.sub("", page.read_text(encoding="utf-8")))
    bare = [re.sub(r"\]\([^)]*\)|[\[`*]", "", head) for head in heads]
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in bare}


# -- generated pages ---------------------------------------------------------------------------------------------------


def test_generated_pages_are_up_to_date(capsys):
    code = generator().main(["--check"])
    assert code == 0, f"run scripts/generate_docs.py: {capsys.readouterr().out}"


def test_a_stale_and_a_superfluous_page_are_noticed(tmp_path, capsys):
    generator().main(["--docs", str(tmp_path)])
    capsys.readouterr()
    assert generator().main(["--check", "--docs", str(tmp_path)]) == 0
    (tmp_path / "cases" / "GF07.md").write_text("old\n")
    (tmp_path / "cases" / "GF99.md").write_text("gone\n")
    assert generator().main(["--check", "--docs", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert "cases/GF07.md is not up to date" in said
    assert "cases/GF99.md" in said


def test_every_case_has_a_page_that_holds_what_its_rule_says():
    for rule in load_rules(examples=False):
        text = (DOCS / "cases" / f"{rule.id}.md").read_text(encoding="utf-8")
        assert rule.text("zh").title in text
        assert all(f"`{parameter}`" in text for parameter in rule.parameters)
        assert all(f"`{sign.name}`" in text for sign in rule.signs)
        assert all(f"### {variant} " in text for variant in rule.variants)
        assert all(
            line.strip() in text for code in rule.codes.values() for t in code.values() for line in t.splitlines()
        )


# -- commands and options ----------------------------------------------------------------------------------------------


def leaves():
    return [(n, c) for n, c in generator().every_command(commands) if not isinstance(c, click.Group)]


def options(command):
    return {flag for p in command.params if isinstance(p, click.Option) for flag in (*p.opts, *p.secondary_opts)}


def test_the_readme_names_every_command():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [n for n, _ in leaves() if f"`{n} " not in text and f"`{n}`" not in text] == []


def test_every_option_is_documented_under_its_command():
    sections = re.split(r"^## ", (DOCS / "commands.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    told = {section.split("\n", 1)[0]: section for section in sections}
    for n, command in leaves():
        missing = [flag for flag in options(command) if f"`{flag}" not in told[n] and f", {flag}" not in told[n]]
        assert missing == [], n


def test_every_option_that_a_page_names_exists():
    known = {flag for _, command in leaves() for flag in options(command)} | {"--help", "-h", "--version"}
    for page in [page for page in WRITTEN if page.parent == DOCS or page.name == "README.md"]:
        for span in INLINE.findall(page.read_text(encoding="utf-8")):
            for flag in re.findall(r"^--[\w-]+", span):
                assert flag in known, (name(page), span)


def command_lines(page):
    """Every command line of ours in a page: in blocks of code, indented, and in code spans."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    code = [line for _, block in FENCED.findall(text) for line in block.splitlines()]
    code += re.findall(r"^ {4,}(\S.*)$", FENCED.sub("", text), re.MULTILINE)
    for line in [*code, *INLINE.findall(FENCED.sub("", text))]:
        for part in re.split(r" && |\s\| |;", line):
            words = part.strip().removeprefix("$ ").removeprefix(".venv/bin/")
            if words.startswith("gradforensics ") and words.count("'") % 2 == 0:
                yield shlex.split(words, comments=True)[1:]


def resolved(words):
    """The command that the words call, and the words that are left for it."""
    command: Any = commands
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        assert words[0] in command.commands, words
        command, words = command.commands[words[0]], words[1:]
    return command, words


@pytest.mark.parametrize("page", [*(page for page in PAGES if page.name != "commands.md"), *EXAMPLES], ids=name)
def test_commands_that_a_page_shows_have_the_options_that_they_name(page):
    for line in command_lines(page):
        command, words = resolved(line)
        flags = {w.split("=", 1)[0] for w in words if re.match(r"--?[a-z]", w)}
        assert flags <= options(command) | {"-h", "--help", "--version"}, line


@pytest.mark.parametrize("page", [*WRITTEN, *EXAMPLES], ids=name)
def test_commands_to_paste_are_accepted(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_rules").mkdir()
    text = page.read_text(encoding="utf-8")
    for line in re.findall(r"^    gradforensics (.*?)(?: +#.*)?$", FENCED.sub("", text), re.MULTILINE):
        command, words = resolved(shlex.split(line))
        command.make_context(command.name, words)  # raises for what it does not accept


def test_there_are_command_lines_to_look_at():
    assert sum(len(list(command_lines(page))) for page in WRITTEN) > 40


def test_the_first_two_commands_of_the_readme_are_those_that_continuous_integration_runs():
    first, second = blocks(ROOT / "README.md", "sh")
    assert first.count("\n") == second.count("\n") == 1
    assert "gradforensics analyze sample_runs/" in first
    assert "pytest" in second


# -- links -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page):
    for target in LINK.findall(prose(page)):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), target
        assert there.is_relative_to(ROOT), target
        if anchor:
            assert anchor in anchors(there), target


def test_the_index_lists_every_page():
    linked = set(LINK.findall(prose(DOCS / "README.md")))
    assert {page.name for page in DOCS.glob("*.md")} - {"README.md"} <= linked
    assert "cases/README.md" in linked


def test_paths_of_the_project_that_pages_name_exist():
    folders = "benchmarks|docs|examples|gradforensics|rules|sample_runs|scripts|tests"
    for page in WRITTEN:
        for span in INLINE.findall(page.read_text(encoding="utf-8")):
            if (
                re.fullmatch(rf"(?:{folders})/[\w./-]*", span)
                and "quillon" not in span
                and "gradforensics-" not in span
            ):
                assert (ROOT / span).exists(), (name(page), span)


# -- numbers and pictures ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", WRITTEN, ids=name)
def test_counts_are_true(page):
    text = " ".join(page.read_text(encoding="utf-8").split())
    rules, samples = len(load_rules(examples=False)), len(list(ROOT.glob("sample_runs/*/expected.toml")))
    assert {int(n) for n in re.findall(r"(\d+) \[?(?:cases\b|rules\.)", text)} <= {rules, 27}
    assert {int(n) for n in re.findall(r"consoles of (\d+) frameworks", text)} <= {len(dialects.dialects())}
    assert all(samples > int(n) for n in re.findall(r"more than (\d+) small trainings", text))


def test_the_terminal_of_the_readme_is_what_the_command_prints(tmp_path, monkeypatch):
    shown = next(b for b in blocks(ROOT / "README.md", "text") if b.startswith("$ gradforensics analyze"))
    command, _, rest = shown.partition("\n")
    monkeypatch.chdir(ROOT)
    words = shlex.split(command)[2:]
    run = CliRunner().invoke(commands, [*words, "-o", str(tmp_path / "r.html"), "--lang", "en"])
    said = " ".join(run.output.split()).replace(str(tmp_path / "r.html"), "gradforensics-report.html")
    assert " ".join(rest.split()) == said


def test_the_picture_is_that_of_a_first_screen_and_small():
    data = (DOCS / "images" / "report.png").read_bytes()
    assert struct.unpack(">II", data[16:24]) == (1280, 800)
    assert len(data) < 150_000


# -- the JSON contract -------------------------------------------------------------------------------------------------


def keys_of(schema):
    """Every name of a property, anywhere in a schema."""
    if isinstance(schema, dict):
        yield from schema.get("properties", {})
        for value in schema.values():
            yield from keys_of(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from keys_of(value)


def test_json_keys_that_the_page_names_exist_and_those_of_runs_and_verdicts_are_named():
    schema = json.loads((REPORT_SCHEMAS / "schema.json").read_text(encoding="utf-8"))
    text = (DOCS / "outputs.md").read_text(encoding="utf-8")
    contract = text[text.index("## The JSON") : text.index("Numbers that are not finite")]
    known = {*keys_of(schema), "fired", "clear", "not_judged", "general"}
    named = {span for span in INLINE.findall(contract) if re.fullmatch(r"[\w.\[\]]+", span)}
    used = {part.removesuffix("[]") for span in named for part in span.split(".")}
    commands_and_files = {"scan", "diff", "compare", "schema", "json"}
    assert used - known - commands_and_files == set()
    runs = {f"runs[].{key}" for key in schema["$defs"]["run"]["properties"]}
    assert runs - named == set()
    verdict = set(schema["$defs"]["verdict"]["properties"]) - {"family", "title", "testable"}
    assert verdict - named == set()


# -- examples ----------------------------------------------------------------------------------------------------------


def test_the_rule_of_the_page_is_clean(tmp_path):
    (rule,) = blocks(DOCS / "writing-rules.md", "toml")
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "lab-eps.toml").write_text(rule, encoding="utf-8")
    checked = check_folder(tmp_path)
    assert [str(one) for one in checked.complaints] == []
    assert (checked.rules, checked.examples) == (1, 4)


def test_the_lint_would_see_a_mistake_in_the_rule_of_the_page(tmp_path):
    (rule,) = blocks(DOCS / "writing-rules.md", "toml")
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "lab-eps.toml").write_text(rule.replace("adam_epsilon = 1e-7", "adam_epsilon = 1e-9"))
    assert check_folder(tmp_path).wrong == 1


@pytest.fixture
def quillon(tmp_path):
    (text,) = blocks(DOCS / "writing-dialects.md", "toml")
    path = tmp_path / "quillon.toml"
    path.write_text(text, encoding="utf-8")
    return dialects.load(path)


def test_the_dialect_of_the_page_reads_its_samples_and_no_other_lines(quillon):
    for sample in quillon.samples:
        _, said = quillon.read(sample["line"])
        assert said.step == sample["step"]
        wanted = {key: float(value) for key, value in sample["values"].items()}
        assert {key: said.values[key] for key in wanted} == pytest.approx(wanted, nan_ok=True)
    assert [other["line"] for other in quillon.others if quillon.read(other["line"]) is not None] == []


def test_the_reader_gets_every_point_of_the_page_s_log_by_the_dialect(quillon, tmp_path, monkeypatch):
    from gradforensics.evidence.gather import gather

    monkeypatch.setattr(dialects, "dialects", lambda: (quillon,))
    (tmp_path / "run").mkdir()
    (shown,) = blocks(DOCS / "writing-dialects.md", "text")
    (log,) = quillon.logs
    assert log["text"].strip() == shown.strip()
    (tmp_path / "run" / "train.log").write_text(shown)
    (evidence,) = gather([tmp_path / "run"])
    for series, points in log["points"].items():
        phase, _, own = series.rpartition("/")
        found: Any = evidence.series(own, phase or "train")
        got = [list(point) for point in zip(found.steps.tolist(), found.values.tolist(), strict=True)]
        assert got == [[step, pytest.approx(value, rel=1e-12)] for step, value in points]


def test_the_articles_page_says_how_every_statement_is_known():
    marks = ("measured", "looked up", "known", "reasoning", "nothing found")
    rows = [
        line
        for line in (DOCS / "articles.md").read_text().splitlines()
        if re.match(r"\| (?:\[GF\d\d\]\S* \| )?[PQ][: ]", line)
    ]
    assert len(rows) > 45
    for row in rows:
        assert row.strip("| ").rsplit(" | ", 1)[-1].startswith(marks), row
