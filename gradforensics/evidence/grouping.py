"""Which files belong to one run: by folder, by name, and by whether their series agree, continue or contradict."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Literal

import numpy as np
import polars as pl

from gradforensics.evidence.agreement import AGREE, agreement, clean, same_values, tells_the_same
from gradforensics.evidence.files import File
from gradforensics.evidence.rows import Reading, Track, Trail

Relation = Literal["apart", "same", "continues", "precedes", "other"]

_CHECKPOINT = re.compile(
    r"^(?:(?:tmp-)?checkpoint|ckpt|global_?step|step|iter|epoch)[-_=]?\d[\w=.-]*$|"
    r"^(?:checkpoints?|weights|last|best|final)$"
)
_LOG_FOLDERS = frozenset(
    {
        "log",
        "logs",
        "logging",
        "console",
        "stdout",
        "stderr",
        "slurm",
        ".hydra",
        "config",
        "configs",
        "csv",
        "metrics",
        "files",
    }
)
_GENERIC = re.compile(
    r"^(?:run|runs|output|outputs|out|log|logs|checkpoints?|results?|version_\d+|train|training|exp|"
    r"experiments?|tmp|data|models?)$"
)
_RANK = re.compile(r"(?:^|[/._-])rank[._-]?(\d{1,6})(?=[/._-]|$)")
_ANCHORS = frozenset({"hf-trainer-state", "llamafactory-log", "json-results"})


@dataclass
class Piece:
    """One file that a reader claimed."""

    file: File
    reader: str
    reading: Reading
    folder: PurePosixPath = field(init=False)

    def __post_init__(self) -> None:
        self.folder = PurePosixPath(self.file.name).parent

    @property
    def stem(self) -> str:
        """File name without its suffixes, as a run would be called after it."""
        name = PurePosixPath(self.file.name).name
        name = name.removesuffix(".gz")
        return PurePosixPath(name).stem or name

    @property
    def rank(self) -> int | None:
        """The rank that the file or its folder is called after (rank_3.log, rank3/train.log)."""
        found = _RANK.search("/".join(PurePosixPath(self.file.name).parts[-2:]).lower())
        return int(found[1]) if found else None

    @property
    def is_series(self) -> bool:
        """Whether the file holds a series of a training."""
        return bool(self.reading.tracks)


@dataclass
class Group:
    """The files of one run. `chain` are those that continue each other, oldest first."""

    folder: PurePosixPath
    pieces: list[Piece]
    name: str = ""
    chain: list[Piece] = field(default_factory=list)


def group(pieces: list[Piece]) -> list[Group]:
    """The runs of one input, each with the files that belong to it."""
    _fold(pieces)
    groups: list[Group] = []
    for folder in sorted({p.folder for p in pieces}, key=str):
        groups += _clusters(folder, [p for p in pieces if p.folder == folder and p.is_series])
    _join_consoles(groups)
    loose = [p for p in pieces if not p.is_series]
    anchored = {id(g): len(g.pieces) for g in groups}
    for piece in sorted(loose, key=lambda p: -len(p.folder.parts)):
        _attach(piece, groups, anchored)
    return groups


def nearest(folder: PurePosixPath, groups: list[Group]) -> list[Group]:
    """The groups that a file in `folder` speaks of: of its folder, else below it, else of the closest folder above."""
    for found in (
        [g for g in groups if g.folder == folder],
        [g for g in groups if g.folder.is_relative_to(folder)],
    ):
        if found:
            return found
    above = [g for g in groups if folder.is_relative_to(g.folder)]
    deepest = max((len(g.folder.parts) for g in above), default=0)
    return [g for g in above if len(g.folder.parts) == deepest] or groups


def around(folder: PurePosixPath, groups: list[Group]) -> list[Group]:
    """The groups of a folder, else below it, else of the closest folder above: `nearest` without a last resort."""
    related = [g for g in groups if g.folder.is_relative_to(folder) or folder.is_relative_to(g.folder)]
    return nearest(folder, related)


def folded(folder: PurePosixPath) -> PurePosixPath:
    """The folder of the run that a folder of a checkpoint or of a rank belongs to."""
    while folder.parts and (_CHECKPOINT.match(folder.name.lower()) or _RANK.fullmatch(folder.name.lower())):
        folder = folder.parent
    return folder


# -- folders ---------------------------------------------------------------------------------------------------------


def _fold(pieces: list[Piece]) -> None:
    """Checkpoint folders belong to the folder above them, folders of logs do where that holds evidence itself."""
    for piece in pieces:
        piece.folder = folded(piece.folder)
    homes = {p.folder for p in pieces}
    for piece in pieces:
        if piece.folder.name.lower() in _LOG_FOLDERS and piece.folder.parent in homes and piece.folder.parts:
            piece.folder = piece.folder.parent


def _clusters(folder: PurePosixPath, pieces: list[Piece]) -> list[Group]:
    """The runs of one folder: files whose series agree or continue are one run, files that contradict are several."""
    pieces = sorted(pieces, key=lambda p: (p.reader not in _ANCHORS, p.reader == "console", -_points(p), p.file.name))
    groups: list[Group] = []
    for piece in pieces:
        for found in groups:
            relations = [_relation(piece, other) for other in found.pieces]
            if "other" in relations:
                continue
            found.pieces.append(piece)
            for relation, other in zip(relations, tuple(found.pieces), strict=False):
                if relation in ("continues", "precedes"):
                    found.chain = _chained(found.chain or [other], piece)
                    break
            break
        else:
            groups.append(Group(folder, [piece]))
    return groups


def _chained(chain: list[Piece], piece: Piece) -> list[Piece]:
    return sorted([*chain, piece], key=lambda p: (_span(p)[0], _span(p)[1]))


def _relation(a: Piece, b: Piece) -> Relation:
    """How the series of `a` stand to those of `b`."""
    if a.reader in _ANCHORS and b.reader in _ANCHORS:
        return "same"
    if a.rank is not None and b.rank is not None and a.rank != b.rank:
        return "same"
    if (a.reader in _ANCHORS) != (b.reader in _ANCHORS) and "console" in (a.reader, b.reader):
        return "same"
    pair = _comparable(a, b)
    if pair is None:
        return "apart"
    first, second = pair
    if first.stored.step_unit != second.stored.step_unit:
        structured = (a.reader == "console") != (b.reader == "console")
        return "same" if structured or same_values(first, second) else "other"
    if first.stored.step_unit == "row":
        return "same" if same_values(first, second) else "other"
    return _by_steps(first, second)


def _comparable(a: Piece, b: Piece) -> tuple[Track, Track] | None:
    """A series that both hold with two points or more, the loss if they can."""
    shared = [
        (x, y)
        for x in a.reading.tracks
        for y in b.reading.tracks
        if (x.phase, x.series) == (y.phase, y.series) and min(x.stored.frame.height, y.stored.frame.height) > 1
    ]
    shared.sort(key=lambda pair: (pair[0].series != "loss", pair[0].phase != "train", -pair[0].stored.frame.height))
    return shared[0] if shared else None


def _by_steps(a: Track, b: Track) -> Relation:
    one, two = clean(a), clean(b)
    both = one.join(two, on="step", suffix="_b")
    if both.height:
        x, y = both["value"].to_numpy(), both["value_b"].to_numpy()
        if agreement(x, y) >= AGREE:
            return "same"
    return _follows(one["step"].to_numpy(), two["step"].to_numpy())


def _follows(a: np.ndarray, b: np.ndarray) -> Relation:
    """Whether the steps of one begin inside or right after those of the other and lead beyond them."""
    if not len(a) or not len(b):
        return "apart"
    cadence = max(float(np.median(np.diff(s))) if len(s) > 1 else 1.0 for s in (a, b))
    for early, late, said in ((b, a, "continues"), (a, b, "precedes")):
        starts_later = late[0] > early[0] + cadence / 2
        reaches = late[0] <= early[-1] + 2 * cadence
        if starts_later and reaches and late[-1] > early[-1]:
            return said  # type: ignore[return-value]  # one of the two literals above
    return "other"


# -- a console log in another folder than the files of its run --------------------------------------------------------


def _join_consoles(groups: list[Group]) -> None:
    """Give a console log to the one run, in a folder below or above it, whose values it prints."""
    for console in [g for g in groups if all(p.reader == "console" for p in g.pieces)]:
        near = [
            g
            for g in groups
            if g.folder != console.folder
            and (g.folder.is_relative_to(console.folder) or console.folder.is_relative_to(g.folder))
            and any(p.reader != "console" for p in g.pieces)
        ]
        homes = [home for piece in console.pieces for home in _homes(piece, near)]
        if {id(piece.file) for piece, _ in homes} == {id(piece.file) for piece in console.pieces}:
            groups.remove(console)
            for piece, home in homes:
                home.pieces.append(piece)


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
    return Piece(piece.file, piece.reader, replace(reading, tracks=tracks, events=events, trail=trail))


def _points(piece: Piece) -> int:
    return max((t.stored.frame.height for t in piece.reading.tracks), default=0)


def _span(piece: Piece) -> tuple[int, int]:
    columns = [t.stored.frame["step"].drop_nulls() for t in piece.reading.tracks]
    ends = [(int(c.min()), int(c.max())) for c in columns if len(c)]  # type: ignore[arg-type]  # Int64, not empty
    return min((low for low, _ in ends), default=0), max((high for _, high in ends), default=0)


# -- files without series --------------------------------------------------------------------------------------------


def _attach(piece: Piece, groups: list[Group], anchored: dict[int, int]) -> None:
    """Give a configuration to every run that it applies to, a console log to the one run that it belongs to.

    A log without series whose events say how a training ended is a run of its own where no run lies in its folder.
    """
    near = nearest(piece.folder, groups)
    if piece.reading.settings is not None and piece.reading.events is None:
        for found in near:
            found.pieces.append(piece)
        return
    here = [g for g in near if g.folder == piece.folder or piece.folder.is_relative_to(g.folder)]
    named = [g for g in here if g.name == piece.stem or any(p.stem == piece.stem for p in g.pieces)]
    hosts = named or [g for g in here if id(g) in anchored] or (here if not _speaks(piece) else [])
    if len(hosts) == 1 or (hosts and not _speaks(piece)):
        hosts[0].pieces.append(piece)
    elif _speaks(piece):
        groups.append(Group(piece.folder, [piece], name=piece.stem))
    elif near:
        near[0].pieces.append(piece)


def _speaks(piece: Piece) -> bool:
    return piece.reading.speaks_of_training and bool(piece.reading.events)


# -- names -----------------------------------------------------------------------------------------------------------


def name(groups: list[Group], root_name: str, *, single: bool, label: str = "") -> None:
    """Name the runs of one input after their folders; `label`: what the names of its files begin with."""
    root = PurePosixPath(root_name)
    label = label.rstrip("/")
    for found in groups:
        siblings = [g for g in groups if g.folder == found.folder]
        folder = label if found.folder == PurePosixPath(".") else str(found.folder)
        if found.pieces and (single or len(siblings) > 1):
            found.name = f"{folder}/{found.pieces[0].stem}".lstrip("/")
        elif label:
            found.name = folder
        else:
            parts = [*root.parts, *found.folder.parts]
            start = len(root.parts) if folder else len(root.parts) - 1
            while start > 1 and all(_GENERIC.match(part.lower()) for part in parts[start:]):
                start -= 1
            found.name = "/".join(parts[start:])
    unique(groups)


def unique(groups: Iterable[Group]) -> None:
    """Give groups of one name a number behind it."""
    seen: dict[str, int] = {}
    for found in groups:
        seen[found.name] = seen.get(found.name, 0) + 1
        if seen[found.name] > 1:
            found.name = f"{found.name} ({seen[found.name]})"
