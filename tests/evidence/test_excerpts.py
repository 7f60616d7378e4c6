"""Lines that are quoted a second time: only of what was judged, and never at a price."""

from __future__ import annotations

import gzip
import hashlib
import os
from pathlib import Path

import pytest

from gradforensics.diagnosis.causes import diagnose
from gradforensics.diagnosis.rules import load_rules
from gradforensics.evidence import excerpts
from gradforensics.evidence.gather import gather
from gradforensics.report.build import build, places
from gradforensics.tables import Evidence, Source

RUN = Path(__file__).parents[2] / "sample_runs" / "gf05-diverged" / "run"
LOG = "".join(f"step: {i} loss: {5 - i / 10:.4f}\n" for i in range(1, 31))


def evidence_of(path: Path, content: bytes) -> Evidence:
    path.write_bytes(content)
    source = Source(path.name, len(content), hashlib.sha256(content).hexdigest())
    return Evidence("run", sources=[source], files={path.name: path})


def test_lines_are_those_that_the_reader_counted(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(LOG)
    (evidence,) = gather([tmp_path])
    found = excerpts.read(evidence, [("train.log", 1), ("train.log", 30), ("train.log", 31), ("train.log", 0)])
    assert found == {("train.log", 1): "step: 1 loss: 4.9000", ("train.log", 30): "step: 30 loss: 2.0000"}


def test_a_line_before_is_not_taken_for_another_where_several_inputs_have_the_same_file(tmp_path: Path) -> None:
    for name, text in (("a", LOG), ("b", LOG.replace("loss: 4.9000", "loss: 4.8000"))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.log").write_text(text)
    runs = gather([tmp_path / "a", tmp_path / "b"])
    told = [text for run in runs for text in excerpts.read(run, [(s.path, 1) for s in run.sources]).values()]
    assert told == ["step: 1 loss: 4.9000", "step: 1 loss: 4.8000"]


def test_the_states_of_a_progress_bar_stand_below_each_other_without_colours(tmp_path: Path) -> None:
    evidence = evidence_of(tmp_path / "x.log", b"a\n 1%\r\x1b[31m 2%\x1b[0m loss=nan\r\nlast, without an end")
    found = excerpts.read(evidence, [("x.log", 2), ("x.log", 3)])
    assert found == {("x.log", 2): "1%\n 2% loss=nan", ("x.log", 3): "last, without an end"}


def test_a_very_long_line_is_quoted_in_part(tmp_path: Path) -> None:
    evidence = evidence_of(tmp_path / "x.log", b"x" * 300_000 + b"\ny\n")
    assert len(excerpts.read(evidence, [("x.log", 1)])["x.log", 1]) == 65536


def test_what_gives_access_is_masked_in_a_quoted_line(tmp_path: Path) -> None:
    evidence = evidence_of(tmp_path / "x.log", b"step: 1 loss: 2.0 --api_key=abcdef123456\n")
    assert excerpts.read(evidence, [("x.log", 1)])["x.log", 1] == "step: 1 loss: 2.0 --api_key=***"


@pytest.mark.parametrize("change", ["grown", "rewritten", "deleted", "a folder", "a pipe"])
def test_what_changed_since_it_was_judged_is_not_quoted(tmp_path: Path, change: str) -> None:
    path = tmp_path / "x.log"
    evidence = evidence_of(path, b"loss 1.0\nloss 2.0\n")
    path.unlink()
    if change == "grown":
        path.write_bytes(b"loss 1.0\nloss 2.0\nloss 3.0\n")
    elif change == "rewritten":
        path.write_bytes(b"loss 1.0\nloss 9.0\n")
    elif change == "a folder":
        path.mkdir()
    elif change == "a pipe":
        os.mkfifo(path)
    assert excerpts.read(evidence, [("x.log", 2)]) == {}


def test_what_was_never_hashed_compressed_or_no_text_is_not_quoted(tmp_path: Path) -> None:
    binary = evidence_of(tmp_path / "x.bin", b"a\nb\0c\n")
    assert excerpts.read(binary, [("x.bin", 1)]) == {}
    unhashed = evidence_of(tmp_path / "x.log", b"a\n")
    unhashed.sources = [Source("x.log", 2)]
    assert excerpts.read(unhashed, [("x.log", 1), ("another", 1)]) == {}
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "train.log.gz").write_bytes(gzip.compress(LOG.encode()))
    (zipped,) = gather([folder])
    assert zipped.frames
    assert excerpts.read(zipped, [("train.log.gz", 1)]) == {}


def test_only_so_many_files_are_read_again(tmp_path: Path) -> None:
    many = [evidence_of(tmp_path / f"{i}.log", b"a\n") for i in range(excerpts.FILES + 5)]
    evidence = Evidence("run", sources=[s for one in many for s in one.sources])
    evidence.files = {name: path for one in many for name, path in one.files.items()}
    assert len(excerpts.read(evidence, [(s.path, 1) for s in evidence.sources])) == excerpts.FILES


def test_every_line_that_a_real_diagnosis_names_is_quoted_and_holds_its_value() -> None:
    (evidence,) = gather([RUN])
    diagnosis = diagnose(evidence, load_rules(examples=False))
    wanted = places(diagnosis)
    lines = excerpts.read(evidence, wanted)
    assert wanted
    assert set(lines) == set(wanted)
    (run,) = build([diagnosis], evidence.sources, lines=[lines]).runs
    hits = [hit for finding in run.findings for hit in finding.hits]
    assert [[hit.excerpt[a:b] for a, b in hit.marked] for hit in hits] == [[repr(hit.value)] for hit in hits]
