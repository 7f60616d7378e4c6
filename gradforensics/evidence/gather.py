"""Files -> readings -> runs -> Evidence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from gradforensics.errors import NoEvidenceError
from gradforensics.evidence import checkpoints, grouping, joining, names, replays, run_names, training_data
from gradforensics.evidence import settings as configuration
from gradforensics.evidence.archives import open_archives
from gradforensics.evidence.discover import discover
from gradforensics.evidence.endings import ending_of
from gradforensics.evidence.files import File
from gradforensics.evidence.hiding import hide_secrets
from gradforensics.evidence.looking import Looked
from gradforensics.evidence.pieces import Group, Piece, Places
from gradforensics.evidence.wandb_log.beside import without_repeats
from gradforensics.notices import READING
from gradforensics.tables import Evidence, Fact, Notice, Progress, Setting, Source

if TYPE_CHECKING:
    from gradforensics.audit import Audited
    from gradforensics.checkpoints.load import Loaded
    from gradforensics.evidence.flight_recorder import Dump

_COUNTS = (
    "What would count: trainer_state.json, trainer_log.jsonl, a CSV or JSON-lines file with a loss or another metric "
    "per step, a console log with training lines, or a checkpoint. --map COLUMN=SERIES names a column that was not "
    "recognised."
)


def gather(
    paths: Sequence[Path],
    *,
    settings: Mapping[str, Any] | None = None,
    columns: Mapping[str, str] | None = None,
    tensors: bool = True,
    names_from_config: bool = False,
    replayed: Sequence[Path] = (),
    data: Sequence[Path] = (),
    tokenizer: Path | None = None,
    progress: Progress | None = None,
) -> list[Evidence]:
    """The evidence of every run in `paths` (directories, archives or files), in the order of their names.

    settings: the user's --set, applied to every run; columns: the user's --map, raw column name -> series name,
    optionally with a phase ("eval/loss"); tensors: whether those of checkpoints are measured or only listed;
    names_from_config: whether transformers may be asked, in a child process, what their parameters are called;
    replayed: replay directories of steps of these runs; data: files of training data, audited for every run beside
    those in its directory; tokenizer: the tokenizer.json that encodes their texts. Raises NoEvidenceError where nothing
    speaks of a training and UsageError for paths that do not exist, for replay directories that are none or of no run
    here, and for a tokenizer that cannot be used.
    """
    columns = {key.strip(): value.strip() for key, value in (columns or {}).items()}
    names.check_mapping(columns)
    given = configuration.from_user(settings or {})
    directories = replays.read(replayed)
    samples = training_data.Given(data, tokenizer)
    roots = discover(paths, columns, ours=partial(replays.remark_on, given=replayed))
    typed = _typed(paths)
    found: list[Evidence] = []
    looked: list[Looked] = []
    with ExitStack() as stack:
        open_archives(roots, columns, stack)
        counted = _Counted(progress, sum(file.size for root in roots for file in root.files))
        for root in roots:
            part = Looked(root)
            looked.append(part)
            for file in root.files:
                with counted.reading(file):
                    part.file(file)
            part.tell_unread()
            part.checkpoints(progress, names_from_config=names_from_config)
            folder = typed.get(root.path, root.path)
            found += _runs(part, given, folder, tensors=tensors, progress=progress)
    if not found:
        raise NoEvidenceError(_nothing(looked, paths))
    _distinct(found)
    replays.attach(directories, found)
    own = {identity: files for part in looked for identity, files in part.data_of.items()}
    audited: dict[object, list[Audited]] = {}
    for evidence in found:
        training_data.attach(evidence, samples, own.get(id(evidence), []), audited, progress)
    known = {name for part in looked for piece in part.pieces for name in piece.reading.known_columns()}
    for column, series in columns.items():
        if column not in known:
            text = f'no file has a column "{column}" (--map {column}={series})'
            for evidence in found:
                evidence.notices.append(Notice("--map", None, text))
    for evidence in found:
        hide_secrets(evidence)
    return found


class _Counted:
    """How many bytes of all inputs were read, for the progress bar."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress = progress
        self._total = total
        self._before = 0  # bytes of the files that are done
        self._inside = 0  # bytes read of the file at hand, which may be compressed or read twice

    @contextmanager
    def reading(self, file: File) -> Iterator[None]:
        """While one file is read."""
        file.on_bytes = partial(self._add, file)
        yield
        file.on_bytes = None
        self._before += file.size
        self._inside = 0
        self._tell()

    def _add(self, file: File, count: int) -> None:
        self._inside = min(self._inside + count, file.size)
        self._tell()

    def _tell(self) -> None:
        if self._progress is not None:
            self._progress(READING, self._before + self._inside, self._total)


# -- runs ------------------------------------------------------------------------------------------------------------


def _typed(paths: Sequence[Path]) -> dict[Path, Path]:
    """The folders of the inputs as the user wrote them, by their whole paths."""
    return {path.resolve(): path for path in (p if p.is_dir() else p.parent for p in paths)} | {
        path.resolve(): path for path in paths
    }


def _runs(
    part: Looked, given: Sequence[Setting], folder: Path, *, tensors: bool, progress: Progress | None
) -> list[Evidence]:
    """The evidence of every run of one input; folder: what the user calls the input."""
    part.pieces = without_repeats(part.pieces)
    groups = grouping.group(part.pieces)
    stored = checkpoints.assign(part.loaded, groups)
    grouping.configure(groups, part.pieces)
    dumps = _assigned_dumps(part, groups)
    if not groups:
        part.notices += [n for one in part.loaded for n in one.checkpoint.notices]
        return []
    run_names.name(groups, str(part.root.path), single=part.root.single, label=part.root.label)
    shares = _shares(part, groups, stored, dumps)
    links = _links(part, groups)
    samples = training_data.assigned(part.data, groups)
    index = _Index(part)
    runs: list[Evidence] = []
    for one in sorted(groups, key=lambda g: g.name):
        evidence = _evidence(index, one, shares[id(one)], given, dumps.get(id(one), []))
        evidence.path = _called(folder, one.folder, PurePosixPath(part.root.label))
        facts = [*(evidence.environment or []), *links.get(id(one), [])]
        evidence.environment = facts or None
        if stored.get(id(one)):
            checkpoints.attach(evidence, stored[id(one)], measured=tensors, progress=progress)
        evidence.notices = joining.thinned(evidence.notices)
        part.data_of[id(evidence)] = samples.get(id(one), [])
        runs.append(evidence)
    return runs


def _called(folder: Path, of_run: PurePosixPath, label: PurePosixPath) -> str:
    """How the user can name the folder of a run; a label such as exp-rank-0 is folded into its parent."""
    return str(folder / of_run.relative_to(label) if of_run.is_relative_to(label) else folder)


def _assigned_dumps(part: Looked, groups: list[Group]) -> dict[int, list[Dump]]:
    """The Flight Recorder dumps of every run, by id() of its group; where no run is near, they are one."""
    found: dict[int, list[Dump]] = {}
    places = Places(groups)
    own: list[Group] = []
    for dump in part.dumps:
        folder = PurePosixPath(dump.name).parent
        near = places.around(folder) or own
        if not near:
            own.append(Group(folder, []))
            near = own
        found.setdefault(id(near[0]), []).append(dump)
    groups += own
    return found


def _shares(
    part: Looked, groups: Sequence[Group], stored: Mapping[int, Sequence[Loaded]], dumps: Mapping[int, Sequence[Dump]]
) -> dict[int, set[str]]:
    """The names of the files that every run speaks of, by id() of its group; what no run claims goes to a near one."""
    mine = {id(g): {p.file.name for p in g.pieces} for g in groups}
    for identity, those in stored.items():
        mine[identity].update(name for one in those for name in one.checkpoint.files)
    claimed = {name for names_ in mine.values() for name in names_}
    places = Places(groups)
    for name in [*part.sources, *(n.source for n in part.notices)]:
        if name not in claimed:
            claimed.add(name)
            mine[id(places.nearest(PurePosixPath(name).parent)[0])].add(name)
    for identity, left in dumps.items():
        mine[identity].update(dump.name for dump in left)
    return mine


def _links(part: Looked, groups: Sequence[Group]) -> dict[int, list[Fact]]:
    """The symbolic links to the folder of a run, such as latest-run, by id() of its group."""
    places = Places(groups)
    found: dict[int, list[Fact]] = {}
    for link, target in part.root.links.items():
        folder = PurePosixPath(target)
        near = [g for g in places.around(folder) if g.folder.is_relative_to(folder)]
        if len(near) == 1 and folder.parts:
            found.setdefault(id(near[0]), []).append(Fact("link", link, link))
    return found


class _Index:
    """The sources and notices of an input by the names of their files."""

    def __init__(self, part: Looked) -> None:
        self._part = part
        self._places = {name: place for place, name in enumerate(part.sources)}
        self._files = {f.name: f.path for f in part.root.files if f.opener is None and not f.gzipped}
        self._notices: dict[str, list[tuple[int, Notice]]] = {}
        for place, notice in enumerate(part.notices):
            self._notices.setdefault(notice.source, []).append((place, notice))

    def sources(self, names_: Iterable[str], found: Group) -> list[Source]:
        """The sources of these names in the order of reading, each with the reason why it belongs to the run."""
        ordered = sorted((name for name in names_ if name in self._places), key=self._places.__getitem__)
        return [_explained(self._part.sources[name], found.reasons.get(name, "")) for name in ordered]

    def files(self, sources: Iterable[Source]) -> dict[str, Path]:
        """Where those of the sources lie that are files of their own and not compressed, by name."""
        return {s.path: self._files[s.path] for s in sources if s.path in self._files}

    def notices(self, names_: Iterable[str]) -> list[Notice]:
        """The notices on these files, in the order in which they came up."""
        return [n for _, n in sorted((one for name in names_ for one in self._notices.get(name, ())), key=_first)]


def _first(one: tuple[int, Notice]) -> int:
    return one[0]


def _explained(source: Source, reason: str) -> Source:
    return replace(source, remark="; ".join(filter(None, (reason, source.remark)))) if reason else source


def _evidence(
    index: _Index, found: Group, share: set[str], given: Sequence[Setting], dumps: Sequence[Dump]
) -> Evidence:
    evidence = Evidence(found.name)
    evidence.sources = index.sources(share, found)
    evidence.files = index.files(evidence.sources)
    evidence.notices = index.notices(share)
    pieces = sorted(found.pieces, key=lambda p: -len(p.folder.parts))  # the nearest configuration speaks first
    stated = [_dated(p) for p in pieces if p.reading.settings is not None]
    if stated or given:
        evidence.settings = [*given, *(s for settings in stated for s in settings)]
    joining.join(evidence, found)
    if dumps:
        from gradforensics.evidence import flight_recorder  # noqa: PLC0415  loaded only where there is a dump

        evidence.events = [*(evidence.events or []), *flight_recorder.analyse(dumps)] or evidence.events
        evidence.notices += [Notice(source, None, text) for source, text in flight_recorder.notices(dumps)]
    evidence.ending = ending_of(evidence, found.pieces)
    return evidence


def _dated(piece: Piece) -> list[Setting]:
    """The settings of a file that is called after a launch (attempt_1/config.json), with its number."""
    settings = piece.reading.settings or []
    return [replace(s, attempt=piece.attempt) for s in settings] if piece.attempt is not None else settings


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


def _nothing(looked: Sequence[Looked], paths: Sequence[Path]) -> str:
    """What was looked at, and what would have counted."""
    where = ", ".join(str(p) for p in paths)
    count = sum(len(part.root.files) for part in looked)
    read = ", ".join(f"{p.file.name} ({p.reader})" for part in looked for p in part.pieces[:5])
    said = [f"{n.source}: {n.text}" for part in looked for n in joining.thinned(part.notices)][:3]
    remarks = f"; {'; '.join(said)}" if said else ""
    looked_at = f"{_files(count)} (read: {read or 'none that a reader knows'}{remarks})"
    return f"{where}: no training series and no log of a training among {looked_at}. {_COUNTS}"


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count} files"
