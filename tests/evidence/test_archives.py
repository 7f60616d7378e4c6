"""Archives: their members are read as files of the run, bounded, and nothing is written beside them."""

# ruff: noqa: E501  names and contents of files stand here as they are written

import gzip
import io
import os
import pickle
import tarfile

import pytest

from gradforensics.errors import NoEvidenceError
from gradforensics.evidence import archives
from gradforensics.evidence.gather import gather


def csv(count=10, shift=0.0):
    return ("step,loss\n" + "".join(f"{s},{2.0 - s / 100 + shift}\n" for s in range(10, 10 * count + 10, 10))).encode()


def loss(evidence):
    series = evidence.series("loss")
    return [] if series is None else series.values.tolist()


def packed(path, members, mode="w"):
    """An archive of {name: bytes}, or of whole TarInfo objects with the bytes None."""
    with tarfile.open(path, mode) as archive:
        for name, content in members.items():
            member = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
            member.size = len(content or b"")
            archive.addfile(member, io.BytesIO(content or b""))
    return path


FILES = {
    "run/metrics.csv": csv(),
    "run/logs/train.log": b"step 1: loss 2.0\nKilled\n",
    "run/config.yaml": b"learning_rate: 0.1\nmax_steps: 100\n",
}
ENDINGS = {"run.tar": "w", "run.tar.gz": "w:gz", "run.tgz": "w:gz", "run.tar.bz2": "w:bz2", "run.tar.xz": "w:xz"}


@pytest.mark.parametrize(("name", "mode"), ENDINGS.items())
def test_an_archive_as_the_input_reads_like_its_folder(tmp_path, name, mode):
    (found,) = gather([packed(tmp_path / name, FILES, mode)])
    (tmp_path / "plain").mkdir()
    with tarfile.open(tmp_path / name) as archive:
        archive.extractall(tmp_path / "plain", filter="data")
    (plain,) = gather([tmp_path / "plain"])
    assert found.name == "run"
    assert [(s.path, s.bytes, s.sha256, s.reader) for s in found.sources] == [
        (s.path, s.bytes, s.sha256, s.reader) for s in plain.sources
    ]
    assert loss(found) == loss(plain)
    assert (found.settings, found.ending, found.notices) == (plain.settings, plain.ending, plain.notices)


@pytest.mark.parametrize(("name", "mode"), ENDINGS.items())
def test_an_archive_in_a_folder_is_a_folder(run, name, mode):
    packed(run.path / name, FILES, mode)
    evidence = run.one()
    assert {s.path for s in evidence.sources} == {f"{name}/{inner}" for inner in FILES}
    assert evidence.ending.kind == "killed"


def test_members_at_the_top_are_called_after_the_archive(tmp_path):
    (found,) = gather([packed(tmp_path / "exp7.tar.gz", {"./metrics.csv": csv()}, "w:gz")])
    assert (found.name, found.sources[0].path) == ("exp7", "metrics.csv")


def test_gzip_members_and_large_ones_are_streamed(run):
    big = b"step,loss\n" + b"".join(b"%d,%.3f\n" % (s, 1 + s % 7 / 7) for s in range(400_000))
    packed(run.path / "r.tar.gz", {"a/m.csv.gz": gzip.compress(big), "b/m.csv": big}, "w:gz")
    a, b = run.all()
    assert len(loss(a)) == len(loss(b)) == 400_000


def test_nothing_is_written_beside_the_archive(run):
    packed(run.path / "r.tar.gz", FILES, "w:gz")
    before = {p: p.stat().st_mtime_ns for p in [run.path, *run.path.rglob("*")]}
    run.one()
    assert {p: p.stat().st_mtime_ns for p in [run.path, *run.path.rglob("*")]} == before


def special(name, kind, target=""):
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


def test_links_devices_and_ways_out_are_not_followed(run, tmp_path):
    (tmp_path / "secret.csv").write_bytes(csv(shift=5))
    members = {
        "m.csv": csv(), "../secret.csv": csv(shift=1), special("s.csv", tarfile.SYMTYPE, "../secret.csv"): None, special("h.csv", tarfile.LNKTYPE, "m.csv"): None,
        special("p.log", tarfile.FIFOTYPE): None, special("d.log", tarfile.CHRTYPE): None, "/abs/n.csv": b"step,acc\n1,2\n2,3\n",
    }  # fmt: skip
    found = gather([packed(run.path / "r.tar", members)])
    assert {s.path for e in found for s in e.sources} == {"m.csv", "abs/n.csv"}
    assert {(n.source, n.text) for e in found for n in e.notices} == {
        ("../secret.csv", "its name leads out of the archive: not read"),
        ("s.csv", "a link inside of the archive: not followed (2 such members)"),
        ("p.log", "no regular file: not read (2 such members)"),
    }


def test_checkpoints_archives_and_data_inside_are_counted(run):
    members = {
        "m.csv": csv(),
        "ckpt/model.pt": b"x",
        "ckpt/a.safetensors": b"x",
        "inner.tar.gz": b"x",
        "x.npy": b"x",
        "y.npy": b"x",
        "code.py": b"x",
        ".git/m.csv": csv(),
    }
    evidence = gather([packed(run.path / "r.tar", members)])[0]
    assert sorted((n.source, n.text) for n in evidence.notices) == [
        ("inner.tar.gz", "an archive inside of the archive: not read"),
        ("r.tar", "2 checkpoint files inside of the archive are not read: unpack it"),
        ("x.npy", "this version does not read .npy files (2 such members)"),
    ]


def test_a_pickle_inside_is_not_read(run):
    evidence = gather([packed(run.path / "r.tar.gz", {"m.csv": csv(), "state.pkl": pickle.dumps({"a": 1})}, "w:gz")])[0]
    assert [(n.source, n.text) for n in evidence.notices] == [("state.pkl", "a pickle inside of an archive: not read")]


def test_a_member_that_is_there_twice_counts_as_the_last(tmp_path):
    path = packed(tmp_path / "r.tar", {"m.csv": csv(3)})
    packed(path, {"m.csv": csv(5)}, "a")
    (found,) = gather([path])
    assert len(loss(found)) == 5
    assert [n.text for n in found.notices] == ["a member of this name is there twice: the last counts"]


def test_strange_names_of_members(tmp_path):
    (found,) = gather([packed(tmp_path / "r.tar", {"a\nb/./m.csv": csv(), os.fsdecode(b"a\nb/\xff.txt"): b"x"})])
    assert [s.path for s in found.sources] == ["a\\nb/m.csv"]


# -- damage ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "mode"), ENDINGS.items())
def test_a_cut_archive_is_read_up_to_the_cut(tmp_path, name, mode):
    dice = __import__("random").Random(0)
    rest = bytes(dice.randrange(33, 126) for _ in range(60_000))
    path = packed(tmp_path / name, {"m.csv": csv(), "rest.log": rest, "last.csv": csv(shift=1)}, mode)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    if mode == "w:bz2":  # its blocks are larger than this archive
        with pytest.raises(NoEvidenceError, match="cannot be read: damaged"):
            gather([path])
        return
    (found,) = gather([path])
    assert len(loss(found)) == 10
    (text,) = [n.text for n in found.notices if "archive" in n.text]
    assert text.startswith("the archive is ")
    assert "cut" in text


def test_an_archive_without_its_end_mark_is_a_notice(tmp_path):
    path = packed(tmp_path / "r.tar", {"m.csv": csv()})
    path.write_bytes(path.read_bytes()[:1024])
    (found,) = gather([path])
    assert [n.text for n in found.notices] == [
        "the archive is without the mark of its end, as if it was cut there: nothing behind m.csv is read"
    ]


def test_a_damaged_header_is_a_notice(tmp_path):
    path = packed(tmp_path / "r.tar", {"m.csv": csv(), "n.csv": csv(shift=1)})
    data = bytearray(path.read_bytes())
    data[1024:1030] = b"\xff" * 6
    path.write_bytes(data)
    (found,) = gather([path])
    assert [n.text for n in found.notices] == [
        "the archive is damaged at byte 1024 of its content: nothing behind m.csv is read"
    ]


def test_a_wrong_checksum_at_the_end_is_a_notice(tmp_path):
    path = packed(tmp_path / "r.tar.gz", {"m.csv": csv()}, "w:gz")
    data = bytearray(path.read_bytes())
    data[-8] ^= 1
    path.write_bytes(data)
    (found,) = gather([path])
    (text,) = [n.text for n in found.notices]
    assert text.startswith("the archive is damaged or cut")


def test_what_becomes_too_large_is_cut_off(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "_FREE", 1 << 20)
    monkeypatch.setattr(archives, "_RATIO", 0)
    path = packed(tmp_path / "r.tar.gz", {"m.csv": csv(), "bomb.log": bytes(4 << 20), "n.csv": csv()}, "w:gz")
    (found,) = gather([path])
    assert [n.text for n in found.notices if n.source == "r.tar.gz"] == [
        "the archive is more than 1 MiB when it is unpacked, as no logs are: nothing behind m.csv is read"
    ]


def test_too_many_members_are_cut_off(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "_MAX_MEMBERS", 3)
    (found,) = gather([packed(tmp_path / "r.tar", {f"{i}.csv": csv() for i in range(5)})])
    assert len(found.sources) == 3
    assert "larger than 3 members" in found.notices[-1].text


def test_a_header_of_an_impossible_length_is_refused(tmp_path):
    member = tarfile.TarInfo("m.csv")
    long = tarfile.TarInfo("x")
    long.type, long.size = tarfile.XHDTYPE, 1 << 33
    member.size = len(csv())
    data = member.tobuf() + csv().ljust(512, b"\0") + long.tobuf(tarfile.GNU_FORMAT) + bytes(1024)
    (tmp_path / "r.tar").write_bytes(data)
    (found,) = gather([tmp_path / "r.tar"])
    assert [n.text for n in found.notices] == [
        "the archive is damaged: a header in it states an impossible length: nothing behind m.csv is read"
    ]


def test_what_is_no_archive_is_read_as_before(run):
    run.write({"log.csv": csv().decode(), "a.tgz": b"no archive at all", "empty.tar.gz": gzip.compress(bytes(10240))})
    assert {n.source: n.text for n in run.one().notices} == {
        "a.tgz": "an archive that cannot be read: damaged, or of another kind",
        "empty.tar.gz": "an archive that cannot be read: damaged, or of another kind",
    }


def test_the_old_checkpoints_of_torch_are_no_archives(run):
    packed(run.path / "model.tar", dict.fromkeys(("sys_info", "pickle", "storages", "tensors"), b"x"))
    run.write({"log.csv": csv().decode()})
    assert "model.tar" in {s.path for s in run.one().sources}
