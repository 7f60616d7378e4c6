"""What lies beside W&B's log of a run: wandb-summary.json, wandb-metadata.json, requirements.txt.

W&B's own logs and the media that a program logged are taken, too, and nothing is read from them: they tell of W&B.
config.yaml and output.log are read as any other configuration and console log.
"""

from __future__ import annotations

import json
import math
import re

from gradforensics.evidence import numbers, software
from gradforensics.evidence.files import File
from gradforensics.evidence.located_json import Cursor, TornJsonError, flatten
from gradforensics.evidence.readings import Reading
from gradforensics.evidence.wandb_log.facts import facts_of
from gradforensics.evidence.wandb_log.layout import place_of
from gradforensics.evidence.wandb_log.summary import points

name = "wandb-files"

_SUMMARY, _METADATA, _REQUIREMENTS = "wandb-summary.json", "wandb-metadata.json", "requirements.txt"
_OWN_LOG = re.compile(r"^debug(?:-internal|-core|-cli\b.*)?\.log$")
_SIZE_LIMIT = 16 << 20


def sniff(file: File) -> bool:
    """By the names, and for names that others use by the folder of a run of W&B."""
    if file.base in (_SUMMARY, _METADATA):
        return file.size <= _SIZE_LIMIT
    place = place_of(file)
    if place[:1] == ("files",):
        return place[1:] == (_REQUIREMENTS,) or place[1:2] == ("media",)
    return _is_own_log(file)


def read(file: File) -> Reading:
    """Last values, facts about the environment, versions of packages."""
    if file.base == _SUMMARY:
        return _summary(file)
    if file.base == _METADATA:
        return _metadata(file)
    if file.base == _REQUIREMENTS:
        return _requirements(file)
    return Reading(remark="W&B's own log" if _is_own_log(file) else "media that the program logged")


def _is_own_log(file: File) -> bool:
    """Whether W&B writes this log about itself: in the folder of a run, or in the one above all of them."""
    place = place_of(file)
    above = file.name.split("/")[-2:-1]
    return _OWN_LOG.match(file.base) is not None and (place[:1] == ("logs",) or above == ["wandb"])


def _summary(file: File) -> Reading:
    """The last values, at W&B's own step of the last row."""
    reading = Reading()
    found: dict[str, tuple[float, int]] = {}
    media: set[str] = set()
    try:
        for key, value, line in flatten(Cursor(file.text())):
            if key.endswith("._type"):
                media.add(key.removesuffix("_type"))
            try:
                number = numbers.scalar(value)
            except ValueError:
                continue
            if number is not None:
                found[key] = number, line
    except (TornJsonError, ValueError) as error:
        line_ = error.line if isinstance(error, TornJsonError) else None
        reading.notices.append((line_, f"not read to its end: {error}"))
    step, _ = found.get("_step", (None, 0))
    time, _ = found.get("_timestamp", (math.nan, 0))
    values = {k: number for k, (number, _) in found.items() if not k.startswith(("_", *media))}
    reading.tracks = points(
        values,
        file.columns,
        step=numbers.whole(step),
        time=time if 0 < time < 1e11 else None,
        lines={key: line for key, (_, line) in found.items()},
    )
    reading.speaks_of_training = bool(values)
    return reading


def _metadata(file: File) -> Reading:
    try:
        found = json.loads(file.text())
    except (ValueError, RecursionError) as error:
        return Reading(notices=[(getattr(error, "lineno", None), f"not read: no valid JSON ({error})")])
    if not isinstance(found, dict):
        return Reading(notices=[(None, "not read: no JSON object")])
    return Reading(facts=facts_of(found, file.name))


def _requirements(file: File) -> Reading:
    """The versions of the packages that were installed, as pip lists them."""
    facts = []
    for line, said in file.lines(_SIZE_LIMIT):
        if package := software.pinned(said[:400]):
            facts.append(software.package(*package, file.name, line))
    return Reading(facts=facts)
