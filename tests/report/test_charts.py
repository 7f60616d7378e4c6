"""What the charts show, and that drawing survives every kind of series."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from typing import Any

import numpy as np
import pytest

from gradforensics.diagnosis.causes import Diagnosis
from gradforensics.diagnosis.vocabulary import Hit
from gradforensics.report import svg
from gradforensics.report.charts import BAD_RUNS, Chart, decimate, redone, timeline, zooms
from gradforensics.report.words import Words
from gradforensics.tables import Evidence, SeriesFrame, SeriesKey, series_frame


def draw(chart: Chart) -> ET.Element:
    return ET.fromstring(svg.draw(chart, Words("en"), "c1"))


@pytest.mark.parametrize("n", [0, 1, 2, 799, 800, 801, 1600, 12_345, 100_003])
def test_decimation_keeps_ends_and_extremes(n: int) -> None:
    values = np.random.default_rng(n).standard_normal(n)
    kept = decimate(values, 800)
    assert len(kept) <= 802
    assert (np.diff(kept) > 0).all()
    if n:
        assert {0, n - 1, int(values.argmin()), int(values.argmax())} <= set(kept.tolist())


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


def test_other_series_stand_in_where_none_of_the_known_ones_is_logged(maker: Any) -> None:
    evidence = Evidence("run")
    for name in ("reward", "kl", "entropy", "length", "more"):
        maker.series(evidence, name, [1.0, 2.0])
    (chart,) = timeline(evidence, [], None)
    assert chart.names == ("reward", "kl", "entropy", "length")


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


@pytest.mark.parametrize(
    "values",
    [
        [],
        [2.5],
        [math.nan],
        [None, None],
        [math.nan, math.inf, -math.inf] * 30,
        [1.0, math.nan] * 50,
        [0.0] * 5,
        [-3.0, -3.0],
        [1e-300, 1e300],
        [0.0] + [10.0**k for k in range(-5, 8)],
        [1e308, -1e308],
        [5e-324, 1.0],
    ],
    ids=str,
)
def test_every_series_can_be_drawn(maker: Any, values: list[float | None]) -> None:
    evidence = Evidence("run")
    maker.series(evidence, "loss", values)
    for chart in timeline(evidence, [], None):
        root = draw(chart)
        assert "nan" not in ET.tostring(root, encoding="unicode").replace("NaN", "").lower().replace("nan ×", "")
        assert root.find("{http://www.w3.org/2000/svg}title") is not None


def test_nonfinite_stretches_are_bounded(maker: Any) -> None:
    evidence = Evidence("run")
    maker.series(evidence, "loss", [1.0, math.nan] * 20_000)
    (chart,) = timeline(evidence, [], None)
    assert len(chart.panels[0].bad) == BAD_RUNS
    assert sum(b.count for b in chart.panels[0].bad) == 20_000
    assert len(svg.draw(chart, Words("en"), "c")) < 60_000


def test_marks_and_bands_outside_the_chart_are_not_drawn(sick: Diagnosis) -> None:
    (chart, *_) = zooms(sick.evidence, sick.verdicts[0])
    rings = draw(chart).findall("{http://www.w3.org/2000/svg}circle")
    assert len(rings) == 2


@pytest.mark.parametrize(
    ("low", "high", "labels"),
    [
        (0, 1, ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
        (1.0, 1.06, ["1.00", "1.02", "1.04", "1.06"]),
        (0, 3e-4, ["0", "1e-4", "2e-4", "3e-4"]),
        (5e-5, 1.5e-4, ["0.6e-4", "0.8e-4", "1.0e-4", "1.2e-4", "1.4e-4"]),
        (0, 5e6, ["0", "1e6", "2e6", "3e6", "4e6", "5e6"]),
        (0, 40_000, ["0", "10,000", "20,000", "30,000", "40,000"]),
    ],
)
def test_tick_labels(low: float, high: float, labels: list[str]) -> None:
    assert svg.tick_labels(svg.ticks(low, high, 5 if labels[0] != "1.00" else 3)) == labels


def test_step_axis_has_whole_ticks() -> None:
    assert svg.ticks(1, 4, 8, whole=True) == [1, 2, 3, 4]


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
    draw(chart)


def test_eval_loss_that_would_flatten_the_loss_gets_a_panel_of_its_own(maker: Any) -> None:
    evidence = Evidence("run")
    maker.series(evidence, "loss", [0.06, 0.03, 0.03])
    maker.series(evidence, "loss", [4.9, 2.6, 2.5], phase="eval")
    (chart,) = timeline(evidence, [], None)
    assert [[line.name for line in p.lines] for p in chart.panels] == [["loss"], ["eval/loss"]]


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
