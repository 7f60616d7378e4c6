"""What runs are put together from: the pieces of evidence, and the groups of them that are one run."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePosixPath

import numpy as np

from gradforensics.evidence.agreement import Curve, curve
from gradforensics.evidence.files import File
from gradforensics.evidence.readings import Reading, Track
from gradforensics.tables import Phase

TENSORBOARD = "tensorboard"
_EVENT_FILE = re.compile(r"tfevents\.(\d{9,11})\.")


@dataclass(eq=False)
class Piece:
    """One file that a reader claimed, or one of the runs that a file holds (`run` is then its name there).

    folder: the folder of the run that the file speaks of; rank, host, attempt: where it comes from, by its name.
    """

    file: File
    reader: str
    reading: Reading
    run: str = ""
    rank: int | None = None
    host: str | None = None
    attempt: int | None = None
    folder: PurePosixPath = field(init=False)

    def __post_init__(self) -> None:
        self.folder = self.home

    @property
    def home(self) -> PurePosixPath:
        """The folder in which the file lies, for one of several runs with its name."""
        folder = PurePosixPath(self.file.name).parent
        return folder / self.run if self.run else folder

    @cached_property
    def stem(self) -> str:
        """File name without its suffixes, as a run would be called after it."""
        name = PurePosixPath(self.file.name).name
        name = name.removesuffix(".gz")
        return PurePosixPath(name).stem or name

    @property
    def is_series(self) -> bool:
        """Whether the file holds a series of a training."""
        return bool(self.reading.tracks)

    @property
    def points(self) -> int:
        """Rows of its longest series."""
        return max((t.stored.frame.height for t in self.reading.tracks), default=0)

    @cached_property
    def longest(self) -> dict[tuple[Phase, str], Track]:
        """Its series of two points or more, of several of one name the longest."""
        tracks = sorted(self.reading.tracks, key=lambda t: t.stored.frame.height)
        return {(track.phase, track.series): track for track in tracks if track.stored.frame.height > 1}

    @cached_property
    def curves(self) -> dict[tuple[Phase, str], Curve]:
        """The points of `longest`."""
        return {key: curve(track) for key, track in self.longest.items()}

    @cached_property
    def span(self) -> tuple[int, int]:
        """First and last step of its series."""
        columns = [t.stored.frame["step"].drop_nulls() for t in self.reading.tracks]
        ends = [(int(c.min()), int(c.max())) for c in columns if len(c)]  # type: ignore[arg-type]  # Int64, not empty
        return min((low for low, _ in ends), default=0), max((high for _, high in ends), default=0)

    @cached_property
    def began(self) -> float | None:
        """When it was begun (Unix seconds): by the name of an event file, else by its first row with a time."""
        if named := _EVENT_FILE.search(self.file.base):
            return float(named[1])
        firsts = (t.stored.frame["time"].min() for t in self.reading.tracks)
        found = [float(t) for t in firsts if t is not None and np.isfinite(t)]  # type: ignore[arg-type]
        return min(found, default=None)


@dataclass(eq=False)
class Group:
    """The files of one run.

    title: what the tool that recorded the run calls it; chains: files that continue each other, oldest first; reasons:
    why files that could be runs of their own are this one, by the names of the files; families: one sentence for every
    family of files that are the ranks of one job.
    """

    folder: PurePosixPath
    pieces: list[Piece]
    name: str = ""
    title: str = ""
    chains: list[list[Piece]] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)
    families: dict[str, str] = field(default_factory=dict)


class Places:
    """The groups of an input by their folders."""

    def __init__(self, groups: Iterable[Group] = ()) -> None:
        self.groups: list[Group] = []
        self._at: dict[PurePosixPath, list[Group]] = {}
        self._below: dict[PurePosixPath, list[Group]] = {}
        for group in groups:
            self.add(group)

    def add(self, group: Group) -> None:
        """Know one more group."""
        self.groups.append(group)
        self._at.setdefault(group.folder, []).append(group)
        for folder in group.folder.parents:
            self._below.setdefault(folder, []).append(group)

    def around(self, folder: PurePosixPath) -> list[Group]:
        """The groups of a folder, else those below it, else those of the closest folder above."""
        for folders in (self._at, self._below):
            if folder in folders:
                return folders[folder]
        return next((self._at[above] for above in folder.parents if above in self._at), [])

    def nearest(self, folder: PurePosixPath) -> list[Group]:
        """The groups that a file in `folder` speaks of: those around it, else all."""
        return self.around(folder) or self.groups

    def related(self, folder: PurePosixPath) -> list[Group]:
        """The groups below a folder and in the folders above it."""
        above = [group for parent in folder.parents for group in self._at.get(parent, [])]
        return [*self._below.get(folder, []), *above]
