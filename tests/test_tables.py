"""Evidence: which source is picked, what attempts mean, and that no NaN survives among the values."""

import math

import numpy as np
import polars as pl
import pytest

from gradforensics.tables import (
    SERIES_SCHEMA,
    TABLES,
    Event,
    Evidence,
    SeriesFrame,
    SeriesKey,
    Setting,
    series_frame,
)


def evidence(*frames):
    made = Evidence("run")
    for phase, series, tag, source, columns, values in frames:
        made.frames[SeriesKey("run", phase, series, tag, source)] = SeriesFrame(series_frame(columns, values))
    return made


def test_a_frame_has_the_canonical_columns_and_no_nan_among_its_values():
    frame = series_frame({"step": [1, 2, 3, 4, 5]}, [1.0, float("nan"), float("inf"), float("-inf"), None])
    assert dict(frame.schema) == SERIES_SCHEMA
    assert frame["kind"].to_list() == ["finite", "nan", "posinf", "neginf", "missing"]
    assert frame["value"].to_list() == [1.0, None, None, None, None]
    assert frame.filter(pl.col("value") > 5).height == 0  # NaN > 5 is true in polars


def test_columns_of_another_length_are_refused():
    with pytest.raises((ValueError, pl.exceptions.ShapeError)):
        series_frame({"step": [1, 2]}, [1.0])


def test_one_source_is_picked_most_points_then_most_digits():
    steps = {"step": [1, 2, 3]}
    made = evidence(
        ("train", "loss", "loss", "short", {"step": [1]}, [9.0]),
        ("train", "loss", "loss", "rounded", steps, [1.1, 1.2, 1.3]),
        ("train", "loss", "loss", "exact", steps, [1.1234, 1.2234, 1.3234]),
        ("eval", "loss", "eval_loss", "exact", {"step": [3]}, [2.0]),
    )
    assert made.series("loss").source == "exact"
    assert made.series("loss", "eval").values.tolist() == [2.0]
    assert made.series("lr") is None


def test_rows_are_sorted_and_the_last_line_of_a_step_wins():
    made = evidence(("train", "loss", "loss", "a", {"step": [3, 1, 2, 2]}, [3.0, 1.0, 7.0, 2.0]))
    series = made.series("loss")
    assert series.steps.tolist() == [1, 2, 3]
    assert series.values.tolist() == [1.0, 2.0, 3.0]
    assert series.cadence == 1.0


def test_a_later_attempt_supersedes_what_ran_beyond_its_start():
    columns = {"attempt": [0, 0, 0, 0, 1, 1], "step": [1, 2, 3, 4, 3, 5]}
    made = evidence(("train", "loss", "loss", "a", columns, [1.0, 2.0, 3.0, 4.0, 30.0, 50.0]))
    assert made.series("loss").steps.tolist() == [1, 2, 3, 5]
    assert made.series("loss").values.tolist() == [1.0, 2.0, 30.0, 50.0]
    first, second = made.attempts("loss")
    assert (first.steps.tolist(), second.steps.tolist()) == ([1, 2, 3, 4], [3, 5])


def test_ranks_are_apart_and_the_lowest_stands_for_all():
    columns = {"rank": [1, 1, 0, 0], "step": [1, 2, 1, 2]}
    made = evidence(("train", "loss", "loss", "a", columns, [10.0, 20.0, 1.0, 2.0]))
    assert made.ranks("loss") == [0, 1]
    assert made.series("loss").values.tolist() == [1.0, 2.0]
    assert made.series("loss", rank=1).values.tolist() == [10.0, 20.0]


def test_missing_points_are_no_points_and_bad_ones_are_marked():
    made = evidence(("train", "loss", "loss", "a", {"step": [1, 2, 3]}, [1.0, None, math.nan]))
    series = made.series("loss")
    assert series.steps.tolist() == [1, 3]
    assert series.bad.tolist() == [False, True]
    assert np.isnan(series.values[1])
    assert series.good.steps.tolist() == [1]


def test_settings_user_beats_runtime_beats_config():
    files = [Setting("lr", "lr", 1, "a"), Setting("lr", "lr", 2, "a", origin="runtime")]
    made = Evidence("run", settings=files)
    assert made.setting("lr") == 2
    made.settings = [*files, Setting("lr", "--set", "3", "--set", origin="user")]
    assert (made.setting("lr"), made.number("lr")) == ("3", 3.0)
    for value in (True, "x", float("inf"), None):
        made.settings = [Setting("k", "k", value, "a")]
        assert made.number("k") is None


def test_tables_absent_is_not_empty():
    made = Evidence("run")
    assert made.table("events") is None
    assert made.table("settings") is None
    assert made.table("tensors") is None
    made.events, made.settings = [], []
    empty = made.table("events")
    assert empty is not None
    assert empty.height == 0
    made = Evidence("run", settings=[Setting("lr", "lr", 0.1, "a")])
    made.events = [Event("oom", "out of memory", "log", 3, data={"bytes": 5})]
    for name in ("events", "settings"):
        table = made.table(name)
        assert table is not None
        assert dict(table.schema) == TABLES[name]
    assert made.table("events")["data"].to_list() == ['{"bytes": 5}']  # type: ignore[index]  # seen not None above


def test_steps_of_a_run_leave_row_numbers_out():
    made = evidence(("train", "loss", "loss", "a", {"step": [10, 20]}, [1.0, 2.0]))
    rows = SeriesFrame(series_frame({"step": [1, 999]}, [1.0, 2.0]), step_unit="row")
    made.frames[SeriesKey("run", "train", "x", "x", "b")] = rows
    assert made.steps == (10, 20)
