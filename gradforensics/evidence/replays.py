"""Replay directories: what was learned by running a step again, read for `analyze --with`.

Strict about types, lenient about content: a line that is torn or wrong is a notice, and the others are kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gradforensics.errors import UsageError
from gradforensics.evidence.discover import printable
from gradforensics.evidence.files import LINE_LIMIT, File
from gradforensics.experiment_rows import TABLE, Located, frame
from gradforensics.experiments import HEADER, RESULTS, SCHEMA, Code, Quantity, Replay, Result, result_from_json
from gradforensics.tables import Evidence, Notice, Replayed, Source

_TOOL = "gradforensics"
_READER = "replay"
# Far above what a replay writes (a few dozen results of a few kB); a file from a stranger must not cost more.
_LARGEST_HEADER, _LARGEST_RESULTS = 16 << 20, 64 << 20
_RESULTS, _QUANTITIES, _LISTED = 5000, 500, 1000
_TEXT, _NAME = 4000, 500
_WANTED = "--with wants the folder that gradforensics replay wrote"


@dataclass
class Directory:
    """One replay directory, read.

    path: the folder; name: how messages call it; lines: of the results of `replay`; sources: its two files.
    """

    path: Path
    name: str
    replay: Replay
    lines: list[int]
    sources: list[Source]
    notices: list[Notice]


def remark_on(folder: Path, given: Sequence[Path]) -> str | None:
    """What to say of a folder inside the evidence that is a capsule or a replay directory; None where it is neither.

    given: the folders of --with, on which there is nothing to say.
    """
    from gradforensics import capsule  # noqa: PLC0415  few runs have one

    if capsule.find(folder) == [folder]:
        return "a capsule: not read as a checkpoint; gradforensics replay runs its step again"
    try:
        _header(folder)
    except UsageError:
        return None
    if folder.resolve() in [one.resolve() for one in given]:
        return ""
    return "a replay directory: it counts only where it is named; pass it with --with"


def read(folders: Sequence[Path]) -> list[Directory]:
    """Read replay directories, each once. Raises UsageError for a folder that is none."""
    distinct = {folder.resolve(): folder for folder in reversed(folders)}
    return [_read(folder) for folder in reversed(distinct.values())]


def attach(directories: Sequence[Directory], runs: Sequence[Evidence]) -> None:
    """Give every replay to the run whose step it ran again. Raises UsageError where that cannot be told."""
    chosen = [(directory, _run_of(directory, runs)) for directory in directories]
    for evidence in runs:
        mine = [directory for directory, run in chosen if run is evidence]
        mine.sort(key=lambda directory: directory.replay.step)
        located: list[Located] = []
        for one in mine:
            evidence.replays.append(Replayed(one.name, one.replay, tuple(one.lines)))
            evidence.sources += one.sources
            evidence.notices += one.notices
            source = f"{one.name}/{RESULTS}"
            located += [Located(r, source, line) for r, line in zip(one.replay.results, one.lines, strict=True)]
        if mine:
            evidence.tables[TABLE] = frame(located)


# -- which run -------------------------------------------------------------------------------------------------------


def _run_of(directory: Directory, runs: Sequence[Evidence]) -> Evidence:
    said = directory.replay.run
    fits = [run for run in runs if run.name == said] or [run for run in runs if _last(said) in _names(run)]
    if len(fits) == 1:
        return fits[0]
    if len(runs) == 1:
        text = f"this is a replay of the run {said or '?'}, not of {runs[0].name}; it is used all the same"
        directory.notices.append(Notice(f"{directory.name}/{HEADER}", None, text))
        return runs[0]
    what = "several runs fit it" if fits else "no run is called so"
    known = ", ".join(run.name for run in (fits or runs)[:20])
    raise UsageError(
        f"--with {directory.name}: a replay of the run {said or '?'}; {what}: {known}. Analyze one of them"
    )


def _names(run: Evidence) -> set[str]:
    """What the folder of a run may be called."""
    folder = Path(run.path).resolve().name if run.path else ""
    return {_last(run.name), folder} - {""}


def _last(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2]


# -- reading ---------------------------------------------------------------------------------------------------------


def _read(folder: Path) -> Directory:
    data = _header(folder)
    name = printable(str(folder))
    header, results = f"{name}/{HEADER}", f"{name}/{RESULTS}"
    notices: list[Notice] = []
    replay = _replay(data, lambda text: notices.append(Notice(header, None, text)))
    found = Directory(folder, name, replay, [], [_source(folder / HEADER, header)], notices)
    if not replay.finished:
        notices.append(Notice(header, None, "the replay did not come to its end: it tells what was found until then"))
    if not (folder / RESULTS).is_file():
        notices.append(Notice(results, None, "the replay left no result"))
        return found
    found.sources.append(_source(folder / RESULTS, results))
    try:
        for line, result in _results(folder / RESULTS, results, notices):
            replay.results.append(result)
            found.lines.append(line)
    except OSError as error:
        notices.append(Notice(results, None, f"not read: {error.strerror or error}"))
    return found


def _header(folder: Path) -> dict[str, Any]:
    """The content of replay.json where it is one of ours. Raises UsageError."""
    path, name = folder / HEADER, printable(str(folder))
    no = f"{name}: no replay directory"
    if not folder.exists():
        raise UsageError(f"{name}: no such directory")
    if not folder.is_dir():
        raise UsageError(f"{no} but a file; {_WANTED}")
    from gradforensics import capsule  # noqa: PLC0415  few runs have one

    if capsule.find(folder) == [folder]:
        raise UsageError(f"{no} but a capsule: gradforensics replay runs its step; {_WANTED}")
    if not path.is_file():
        raise UsageError(f"{no} ({HEADER} is not there); {_WANTED}")
    try:
        file = File(path, HEADER, path.stat().st_size)
        if file.size > _LARGEST_HEADER:
            raise UsageError(f"{no} ({HEADER} is larger than any replay's)")
        found = json.loads(file.text())
    except OSError as error:
        raise UsageError(f"{name}/{HEADER}: {error.strerror or error}") from None
    except (ValueError, RecursionError):
        raise UsageError(f"{no} ({HEADER} is no JSON)") from None
    data: dict[str, Any] = found if isinstance(found, dict) else {}
    tool = data.get("tool")
    if not isinstance(tool, str) or not tool.startswith(_TOOL):
        raise UsageError(f"{no} ({HEADER} was not written by {_TOOL})")
    if data.get("schema") != SCHEMA:
        schema = clean(repr(data.get("schema")), 80)
        raise UsageError(f"{name}: a replay directory of schema {schema}; this version reads {SCHEMA}")
    if not _is_step(data.get("step")):
        raise UsageError(f"{no} ({HEADER} names no step)")
    return data


def _replay(data: Mapping[str, Any], remark: Any) -> Replay:
    """The header; a field of another type than it should have is left out, and `remark` is told so."""

    def field(key: str, kind: type, *, value: Any) -> Any:
        given = data.get(key, value)
        if isinstance(given, kind):
            return given
        remark(f"{key} is not as a replay writes it: left out")
        return value

    def text(key: str) -> str:
        return clean(field(key, str, value=""), _NAME)

    def listed(key: str) -> list[Any]:
        given: list[Any] = field(key, list, value=[])
        if len(given) > _LISTED:
            remark(f"{key}: the first {_LISTED} of {len(given)} are read")
        return given[:_LISTED]

    environment = field("environment", dict, value={})
    if len(environment) > _LISTED:
        remark(f"environment: the first {_LISTED} of {len(environment)} are read")
    codes = listed("code")
    if not all(isinstance(c, dict) for c in codes):
        remark("code is not as a replay writes it: in part left out")
    parts = ("file", "function", "sha256", "allowed_by")
    return Replay(
        tool=text("tool"),
        run=text("run"),
        step=data["step"],
        device=text("device"),
        state=text("state"),
        code=[Code(**{p: clean(str(c.get(p, "")), _NAME) for p in parts}) for c in codes if isinstance(c, dict)],
        environment={
            clean(str(key), _NAME): clean(str(value), _NAME) for key, value in list(environment.items())[:_LISTED]
        },
        notices=[clean(str(n), _TEXT) for n in listed("notices")],
        finished=field("finished", bool, value=False),
    )


def _results(path: Path, name: str, notices: list[Notice]) -> Iterator[tuple[int, Result]]:
    """(line, result) of every line that is one; the others and what lies beyond a bound are notices."""
    file = File(path, name, path.stat().st_size)
    wrong: list[tuple[int, str]] = []
    count = last = 0
    for number, text in file.lines(limit=_LARGEST_RESULTS):
        if not text.strip():
            continue
        if count == _RESULTS:
            notices.append(Notice(name, number, f"more than {_RESULTS} results: read up to here"))
            break
        last = number
        try:
            whole = result_from_json(json.loads(text))
            result = _bounded(whole)
        except (ValueError, RecursionError, OverflowError) as error:
            why = "no complete JSON" if isinstance(error, json.JSONDecodeError) else str(error)
            wrong.append((number, f"longer than {LINE_LIMIT >> 10} KiB" if len(text) > LINE_LIMIT else why))
            continue
        if len(whole.quantities) > _QUANTITIES:
            notices.append(
                Notice(name, number, f"{len(whole.quantities)} quantities: the first {_QUANTITIES} are read")
            )
        count += 1
        yield number, result
    if file.size > _LARGEST_RESULTS:
        notices.append(Notice(name, last, f"larger than {_LARGEST_RESULTS >> 20} MiB: read up to here"))
    if wrong and wrong[-1][0] == last:
        notices.append(Notice(name, last, f"the last line is torn or no result: {clean(wrong.pop()[1], _NAME)}"))
    if wrong:
        line, why = wrong[0]
        notices.append(Notice(name, line, f"{len(wrong)} lines are no results, this is the first: {clean(why, _NAME)}"))


def _bounded(result: Result) -> Result:
    """The result with texts of a length that a report can show, and not more quantities. Raises ValueError."""
    if not _is_step(result.step):
        raise ValueError("step is no number of a step")
    quantities = tuple(
        Quantity(clean(q.name, _NAME), q.value, clean(q.unit, _NAME), clean(q.variation, _NAME), clean(q.text, _NAME))
        for q in result.quantities[:_QUANTITIES]
    )
    return replace(
        result,
        experiment=clean(result.experiment, _NAME),
        question=clean(result.question, _TEXT),
        changed=clean(result.changed, _TEXT),
        result=clean(result.result, _TEXT),
        conclusion=clean(result.conclusion, _TEXT),
        quantities=quantities,
    )


def _is_step(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62


def clean(text: str, limit: int) -> str:
    """At most `limit` characters, without what UTF-8 cannot hold (JSON may spell lone surrogates)."""
    cut = text if len(text) <= limit else text[: limit - 1] + "…"
    return cut.encode("utf-8", "backslashreplace").decode()


def _source(path: Path, name: str) -> Source:
    file = File(path, name, path.stat().st_size)
    try:
        return Source(name, file.size, file.digest(), _READER)
    except OSError as error:
        return Source(name, file.size, None, None, f"not read: {error.strerror or error}")
