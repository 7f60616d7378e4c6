"""One rank's dump: the last operations of its process groups, as pickle or JSON, read as untrusted data.

Fields: torch/csrc/distributed/c10d/FlightRecorder.hpp and FlightRecorderDetail.hpp of PyTorch (dump version 2.x).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from pathlib import PurePosixPath
from typing import Any, TypeVar

from gradforensics.evidence.located_json import Cursor, TornJsonError
from gradforensics.untrusted import pickles
from gradforensics.untrusted.files import Memory, Opened, Readable, RefusedError

T = TypeVar("T")
Sizes = tuple[tuple[int, ...], ...]

_MOST_JSON = 128 << 20
_MOST_MENDED = 64 << 20
_MOST_ENTRIES = 200_000
_MOST_GROUPS = 10_000
_MOST_RANKS = 200_000  # members of one group
_MOST_MEMBERS = 2_000_000  # members of all groups of a dump
_MOST_FRAMES = 32
_MOST_TENSORS = 4096
_MOST_DIMENSIONS = 16
_TEXT = 200
_KEYS = (b"pg_config", b"pg_status", b"nccl_version", b"comm_lib_version", b"collective_seq_id", b"entries")
_NAMED = re.compile(r"(?:dump|trace|rank|flight)[a-z_-]*\d*(?:\.(?:pkl|pickle|json))?$", re.IGNORECASE)
_RANK = re.compile(r"rank[-_ ]?([0-9]{1,6})(?![0-9])", re.IGNORECASE)
_LAST = re.compile(r"(?<![0-9])([0-9]{1,6})$")
_SUFFIX = re.compile(r"\.(?:pkl|pickle|json|bin|trace|dump|txt)$", re.IGNORECASE)
_RANKS = re.compile(r"\[ *(?:[0-9]{1,6}(?: *, *[0-9]{1,6})*)? *\]")
_KNOWN_VERSION = re.compile(r"2\.\d+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]+")
_ENTRY_ENDS = (b"\x88u}(", b"\x89u}(")  # is_p2p, an entry's last value, its end, and the beginning of the next entry


@dataclass(frozen=True, slots=True)
class Group:
    """A process group. ranks: the global ranks of its members in the order of their ranks in it, () if unknown."""

    name: str
    description: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Status:
    """Sequence numbers of the last operation that a rank enqueued in a group, and saw completed (-1: none).

    Collectives and point-to-point operations share these two, each with its own count: only a group that has one kind
    of them can be judged by them.
    """

    enqueued: int
    completed: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One recorded operation. operation: without the backend ("all_reduce", "send 0->3", ranks within the group).

    sequence: collective_seq_id, of point-to-point operations p2p_seq_id; all of one batch share it. created: Unix
    seconds at which it was enqueued. state: "scheduled", "started" or "completed". frames: "function at file:line",
    innermost first; only of entries that had not completed.
    """

    record: int
    group: Group
    group_id: int | None
    backend: str
    operation: str
    sequence: int
    op_id: int | None
    point_to_point: bool
    state: str
    retired: bool
    input_sizes: Sizes
    output_sizes: Sizes
    input_dtypes: tuple[str, ...]
    output_dtypes: tuple[str, ...]
    created: float | None
    timeout_ms: int | None
    frames: tuple[str, ...] = ()

    @property
    def finished(self) -> bool:
        """Whether it completed. Gloo's recorder has no other mark than `retired`; elsewhere that may be a timeout."""
        return self.state == "completed" or (self.retired and self.backend == "gloo")

    @property
    def timed_out(self) -> bool:
        """Whether the watchdog gave it up."""
        return self.retired and not self.finished


@dataclass(slots=True)
class Dump:
    """What one rank's recorder held. `name`: the file; rank: None where neither name nor content tells it.

    status: by the name of the group, where it can be told which group it is of. complete: False where later entries
    may be missing, so that nothing follows from an entry that is not there.
    """

    name: str
    rank: int | None
    version: str
    nccl_version: str
    groups: dict[str, Group] = field(default_factory=dict)
    status: dict[str, Status] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    complete: bool = True
    notices: list[str] = field(default_factory=list)


def looks_like_one(name: str, head: bytes) -> bool:
    """Whether a file may be a dump, by the first bytes (some thousand suffice) of a pickle or JSON object."""
    if head[:1] != b"\x80" and head.lstrip()[:1] != b"{":
        return False
    found = [key for key in _KEYS if key in head]
    return len(found) > 1 or (found not in ([], [b"entries"]) and _NAMED.search(PurePosixPath(name).name) is not None)


def read_dump(file: Readable) -> Dump:
    """Read a dump. Raises RefusedError where the file is none, OSError where it cannot be opened.

    A file that breaks off is read up to there; entries whose fields have impossible types are left out. Both are told
    in `notices` and make the dump incomplete.
    """
    with file.open() as opened:
        first = opened.read(0, min(64, opened.size)).lstrip()[:1]
        if first == b"{":
            content, remark = _json(opened)
        else:
            content, remark = _pickle(opened, file.name)
    dump = _Reader(file.name, content).dump()
    if remark:
        dump.complete = False
        dump.notices.append(remark)
    return dump


def numel(sizes: Sizes) -> int:
    """Number of elements of all tensors together."""
    return sum(prod(size) for size in sizes)


# -- the two encodings ------------------------------------------------------------------------------------------------


def _pickle(opened: Opened, name: str) -> tuple[Any, str]:
    limits = pickles.Limits.for_size(opened.size)
    try:
        return pickles.load(opened, limits=limits).value, ""
    except RefusedError as error:
        mended = _mend(opened, name)
        if mended is None:
            raise
        return pickles.load(mended, limits=limits).value, f"{error}: read up to the last whole entry"


def _mend(opened: Opened, name: str) -> Memory | None:
    """A pickle of torch's own writer, cut behind its last whole entry and closed there; None where it has no entry."""
    if opened.size > _MOST_MENDED:
        return None
    data = opened.read(0, opened.size)
    end = max(data.rfind(mark) for mark in _ENTRY_ENDS)
    return Memory(name, data[: end + 2] + b"eu.") if end > 0 else None


def _json(opened: Opened) -> tuple[Any, str]:
    if opened.size > _MOST_JSON:
        raise RefusedError(f"a JSON file of {opened.size >> 20} MB")
    content: dict[str, Any] = {}
    entries: list[Any] = []
    cursor = Cursor(opened.read(0, opened.size).decode("utf-8", "replace"))
    try:
        for key in cursor.members():
            if key == "entries" and cursor.skip() == "[":
                content[key] = entries
                entries += (cursor.value() for _ in cursor.elements())
            else:
                content[key] = cursor.value()
    except TornJsonError as error:
        if not content:
            raise RefusedError(str(error)) from None
        return content, f"line {error.line}: {error}: read up to there"
    return content, ""


# -- from foreign values to ours --------------------------------------------------------------------------------------


def _text(value: Any) -> str:
    return _CONTROL.sub(" ", value[:_TEXT]).strip() if isinstance(value, str) else ""


def _whole(value: Any, low: int = 0) -> int | None:
    """An integer of 64 bits that is not below `low`; JSON dumps hold some as text."""
    if isinstance(value, str) and len(value) < 20 and re.fullmatch(r"-?[0-9]+", value):
        value = int(value)
    return value if type(value) is int and low <= value < 1 << 63 else None


@lru_cache(maxsize=1024)
def _ranks_of_text(text: str) -> tuple[int, ...] | None:
    """The numbers of "[0, 1, 2]"; one object for equal texts, of which a job with 1,000 ranks has thousands."""
    return tuple(int(part) for part in text.strip("[] ").split(",") if part.strip()) if _RANKS.fullmatch(text) else None


def _ranks(value: Any) -> tuple[int, ...] | None:
    if isinstance(value, str) and len(value) < 8 * _MOST_RANKS:
        found = _ranks_of_text(value.strip())
    elif isinstance(value, (list, tuple)) and len(value) <= _MOST_RANKS:
        numbers = [_whole(part) for part in value]
        found = None if None in numbers else tuple(part for part in numbers if part is not None)
    else:
        found = None
    return found if found is not None and len(found) <= _MOST_RANKS and len(set(found)) == len(found) else None


def _size(value: Sequence[Any]) -> tuple[int, ...]:
    return tuple(n for part in value[:_MOST_DIMENSIONS] if (n := _whole(part)) is not None)


def _frame(frame: Mapping[Any, Any]) -> str:
    line = _whole(frame.get("line"))
    return f"{_text(frame.get('name'))} at {_text(frame.get('filename'))}:{line if line is not None else '?'}"


class _Reader:
    """Makes a Dump of the parsed content. Values that the content shares are looked at once."""

    def __init__(self, name: str, content: Any) -> None:
        if not isinstance(content, dict) or not isinstance(content.get("entries", []), (list, tuple)):
            raise RefusedError("no dump of the Flight Recorder: no dictionary with entries")
        self.content: dict[Any, Any] = content
        self.dump_ = Dump(
            name, None, _text(content.get("version")),
            _text(content.get("nccl_version")) or _text(content.get("comm_lib_version")),
        )  # fmt: skip
        self._seen: dict[tuple[Any, int], Any] = {}
        self._equal: dict[Any, Any] = {}
        self._undeclared: dict[tuple[str, str], Group] = {}

    def dump(self) -> Dump:
        dump = self.dump_
        self._groups(self.content.get("pg_config"))
        self._entries(self.content.get("entries", ()))
        if "entries" not in self.content:  # dumped without them, or an empty record as JSON
            self._lacking("the dump holds no entries")
        if not dump.groups and not dump.entries and (self.content.get("entries") or not dump.version):
            raise RefusedError("no dump of the Flight Recorder: neither process groups nor entries that can be read")
        self._status(self.content.get("pg_status"))
        if not _KNOWN_VERSION.fullmatch(dump.version):
            called = f"version {dump.version}" if dump.version else "no version"
            dump.notices.append(f"{called} of the dump: only versions 2.x are known; read by the fields of those")
        self._rank()
        return dump

    def _groups(self, config: Any) -> None:
        if not isinstance(config, dict):
            if config is not None:
                self._lacking("pg_config is no dictionary")
            return
        members = bad = 0
        for key, value in list(config.items())[:_MOST_GROUPS]:
            ranks = self._once(value.get("ranks"), _ranks) if isinstance(value, dict) else None
            if not isinstance(key, str) or ranks is None or members + len(ranks) > _MOST_MEMBERS:
                bad += 1
                continue
            members += len(ranks)
            self.dump_.groups[key] = Group(_text(key), _text(value.get("desc")), ranks)
        if bad:
            self._lacking(f"{bad} of {len(config)} process groups of pg_config cannot be read")

    def _entries(self, entries: Iterable[Any]) -> None:
        raw = list(entries)
        bad = 0
        if len(raw) > _MOST_ENTRIES:
            self.dump_.notices.append(f"{len(raw)} entries: only the last {_MOST_ENTRIES} are read")
            raw = raw[-_MOST_ENTRIES:]
        for one in raw:
            entry = self._once(one, self._entry)
            if entry is None:
                bad += 1
            else:
                self.dump_.entries.append(entry)
        if bad:
            self._lacking(f"{bad} of {len(raw)} entries have missing fields or fields of impossible types")

    def _entry(self, raw: Any) -> Entry | None:
        if not isinstance(raw, dict):
            return None
        paired = raw.get("is_p2p") is True
        sequence = _whole(raw.get("p2p_seq_id" if paired else "collective_seq_id"))
        record, operation = _whole(raw.get("record_id")), _text(raw.get("profiling_name"))
        group = self._group_of(raw.get("process_group"))
        if sequence is None or record is None or not operation or group is None:
            return None
        backend, _, bare = operation.rpartition(":")
        created = _whole(raw.get("time_created_ns"), 1)
        state, retired = _text(raw.get("state")), raw.get("retired") is True
        done = state == "completed"
        same = self._same
        return Entry(
            record, group, _whole(raw.get("pg_id")), same(backend), same(bare), sequence, _whole(raw.get("op_id")),
            paired, same(state), retired, self._once(raw.get("input_sizes"), self._sizes),
            self._once(raw.get("output_sizes"), self._sizes),
            self._once(raw.get("input_dtypes"), self._names), self._once(raw.get("output_dtypes"), self._names),
            None if created is None else created / 1e9, _whole(raw.get("timeout_ms")),
            () if done else self._once(raw.get("frames"), self._frames),
        )  # fmt: skip

    def _group_of(self, pair: Any) -> Group | None:
        """The group that an entry's (name, description) names; its members are unknown where pg_config lacks it."""
        if not isinstance(pair, (list, tuple)) or len(pair) != 2 or not all(isinstance(part, str) for part in pair):
            return None
        name, description = pair
        known = self.dump_.groups.get(name) or self._undeclared.get((name, description))
        if known is None and len(self._undeclared) < _MOST_GROUPS:
            known = self._undeclared[name, description] = Group(_text(name), _text(description), ())
        return known

    def _same(self, value: T) -> T:
        """One object for equal values: a dump repeats few of them thousands of times."""
        return self._equal.setdefault(value, value)  # type: ignore[no-any-return]  # what was put in under it

    def _once(self, value: Any, make: Callable[[Any], T]) -> T:
        """What `make` makes of an object, made once however often the content refers to the object."""
        key = (make, id(value))
        if key not in self._seen:
            self._seen[key] = make(value)
        return self._seen[key]  # type: ignore[no-any-return]  # what was put in under it

    def _sizes(self, value: Any) -> Sizes:
        if not isinstance(value, (list, tuple)):
            return ()
        return self._same(tuple(self._once(s, _size) for s in value[:_MOST_TENSORS] if isinstance(s, (list, tuple))))

    def _names(self, value: Any) -> tuple[str, ...]:
        return self._same(tuple(_text(n) for n in value[:_MOST_TENSORS])) if isinstance(value, (list, tuple)) else ()

    def _frames(self, value: Any) -> tuple[str, ...]:
        if not isinstance(value, (list, tuple)):
            return ()
        return self._same(tuple(self._once(f, _frame) for f in value[:_MOST_FRAMES] if isinstance(f, dict)))

    def _status(self, status: Any) -> None:
        """Status by group. It is recorded by pg_id, which pg_config does not know and entries do.

        Both number the groups in the order in which this rank made them. Where each group has a status, that order
        tells which belong together; all entries must agree with it.
        """
        if not isinstance(status, dict):
            return
        found: dict[int, Status] = {}
        for key, value in list(status.items())[:_MOST_GROUPS]:
            number = _whole(key)
            if number is not None and isinstance(value, dict):
                enqueued = _whole(value.get("last_enqueued_collective"), -1)
                completed = _whole(value.get("last_completed_collective"), -1)
                if enqueued is not None and completed is not None and completed <= enqueued:
                    found[number] = Status(enqueued, completed)
        told = {e.group_id: e.group.name for e in self.dump_.entries if e.group_id is not None}
        names = [group.name for group in self.dump_.groups.values()]
        if len(found) == len(names) and all(re.fullmatch(r"[0-9]{1,9}", name) for name in names):
            ordered = dict(zip(sorted(found), sorted(names, key=int), strict=True))
            if all(ordered.get(number) == name for number, name in told.items()):
                told = dict(ordered)
        self.dump_.status = {told[number]: one for number, one in found.items() if number in told}

    def _rank(self) -> None:
        dump = self.dump_
        path = PurePosixPath(dump.name)
        stem = _SUFFIX.sub("", path.name)
        found = _RANK.findall(stem) or _LAST.findall(stem) or _RANK.findall(str(path.parent))
        groups = [group.ranks for group in dump.groups.values() if group.ranks]
        common = set(groups[0]) if groups else set()
        for ranks in {id(ranks): ranks for ranks in groups}.values():
            common.intersection_update(ranks)
        if found:
            dump.rank = int(found[-1])
            if groups and dump.rank not in common:
                dump.notices.append(f"the name says rank {dump.rank}, which is no member of all groups of the dump")
        elif len(common) == 1:
            dump.rank = common.pop()
        else:
            dump.notices.append("neither the name nor the groups tell of which rank the dump is: not analysed")

    def _lacking(self, text: str) -> None:
        self.dump_.complete = False
        self.dump_.notices.append(text)
