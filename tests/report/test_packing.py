"""Packed numbers of charts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradforensics.report.packing import packed_steps, packed_values, relative_path
from tests.report.packed import points_of_path, unpack


@pytest.mark.parametrize(
    ("steps", "segment", "text"),
    [
        ([], None, ""),
        ([7], None, "7"),
        ([5, 10, 15, 20, 40], [0, 0, 0, 0, 1], "5*4;20"),
        ([0, 1, 2, 12], None, "0 1*2 10"),
        ([1, 3, 5], [0, 1, 2], "1;2*2"),
        ([3, 4], [9, 9], "3 1"),  # the first point begins a line whatever came before it
    ],
)
def test_packed_steps(steps: list[int], segment: list[int] | None, text: str) -> None:
    assert packed_steps(np.array(steps, dtype=np.int64), None if segment is None else np.array(segment)) == text


@given(
    st.sets(st.integers(-(2**53), 2**53), min_size=1, max_size=30), st.lists(st.booleans(), min_size=30, max_size=30)
)
def test_steps_and_breaks_survive_packing(steps: set[int], cuts: list[bool]) -> None:
    ordered = np.array(sorted(steps), dtype=np.int64)
    segment = np.cumsum(cuts[: len(ordered)])
    found, broken = unpack(packed_steps(ordered, segment))
    assert found == ordered.tolist()
    assert broken == [True, *(np.diff(segment) != 0).tolist()]


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_values_that_fit_a_float32_are_exact(value: float) -> None:
    assert np.float32(packed_values(np.array([value]))) == np.float32(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [(2.0, "2"), (2.345678, "2.345678"), (float(np.float32(0.1)), "0.1"), (1e300, "1e+300"), (1 / 3, "0.333333333")],
)
def test_packed_values_are_short(value: float, text: str) -> None:
    assert packed_values(np.array([value])) == text


@given(st.lists(st.tuples(st.floats(0, 900), st.floats(-5000, 5000)), min_size=1, max_size=40))
def test_roundings_of_a_path_do_not_add_up(points: list[tuple[float, float]]) -> None:
    given_points = np.array(points)
    starts = np.zeros(len(points), dtype=bool)
    starts[0] = True
    found, _ = points_of_path(relative_path(given_points[:, 0], given_points[:, 1], starts))
    assert np.abs(found - given_points).max() <= 0.0501
