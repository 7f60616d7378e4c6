"""DeepSpeed's configuration: JSON in which "train_batch_size" is that of all devices together, after accumulation."""

from __future__ import annotations

from dataclasses import replace

from gradforensics.evidence import settings
from gradforensics.evidence.files import File
from gradforensics.evidence.readings import Reading

name = "deepspeed-config"

_MARKS = ("zero_optimization", "train_micro_batch_size_per_gpu")
_TOGETHER = "train_batch_size"


def sniff(file: File) -> bool:
    """A configuration in JSON that names what only DeepSpeed has."""
    return file.suffix == ".json" and settings.could_be(file) and any(f'"{mark}"' in file.start for mark in _MARKS)


def read(file: File) -> Reading:
    """All settings of the file, where those of DeepSpeed stand at its top."""
    reading = settings.read(file)
    found = reading.settings or []
    if any(setting.name.partition(".")[0] in _MARKS for setting in found):
        reading.settings = [
            replace(setting, key="global_batch_size") if setting.name == _TOGETHER else setting for setting in found
        ]
    return reading
