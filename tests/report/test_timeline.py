"""The timeline of a run: which series, which window, what is marked."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from gradforensics.diagnosis.causes import Diagnosis, diagnose
from gradforensics.diagnosis.rules import load_rules
from gradforensics.diagnosis.vocabulary import Hit
from gradforensics.evidence.gather import gather
from gradforensics.report import svg
from gradforensics.report.charts import beside
from gradforensics.report.timeline import LANE_MARKS, TIMELINE_POINTS, timeline
from gradforensics.tables import Evidence

SAMPLES = Path(__file__).parents[2] / "sample_runs"


@cache
def judged(sample: str) -> Diagnosis:
    (evidence,) = gather([SAMPLES / sample / "run"])
    return diagnose(evidence, load_rules(examples=False))


def test_timeline_shows_the_known_series_in_order_with_onsets_and_attempts(sick: Diagnosis) -> None:
    (chart,) = timeline(sick.evidence, [v for v in sick.verdicts if v.outcome == "fired"], sick.primary)
    assert chart.names == ("loss", "eval/loss", "grad_norm", "lr")
    assert [(p.log, len(p.lines)) for p in chart.panels] == [(False, 2), (True, 1), (False, 1)]
    assert [(b.first, b.last, b.label, b.primary) for b in chart.bands] == [
        (115, 120, "GF05", True),
        (195, 200, "GF11", False),
    ]
    assert chart.attempts == (100,)
    (bad,) = chart.panels[0].bad
    assert (bad.first, bad.last, bad.count, bad.kinds) == (200, 300, 21, ("nan",))


def test_series_of_other_step_units_get_a_chart_of_their_own(maker: Any) -> None:
    evidence = Evidence("run")
    maker.series(evidence, "loss", [3.0, 2.0])
    maker.series(evidence, "loss", [3.0, 2.0], phase="eval", step_unit="epoch")
    assert [(c.unit, c.names) for c in timeline(evidence, [], None)] == [("step", ("loss",)), ("epoch", ("eval/loss",))]


def test_what_was_logged_at_one_step_is_drawn_only_where_a_finding_speaks_of_it(maker: Any) -> None:
    evidence = Evidence("run")
    maker.series(evidence, "loss", [3.0])
    fired = maker.fired(maker.rule("GF11"), [Hit(1, None, "loss")])
    assert timeline(evidence, [], None) == ()
    assert len(timeline(evidence, [fired], fired)) >= 1


def test_other_series_stand_in_where_none_of_the_known_ones_is_logged(maker: Any) -> None:
    evidence = Evidence("run")
    for name in ("reward", "kl", "entropy", "length", "more"):
        maker.series(evidence, name, [1.0, 2.0])
    (chart,) = timeline(evidence, [], None)
    assert chart.names == ("reward", "kl", "entropy", "length")


def test_eval_loss_that_would_flatten_the_loss_gets_a_panel_of_its_own(maker: Any) -> None:
    evidence = Evidence("run")
    maker.series(evidence, "loss", [0.06, 0.03, 0.03])
    maker.series(evidence, "loss", [4.9, 2.6, 2.5], phase="eval")
    (chart,) = timeline(evidence, [], None)
    assert [[line.name for line in p.lines] for p in chart.panels] == [["loss"], ["eval/loss"]]


def test_all_panels_are_shown_around_the_onset_too_with_the_values_that_hits_name(maker: Any) -> None:
    evidence = Evidence("run")
    maker.series(evidence, "loss", [1.0] * 500 + [9.0] * 500)
    maker.series(evidence, "lr", [0.1] * 1000)
    verdict = maker.fired(maker.rule("GF05"), [Hit(501, 500, "loss", value=9.0), Hit(502, 501, "lr", value=0.1)])
    whole, around = timeline(evidence, [verdict], verdict)
    assert (whole.kind, around.kind) == ("whole", "onset")
    assert around.names == whole.names == ("loss", "lr")
    steps = around.panels[1].lines[0].steps.tolist()
    assert (steps[0], steps[-1]) == (475, 528)  # 25 points before the last good step and behind the last hit
    assert [(m.series, m.step) for m in around.marks] == [("loss", 501), ("lr", 502)]
    assert whole.marks == ()


def test_a_zoom_that_would_show_the_whole_is_left_out(maker: Any) -> None:
    evidence = Evidence("run")
    maker.series(evidence, "loss", [1.0] * 20 + [9.0] * 20)
    verdict = maker.fired(maker.rule("GF05"), [Hit(21, 20, "loss", value=9.0)])
    assert [c.kind for c in timeline(evidence, [verdict], verdict)] == ["whole"]


def test_a_panel_without_a_point_around_the_onset_is_left_out_there(maker: Any) -> None:
    evidence = Evidence("run")
    maker.series(evidence, "loss", [1.0] * 500 + [9.0] * 500)
    maker.series(evidence, "lr", [1.0, 2.0], steps=[1, 1000])
    verdict = maker.fired(maker.rule("GF05"), [Hit(501, 500, "loss", value=9.0)])
    assert [c.names for c in timeline(evidence, [verdict], verdict)] == [("loss", "lr"), ("loss",)]


@pytest.mark.parametrize(
    ("sample", "panels"),
    [
        ("gf27-reserved-growth", [["loss"], ["grad_norm"], ["lr"], ["memory_allocated", "memory_reserved"]]),
        ("gf27-host-growth", [["loss"], ["grad_norm"], ["lr"], ["memory_host"]]),
        ("gf12-scaler-reset", [["loss"], ["grad_norm"], ["lr"], ["loss_scale"]]),
    ],
)
def test_memory_and_loss_scale_have_panels(sample: str, panels: list[list[str]]) -> None:
    (evidence,) = gather([SAMPLES / sample / "run"])
    chart, *_ = timeline(evidence, [], None)
    assert [[line.name for line in p.lines if line.attempt is None] for p in chart.panels] == panels


def test_checkpoints_are_marked_and_the_last_good_one_apart() -> None:
    (evidence,) = gather([SAMPLES / "gf12-counted-collapse" / "run"])
    table = evidence.table("checkpoints")
    assert table is not None
    path = table.sort("step")["path"][0]
    (lane,) = timeline(evidence, [], None, last_good=path)[0].lanes
    assert (lane.name, lane.steps, lane.total, lane.good) == ("checkpoints", (40, 90), 2, 40)


def test_evaluations_are_marked_at_the_steps_of_all_series_of_that_phase(maker: Any) -> None:
    evidence = Evidence("run")
    maker.series(evidence, "loss", [1.0] * 1000)
    maker.series(evidence, "loss", [1.0, 2.0], steps=[100, 200], phase="eval")
    maker.series(evidence, "accuracy", [1.0, 2.0], steps=[200, 300], phase="eval")
    maker.series(evidence, "f1", [1.0], steps=[4], phase="eval", step_unit="epoch")
    (lane,) = timeline(evidence, [], None)[0].lanes
    assert (lane.name, lane.steps, lane.total) == ("evaluations", (100, 200, 300), 3)


def test_of_very_many_evaluations_some_are_marked_and_all_are_counted(maker: Any) -> None:
    evidence = Evidence("run")
    maker.series(evidence, "loss", [1.0] * 5000, phase="eval")
    (lane,) = timeline(evidence, [], None)[0].lanes
    assert (len(lane.steps), lane.total) == (LANE_MARKS, 5000)
    assert (lane.steps[0], lane.steps[-1]) == (1, 5000)


def test_the_points_of_all_lines_together_are_bounded(maker: Any) -> None:
    evidence = Evidence("run")
    for name in ("loss", "grad_norm", "lr", "loss_scale", "memory_allocated", "memory_host"):
        maker.series(evidence, name, [float(i * 7919 % 1009) for i in range(20_000)])
    (chart,) = timeline(evidence, [], None)
    lines = [line for panel in chart.panels for line in panel.lines]
    assert len(lines) == 6
    assert TIMELINE_POINTS * 0.9 < sum(len(line.steps) for line in lines) <= TIMELINE_POINTS + 2 * len(lines)


@pytest.mark.parametrize(("sample", "onset"), [("gf11-located", 61), ("gf24-silent", 92)])
def test_an_onset_behind_the_last_logged_step_is_still_drawn(sample: str, onset: int) -> None:
    made = judged(sample)
    assert made.primary is not None
    for chart in timeline(made.evidence, [made.primary], made.primary):
        assert chart.reach == (onset,)
        assert svg.span_of(chart)[1] == onset
        assert [band.last for band in chart.bands] == [onset]


def test_a_checkpoint_behind_the_last_logged_step_is_marked() -> None:
    (chart, *_) = timeline(judged("gf11-located").evidence, [], None)
    assert [lane.steps for lane in chart.lanes] == [(60, 61)]


def test_what_lies_far_outside_of_the_record_does_not_stretch_the_axis() -> None:
    assert beside((100, 200), [None, 89, 90, 100, 150, 210, 211]) == (90, 210)


def test_a_run_without_an_alarm_marks_the_first_finding_and_shows_its_series() -> None:
    made = judged("gf42-drift")
    fired = [v for v in made.verdicts if v.outcome == "fired"]
    assert made.primary is None
    (chart,) = timeline(made.evidence, fired, None)
    assert chart.names[-1] == "step_time"
    assert [(band.label, band.last) for band in chart.bands] == [("GF42", 58)]
