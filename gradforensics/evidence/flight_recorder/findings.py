"""What the records of a group tell: a collective that some members never entered, or calls that do not fit together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gradforensics.evidence.flight_recorder.dumps import Dump, Entry, Group, numel
from gradforensics.evidence.flight_recorder.lanes import Lane, View, is_one_sided, open_pairs, reached_by_all

# Operations to which every member brings tensors of the same size. Elsewhere (all_to_all, all_gather of a list,
# scatter) sizes may rightly differ.
_UNIFORM = frozenset(
    {
        "all_reduce", "_all_gather_base", "all_gather_single", "all_gather_into_tensor_coalesced",
        "allreduce_coalesced", "_reduce_scatter_base", "reduce_scatter_single", "reduce_scatter_tensor_coalesced",
        "broadcast",
    }
)  # fmt: skip
_EXCHANGES = frozenset({"all_to_all", "all_to_all_single", "all_to_all_v_single"})


@dataclass(slots=True)
class Stall:
    """An operation that some ranks wait in.

    entry, source: what the rank recorded that waits longest, and its dump. Members that are not `waiting`: `missing`
    by their own record; `without_dump`; `unknown`, whose dump does not tell. unfinished: ranks that never finished an
    earlier operation of the group that the others did.
    """

    group: Group
    entry: Entry
    source: str
    waiting: list[int]
    missing: list[int] = field(default_factory=list)
    without_dump: list[int] = field(default_factory=list)
    unknown: list[int] = field(default_factory=list)
    unfinished: list[int] = field(default_factory=list)
    timed_out: bool = False

    @property
    def absent(self) -> list[int]:
        """Who may keep the others waiting."""
        return [*self.missing, *self.without_dump]

    @property
    def since(self) -> float:
        """Unix seconds at which the first rank entered it; infinite where the dump does not tell."""
        return float("inf") if self.entry.created is None else self.entry.created


@dataclass(slots=True)
class Mismatch:
    """Calls of one sequence number that differ. calls: description -> ranks; deviating: the ranks that are fewer."""

    group: Group
    entry: Entry
    source: str
    what: str
    calls: dict[str, list[int]]
    deviating: list[int]

    @property
    def since(self) -> float:
        """Unix seconds of the first of the calls; infinite where the dump does not tell."""
        return float("inf") if self.entry.created is None else self.entry.created


def stall_of(lane: Lane, dumps: Mapping[int, Dump], seen: Sequence[View]) -> Stall | None:
    """The first collective of a group that is not finished and that no rank must have left behind, or None.

    It is the first beyond what every member must have entered: a rank that enqueued fewer of the later ones is not
    missing there, it waits like the others.
    """
    common = reached_by_all(list(seen))
    numbers = [number for view in seen for number in view.waits if number > common]
    if not numbers:
        return None
    number = min(numbers)
    inside = [view for view in seen if number in view.waits]
    first = min(inside, key=lambda view: view.calls[number].created or float("inf"))
    stall = Stall(lane.group, first.calls[number], first.dump.name, [view.rank for view in inside])
    stall.timed_out = any(view.calls[number].timed_out for view in inside)
    for view in seen:
        lacks = _lacks(view, stall.entry, common)
        if lacks is None:
            stall.unknown.append(view.rank)
        elif lacks:
            stall.missing.append(view.rank)
        if view.waits and view.waits[0] <= common:
            stall.unfinished.append(view.rank)
    stall.without_dump = [rank for rank in lane.group.ranks if rank not in dumps]
    return stall


def _lacks(view: View, entry: Entry, common: int) -> bool | None:
    """Whether a rank never entered a collective that others wait in; None where its record does not tell."""
    if view.entered is not None and view.entered >= entry.sequence:
        return False
    if not view.reliable:
        return None
    if view.entered is not None:
        return None if view.entered < common else True  # what others finished needs it: its dump is older than theirs
    entries = view.dump.entries
    if not any(other.finished for other in entries):
        # Only what is unfinished was dumped, if anything: it is not in it, and alone it cannot have finished it.
        return None if is_one_sided(entry) else True
    return True if entries[0].record == 0 and not common else None  # else the ring buffer may have lost the group


def pair_stalls(lane: Lane, dumps: Mapping[int, Dump]) -> Iterator[Stall]:
    """One stall per rank that others wait for in a send or receive that it has no counterpart of."""
    found: dict[int, Stall] = {}
    for source, target, pair, certain in open_pairs(lane, dumps):
        fewer = min(len(pair.sends), len(pair.receives))
        lone, waiter, peer = (
            (pair.receives, target, source) if len(pair.receives) > fewer else (pair.sends, source, target)
        )
        if len(lone) == fewer or waiter not in certain or (peer in dumps and not dumps[peer].complete):
            continue
        stall = Stall(lane.group, lone[fewer], dumps[waiter].name, [waiter])
        (stall.missing if peer in dumps else stall.without_dump).append(peer)
        known = found.get(peer)
        if known is None or stall.since < known.since:
            stall.waiting = sorted({waiter, *(known.waiting if known else ())})
            found[peer] = stall
        else:
            known.waiting = sorted({waiter, *known.waiting})
    yield from found.values()


def busy_ranks(lane: Lane, dumps: Mapping[int, Dump], seen: Sequence[View]) -> set[int]:
    """Ranks that have something unfinished in the group: they wait themselves."""
    found = {view.rank for view in seen if view.waits}
    for source, target, pair, _ in open_pairs(lane, dumps):
        found |= {rank for rank, entries in ((source, pair.sends), (target, pair.receives)) if entries}
    return found


def mismatch_of(lane: Lane, dumps: Mapping[int, Dump], seen: Sequence[View]) -> Mismatch | None:
    """The first sequence number of a group at which its members called something else, or None.

    Sizes and types are compared only while a rank waits in it. Later numbers tell nothing: the count is out of step.
    """
    first: dict[int, Entry] = {}
    suspects: set[int] = set()
    for view in seen:
        for number, entry in view.calls.items():
            if first.setdefault(number, entry).operation != entry.operation or not entry.finished:
                suspects.add(number)
    for number in sorted(suspects - lane.batched):
        calls = [(view, view.calls[number]) for view in seen if number in view.calls]
        found = _difference([(view.rank, entry) for view, entry in calls], lane.group, dumps)
        if found is not None:
            what, described, deviating = found
            chosen = [call for call in calls if call[0].rank in deviating] or calls
            view, entry = min(chosen, key=lambda call: call[1].created or float("inf"))
            return Mismatch(lane.group, entry, view.dump.name, what, described, deviating)
    return None


Calls = Sequence[tuple[int, Entry]]


def _difference(
    calls: Calls, group: Group, dumps: Mapping[int, Dump]
) -> tuple[str, dict[str, list[int]], list[int]] | None:
    """(what differs, description -> ranks, the fewer ranks) of the calls with one sequence number, or None."""
    if len({entry.operation for _, entry in calls}) > 1:
        return "operation", *_parted(calls, _operation)
    operation = calls[0][1].operation
    if operation not in _UNIFORM | _EXCHANGES:
        return None
    typed = [(rank, entry) for rank, entry in calls if entry.input_dtypes]
    if len({frozenset(entry.input_dtypes) for _, entry in typed}) > 1:
        return "type", *_parted(typed, _typed)
    sized = [(rank, entry) for rank, entry in calls if entry.input_sizes and entry.output_sizes]
    if operation in _UNIFORM:
        differ = len({(numel(entry.input_sizes), numel(entry.output_sizes)) for _, entry in sized}) > 1
        return ("size", *_parted(sized, _sized)) if differ else None
    # Before version 2.4 not all sizes of an all_to_all were recorded.
    if len(sized) < len(group.ranks) or any(_version(dumps[rank]) < (2, 4) for rank, _ in sized):
        return None
    sent = sum(numel(entry.input_sizes) for _, entry in sized)
    received = sum(numel(entry.output_sizes) for _, entry in sized)
    text = f"{operation} of {sent} elements sent and {received} received"
    return None if sent == received else ("size", {text: [rank for rank, _ in sized]}, [])


def _parted(calls: Calls, describe: Callable[[Entry], str]) -> tuple[dict[str, list[int]], list[int]]:
    """The ranks by what they called, most common first, and those that are not among the most common."""
    found: dict[str, list[int]] = {}
    for rank, entry in calls:
        found.setdefault(describe(entry), []).append(rank)
    ordered = sorted(found.items(), key=lambda item: -len(item[1]))
    usual = len(ordered) > 1 and len(ordered[0][1]) > len(ordered[1][1])
    return dict(ordered), sorted(rank for _, ranks in ordered[1:] for rank in ranks) if usual else []


def _operation(entry: Entry) -> str:
    return entry.operation


def _typed(entry: Entry) -> str:
    return f"{entry.operation} of {'/'.join(sorted(set(entry.input_dtypes)))}"


def _sized(entry: Entry) -> str:
    return f"{entry.operation} of {numel(entry.input_sizes)} to {numel(entry.output_sizes)} elements"


def _version(dump: Dump) -> tuple[int, ...]:
    """(major, minor), by which (0,) is older than any; of a version that is not known."""
    parts = dump.version.split(".")
    return tuple(int(part) for part in parts) if all(p.isdecimal() and len(p) < 6 for p in parts) else (0,)
