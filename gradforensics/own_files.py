"""What this tool writes that may lie in a run directory, by name (a leaf that costs nothing to import)."""

from __future__ import annotations

from pathlib import PurePath

CAPSULE_HEADER = "capsule.json"
STEP_LOG = "gradforensics-steps"  # how the names of the recorder's logs begin, one line per step
ENVIRONMENT = "gradforensics-env"  # how the names of the files of `gradforensics env` begin, one per node and rank
ENVIRONMENT_KIND = "environment"  # what they say of themselves


def is_step_log(source: str) -> bool:
    """Whether a source is a log of the recorder."""
    return PurePath(source).name.startswith(STEP_LOG)
