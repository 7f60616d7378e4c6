"""The last values of a run: one point per number, under its own name, as a best or a last value is none of a curve."""

from __future__ import annotations

from collections.abc import Mapping

from gradforensics.evidence.readings import Track
from gradforensics.evidence.rows import RowLog


def points(
    values: Mapping[str, float],
    mapping: Mapping[str, str],
    *,
    step: int | None = None,
    time: float | None = None,
    lines: Mapping[str, int] | None = None,
) -> list[Track]:
    """A track of one point for every value. mapping: the user's --map; lines: where the values stand."""
    if not values:
        return []
    log = RowLog(mapping, unit="row")
    log.add(0, values, step=step, time=time, lines=lines)
    tracks = log.finish()
    for track in tracks:
        if track.tag.strip() not in mapping:
            track.series = track.tag
    return tracks
