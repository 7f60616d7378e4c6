"""Work shared among processes: the same results, whatever becomes of a child."""

import os
from typing import Any

import numpy as np
import pytest

from gradforensics.checkpoints import pairs, processes
from gradforensics.checkpoints.measure import open_all, parameters, survey
from gradforensics.checkpoints.scan import scan


def total(items, report):
    report(len(items), len(items))
    return sum(items)


def total_or_die(items, report):
    if 13 in items and os.environ.get("THIS_PROCESS") != str(os.getpid()):
        os._exit(1)
    return total(items, report)


def fails_elsewhere(items, report):
    if os.environ.get("THIS_PROCESS") != str(os.getpid()):
        raise MemoryError("not here")
    return total(items, report)


def waits(items, report):
    import time

    time.sleep(0.0 if items == [1] else 60.0)


def refuses(items, report):
    raise ValueError("no")


def test_shares_are_about_equal_and_small_work_is_not_shared(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert processes.shares([1, 2, 3]) == [[0, 1, 2]]
    assert processes.shares([]) == [[]]
    monkeypatch.setattr(processes, "LARGE", 4)
    assert processes.shares([5, 1, 1, 1, 1]) == [[0], [1, 2, 3, 4]]
    assert processes.shares([9]) == [[0]]


def test_every_part_has_its_result_in_order():
    seen = []
    assert processes.run(total, [[1, 2], [3], [4, 5]], lambda now, whole: seen.append((now, whole))) == [3, 3, 9]
    assert seen[-1] == (5, 5)


def test_the_share_of_a_child_that_dies_is_done_here(monkeypatch):
    monkeypatch.setenv("THIS_PROCESS", str(os.getpid()))
    assert processes.run(total_or_die, [[1], [13, 2]], None) == [1, 15]


def test_what_goes_wrong_in_a_child_prints_no_traceback(monkeypatch, capfd):
    monkeypatch.setenv("THIS_PROCESS", str(os.getpid()))
    assert processes.run(fails_elsewhere, [[1], [2]], None) == [1, 2]
    assert capfd.readouterr() == ("", "")


def test_an_interrupt_ends_the_children_without_their_traceback(capfd):
    import multiprocessing
    import signal
    import threading
    import time

    def interrupt():  # as a terminal does: all of them
        for child in multiprocessing.active_children():
            os.kill(child.pid or 0, signal.SIGINT)
        time.sleep(0.5)  # for it to print what it would
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(1.0, interrupt)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        processes.run(waits, [[1], [2]], None)
    timer.join()
    assert capfd.readouterr() == ("", "")


def test_an_error_here_ends_the_children():
    with pytest.raises(ValueError, match="no"):
        processes.run(refuses, [[1], [2]], None)


@pytest.fixture
def two_processes(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(processes, "LARGE", 1)


@pytest.fixture
def run(tmp_path, trained, tools):
    import torch

    net, optimizer, schedule = trained.make(steps=3)
    for step in (3, 4):
        torch.save(
            {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, tmp_path / f"{step}.pt"
        )
        trained.advance(net, optimizer, schedule, 1)
    raw = bytearray((tmp_path / "4.pt").read_bytes())
    weight = next(t for t in tools.load_all(tmp_path)[1].tensors if t.name == "l2.weight")
    raw[raw.index(tools.raw(weight.ref)) + 1] ^= 1
    (tmp_path / "4.pt").write_bytes(raw)
    return tools.files_of(tmp_path)


def test_scan_and_pairs_give_the_same_by_one_process_and_by_two(run, two_processes):
    before, after = survey(open_all(run), measured=False).checkpoints
    for checkpoint in (before, after):
        alone = scan(checkpoint.tensors, checkpoint.checksums, threads=1)
        assert repr(scan(checkpoint.tensors, checkpoint.checksums)) == repr(alone)
    assert len(alone.failed) == 1
    first, second = parameters(before), parameters(after)
    assert repr(pairs.moments(first)) == repr(pairs.moments(first, threads=1))
    second = [p for p in second if p.name != "norm.bias"]
    options: dict[str, Any] = {"first_step": 3, "step": 4, "applied": {"l1.weight": pairs.Applied(1e-3)}}
    options["both"] = True
    alone_, shared = pairs.travels(first, second, threads=1, **options), pairs.travels(first, second, **options)
    assert repr((shared.moments, shared.travels)) == repr((alone_.moments, alone_.travels))
    assert {r.name: r for r in shared.earlier} == {r.name: r for r in alone_.earlier}
    assert {(r.name, r.reason) for r in shared.skipped} == {(r.name, r.reason) for r in alone_.skipped}


def test_the_tables_are_the_same_too(run, monkeypatch):
    alone = survey(open_all(run))
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    monkeypatch.setattr(processes, "LARGE", 1)
    shared = survey(open_all(run))
    assert shared.notices == alone.notices
    for name, table in alone.tables.items():
        assert shared.tables[name].equals(table), name
    assert np.isfinite(shared.tables["tensors"]["l2"].drop_nulls().to_numpy()).all()
