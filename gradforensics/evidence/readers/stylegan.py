"""Logs of StyleGAN2-ADA and StyleGAN3: stats.jsonl per tick, metric-<name>.jsonl per snapshot, both by images seen.

Source of the formats: training_loop.py and metric_main.py of the two.
"""

from __future__ import annotations

import re
from typing import Any

from gradforensics.evidence import json_rows, numbers, rounding
from gradforensics.evidence.files import File
from gradforensics.evidence.readings import Reading
from gradforensics.evidence.rows import RowLog
from gradforensics.tables import StepUnit

name = "stylegan"

_KIMG = "Progress/kimg"
_SNAPSHOT = "snapshot_pkl"
_SNAPSHOT_KIMG = re.compile(r"(\d{6,9})\.pkl$")
_PLACES = frozenset({"timestamp", _SNAPSHOT, "num_gpus", "metric", "total_time", "total_time_str"})


def sniff(file: File) -> bool:
    """By the name, and thousands of images or a snapshot in the first record."""
    if not file.base.endswith(".jsonl") or not file.base.startswith(("stats", "metric-")):
        return False
    return any(_images(record) is not None for record in json_rows.head(file))


def read(file: File) -> Reading:
    """Every number of every row; a row without a number of images stands where the one before it does."""
    reading = Reading(speaks_of_training=True)
    unit: StepUnit = "samples"
    log = RowLog(file.columns, unit)
    for line, record in json_rows.rows(file, reading.notices):
        reading.columns |= record.keys()
        found = json_rows.values(record, _PLACES)
        if not found:
            continue
        log.add(line, found, step=_images(record), time=_number(record.get("timestamp")))
        reading.trail.last_line = line
    reading.tracks = rounding.settled(log.finish())
    reading.notices += log.notices
    reading.claimed = bool(reading.tracks)
    return reading


def _images(record: dict[str, Any]) -> int | None:
    """The images that were shown to the discriminator: the log and the names of snapshots count thousands."""
    kimg = _number(record.get(_KIMG))
    if kimg is not None:
        return numbers.whole(float(round(kimg * 1000))) if abs(kimg) < 2**43 else None
    named = _SNAPSHOT_KIMG.search(str(record.get(_SNAPSHOT))[-200:])
    return int(named[1]) * 1000 if named else None


def _number(value: Any) -> float | None:
    try:
        return numbers.scalar(value)
    except ValueError:
        return None
