"""Event files of TensorBoard (events.out.tfevents.*): scalars, histograms, hyperparameters and settings in texts."""

from __future__ import annotations

from gradforensics.evidence.event_files.columns import TAG_BYTES, TAG_LIMIT, Columns
from gradforensics.evidence.event_files.framing import HEADER, Frames, begins_with_record, payloads_fit
from gradforensics.evidence.event_files.summaries import Summaries
from gradforensics.evidence.event_files.templates import Templates
from gradforensics.evidence.event_files.walker import Walker
from gradforensics.evidence.files import File
from gradforensics.evidence.readings import Reading

name = "tensorboard"

_VERSION = b"brain.Event:"  # what the first record of every writer holds
_FIRST = 128  # bytes in which it stands


def sniff(file: File) -> bool:
    """By the name or, for a renamed file, by a sound first record that names the version of the format."""
    return "tfevents" in file.base or (_VERSION in file.head[:_FIRST] and begins_with_record(file.head))


def read(file: File) -> Reading:
    """One series per tag, in the order of the file; every record that is damaged, cut or no event is a notice.

    A histogram becomes the series TAG/hist_min, hist_max, hist_mean, hist_std and hist_count; mean and standard
    deviation of the histograms of TensorFlow 2, which hold buckets only, are approximate.
    """
    frames = Frames(file.chunks())
    columns, summaries = Columns(), Summaries()
    templates, walker = Templates(columns), Walker(columns, summaries)
    for window in frames.windows():
        rest = templates.read(window)
        fits = payloads_fit(window.data, window.starts[rest], window.lengths[rest])
        for index in rest[~fits].tolist():
            offset = window.base + int(window.starts[index]) - HEADER
            frames.damages.add(int(window.numbers[index]), offset, "its checksum does not fit")
        walker.read(window, rest[fits])
        columns.close_window()
    settled = columns.settled(file.columns)
    reading = Reading(settled.tracks, settings=summaries.settings(file.name) or None)
    reading.speaks_of_training = bool(settled.tracks)
    reading.trail.finished = summaries.finished
    texts = frames.damages.told(frames.records)
    if walker.malformed:
        texts.append(f"{walker.malformed} records are no events (first: {walker.first}): left out")
    if columns.dropped:
        limits = f"more than {TAG_LIMIT} tags, or tags of more than {TAG_BYTES} bytes"
        texts.append(f"{limits}: {columns.dropped} values are left out")
    texts += [frames.cut] if frames.cut else []
    if frames.records == len(frames.damages.records):
        texts.append("no record of an event file was found")
    reading.notices = [(None, text) for text in texts + summaries.notices()] + settled.notices
    return reading
