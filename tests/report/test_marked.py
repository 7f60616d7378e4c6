"""Which part of a quoted line is the value that a hit names."""

from __future__ import annotations

import math

import pytest

from gradforensics.report.marked import spans, window


def parts(text: str, value: float | None, *names: str, **facts: str | float | None) -> list[str]:
    return [text[a:b] for a, b in spans(text, value, names, facts)]


@pytest.mark.parametrize(
    ("text", "value", "marked"),
    [
        ('{"step": 54, "loss": 3.882623036702474, "lr": 0.26}', 3.882623036702474, ["3.882623036702474"]),
        ("step: 26 loss: 2.68142 grad_norm: 0.315074", 2.68142, ["2.68142"]),
        ("step 3 loss 3 lr 3", 3.0, ["3"]),
        ("loss: 3.88 (was 2.93)", 3.8826, ["3.88"]),
        ("step 100 | loss nan | lr 1e-4", math.nan, ["nan"]),
        ('"loss": Infinity,', math.inf, ["Infinity"]),
        ("loss -inf", -math.inf, ["-inf"]),
        ("memory 204,631,072 bytes", 204631072.0, ["204,631,072"]),
        ("lr=1.5e-05", 1.5e-5, ["1.5e-05"]),
        ("step 4: nothing of it", 4.04, []),
        ("v4.04b run", 4.04, []),
        ("", 1.0, []),
    ],
)  # fmt: skip
def test_the_value_is_found_as_it_was_written(text: str, value: float, marked: list[str]) -> None:
    assert parts(text, value, "loss") == marked


def test_of_equal_numbers_the_one_behind_its_name_is_meant() -> None:
    text = "epoch 12 lr 12.0 loss 12.0"
    assert spans(text, 12.0, ("loss",)) == [(22, 26)]


def test_without_a_value_the_facts_are_marked_once_each_and_apart() -> None:
    text = "node01 kernel: NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus on node01"
    assert parts(text, None, device="0000:3b:00", host="node01", count=1, nothing=None) == ["node01", "0000:3b:00"]
    assert parts(text, None, message=text) == []


def test_a_long_line_is_shown_around_what_is_marked() -> None:
    text = "x" * 1000 + " loss 3.25 " + "y" * 1000
    shown = window(text, spans(text, 3.25, ("loss",)), 100)
    assert len(shown) == 102
    assert "loss 3.25" in shown
    assert (shown[0], shown[-1]) == ("…", "…")
    assert window("short", [], 100) == "short"
    assert window("z" * 200, [], 100) == "z" * 100 + "…"
