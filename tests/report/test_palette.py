"""The colours of a report, as eyes with and without all three kinds of cones see them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from gradforensics.report.palette import DARK, LIGHT, LINES

# Simulations of complete colour blindness on linear RGB (Machado, Oliveira and Fernandes 2009, severity 1.0).
SIGHT = {
    "all cones": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
}
# Lines that may share a panel: neighbours of the list, and what the timeline draws together (loss and eval/loss).
NEIGHBOURS = [(i, i + 1) for i in range(LINES - 1)]
DISTANCE = 15.0  # CIE 1976; 2.3 is a difference that can just be noticed


def linear(colour: str) -> np.ndarray:
    """Linear RGB of "#rrggbb" or "#rgb"."""
    digits = colour.removeprefix("#")
    digits = "".join(2 * d for d in digits) if len(digits) == 3 else digits
    value = np.array([int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)])
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    """CIE L*a*b* (D65) of linear RGB."""
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    x, y, z = np.cbrt(np.clip(to_xyz @ np.clip(rgb, 0, 1) / [0.9505, 1.0, 1.089], 0.008856, None))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def contrast(one: str, other: str) -> float:
    """The contrast ratio of WCAG 2."""
    light = sorted(float(np.array([0.2126, 0.7152, 0.0722]) @ linear(c)) for c in (one, other))
    return (light[1] + 0.05) / (light[0] + 0.05)


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("sight", SIGHT)
def test_lines_that_may_share_a_panel_can_be_told_apart(colours: Mapping[str, str], sight: str) -> None:
    seen = [lab(SIGHT[sight] @ linear(colours[f"l{i}"])) for i in range(LINES)]
    distances = {(i, k): float(np.linalg.norm(seen[i] - seen[k])) for i, k in NEIGHBOURS}
    assert min(distances.values()) >= DISTANCE, distances


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_lines_and_marks_stand_out_from_the_paper(colours: Mapping[str, str]) -> None:
    drawn = [f"l{i}" for i in range(LINES)] + ["red", "green", "soft", "accent"]
    ratios = {name: contrast(colours[name], colours["paper"]) for name in drawn}
    assert min(ratios.values()) >= 3, ratios


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_text_can_be_read_on_everything_it_stands_on(colours: Mapping[str, str]) -> None:
    for text, ground in [
        *((t, g) for t in ("ink", "soft", "accent", "red") for g in ("page", "paper", "grey-wash")),
        *((c, f"{c}-wash") for c in ("red", "amber", "green")),
        ("paper", "red"),
        ("paper", "ink"),
        ("ink", "code"),
    ]:
        assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)


def test_both_themes_have_the_same_colours() -> None:
    assert set(LIGHT) == set(DARK)
