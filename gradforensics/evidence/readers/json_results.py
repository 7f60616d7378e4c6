"""Closing results as one JSON object: all_results.json, train_results.json, eval_results.json, metrics.json."""

from __future__ import annotations

from gradforensics.evidence import numbers
from gradforensics.evidence.files import File
from gradforensics.evidence.located_json import Cursor, TornJsonError, flatten
from gradforensics.evidence.readings import Reading
from gradforensics.evidence.rows import RowLog
from gradforensics.tables import Phase

name = "json-results"

_NAMES = frozenset(
    {
        "all_results.json",
        "train_results.json",
        "eval_results.json",
        "test_results.json",
        "predict_results.json",
        "metrics.json",
    }
)
_PREFIXES: tuple[tuple[str, Phase], ...] = (("eval", "eval"), ("val", "eval"), ("test", "test"), ("predict", "test"))


def sniff(file: File) -> bool:
    """By the names that the Trainer and its examples use."""
    return file.base in _NAMES and file.start.lstrip().startswith("{")


def read(file: File) -> Reading:
    """One point per number, under its own name: a mean over the training is no point of the loss curve."""
    reading = Reading(speaks_of_training=True)
    values: dict[Phase, dict[str, float | None]] = {}
    lines: dict[str, int] = {}
    epoch = None
    try:
        cursor = Cursor(file.text())
        for key, value, line in flatten(cursor):
            try:
                number = numbers.scalar(value)
            except ValueError:
                continue
            if key == "epoch":
                epoch = number
                continue
            phase: Phase = next((phase for prefix, phase in _PREFIXES if key.startswith(prefix)), "train")
            values.setdefault(phase, {})[key] = number
            lines[key] = line
        if cursor.skip():  # more objects follow: JSON lines
            return Reading(claimed=False)
    except TornJsonError as error:
        reading.notices.append((error.line, str(error)))
    except ValueError as error:
        reading.notices.append((None, f"not read: {error}"))
    own = {key: key for key in lines}
    for phase, found in values.items():
        log = RowLog({**own, **file.columns}, unit="row")
        log.add(1, found, epoch=epoch, phase=phase, lines=lines)
        reading.tracks += log.finish()
    if not reading.tracks and not reading.notices:
        return Reading(claimed=False)
    if "train_runtime" in lines:
        reading.trail.finished = "the closing results of the training were written (train_runtime)"
        reading.trail.finished_line = lines["train_runtime"]
    return reading
