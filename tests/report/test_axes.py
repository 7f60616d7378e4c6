"""Axes and their ticks."""

from __future__ import annotations

import pytest

from gradforensics.report import axes


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
    assert axes.tick_labels(axes.ticks(low, high, 5 if labels[0] != "1.00" else 3)) == labels


def test_step_axis_has_whole_ticks() -> None:
    assert axes.ticks(1, 4, 8, whole=True) == [1, 2, 3, 4]
