"""How the record of a run ends: the last thing in time decides, and a line shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from gradforensics.evidence.grouping import Piece
from gradforensics.tables import Ending, EndingKind, Event, Evidence

_CLOSERS = ("exception", "oom", "killed", "timeout", "completed")
_ECHOES = ("ChildFailedError", "RayTaskError", "ActorDiedError", "ProcessRaisedException")
_HOURS = 7200.0  # seconds from which on a time is told in hours
_MINUTE = 60.0  # an estimate of less than this at the last logged row is no proof of missing steps


def ending_of(evidence: Evidence, pieces: Sequence[Piece]) -> Ending:
    """The ending of one run, from its console logs, its planned end and where its series stop."""
    consoles = [p for p in pieces if p.reading.events is not None]
    live = [p for p in consoles if p.is_series or p.reading.trail.last_line]
    reached = _reached(evidence, pieces)
    for piece in sorted(live, key=lambda p: -(p.reading.trail.last_step or 0)):
        found = _closing(piece)
        if found is not None:
            return found
        break
    if reached is not None and reached.kind == "completed":
        return reached
    for piece in consoles:
        if piece not in live and (found := _closing(piece)) is not None:
            return found
    for piece in pieces:
        trail = piece.reading.trail
        if trail.finished and piece.reader != "console":
            return Ending("completed", trail.finished, piece.file.name, trail.finished_line)
    return reached or _estimate(live) or _tested(evidence) or Ending()


def _closing(piece: Piece) -> Ending | None:
    """What a console log says after its last training line and its last launch."""
    trail = piece.reading.trail
    after = max(trail.last_line or 0, trail.launch_line or 0)
    tail = [e for e in piece.reading.events or [] if e.kind in _CLOSERS and (e.line or 0) > after]
    # the closing summary of the Trainer may stand on the line of its last bar
    tail = tail or [e for e in piece.reading.events or [] if e.kind == "completed" and (e.line or 0) == after]
    if not tail:
        return None
    if tail[-1].kind == "completed":
        return _told(tail[-1])
    tail = [e for e in tail if e.kind != "completed"]
    for kind in ("oom", "timeout"):
        if causes := [e for e in tail if e.kind == kind]:
            return _told(causes[0])
    if tail[0].kind == "killed":
        return _told(tail[0])
    raised = [e for e in tail if e.kind == "exception"]
    causes = [e for e in raised if e.data.get("type") not in _ECHOES and "RayTaskError" not in e.text]
    return _told((causes or raised)[-1])


def _told(event: Event) -> Ending:
    kinds: Mapping[str, EndingKind] = {
        "exception": "exception",
        "oom": "oom",
        "killed": "killed",
        "timeout": "timeout",
        "completed": "completed",
    }
    return Ending(kinds[event.kind], event.text, event.source, event.line)


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
        step, line = stored.frame.select(pl.col("step"), pl.col("line")).sort("step").row(-1)
        if step is not None and (best[0] is None or step > best[0]):
            best = (step, line, key.source)
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
