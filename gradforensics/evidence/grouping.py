"""Which files belong to one run: by folder, by name, and by whether their series agree, continue or contradict."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import PurePosixPath
from typing import Literal

import numpy as np
import polars as pl

from gradforensics.evidence import families, folders
from gradforensics.evidence.agreement import Curve, agreed, same_rows, tells_the_same
from gradforensics.evidence.families import Family
from gradforensics.evidence.mlflow import stores
from gradforensics.evidence.pieces import TENSORBOARD, Group, Piece, Places
from gradforensics.evidence.readings import Trail
from gradforensics.evidence.screening import Screen
from gradforensics.own_files import is_step_log
from gradforensics.tables import Phase

_ANCHORS = frozenset({"hf-trainer-state", "llamafactory-log", "json-results"})
_CONSOLE = "console"
_MACHINES = frozenset({"kernel-log", "nvidia-smi", "stack-dump"})
_MARKS = re.compile(r"[._\s-]+")
_OF_THE_NODE = frozenset({"environment", "packages"})  # readers of what all runs of a folder had in common
_FEW = 16  # files of a folder that are compared pair by pair
_NAMES = 8  # of the files of a run, those that the name of another one is compared with


@dataclass(frozen=True, slots=True)
class _Relation:
    """How the series of one file stand to those of another; reason: in words, "" for what needs none."""

    kind: Literal["apart", "same", "follows", "other"]
    reason: str = ""


_APART, _SAME, _OTHER = _Relation("apart"), _Relation("same"), _Relation("other")


def group(pieces: list[Piece]) -> list[Group]:
    """The runs of one input, each with the files that belong to it."""
    recorded, pieces = stores.taken(pieces)
    led = {id(family.lead): family for family in families.settle(pieces)}
    folders.fold(pieces)
    carried = {id(p) for family in led.values() for p in family.pieces} - led.keys()
    groups: list[Group] = []
    by_folder: dict[PurePosixPath, list[Piece]] = {}
    for piece in pieces:
        if piece.is_series and id(piece) not in carried:
            by_folder.setdefault(piece.folder, []).append(piece)
    for folder in sorted(by_folder, key=str):
        groups += _clusters(folder, by_folder[folder])
    places = Places(_join_consoles([*recorded, *groups]))
    anchored = {id(g) for g in places.groups}
    loose = [p for p in pieces if not p.is_series and id(p) not in carried]
    for piece in sorted((p for p in loose if p.reader not in _MACHINES), key=lambda p: -len(p.folder.parts)):
        _attach(piece, places, anchored)
    for piece in sorted(
        (p for p in loose if p.reader in _MACHINES), key=lambda p: (not _speaks(p), len(p.folder.parts))
    ):
        _attach_machine(piece, places)
    for found in places.groups:
        for piece in tuple(found.pieces):
            if id(piece) in led:
                _carry(found, piece, led[id(piece)])
    return places.groups


def configure(groups: list[Group], pieces: list[Piece]) -> None:
    """Give the configurations that no run has to the runs in or above their folders: checkpoints without a log."""
    taken = {id(piece) for found in groups for piece in found.pieces}
    places = Places(groups)
    for piece in pieces:
        if id(piece) in taken or piece.is_series or piece.reading.settings is None:
            continue
        for found in places.around(piece.folder):
            if piece.folder.is_relative_to(found.folder):
                found.pieces.append(piece)


def _carry(found: Group, lead: Piece, family: Family) -> None:
    """Give a run the other files of the job of one of its files, in chains where a rank was launched several times."""
    found.pieces += [p for p in family.pieces if p is not lead]
    found.families[lead.file.name] = family.said
    for piece in family.pieces:
        found.reasons[piece.file.name] = f"one of {family.pattern}"
    launches: dict[int | None, list[Piece]] = {}
    for piece in family.pieces:
        if piece.is_series and piece.attempt is not None:
            launches.setdefault(piece.rank, []).append(piece)
    found.chains += [chain for chain in launches.values() if len(chain) > 1]


# -- the runs of one folder ------------------------------------------------------------------------------------------


def _clusters(folder: PurePosixPath, pieces: list[Piece]) -> list[Group]:
    """The runs of one folder: files whose series agree or continue are one run, files that contradict are several."""
    pieces = sorted(pieces, key=lambda p: (p.reader not in _ANCHORS, p.reader == _CONSOLE, -p.points, p.file.name))
    found = [_Cluster(folder)]
    screen = Screen(pieces, [_screened(p) for p in pieces]) if len(pieces) > _FEW else None
    for number, piece in enumerate(pieces):
        choice = _choice(piece, found, range(len(found)) if screen is None else screen.open(number, len(found)))
        if choice is None:
            found.append(_Cluster(folder))
            choice = len(found) - 1, _APART, None
        place, relation, other = choice
        found[place].add(piece, relation, other)
        if screen is not None:
            screen.put(number, place)
    return [cluster.group for cluster in found]


def _screened(piece: Piece) -> int:
    """A number for files that other values of the loss alone tell from each other, -1 for those where more counts."""
    if piece.reader in _ANCHORS or piece.reader == TENSORBOARD or piece.rank is not None:
        return -1
    return int(piece.reader == _CONSOLE)


def _choice(
    piece: Piece, found: Sequence[_Cluster], open_: Iterable[int]
) -> tuple[int, _Relation, Piece | None] | None:
    """The run that a file belongs to: one with the same values, else one of a similar name, else the first."""
    best: tuple[int, tuple[int, _Relation, Piece | None]] | None = None
    for place in open_:
        relation, other = found[place].relation(piece)
        if relation.kind == "other":
            continue
        if relation.kind != "apart":
            return place, relation, other
        alike = _alike(piece, found[place])
        if best is None or alike > best[0]:
            best = alike, (place, relation, other)
    return None if best is None else best[1]


def _alike(piece: Piece, cluster: _Cluster) -> int:
    """Letters of the words that the name of a file and one of the names of a run begin with alike."""
    words = _MARKS.split(piece.stem)
    longest = 0
    for other in cluster.group.pieces[:_NAMES]:
        pairs = zip(words, _MARKS.split(other.stem), strict=False)
        longest = max(longest, sum(len(one) for one, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)))
    return longest


class _Cluster:
    """A run while it is put together: its files by the series that they hold."""

    def __init__(self, folder: PurePosixPath) -> None:
        self.group = Group(folder, [])
        self.holders: dict[tuple[Phase, str], list[Piece]] = {}

    def relation(self, piece: Piece) -> tuple[_Relation, Piece | None]:
        """How a file stands to the run, and to which of its files: "other" where it contradicts one of them."""
        found: tuple[_Relation, Piece | None] = (_APART, None)
        seen: set[int] = set()
        for key in piece.longest:
            for other in self.holders.get(key, ()):
                if id(other) in seen:
                    continue
                seen.add(id(other))
                relation = _relation(piece, other)
                if relation.kind == "other":
                    return relation, other
                if found[0].kind == "apart" and relation.kind != "apart":
                    found = (relation, other)
        return found

    def add(self, piece: Piece, relation: _Relation, other: Piece | None) -> None:
        self.group.pieces.append(piece)
        for key in piece.longest:
            self.holders.setdefault(key, []).append(piece)
        if other is None:
            return
        if relation.reason:
            self.group.reasons[piece.file.name] = f"{relation.reason} {other.file.name}"
        if relation.kind == "follows":
            self.follow(piece, other)

    def follow(self, piece: Piece, other: Piece) -> None:
        chain = next((c for c in self.group.chains if other in c), None)
        if chain is None:
            chain = [other]
            self.group.chains.append(chain)
        chain.append(piece)
        timed = all(p.began is not None for p in chain)
        chain.sort(key=lambda p: (p.began or 0.0 if timed else 0.0, *p.span))


def _relation(a: Piece, b: Piece) -> _Relation:
    """How the series of `a` stand to those of `b`."""
    if a.reader in _ANCHORS and b.reader in _ANCHORS:
        return _SAME
    if a.rank is not None and b.rank is not None and a.rank != b.rank:
        return _Relation("same", f"rank {a.rank} beside")
    if (a.reader in _ANCHORS) != (b.reader in _ANCHORS) and _CONSOLE in (a.reader, b.reader):
        return _SAME
    if is_step_log(a.stem) != is_step_log(b.stem):
        return _SAME  # it counts steps and averages losses in its own way
    pair = _comparable(a, b)
    if pair is None:
        return _APART
    found = _of_curves(*pair, structured=(a.reader == _CONSOLE) != (b.reader == _CONSOLE))
    if found.kind == "other" and a.reader == b.reader == TENSORBOARD and a.home == b.home:
        return _Relation("follows", "another launch in the folder of")
    return found


def _comparable(a: Piece, b: Piece) -> tuple[Curve, Curve] | None:
    """A series that both hold with two points or more, the loss if they can."""
    one, two = a.curves, b.curves
    if ("train", "loss") in one and ("train", "loss") in two:
        return one["train", "loss"], two["train", "loss"]
    shared = one.keys() & two.keys()
    if not shared:
        return None
    key = min(shared, key=lambda k: (k[1] != "loss", k[0] != "train", -len(one[k].rows), k))
    return one[key], two[key]


def _of_curves(a: Curve, b: Curve, *, structured: bool) -> _Relation:
    if a.unit != b.unit:
        return _SAME if structured else _by_rows(a, b)
    if a.unit == "row":
        return _by_rows(a, b)
    points = agreed(a, b)
    if points:
        after = _follows(a.steps, b.steps)
        if after.kind == "follows" and 2 * points <= min(len(a.steps), len(b.steps)):
            return after  # a resume that repeats some steps exactly
        said = "1 common step" if points == 1 else f"{points} common steps"
        return _Relation("same", f"same values at {said} as")
    return _follows(a.steps, b.steps)


def _by_rows(a: Curve, b: Curve) -> _Relation:
    count = min(len(a.rows), len(b.rows))
    if not (np.isfinite(a.rows[:count]) & np.isfinite(b.rows[:count])).any():
        return _APART  # an event file holds single precision: what overflowed there contradicts nothing
    return _Relation("same", "same values as") if same_rows(a, b) else _OTHER


def _follows(a: np.ndarray, b: np.ndarray) -> _Relation:
    """Whether the steps of one begin inside or right after those of the other and lead beyond them."""
    if not len(a) or not len(b):
        return _APART
    if a[0] == b[0]:
        return _OTHER
    cadence = max(float(np.median(np.diff(s))) if len(s) > 1 else 1.0 for s in (a, b))
    for early, late, said in ((b, a, "continues"), (a, b, "is continued by")):
        starts_later = late[0] > early[0] + cadence / 2
        reaches = late[0] <= early[-1] + 2 * cadence
        if starts_later and reaches and late[-1] > early[-1]:
            return _Relation("follows", f"{said}, from step {late[0]} on,")
    return _OTHER


# -- a console log in another folder than the files of its run --------------------------------------------------------


def _join_consoles(groups: list[Group]) -> list[Group]:
    """Give a console log to the one run, in a folder below or above it, whose values it prints."""
    places = Places(groups)
    joined: set[int] = set()
    for console in [g for g in groups if all(p.reader == _CONSOLE for p in g.pieces)]:
        near = [g for g in places.related(console.folder) if any(p.reader != _CONSOLE for p in g.pieces)]
        if not near:
            continue
        homes = [home for piece in console.pieces for home in _homes(piece, near)]
        if {id(piece.file) for piece, _ in homes} == {id(piece.file) for piece in console.pieces}:
            joined.add(id(console))
            for piece, home in homes:
                home.pieces.append(piece)
                home.reasons[piece.file.name] = f"prints the values of {home.pieces[0].file.name}"
    return [g for g in groups if id(g) not in joined]


def _homes(piece: Piece, near: list[Group]) -> list[tuple[Piece, Group]]:
    """The one run that a log belongs to or, where every launch in it is another run, each with its part of the log."""
    found: list[tuple[Piece, Group]] = []
    launches = _launches(piece)
    for launch in launches:
        same = [g for g in near if any(tells_the_same(launch.reading.tracks, p.reading.tracks) for p in g.pieces)]
        if len(same) == 1:
            found.append((launch, same[0]))
    runs = {id(home) for _, home in found}
    if len(runs) == 1:
        return [(piece, found[0][1])]
    return found if len(runs) == len(launches) else []


def _launches(piece: Piece) -> list[Piece]:
    """A log as one piece per launch: a script may have printed several runs into it."""
    last = max(int(t.stored.frame["attempt"].max() or 0) for t in piece.reading.tracks)  # type: ignore[arg-type]
    return [piece] if not last else [_launch(piece, attempt, last) for attempt in range(last + 1)]


def _launch(piece: Piece, attempt: int, last: int) -> Piece:
    reading = piece.reading
    tracks = []
    for track in reading.tracks:
        frame = track.stored.frame
        rows = frame.filter(frame["attempt"] == attempt).with_columns(pl.lit(0, pl.UInt16).alias("attempt"))
        if rows.height:
            tracks.append(replace(track, stored=replace(track.stored, frame=rows)))
    trail = reading.trail
    if attempt < last:
        lines = [int(t.stored.frame["line"].max() or 0) for t in tracks]  # type: ignore[arg-type]  # a UInt32 column
        steps = [int(t.stored.frame["step"].max() or 0) for t in tracks]  # type: ignore[arg-type]  # an Int64 column
        trail = Trail(max(steps, default=None), max(lines, default=None), trail.planned)
    events = [replace(e, attempt=0) for e in reading.events or [] if (e.attempt or 0) == attempt]
    reports = {f.attempt for f in reading.facts if f.attempt is not None}
    facts = [f for f in reading.facts if f.attempt in (None, attempt) or reports != set(range(last + 1))]
    mine = replace(reading, tracks=tracks, events=events, facts=facts, trail=trail)
    return Piece(piece.file, piece.reader, mine, piece.run)


# -- files without series --------------------------------------------------------------------------------------------


def _attach(piece: Piece, places: Places, anchored: set[int]) -> None:
    """Give a configuration or a list of packages to every run that it applies to, a console log to its one run.

    A log without series whose events say how a training ended is a run of its own where no run lies in its folder.
    """
    near = places.nearest(piece.folder)
    if piece.reader in _OF_THE_NODE or (piece.reading.settings is not None and piece.reading.events is None):
        for found in near:
            found.pieces.append(piece)
        return
    here = [g for g in near if g.folder == piece.folder or piece.folder.is_relative_to(g.folder)]
    named = [g for g in here if g.name == piece.stem or any(p.stem == piece.stem for p in g.pieces)]
    hosts = named or [g for g in here if id(g) in anchored] or (here if not _speaks(piece) else [])
    if len(hosts) == 1 or (hosts and not _speaks(piece)):
        hosts[0].pieces.append(piece)
    elif _speaks(piece):
        places.add(Group(piece.folder, [piece], name=piece.stem))
    elif near:
        near[0].pieces.append(piece)


def _attach_machine(piece: Piece, places: Places) -> None:
    """Give what a machine tells of itself to the one run beside it; of several nobody knows which ran when.

    It is then a run of its own where it tells of a fault, together with the other such files, and else told to all.
    """
    near = places.nearest(piece.folder)
    machines = [g for g in near if all(p.reader in _MACHINES for p in g.pieces)]
    if len(near) == 1 or not _speaks(piece):
        for found in near:
            found.pieces.append(piece)
    elif machines:
        machines[0].pieces.append(piece)
    else:
        places.add(Group(piece.folder, [piece], name=piece.stem))


def _speaks(piece: Piece) -> bool:
    return piece.reading.speaks_of_training and bool(piece.reading.events)
