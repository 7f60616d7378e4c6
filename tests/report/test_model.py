"""The model: selection, order, series rows, advice."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from gradforensics.diagnosis.causes import Diagnosis
from gradforensics.languages import NOTHING, Text
from gradforensics.report.build import build
from gradforensics.report.model import Report, SeriesRow
from gradforensics.tables import Ending, Evidence, Source


def rows(diagnosis: Diagnosis) -> dict[tuple[str, str], SeriesRow]:
    (run,) = build([diagnosis], []).runs
    return {(s.phase, s.series): s for s in run.series}


def test_verdicts_follow_the_catalogue_and_findings_their_weight(report: Report) -> None:
    (run,) = report.runs
    assert [v.rule for v in run.verdicts] == ["GF05", "GF06", "GF11", "GF12", "GF20", "GF27"]
    assert [v.rule for v in run.findings] == ["GF05", "GF11", "GF12"]
    assert [v.rule for v in run.alarms] == ["GF05", "GF11"]
    assert run.primary is run.findings[0]
    assert (run.steps, run.attempts) == ((5, 300), 2)


def test_texts_are_filled_only_where_the_rule_fired(report: Report) -> None:
    (run,) = report.runs
    fired, clear = run.verdicts[0], run.verdicts[1]
    assert fired.what.en == "What of runs/exp-7: from step 120"
    assert fired.verify.en == "gradforensics analyze runs/exp-7 --set onset=120"
    assert (clear.what, clear.fix, clear.verify) == (NOTHING, (), NOTHING)
    assert clear.why.en == "Why of GF06"


def test_texts_are_in_both_languages(sick: Diagnosis) -> None:
    (run,) = build([sick], []).runs
    assert run.primary is not None
    assert run.primary.title == Text("Title of GF05", "GF05 的标题")
    assert run.primary.what.zh == "自第 120 步起"


def test_excerpt_is_the_log_line_that_the_hit_names(report: Report) -> None:
    hits = report.runs[0].findings[1].hits
    assert [h.excerpt for h in hits] == ["RuntimeError: loss is nan"]
    assert all(h.excerpt == "" for h in report.runs[0].findings[0].hits)


def test_look_alikes_carry_the_title_of_their_case(report: Report) -> None:
    (run,) = report.runs
    assert [(one.case, one.title.en) for one in run.verdicts[1].refuted_by] == [("GF05", "Title of GF05")]
    assert [(one.case, one.title.en) for one in run.verdicts[0].not_excluded] == [("GF17", "")]


def test_advice_names_the_rules_it_would_help_and_skips_those_without_a_test(report: Report) -> None:
    ((line, rules),) = report.runs[0].advice()
    assert (line.en, rules) == ("Log accuracy of the evaluation.", ("GF20",))


def test_settings_show_which_one_is_in_force(report: Report) -> None:
    told = [(s.key, s.value, s.overridden) for s in report.runs[0].settings]
    assert told == [("betas", [0.9, 0.95], False), ("learning_rate", 2e-4, False), ("learning_rate", 1e-4, True)]


def test_series_row_counts_nonfinite_points_but_not_missing_ones(maker: Any) -> None:
    evidence = Evidence("run")
    maker.series(evidence, "loss", [None, 3.0, math.nan, math.inf, 1.0, 2.0, None], steps=[1, 2, 3, 4, 5, 6, 7])
    row = rows(Diagnosis(evidence, ()))["train", "loss"]
    assert (row.points, row.nonfinite) == (5, 2)
    assert (row.first, row.last, row.min, row.max) == (3.0, 2.0, 1.0, 3.0)
    assert (row.first_step, row.last_step) == (2, 6)


def test_series_row_keeps_file_order_over_a_restart(maker: Any) -> None:
    evidence = Evidence("run")
    maker.series(evidence, "loss", [4.0, 3.0, 2.0, 3.5, 1.0], steps=[1, 2, 3, 2, 3], attempt=[0, 0, 0, 1, 1])
    row = rows(Diagnosis(evidence, ()))["train", "loss"]
    assert (row.points, row.first, row.last, row.first_step, row.last_step) == (5, 4.0, 1.0, 1, 3)


def test_series_row_is_that_of_the_source_with_most_points(maker: Any) -> None:
    evidence = Evidence("run")
    maker.series(evidence, "loss", [1.0, 2.0], source="a.csv")
    maker.series(evidence, "loss", [5.0, 6.0, 7.0], source="b.csv")
    maker.series(evidence, "loss", [9.0], source="c.csv", tag="train_loss")
    (run,) = build([Diagnosis(evidence, ())], []).runs
    assert [(s.tag, s.source, s.points) for s in run.series] == [("loss", "b.csv", 3), ("train_loss", "c.csv", 1)]


def test_series_row_of_many_ranks_is_that_of_the_lowest(maker: Any) -> None:
    evidence = Evidence("run")
    maker.series(evidence, "loss", [1.0, 10.0, 2.0, 20.0], steps=[1, 1, 2, 2], rank=[0, 1, 0, 1])
    row = rows(Diagnosis(evidence, ()))["train", "loss"]
    assert (row.points, row.first, row.last) == (2, 1.0, 2.0)


def test_nothing_logged(maker: Any) -> None:
    evidence = Evidence("run")
    maker.series(evidence, "loss", [])
    maker.series(evidence, "lr", [math.nan, math.nan])
    (run,) = build([Diagnosis(evidence, ())], [Source("a", 0)]).runs
    assert (run.primary, run.findings, run.attempts) == (None, (), 1)
    assert [(s.series, s.points, s.first, s.first_step) for s in run.series] == [
        ("loss", 0, None, None),
        ("lr", 2, None, 1),
    ]


def test_a_command_that_this_version_lacks_is_not_offered(sick: Diagnosis) -> None:
    later = replace(sick.verdicts[0], rule=replace(sick.verdicts[0].rule, verify=Text("gradforensics undo {run}")))
    assert later.verify() == ""


def test_baselines_are_runs_without_an_alarm_that_logged_the_loss(sick: Diagnosis, healthy: Diagnosis) -> None:
    other = replace(healthy, evidence=replace(healthy.evidence, name="no-loss", frames={}))
    runs = build([sick, other, healthy], []).runs
    assert [run.baselines for run in runs] == [("healthy",), (), ()]


def test_a_lone_run_has_no_baselines(report: Report) -> None:
    assert report.runs[0].baselines == ()


def test_a_log_without_any_series_says_so(sick: Diagnosis) -> None:
    bare = replace(sick.evidence, frames={}, sources=[Source("train.log", 9, None, "console")])
    (row,) = build([replace(sick, evidence=bare)], []).runs[0].series
    assert (row.series, row.points, row.first, row.source) == ("loss", 0, None, "train.log")
    silent = replace(bare, sources=[Source("model.pt", 9, None, "checkpoint (torch)")])
    assert build([replace(sick, evidence=silent)], []).runs[0].series == ()


def test_the_best_baselines_went_beyond_the_onset_and_came_to_their_end(sick: Diagnosis, healthy: Diagnosis) -> None:
    frames = {
        key: replace(stored, frame=stored.frame.with_columns(step=stored.frame["step"] * 10))
        for key, stored in healthy.evidence.frames.items()
    }
    killed = replace(healthy.evidence, name="a-killed", frames=frames, ending=Ending("killed"))
    longer = replace(healthy.evidence, name="b-longer", frames=frames)
    others = [replace(healthy, evidence=evidence) for evidence in (killed, longer)]
    assert build([healthy, sick, *others], []).runs[1].baselines == ("b-longer", "a-killed", "healthy")


def test_each_run_quotes_its_own_files(sick: Diagnosis) -> None:
    """Two runs may both have a log.jsonl; a line of one must not stand in the report on the other."""
    other = replace(sick, evidence=replace(sick.evidence, name="other"))
    quotes = [{("log.jsonl", 24): "loss 1.65 of the first"}, {("log.jsonl", 24): "loss 1.65 of the second"}]
    runs = build([sick, other], [], lines=quotes).runs
    assert [run.findings[0].hits[0].excerpt for run in runs] == ["loss 1.65 of the first", "loss 1.65 of the second"]
