"""What to say where no series was recognised as the training loss."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gradforensics.diagnosis.causes import Diagnosis
from gradforensics.diagnosis.judge import Verdict
from gradforensics.report.build import build
from gradforensics.report.model import SeriesRow
from gradforensics.report.unnamed import unnamed_loss
from gradforensics.tables import Evidence

ROW = SeriesRow("column_2", "column_2", "train", "log.txt", "step", 100, 8.0, 2.0, 2.0, 8.0, 0, 1, 100)


def row(name: str, **changes: Any) -> SeriesRow:
    return replace(ROW, series=name, tag=name, **changes)


def test_the_only_candidate_is_named_in_an_option_to_copy_in_both_languages() -> None:
    told = unnamed_loss([ROW])
    assert told.en.endswith("Logged: column_2. If one of them is it, say so: --map column_2=loss.")
    assert told.zh.endswith("--map column_2=loss。")


def test_several_candidates_are_listed_a_loss_first_and_none_is_suggested() -> None:
    rows = [row("Loss/scores/fake"), row("Progress/tick"), row("Loss/G/loss"), row("a"), row("lr")]
    told = unnamed_loss(rows).en
    assert "Logged: Loss/G/loss, Loss/scores/fake, Progress/tick and 1 more." in told
    assert "--map NAME=loss" in told


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [row("loss"), ROW],
        [row("lr"), row("grad_norm")],
        [row("column_2", points=1)],
        [row("column_2", phase="eval")],
    ],
    ids=["nothing", "a loss", "known names", "one point", "an evaluation"],
)
def test_nothing_is_said_where_a_loss_is_known_or_nothing_could_be_one(rows: list[SeriesRow]) -> None:
    assert not unnamed_loss(rows).en


def test_it_comes_first_in_the_advice_and_stands_for_that_to_log_a_loss(maker: Any) -> None:
    evidence = Evidence("run")
    maker.series(evidence, "column_2", [3.0, 2.0, 1.0])
    blind = Verdict(maker.rule("GF05"), "not_judged", missing=("series:loss:points>=20", "series:loss_scale"))
    (run,) = build([Diagnosis(evidence, (blind,))], []).runs
    first, second = run.advice()
    assert "--map column_2=loss" in first[0].en
    assert first[1] == ("GF05",)
    assert second[0].en == "Log scaler.get_scale() beside every loss."
