"""Outputs appear whole or not at all, and only over files of ours."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gradforensics.diagnosis.causes import Diagnosis
from gradforensics.errors import OutputError
from gradforensics.report import FORMATS
from gradforensics.report.build import build
from gradforensics.report.model import Report
from gradforensics.report.write import write


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_our_own_report_is_replaced(tmp_path: Path, report: Report, healthy: Diagnosis, name: str) -> None:
    path = tmp_path / f"report.{name}"
    write(path, FORMATS[name](report))
    write(path, FORMATS[name](build([healthy], [])))
    assert path.read_text("utf-8") == FORMATS[name](build([healthy], []))
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_a_foreign_file_is_kept_unless_forced(tmp_path: Path) -> None:
    path = tmp_path / "notes.html"
    path.write_text("<html>my notes about gradforensics")
    with pytest.raises(OutputError, match="was not written by gradforensics"):
        write(path, "new")
    assert path.read_text().startswith("<html>my notes")
    write(path, "new", force=True)
    assert path.read_text() == "new"


def test_notes_that_quote_our_markdown_are_not_ours(tmp_path: Path, report: Report) -> None:
    path = tmp_path / "notes.md"
    path.write_text(f"My notes\n\n{FORMATS['md'](report)}")
    with pytest.raises(OutputError, match="was not written by gradforensics"):
        write(path, FORMATS["md"](report))


def test_an_empty_file_holds_nothing_to_lose(tmp_path: Path) -> None:
    path = tmp_path / "made-by-mktemp.html"
    path.touch()
    write(path, "new")
    assert path.read_text() == "new"


def test_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="does not exist"):
        write(tmp_path / "no" / "report.html", "new")


def test_a_folder_is_no_output(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="is a folder"):
        write(tmp_path, "new")


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_interrupted_writing_leaves_the_old_report_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    path = tmp_path / "report.json"
    write(path, '{"tool": "gradforensics 0"}')

    def broken(*_: object) -> None:
        raise error

    monkeypatch.setattr(Path, "replace", broken)
    with pytest.raises((KeyboardInterrupt, OutputError)):
        write(path, "new")
    assert [p.name for p in tmp_path.iterdir()] == ["report.json"]
    assert path.read_text() == '{"tool": "gradforensics 0"}'


def test_permissions_follow_the_umask_and_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    mask = os.umask(0o022)
    try:
        write(path, '{"tool": "gradforensics 0"}')
    finally:
        os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o644
    path.chmod(0o600)
    write(path, "new")
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real.json").touch()
    (tmp_path / "link.json").symlink_to("real.json")
    write(tmp_path / "link.json", "new")
    assert (tmp_path / "link.json").is_symlink()
    assert (tmp_path / "real.json").read_text() == "new"


def test_a_device_is_written_to() -> None:
    write("/dev/null", "new")
    assert Path("/dev/null").is_char_device()
