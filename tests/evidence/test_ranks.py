"""Ranks, hosts and attempts by the names of files, the families of one job, and the clocks of its ranks."""

# ruff: noqa: E501  names and contents of files stand here as they are written

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gradforensics.evidence import clocks, grouping, joining
from gradforensics.evidence.files import File
from gradforensics.evidence.pieces import Piece
from gradforensics.evidence.ranks import Place, are_ranks, of_local, of_name, of_settings
from gradforensics.evidence.readings import Reading, Track
from gradforensics.tables import Event, Evidence, SeriesFrame, Setting, series_frame


@pytest.mark.parametrize(
    ("name", "place", "family"),
    [
        ("logs/rank_0.log", Place(0), "logs/rank_*.log"),
        ("log_rank3.txt", Place(3), "log_rank*.txt"),
        ("Rank_3.LOG.gz", Place(3), "Rank_*.LOG.gz"),
        ("rank_3/logs/train.log", Place(3), "rank_*/logs/train.log"),
        ("rank.3/stdout", Place(3), "rank.*/stdout"),
        ("logs-rank3.txt", Place(3), "logs-rank*.txt"),
        ("nemo_log_globalrank-11_localrank-3.txt", Place(11, local=3), "nemo_log_globalrank-*_localrank-*.txt"),
        ("node07-rank056.log", Place(56, host="node07", node=7), "node*-rank*.log"),
        ("rank-56-1-2-dgx-07.log", Place(56, host="dgx-07"), "rank-*.log"),
        ("node1/local_rank_3.log", Place(host="node1", node=1, local=3), "node*/local_rank_*.log"),
        ("none_ab/attempt_1/3/stdout.log", Place(attempt=1, local=3), "none_ab/attempt_*/*/stdout.log"),
        ("worker-3.err", Place(3, sure=False), "worker-*.err"),
        ("workerlog.5", Place(5), "workerlog.*"),
        ("task_2.out", Place(2, sure=False), "task_*.out"),
        ("stdout.3", Place(3, sure=False), "stdout.*"),
        ("llama-123456-7.out", Place(7, sure=False), "llama-123456-*.out"),
        ("events.out.tfevents.1664082589.gpu-7.x.4004.0.v2", Place(host="gpu-7.x"), None),
    ],
)
def test_the_place_that_a_name_tells(name, place, family):
    assert of_name(name) == replace(place, family=name if family is None else family)


@pytest.mark.parametrize(
    "name",
    [
        "run_3/train.log", "version_3/metrics.csv", "epoch_3.log", "seed-3.csv", "fold3.csv", "model-00001-of-00005.json",
        "train-2026-01-05.log", "task-2026-01-05.log", "train-2026-01.log", "slurm-123456.out", "slurm-123456_7.out", "log.3",
        "frank_3.log", "ranking_3.csv", "rank_loss.csv", "lora_rank_16.log", "rank8_alpha16/train.log", "dp_rank_0.log",
        "worker-3f9ab1c2-1234.out", "worker-12345678901.log", "multirun/2026-01-01/12-00-00/3/main.log", "node/train.log",
        "outputs/2026-01-01/12-00-00/main.log", "checkpoint-500/trainer_state.json", "attempts_3.log", "top_rank_1.csv",
    ],
)  # fmt: skip
def test_numbers_that_are_no_ranks(name):
    place = of_name(name)
    assert (place.rank, place.local, place.node) == (None, None, None)


@pytest.mark.parametrize(
    ("numbers", "sure", "expected"),
    [
        ([0, 1, 2, 3], True, True),
        ([3], True, True),
        ([1, 5], True, True),
        ([8, 16, 32, 64], True, False),
        ([4, 8], True, False),
        ([0, 8, 16], True, True),
        ([1, 2], True, True),
        ([0, 1], False, True),
        ([1, 2, 3], False, True),
        ([3], False, False),
        ([0, 5, 9], False, False),
    ],
)
def test_a_family_counts_from_zero_and_is_no_list_of_adapter_ranks(numbers, sure, expected):
    assert are_ranks([Place(n, sure=sure) for n in numbers]) is expected


def test_local_ranks_are_numbered_node_by_node():
    places = [Place(node=node, local=local) for node in (0, 1) for local in range(4)]
    assert list(of_local(places).values()) == list(range(8))
    assert of_local([Place(local=2)]) == {(0, 2): 2}


@pytest.mark.parametrize(
    ("name", "value", "rank"),
    [("RANK", "7", 7), ("env.RANK", 7, 7), ("global_rank", 0, 0), ("rank", 16, None), ("RANK", "x", None), ("RANK", True, None)],
)  # fmt: skip
def test_ranks_that_settings_state(name, value, rank):
    assert of_settings([Setting(name, name, value, "a.log")]) == rank


# -- families ----------------------------------------------------------------------------------------------------------


def csv(points):
    return "step,loss\n" + "".join(f"{s},{v}\n" for s, v in points)


def points(shift=0.0, start=10, stop=110):
    return [(s, 2.0 - s / 100 + (s % 7) / 50 + shift) for s in range(start, stop, 10)]


def test_the_ranks_of_a_job_are_one_run(run):
    files = {f"logs/rank_{r}.csv": csv(points(r)) for r in range(12)}
    evidence = run.write({**files, "config.yaml": "learning_rate: 0.1\nmax_steps: 100\n"}).one()
    assert evidence.ranks("loss") == list(range(12))
    assert evidence.series("loss").source == "logs/rank_0.csv"
    assert [evidence.series("loss", rank=r).source for r in (7, 10)] == ["logs/rank_7.csv", "logs/rank_10.csv"]
    assert [n.text for n in evidence.notices] == ["12 files logs/rank_*.csv are the ranks 0 to 11 of one job"]
    assert {s.remark for s in evidence.sources if s.path in files} == {"one of logs/rank_*.csv"}


def test_two_jobs_of_one_folder_are_two_runs(run):
    files = {f"{job}_rank{r}.csv": csv(points(r + 10 * i)) for i, job in enumerate("ab") for r in range(3)}
    a, b = run.write(files).all()
    assert (a.ranks("loss"), b.ranks("loss")) == ([0, 1, 2], [0, 1, 2])
    assert {k.source[0] for k in a.frames} == {"a"}


def test_the_folders_that_torchrun_writes(run):
    line = "step {}: loss {:.3f}\n"
    files = {
        f"none_x1/attempt_0/{r}/{stream}.log": "".join(line.format(*p) for p in points(r)) if stream == "stdout" else "warning\n"
        for r in range(4)
        for stream in ("stdout", "stderr")
    }  # fmt: skip
    files["none_x1/attempt_0/2/stderr.log"] = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
    evidence = run.write(files).one()
    assert evidence.name == "none_x1"
    assert evidence.ranks("loss") == [0, 1, 2, 3]
    assert [(e.kind, e.rank) for e in evidence.events_of("oom")] == [("oom", 2)]


def test_the_launches_of_an_elastic_job_are_attempts(run):
    files = {f"j_1/attempt_0/{r}/a.csv": csv(points(r, stop=60)) for r in range(2)}
    files |= {f"j_1/attempt_1/{r}/a.csv": csv(points(r + 0.5, start=40)) for r in range(2)}
    evidence = run.write(files).one()
    assert [[int(a.steps[0]), int(a.steps[-1])] for a in evidence.attempts("loss")] == [[10, 50], [40, 100]]
    assert evidence.series("loss", rank=1).values[-1] == pytest.approx(points(1.5)[-1][1])


def test_lora_ranks_are_runs(run):
    found = run.write({f"rank_{r}/m.csv": csv(points(r)) for r in (8, 16, 32)}).all()
    assert [e.name for e in found] == ["rank_16", "rank_32", "rank_8"]


@pytest.mark.parametrize("stem", ["train_{}", "seed_{}", "run{}", "exp-{}"])
def test_numbered_files_of_other_values_are_runs(run, stem):
    assert len(run.write({f"{stem.format(i)}.csv": csv(points(i)) for i in range(4)}).all()) == 4


def timed(shift, began, pace=30.0, jitter=0.0):
    dice = np.random.default_rng(int(began) % 1000)
    rows = [(s, v, began + s * pace / 10 + jitter * dice.standard_normal()) for s, v in points(shift)]
    return "".join(json.dumps({"step": s, "loss": v, "timestamp": t}) + "\n" for s, v, t in rows)


def test_numbered_files_in_lockstep_are_ranks(run):
    evidence = run.write({f"train_{i}.jsonl": timed(i, 1.7e9 + 0.2 * i) for i in range(4)}).one()
    assert evidence.ranks("loss") == [0, 1, 2, 3]


def test_numbered_files_of_another_pace_are_runs(run):
    files = {f"train_{i}.jsonl": timed(i, 1.7e9, pace=30.0 + i) for i in range(4)}
    assert len(run.write(files).all()) == 4


def test_workers_of_other_learning_rates_are_runs(run):
    files = {
        f"worker_{i}.csv": "step,loss,lr\n" + "".join(f"{s},{v},{0.1 / (i + 1)}\n" for s, v in points(i))
        for i in range(3)
    }
    assert len(run.write(files).all()) == 3


def test_logs_of_ranks_without_series_are_one_run(run):
    dead = "step 1: loss 2.0\nstep 2: loss 1.9\nTraceback (most recent call last):\nRuntimeError: NCCL error\n"
    quiet = 'Traceback (most recent call last):\n  File "a.py", line 1\nRuntimeError: NCCL error in rank\n'
    evidence = run.write({"rank_0.log": dead, **{f"rank_{r}.log": quiet for r in range(1, 5)}}).one()
    assert {e.rank for e in evidence.events} == {0, 1, 2, 3, 4}


# -- clocks ------------------------------------------------------------------------------------------------------------


def clock(offset, drift=0.0, noise=0.0, steps=200, seed=0):
    dice = np.random.default_rng(seed)
    at = np.arange(0, 10 * steps, 10, dtype=np.int64)
    return at, 1.7e9 + at * (1 + drift) + offset + noise * dice.standard_normal(steps)


def test_offsets_of_clocks():
    found = clocks.offsets({0: clock(0.0), 1: clock(3.5, noise=0.02), 2: clock(-90.0, noise=0.02)})
    assert [found[r].seconds for r in range(3)] == pytest.approx([0.0, 3.5, -90.0], abs=0.01)
    assert [found[r].is_clear for r in range(3)] == [False, True, True]
    assert found[1].spread == pytest.approx(0.02, rel=0.3)
    assert found[1].steps == 200


def test_outliers_move_no_offset_and_a_drift_shows_as_spread():
    steps, times = clock(2.0, noise=0.01)
    times[::3] += 500
    assert clocks.offsets({0: clock(0.0), 1: (steps, times)})[1].seconds == pytest.approx(2.0, abs=0.05)
    drifting = clocks.offsets({0: clock(0.0), 1: clock(0.0, drift=0.01)})[1]
    assert drifting.seconds == pytest.approx(0.01 * 995, rel=0.01)
    assert drifting.spread > 5
    assert not drifting.is_clear


def test_clocks_without_common_steps_have_no_offset():
    steps, times = clock(0.0)
    late = (steps + 10 * 196, times)
    unknown = (steps, np.full(len(steps), np.nan))
    assert set(clocks.offsets({0: (steps, times), 1: late, 2: unknown})) == {0}
    assert clocks.offsets({}) == {}


def test_the_offsets_are_facts(run):
    evidence = run.write({f"rank_{i}.jsonl": timed(i, 1.7e9 + 60 * i, jitter=0.01) for i in range(3)}).one()
    facts = {f.rank: float(f.value) for f in evidence.environment if f.key == "clock_offset_s"}
    assert facts == pytest.approx({1: 60.0, 2: 120.0}, abs=0.1)


def test_events_have_the_time_of_the_lowest_rank():
    def ranked(rank, ahead):
        steps, times = clock(ahead)
        frame = series_frame({"step": steps.tolist(), "time": times.tolist()}, np.ones(len(steps)).tolist())
        event = Event("oom", "out of memory", "a.log", time=1.7e9 + 500 + ahead)
        reading = Reading(tracks=[Track("train", "loss", "loss", SeriesFrame(frame))], events=[event])
        return Piece(File(Path("x"), f"rank_{rank}.log", 1), "console", reading)

    (group,) = grouping.group([ranked(0, 0.0), ranked(1, 90.0)])
    evidence = Evidence("run")
    joining.join(evidence, group)
    assert [(e.rank, e.time) for e in evidence.events_of("oom")] == [(0, 1.7e9 + 500), (1, pytest.approx(1.7e9 + 500))]
    assert evidence.notices[-1].text == "the clock of 1 rank is off by up to 90.0 s: events have the time of rank 0"
