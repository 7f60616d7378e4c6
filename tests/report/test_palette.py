"""Contrast of the colours that stand on each other, in both themes, by the formula of WCAG 2.1."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from gradforensics.report.palette import DARK, LIGHT, LINES

_TEXT = 4.5
_SHAPE = 3.0
# (ink, what it stands on)
_PAIRS = (
    *((ink, ground) for ink in ("ink", "soft", "accent") for ground in ("page", "paper", "grey-wash")),
    ("ink", "code"), ("soft", "code"), ("red", "paper"), ("red", "red-wash"), ("paper", "red"), ("paper", "ink"),
    ("amber", "paper"), ("amber", "amber-wash"), ("green", "paper"), ("green", "green-wash"),
    ("ink", "red-wash"), ("soft", "red-wash"), ("ink", "amber-wash"), ("ink", "green-wash"),
)  # fmt: skip


def luminance(colour: str) -> float:
    digits = colour.removeprefix("#")
    digits = "".join(2 * d for d in digits) if len(digits) == 3 else digits
    parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    bright, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_text_can_be_read_on_what_it_stands_on(colours: Mapping[str, str]) -> None:
    weak = {f"{a} on {b}": round(contrast(colours[a], colours[b]), 2) for a, b in _PAIRS}
    assert {pair: ratio for pair, ratio in weak.items() if ratio < _TEXT} == {}


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_lines_of_charts_stand_out_from_the_paper(colours: Mapping[str, str]) -> None:
    assert all(contrast(colours[f"l{i}"], colours["paper"]) >= _SHAPE for i in range(LINES))


def test_the_formula_knows_black_on_white() -> None:
    assert contrast("#000", "#ffffff") == pytest.approx(21)


def test_both_themes_have_the_same_colours() -> None:
    assert list(LIGHT) == list(DARK)
