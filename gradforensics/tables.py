"""Every canonical table, and the Evidence that the rest of the tool reads.

Everybody imports it, and it imports nothing of the package but the leaves `notices`, `schemas`, `own_files` and
`experiments`. Readers produce `SeriesFrame`, `Setting`, `Event`, `Notice` and `Source`; `Evidence` is what one run left
behind. Values are null wherever `kind` is not "finite", because polars sorts NaN above every number and a rule such as
"loss > 10" would fire on it with the wrong story.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np
import polars as pl

from gradforensics.notices import Notice as Notice  # noqa: PLC0414  offered to everybody who imports the tables
from gradforensics.notices import Progress as Progress  # noqa: PLC0414
from gradforensics.own_files import is_step_log
from gradforensics.schemas import KIND as KIND  # noqa: PLC0414  likewise
from gradforensics.schemas import KINDS as KINDS  # noqa: PLC0414
from gradforensics.schemas import SERIES_SCHEMA as SERIES_SCHEMA  # noqa: PLC0414
from gradforensics.schemas import TABLES as TABLES  # noqa: PLC0414

if TYPE_CHECKING:
    from pathlib import Path

    from gradforensics.experiments import Replay

T = TypeVar("T")
Phase: TypeAlias = Literal["train", "eval", "test"]
StepUnit: TypeAlias = Literal["step", "micro_step", "epoch", "tokens", "samples", "row"]
Origin: TypeAlias = Literal["user", "runtime", "config"]
EndingKind: TypeAlias = Literal["completed", "exception", "oom", "killed", "timeout", "truncated", "unknown"]


@dataclass(frozen=True, slots=True)
class Source:
    """One file of evidence. `sha256` is None where the file was not read whole; `remark` then says so."""

    path: str
    bytes: int
    sha256: str | None = None
    reader: str | None = None
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting as written (`name`, `value`) under its canonical `key`."""

    key: str
    name: str
    value: Any
    source: str
    line: int | None = None
    origin: Origin = "config"
    attempt: int | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """One remarkable log line (oom, exception, killed, timeout, overflow, resume, completed, warning ...).

    collective_timeout and collective_mismatch are what the Flight Recorder dumps of all ranks tell together.
    """

    kind: str
    text: str
    source: str
    line: int | None = None
    attempt: int | None = None
    rank: int | None = None
    host: str | None = None
    time: float | None = None
    step: int | None = None
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fact:
    """One fact about the environment of a run: where it ran, on what, with which versions.

    key: `package:NAME` is the version of a package that was installed, `copy:NAME` another version of it that was
    installed beside it, `pin:NAME` a version that a hand-written file demands (a wish: nobody says that it was
    installed); names as pip normalises them (flash-attn). `conda:NAME`: a package of conda's own. `env:NAME`: an
    environment variable. torch_cuda, cudnn, nccl: what torch was built for ("12.1", "none") and the versions of the
    libraries that it loads; torch_arch_list: what it has kernels for ("sm_80 sm_90"); torch_error: why it cannot be
    imported. driver, cuda: NVIDIA's driver and the newest CUDA that it supports; gpu, gpu_count, compute_capability
    ("9.0"); python, os, kernel, glibc, host, command, git_commit ... Other keys are called as their source calls them.
    attempt: the launch within its file, or that its name states.
    """

    key: str
    value: str
    source: str
    line: int | None = None
    rank: int | None = None
    host: str | None = None
    attempt: int | None = None


@dataclass(frozen=True, slots=True)
class Ending:
    """How the record ends, with the line that shows it."""

    kind: EndingKind = "unknown"
    text: str = ""
    source: str | None = None
    line: int | None = None


@dataclass(frozen=True, slots=True)
class Replayed:
    """A replay of a step of this run.

    folder: the replay directory as messages name it; lines: of the replay's results in its experiments.jsonl.
    """

    folder: str
    replay: Replay
    lines: tuple[int, ...]


class SeriesKey(NamedTuple):
    """Identity of one stored series; `series` is the canonical name, `tag` the name as written."""

    run: str
    phase: Phase
    series: str
    tag: str
    source: str


@dataclass(frozen=True, slots=True)
class SeriesFrame:
    """One series of one source, rows in file order, columns as in SERIES_SCHEMA.

    resolution: smallest distance between two values that the text could show (0.0001 for "%.4f"); 0 means exact.
    """

    frame: pl.DataFrame
    step_unit: StepUnit = "step"
    resolution: float = 0.0


@dataclass(frozen=True)
class Series:
    """One sorted series, one row per step: what every check works on.

    steps: int64 (n,); values: float64 (n,), NaN where the kind is not "finite"; codes: uint8 (n,), places in KINDS;
    lines: int64 (n,), 0 = unknown; attempts: int64 (n,); cadence: median distance between two points, in steps.
    """

    name: str
    phase: Phase
    tag: str
    source: str
    steps: np.ndarray
    values: np.ndarray
    codes: np.ndarray
    lines: np.ndarray
    attempts: np.ndarray
    epochs: np.ndarray
    times: np.ndarray
    cadence: float
    step_unit: StepUnit = "step"
    resolution: float = 0.0

    def __len__(self) -> int:
        return len(self.steps)

    @cached_property
    def finite(self) -> np.ndarray:
        """bool (n,): where the value is a finite number."""
        mask: np.ndarray = np.isfinite(self.values)
        return mask

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kind of every point, of KINDS."""
        return tuple(KINDS[code] for code in self.codes.tolist())

    def kind(self, index: int) -> str:
        """The kind of one point."""
        return KINDS[self.codes[index]]

    @cached_property
    def bad(self) -> np.ndarray:
        """bool (n,): where the log shows NaN or an infinity (a missing value is not bad)."""
        mask: np.ndarray = (self.codes > KINDS.index("finite")) & (self.codes < KINDS.index("missing"))
        return mask

    def where(self, mask: np.ndarray) -> Series:
        """The points that `mask` (bool, (n,)) keeps."""
        return self.at(np.flatnonzero(mask))

    def at(self, index: np.ndarray) -> Series:
        """The points at these places (int64, ascending)."""
        if len(index) == len(self):
            return self
        return Series(
            self.name, self.phase, self.tag, self.source, self.steps[index], self.values[index],
            self.codes[index], self.lines[index], self.attempts[index], self.epochs[index],
            self.times[index], cadence_of(self.steps[index]), self.step_unit, self.resolution,
        )  # fmt: skip

    @cached_property
    def good(self) -> Series:
        """Only the finite points."""
        return self if bool(self.finite.all()) else self.where(self.finite)


def cadence_of(steps: np.ndarray) -> float:
    """Median distance between consecutive points, in steps (0 for fewer than two points)."""
    return float(np.median(np.diff(steps))) if len(steps) > 1 else 0.0


def _digits(frame: pl.DataFrame) -> int:
    """Significant digits of a few values of a series: the finer of two copies of one series is the better source."""
    head = frame["value"].drop_nulls().head(16).to_list()
    return max((len(repr(v).replace(".", "").replace("-", "").split("e")[0].strip("0")) for v in head), default=0)


_ORIGIN_RANK: dict[str, int] = {"user": 0, "runtime": 1, "config": 2}


@dataclass
class Evidence:
    """Everything that the readers could get out of one run.

    path: how the user can name its folder on a command line, "" where that is not known. baseline: the healthy run to
    compare with, None where there is none: that of --baseline or, where `baseline_is_sibling`, one of this analysis.
    files: where the sources lie that are files of their own and not compressed, by name.
    """

    name: str
    frames: dict[SeriesKey, SeriesFrame] = field(default_factory=dict)
    settings: list[Setting] | None = None
    events: list[Event] | None = None
    environment: list[Fact] | None = None
    sources: list[Source] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)
    ending: Ending = field(default_factory=Ending)
    tables: dict[str, pl.DataFrame] = field(default_factory=dict)
    replays: list[Replayed] = field(default_factory=list)
    path: str = ""
    baseline: Evidence | None = field(default=None, repr=False)
    baseline_is_sibling: bool = False
    files: dict[str, Path] = field(default_factory=dict, repr=False, compare=False)
    _cache: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    # -- series ------------------------------------------------------------------------------------------------------

    def once(self, key: Any, compute: Callable[[], T]) -> T:
        """What `compute` gives, computed once for this key: for what several checks ask of the same evidence."""
        if key not in self._cache:
            self._cache[key] = compute()
        found: T = self._cache[key]
        return found

    def keys(self, name: str, phase: Phase = "train") -> list[SeriesKey]:
        """Every stored series that carries this canonical name in this phase."""
        stamp = id(self.frames), len(self.frames)
        if self._cache.get("stamp") != stamp:
            index: dict[tuple[str, Phase], list[SeriesKey]] = {}
            for key in self.frames:
                index.setdefault((key.series, key.phase), []).append(key)
            self._cache["stamp"], self._cache["keys"] = stamp, index
        return list(self._cache["keys"].get((name, phase), ()))

    def series(self, name: str, phase: Phase = "train", rank: int | None = None) -> Series | None:
        """The series `name` of `phase` as one sorted row per step, or None where nothing of it was logged.

        Of several sources and tags the one with most points, then the recorder's (whose steps are those of a replay),
        then most digits, then the first in reading order is taken (an HF run logs one loss in three files and a spike
        must not count three times). An attempt supersedes what earlier attempts wrote from its first step on; within an
        attempt the last line wins. `rank` picks one
        rank's points; None takes rows without a rank or, where all rows name ranks, the lowest rank.
        """
        wanted = (name, phase, rank)
        if wanted not in self._cache:
            self._cache[wanted] = self._pick(name, phase, rank)
        picked: Series | None = self._cache[wanted]
        return picked

    def _pick(self, name: str, phase: Phase, rank: int | None) -> Series | None:
        best: tuple[int, bool, int] = (0, False, 0)
        chosen: tuple[SeriesKey, SeriesFrame, pl.DataFrame] | None = None
        for key in self._holding(name, phase, rank):
            stored = self.frames[key]
            rows = _of_rank(stored.frame, rank)
            points = rows.height - int((rows["kind"] == "missing").sum())
            merit = (points, is_step_log(key.source), _digits(rows))
            if points and merit > best:
                best, chosen = merit, (key, stored, rows)
        if chosen is None:
            return None
        key, stored, rows = chosen
        rows = _present(rows)
        if not _is_tidy(rows):
            rows = _surviving(rows.with_row_index("order"))
            rows = rows.sort(["step", "attempt", "order"]).unique("step", keep="last", maintain_order=True)
        return _as_series(key, stored, rows)

    def _holding(self, name: str, phase: Phase, rank: int | None) -> list[SeriesKey]:
        """The stored series with points of a rank; for None those with rows of no rank or of the lowest of all."""
        held = {key: self._ranks_of(key) for key in self.keys(name, phase)}
        if rank is not None:
            return [key for key, ranks in held.items() if rank in ranks]
        named = (rank for ranks in held.values() if None not in ranks for rank in ranks if rank is not None)
        lowest = min(named, default=None)
        return [key for key, ranks in held.items() if None in ranks or lowest in ranks]

    def _ranks_of(self, key: SeriesKey) -> frozenset[int | None]:
        """The ranks of the rows of a stored series, None for rows without one."""
        wanted = ("ranks", key)
        if wanted not in self._cache:
            column = self.frames[key].frame["rank"]
            unnamed = column.null_count() == len(column)
            self._cache[wanted] = frozenset([None] if unnamed else column.unique().to_list())
        found: frozenset[int | None] = self._cache[wanted]
        return found

    def attempts(self, name: str, phase: Phase = "train") -> list[Series]:
        """The series split into its attempts, each sorted by step: only resume checks look at these."""
        wanted = ("attempts", name, phase)
        if wanted not in self._cache:
            self._cache[wanted] = self._split(name, phase)
        parts: list[Series] = self._cache[wanted]
        return parts

    def _split(self, name: str, phase: Phase) -> list[Series]:
        whole = self.series(name, phase)
        if whole is None:
            return []
        key = next(k for k in self.keys(name, phase) if (k.tag, k.source) == (whole.tag, whole.source))
        stored = self.frames[key]
        rows = _present(_of_rank(stored.frame, None))
        if _is_tidy(rows):
            return [whole]
        parts = (
            rows.with_row_index("order")
            .sort(["attempt", "step", "order"])
            .unique(["attempt", "step"], keep="last", maintain_order=True)
        )
        return [_as_series(key, stored, part) for part in parts.partition_by("attempt", maintain_order=True)]

    def ranks(self, name: str, phase: Phase = "train") -> list[int]:
        """The ranks that logged this series."""
        found: set[int] = set()
        for key in self.keys(name, phase):
            found.update(rank for rank in self._ranks_of(key) if rank is not None)
        return sorted(found)

    def names(self, phase: Phase) -> list[str]:
        """Canonical names of every series of a phase, in reading order."""
        return list(dict.fromkeys(k.series for k in self.frames if k.phase == phase))

    @cached_property
    def steps(self) -> tuple[int, int] | None:
        """First and last step of any series whose unit is not a mere row number, else of any series."""
        spans: dict[bool, list[int]] = {True: [], False: []}
        for stored in self.frames.values():
            column = stored.frame["step"].drop_nulls()
            if len(column):
                low, high = int(column.min()), int(column.max())  # type: ignore[arg-type]  # Int64 column, not null
                spans[stored.step_unit != "row"] += [low, high]
        chosen = spans[True] or spans[False]
        return (min(chosen), max(chosen)) if chosen else None

    # -- settings ----------------------------------------------------------------------------------------------------

    def setting(self, key: str) -> Any | None:
        """The value of a canonical setting: the user's beats the runtime's beats the configuration file's."""
        found = [s for s in self.settings or [] if s.key == key and s.value is not None]
        return min(found, key=lambda s: _ORIGIN_RANK[s.origin]).value if found else None

    def number(self, key: str) -> float | None:
        """A setting as a finite number, or None where it is absent or no number."""
        value = self.setting(key)
        if isinstance(value, bool) or value is None:
            return None
        try:
            number = float(value)
        except (TypeError, ValueError):
            return None
        return number if math.isfinite(number) else None

    # -- the other tables --------------------------------------------------------------------------------------------

    def table(self, name: str) -> pl.DataFrame | None:
        """A table of TABLES as a frame; None where it is not available, empty where nothing was found."""
        if name == "settings":
            return None if self.settings is None else _settings_frame(self.name, self.settings)
        if name == "events":
            return None if self.events is None else _events_frame(self.events)
        if name == "environment":
            return None if self.environment is None else _environment_frame(self.environment)
        return self.tables.get(name)

    def events_of(self, *kinds: str) -> list[Event]:
        """Events of the given kinds, in order."""
        return [e for e in self.events or [] if e.kind in kinds]


def _of_rank(frame: pl.DataFrame, rank: int | None) -> pl.DataFrame:
    if rank is not None:
        return frame.filter(pl.col("rank") == rank)
    if frame["rank"].null_count() == frame.height:
        return frame
    unnamed = frame.filter(pl.col("rank").is_null())
    return unnamed if unnamed.height else frame.filter(pl.col("rank") == pl.col("rank").min())


def _present(rows: pl.DataFrame) -> pl.DataFrame:
    """Without the rows whose value is missing."""
    here = rows["kind"] != "missing"
    return rows if here.all() else rows.filter(here)


def _is_tidy(rows: pl.DataFrame) -> bool:
    """Whether the rows are those of one attempt, one for each step, in the order of the steps."""
    steps = rows["step"]
    if steps.null_count() or rows["attempt"].n_unique() > 1:
        return False
    return bool((np.diff(steps.to_numpy()) > 0).all())


def _surviving(rows: pl.DataFrame) -> pl.DataFrame:
    """Without the rows of attempts that a later one superseded: what ran beyond the point of the restart is lost."""
    if rows["attempt"].n_unique() < 2:
        return rows
    firsts = rows.group_by("attempt").agg(pl.col("step").min().alias("first")).sort("attempt", descending=True)
    cut: int | None = None
    limits: dict[int, int | None] = {}
    for attempt, first in firsts.iter_rows():
        limits[attempt] = cut
        cut = first if cut is None else min(cut, first)
    limit = pl.col("attempt").replace_strict(limits, return_dtype=pl.Int64)
    return rows.filter(limit.is_null() | (pl.col("step") < limit))


def _as_series(key: SeriesKey, stored: SeriesFrame, rows: pl.DataFrame) -> Series:
    steps = rows["step"].fill_null(0).to_numpy()
    return Series(
        name=key.series,
        phase=key.phase,
        tag=key.tag,
        source=key.source,
        steps=steps,
        values=rows["value"].fill_null(float("nan")).to_numpy(),
        codes=rows["kind"].to_physical().to_numpy().astype(np.uint8),
        lines=rows["line"].fill_null(0).cast(pl.Int64).to_numpy(),
        attempts=rows["attempt"].cast(pl.Int64).to_numpy(),
        epochs=rows["epoch"].fill_null(float("nan")).to_numpy(),
        times=rows["time"].fill_null(float("nan")).to_numpy(),
        cadence=cadence_of(steps),
        step_unit=stored.step_unit,
        resolution=stored.resolution,
    )


def series_frame(columns: Mapping[str, Sequence[Any]], values: Sequence[float | None]) -> pl.DataFrame:
    """Build a frame of SERIES_SCHEMA from columns (those absent become null, `attempt` 0) and raw values.

    `values` may hold NaN and infinities: they move to `kind` and leave null behind. None means "missing".
    """
    height = len(values)
    raw = pl.Series("raw", values, dtype=pl.Float64, strict=False)
    frame = pl.DataFrame({"raw": raw})
    for name, dtype in SERIES_SCHEMA.items():
        if name in ("value", "kind"):
            continue
        column = columns.get(name)
        default = 0 if name == "attempt" else None
        frame = frame.with_columns(
            pl.lit(default, dtype=dtype).alias(name)
            if column is None
            else pl.Series(name, column, dtype=dtype, strict=False)
        )
    if frame.height != height:
        raise ValueError("columns and values differ in length")
    kind = (
        pl.when(pl.col("raw").is_null()).then(pl.lit("missing"))
        .when(pl.col("raw").is_nan()).then(pl.lit("nan"))
        .when(pl.col("raw").is_infinite() & (pl.col("raw") > 0)).then(pl.lit("posinf"))
        .when(pl.col("raw").is_infinite()).then(pl.lit("neginf"))
        .otherwise(pl.lit("finite"))
        .cast(KIND)
    )  # fmt: skip
    value = pl.when(pl.col("raw").is_finite()).then(pl.col("raw")).otherwise(None)
    return frame.with_columns(kind.alias("kind"), value.alias("value")).select(list(SERIES_SCHEMA))


def _settings_frame(run: str, settings: Iterable[Setting]) -> pl.DataFrame:
    rows = [
        (run, s.attempt, s.key, s.name, json.dumps(s.value, default=str), s.origin, s.source, s.line) for s in settings
    ]
    return pl.DataFrame(rows, schema=TABLES["settings"], orient="row")


def _events_frame(events: Iterable[Event]) -> pl.DataFrame:
    rows = [
        (e.kind, e.attempt, e.rank, e.host, e.time, e.step, e.text, json.dumps(dict(e.data), default=str), e.source,
         e.line)
        for e in events
    ]  # fmt: skip
    return pl.DataFrame(rows, schema=TABLES["events"], orient="row")


def _environment_frame(facts: Iterable[Fact]) -> pl.DataFrame:
    rows = [(f.key, f.value, f.rank, f.host, f.source, f.line, f.attempt) for f in facts]
    return pl.DataFrame(rows, schema=TABLES["environment"], orient="row")
