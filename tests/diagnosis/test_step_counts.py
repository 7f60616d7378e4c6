"""Counters of optimizer, run and loss scaler against each other."""

import json

import polars as pl
import pytest

from gradforensics.diagnosis.checks.schedule_counts import optimizer_steps_per_micro_batch, scheduler_steps_per_update
from gradforensics.diagnosis.checks.step_counts import (
    optimizer_counter_behind,
    optimizer_counter_restarts,
    optimizer_skipped_steps,
    saved_scale_below_floor,
    scheduler_counter_restarts,
)
from gradforensics.diagnosis.vocabulary import Missing
from gradforensics.tables import TABLES, Evidence, SeriesFrame, SeriesKey, Setting, series_frame

TORCH = {"growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2000}


def table(name, rows):
    schema = TABLES[name]
    return pl.DataFrame([{c: row.get(c) for c in schema} for row in rows], schema=schema)


def run(*points, settings=None, form="torch-zip"):
    """Checkpoints as (step, steps of the optimizer, facts)."""
    checkpoints = [{"path": f"c{step}", "step": step, "format": form} for step, _, _ in points]
    groups = [
        {
            "checkpoint": f"c{step}", "group": 0, "optimizer": "adamw", "names": ["w"], "lr": 1e-3,
            "step_min": made, "step_max": made,
        }
        for step, made, _ in points
    ]  # fmt: skip
    facts = [
        {"checkpoint": f"c{step}", "step": step, "key": key, "value": json.dumps(value)}
        for step, _, more in points
        for key, value in ({"step": step} | more).items()
    ]
    tables = {"checkpoints": checkpoints, "groups": groups, "facts": facts}
    return Evidence(
        "run",
        settings=None if settings is None else [Setting(k, k, v, "x") for k, v in settings.items()],
        tables={name: table(name, rows) for name, rows in tables.items()},
    )


def scaler(scale, **more):
    return {f"scaler.{key}": value for key, value in ({"scale": scale} | TORCH | more).items()}


def skips(evidence):
    return optimizer_skipped_steps(evidence, rate=0.01, least=5, opening=32, highest=2.0**32, span=100)


def restarts(evidence):
    return optimizer_counter_restarts(evidence, least=10, highest=2.0**32)


def test_skips_beyond_the_search_and_the_trials_are_counted():
    (hit,) = skips(run((100, 100, scaler(65536.0)), (300, 288, scaler(16.0))))
    assert (hit.step, hit.after) == (300, 100)
    assert hit.facts == {"count": 11, "steps": 200, "rate": 0.055, "made": 288, "scale": 16.0}


@pytest.mark.parametrize(
    "points",
    [
        [(300, 280, scaler(64.0))],  # one checkpoint: 20 skips may be the search from 2^32
        [(100, 80, scaler(4096.0)), (300, 276, scaler(256.0))],  # four more, and least is five
        [(1000, 990, scaler(64.0)), (9000, 8986, scaler(64.0))],  # one in 2000 good steps
        [(100, 100, scaler(64.0)), (300, 280, scaler(64.0, growth_interval=10))],  # the balance of a short interval
    ],
)
def test_the_search_and_the_balance_of_a_scale_are_no_fault(points):
    assert skips(run(*points)) == []


def test_steps_that_the_scale_does_not_explain_were_not_skipped_by_the_scaler():
    assert isinstance(skips(run((100, 100, {}), (300, 200, scaler(65536.0)))), Missing)


def test_micro_batches_may_have_been_counted():
    assert isinstance(skips(run((300, 100, scaler(2.0**-90)))), Missing)
    assert isinstance(skips(run((300, 200, {}))), Missing)


def test_deepspeed_counts_its_skipped_steps_itself():
    scale = {"scaler.cur_scale": 64.0, "scaler.scale_window": 1000}
    evidence = run(
        (100, 90, scale | {"skipped_steps": 10}), (300, 270, scale | {"skipped_steps": 30}), form="deepspeed"
    )
    answer = skips(evidence)
    assert isinstance(answer, list)
    assert [h.facts["count"] for h in answer] == [19]


def test_a_scale_below_one_must_have_come_down():
    def check(evidence):
        return saved_scale_below_floor(evidence, floor=1.0, backoffs=5)

    (hit,) = check(run((80, 79, scaler(65536.0)), (120, 79, scaler(2.0**-24))))
    assert (hit.step, hit.after, hit.facts["from_scale"]) == (120, 80, 65536.0)
    (hit,) = check(run((120, 79, scaler(2.0**-22, growth_interval=20))))
    assert hit.facts["from_scale"] == pytest.approx(2.0**16)
    assert check(run((120, 119, scaler(0.5)))) == []  # began at 1, as some loops in bf16 do
    assert check(run((120, 119, scaler(1024.0)))) == []


def test_an_optimizer_that_made_no_more_steps_than_lie_between_two_checkpoints_is_a_new_one():
    (hit,) = restarts(run((140, 140, {}), (300, 155, {})))
    assert (hit.step, hit.after) == (146, 145)
    assert hit.facts == {"made": 155, "at": 300, "before": 145, "count": 140}


@pytest.mark.parametrize(
    "points",
    [
        [(140, 140, {}), (300, 300, {})],
        [(140, 140, {}), (300, 298, {})],  # two steps left out
        [(140, 140, {}), (170, 150, scaler(2.0**-4))],  # skipped by the scaler
    ],
)
def test_an_optimizer_that_goes_on_is_no_hit(points):
    assert restarts(run(*points)) == []


def test_an_optimizer_that_made_no_step_in_between_is_no_new_one():
    evidence = run((140, 140, {}), (300, 140, {}))
    rows = [{"checkpoint": c, "role": "exp_avg", "name": "w", "nan": 0, "fingerprint": "1"} for c in ("c140", "c300")]
    assert restarts(evidence)
    evidence = run((140, 140, {}), (300, 140, {}))
    evidence.tables["tensors"] = table("tensors", rows)
    assert isinstance(restarts(evidence), Missing)


def test_a_scaler_that_was_not_saved_may_have_skipped_but_never_counts_back():
    half = {"fp16": True}
    assert isinstance(restarts(run((140, 140, {}), (300, 150, {}), settings=half)), Missing)
    assert restarts(run((140, 140, {}), (300, 130, {}), settings=half))


def test_counters_that_never_agreed_do_not_count_one_thing():
    assert isinstance(restarts(run((400, 100, {}), (800, 90, {}))), Missing)
    assert isinstance(restarts(run((300, 150, {}))), Missing)


def test_a_trainer_whose_optimizer_is_behind_was_resumed_without_it():
    def check(evidence, said="no"):
        return optimizer_counter_behind(evidence, least=10, highest=2.0**32, said=said)

    (hit,) = check(run((300, 150, {}), form="hf-trainer+torch-zip"))
    assert (hit.step, hit.after) == (151, 150)
    assert check(run((300, 150, {}), form="hf-trainer+torch-zip"), said="yes") == []
    assert check(run((300, 295, {}), form="hf-trainer+torch-zip")) == []
    assert check(run((300, 290, scaler(64.0)), form="hf-trainer+torch-zip")) == []
    assert isinstance(check(run((300, 150, {}))), Missing)  # a plain loop may count anything
    resumed = run((300, 150, {}))
    frame = {"attempt": [0] * 150 + [1] * 150, "step": list(range(1, 301))}
    resumed.frames[SeriesKey("run", "train", "loss", "loss", "x")] = SeriesFrame(series_frame(frame, [2.0] * 300))
    assert [h.step for h in check(resumed, said="yes")] == [151]
    half = run((300, 150, {}), form="hf-trainer+torch-zip", settings={"fp16": True})
    assert isinstance(check(half), Missing)


def test_a_scheduler_that_began_anew():
    def check(*points):
        return scheduler_counter_restarts(run(*points), least=10)

    counts, ends = "scheduler.last_epoch", {"scheduler.T_max": 1000}
    (hit,) = check((140, 140, ends | {counts: 140}), (300, 300, ends | {counts: 160}))
    assert (hit.step, hit.facts["counted"]) == (141, 160)
    short = {"scheduler.T_max": 150}
    assert check((140, 140, short | {counts: 140}), (300, 300, short | {counts: 150})) == []  # the next stage
    assert isinstance(check((140, 140, {counts: 140}), (300, 300, {counts: 160})), Missing)
    # not stepped any more, or begun anew
    assert isinstance(check((140, 140, ends | {counts: 140}), (300, 300, ends | {counts: 140})), Missing)
    assert check((140, 140, {counts: 140}), (300, 300, {counts: 300})) == []
    plateau = {"scheduler.num_bad_epochs": 1}
    assert isinstance(check((140, 140, plateau | {counts: 140}), (300, 300, plateau | {counts: 160})), Missing)
    assert isinstance(check((140, 140, {counts: 7}), (300, 300, {counts: 15})), Missing)  # epochs


# -- schedulers -------------------------------------------------------------------------------------------------------


def kinds(*points, settings=None, form="torch-zip"):
    """Every kind that is found, or what is missing."""
    evidence = run(*points, settings=settings, form=form)
    found = {}
    for kind in ("per-micro-batch", "per-process", "too-fast", "per-epoch", "not-attached"):
        found[kind] = scheduler_steps_per_update(
            evidence, kind=kind, least=20, length=0.03, tolerance=0.01, shifted=0.05
        )
    if any(isinstance(answer, Missing) for answer in found.values()):
        assert len({type(answer) for answer in found.values()}) == 1
        return Missing
    return [kind for kind, answer in found.items() if answer]


def stepped(counted, length=None):
    facts = {"scheduler.last_epoch": counted}
    return facts if length is None else facts | {"scheduler.T_max": length}


@pytest.mark.parametrize(
    ("point", "settings", "expected"),
    [
        ((60, 60, stepped(240, 300)), {"max_steps": 300, "gradient_accumulation_steps": 4}, ["per-micro-batch"]),
        ((60, 60, stepped(240, 300)), {"max_steps": 300, "world_size": 4}, ["per-process"]),
        ((60, 60, stepped(120, 300)), {"max_steps": 300, "gradient_accumulation_steps": 4}, ["too-fast"]),
        ((60, 60, stepped(240, 1200)), {"max_steps": 300, "gradient_accumulation_steps": 4}, []),
        ((60, 60, stepped(240, 777)), {"max_steps": 300, "gradient_accumulation_steps": 4}, Missing),
        ((60, 60, stepped(240)), {"gradient_accumulation_steps": 4}, Missing),
        ((60, 60, stepped(60)), None, []),
        ((60, 60, stepped(59)), None, []),
        ((60, 60, stepped(0, 300)), {"max_steps": 300}, ["not-attached"]),
        ((60, 60, stepped(3, 300)), {"max_steps": 300}, ["per-epoch"]),
        ((60, 60, stepped(3, 15)), {"max_steps": 300}, []),
        ((10, 10, stepped(40, 300)), {"max_steps": 300, "gradient_accumulation_steps": 4}, Missing),
        # a loop that counts micro-batches, and steps its scheduler with them
        ((240, 60, stepped(240, 300)), {"max_steps": 300, "gradient_accumulation_steps": 4}, Missing),
        ((60, 60, stepped(240, 300) | {"scheduler.num_bad_epochs": 1}), {"max_steps": 300}, Missing),
        ((60, 60, stepped(240, 300) | {"schedulers": 2}), {"max_steps": 300}, Missing),
    ],
)
def test_what_a_scheduler_is_stepped_with(point, settings, expected):
    assert kinds(point, settings=settings) == expected


def test_deepspeed_begins_at_minus_one_and_transformers_leaves_the_scheduler_where_steps_were_skipped():
    assert kinds((60, 60, {"scheduler.last_batch_iteration": 59}), form="deepspeed") == []
    assert kinds((60, 55, stepped(55) | scaler(1024.0)), form="hf-trainer") == []
    assert kinds((60, 55, stepped(60) | scaler(1024.0))) == []


def test_a_scheduler_that_stood_still_between_two_checkpoints():
    settings = {"max_steps": 300}
    assert kinds((60, 60, stepped(60, 300)), (110, 110, stepped(60, 300)), settings=settings) == ["not-attached"]
    # or it began anew after step 60
    assert kinds((60, 60, stepped(60, 300)), (120, 120, stepped(60, 300)), settings=settings) is Missing
    three = [(step, step, stepped(60, 300)) for step in (60, 120, 180)]
    assert kinds(*three, settings=settings) == ["not-attached"]


def test_an_optimizer_that_is_stepped_with_each_micro_batch():
    def check(*points, accumulated=4):
        evidence = run(*points, settings={"gradient_accumulation_steps": accumulated})
        return optimizer_steps_per_micro_batch(evidence, least=20)

    (hit,) = check((30, 120, {}), (60, 240, {}))
    assert hit.facts == {"times": 4.0, "made": 120, "at": 30}
    assert check((30, 30, {}), (60, 60, {})) == []
    assert check((30, 150, {}), (60, 300, {})) == []  # five passes over a batch
    assert check((30, 120, {}), (60, 240, {}), accumulated=1) == []
    assert isinstance(check((30, 120, {})), Missing)
