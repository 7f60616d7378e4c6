"""The records of all ranks, sorted by process group: how far each rank came in each group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gradforensics.evidence.flight_recorder.dumps import Dump, Entry, Group

# Operations that one rank can finish before the others came: a root that sends, or a rank that only sends to the root.
_ONE_SIDED = frozenset(
    {"broadcast", "_broadcast_oop", "reduce", "_reduce_oop", "gather", "scatter", "coalesced", "split", "new_window"}
)


@dataclass(slots=True)
class Lane:
    """One process group. calls: rank -> sequence -> entry; pairs: rank -> point-to-point entries.

    batched: sequence numbers that stand for several operations; the entry is then the one that ends the batch.
    """

    group: Group
    calls: dict[int, dict[int, Entry]] = field(default_factory=dict)
    pairs: dict[int, list[Entry]] = field(default_factory=dict)
    batched: set[int] = field(default_factory=set)

    def add(self, rank: int, entry: Entry) -> None:
        """Sort in one entry; of a batch only its end is ever marked as completed."""
        if entry.point_to_point:
            self.pairs.setdefault(rank, []).append(entry)
            return
        calls = self.calls.setdefault(rank, {})
        if entry.sequence in calls or "coalesced" in entry.operation:
            self.batched.add(entry.sequence)
        calls[entry.sequence] = entry


@dataclass(slots=True)
class View:
    """How far one rank came in one group's collectives.

    done: all up to this one are finished, as far as the record tells (0: none). entered: the last one that it
    entered, None where the record does not tell. waits: entered and not finished, ascending. reliable: nothing later
    than these may have been lost.
    """

    rank: int
    dump: Dump
    calls: Mapping[int, Entry]
    done: int
    entered: int | None
    waits: list[int]
    reliable: bool


def lanes(dumps: Mapping[int, Dump]) -> list[Lane]:
    """One lane per process group of which any rank recorded an operation; Gloo counts on its own."""
    found: dict[tuple[str, tuple[int, ...], bool], Lane] = {}
    named: dict[str, set[tuple[int, ...]]] = {}
    for dump in dumps.values():
        for group in dump.groups.values():
            named.setdefault(group.name, set()).add(group.ranks)
    for rank, dump in dumps.items():
        mine: dict[tuple[int, bool], Lane] = {}
        for entry in dump.entries:
            key = id(entry.group), entry.backend == "gloo"
            lane = mine.get(key)
            if lane is None:
                group = entry.group if entry.group.ranks else _among(entry.group, named.get(entry.group.name, ()), rank)
                lane = mine[key] = found.setdefault((group.name, group.ranks, key[1]), Lane(group))
            lane.add(rank, entry)
    for lane in found.values():
        if not lane.group.ranks:
            seen = dumps if lane.group.description == "default_pg" else {*lane.calls, *lane.pairs}
            lane.group = Group(lane.group.name, lane.group.description, tuple(sorted(seen)))
    return list(found.values())


def _among(group: Group, known: set[tuple[int, ...]] | tuple[()], rank: int) -> Group:
    """The group with the members that other ranks' dumps give it, where that is unambiguous."""
    fitting = [ranks for ranks in known if rank in ranks]
    return Group(group.name, group.description, fitting[0]) if len(fitting) == 1 else group


def views(lane: Lane, dumps: Mapping[int, Dump]) -> list[View]:
    """The view of every member that left a dump."""
    return [_view(rank, dumps[rank], lane) for rank in lane.group.ranks if rank in dumps]


def _view(rank: int, dump: Dump, lane: Lane) -> View:
    calls = lane.calls.get(rank, {})
    status = None if lane.pairs else dump.status.get(lane.group.name)
    done = max((number for number, entry in calls.items() if entry.finished), default=0)
    entered = max(calls, default=None)
    if status is not None:
        # What the watchdog gives up is counted as completed as well.
        lost = min((number for number, entry in calls.items() if entry.timed_out), default=status.completed + 1)
        done = max(done, min(status.completed, lost - 1))
        entered = max(entered or 0, status.enqueued, done)
    waits = sorted(number for number, entry in calls.items() if number > done and not entry.finished)
    return View(rank, dump, calls, done, entered, waits, reliable=dump.complete or status is not None)


def is_one_sided(entry: Entry) -> bool:
    """Whether a rank can finish the operation although another never came."""
    return entry.operation in _ONE_SIDED


def reached_by_all(seen: list[View]) -> int:
    """The last collective that every member must have entered: a rank finished it, and none could do so alone."""
    known: dict[int, int] = {}
    for done in sorted({view.done for view in seen}):
        number = done
        while number > 0:
            if number in known:
                number = known[number]
                break
            entry = next((view.calls[number] for view in seen if number in view.calls), None)
            if entry is None or not is_one_sided(entry):
                break
            number -= 1
        known[done] = number
    return max(known.values(), default=0)


@dataclass(slots=True)
class Pair:
    """Point-to-point operations of one direction that are not finished: sends at the source, receives at the target."""

    sends: list[Entry] = field(default_factory=list)
    receives: list[Entry] = field(default_factory=list)


def open_pairs(lane: Lane, dumps: Mapping[int, Dump]) -> Iterator[tuple[int, int, Pair, set[int]]]:
    """(source, target, what is open between them, which of the two have a record that tells finished from unfinished).

    A batch's sends and receives are never marked as completed themselves (pytorch/pytorch issue 137969), so that one
    whose end fell out of the record looks open for ever: only what is behind the last finished one counts.
    """
    pairs: dict[tuple[int, int], Pair] = {}
    certain: set[int] = set()
    for rank, entries in lane.pairs.items():
        done = max((entry.sequence for entry in entries if entry.finished), default=0)
        status = None if lane.calls else dumps[rank].status.get(lane.group.name)
        done = max(done, status.completed if status is not None else 0)
        if done or status is not None or dumps[rank].entries[0].record == 0:
            certain.add(rank)
        for entry in entries:
            ends = None if entry.sequence <= done or entry.finished else _ends(entry, lane.group)
            if ends is not None and ends[2] == rank:
                pair = pairs.setdefault(ends[:2], Pair())
                (pair.sends if entry.operation.startswith("send") else pair.receives).append(entry)
    for (source, target), pair in pairs.items():
        yield source, target, pair, certain & {source, target}


def _ends(entry: Entry, group: Group) -> tuple[int, int, int] | None:
    """Global ranks of source, target and recorder of "send 0->3" or "recv 3<-0", which count within the group."""
    kind, _, ends = entry.operation.partition(" ")
    left, arrow, right = ends.partition("->" if kind == "send" else "<-")
    if kind not in ("send", "recv") or not arrow or not (left.isdecimal() and right.isdecimal()):
        return None
    here, there = int(left), int(right)
    if max(here, there) >= len(group.ranks):
        return None
    mine, other = group.ranks[here], group.ranks[there]
    return (mine, other, mine) if kind == "send" else (other, mine, mine)
