"""Where a run was resumed: at the attempts of its series, at lines that say so, and where its clock starts anew."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from gradforensics.tables import Evidence, Series

_GOES_ON = re.compile(r"resum|continu|restored all states", re.IGNORECASE)

How: TypeAlias = Literal["attempt", "line", "clock"]


@dataclass(frozen=True, slots=True)
class Resume:
    """A launch that goes on where another one was.

    step: its first logged step; last: the last step before it that it builds on; said: a line of the log names it;
    again: it counts its steps from the beginning of the run.
    """

    step: int
    last: int
    how: How
    said: bool = False
    again: bool = False


def resumes(evidence: Evidence) -> list[Resume]:
    """Every resume that the record shows, by step; a launch from the beginning only where nothing precedes it."""
    return evidence.once("resumes", lambda: _resumes(evidence))


def _resumes(evidence: Evidence) -> list[Resume]:
    found: dict[int, Resume] = {}
    for resume in (*_by_attempts(evidence), *_by_lines(evidence), *_by_clock(evidence)):
        same = next((s for s in found if abs(s - resume.step) <= 1), None)
        if same is None:
            found[resume.step] = resume
        elif resume.said and not found[same].said:
            old = found[same]
            found[same] = Resume(old.step, old.last, old.how, said=True, again=old.again)
    return [found[step] for step in sorted(found)]


def _by_attempts(evidence: Evidence) -> list[Resume]:
    parts = evidence.attempts("loss") or evidence.attempts("lr")
    out = []
    for number, part in enumerate(parts[1:], start=1):
        if not len(part):
            continue
        first, before = int(part.steps[0]), parts[number - 1]
        again = first <= int(parts[0].steps[0])
        earlier = before.steps if again else np.concatenate([p.steps[p.steps < first] for p in parts[:number]])
        if len(earlier):
            said = named(evidence, before, part)
            out.append(Resume(first, int(earlier.max()), "attempt", said=said, again=again))
    return out


def named(evidence: Evidence, before: Series, after: Series) -> bool:
    """Whether a line of the log, of the later of two attempts or between their rows, says that it resumed.

    A line that only says that a checkpoint was loaded may begin a fine-tune.
    """
    number = int(after.attempts[0]) if len(after) else -1
    low, high = (int(before.lines.max()), int(after.lines.min())) if len(before) and len(after) else (0, 0)
    for event in (e for e in evidence.events_of("resume") if _GOES_ON.search(e.text)):
        between = event.source == after.source and event.line is not None and low < event.line <= high
        if event.attempt == number or between:
            return True
    return False


def _by_lines(evidence: Evidence) -> list[Resume]:
    series = _counted(evidence)
    out: list[Resume] = []
    if series is None:
        return out
    for event in evidence.events_of("resume"):
        at = event.data.get("step", event.step)
        if at is None:
            continue
        after, before = series.steps[series.steps > at], series.steps[series.steps <= at]
        # a line that names a step far from all that is logged speaks of another run (a checkpoint to fine-tune from)
        if len(after) and len(before) and int(before[-1]) >= int(at) - 2 * max(series.cadence, 1.0):
            out.append(Resume(int(after[0]), int(before[-1]), "line", said=True))
    return out


def _by_clock(evidence: Evidence) -> list[Resume]:
    elapsed = evidence.series("elapsed")
    if elapsed is None or len(elapsed.good) < 3:
        return []
    clock = elapsed.good
    back = np.flatnonzero(clock.values[1:] < 0.5 * clock.values[:-1]) + 1
    return [Resume(int(clock.steps[i]), int(clock.steps[i - 1]), "clock") for i in back.tolist()]


def _counted(evidence: Evidence) -> Series | None:
    series = evidence.series("loss") or evidence.series("lr")
    return series if series is not None and len(series) and series.step_unit == "step" else None
