"""Schedules that settings declare, against the definitions of transformers step by step."""

import math

import numpy as np
import pytest

from gradforensics.diagnosis.checks import schedule
from gradforensics.diagnosis.examples import evidence_of
from gradforensics.diagnosis.schedules import Schedule, declared, others_declared, planned_steps, worst_departure
from gradforensics.tables import Setting

TOTAL, WARM, PEAK = 200, 10, 1e-3


def evidence(name, warmup=WARM, **more):
    base = {"lr_scheduler_type": name, "max_steps": TOTAL, "warmup_steps": warmup, "learning_rate": PEAK}
    return evidence_of({"settings": {**base, **more}})


def known(found):
    told = declared(found)
    assert isinstance(told, Schedule)
    return told


def after(step):
    return (step - WARM) / (TOTAL - WARM)


def wsd(step, decay=40):
    begin = TOTAL - decay
    return 1.0 if step < begin else 1.0 - math.sqrt((step - begin) / decay)


CASES = [
    ("linear", {}, lambda s: 1 - after(s)),
    ("cosine", {}, lambda s: 0.5 * (1 + math.cos(math.pi * after(s)))),
    ("cosine", {"lr_scheduler_kwargs.num_cycles": 1.5}, lambda s: 0.5 * (1 + math.cos(3 * math.pi * after(s)))),
    (
        "cosine_with_restarts",
        {"lr_scheduler_kwargs.num_cycles": 3},
        lambda s: 0.5 * (1 + math.cos(math.pi * ((3 * after(s)) % 1))),
    ),
    ("cosine_with_min_lr", {"min_lr_rate": 0.1}, lambda s: 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * after(s)))),
    ("polynomial", {"lr_scheduler_kwargs.power": 2.0, "lr_end": 1e-7}, lambda s: (1 - after(s)) ** 2),
    ("inverse_sqrt", {}, lambda s: math.sqrt(WARM / s)),
    ("constant_with_warmup", {}, lambda _: 1.0),
    (
        "warmup_stable_decay",
        {"lr_scheduler_kwargs.num_decay_steps": 40, "lr_scheduler_kwargs.decay_type": "1-sqrt"},
        wsd,
    ),
]


@pytest.mark.parametrize(("name", "more", "factor"), CASES, ids=[f"{case[0]}-{i}" for i, case in enumerate(CASES)])
def test_a_declared_schedule_is_that_of_transformers(name, more, factor):
    steps = np.arange(TOTAL)
    values = np.array([PEAK * (s / WARM if s < WARM else factor(s)) for s in steps.tolist()])
    told = known(evidence(name, **more))
    assert float(worst_departure(told, steps, values).max()) < 1e-3
    wrong = np.minimum(4 * steps, TOTAL - 1)
    assert name == "constant_with_warmup" or float(worst_departure(told, steps, values[wrong]).max()) > 0.05


def test_a_cosine_that_is_stepped_beyond_its_end_rises_again():
    wave = Schedule("cosine", "cosine", PEAK, 0, 100, wraps=True)
    assert wave.at(np.array([0, 100, 200])) == pytest.approx([PEAK, 0, PEAK])
    assert Schedule("cosine", "cosine", PEAK, 0, 100).at(np.array([200])) == pytest.approx([0])


def test_a_decay_that_is_not_declared_is_asked_for():
    assert declared(evidence("warmup_stable_decay")) == ["settings:num_decay_steps"]
    assert declared(evidence("OneCycleLR")) == ["a schedule of a known shape (this one is 'OneCycleLR')"]


def counted(epochs):
    found = evidence_of(
        {
            "series": {"lr": "1e-3*100", "loss": "1.0*100"},
            "settings": {"lr_scheduler_type": "linear", "learning_rate": PEAK, "num_train_epochs": 4},
        }
    )
    for key, stored in list(found.frames.items()):
        frame = stored.frame.with_columns(epoch=np.array(epochs, dtype=float))
        found.frames[key] = type(stored)(frame)
    return found


def test_the_planned_steps_follow_from_the_epochs_that_the_log_counts():
    assert planned_steps(counted([i / 25 for i in range(1, 101)])) == (100, True)
    assert planned_steps(counted([i // 25 for i in range(100)])) == (100, True)
    assert known(counted([i / 25 for i in range(1, 101)])).derived
    assert planned_steps(counted([0] * 100)) is None


def test_a_period_in_epochs_is_no_number_of_steps():
    found = evidence("CosineAnnealingLR", decay_steps=50, num_train_epochs=50, max_steps=5000)
    assert known(found).total == 5000


def test_another_file_of_settings_declares_another_launch():
    found = evidence("constant")
    found.settings = [
        *(Setting(s.key, s.name, s.value, "config.json") for s in found.settings),
        Setting("learning_rate", "lr", 1e-4, "config_resume.json"),
    ]
    assert [s.peak for s in others_declared(found)] == [1e-4]
    found.settings.append(Setting("learning_rate", "lr", 2e-3, "--set", origin="user"))
    assert others_declared(found) == []


def test_a_very_long_log_is_compared_at_some_of_its_points(monkeypatch):
    monkeypatch.setattr(schedule, "_MANY", 100)
    example = {
        "series": {"lr": "cosine(peak=1e-3, warmup=0, steps=1000, warp=4)", "loss": "1.0*1000"},
        "settings": {"lr_scheduler_type": "cosine", "max_steps": 1000, "learning_rate": 1e-3, "world_size": 4},
    }
    arguments = {"tolerance": 0.05, "share": 0.02, "kind": "per-process"}
    hits = schedule.schedule_warped(evidence_of(example), **arguments)
    assert isinstance(hits, list)
    assert hits[0].facts["speed"] == 4
    assert hits[0].step in range(100)
