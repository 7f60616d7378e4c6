"""What the script of the page makes of the packed numbers of a chart, told once more and slowly."""

from __future__ import annotations

import re

import numpy as np


def unpack(text: str) -> tuple[list[int], list[bool]]:
    """Steps, and whether the line breaks in front of each."""
    steps: list[int] = []
    cuts: list[bool] = []
    for sign, difference, times in re.findall(r"(^|[ ;])(-?\d+)(?:\*(\d+))?", text):
        for _ in range(int(times or 1)):
            cuts.append(sign == ";" or not steps)
            steps.append((steps[-1] if steps else 0) + int(difference))
    return steps, cuts


def points_of_path(d: str) -> tuple[np.ndarray, np.ndarray]:
    """The points (float, (n, 2)) of a path of relative moves and lines, and where it moves (bool, (n,))."""
    moves: list[bool] = []
    points: list[float] = []
    for part in d.split("m")[1:]:
        numbers = [float(n) for n in re.findall(r"-?[\d.]+", part)]
        moves += [True] + [False] * (len(numbers) // 2 - 1)
        points += numbers
    return np.cumsum(np.array(points).reshape(-1, 2), axis=0), np.array(moves)
