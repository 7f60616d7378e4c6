"""Numbers of charts as short attributes: what the script reads back for hover and zoom, and paths to one tenth."""

from __future__ import annotations

from itertools import groupby

import numpy as np


def packed_steps(steps: np.ndarray, segment: np.ndarray | None = None) -> str:
    """Ascending steps as differences, the first from 0: "5 5*3;20" is 5, 10, 15, 20 and, after a break, 40.

    segment: as of charts.Line; a point that begins a new stretch of the line has ";" in front, the first one nothing.
    """
    if not len(steps):
        return ""
    breaks = np.zeros(len(steps), dtype=bool) if segment is None else np.diff(segment, prepend=segment[0]) != 0
    told = []
    for (breaking, step), run in groupby(zip(breaks.tolist(), np.diff(steps, prepend=0).tolist(), strict=True)):
        count = sum(1 for _ in run)
        told.append(f"{';' if breaking else ' '}{step}" + (f"*{count}" if count > 1 else ""))
    return "".join(told)[1:]


def packed_values(values: np.ndarray) -> str:
    """Values, exact where they have up to nine digits or are those of a float32, else to nine digits."""
    with np.errstate(over="ignore"):
        single = values.astype(np.float32)
    pairs = zip(values.tolist(), single, (single == values).tolist(), strict=True)
    return " ".join(_shortest(value, one if exact else None) for value, one, exact in pairs)


def _shortest(value: float, single: np.float32 | None) -> str:
    plain = f"{value:.9g}"
    return plain if single is None else min(plain, str(single).removesuffix(".0"), key=len)


def relative_path(x: np.ndarray, y: np.ndarray, starts: np.ndarray) -> str:
    """The path through points, each rounded to a tenth and told as a difference; `starts`: where a stretch begins."""
    across = np.diff(np.rint(x * 10).astype(np.int64), prepend=0).tolist()
    down = np.diff(np.rint(y * 10).astype(np.int64), prepend=0).tolist()
    out = []
    for right, lower, new in zip(across, down, starts.tolist(), strict=True):
        first, second = _tenths(right), _tenths(lower)
        out.append(("m" if new else "" if first[0] == "-" else " ") + first)
        out.append(second if second[0] == "-" else f" {second}")
    return "".join(out)


def _tenths(value: int) -> str:
    whole, rest = divmod(abs(value), 10)
    sign = "-" if value < 0 else ""
    if not rest:
        return f"{sign}{whole}"
    return f"{sign}{whole or ''}.{rest}"
