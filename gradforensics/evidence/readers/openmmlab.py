"""Logs of MMEngine (vis_data/scalars.json) and MMCV (<time>.log.json): JSON lines of training and of validation.

A row of a validation does not say where it stands: MMEngine writes the number of the epoch as its "step", MMCV the
length of the validation set as its "iter". It belongs to the last row of the training. Sources of the formats:
mmengine.hooks.LoggerHook, mmcv.runner.hooks.TextLoggerHook.
"""

from __future__ import annotations

import re
from typing import Any

from gradforensics.evidence import json_rows, names, numbers, rounding
from gradforensics.evidence.files import File
from gradforensics.evidence.readings import Reading
from gradforensics.evidence.rows import RowLog
from gradforensics.tables import Phase

name = "openmmlab"

_NAME = re.compile(r"\.log\.json$|^(?:scalars|\d{8}_\d{6})\.json$")
_ENVIRONMENT = '{"env_info"'  # the first line of MMCV, which may be longer than the head of a file
_PLACES = frozenset({"mode", "epoch", "iter", "step"})


def sniff(file: File) -> bool:
    """By the names that the two give their logs, and a row of a training among the first."""
    if not _NAME.search(file.base):
        return False
    return file.start.startswith(_ENVIRONMENT) or any(
        "iter" in record and ("mode" in record or "step" in record) for record in json_rows.head(file)
    )


def read(file: File) -> Reading:
    """All rows; iterations that begin anew in every epoch are counted through."""
    reading = Reading(speaks_of_training=True)
    log = RowLog(file.columns)
    first = 2 if file.start.startswith(_ENVIRONMENT) else 1
    for line, record in json_rows.rows(file, reading.notices, first):
        reading.columns |= record.keys()
        phase = _phase(record)
        found = json_rows.values(record, _PLACES)
        step = _whole(record, "iter") if phase == "train" else None
        if phase is None or not found or (phase == "train" and step is None):
            continue
        log.add(line, found, step=step, epoch=_whole(record, "epoch"), phase=phase)
        reading.trail.last_line = line
    reading.tracks = rounding.settled(log.finish())
    reading.notices += log.notices
    reading.trail.last_step = max((step for _, step in log.stands), default=None)
    reading.claimed = bool(reading.tracks)
    return reading


def _phase(record: dict[str, Any]) -> Phase | None:
    """The phase of a row; None for what is none."""
    if "mode" in record:
        return names.phase_word(str(record["mode"])[:20])
    if "iter" in record:
        return "train"
    return "eval" if "step" in record else None


def _whole(record: dict[str, Any], key: str) -> int | None:
    try:
        return numbers.whole(numbers.scalar(record.get(key)))
    except ValueError:
        return None
