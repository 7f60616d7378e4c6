"""The ignore file: what it may hold, where it may lie, and what it does to a report."""

import json
from datetime import date
from pathlib import Path

import pytest

from gradforensics.cli import main
from gradforensics.diagnosis.ignoring import Ignore
from gradforensics.diagnosis.rules import load_rules
from gradforensics.errors import UsageError
from gradforensics.ignore_file import read_ignores
from tests.report.page import Page
from tests.test_cli import BAD

RULES = load_rules(examples=False)
NAMED = "gradforensics-ignore.toml"


@pytest.fixture
def here(tmp_path, monkeypatch):
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "log.jsonl").write_text(BAD)
    return folder


def ignore(path: Path, *rules: str) -> Path:
    path.write_text("".join(f'[[ignore]]\nrule = "{rule}"\nreason = "known <b>fault</b>"\n\n' for rule in rules))
    return path


def fired(run: Path) -> list[str]:
    """What counts in a run, by its JSON report."""
    main(["analyze", str(run), "--output", "json=fired.json"])
    verdicts = json.loads(Path("fired.json").read_text())["runs"][0]["verdicts"]
    return [v["rule"] for v in verdicts if v["outcome"] == "fired" and v["ignored"] is None]


def test_every_key_is_read(tmp_path):
    path = tmp_path / "ignore.toml"
    path.write_text(
        '# known\n[[ignore]]\nrule = "GF28"\nreason = " a \\n b "\n\n'
        '[[ignore]]\nrule = "GF07"\nreason = "x"\nrun = "a*"\nvariant = "per-micro-batch"\nuntil = 2027-03-01\n'
    )
    assert read_ignores(str(path), [], RULES).entries == (
        Ignore("GF28", "a \n b", source=str(path), line=2),
        Ignore("GF07", "x", "a*", "per-micro-batch", date(2027, 3, 1), str(path), 6),
    )


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('[[ignore]]\nrule = "GF28"\n', ":1: reason is missing"),
        ('[[ignore]]\nreason = "x"\n', ":1: rule is missing"),
        ('[[ignore]]\nrule = "GF28"\nreason = " "\n', ":3: reason must be a text that is not empty"),
        ('[[ignore]]\nrule = 28\nreason = "x"\n', ":2: rule must be a text"),
        ('[[ignore]]\nrule = "GF99"\nreason = "x"\n', ":2: there is no rule 'GF99'"),
        ('[[ignore]]\nrule = "GF07"\nreason = "x"\nvariant = "no"\n', ":4: GF07 has no variant 'no' ("),
        ('[[ignore]]\nrule = "GF07"\nreason = "x"\nuntil = "2027-03-01"\n', ":4: until must be a date"),
        ('[[ignore]]\nrule = "GF07"\nreason = "x"\nuntil = 2027-03-01T00:00:00\n', ":4: until must be a date"),
        ('[[ignore]]\nrule = "GF07"\nreason = "x"\nruns = "a"\n', ":4: unknown key 'runs'"),
        ('\n[ignore]\nrule = "GF07"\n', ":2: write [[ignore]]"),
        ('rule = "GF07"\n', ":1: unknown key 'rule'"),
        ("[[ignore]]\nrule = \n", ":2: not TOML"),
        (b"\xff", ": not UTF-8"),
    ],
)
def test_a_file_that_breaks_the_format_is_refused_with_its_line(tmp_path, text, complaint):
    path = tmp_path / "ignore.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UsageError) as caught:
        read_ignores(str(path), [], RULES)
    assert str(caught.value).startswith(f"{path}{complaint}")


def test_a_missing_file_ends_with_2(here, run, capsys):
    assert main(["analyze", str(run), "--ignore", "nowhere.toml"]) == 2
    assert "nowhere.toml: No such file" in capsys.readouterr().err
    assert list(here.iterdir()) == []


def test_ignored_findings_fail_nothing_and_stay_visible_everywhere(here, run, capsys):
    assert main(["analyze", str(run)]) == 1
    counted = fired(run)
    ignore(here / "known.toml", *counted)
    outputs = [f"--output={name}=r.{name}" for name in ("json", "md", "sarif", "junit")]
    capsys.readouterr()
    assert main(["analyze", str(run), "--ignore", "known.toml", *outputs]) == 0
    out = capsys.readouterr().out
    told = "1 finding ignored" if len(counted) == 1 else f"{len(counted)} findings ignored"
    assert "\nNo alarm: " in out
    assert f"\n{told}.\n" in out
    assert "[ignored: known <b>fault</b>]" in out
    assert "0 alarms" in out
    page = Page((here / "gradforensics-report.html").read_text())
    assert told in page.text
    assert "ignored: known <b>fault</b>" in page.text
    assert "finding alarm" not in {attrs.get("class") for _, attrs in page.tags}
    verdicts = json.loads((here / "r.json").read_text())["runs"][0]["verdicts"]
    assert {v["rule"] for v in verdicts if v["ignored"] == "known <b>fault</b>"} == set(counted)
    assert not [v for v in verdicts if v["alarm"]]
    assert "ignored: known \\<b\\>fault\\</b\\>" in (here / "r.md").read_text()
    assert '"justification": "known <b>fault</b>"' in (here / "r.sarif").read_text()
    assert '<skipped message="ignored: known &lt;b&gt;fault' in (here / "r.junit").read_text()


def test_the_default_file_is_used_where_it_is_the_user_s(here, run):
    ignore(here / NAMED, *fired(run))
    assert main(["analyze", str(run)]) == 0


@pytest.mark.parametrize("path", [".", "log.jsonl"])
def test_evidence_cannot_silence_its_own_findings(run, monkeypatch, capsys, path):
    ignore(run / NAMED, "GF11")
    monkeypatch.chdir(run)
    assert main(["analyze", path, "-o", "../r.html"]) == 1
    assert "lies beside the evidence and was not used" in (run.parent / "r.html").read_text()


def test_a_file_in_the_run_directory_is_refused_also_through_links(here, run, capsys):
    ignore(run / "own.toml", "GF11")
    (here / "link.toml").symlink_to(run / "own.toml")
    (run / "out.toml").symlink_to(ignore(here / "real.toml", "GF11"))
    for name in (run / "own.toml", "link.toml", run / "out.toml"):
        assert main(["analyze", str(run), "--ignore", str(name)]) == 2
        assert "evidence cannot silence its own findings" in capsys.readouterr().err
    assert main(["analyze", str(run), "--ignore", "real.toml"]) in (0, 1)


def test_an_idle_entry_is_a_notice(here, run, capsys):
    ignore(here / NAMED, "GF40")
    main(["analyze", str(run), "--output", "json=-"])
    notices = json.loads(capsys.readouterr().out)["runs"][0]["notices"]
    text = "the entry for GF40 names no finding of this analysis: known <b>fault</b>"
    assert {"source": NAMED, "line": 1, "text": text} in notices
