"""How the record of a run ends: the last thing in time decides, and a line shows it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from gradforensics.evidence.events import ending_kind
from gradforensics.evidence.pieces import Piece
from gradforensics.tables import Ending, EndingKind, Event, Evidence

# What a process raises because another one failed: the launcher's, the cluster's, the shell's report of it.
_ECHOES = (
    "ChildFailedError", "RayTaskError", "RayActorError", "ActorDiedError", "ActorUnavailableError",
    "ProcessRaisedException", "ProcessExitedException", "CalledProcessError", "TrainingFailedError",
    "WorkerCrashedError", "SignalException",
)  # fmt: skip
_HOURS = 7200.0  # seconds from which on a time is told in hours
_MINUTE = 60.0  # an estimate of less than this at the last logged row is no proof of missing steps


def ending_of(evidence: Evidence, pieces: Sequence[Piece]) -> Ending:
    """The ending of one run, from its console logs, its planned end and where its series stop."""
    recorded = [e for p in pieces for e in p.reading.events or [] if e.line is None and ending_kind(e) is not None]
    consoles = [p for p in pieces if p.reading.events is not None and all(e.line is not None for e in p.reading.events)]
    live = [p for p in consoles if p.is_series or p.reading.trail.last_line]
    reached = _reached(evidence, pieces)
    last = max(live, key=lambda p: p.reading.trail.last_step or 0, default=None)
    tails = {id(p): _tail(p) for p in consoles}
    if last is not None:
        found = _closing(tails[id(last)])
        if found is None or found.kind != "completed":
            found = _closing([*tails[id(last)], *_of_other_ranks(last, consoles, tails)])
        if found is not None:
            return found
    told = [p for p in consoles if p not in live and tails[id(p)]]
    if recorded:  # a status, which stands on no line: a log that says why is better
        why = _told_by(told, tails)
        return why if why.kind not in ("unknown", "completed") else _told(recorded[-1])
    if reached is not None and reached.kind == "completed":
        return reached
    if told:
        return _told_by(told, tails)
    for piece in pieces:
        trail = piece.reading.trail
        if trail.finished and piece.reader != "console":
            return Ending("completed", trail.finished, piece.file.name, trail.finished_line)
    return reached or _estimate(live) or _tested(evidence) or Ending()


def _tail(piece: Piece) -> list[Event]:
    """The events of a log that can end a run or tell who failed, behind its last training line and last launch."""
    trail = piece.reading.trail
    after = max(trail.last_line or 0, trail.launch_line or 0)
    closers = [e for e in piece.reading.events or [] if ending_kind(e) is not None or e.kind == "child_failed"]
    # the closing summary of the Trainer may stand on the line of its last bar
    at_bar = [e for e in closers if e.kind == "completed" and (e.line or 0) == after]
    return [e for e in closers if (e.line or 0) > after] or at_bar


def _of_other_ranks(last: Piece, consoles: Sequence[Piece], tails: dict[int, list[Event]]) -> list[Event]:
    """What the other ranks of a job say at their ends: the one that failed first need not be the one that logs."""
    if last.rank is None:
        return []
    ranks = [p for p in consoles if p is not last and p.rank is not None and p.rank != last.rank]
    step = last.reading.trail.last_step
    fresh = [p for p in ranks if p.reading.trail.last_step in (None, step) or not p.is_series]
    found = [event for piece in fresh for event in tails[id(piece)] if event.kind != "completed"]
    return sorted(found, key=lambda e: (e.rank is None, e.rank or 0))


def _told_by(pieces: Sequence[Piece], tails: dict[int, list[Event]]) -> Ending:
    """The ending that logs without a training line tell: of all ranks together, else of the first that tells one."""
    ranks = sorted((p for p in pieces if p.rank is not None), key=lambda p: p.rank or 0)
    together = ranks if len(ranks) > 1 else pieces[:1]
    return _closing([event for piece in together for event in tails[id(piece)]]) or Ending()


def _closing(tail: Sequence[Event]) -> Ending | None:
    """The one of the events at the end of a run that made it end; None where there is none."""
    if tail and tail[-1].kind == "completed":
        return _told(tail[-1])
    causes = _in_order([e for e in tail if e.kind not in ("completed", "child_failed")])
    if memory := [e for e in causes if e.kind == "oom"]:
        return _told(memory[0])
    root = {e.rank for e in tail if e.data.get("root") and e.rank is not None}
    for candidates in (
        [e for e in causes if _is_cause(e) and e.rank in root],
        [e for e in causes if _is_cause(e)],
        [e for e in causes if not _is_echo(e)],
        causes,
    ):
        if candidates:
            return _told(_outermost(_limit(candidates), causes))
    return None


def _in_order(events: list[Event]) -> list[Event]:
    """By their times where all have one, else as they were read."""
    return sorted(events, key=lambda e: e.time or 0.0) if all(e.time is not None for e in events) else events


def _is_echo(event: Event) -> bool:
    return event.data.get("type") in _ECHOES or "RayTaskError" in event.text


def _is_cause(event: Event) -> bool:
    """Whether an event can be what came first: no report of another failure, no lost connection to who failed."""
    return not _is_echo(event) and event.kind != "nccl_error" and "thread" not in event.data


def _limit(candidates: Sequence[Event]) -> Event:
    """The first of the candidates; of a signal the limit for which it was sent, where a line names it."""
    first = candidates[0]
    limits = [e for e in candidates if e.kind == "timeout"]
    return limits[0] if first.kind == "killed" and limits else first


def _outermost(event: Event, events: Sequence[Event]) -> Event:
    """The exception that was raised last while this one was handled: it is what stopped the process."""
    later = [e for e in events if (e.source, (e.data.get("cause") or {}).get("line")) == (event.source, event.line)]
    later = [e for e in later if not _is_echo(e)]
    return later[-1] if later and ending_kind(event) == "exception" else event


def _told(event: Event) -> Ending:
    return Ending(ending_kind(event) or "unknown", event.text, event.source, event.line)


def _reached(evidence: Evidence, pieces: Sequence[Piece]) -> Ending | None:
    """Completed or truncated, where the planned end is known."""
    steps, line, source = _last(evidence, "step")
    stated = [p for p in pieces if p.reading.trail.last_step is not None and _unit(p) == "step"]
    for piece in stated:
        if (piece.reading.trail.last_step or 0) > (steps or -1):
            steps, line, source = piece.reading.trail.last_step, piece.reading.trail.last_line, piece.file.name
    planned = evidence.number("max_steps") or max((p.reading.trail.planned or 0 for p in stated), default=0)
    if steps is not None and planned:
        missing = planned - steps
        if missing < max(_cadence(evidence), 1.5):
            return Ending("completed", f"step {steps} of {planned:.0f} planned steps is the last", source, line)
        return Ending("truncated", f"the record stops at step {steps} of {planned:.0f} planned steps", source, line)
    epochs = evidence.number("num_train_epochs")
    if not epochs or epochs <= 0:
        return None
    last, line, source = _last(evidence, "epoch")
    if last is not None:
        first = evidence.steps[0] if evidence.steps else 0
        done = last + 1 if first == 0 else last
        kind: EndingKind = "completed" if done >= epochs else "truncated"
        return Ending(kind, f"the record ends with epoch {done} of {epochs:.0f} planned epochs", source, line)
    return None


def _unit(piece: Piece) -> str:
    units = {t.stored.step_unit for t in piece.reading.tracks}
    return "step" if not units or "step" in units else units.pop()


def _last(evidence: Evidence, unit: str) -> tuple[int | None, int | None, str | None]:
    """(step, line, source) of the last point of all series that count in `unit`."""
    best: tuple[int | None, int | None, str | None] = (None, None, None)
    for key, stored in evidence.frames.items():
        if stored.step_unit != unit or not stored.frame.height:
            continue
        step: Any = stored.frame["step"].max()
        if step is not None and (best[0] is None or step > best[0]):
            best = (step, stored.frame["line"].filter(stored.frame["step"] == step)[-1], key.source)
    return best


def _cadence(evidence: Evidence) -> float:
    loss = evidence.series("loss")
    return loss.cadence if loss is not None and loss.step_unit == "step" else 1.0


def _estimate(live: Sequence[Piece]) -> Ending | None:
    """Truncated where the log's own estimate at its last row says that much was left."""
    for piece in live:
        trail = piece.reading.trail
        if trail.seconds_left is not None and trail.seconds_left > _MINUTE:
            text = f"the record stops where the log expected {_duration(trail.seconds_left)}"
            return Ending("truncated", text, piece.file.name, trail.last_line)
    return None


def _duration(seconds: float) -> str:
    if seconds >= _HOURS:
        return f"{seconds / 3600:.1f} more hours"
    minutes = round(seconds / _MINUTE)
    return "1 more minute" if minutes == 1 else f"{minutes} more minutes"


def _tested(evidence: Evidence) -> Ending | None:
    """Completed where a file logged a test only after its last training point."""
    lines: dict[tuple[str, str], tuple[int, int]] = {}
    for key, stored in evidence.frames.items():
        logged = stored.frame.filter(pl.col("kind") != "missing")["line"].drop_nulls()
        if len(logged):
            first, last = int(logged.min()), int(logged.max())  # type: ignore[arg-type]  # UInt32, not empty
            low, high = lines.get((key.source, key.phase), (first, last))
            lines[key.source, key.phase] = (min(low, first), max(high, last))
    for (source, phase), (first, _) in lines.items():
        trained = lines.get((source, "train"))
        if phase == "test" and trained is not None and first > trained[1]:
            return Ending("completed", "a test was logged after the last training point", source, first)
    return None
