"""From the dumps of all ranks to events: which rank misses which collective, and which of the stalls came first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import PurePosixPath
from typing import Any

from gradforensics.evidence.flight_recorder.dumps import Dump, Group
from gradforensics.evidence.flight_recorder.findings import (
    Mismatch,
    Stall,
    busy_ranks,
    mismatch_of,
    pair_stalls,
    stall_of,
)
from gradforensics.evidence.flight_recorder.lanes import lanes, views
from gradforensics.tables import Event

_MOST_EVENTS = 200
_TEXT = 800
_INSTALLED = ("/torch/", "/site-packages/", "/dist-packages/")


def analyse(dumps: Sequence[Dump]) -> list[Event]:
    """The stalls and mismatches in the dumps of one run, the first and causing one of each set of dumps in front.

    Kind "collective_timeout", one event per process group whose members wait for others. `rank` is the rank that is
    missing (the first of several), None where none is; `time` and data["since"] are the Unix seconds at which the
    first rank began to wait; `source` is that rank's dump. data holds collective, sequence, group, description,
    state, timeout_ms, timed_out, sizes, dtypes, frame (where the waiting rank called it) and, as lists of ranks:
    missing (never entered it by their own dump, empty where nobody is known to), empty (those of them whose dump
    holds no entry at all), waiting_elsewhere (those of them that wait for others themselves), without_dump, unknown
    (the dump does not tell), waiting, unfinished (never finished an earlier collective of the group that others did).

    Kind "collective_mismatch": data holds collective, sequence, group, description, since, what ("operation", "type"
    or "size"), calls ({what was called: [ranks]}) and deviating ([ranks], empty where no side has more ranks).

    data["first"] is True for the one event that the others follow from: among those whose missing rank does not wait
    for others itself the earliest. Where members are known to be in everything that waits, one event tells of the
    earliest such collective, with nobody missing. A set of dumps gives 200 events at most, the earliest.
    """
    return [event for part in _sets(dumps)[0] for event in _events(part)]


def notices(dumps: Sequence[Dump]) -> list[tuple[str, str]]:
    """(source, text) about what could not be read and which ranks left no dump."""
    found = [(dump.name, text) for dump in dumps for text in dump.notices]
    sets, replaced = _sets(dumps)
    found += [(old.name, f"a second dump of rank {old.rank}, older than {new.name}") for old, new in replaced]
    for part in sets:
        members = {rank for ranks in _distinct(part) for rank in ranks}
        if lost := sorted(members - set(part)):
            text = f"{_ranks(lost)} of the process groups left no dump that can be read"
            found.append((next(iter(part.values())).name, text))
    return found


def _distinct(dumps: Mapping[int, Dump]) -> Iterable[tuple[int, ...]]:
    """The members of every group, equal tuples once where they are one object."""
    return {id(g.ranks): g.ranks for dump in dumps.values() for g in dump.groups.values()}.values()


# -- which dumps belong together --------------------------------------------------------------------------------------


def _sets(dumps: Sequence[Dump]) -> tuple[list[dict[int, Dump]], list[tuple[Dump, Dump]]]:
    """Dumps by rank, and (older, later) where a rank left two in one place, of which the later stays.

    A folder is a set of its own where a rank left dumps in several folders: attempts of a run.
    """
    ranked = [(dump.rank, PurePosixPath(dump.name).parent, dump) for dump in dumps if dump.rank is not None]
    places: dict[int, set[PurePosixPath]] = {}
    for rank, folder, _ in ranked:
        places.setdefault(rank, set()).add(folder)
    apart = any(len(folders) > 1 for folders in places.values())
    found: dict[PurePosixPath, dict[int, Dump]] = {}
    replaced: list[tuple[Dump, Dump]] = []
    for rank, folder, dump in sorted(ranked, key=lambda one: _latest(one[2])):
        part = found.setdefault(folder if apart else PurePosixPath(), {})
        if rank in part:
            replaced.append((part[rank], dump))
        part[rank] = dump
    return [{rank: part[rank] for rank in sorted(part)} for _, part in sorted(found.items())], replaced


def _latest(dump: Dump) -> float:
    return max((entry.created or 0.0 for entry in dump.entries), default=0.0)


# -- the events of one set --------------------------------------------------------------------------------------------


def _events(dumps: Mapping[int, Dump]) -> list[Event]:
    stalls: list[Stall] = []
    pairs: list[Stall] = []
    mismatches: list[Mismatch] = []
    busy: set[int] = set()
    for lane in lanes(dumps):
        seen = views(lane, dumps)
        if stall := stall_of(lane, dumps, seen):
            stalls.append(stall)
        if mismatch := mismatch_of(lane, dumps, seen):
            mismatches.append(mismatch)
        pairs += pair_stalls(lane, dumps)
        busy |= busy_ranks(lane, dumps, seen)
    shown = [stall for stall in stalls if stall.absent]
    named = {rank for stall in shown for rank in stall.absent}
    # A lone send or receive is seen wherever a pipeline stands still: it tells something where its peer does nothing.
    shown += [pair for pair in pairs if not named.intersection(pair.absent) and not busy.intersection(pair.absent)]
    if not shown and not mismatches and not pairs:
        shown = sorted(stalls, key=_since)[:1]
    elsewhere = {id(stall): waits for stall, waits in _waiting_elsewhere(shown, pairs)}
    free = [stall for stall in shown if set(stall.absent) - set(elsewhere[id(stall)])]
    every: list[Stall | Mismatch] = [*mismatches, *shown]
    causing: list[Stall | Mismatch] = [*mismatches, *(free or shown)]
    first = min(causing, key=_since, default=None)
    every.sort(key=lambda one: (one is not first, one.since))
    return [
        _mismatch_event(one, first=one is first)
        if isinstance(one, Mismatch)
        else _stall_event(one, elsewhere[id(one)], dumps, first=one is first)
        for one in every[:_MOST_EVENTS]
    ]


def _since(one: Stall | Mismatch) -> float:
    return one.since


def _waiting_elsewhere(shown: Sequence[Stall], pairs: Sequence[Stall]) -> Iterator[tuple[Stall, list[int]]]:
    """Every stall with those of its missing ranks that wait for others in another stall: it follows from that one."""
    waits: dict[int, list[Stall]] = {}
    for stall in [*shown, *pairs]:
        for rank in stall.waiting if stall.absent else ():
            waits.setdefault(rank, []).append(stall)
    for stall in shown:
        yield stall, [r for r in stall.missing if any(other is not stall for other in waits.get(r, ()))]


def _stall_event(stall: Stall, elsewhere: list[int], dumps: Mapping[int, Dump], *, first: bool) -> Event:
    empty = [rank for rank in stall.missing if not dumps[rank].entries]
    culprits = [rank for rank in stall.missing if rank not in elsewhere] or stall.missing
    entry = stall.entry
    data: dict[str, Any] = {
        "collective": entry.operation, "sequence": entry.sequence, "group": stall.group.name,
        "description": stall.group.description, "first": first, "missing": stall.missing, "empty": empty,
        "waiting_elsewhere": elsewhere, "without_dump": stall.without_dump, "unknown": stall.unknown,
        "waiting": stall.waiting, "unfinished": stall.unfinished, "since": entry.created, "state": entry.state,
        "timeout_ms": entry.timeout_ms, "timed_out": stall.timed_out,
        "sizes": [list(size) for size in entry.input_sizes[:8]], "dtypes": sorted(set(entry.input_dtypes)),
        "frame": _frame(entry.frames),
    }  # fmt: skip
    text = "; ".join(_sentences(stall, empty, elsewhere))
    rank = culprits[0] if culprits else None
    return Event("collective_timeout", text[:_TEXT], stall.source, rank=rank, time=entry.created, data=data)


def _sentences(stall: Stall, empty: Sequence[int], elsewhere: Sequence[int]) -> Iterator[str]:
    call = f"{stall.entry.operation} #{stall.entry.sequence} of group {_label(stall.group)}"
    waiting = f"{_ranks(stall.waiting)} {_verb(stall.waiting, 'waits', 'wait')} in"
    if stall.missing:
        yield f"{_ranks(stall.missing)} {_verb(stall.missing, 'is', 'are')} missing in {call}"
        yield f"{waiting} it"
    elif stall.without_dump or stall.unknown:
        yield f"{waiting} {call}"
    else:
        yield f"all members are in {call}, which does not finish: a network or GPU fault"
    if empty:
        yield f"the {_verb(empty, 'dump', 'dumps')} of {_ranks(empty)} {_verb(empty, 'is', 'are')} empty"
    if elsewhere:
        yield f"{_ranks(elsewhere)} {_verb(elsewhere, 'waits', 'wait')} for others elsewhere"
    if stall.without_dump:
        yield f"{_ranks(stall.without_dump)} left no dump and may be missing too"
    if stall.unknown:
        yield f"the {_verb(stall.unknown, 'dump', 'dumps')} of {_ranks(stall.unknown)} cannot tell"
    if stall.unfinished:
        yield f"{_ranks(stall.unfinished)} never finished earlier calls that others did"


def _mismatch_event(found: Mismatch, *, first: bool) -> Event:
    entry = found.entry
    called = "; ".join(f"{_ranks(ranks)}: {what}" for what, ranks in list(found.calls.items())[:6])
    text = f"call #{entry.sequence} of group {_label(found.group)} differs in its {found.what}: {called}"
    data: dict[str, Any] = {
        "collective": entry.operation, "sequence": entry.sequence, "group": found.group.name,
        "description": found.group.description, "first": first, "what": found.what, "calls": found.calls,
        "deviating": found.deviating, "since": entry.created, "frame": _frame(entry.frames),
    }  # fmt: skip
    rank = found.deviating[0] if found.deviating else None
    return Event("collective_mismatch", text[:_TEXT], found.source, rank=rank, time=entry.created, data=data)


# -- words ------------------------------------------------------------------------------------------------------------


def _label(group: Group) -> str:
    named = group.description not in ("", "undefined", group.name)
    return f"{group.name} ({group.description})" if named else group.name


def _verb(ranks: Sequence[int], one: str, several: str) -> str:
    return one if len(ranks) == 1 else several


def _ranks(ranks: Sequence[int]) -> str:
    """Ranks as "rank 3" or "ranks 0-2, 7", no more than twelve stretches of them."""
    parts: list[str] = []
    for _, run in groupby(enumerate(sorted(ranks)), key=lambda pair: pair[1] - pair[0]):
        stretch = [rank for _, rank in run]
        if len(stretch) == 2:
            parts += map(str, stretch)
        else:
            parts.append(f"{stretch[0]}-{stretch[-1]}" if len(stretch) > 2 else str(stretch[0]))
    more = f" and others ({len(ranks)} in all)" if len(parts) > 12 else ""
    return f"{_verb(ranks, 'rank', 'ranks')} {', '.join(parts[:12])}{more}"


def _frame(frames: Sequence[str]) -> str:
    """The innermost frame outside of installed packages, "" where no frames were recorded."""
    own = (frame for frame in frames if not any(part in frame for part in _INSTALLED))
    return next(own, frames[0] if frames else "")
