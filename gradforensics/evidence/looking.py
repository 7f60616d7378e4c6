"""One input, read file by file: pieces for the runs, sources, and what could not be read."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from gradforensics.checkpoints.discover import may_be_beside, may_be_part
from gradforensics.evidence import checkpoints, interleaving, training_data
from gradforensics.evidence.archives import is_archive_name
from gradforensics.evidence.discover import Root
from gradforensics.evidence.files import HASH_LIMIT, File
from gradforensics.evidence.pieces import Piece
from gradforensics.evidence.readers import READERS, Reader, binary_readers
from gradforensics.evidence.readings import Reading
from gradforensics.tables import Notice, Progress, Source
from gradforensics.untrusted.files import Memory, RefusedError, RegularFile

if TYPE_CHECKING:
    from gradforensics.checkpoints.load import Loaded
    from gradforensics.evidence.flight_recorder import Dump

_DUMPS = frozenset({"", ".pkl", ".pickle", ".json"})
_DUMP_MARKS = (b"pg_config", b"pg_status", b"nccl_version", b"comm_lib_version", b"entries")
_TEXTS = frozenset(
    {".json", ".jsonl", ".csv", ".tsv", ".log", ".txt", ".out", ".err", ".yaml", ".yml", ".toml", ".stdout", ".stderr"}
)
# names that promise a format, and what is said where the content is not of it
_PROMISES = (
    (re.compile(r"\.tfevents\.|^events\.out\.tfevents"), "no TensorBoard event file by its content"),
    (re.compile(r"\.wandb$"), "no W&B file by its content"),
    (re.compile(r"\.(?:sqlite3?|db)$"), "no database that this version reads"),
)
_LARGEST_POINTER = 1024  # bytes of the text that git-LFS leaves in the place of a file


class Looked:
    """What one input holds: its pieces, and the sources that no reader claimed."""

    def __init__(self, root: Root) -> None:
        self.root = root
        self.pieces: list[Piece] = []
        self.sources: dict[str, Source] = {}
        self.notices: list[Notice] = list(root.notices)
        self.stored: list[File] = []
        self.loaded: list[Loaded] = []
        self.dumps: list[Dump] = []
        self.data: list[File] = []
        self.data_of: dict[int, list[File]] = {}  # by id() of the evidence of a run
        self._columnar: dict[str, list[str]] = {}  # no training data: by suffix

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
        if file.changed:
            self.notices.append(Notice(file.name, None, file.changed))

    def _file(self, file: File) -> None:
        if self._dump(file):
            return
        if may_be_part(file.name) and not (file.base == "training_args.bin" and file.is_text):
            self._part(file)
            return
        if not file.size:
            self._unread(file, "empty file")
            return
        if may_be_beside(file.name) and file.opener is None:
            self.stored.append(file)
        if file.size <= _LARGEST_POINTER and file.is_lfs_pointer:
            self._unread(file, "only a git-LFS pointer: the content was not fetched (git lfs pull)")
            return
        if file.suffix.removeprefix(".") in training_data.COLUMNAR:
            self._table(file)
            return
        if not file.head:
            self._unread(file, "no valid gzip data" if file.gzipped else "nothing could be read")
            return
        if training_data.is_one(file):
            self._samples(file)
        elif not self._read(file):
            self._unclaimed(file)

    def _samples(self, file: File) -> None:
        self.data.append(file)
        self._source(file, training_data.READER, "", hashed=file.size <= HASH_LIMIT)

    def _table(self, file: File) -> None:
        """A Parquet or Arrow file: training data, or something that this version does not read."""
        if len(self.data) < training_data.MOST_LOOKED and training_data.is_table_of_samples(file):
            self._samples(file)
        else:
            self._columnar.setdefault(file.suffix, []).append(file.name)

    def tell_unread(self) -> None:
        """Say which tables are no training data, one notice for each suffix."""
        for suffix, names in self._columnar.items():
            several = f" ({len(names)} such files)" if len(names) > 1 else ""
            text = f"no training data by its columns; this version does not read other {suffix} files{several}"
            self.notices.append(Notice(names[0], None, text))

    def _part(self, file: File) -> None:
        """A part of a checkpoint; inside of an archive only pickles come here, and are not read."""
        if file.opener is None:
            self.stored.append(file)
        else:
            self._unread(file, "a pickle inside of an archive: not read")

    def _read(self, file: File) -> bool:
        """Whether a reader took the file."""
        for reader in READERS if file.is_text else binary_readers():
            if not reader.sniff(file):
                continue
            reading = _reading(reader, file)
            if reading.claimed:
                self._claim(file, reader.name, reading)
                return True
        return False

    def _unclaimed(self, file: File) -> None:
        promised = next((text for name, text in _PROMISES if name.search(file.base)), None)
        if promised is not None:
            self._unread(file, promised)
        elif is_archive_name(file.name.lower()):
            self._unread(file, "an archive that cannot be read: damaged, or of another kind")
        elif not file.is_text and (file.alone or file.suffix in _TEXTS):
            self._unread(file, "binary content under the name of a text")
        elif file.alone:
            self._unread(file, "no reader knows this content")

    def _dump(self, file: File) -> bool:
        """Whether the file is a dump of PyTorch's Flight Recorder, which is then read."""
        if file.suffix not in _DUMPS or not any(mark in file.head for mark in _DUMP_MARKS):
            return False
        from gradforensics.evidence import flight_recorder  # noqa: PLC0415  loaded only where there may be a dump

        if not flight_recorder.looks_like_one(file.name, file.head):
            return False
        try:
            if file.opener is None:
                self.dumps.append(flight_recorder.read_dump(RegularFile(file.path, file.name, file.size)))
            else:
                self.dumps.append(flight_recorder.read_dump(Memory(file.name, b"".join(file.chunks()))))
        except RefusedError as error:
            self._unread(file, f"not read: {error}")
        else:
            self._source(file, "flight-recorder", "")
        return True

    def _claim(self, file: File, reader: str, reading: Reading) -> None:
        self._source(file, reader, reading.remark)
        if file.damaged:
            self.notices.append(Notice(file.name, None, "the gzip data is damaged or cut: read up to there"))
        if reading.runs:
            self.notices += [Notice(file.name, line, text) for line, text in reading.notices]
        for name, one in reading.runs.items() if reading.runs else [("", reading)]:
            parts = interleaving.parted(one)
            self.notices += [Notice(file.name, line, text) for line, text in one.notices]
            for number, part in enumerate(parts, start=1):
                own = f"{PurePosixPath(file.name).stem} (writer {number})" if number > 1 else ""
                self.pieces.append(Piece(file, reader, part, "/".join(filter(None, (name, own)))))
        for name, printed in reading.members.items():
            self.notices += [Notice(f"{file.name}/{name}", line, text) for line, text in printed.notices]
            member = Piece(replace(file, name=f"{file.name}/{name}"), "console", printed)
            member.folder = PurePosixPath(file.name).parent
            self.pieces.append(member)

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


def _reading(reader: Reader, file: File) -> Reading:
    """What the reader says; a defect of one reader must not cost the user the other files."""
    try:
        return reader.read(file)
    except OSError:
        raise
    except Exception as error:  # noqa: BLE001  turned into a notice, which the report shows
        text = f'the reader "{reader.name}" failed, which is a defect of this tool: {type(error).__name__}: {error}'
        return Reading(notices=[(None, text)])
