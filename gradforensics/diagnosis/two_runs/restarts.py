"""Restarts of either run right where two runs part."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradforensics.diagnosis.two_runs.partings import Parting
from gradforensics.tables import Evidence


@dataclass(frozen=True, slots=True)
class Restart:
    """A later attempt that takes over at `step`; here: of the first run."""

    step: int
    here: bool


def restarts(here: Evidence, there: Evidence, result: Parting | None) -> list[Restart]:
    """The restarts after the last step that is equal and not after the first that differs."""
    if result is None or result.course != "parts" or result.until is None or result.step is None:
        return []
    found = []
    for evidence, mine in ((here, True), (there, False)):
        series = evidence.series(result.name, result.phase)
        if series is None:
            continue
        begins = series.steps[np.flatnonzero(np.diff(series.attempts) != 0) + 1]
        found += [Restart(int(step), mine) for step in begins if result.until < step <= result.step]
    return found
