"""What the walk finds: special files, links, names of any kind, files that change, trees of any depth."""

# ruff: noqa: E501  names and contents of files stand here as they are written

import os
import socket

import pytest

from gradforensics.evidence import looking
from gradforensics.evidence.discover import discover, printable
from gradforensics.evidence.files import File


def csv(count=10, shift=0.0):
    return "step,loss\n" + "".join(f"{s},{2.0 - s / 100 + shift}\n" for s in range(10, 10 * count + 10, 10))


def said(evidence):
    return {n.source: n.text for n in evidence.notices}


def test_special_files_are_counted_by_kind(run, monkeypatch):
    run.write({"log.csv": csv()})
    for name in ("a.log", "b.log", "c.csv"):
        os.mkfifo(run.path / name)
    monkeypatch.chdir(run.path)  # the path of a socket may have a hundred bytes only
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("d.sock")
        assert said(run.one()) == {"a.log": "a named pipe: not read (3 such files)", "d.sock": "a socket: not read"}


def test_a_pipe_under_the_name_of_a_picture_is_no_news(run):
    run.write({"log.csv": csv()})
    os.mkfifo(run.path / "a.png")
    assert run.one().notices == []


def test_many_links_out_of_the_folder_have_one_notice(run, tmp_path):
    run.write({"log.csv": csv()})
    for i in range(4):
        (run.path / f"sample{i}.txt").symlink_to(tmp_path / "outside.txt")
    assert said(run.one()) == {"sample0.txt": "a symbolic link out of the directory: not followed (4 such links)"}


def test_links_inside_are_read_once_and_named(run):
    run.write(
        {
            "wandb/run-20260101_000000-abcd1234/files/m.csv": csv(),
            "wandb/run-20260101_000000-abcd1234/logs/debug.log": "x\n",
        }
    )
    (run.path / "wandb/latest-run").symlink_to("run-20260101_000000-abcd1234", target_is_directory=True)
    (run.path / "wandb/debug.log").symlink_to("run-20260101_000000-abcd1234/logs/debug.log")
    evidence = run.one()
    assert evidence.notices == []
    assert [k.source for k in evidence.keys("loss")] == ["wandb/run-20260101_000000-abcd1234/files/m.csv"]
    assert [(f.key, f.value) for f in evidence.environment] == [("link", "wandb/latest-run")]


def test_links_to_blobs_are_read_by_the_name_of_the_link(run):
    run.write({"blobs/0a1b": csv(), "snapshots/x": ""})
    (run.path / "snapshots/metrics.csv").symlink_to("../blobs/0a1b")
    (root,) = discover([run.path], {})
    assert [f.name for f in root.files] == ["blobs/0a1b", "snapshots/metrics.csv", "snapshots/x"]


def test_loops_of_links_end(run):
    run.write({"log.csv": csv(), "a/x.txt": ""})
    (run.path / "a/up").symlink_to("..", target_is_directory=True)
    (run.path / "a/self").symlink_to("self")
    assert said(run.one())["a/self"] == "a symbolic link that leads back to itself: not followed"


# -- names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("plain é 日本.csv", "plain é 日本.csv"), ("a\nb.csv", "a\\nb.csv"), ("a\x1b[2Jb.csv", "a\\x1b[2Jb.csv"), ("a\\nb.csv", "a\\\\nb.csv"),
        ("a\u202eb.csv", "a\\u202eb.csv"), (os.fsdecode(b"a\xffb.csv"), "a\\xffb.csv"), ("a\x85b.csv", "a\\u0085b.csv"), ("a\U000e0001.csv", "a\\U000e0001.csv"),
    ],
)  # fmt: skip
def test_names_are_shown_printable(name, shown):
    assert printable(name) == shown
    assert printable(name).isprintable()


def test_files_of_strange_names_are_read_and_stay_apart(run):
    for i, name in enumerate((b"a\xff.csv", b"a\xfe.csv", b"a\nb.csv", b"a\\nb.csv")):
        (run.path / os.fsdecode(name)).write_text(csv(shift=i / 7))
    found = run.all()
    assert sorted(s.path for e in found for s in e.sources) == ["a\\\\nb.csv", "a\\nb.csv", "a\\xfe.csv", "a\\xff.csv"]
    assert len(found) == 4


def test_a_folder_of_a_strange_name_is_read(run):
    folder = run.path / os.fsdecode(b"r\xe9sultats\n1")
    folder.mkdir()
    (folder / "log.csv").write_text(csv())
    evidence = run.one()
    assert evidence.series("loss").source == "r\\xe9sultats\\n1/log.csv"
    assert evidence.name.isprintable()


def test_deep_trees_are_walked(run):
    folder = run.path
    for _ in range(300):
        folder = folder / "d"
    folder.mkdir(parents=True)
    (folder / "log.csv").write_text(csv())
    assert run.one().series("loss").source.endswith("d/log.csv")


def test_a_path_longer_than_the_system_allows_is_a_notice(run):
    run.write({"log.csv": csv()})
    home = os.open(run.path, os.O_RDONLY)
    for _ in range(20):
        os.mkdir("x" * 250, dir_fd=home)
        below = os.open("x" * 250, os.O_RDONLY, dir_fd=home)
        os.close(home)
        home = below
    os.close(home)
    (text,) = {n.text for n in run.one().notices}
    assert text == "not read: File name too long"


def test_virtual_environments_are_not_entered_but_may_be_the_input(run):
    run.write({"env/pyvenv.cfg": "", "env/lib/log.csv": csv(), "log.csv": csv()})
    assert [s.path for s in run.one().sources] == ["log.csv"]
    (root,) = discover([run.path / "env"], {})
    assert "lib/log.csv" in [f.name for f in root.files]


def test_files_come_before_the_folders_beside_them(run):
    run.write({"b.csv": "x", "a/z.csv": "x", "a/b/y.csv": "x", "c.csv": "x"})
    (root,) = discover([run.path], {})
    assert [f.name for f in root.files] == ["b.csv", "c.csv", "a/z.csv", "a/b/y.csv"]


def test_many_files_of_one_fault_have_one_notice(run):
    run.write({"log.csv": csv(), **{f"empty{i}.log": "" for i in range(30)}})
    (notice,) = run.one().notices
    assert notice.text == "empty file (30 such files)"


# -- files that change -------------------------------------------------------------------------------------------------


def test_a_file_that_grows_is_read_as_far_as_it_was(run):
    path = run.path / "train.csv"
    path.write_text(csv(5))
    (root,) = discover([run.path], {})
    before = path.stat().st_size
    path.write_text(csv(9))
    looked = looking.Looked(root)
    looked.file(root.files[0])
    (piece,) = looked.pieces
    assert piece.reading.tracks[0].stored.frame["step"].to_list() == [10, 20, 30, 40, 50]
    assert [n.text for n in looked.notices] == [f"grew while it was read: read up to byte {before}"]


def test_a_file_that_becomes_shorter_is_read_to_its_new_end(run):
    path = run.path / "train.csv"
    path.write_text(csv(9))
    (root,) = discover([run.path], {})
    before = path.stat().st_size
    path.write_text(csv(5))
    looked = looking.Looked(root)
    looked.file(root.files[0])
    now = path.stat().st_size
    assert [n.text for n in looked.notices] == [f"became shorter while it was read: {now} of {before} bytes are left"]
    assert looked.pieces


def test_a_file_that_is_gone_is_a_notice(run):
    run.write({"train.csv": csv(), "other.csv": csv()})
    (root,) = discover([run.path], {})
    (run.path / "train.csv").unlink()
    looked = looking.Looked(root)
    for file in root.files:
        looked.file(file)
    assert [(n.source, n.text) for n in looked.notices] == [("train.csv", "not read: No such file or directory")]
    assert [p.file.name for p in looked.pieces] == ["other.csv"]


def test_a_file_that_becomes_a_pipe_does_not_hang(run):
    run.write({"train.csv": csv(), "other.csv": csv()})
    (root,) = discover([run.path], {})
    (run.path / "train.csv").unlink()
    os.mkfifo(run.path / "train.csv")
    looked = looking.Looked(root)
    looked.file(next(f for f in root.files if f.name == "train.csv"))
    assert [n.text for n in looked.notices] == ["not read: not a regular file"]


def test_a_log_that_is_written_without_end_is_read_to_its_size(run):
    path = run.path / "a.log"
    path.write_bytes(b"x\n" * 1000)
    file = File(path, "a.log", 2000)
    seen = 0
    with path.open("ab", buffering=0) as writer:
        for chunk in file.chunks(64):
            seen += len(chunk)
            writer.write(b"y\n" * 100)  # more than is read in every turn
    assert seen == 2000
    assert file.changed == "grew while it was read: read up to byte 2000"
