"""Which findings are ignored."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from gradforensics.diagnosis.causes import diagnose
from gradforensics.diagnosis.ignoring import Ignore, Ignores, ignoring
from gradforensics.diagnosis.rules import load_rules
from gradforensics.tables import Evidence, Notice, SeriesFrame, SeriesKey, series_frame

RULES = load_rules(examples=False)
MAY = date(2026, 5, 1)


def broken_run(name: str = "run") -> Evidence:
    """A run whose loss is NaN from step 60 on: GF11 fires."""
    evidence = Evidence(name)
    values = [2 + 2 / step if step < 60 else float("nan") for step in range(1, 101)]
    frame = series_frame({"step": range(1, 101), "line": range(1, 101)}, values)
    evidence.frames[SeriesKey(name, "train", "loss", "loss", "log.txt")] = SeriesFrame(frame)
    return evidence


def ignored(*entries: Ignore, name: str = "run", today: date = MAY) -> tuple[Any, list[Notice]]:
    """The diagnosis of the broken run with these entries, and its notices."""
    (found,) = ignoring([diagnose(broken_run(name), RULES)], Ignores(entries), today)
    return found, found.evidence.notices


def test_an_ignored_finding_is_no_alarm_and_keeps_its_evidence() -> None:
    found, notices = ignored(Ignore("GF11", "the toy run is meant to break"))
    verdict = next(v for v in found.verdicts if v.rule.id == "GF11")
    assert (verdict.outcome, verdict.ignored, verdict.alarm) == ("fired", "the toy run is meant to break", False)
    assert verdict.holdings
    assert (found.primary, found.alarms, notices) == (None, [], [])


def test_what_is_not_named_still_counts() -> None:
    found, _ = ignored(Ignore("GF05", "x"))
    assert found.primary is not None
    assert found.primary.rule.id == "GF11"


@pytest.mark.parametrize(
    ("changes", "holds"),
    [
        ({"run": "run"}, True),
        ({"run": "ru*"}, True),
        ({"run": "other-*"}, False),
        ({"variant": "no-such"}, False),
        ({"until": MAY}, True),
        ({"until": date(2026, 4, 30)}, False),
    ],
)
def test_an_entry_holds_for_the_runs_variants_and_days_that_it_names(changes: dict[str, Any], holds: bool) -> None:
    found, notices = ignored(Ignore("GF11", "why", source="ignore.toml", line=3, **changes))
    assert (found.primary is None) == holds
    assert [(n.source, n.line) for n in notices] == ([] if holds else [("ignore.toml", 3)])


def test_an_entry_that_no_longer_holds_or_names_nothing_says_so() -> None:
    _, notices = ignored(Ignore("GF11", "for now", until=date(2026, 4, 30)), Ignore("GF05", "never seen"))
    assert [n.text for n in notices] == [
        "the entry for GF11 held until 2026-04-30 and no longer holds: for now",
        "the entry for GF05 names no finding of this analysis: never seen",
    ]


def test_an_entry_that_names_a_finding_of_one_run_is_idle_in_none() -> None:
    diagnoses = [diagnose(broken_run(name), RULES) for name in ("a", "b")]
    found = ignoring(diagnoses, Ignores((Ignore("GF11", "a alone", run="a"),)), MAY)
    assert [one.primary is None for one in found] == [True, False]
    assert [one.evidence.notices for one in found] == [[], []]


def test_the_last_good_checkpoint_does_not_move() -> None:
    from dataclasses import replace

    diagnosis = replace(diagnose(broken_run(), RULES), last_good_checkpoint="checkpoint-40")
    (found,) = ignoring([diagnosis], Ignores((Ignore("GF11", "x"),)), MAY)
    assert found.last_good_checkpoint == "checkpoint-40"
