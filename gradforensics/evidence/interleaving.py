"""A file that several processes wrote into at once: their rows are parted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gradforensics.evidence.agreement import agreed, curve
from gradforensics.evidence.log_table import writers
from gradforensics.evidence.readings import Reading, Track


def parted(reading: Reading) -> list[Reading]:
    """The reading of every writer, the first with all that is no series; those that repeat the first are left out.

    The first reading also gets a notice about what became of the others.
    """
    known = [t for t in reading.tracks if t.phase == "train" and t.stored.step_unit != "row"]
    main = max(known, key=lambda t: t.stored.frame.height, default=None)
    if main is None or not _goes_back(main):
        return [reading]
    frame = main.stored.frame
    ids = writers(frame["step"].to_numpy())
    if ids is None or frame["line"].null_count():
        return [reading]
    lines = frame["line"].to_numpy()
    parts = [
        [part for track in reading.tracks if (part := _of_writer(track, lines, ids, number)) is not None]
        for number in range(int(ids.max()) + 1)
    ]
    own = [tracks for tracks in parts[1:] if not _repeats(tracks, parts[0])]
    left_out = len(parts) - 1 - len(own)
    said = [
        f"{left_out} wrote the same values and are left out"
        if left_out > 1
        else "one wrote the same values and is left out"
    ] * bool(left_out)
    said += ["the rows of every other one are a run of their own"] * bool(own)
    reading.notices.append((int(lines[np.argmax(ids > 0)]), f"of the writers of this file {', '.join(said)}"))
    reading.tracks = parts[0]
    return [reading, *(Reading(tracks=tracks, columns=reading.columns) for tracks in own)]


def _goes_back(track: Track) -> bool:
    """Whether the steps of one attempt of one process go back."""
    frame = track.stored.frame
    if frame["step"].is_sorted() or frame["step"].null_count() or frame["rank"].null_count() < frame.height:
        return False
    back = np.diff(frame["step"].to_numpy()) < 0
    return bool((back & (np.diff(frame["attempt"].to_numpy().astype(np.int64)) == 0)).any())


def _of_writer(track: Track, lines: np.ndarray, ids: np.ndarray, number: int) -> Track | None:
    """The rows of a track that one writer wrote: on its lines, or behind them."""
    frame = track.stored.frame
    own = frame["line"].fill_null(0).to_numpy()
    places = np.maximum(np.searchsorted(lines, own, side="right") - 1, 0)
    mask = ids[places] == number
    return replace(track, stored=replace(track.stored, frame=frame.filter(mask))) if mask.any() else None


def _repeats(tracks: list[Track], first: list[Track]) -> bool:
    """Whether a writer wrote the values of another one again."""
    others = {(t.phase, t.series, t.tag): t for t in first}
    pairs = [(t, others[t.phase, t.series, t.tag]) for t in tracks if (t.phase, t.series, t.tag) in others]
    return bool(pairs) and all(agreed(curve(a), curve(b)) for a, b in pairs)
