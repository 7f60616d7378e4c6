"""The pieces of one run as its evidence: series, attempts, ranks, clocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import polars as pl

from gradforensics.evidence import clocks
from gradforensics.evidence.agreement import curve
from gradforensics.evidence.pieces import Group, Piece
from gradforensics.evidence.readings import Track
from gradforensics.tables import Evidence, Fact, Notice, SeriesFrame, SeriesKey

_MANY = 5  # files that one remark may be made on before it is counted instead


def join(evidence: Evidence, found: Group) -> None:
    """Store the series, events and facts of a run's pieces, and say why they are one run."""
    for piece in found.pieces:
        _name_rank(piece)
    heard = [p.reading.events for p in found.pieces if p.reading.events is not None]
    evidence.events = [e for part in heard for e in part] if heard else None
    evidence.environment = [fact for piece in found.pieces for fact in piece.reading.facts]
    for name, text in found.families.items():
        evidence.notices.append(Notice(name, None, text))
    _add_series(evidence, found)
    _align_clocks(evidence, found.pieces)


def thinned(notices: Sequence[Notice]) -> list[Notice]:
    """The notices, with one instead of many where the same is remarked on many whole files."""
    counts = Counter(n.text for n in notices if n.line is None)
    kept: list[Notice] = []
    for notice in notices:
        count = counts[notice.text] if notice.line is None else 1
        if count > _MANY:
            counts[notice.text] = -1
            kept.append(replace(notice, text=f"{notice.text} ({count} such files)"))
        elif count > 0:
            kept.append(notice)
    return kept


def _name_rank(piece: Piece) -> None:
    """Give everything in a file that is called after a rank or a host this rank, where its lines do not name one."""
    reading = piece.reading
    if piece.rank is not None:
        for track in reading.tracks:
            column = track.stored.frame["rank"]
            if not column.null_count():
                continue
            named = column.fill_null(piece.rank).cast(pl.UInt32)
            track.stored = replace(track.stored, frame=track.stored.frame.with_columns(named))
    if reading.events is not None and (piece.rank is not None or piece.host is not None):
        reading.events = [
            replace(e, rank=piece.rank if e.rank is None else e.rank, host=e.host or piece.host) for e in reading.events
        ]
    if reading.facts and (piece.rank, piece.host, piece.attempt) != (None, None, None):
        reading.facts = [
            replace(
                f,
                rank=piece.rank if f.rank is None else f.rank,
                host=f.host or piece.host,
                attempt=piece.attempt if f.attempt is None else f.attempt,
            )
            for f in reading.facts
        ]


# -- series ----------------------------------------------------------------------------------------------------------


def _add_series(evidence: Evidence, found: Group) -> None:
    """Store the series of a run's files; those that continue each other become one, older attempts first."""
    chains = found.chains
    states = [p for p in found.pieces if p.reader == "hf-trainer-state" and p.reading.tracks]
    if len(states) > 1:
        states.sort(key=lambda p: (p.reading.trail.last_step or 0, -len(PurePosixPath(p.file.name).parts)))
        chains = []
        _store_states(evidence, states)
    else:
        states = []
    for chain in chains:
        _store_chain(evidence, chain)
    if chains:
        _say_chains(evidence, chains)
    done = {id(p) for p in [*states, *(p for chain in chains for p in chain)]}
    for piece in found.pieces:
        if id(piece) not in done:
            for track in piece.reading.tracks:
                _store(evidence, track, piece.file.name, track.stored)


def _store(evidence: Evidence, track: Track, source: str, stored: SeriesFrame) -> None:
    evidence.frames[SeriesKey(evidence.name, track.phase, track.series, track.tag, source)] = stored


def _store_states(evidence: Evidence, states: Sequence[Piece]) -> None:
    """Trainer states of one run: the last is the most complete; an older one counts only where it tells otherwise."""
    main = states[-1]
    older: list[tuple[Piece, int]] = []
    for piece in states[:-1]:
        parted = _parts_at(piece, main)
        if parted is not None:
            older.append((piece, parted))
            text = f"differs from {main.file.name} from step {parted} on: an earlier attempt"
            evidence.notices.append(Notice(piece.file.name, None, text))
    cut = min((parted for _, parted in older), default=None)
    for track in main.reading.tracks:
        frame = track.stored.frame
        if cut is not None:
            numbered = frame.with_columns(pl.lit(len(older), pl.UInt16).alias("attempt"))
            earlier = [_lost_rows(piece, parted, track, number) for number, (piece, parted) in enumerate(older)]
            frame = pl.concat([frame.filter(pl.col("step") < cut), *earlier, numbered.filter(pl.col("step") >= cut)])
        _store(evidence, track, main.file.name, replace(track.stored, frame=frame))


def _lost_rows(piece: Piece, parted: int, track: Track, attempt: int) -> pl.DataFrame:
    """What an older state logged of a series from the step on at which it parts; its lines are of another file."""
    for other in piece.reading.tracks:
        if (other.phase, other.series, other.tag) == (track.phase, track.series, track.tag):
            rows = other.stored.frame.filter(pl.col("step") >= parted)
            return rows.with_columns(pl.lit(attempt, pl.UInt16).alias("attempt"), pl.lit(None, pl.UInt32).alias("line"))
    return track.stored.frame.clear()


def _parts_at(piece: Piece, main: Piece) -> int | None:
    """First step at which two states log different values of one series, or None where the shorter is a prefix."""
    first: int | None = None
    others = {(t.phase, t.series, t.tag): t.stored.frame for t in main.reading.tracks}
    for track in piece.reading.tracks:
        frame = others.get((track.phase, track.series, track.tag))
        if frame is None:
            continue
        both = track.stored.frame.join(frame, on="step", suffix="_main")
        apart = both.filter((pl.col("kind") != pl.col("kind_main")) | (pl.col("value") != pl.col("value_main")))
        if apart.height and (first is None or int(apart["step"].min()) < first):  # type: ignore[arg-type]
            first = int(apart["step"].min())  # type: ignore[arg-type]
    return first


def _main(chain: Sequence[Piece]) -> Piece:
    """The file under whose name a chain is stored: that with most points."""
    return max(chain, key=lambda p: p.points)


def _store_chain(evidence: Evidence, chain: Sequence[Piece]) -> None:
    """Files that continue each other as one series; lines stay known for the file with most points only."""
    main = _main(chain)
    merged: dict[tuple[Any, str, str], list[pl.DataFrame]] = {}
    kept: dict[tuple[Any, str, str], Track] = {}
    offset = 0
    for piece in chain:
        most = 0
        for track in piece.reading.tracks:
            frame = track.stored.frame.with_columns((pl.col("attempt") + offset).cast(pl.UInt16))
            most = max(most, int(track.stored.frame["attempt"].max() or 0))  # type: ignore[arg-type]  # a UInt16 column
            if piece is not main:
                frame = frame.with_columns(pl.lit(None, pl.UInt32).alias("line"))
            merged.setdefault((track.phase, track.series, track.tag), []).append(frame)
            kept[track.phase, track.series, track.tag] = track
        offset += most + 1
    for key, frames in merged.items():
        track = kept[key]
        _store(evidence, track, main.file.name, replace(track.stored, frame=pl.concat(frames)))


def _say_chains(evidence: Evidence, chains: Sequence[Sequence[Piece]]) -> None:
    """One notice for all chains of a run."""
    main = _main(chains[0])
    others = [p.file.name for p in chains[0] if p is not main]
    shown = ", ".join(others[:8]) + (f" and {len(others) - 8} more" if len(others) > 8 else "")
    text = f"continues or is continued by {shown}: read as attempts of one run"
    if len(chains) > 1:
        text += f"; so are the files of {len(chains) - 1} more ranks or loggers"
    evidence.notices.append(Notice(main.file.name, None, text))


# -- clocks ----------------------------------------------------------------------------------------------------------


def _align_clocks(evidence: Evidence, pieces: Iterable[Piece]) -> None:
    """Facts on how far the clocks of the ranks are apart; the times of events in the time of the lowest rank."""
    ranked: dict[int, Piece] = {}
    for piece in pieces:
        if piece.rank is not None and piece.is_series and piece.points > ranked.get(piece.rank, piece).points - 1:
            ranked[piece.rank] = piece
    if len(ranked) < 2:
        return
    read = {rank: times for rank, piece in sorted(ranked.items()) if (times := _times(piece)) is not None}
    found = clocks.offsets(read)
    for rank, offset in found.items():
        if rank == min(read):
            continue
        piece = ranked[rank]
        value = f"{offset.seconds:.3f}"
        fact = Fact("clock_offset_s", value, piece.file.name, rank=rank, host=piece.host)
        evidence.environment = [*(evidence.environment or []), fact]
    clear = {rank: offset.seconds for rank, offset in found.items() if offset.is_clear}
    if clear and evidence.events is not None:
        evidence.events = [
            replace(e, time=e.time - clear[e.rank]) if e.time is not None and e.rank in clear else e
            for e in evidence.events
        ]
        whose = "the clock of 1 rank is" if len(clear) == 1 else f"the clocks of {len(clear)} ranks are"
        worst = max(map(abs, clear.values()))
        text = f"{whose} off by up to {worst:.1f} s: events have the time of rank {min(read)}"
        evidence.notices.append(Notice(ranked[min(clear)].file.name, None, text))


def _times(piece: Piece) -> tuple[np.ndarray, np.ndarray] | None:
    """Steps and times of the series of a file that has most rows with a time, by its last attempt."""
    timed = [t for t in piece.reading.tracks if t.phase == "train" and t.stored.frame["time"].count() >= clocks.COMMON]
    if not timed:
        return None
    longest = curve(max(timed, key=lambda t: t.stored.frame["time"].count()))
    return longest.steps, longest.times
