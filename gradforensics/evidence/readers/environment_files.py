"""Files that tell what a node had installed: those of `gradforensics env`, and reports of torch.utils.collect_env."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from gradforensics.evidence.collect_env import MARKS, Report
from gradforensics.evidence.files import File, plain
from gradforensics.evidence.readings import Reading
from gradforensics.own_files import ENVIRONMENT_KIND
from gradforensics.tables import Fact

name = "environment"

_SIZE_LIMIT = 16 << 20
_LONGEST = 2000  # characters of a value
_MOST = 5000  # facts of one kind
_FOREIGN = 3  # lines that are no part of a report of collect_env: more of them make it a log


def sniff(file: File) -> bool:
    """By the head of the file."""
    if file.size > _SIZE_LIMIT:
        return False
    if file.suffix == ".json":
        return '"tool": "gradforensics ' in file.start[:200] and f'"kind": "{ENVIRONMENT_KIND}"' in file.start[:400]
    return any(line.startswith(MARKS[0]) for line in file.start.splitlines()[:5])


def read(file: File) -> Reading:
    """Versions, drivers, GPUs, variables and host as facts."""
    return _own(file) if file.suffix == ".json" else _report(file)


def _report(file: File) -> Reading:
    report, foreign = Report(file.name), 0
    for number, line in file.lines(_SIZE_LIMIT):
        text = plain(line).rstrip("\r")
        report.line(number, text)
        foreign += bool(text.strip()) and not report.is_open
        if foreign > _FOREIGN:
            return Reading(claimed=False)
    return Reading(facts=report.facts)


def _own(file: File) -> Reading:
    try:
        found = json.loads(file.text())
    except (ValueError, RecursionError) as error:
        return Reading(notices=[(getattr(error, "lineno", None), f"not read: no valid JSON ({error})")])
    if not isinstance(found, dict):
        return Reading(notices=[(None, "not read: no JSON object")])
    host = found.get("host") if isinstance(found.get("host"), str) else None
    rank = found.get("rank")
    rank = rank if isinstance(rank, int) and not isinstance(rank, bool) and 0 <= rank < 1 << 32 else None
    facts = [Fact(key, value, file.name, None, rank, host) for key, value in _stated(found)]
    return Reading(facts=facts)


def _stated(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(key, value) of every fact that the file states."""
    for key in ("host", "collected"):
        yield from _text(key, found.get(key))
    for key, value in _members(found, "facts"):
        yield from _text("package:torch" if key == "torch" else key, value)
    gpus = found.get("gpus")
    devices = [one for one in gpus[:_MOST] if isinstance(one, dict)] if isinstance(gpus, list) else []
    if devices:
        yield "gpu_count", str(len(devices))
    for key, field in (("gpu", "name"), ("compute_capability", "compute_capability")):
        for value in dict.fromkeys(str(one[field]) for one in devices if one.get(field)):
            yield from _text(key, value)
    torch = dict(_members(found, "facts")).get("torch")
    for key, value in _members(found, "packages"):
        if key != "torch" or not torch:  # what was imported counts, not what a list of packages says
            yield from _text(f"package:{key}", value)
    for key, value in _members(found, "copies"):
        for version in value[1:20] if isinstance(value, list) else []:
            yield from _text(f"copy:{key}", version)
    for key, value in _members(found, "variables"):
        yield from _text(f"env:{key}", value)


def _members(found: Mapping[str, Any], name: str) -> list[tuple[str, Any]]:
    members = found.get(name)
    return (
        [(str(key)[:200], value) for key, value in list(members.items())[:_MOST]] if isinstance(members, dict) else []
    )


def _text(key: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, (str, int, float)) and str(value).strip():
        yield key, " ".join(str(value).split())[:_LONGEST]
