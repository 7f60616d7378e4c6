"""Files -> readings -> runs -> Evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import polars as pl

from gradforensics.checkpoints.discover import may_be_beside, may_be_part
from gradforensics.errors import NoEvidenceError
from gradforensics.evidence import checkpoints, grouping, names
from gradforensics.evidence import settings as configuration
from gradforensics.evidence.discover import Root, discover, is_later
from gradforensics.evidence.endings import ending_of
from gradforensics.evidence.files import HASH_LIMIT, File
from gradforensics.evidence.grouping import Group, Piece
from gradforensics.evidence.readers import READERS, Reader
from gradforensics.evidence.rows import Reading, Track
from gradforensics.tables import Evidence, Notice, Progress, SeriesFrame, SeriesKey, Setting, Source
from gradforensics.untrusted.files import RefusedError, RegularFile

if TYPE_CHECKING:
    from gradforensics.checkpoints.load import Loaded
    from gradforensics.evidence.flight_recorder import Dump

_COUNTS = (
    "What would count: trainer_state.json, trainer_log.jsonl, a CSV or JSON-lines file with a loss or another metric "
    "per step, a console log with training lines, or a checkpoint. --map COLUMN=SERIES names a column that was not "
    "recognised."
)
_DUMPS = frozenset({"", ".pkl", ".pickle", ".json"})
_DUMP_MARKS = (b"pg_config", b"pg_status", b"nccl_version", b"comm_lib_version", b"entries")
_TEXTS = frozenset(
    {".json", ".jsonl", ".csv", ".tsv", ".log", ".txt", ".out", ".err", ".yaml", ".yml", ".toml", ".stdout", ".stderr"}
)


def gather(
    paths: Sequence[Path],
    *,
    settings: Mapping[str, Any] | None = None,
    columns: Mapping[str, str] | None = None,
    tensors: bool = True,
    names_from_config: bool = False,
    progress: Progress | None = None,
) -> list[Evidence]:
    """The evidence of every run in `paths` (directories or files), in the order of their names.

    settings: the user's --set, applied to every run; columns: the user's --map, raw column name -> series name,
    optionally with a phase ("eval/loss"); tensors: whether those of checkpoints are measured or only listed;
    names_from_config: whether transformers may be asked, in a child process, what their parameters are called. Raises
    NoEvidenceError where nothing speaks of a training and UsageError for paths that do not exist.
    """
    columns = {key.strip(): value.strip() for key, value in (columns or {}).items()}
    names.check_mapping(columns)
    given = configuration.from_user(settings or {})
    roots = discover(paths, columns)
    total = sum(len(root.files) for root in roots)
    done = 0
    found: list[Evidence] = []
    looked: list[_Looked] = []
    for root in roots:
        part = _Looked(root)
        looked.append(part)
        for file in root.files:
            part.file(file)
            done += 1
            if progress is not None:
                progress("reading", done, total)
        part.checkpoints(progress, names_from_config=names_from_config)
        found += part.runs(given, tensors=tensors, progress=progress)
    if not found:
        raise NoEvidenceError(_nothing(looked, paths))
    _distinct(found)
    known = {name for part in looked for piece in part.pieces for name in piece.reading.known_columns()}
    for column, series in columns.items():
        if column not in known:
            text = f'no file has a column "{column}" (--map {column}={series})'
            for evidence in found:
                evidence.notices.append(Notice("--map", None, text))
    return found


class _Looked:
    """One input while it is read: its pieces, and the sources that no reader claimed."""

    def __init__(self, root: Root) -> None:
        self.root = root
        self.pieces: list[Piece] = []
        self.sources: dict[str, Source] = {}
        self.notices: list[Notice] = list(root.notices)
        self.later: dict[str, str] = {}
        self.stored: list[File] = []
        self.loaded: list[Loaded] = []
        self.dumps: list[Dump] = []

    def file(self, file: File) -> None:
        """Read one file, or say why it was not read."""
        try:
            self._file(file)
        except OSError as error:
            text = f"not read: {error.strerror or error}"
            self._source(file, None, text, hashed=False)
            self.notices.append(Notice(file.name, None, text))
        finally:
            file.__dict__.pop("head", None)

    def _file(self, file: File) -> None:
        if self._dump(file):
            return
        if may_be_part(file.name) and not (file.base == "training_args.bin" and file.is_text):
            self.stored.append(file)
            return
        if not file.size:
            self._unread(file, "empty file")
            return
        if may_be_beside(file.name):
            self.stored.append(file)
        if file.is_lfs_pointer:
            self._unread(file, "only a git-LFS pointer: the content was not fetched (git lfs pull)")
            return
        if is_later(file):
            self._source(file, None, f"this version does not read {_kind(file)}")
            self.later[file.name] = _kind(file)
            return
        if not file.head:
            self._unread(file, "no valid gzip data")
            return
        if not file.is_text:
            if file.alone or file.suffix in _TEXTS:
                self._unread(file, "binary content under the name of a text")
            return
        for reader in READERS:
            if not reader.sniff(file):
                continue
            reading = _read(reader, file)
            if reading.claimed:
                self._claim(file, reader.name, reading)
                return
        if file.alone:
            self._unread(file, "no reader knows this content")

    def _dump(self, file: File) -> bool:
        """Whether the file is a dump of PyTorch's Flight Recorder, which is then read."""
        if file.suffix not in _DUMPS or not any(mark in file.head for mark in _DUMP_MARKS):
            return False
        from gradforensics.evidence import flight_recorder  # noqa: PLC0415  loaded only where there may be a dump

        if not flight_recorder.looks_like_one(file.name, file.head):
            return False
        try:
            self.dumps.append(flight_recorder.read_dump(RegularFile(file.path, file.name, file.size)))
        except RefusedError as error:
            self._unread(file, f"not read: {error}")
        else:
            self._source(file, "flight-recorder", "")
        return True

    def _claim(self, file: File, reader: str, reading: Reading) -> None:
        self._source(file, reader, "")
        if file.damaged:
            self.notices.append(Notice(file.name, None, "the gzip data is damaged or cut: read up to there"))
        self.notices += [Notice(file.name, line, text) for line, text in reading.notices]
        piece = Piece(file, reader, reading)
        if piece.rank is not None:
            _name_rank(reading, piece.rank)
        self.pieces.append(piece)

    def _unread(self, file: File, text: str) -> None:
        self._source(file, None, text)
        self.notices.append(Notice(file.name, None, text))

    def _source(self, file: File, reader: str | None, remark: str, *, hashed: bool = True) -> None:
        digest = file.digest() if hashed else None
        if hashed and digest is None:
            remark = "; ".join(filter(None, (remark, f"larger than {HASH_LIMIT >> 20} MB: no sha256")))
        self.sources[file.name] = Source(file.name, file.size, digest, reader, remark)

    def checkpoints(self, progress: Progress | None, *, names_from_config: bool) -> None:
        """Open the checkpoints among the files that no reader of logs took."""
        if not any(may_be_part(file.name) for file in self.stored):
            return
        self.loaded = checkpoints.open_checkpoints(self.stored, progress, names_from_config=names_from_config)
        self.notices += checkpoints.dangling(self.root.files, self.loaded)
        for file, reading in checkpoints.histories(self.loaded, self.stored):
            self.notices += [Notice(file.name, None, text) for _, text in reading.notices]
            self.pieces.append(Piece(file, "checkpoint", reading))
        readers = {name: one.checkpoint for one in self.loaded for name in one.checkpoint.files}
        for file in self.stored:
            checkpoint = readers.get(file.name)
            if file.name in self.sources:
                continue
            try:
                if checkpoint is not None:
                    unread = file.name in checkpoint.unread
                    self._source(file, None if unread else f"checkpoint ({checkpoint.format})", "")
                elif may_be_part(file.name):
                    self._unread(file, "no reader knows this content")
            except OSError as error:
                self._source(file, None, f"not read: {error.strerror or error}", hashed=False)

    # -- runs --------------------------------------------------------------------------------------------------------

    def runs(self, given: Sequence[Setting], *, tensors: bool, progress: Progress | None) -> list[Evidence]:
        """The evidence of every run of this input."""
        groups = grouping.group(self.pieces)
        stored = checkpoints.assign(self.loaded, groups)
        dumps = self._assigned_dumps(groups)
        if not groups:
            self.notices += [n for one in self.loaded for n in one.checkpoint.notices]
            return []
        grouping.name(groups, str(self.root.path), single=self.root.single, label=self.root.label)
        mine = {id(g): [p.file.name for p in g.pieces] for g in groups}
        for identity, those in stored.items():
            mine[identity] += [name for one in those for name in one.checkpoint.files]
        claimed = {name for names_ in mine.values() for name in names_}
        for name in [*self.sources, *(n.source for n in self.notices)]:
            if name not in claimed:
                claimed.add(name)
                for found in grouping.nearest(PurePosixPath(name).parent, groups)[:1]:
                    mine[id(found)].append(name)
        for identity, left in dumps.items():
            mine[identity] += [dump.name for dump in left]
        runs: list[Evidence] = []
        for one in sorted(groups, key=lambda g: g.name):
            evidence = self._evidence(one, set(mine[id(one)]), given, dumps.get(id(one), []))
            if stored.get(id(one)):
                checkpoints.attach(evidence, stored[id(one)], measured=tensors, progress=progress)
            runs.append(evidence)
        return runs

    def _assigned_dumps(self, groups: list[Group]) -> dict[int, list[Dump]]:
        """The Flight Recorder dumps of every run, by id() of its group; where no run is near, they are one."""
        found: dict[int, list[Dump]] = {}
        own: list[Group] = []
        for dump in self.dumps:
            folder = PurePosixPath(dump.name).parent
            near = grouping.around(folder, groups) or own
            if not near:
                own.append(Group(folder, []))
                near = own
            found.setdefault(id(near[0]), []).append(dump)
        groups += own
        return found

    def _evidence(self, found: Group, sources: set[str], given: Sequence[Setting], dumps: Sequence[Dump]) -> Evidence:
        evidence = Evidence(found.name)
        evidence.sources = [s for s in self.sources.values() if s.path in sources]
        evidence.notices = [*self._later_notices(sources), *(n for n in self.notices if n.source in sources)]
        pieces = sorted(found.pieces, key=lambda p: -len(p.folder.parts))  # the nearest configuration speaks first
        stated = [p.reading.settings for p in pieces if p.reading.settings is not None]
        if stated or given:
            evidence.settings = [*given, *(s for part in stated for s in part)]
        heard = [p.reading.events for p in found.pieces if p.reading.events is not None]
        evidence.events = [e for part in heard for e in part] if heard else None
        if dumps:
            from gradforensics.evidence import flight_recorder  # noqa: PLC0415  loaded only where there is a dump

            evidence.events = [*(evidence.events or []), *flight_recorder.analyse(dumps)] or evidence.events
            evidence.notices += [Notice(source, None, text) for source, text in flight_recorder.notices(dumps)]
        _add_series(evidence, found)
        evidence.ending = ending_of(evidence, found.pieces)
        return evidence

    def _later_notices(self, sources: set[str]) -> list[Notice]:
        """One notice per kind of file that a run holds and this version does not read."""
        kinds: dict[str, list[str]] = {}
        for name, kind in self.later.items():
            if name in sources:
                kinds.setdefault(kind, []).append(name)
        return [
            Notice(found[0], None, f"this version does not read {kind}{_such(len(found))}")
            for kind, found in kinds.items()
        ]


def _such(count: int) -> str:
    return f" ({count} such files)" if count > 1 else ""


def _name_rank(reading: Reading, rank: int) -> None:
    """Give everything in a file that is called after a rank this rank, where its lines do not name one."""
    for track in reading.tracks:
        frame = track.stored.frame.with_columns(pl.col("rank").fill_null(pl.lit(rank, pl.UInt32)))
        track.stored = replace(track.stored, frame=frame)
    if reading.events is not None:
        reading.events = [event if event.rank is not None else replace(event, rank=rank) for event in reading.events]


def _read(reader: Reader, file: File) -> Reading:
    """What the reader says; a defect of one reader must not cost the user the other files."""
    try:
        return reader.read(file)
    except OSError:
        raise
    except Exception as error:  # noqa: BLE001  turned into a notice, which the report shows
        text = f'the reader "{reader.name}" failed, which is a defect of this tool: {type(error).__name__}: {error}'
        return Reading(notices=[(None, text)])


def _add_series(evidence: Evidence, found: Group) -> None:
    """Store the series of a run's files; those that continue each other become one, older attempts first."""
    states = [p for p in found.pieces if p.reader == "hf-trainer-state" and p.reading.tracks]
    if len(states) > 1:
        states.sort(key=lambda p: (p.reading.trail.last_step or 0, -len(PurePosixPath(p.file.name).parts)))
        found.chain = []
        _store_states(evidence, states)
    if found.chain:
        _store_chain(evidence, found.chain)
    for piece in found.pieces:
        if piece not in found.chain and (piece not in states or len(states) < 2):
            for track in piece.reading.tracks:
                _store(evidence, track.phase, track.series, track.tag, piece.file.name, track.stored)


def _store(evidence: Evidence, phase: Any, series: str, tag: str, source: str, stored: SeriesFrame) -> None:
    evidence.frames[SeriesKey(evidence.name, phase, series, tag, source)] = stored


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
        stored = replace(track.stored, frame=frame)
        _store(evidence, track.phase, track.series, track.tag, main.file.name, stored)


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


def _store_chain(evidence: Evidence, chain: Sequence[Piece]) -> None:
    """Files that continue each other as one series; lines stay known for the file with most points only."""
    main = max(chain, key=lambda p: max(t.stored.frame.height for t in p.reading.tracks))
    others = ", ".join(p.file.name for p in chain if p is not main)
    text = f"continues or is continued by {others}: read as attempts of one run"
    evidence.notices.append(Notice(main.file.name, None, text))
    merged: dict[tuple[Any, str, str], list[pl.DataFrame]] = {}
    kept: dict[tuple[Any, str, str], SeriesFrame] = {}
    offset = 0
    for piece in chain:
        most = 0
        for track in piece.reading.tracks:
            frame = track.stored.frame.with_columns((pl.col("attempt") + offset).cast(pl.UInt16))
            most = max(most, int(track.stored.frame["attempt"].max() or 0))  # type: ignore[arg-type]  # a UInt16 column
            if piece is not main:
                frame = frame.with_columns(pl.lit(None, pl.UInt32).alias("line"))
            merged.setdefault((track.phase, track.series, track.tag), []).append(frame)
            kept[track.phase, track.series, track.tag] = track.stored
        offset += most + 1
    for (phase, series, tag), frames in merged.items():
        stored = kept[phase, series, tag]
        _store(
            evidence,
            phase,
            series,
            tag,
            main.file.name,
            SeriesFrame(pl.concat(frames), stored.step_unit, stored.resolution),
        )


def _distinct(found: list[Evidence]) -> None:
    """Runs of several inputs that are called alike get a number behind their names."""
    seen: dict[str, int] = {}
    for evidence in found:
        seen[evidence.name] = seen.get(evidence.name, 0) + 1
        if seen[evidence.name] > 1:
            old, evidence.name = evidence.name, f"{evidence.name} ({seen[evidence.name]})"
            evidence.frames = {
                key._replace(run=evidence.name) if key.run == old else key: f for key, f in evidence.frames.items()
            }


def _kind(file: File) -> str:
    if "tfevents" in file.base:
        return "TensorBoard event files"
    kinds = {
        ".wandb": "W&B files",
        ".sqlite": "databases",
        ".sqlite3": "databases",
        ".db": "databases",
        ".tar": "archives",
        ".tgz": "archives",
    }
    return kinds.get(file.suffix, "files of this kind")


def _nothing(looked: Sequence[_Looked], paths: Sequence[Path]) -> str:
    """What was looked at, and what would have counted."""
    where = ", ".join(str(p) for p in paths)
    later = [name for part in looked for name in part.later]
    pieces = [p for part in looked for p in part.pieces]
    if later and not pieces:
        kinds = sorted({kind for part in looked for kind in part.later.values()})
        which = f"{' and '.join(kinds)} ({_files(len(later))}, such as {later[0]})"
        return f"{where}: only {which}, which this version does not read. {_COUNTS}"
    count = sum(len(part.root.files) for part in looked)
    read = ", ".join(f"{p.file.name} ({p.reader})" for p in pieces[:5]) or "none that a reader knows"
    unread = f"; not read by this version: {', '.join(later[:3])}" if later else ""
    said = [f"{n.source}: {n.text}" for part in looked for n in part.notices if n.source not in later][:3]
    remarks = f"; {'; '.join(said)}" if said else ""
    looked_at = f"{_files(count)} (read: {read}{unread}{remarks})"
    return f"{where}: no training series and no log of a training among {looked_at}. {_COUNTS}"


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count} files"
