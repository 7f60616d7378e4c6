"""The folder of a run of W&B: run-TIME-ID or offline-run-TIME-ID, with the log, and the folders files and logs."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from gradforensics.evidence.files import File

_RUN = re.compile(r"^(?:offline-)?run-\d{8}_\d{6}-.+$")


def place_of(file: File) -> tuple[str, ...]:
    """The parts of a file's path below the folder of its run; none where it lies in no such folder.

    The folder of the run may be the input itself: then only the path on disk names it.
    """
    parts = PurePosixPath(file.name).parts if file.opener is not None else file.path.parts
    depth = next((depth for depth in range(len(parts) - 1, 0, -1) if _RUN.match(parts[depth - 1])), None)
    return () if depth is None else parts[depth:]
