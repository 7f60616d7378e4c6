"""trainer_state.json of the Hugging Face Trainer: log_history and the few settings beside it."""

from __future__ import annotations

from typing import Any

from gradforensics.evidence import names, numbers, rounding
from gradforensics.evidence.files import File
from gradforensics.evidence.located_json import Cursor, TornJsonError
from gradforensics.evidence.readings import Reading, Track
from gradforensics.evidence.rows import RowLog
from gradforensics.tables import SeriesFrame, Setting

name = "hf-trainer-state"

_SETTINGS = (
    "max_steps",
    "num_train_epochs",
    "logging_steps",
    "eval_steps",
    "save_steps",
    "train_batch_size",
    "global_step",
)
_LOSS_DECIMALS = 4  # Trainer.log rounds the training loss to four decimals (versions before 5)


def sniff(file: File) -> bool:
    """By the name or, for a renamed file, by the two keys that no other format has."""
    if file.suffix != ".json":
        return False
    return file.base == "trainer_state.json" or ('"log_history"' in file.start and '"global_step"' in file.start)


def read(file: File) -> Reading:
    """Rows of log_history with the line of each value; the last row (train_runtime ...) keeps its own names."""
    reading = Reading(settings=[], speaks_of_training=True)
    rows: list[tuple[int, dict[str, Any], dict[str, int]]] = []
    top: dict[str, tuple[Any, int]] = {}
    try:
        cursor = Cursor(file.text())
        for key in cursor.members():
            line = cursor.line
            if key == "log_history" and cursor.skip() == "[":
                for first in cursor.elements():
                    at = cursor.line
                    if first == "{":
                        rows.append((at, *cursor.located_object()))
                    else:
                        cursor.value()
            else:
                top[key] = (cursor.value(), line)
    except TornJsonError as error:
        reading.notices.append((error.line, f"{error}; {len(rows)} rows of log_history were read before"))
    except ValueError as error:
        reading.notices.append((None, f"not read: {error}"))
        return reading
    if not rows and "global_step" not in top:
        reading.speaks_of_training = False
    _settings(reading, file, top)
    _history(reading, file, rows)
    return reading


def _settings(reading: Reading, file: File, top: dict[str, tuple[Any, int]]) -> None:
    for key in _SETTINGS:
        if key in top:
            value, line = top[key]
            canonical = "per_device_train_batch_size" if key == "train_batch_size" else key
            shown = None if names.is_unset(canonical, value) else value
            assert reading.settings is not None
            reading.settings.append(Setting(canonical, key, shown, file.name, line, "runtime"))
    planned = _whole(top.get("max_steps", (None, 0))[0])
    reading.trail.planned = planned if planned and planned > 0 else None
    reading.trail.last_step = _whole(top.get("global_step", (None, 0))[0])


def _history(reading: Reading, file: File, rows: list[tuple[int, dict[str, Any], dict[str, int]]]) -> None:
    last = [values for _, values, _ in rows if "train_runtime" in values]
    ordinary = {key for _, values, _ in rows if "train_runtime" not in values for key in values}
    own = {key: key for values in last for key in values if key not in ordinary}
    log = RowLog({**own, **file.columns})
    unread = 0
    for at, values, lines in rows:
        found: dict[str, float | None] = {}
        for key, value in values.items():
            if key in ("step", "epoch"):
                continue
            try:
                found[key] = numbers.scalar(value)
            except ValueError:
                unread += not isinstance(value, (str, bool, dict, list))
        log.add(at, found, step=_whole(values.get("step")), epoch=_float(values.get("epoch")), lines=lines)
        reading.trail.last_line = at
        if "train_runtime" in values:
            reading.trail.finished = "the Trainer logged its closing summary (train_runtime)"
            reading.trail.finished_line = lines["train_runtime"]
    reading.tracks = [_rounding(track) for track in log.finish()]
    reading.notices += log.notices


def _rounding(track: Track) -> Track:
    """The series with its resolution: the Trainer rounds the loss, never the learning rate."""
    if track.series == "loss" and numbers.rounded_to(track.stored.frame["value"].to_list(), _LOSS_DECIMALS):
        track.stored = SeriesFrame(track.stored.frame, track.stored.step_unit, 10.0**-_LOSS_DECIMALS)
    return track if track.series == "lr" else rounding.settled([track], by_the_others=False)[0]


def _float(value: Any) -> float | None:
    try:
        return numbers.scalar(value)
    except ValueError:
        return None


def _whole(value: Any) -> int | None:
    return numbers.whole(_float(value))
