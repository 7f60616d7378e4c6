"""Checks on the communication between processes: what stopped it, and which rank the others waited for.

The rank that complains is mostly a victim. Who is missing is told by Flight Recorder dumps, by monitored_barrier, by
the one rank that does not complain, and by per-rank series. A complaint is a consequence where another rank died of
something else before.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from gradforensics.diagnosis import evidence_words
from gradforensics.diagnosis.vocabulary import Answer, Check, Fact, Hit, Missing, check
from gradforensics.languages import Text
from gradforensics.patterns import lazy
from gradforensics.tables import Event, Evidence

How = Literal[
    "rendezvous", "missing-rank", "unnamed", "mismatch", "connection-lost", "silent", "after-training", "consequence"
]

# Limits of collective operations, not of schedulers.
_COLLECTIVE_LIMIT = lazy(
    r"Watchdog caught collective|before timing out|monitoredBarrier|watchdog got stuck|Heartbeat monitor|"
    r"dump signal due to a collective timeout|timeout signal|Timed out waiting \d+ms for"
)
_MISMATCH = lazy(r"Detected mismatch between collectives|op\.preamble\.length <= op\.nbytes")
_MEETING = lazy(r"clients joined|Distributed package|init_process_group|TCPStore|MASTER_(?:ADDR|PORT)")
_TYPES = frozenset({"DistBackendError", "DistNetworkError", "DistStoreError", "DistError"})
# Errors of NCCL, Gloo and the store that can only come up while processes look for each other.
_MEETING_ERRORS = frozenset(
    {
        "connect_timeout", "connection_refused", "address_in_use", "no_interface", "no_route", "rendezvous",
        "duplicate_gpu",
    }
)  # fmt: skip
_LOST = frozenset({"connection_closed", "connection_reset", "remote", "completion_error", "aborted"})
# What a process dies of without any fault of the communication.
_FAILURES = (
    "oom", "oom_killer", "exception", "device_assert", "index_error", "cuda_error", "autograd_error", "gradscaler",
    "disk_full", "segfault", "killed",
)  # fmt: skip
_DEADLY = frozenset({4, 7, 8, 9, 11})  # signals that a launcher or a watchdog does not send to clean up (but 9: see)
_ECHOES = lazy(
    r"ChildFailedError|RayTaskError|RayActorError|ActorDiedError|ProcessRaisedException|ProcessExitedException|"
    r"CalledProcessError|WorkerCrashedError|SignalException"
)
_SPENT = frozenset({"exception", "oom", "killed", "timeout", "truncated"})
_STACKED = 2  # processes whose stacks must be known before one of them is called the odd one
_VARIABLES = {
    "NCCL_SOCKET_TIMEOUT": r".*",
    "NCCL_IB_DISABLE": r"1|true",
    "NCCL_P2P_DISABLE": r"1|true",
    "NCCL_SHM_DISABLE": r"1|true",
    "NCCL_DEBUG": r"(?i:info|trace)",
    "TORCH_DISTRIBUTED_DEBUG": r"(?i:detail)",
    "CUDA_LAUNCH_BLOCKING": r"1|true",
}


@dataclass(frozen=True)
class Failure:
    """How the communication of a run failed.

    sure: whether a message or a watchdog says so; event: the first that tells it; missing: the ranks that the others
    waited for, () where nothing names them; waiting: the ranks that complained.
    """

    how: How
    event: Event
    sure: bool = True
    missing: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()
    facts: Mapping[str, Fact] = field(default_factory=dict)


def failure(evidence: Evidence) -> Failure | Missing | None:
    """How the communication failed; None where the run shows that it did not, Missing where its end is not known."""
    found: Failure | Missing | None = evidence.once("communication", lambda: _failure(evidence))
    return found


def _failure(evidence: Evidence) -> Failure | Missing | None:
    told = complaints(evidence)
    dumped = _of_dumps(evidence, told)
    if told:
        return _of_messages(evidence, told, dumped)
    if dumped is not None:
        return dumped
    stacked = _of_stacks(evidence)
    if stacked is not None:
        return stacked
    if evidence.ending.kind in ("completed", "exception", "oom", "killed") or evidence.number("world_size") == 1:
        return None
    if not any(source.reader == "console" for source in evidence.sources):
        return Missing("events:console")
    return Missing("how the run ended (its record stops without a message)")


# -- what the processes said ------------------------------------------------------------------------------------------


def complaints(evidence: Evidence) -> list[Event]:
    """Lines in which a process gives up on the communication, in order; mere warnings are left out."""
    found: list[Event] = evidence.once("complaints", lambda: [e for e in evidence.events or [] if _complains(e)])
    return found


def _complains(event: Event) -> bool:
    if event.kind == "timeout":
        return _COLLECTIVE_LIMIT.search(event.text) is not None
    if event.kind == "nccl_error":
        return event.data.get("level") != "warning"
    return event.kind == "exception" and (event.data.get("type") in _TYPES or _is_mismatch(event))


def _is_mismatch(event: Event) -> bool:
    return _MISMATCH.search(event.text) is not None


def _is_timeout(event: Event) -> bool:
    return event.kind == "timeout" or event.data.get("error") == "watchdog"


def _meets(evidence: Evidence, event: Event) -> bool:
    """Whether a complaint comes from the time at which the processes look for each other."""
    if event.data.get("error") in _MEETING_ERRORS or "clients joined" in event.text:
        return True
    return evidence.steps is None and not _is_timeout(event)


def _of_messages(evidence: Evidence, told: Sequence[Event], dumped: Failure | None) -> Failure | None:
    first = _first(told)
    cause = _cause(evidence, told)
    if cause is not None:
        facts = {"cause": cause.text[:200], "rank": None if cause.rank is None else str(cause.rank)}
        return Failure("consequence", first, facts=facts)
    waiting = tuple(sorted({e.rank for e in told if e.rank is not None}))
    if _after_training(evidence, first):
        # connections that break while processes leave are no fault; a limit that was waited for is one
        return Failure("after-training", first, waiting=waiting) if any(map(_is_timeout, told)) else None
    if (parted := next((e for e in told if _is_mismatch(e)), None)) is not None:
        return Failure("mismatch", parted, waiting=waiting, facts={"calls": parted.text[-300:]})
    if (differ := _differing_calls(told)) is not None:
        return Failure("mismatch", first, waiting=waiting, facts={"calls": differ})
    if dumped is not None:
        return Failure(dumped.how, first, missing=dumped.missing, waiting=dumped.waiting, facts=dumped.facts)
    if all(_meets(evidence, e) for e in told):
        return Failure("rendezvous", first, waiting=waiting)
    missing = _missing_rank(evidence, told)
    if any(map(_is_timeout, told)):
        return Failure("missing-rank" if missing else "unnamed", first, missing=missing, waiting=waiting)
    return Failure("connection-lost", first, sure=False, missing=missing, waiting=waiting)


def _first(events: Sequence[Event]) -> Event:
    """The earliest of some events where all tell when they were, else the first in reading order."""
    return min(events, key=lambda e: e.time or 0.0) if all(e.time is not None for e in events) else events[0]


def before(one: Event, other: Event) -> bool | None:
    """Whether an event comes before another; None where neither lines of one file nor moments tell it."""
    if one.source == other.source and one.line is not None and other.line is not None:
        return one.line < other.line
    if one.time is not None and other.time is not None:
        return one.time <= other.time
    return None


def _cause(evidence: Evidence, told: Sequence[Event]) -> Event | None:
    """What a process died of before the others complained, where it is no fault of the communication."""
    first = _first(told)
    lost = not any(map(_is_timeout, told))
    complaining = {e.rank for e in told if e.rank is not None}
    roots = {e.rank for e in evidence.events or [] if e.data.get("root") and e.rank is not None}
    for event in evidence.events_of(*_FAILURES):
        if not _kills(event, roots) or _complains(event):
            continue
        if event.data.get("root") and event.kind == "killed" and event.rank not in complaining:
            return event
        order = before(event, first)
        if order or (order is None and (lost or event.kind in ("oom", "oom_killer"))):
            return event
    return None


def _kills(event: Event, roots: set[int]) -> bool:
    """Whether an event is the death of a process by itself: no echo, no cleaning up after another failure."""
    if event.kind == "killed":
        signal = event.data.get("signal")
        cleaned = signal == 9 and roots and event.rank not in roots  # torchrun kills who does not leave in time
        return signal in _DEADLY and not cleaned
    if event.kind == "segfault":
        return re.match(r"python|pt_", str(event.data.get("process", ""))) is not None
    if event.kind == "exception":
        caused = str(event.data.get("cause", ""))
        return "thread" not in event.data and not _ECHOES.search(event.text) and not _COLLECTIVE_LIMIT.search(caused)
    return event.kind in ("oom", "oom_killer") or "type" in event.data


def _after_training(evidence: Evidence, first: Event) -> bool:
    ended = evidence.events_of("completed")
    if any(before(event, first) for event in ended):
        return True
    planned = evidence.number("max_steps")
    return planned is not None and evidence.steps is not None and evidence.steps[1] >= planned


def _differing_calls(told: Iterable[Event]) -> Text | None:
    """What several ranks waited in under one number of one group, where they waited in different operations."""
    calls: dict[tuple[object, object], dict[int, tuple[object, object]]] = {}
    for event in told:
        data = event.data
        if event.rank is not None and data.get("sequence") is not None and data.get("collective"):
            place = calls.setdefault((data.get("group"), data["sequence"]), {})
            place.setdefault(event.rank, (data["collective"], data.get("numel_in")))
    for (_, sequence), by_rank in calls.items():
        if len(set(by_rank.values())) > 1 and _comparable(by_rank.values()):
            each = [(rank, name, count) for rank, (name, count) in sorted(by_rank.items())[:6]]
            english = "; ".join(f"rank {rank}: {name} of {count}" for rank, name, count in each)
            chinese = evidence_words.calls(
                sequence, [(str(r), f"{name} of {count} elements") for r, name, count in each]
            )
            return Text(f"#{sequence}: {english} elements", chinese)
    return None


def _comparable(calls: Iterable[tuple[object, object]]) -> bool:
    """Whether differing sizes tell something: in a gather or an exchange they may rightly differ."""
    names = {str(name).lower() for name, _ in calls}
    return len(names) > 1 or names <= {"allreduce", "all_reduce", "broadcast"}


def _missing_rank(evidence: Evidence, told: Sequence[Event]) -> tuple[int, ...]:
    """The rank that the others waited for, where a barrier names it or exactly one rank is silent or behind."""
    named = {rank for event in told for rank in event.data.get("missing_ranks", ())}
    if named:
        return tuple(sorted(named))
    complaining = {e.rank for e in told if e.rank is not None}
    silent = _known_ranks(evidence) - complaining
    if complaining and len(silent) == 1:
        return tuple(silent)
    lasts = {rank: int(s.steps[-1]) for rank in evidence.ranks("loss") if (s := evidence.series("loss", rank=rank))}
    behind = [rank for rank, step in lasts.items() if step == min(lasts.values())]
    return (behind[0],) if len(lasts) > 1 and len(behind) == 1 else ()


def _known_ranks(evidence: Evidence) -> set[int]:
    world = evidence.number("world_size")
    seen = {e.rank for e in evidence.events or [] if e.rank is not None}
    for name in evidence.names("train"):
        seen.update(evidence.ranks(name))
    if world is not None and 1 < world <= 1 << 16 and len(seen) > 1:
        seen.update(range(int(world)))
    return seen


# -- dumps and stacks -------------------------------------------------------------------------------------------------


def _of_dumps(evidence: Evidence, told: Sequence[Event]) -> Failure | None:
    """What the Flight Recorder dumps of the ranks tell.

    Dumps may be taken of a healthy run too, a moment apart, and then look like a stall: a second sign must speak for
    one. A watchdog's verdict or a message is one; so is a record that ends otherwise than well, or no record at all.
    """
    events = [e for e in evidence.events_of("collective_timeout", "collective_mismatch") if e.data.get("first")]
    if not events:
        return None
    event = events[0]
    absent = tuple(event.data.get("missing") or event.data.get("without_dump") or event.data.get("deviating") or ())
    followed = [r for r in event.data.get("waiting_elsewhere", ()) if r in absent]
    absent = tuple(rank for rank in absent if rank not in followed) or absent
    watchdog = any(e.data.get("timed_out") for e in evidence.events_of("collective_timeout"))
    sure = bool(told) or watchdog
    recorded = bool(evidence.frames) or evidence.ending.kind != "unknown"
    if not sure and (_went_on(evidence, event) or not _stopped(evidence, recorded=recorded)):
        return None
    waiting = tuple(event.data.get("waiting", ()))
    facts: dict[str, Fact] = {"collective": _call(event)}
    if event.kind == "collective_mismatch":
        return Failure("mismatch", event, sure, absent, waiting, {**facts, "calls": evidence_words.event(event)})
    if not absent:
        return Failure("unnamed", event, sure, (), waiting, facts) if sure or evidence.ending.kind in _SPENT else None
    return Failure("missing-rank", event, sure, absent, waiting, facts)


def _stopped(evidence: Evidence, *, recorded: bool) -> bool:
    return evidence.ending.kind in _SPENT if recorded else True


def _went_on(evidence: Evidence, event: Event) -> bool:
    """Whether the run completed, or logged on after the moment at which the first rank began to wait."""
    if evidence.ending.kind == "completed":
        return True
    limit = float(event.data.get("timeout_ms") or 60_000) / 1000
    return event.time is not None and any(
        bool(len(times := stored.frame["time"].drop_nulls())) and float(times[-1]) > event.time + limit
        for stored in evidence.frames.values()
    )


def _of_stacks(evidence: Evidence) -> Failure | None:
    """Stacks of several processes of which most wait in a collective, and one does something else."""
    stacks = [e for e in evidence.events_of("stack") if e.data.get("frames")]
    if len(stacks) < _STACKED or evidence.ending.kind not in ("unknown", "truncated", "killed", "timeout"):
        return None
    waiting = [e for e in stacks if e.data.get("waits") == "collective"]
    others = [e for e in stacks if e.data.get("waits") != "collective"]
    if not waiting or not others or len(others) > len(waiting):
        return None
    odd = others[0]
    facts: dict[str, Fact] = {"where": evidence_words.place(odd), "processes": len(waiting)}
    missing = tuple(e.rank for e in others if e.rank is not None)
    return Failure("silent", odd, sure=False, missing=missing, facts=facts)


# -- checks -----------------------------------------------------------------------------------------------------------

_FACTS = (
    "rank", "waiting", "collective", "limit", "message", "calls", "cause", "where", "processes",
)  # fmt: skip


@check(needs=[], facts=_FACTS)
def communication_failed(evidence: Evidence, *, how: str, proof: str) -> Answer:
    """The communication failed in this way (of How); proof: "shown" by a message or a watchdog, or "likely"."""
    found = failure(evidence)
    if isinstance(found, Missing):
        return found
    if found is None or found.how != how or found.sure != (proof == "shown"):
        return []
    event = found.event
    limit = event.data.get("timeout_ms") or event.data.get("ran_ms")
    facts: dict[str, Fact] = {
        "rank": evidence_words.ranks(found.missing), "waiting": evidence_words.ranks(found.waiting),
        "message": evidence_words.event(event),
        "collective": _call(event), "limit": limit and float(limit) / 1000,
    }  # fmt: skip
    step, after = _place(evidence, event)
    facts |= found.facts
    return [Hit(step, after, source=event.source, line=event.line, facts=facts)]


def _call(event: Event) -> Text | str:
    """The collective that a message names, else the line of the program that called it."""
    name, where = event.data.get("collective"), event.data.get("where")
    if name:
        return str(name)
    return Text(f"called in {where}", f"在 {where} 中调用") if where else Text("not named", "未写明")


def _place(evidence: Evidence, event: Event) -> tuple[int | None, int | None]:
    """(the step that was not logged any more, the last logged one) of the moment at which the run stood still."""
    last = event.step if event.step is not None else (evidence.steps or (None, None))[1]
    loss = evidence.series("loss")
    return (None, None) if last is None else (last + max(1, round(loss.cadence) if loss is not None else 1), last)


@check(needs=[], facts=["variables"])
def communication_variables(evidence: Evidence) -> Answer:
    """Variables of NCCL and PyTorch are set that have no effect, or that are meant for a diagnosis only."""
    if not evidence.settings and not evidence.environment:
        return Missing("environment")
    found: dict[str, str] = {}
    places: list[tuple[str | None, int | None]] = []
    named = [(s.name, s.value, s.source, s.line) for s in evidence.settings or []]
    named += [(f.key, f.value, f.source, f.line) for f in evidence.environment or []]
    for name, value, source, line in named:
        bare = name.rpartition(".")[2].upper()
        if bare in _VARIABLES and value is not None and re.fullmatch(_VARIABLES[bare], str(value).strip()):
            found.setdefault(bare, str(value)[:40])
            places.append((source, line))
    if not found:
        return []
    facts = {"variables": ", ".join(f"{name}={value}" for name, value in sorted(found.items()))}
    return [Hit(None, source=places[0][0], line=places[0][1], facts=facts)]


CHECKS: tuple[Check, ...] = (communication_failed, communication_variables)
