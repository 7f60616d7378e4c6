"""Ranks x time, for hangs and stragglers. Selected and put together from the evidence; nothing is judged here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, TypeAlias

import numpy as np
import polars as pl

from gradforensics.diagnosis.causes import Diagnosis
from gradforensics.diagnosis.checks import communication
from gradforensics.diagnosis.checks.replicas import timed_by_rank
from gradforensics.diagnosis.judge import Verdict
from gradforensics.diagnosis.vocabulary import Fact, Hit
from gradforensics.tables import Evidence

State: TypeAlias = Literal["silent", "parted", "failed", "slow", "waiting", ""]

WINDOWS = 48  # stretches of steps
ALL = 64  # ranks up to which each has a row; of more only those that deviate
DEVIATING = 40
_MARKS = 6  # errors that a row shows
APART, COMMUNICATION, HARDWARE, STRAGGLER = "GF22", "GF24", "GF26", "GF41"
_NAMES_RANKS = frozenset({"rank", "ranks", "waiting", "host"})  # facts of hits that speak of ranks or hosts
_ERRORS = frozenset({
    "timeout", "nccl_error", "exception", "oom", "oom_killer", "killed", "segfault", "cuda_error", "device_assert",
    "xid", "gpu_fallen", "ecc",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Error:
    """One error of a rank; kind: of the event."""

    kind: str
    step: int | None
    source: str
    line: int | None


@dataclass(frozen=True)
class RankRow:
    """One rank or, as the rest, several that do not deviate.

    state: silent: the others waited for it; parted: it called something else; failed: it died before the others
    complained; slow; waiting. last_step, last_time: of the last logged point, Unix seconds; of several ranks the
    earliest. collective: the operation that it waits in or never reached. step_time: median, in the logged unit.
    cells: median time of each window of steps, None where none was logged; seen: whether anything was logged there.
    """

    ranks: tuple[int, ...]
    host: str | None = None
    state: State = ""
    last_step: int | None = None
    last_time: float | None = None
    collective: str = ""
    step_time: float | None = None
    cells: tuple[float | None, ...] = ()
    seen: tuple[bool, ...] = ()
    errors: tuple[Error, ...] = ()


@dataclass(frozen=True)
class Ranks:
    """The ranks of a run on one axis of steps.

    windows: first and last step of each; unit: of the steps; series: the times that the cells show, "" where none were
    logged by rank. rows: by host and rank; rest: the ranks without a row. known: how many ranks the record names;
    deviating: how many of them have a state, an error or fewer steps than most; world: how many the settings state.
    """

    windows: tuple[tuple[int, int], ...]
    unit: str
    series: str
    rows: tuple[RankRow, ...]
    rest: RankRow | None
    known: int
    deviating: int
    world: int | None


def ranks(diagnosis: Diagnosis) -> Ranks | None:
    """The ranks of a run; None where no fired finding speaks of ranks, or fewer than two are known."""
    evidence = diagnosis.evidence
    told = {v.rule.id: v for v in diagnosis.verdicts if v.outcome == "fired" and _speaks_of_ranks(v)}
    if not told:
        return None
    logged = _logged(evidence)
    states = _states(evidence, told)
    errors = _errors(evidence)
    known = sorted({*logged.ranks, *states, *errors})
    if len(known) < 2:
        return None
    hosts = rank_hosts(evidence)
    calls = _calls(evidence)
    rows = [
        RankRow(
            (rank,),
            hosts.get(rank),
            states.get(rank, ""),
            *logged.last.get(rank, (None, None)),
            calls.get(rank, ""),
            logged.typical.get(rank),
            logged.cells.get(rank, (None,) * len(logged.windows)),
            logged.seen.get(rank, (False,) * len(logged.windows)),
            tuple(errors.get(rank, ())[:_MARKS]),
        )
        for rank in known
    ]
    odd = _deviating(rows)
    shown = rows if len(rows) <= ALL else odd[:DEVIATING]
    rest = [row for row in rows if row not in shown] if len(shown) < len(rows) else []
    shown.sort(key=lambda row: (row.host is None, _natural(row.host or ""), row.ranks))
    world = evidence.number("world_size")
    return Ranks(
        logged.windows,
        logged.unit,
        logged.series,
        tuple(shown),
        _rest(rest) if rest else None,
        len(known),
        len(odd),
        None if world is None else int(world),
    )


def _speaks_of_ranks(verdict: Verdict) -> bool:
    if verdict.rule.id not in (APART, COMMUNICATION, HARDWARE, STRAGGLER):
        return False
    return any(_NAMES_RANKS & hit.facts.keys() for one in verdict.holdings for hit in one.hits)


def _natural(text: str) -> list[tuple[int, int, str]]:
    """node2 before node10."""
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", text) if part]


@dataclass(frozen=True)
class _Logged:
    """What the ranks logged: times where there are any, else the loss or the first series of several ranks."""

    windows: tuple[tuple[int, int], ...] = ()
    unit: str = "step"
    series: str = ""
    ranks: frozenset[int] = frozenset()
    last: Mapping[int, tuple[int | None, float | None]] = field(default_factory=dict)
    typical: Mapping[int, float] = field(default_factory=dict)
    cells: Mapping[int, tuple[float | None, ...]] = field(default_factory=dict)
    seen: Mapping[int, tuple[bool, ...]] = field(default_factory=dict)


def _logged(evidence: Evidence) -> _Logged:
    times = timed_by_rank(evidence)
    names = times or [n for n in ("loss", *evidence.names("train")) if len(evidence.ranks(n)) > 1]
    if not names:
        return _Logged()
    name = names[0]
    keys = [key for key in evidence.keys(name) if evidence.frames[key].step_unit in ("step", "micro_step")]
    frames = [evidence.frames[key].frame.select("rank", "step", "time", "value") for key in keys]
    rows = pl.concat(frames).drop_nulls(["rank", "step"]) if frames else pl.DataFrame()
    if not rows.height:
        return _Logged()
    steps = rows["step"].to_numpy()
    edges = np.unique(np.linspace(steps.min(), steps.max() + 1, WINDOWS + 1).astype(np.int64))
    place = np.searchsorted(edges, steps, "right") - 1
    rows = rows.with_columns(pl.Series("window", place))
    last = {
        rank: (step, time) for rank, step, time in rows.group_by("rank").agg(pl.max("step"), pl.max("time")).iter_rows()
    }
    medians = rows.group_by("rank", "window").agg(pl.median("value"))
    cells: dict[int, list[float | None]] = {rank: [None] * (len(edges) - 1) for rank in last}
    seen: dict[int, list[bool]] = {rank: [False] * (len(edges) - 1) for rank in last}
    for rank, window, value in medians.iter_rows():
        cells[rank][window] = value if times else None
        seen[rank][window] = True
    typical = dict(rows.group_by("rank").agg(pl.median("value")).drop_nulls().iter_rows()) if times else {}
    return _Logged(
        tuple((a, b - 1) for a, b in pairwise(edges.tolist())),
        evidence.frames[keys[0]].step_unit,
        name if times else "",
        frozenset(last),
        last,
        typical,
        {rank: tuple(row) for rank, row in cells.items()},
        {rank: tuple(row) for rank, row in seen.items()},
    )


def failure_told(evidence: Evidence, told: Iterable[str]) -> communication.Failure | None:
    """How the communication failed, where the rule that says so is among those `told` (which fired)."""
    found = communication.failure(evidence) if COMMUNICATION in told else None
    return found if isinstance(found, communication.Failure) else None


def _states(evidence: Evidence, told: Mapping[str, Verdict]) -> dict[int, State]:
    found: dict[int, State] = {}
    failure = failure_told(evidence, told)
    if failure is not None:
        found.update(dict.fromkeys(failure.waiting, "waiting"))
        found.update(dict.fromkeys(failure.missing, "parted" if failure.how == "mismatch" else "silent"))
        if failure.how == "consequence":
            found.update(dict.fromkeys(numbers(failure.facts.get("rank")), "failed"))
    if STRAGGLER in told:
        for hit in hits(told[STRAGGLER]):
            found.update(dict.fromkeys(numbers(hit.facts.get("rank")), "slow"))
    return found


def hits(verdict: Verdict) -> list[Hit]:
    """All hits of a verdict."""
    return [hit for one in verdict.holdings for hit in one.hits]


def numbers(told: Fact) -> list[int]:
    """The ranks of a fact: 3, "3" or "3, 5"."""
    return [int(part) for part in re.findall(r"\d+", str(told))] if told is not None else []


def _errors(evidence: Evidence) -> dict[int, list[Error]]:
    """Errors by rank, in order, each kind of one source once."""
    found: dict[int, dict[tuple[str, str], Error]] = {}
    for event in evidence.events or []:
        if event.rank is not None and event.kind in _ERRORS and event.data.get("level") != "warning":
            one = Error(event.kind, event.step, event.source, event.line)
            found.setdefault(event.rank, {}).setdefault((event.kind, event.source), one)
    return {rank: list(errors.values()) for rank, errors in found.items()}


def _calls(evidence: Evidence) -> dict[int, str]:
    """The collective of which the Flight Recorder dumps or a watchdog tell, by rank."""
    found: dict[int, str] = {}
    for event in evidence.events or []:
        name, sequence = event.data.get("collective"), event.data.get("sequence")
        if not name or sequence is None:
            continue
        for rank in (event.rank, *event.data.get("missing", ()), *event.data.get("waiting", ())):
            if rank is not None:
                found.setdefault(rank, f"{name} #{sequence}")
        for other, ranks_ in event.data.get("calls", {}).items() if event.data.get("what") == "operation" else ():
            found.update(dict.fromkeys(ranks_, f"{other} #{sequence}"))
    return found


def _deviating(rows: Sequence[RankRow]) -> list[RankRow]:
    """The ranks with a state, an error or fewer steps than most, the most telling first; waiting is what all do."""
    steps = [row.last_step for row in rows if row.last_step is not None]
    usual = int(np.median(steps)) if steps else None
    order = ("silent", "parted", "failed", "slow", "", "waiting")
    odd = [row for row in rows if row.state not in ("", "waiting") or row.errors or (row.last_step or 0) < (usual or 0)]
    return sorted(odd, key=lambda row: (order.index(row.state), row.last_step or 0))


def _rest(rows: Sequence[RankRow]) -> RankRow:
    """Several ranks as one row: medians of their times, the earliest of their ends."""
    steps = [row.last_step for row in rows if row.last_step is not None]
    times = [row.last_time for row in rows if row.last_time is not None]
    return RankRow(
        tuple(row.ranks[0] for row in rows),
        last_step=min(steps, default=None),
        last_time=min(times, default=None),
        step_time=_median([row.step_time for row in rows]),
        cells=tuple(_median(column) for column in zip(*(row.cells for row in rows), strict=True)),
        seen=tuple(any(column) for column in zip(*(row.seen for row in rows), strict=True)),
    )


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else None


def rank_hosts(evidence: Evidence) -> dict[int, str]:
    """The hosts of ranks, as far as the record tells them."""
    found: dict[int, str] = {}
    for fact in evidence.environment or []:
        host = fact.value if fact.key == "host" else fact.host
        if fact.rank is not None and host:
            found.setdefault(fact.rank, host)
    for event in evidence.events or []:
        if event.rank is not None and event.host:
            found.setdefault(event.rank, event.host)
    return found
