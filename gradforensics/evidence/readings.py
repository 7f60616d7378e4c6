"""What a reader got out of one file."""

from __future__ import annotations

from dataclasses import dataclass, field

from gradforensics.tables import Event, Fact, Phase, SeriesFrame, Setting


@dataclass
class Track:
    """One series of one file, not yet attributed to a run."""

    phase: Phase
    series: str
    tag: str
    stored: SeriesFrame


@dataclass
class Trail:
    """What the end of a log tells about how the run ended.

    last_line: of the last row or movement of a progress bar; planned: optimizer steps in all; seconds_left: the log's
    own estimate at its last row; launch_line: where the last launch began; finished: words that say it is complete.
    """

    last_step: int | None = None
    last_line: int | None = None
    planned: int | None = None
    seconds_left: float | None = None
    launch_line: int | None = None
    finished: str = ""
    finished_line: int | None = None


@dataclass
class Reading:
    """Everything a reader got out of one file. `settings` and `events` are None where the format has none.

    columns: the names of a table's columns, also of those that are no series; facts: what the file says about the
    environment; runs: the readings of a file that holds several runs, by their names (everything else but the notices
    is then empty); members: the console logs that lie inside of the file, by the names of their own; remark: what the
    inventory says about the source beside its reader.
    """

    tracks: list[Track] = field(default_factory=list)
    settings: list[Setting] | None = None
    events: list[Event] | None = None
    notices: list[tuple[int | None, str]] = field(default_factory=list)
    trail: Trail = field(default_factory=Trail)
    speaks_of_training: bool = False
    claimed: bool = True
    columns: set[str] = field(default_factory=set)
    facts: list[Fact] = field(default_factory=list)
    runs: dict[str, Reading] = field(default_factory=dict)
    members: dict[str, Reading] = field(default_factory=dict)
    remark: str = ""

    def known_columns(self) -> set[str]:
        """The columns that --map can speak of: those of a table, and the names of all series."""
        own = self.columns | {track.tag.strip() for track in self.tracks}
        return own.union(*(one.known_columns() for one in self.runs.values()))
