"""Runs judged beside the healthy one of --baseline."""

import json

import pytest

from gradforensics.diagnosis.causes import diagnose
from gradforensics.diagnosis.comparison import (
    beside_siblings,
    compare_with,
    same_run,
    the_one,
)
from gradforensics.diagnosis.rules import load_rules
from gradforensics.diagnosis.setting_differences import Difference, differences
from gradforensics.errors import UsageError
from gradforensics.evidence.gather import gather

RULES = load_rules(examples=False)


@pytest.fixture
def made(tmp_path):
    """Make a run of the given losses and settings, and read it."""

    def make(name, losses, **settings):
        folder = tmp_path / name
        folder.mkdir()
        rows = [{"step": i, "loss": loss, "lr": 1e-3} for i, loss in enumerate(losses, 1)]
        (folder / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        known = {
            "learning_rate": 1e-3,
            "weight_decay": 0.1,
            "max_steps": 100,
            "optim": "adamw",
            "seed": 0,
            "output_dir": f"out/{name}",
        }
        (folder / "config.json").write_text(json.dumps({**known, **settings}))
        (found,) = gather([folder])
        return found

    return make


HEALTHY = [4 - i / 50 for i in range(100)]
DIVERGED = [*(4 - i / 50 for i in range(40)), *(9 + (i * 7 % 5) / 100 for i in range(60))]


def test_a_healthy_baseline_is_there_for_every_run(made):
    runs, other = [made("a", HEALTHY), made("b", DIVERGED)], made("other", [3.9 - i / 50 for i in range(100)])
    compare_with(other, runs, RULES)
    assert [run.baseline for run in runs] == [other, other]
    assert not any(run.notices for run in runs)


def test_a_baseline_that_raises_alarms_is_no_measure(made):
    run = made("a", HEALTHY)
    compare_with(made("other", DIVERGED), [run], RULES)
    assert run.baseline is None
    assert run.notices[0].text == "the run other raises alarms itself (GF05): nothing is compared with it"


def test_a_run_is_not_compared_with_itself(made, tmp_path):
    run = made("a", HEALTHY)
    (again,) = gather([tmp_path / "a"])
    assert same_run(run, again)
    compare_with(again, [run], RULES)
    assert run.baseline is None
    assert "not compared with itself" in run.notices[0].text


def test_differing_settings_without_names_and_paths(made):
    here, there = made("a", HEALTHY, learning_rate=3e-3, weight_decay="0.1"), made("b", HEALTHY)
    assert differences(here, there) == [Difference("learning_rate", 3e-3, 1e-3)]
    assert differences(there, made("c", HEALTHY)) == []


def test_a_folder_with_several_runs_is_no_baseline(made):
    runs = [made("a", HEALTHY), made("b", HEALTHY)]
    with pytest.raises(UsageError, match=r"--baseline here holds 2 runs \(a, b\)"):
        the_one(runs, "here")
    assert the_one(runs[:1], "here") is runs[0]


def siblings_of(*runs):
    found = beside_siblings([diagnose(run, RULES) for run in runs], RULES)
    return [d.evidence.baseline and d.evidence.baseline.name for d in found]


def test_a_sick_run_is_judged_beside_its_nearest_healthy_sibling(made):
    sick = made("sick", DIVERGED, learning_rate=3e-2)
    near, far = made("near", HEALTHY), made("far", [x + 0.1 for x in HEALTHY], weight_decay=0.0)
    assert siblings_of(sick, far, near) == ["near", None, None]
    assert sick.baseline_is_sibling


def test_runs_that_differ_in_much_or_say_little_are_no_siblings(made, tmp_path):
    sick = made("sick", DIVERGED)
    other = made("other", HEALTHY, learning_rate=1.0, weight_decay=0.0, max_steps=7)
    (tmp_path / "other" / "config.json").unlink()
    (bare,) = gather([tmp_path / "other"])
    assert siblings_of(sick, bare) == [None, None]
    assert len(differences(sick, other)) == 3
    different = made("different", HEALTHY, learning_rate=1.0, weight_decay=0.0, max_steps=7, warmup_steps=3)
    sick_too = made("sick too", DIVERGED, warmup_steps=4)
    assert siblings_of(sick_too, different) == [None, None]


def test_a_run_without_a_grave_finding_is_left_alone(made):
    worse = made("worse", [x + 0.6 for x in HEALTHY], learning_rate=1e-2)
    assert siblings_of(worse, made("better", HEALTHY)) == [None, None]
