"""What the run's own logs say of a step (no torch)."""

from __future__ import annotations

import math
from pathlib import Path

from gradforensics.errors import GradforensicsError
from gradforensics.evidence.gather import gather
from gradforensics.notices import Progress
from gradforensics.tables import KINDS, Evidence

_SERIES = ("loss", "grad_norm")
_VALUES = {"nan": math.nan, "posinf": math.inf, "neginf": -math.inf}


def of_step(run: Path, step: int, progress: Progress | None = None) -> tuple[dict[str, float], list[str]]:
    """loss and grad_norm of an optimizer step, where exactly one run in `run` logged them; and remarks.

    A loss that is logged every few steps may be a mean over them: it is left out.
    """
    try:
        found = gather([run], tensors=False, progress=progress)
    except GradforensicsError:
        return {}, []
    values: dict[str, float] = {}
    remarks: list[str] = []
    for name in _SERIES:
        known = [one for evidence in found if (one := _value(evidence, name, step)) is not None]
        if len(known) == 1:
            values[name], where = known[0]
            remarks.append(f"the run's log says {name} {values[name]:.6g} at step {step} ({where})")
        elif known:
            remarks.append(f"{len(known)} runs log a {name} at step {step}: none is compared")
    return values, remarks


def _value(evidence: Evidence, name: str, step: int) -> tuple[float, str] | None:
    """The value at a step and where it stands."""
    series = evidence.series(name, "train")
    if series is None or series.step_unit != "step" or (name == "loss" and series.cadence > 1):
        return None
    places = (series.steps == step).nonzero()[0]
    if not len(places):
        return None
    place = places[-1]
    kind = KINDS[series.codes[place]]
    if kind == "missing":
        return None
    where = f"{series.source}:{series.lines[place]}" if series.lines[place] else series.source
    return _VALUES.get(kind, float(series.values[place])), where
