"""What the charts show."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from gradforensics.diagnosis.vocabulary import Hit
from gradforensics.report.charts import decimate, line_of, redone, zooms
from gradforensics.report.timeline import timeline
from gradforensics.tables import Evidence, SeriesFrame, SeriesKey, series_frame


@pytest.mark.parametrize("n", [0, 1, 2, 799, 800, 801, 1600, 12_345, 100_003])
def test_decimation_keeps_ends_and_extremes(n: int) -> None:
    values = np.random.default_rng(n).standard_normal(n)
    kept = decimate(np.arange(n), values, 800)
    assert len(kept) <= 802
    assert (np.diff(kept) > 0).all()
    if n:
        assert {0, n - 1, int(values.argmin()), int(values.argmax())} <= set(kept.tolist())


def test_zoom_lies_around_the_onset_and_marks_the_hits(maker: Any) -> None:
    evidence = Evidence("run")
    maker.series(evidence, "loss", [1.0] * 500 + [9.0] * 500)
    verdict = maker.fired(
        maker.rule("GF05"),
        [Hit(501, 500, "loss", "loss", 9.0), Hit(502, 501, "loss", value=math.nan), Hit(7, series="gone")],
    )
    (chart,) = zooms(evidence, verdict)
    line = chart.panels[0].lines[0]
    assert line.steps[0] == 475
    assert line.steps[-1] < 540
    assert [(m.step, m.value) for m in chart.marks] == [(501, 9.0)]


def test_zoom_reads_the_series_of_the_phase_that_the_hit_names(maker: Any) -> None:
    evidence = Evidence("run")
    maker.series(evidence, "loss", [1.0, 2.0, 3.0])
    maker.series(evidence, "loss", [4.0, 5.0], phase="eval")
    (chart,) = zooms(evidence, maker.fired(maker.rule("GF20"), [Hit(2, 1, "eval/loss", value=5.0)]))
    assert chart.names == ("eval/loss",)
    maker.series(evidence, "Loss/loss", [7.0, 8.0])
    (chart,) = zooms(evidence, maker.fired(maker.rule("GF20"), [Hit(2, 1, "Loss/loss")]))
    assert chart.names == ("Loss/loss",)


def test_points_that_a_later_attempt_redid_are_shown_too(maker: Any) -> None:
    evidence = Evidence("run")
    columns = {"steps": [1, 2, 3, 4, 2, 3, 4, 5], "attempt": [0, 0, 0, 0, 1, 1, 1, 1]}
    maker.series(evidence, "loss", [5.0, 6.0, math.nan, math.nan, 4.0, 3.0, 2.0, 1.0], **columns)
    (chart,) = timeline(evidence, [], None)
    (panel,) = chart.panels
    assert [(line.attempt, line.steps.tolist(), line.values.tolist()) for line in panel.lines] == [
        (0, [2], [6.0]),
        (None, [1, 2, 3, 4, 5], [5.0, 4.0, 3.0, 2.0, 1.0]),
    ]
    assert [(b.first, b.last, b.count) for b in panel.bad] == [(3, 4, 2)]
    assert chart.attempts == (2,)


def test_an_attempt_that_ends_before_the_one_it_superseded() -> None:
    """Restarted, then died sooner: what ran beyond the restart is drawn as lost, and nothing breaks."""
    columns = {"attempt": [0] * 6 + [1] * 2, "step": [1, 2, 3, 4, 5, 6, 1, 2]}
    frame = series_frame(columns, [3.0, 2.9, 2.8, 2.7, 2.6, 2.5, 3.1, 3.0])
    evidence = Evidence("run", frames={SeriesKey("run", "train", "loss", "loss", "a"): SeriesFrame(frame)})
    whole = evidence.series("loss")
    assert whole is not None
    assert whole.steps.tolist() == [1, 2]
    ((attempt, lost),) = redone(evidence, whole)
    assert (attempt, lost.steps.tolist()) == (0, [1, 2, 3, 4, 5, 6])


def test_decimation_keeps_every_point_where_a_run_logged_seldom() -> None:
    """A dense stretch, then few points: equal numbers of points would leave the few out."""
    steps = np.concatenate([np.arange(50_000), np.arange(50_000, 1_000_000, 19_000)])
    kept = decimate(steps, np.zeros(len(steps)), 800)
    assert len(kept) <= 802
    assert set(range(50_001, len(steps))) <= set(kept.tolist())


def test_every_column_of_a_decimated_line_keeps_its_minimum_and_maximum() -> None:
    values = np.random.default_rng(3).standard_normal(100_000)
    kept = decimate(np.arange(100_000), values, 200)
    for column in range(100):
        inside = slice(column * 1000, (column + 1) * 1000)
        shown = values[kept[(kept >= inside.start) & (kept < inside.stop)]]
        assert (shown.min(), shown.max()) == (values[inside].min(), values[inside].max())


def test_a_line_tells_what_it_was_before_it_was_decimated(maker: Any) -> None:
    evidence = Evidence("run")
    maker.series(evidence, "loss", [3.0, 2.0, math.nan, *[1.0] * 997, 9.0])
    series = evidence.series("loss")
    assert series is not None
    line = line_of(series, 20, onset=3)
    assert len(line.steps) < 30
    assert line.extent is not None
    assert (line.extent.points, line.extent.nonfinite) == (1000, 1)
    assert (line.extent.first, line.extent.last) == ((1, 3.0), (1001, 9.0))
    assert (line.extent.low, line.extent.high) == ((4, 1.0), (1001, 9.0))
    assert line.onset is not None
    assert line.onset.step == 3
    assert math.isnan(line.onset.value)


def test_the_onset_of_a_case_is_marked_on_axes_of_its_own_unit_only(maker: Any) -> None:
    evidence = Evidence("run")
    maker.series(evidence, "loss", [3.0, 2.0, 4.0, 5.0])
    maker.series(evidence, "accuracy", [0.3, 0.2, 0.1], phase="eval", step_unit="epoch")
    verdict = maker.fired(maker.rule("GF20"), [Hit(3, 2, "loss"), Hit(2, 1, "eval/accuracy")])
    loss, accuracy = zooms(evidence, verdict)
    assert (len(loss.bands), len(accuracy.bands)) == (1, 0)
