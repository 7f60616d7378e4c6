"""What the recorder writes into a run directory, by name (a leaf that costs nothing to import)."""

from __future__ import annotations

from pathlib import PurePath

CAPSULE_HEADER = "capsule.json"
STEP_LOG = "gradforensics-steps"  # how the names of the recorder's logs begin, one line per step


def is_step_log(source: str) -> bool:
    """Whether a source is a log of the recorder."""
    return PurePath(source).name.startswith(STEP_LOG)
