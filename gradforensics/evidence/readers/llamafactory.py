"""trainer_log.jsonl of LLaMA-Factory: the Trainer's rows once more, with the planned steps and the time left."""

from __future__ import annotations

from gradforensics.evidence import numbers
from gradforensics.evidence.files import File
from gradforensics.evidence.readers.json_lines import head_records, read_lines
from gradforensics.evidence.readings import Reading
from gradforensics.evidence.records import read_table
from gradforensics.tables import SeriesFrame, Setting

name = "llamafactory-log"

_LOSS_DECIMALS = 4  # it copies the Trainer's rounded loss


def sniff(file: File) -> bool:
    """By the two keys that every row has."""
    if file.suffix not in (".jsonl", ".json"):
        return False
    heads = head_records(file)
    return bool(heads) and "current_steps" in heads[0] and "total_steps" in heads[0]


def read(file: File) -> Reading:
    """Rows as series; total_steps becomes the setting max_steps."""
    lines = read_lines(file)
    reading = read_table(lines.table, file.columns, rounds=False)  # the learning rate is exact
    reading.notices = lines.notices() + reading.notices
    reading.settings = []
    if lines.last is not None:
        line, last = lines.last
        if reading.trail.planned:
            setting = Setting("max_steps", "total_steps", reading.trail.planned, file.name, line, "runtime")
            reading.settings.append(setting)
        reading.trail.seconds_left = numbers.clock_seconds(str(last.get("remaining_time", "")))
    for track in reading.tracks:
        if track.series == "loss" and numbers.rounded_to(track.stored.frame["value"].to_list(), _LOSS_DECIMALS):
            track.stored = SeriesFrame(track.stored.frame, track.stored.step_unit, 10.0**-_LOSS_DECIMALS)
    return reading
