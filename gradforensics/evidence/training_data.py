"""The training data of a run: those that the user names and those that lie in its directory, audited for its table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from gradforensics.errors import UsageError
from gradforensics.evidence import names
from gradforensics.evidence.discover import printable
from gradforensics.evidence.files import File
from gradforensics.evidence.pieces import Group, Places
from gradforensics.tables import Evidence, Notice, Progress, Source
from gradforensics.token_ids import ids_of

if TYPE_CHECKING:
    from gradforensics.audit import Audited, DataFile, Known
    from gradforensics.audit.tokenizer import Tokenizer

READER = "training-data"
COLUMNAR = ("parquet", "arrow")
_TEXTS = frozenset({".jsonl", ".ndjson", ".json", ".jsonlines", ".csv", ".tsv"})
# What is read of files that the user did not name: enough to see a habit, not so much that a log takes minutes.
MOST_LOOKED = 200
_MOST_FILES = 20
_FILE_LIMIT, _ALL_LIMIT = 64 << 20, 256 << 20


def is_one(file: File) -> bool:
    """Whether a file in a run directory is plainly training data: by its columns, none of which is a metric's."""
    if file.suffix not in _TEXTS or file.alone or file.opener is not None or not file.is_text:
        return False
    from gradforensics.audit import columns_of_head, is_training_data  # noqa: PLC0415  most files are not asked

    columns = columns_of_head(file.start, file.suffix)
    return bool(columns) and not _of_a_log(columns) and is_training_data(columns, file.name)


def is_table_of_samples(file: File) -> bool:
    """The same of a Parquet or Arrow file, by its schema."""
    if file.opener is not None:
        return False
    from gradforensics.audit import columns_of_table, is_training_data  # noqa: PLC0415  as above

    columns = columns_of_table(file.path)
    return bool(columns) and not _of_a_log(columns) and is_training_data(columns, file.name)


def _of_a_log(columns: Iterable[str]) -> bool:
    """Whether columns are those of a log: generated samples that a training logs stand beside a step or a reward."""
    return any(
        names.is_metric(c) or names.column_rank("step", c) is not None or names.column_rank("epoch", c) is not None
        for c in columns
        if c.lower() not in ("labels", "label", "tokens", "text", "length")
    )


class Given:
    """What the user names with --data and --tokenizer. Raises UsageError for what is not there."""

    def __init__(self, paths: Sequence[Path], tokenizer: Path | None) -> None:
        for path in paths:
            if not path.is_file():
                reason = "is no file; name the files of samples one by one" if path.exists() else "no such file"
                raise UsageError(f"--data {path}: {reason}")
        self.paths = list(dict.fromkeys(paths))
        self.tokenizer: Tokenizer | None = None
        if tokenizer is not None:
            from gradforensics.audit.tokenizer import Tokenizer  # noqa: PLC0415  loaded only where it is asked for

            self.tokenizer = Tokenizer(tokenizer)


def attach(
    evidence: Evidence, given: Given, own: Sequence[File], done: dict[object, list[Audited]], progress: Progress | None
) -> None:
    """Audit the named files and those of the run's own directory, and put the result into the evidence.

    done: the audits of this analysis, so that runs of the same settings share them.
    """
    named = {path.resolve() for path in given.paths}
    found = [file for file in own if file.path.resolve() not in named]
    if not found and not given.paths:
        return
    from gradforensics import audit  # noqa: PLC0415  most runs have no training data

    known = _known(evidence)
    if given.tokenizer is not None:
        known = given.tokenizer.known(known)
    files = [_named(path, progress) for path in given.paths]
    files += _bounded(found, evidence, progress)
    key = (known, tuple((file.path, file.limit) for file in files))
    if key not in done:
        done[key] = audit.audit(files, known, given.tokenizer)
    evidence.tables["data"] = audit.rows_of(done[key])
    inventory = {source.path for source in evidence.sources}
    for file, one in zip(files, done[key], strict=True):
        evidence.notices += one.notices
        if file.name not in inventory:
            remark = "named with --data" if one.read else "named with --data; not read"
            reader = READER if one.read else None
            evidence.sources.append(Source(file.name, file.size, None, reader, remark))


def _named(path: Path, progress: Progress | None) -> DataFile:
    from gradforensics.audit import DataFile  # noqa: PLC0415  as above

    return DataFile(path, printable(str(path)), path.stat().st_size, None, progress)


def _bounded(found: Sequence[File], evidence: Evidence, progress: Progress | None) -> list[DataFile]:
    from gradforensics.audit import DataFile  # noqa: PLC0415  as above

    files: list[DataFile] = []
    left = _ALL_LIMIT
    for file in found:
        if len(files) >= _MOST_FILES or left <= 0:
            text = "training data: not audited, because many files are; --data FILE audits it"
            evidence.notices.append(Notice(file.name, None, text))
            continue
        limit = min(_FILE_LIMIT, left)
        files.append(DataFile(file.path, file.name, file.size, limit, progress))
        left -= min(file.size, limit)
    return files


def _known(evidence: Evidence) -> Known:
    from gradforensics.audit import Known  # noqa: PLC0415  as above

    def whole(key: str) -> int | None:
        number = evidence.number(key)
        return int(number) if number is not None and number > 0 else None

    pads, ends = (ids_of(evidence.setting(key)) for key in ("pad_token_id", "eos_token_id"))
    return Known(whole("vocab_size"), pads, ends, whole("max_seq_length"))


def assigned(files: Sequence[File], groups: Sequence[Group]) -> dict[int, list[File]]:
    """The training data of every run, by id() of its group: those of its folder, or of one near."""
    places = Places(groups)
    found: dict[int, list[File]] = {}
    for file in files:
        for group in places.nearest(PurePosixPath(file.name).parent):
            found.setdefault(id(group), []).append(file)
    return found
