"""How fine the numbers of a source are: writers round before they write, and a 0.0 may then hide a small value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gradforensics.evidence import names
from gradforensics.evidence.readings import Track

_MOST_DECIMALS = 7  # more are as good as exact
_SAMPLE = 1024  # values that are looked at before all the others
_DISTINCT = 20  # so many different values do not share few decimals by chance


def own_resolution(values: np.ndarray) -> float | None:
    """10**-k where all fractional values are multiples of it for one k, 0 where they are not, None for too few values.

    values: float64 (n,), finite.
    """
    for part in (values[:_SAMPLE], values):  # the first values tell it of nearly all series
        if len(np.unique(part)) >= _DISTINCT:
            return fits(values)
    return None


def fits(values: np.ndarray) -> float | None:
    """The coarsest 10**-k, k from 1 to 7, that all fractional values are multiples of; 0 for none, None without one."""
    fractional = values[values != np.rint(values)]
    if not len(fractional):
        return None
    for decimals in range(1, _MOST_DECIMALS + 1):
        scale = 10.0**decimals
        if all(bool((np.rint(part * scale) / scale == part).all()) for part in (fractional[:_SAMPLE], fractional)):
            return float(1.0 / scale)
    return 0.0


def settled(tracks: Sequence[Track], *, by_the_others: bool = True) -> list[Track]:
    """The tracks of one source with their resolution, where the numbers tell it.

    A series of too few different values (a learning rate that is 0.0 throughout) is judged by the other metrics of the
    source, with `by_the_others`: if all of them were rounded, so was it.
    """
    finite = [t.stored.frame["value"].drop_nulls().to_numpy() for t in tracks]
    own = [own_resolution(values) for values in finite]
    told = [r for r, t in zip(own, tracks, strict=True) if r is not None and names.is_metric(t.tag)]
    rounded = sorted({r for r in told if r > 0}, reverse=True) if by_the_others and told and min(told) > 0 else []
    return [
        track if track.stored.resolution or not len(values) else _with(track, _resolution(values, mine, rounded))
        for track, values, mine in zip(tracks, finite, own, strict=True)
    ]


def _resolution(values: np.ndarray, own: float | None, others: Sequence[float]) -> float:
    if own is not None:
        return own
    needed = fits(values)
    if needed is None:
        return others[0] if others and not values.any() else 0.0
    return next((r for r in others if needed > 0 and r <= needed * 1.001), 0.0)


def _with(track: Track, resolution: float) -> Track:
    return Track(track.phase, track.series, track.tag, replace(track.stored, resolution=resolution))
