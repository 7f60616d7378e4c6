"""The software of a run as its evidence states it: what one file says of one process, versions, torch's own pins."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path, PurePath

import tomli

from gradforensics.own_files import ENVIRONMENT
from gradforensics.tables import Evidence, Fact

_NUMBERS = re.compile(r"\d+")
_RUN_FOLDER = re.compile(r"(?:offline-)?run-\d{8}_\d{6}-[^/]+")  # of W&B
_BUILD = re.compile(r"\+cu(\d{2})(\d)\b")
_SM = re.compile(r"\b(sm|compute)_(\d{2,3})([af]?)\b")
_WHEELS = Path(__file__).parent / "torch_wheels.toml"


@dataclass(frozen=True)
class Snapshot:
    """What one file states of one launch of one process: facts by their keys, several values of a key in their order.

    owner: its host and rank as a text, "" where neither is known.
    """

    source: str
    owner: str
    attempt: int | None
    facts: dict[str, list[Fact]] = field(default_factory=dict)

    def get(self, key: str) -> Fact | None:
        """The first fact of a key."""
        return next(iter(self.facts.get(key, ())), None)

    def value(self, key: str) -> str | None:
        """The value of the first fact of a key."""
        found = self.get(key)
        return None if found is None else found.value

    def named(self, prefix: str) -> dict[str, Fact]:
        """The facts whose keys begin with `prefix`, by the rest of their keys."""
        return {key.removeprefix(prefix): facts[0] for key, facts in self.facts.items() if key.startswith(prefix)}


def snapshots(evidence: Evidence) -> list[Snapshot]:
    """The snapshots of a run in the order of reading, those that were collected at a known time by that time."""
    return evidence.once("snapshots", lambda: _ordered(_grouped(evidence.environment or [])))


def _grouped(facts: Iterable[Fact]) -> list[Snapshot]:
    found: dict[tuple[str, str, int | None], Snapshot] = {}
    for fact in facts:
        owner = " ".join(filter(None, (fact.host, "" if fact.rank is None else f"rank {fact.rank}")))
        snapshot = found.setdefault((fact.source, owner, fact.attempt), Snapshot(fact.source, owner, fact.attempt))
        snapshot.facts.setdefault(fact.key, []).append(fact)
    return list(found.values())


def _ordered(found: list[Snapshot]) -> list[Snapshot]:
    return sorted(found, key=lambda one: one.value("collected") or "")


def completed(evidence: Evidence) -> list[Snapshot]:
    """The snapshots, each with the facts that it lacks and that all others which state them agree on.

    A list of packages does not name the driver, nvidia-smi not torch; of one owner they speak of one node.
    """
    parts = snapshots(evidence)
    known: dict[str, list[Fact]] = {}
    for part in parts:
        for key, facts in part.facts.items():
            known.setdefault(key, []).extend(facts)
    agreed = {key: facts[:1] for key, facts in known.items() if len({fact.value for fact in facts}) == 1}
    return [Snapshot(part.source, part.owner, part.attempt, {**agreed, **part.facts}) for part in parts]


def release(version: str) -> tuple[int, ...]:
    """The numbers of a version in front of any suffix: (2, 3, 0) of 2.3.0+cu121 and of 2.3.0a0."""
    numbers: list[int] = []
    for part in version.partition("+")[0].split("."):
        found = _NUMBERS.match(part)
        if found is None:
            break
        numbers.append(int(found[0]))
        if found[0] != part:
            break
    return tuple(numbers)


def older(version: str, than: str) -> bool:
    """Whether a version comes before another one: 12.4 before 12.10, 525.60 before 525.60.13."""
    a, b = release(version), release(than)
    width = max(len(a), len(b))
    return a + (0,) * (width - len(a)) < b + (0,) * (width - len(b))


def same(version: str, other: str) -> bool:
    """Whether two statements of a version agree as far as both go: 2.3.0 and 2.3.0+cu121, 9.1.0 and 9.1.0.70."""
    if version == other:
        return True
    a, b = (one.partition("+") for one in (version, other))
    if a[2] and b[2] and a[2] != b[2]:
        return False
    shorter, longer = sorted((a[0], b[0]), key=len)
    return shorter == longer or (longer.startswith(f"{shorter}.") and longer[len(shorter) + 1].isdigit())


@cache
def wheels() -> Mapping[str, tuple[str, Mapping[str, str]]]:
    """Release of PyTorch -> (CUDA version, the nvidia packages that its wheel on PyPI requires exactly)."""
    found: dict[str, tuple[str, Mapping[str, str]]] = {}
    for wheel in tomli.loads(_WHEELS.read_text(encoding="utf-8"))["wheel"]:
        for name in wheel["releases"]:
            found[name] = (wheel["cuda"], wheel["pins"])
    return found


def built_for(snapshot: Snapshot) -> str | None:
    """The CUDA version that torch was built for ("12.1"), as it says itself or by the name of its build."""
    stated = snapshot.value("torch_cuda")
    if stated is not None:
        return stated if stated[:1].isdigit() else None
    build = _BUILD.search(snapshot.value("package:torch") or "")
    return f"{build[1]}.{build[2]}" if build else None


def capable(arch_list: str, capability: str) -> bool | None:
    """Whether a build with these kernels runs on a GPU of this compute capability; None where that cannot be told.

    A binary for X.y runs on X.z with z >= y, an intermediate one on everything newer, one with a letter only where it
    was made for. Source: CUDA C++ Programming Guide, Binary and PTX Compatibility.
    """
    device = release(capability)
    made = [(kind, int(digits[:-1]), int(digits[-1]), letter) for kind, digits, letter in _SM.findall(arch_list)]
    if len(device) != 2 or not made:
        return None
    for kind, major, minor, letter in made:
        if letter:
            fits = (major, minor) == device
        elif kind == "sm":
            fits = major == device[0] and minor <= device[1]
        else:
            fits = (major, minor) <= device
        if fits:
            return True
    return False


def kind_of(source: str) -> str:
    """What sort of file a source is: its path without numbers and names of runs; of our own files wherever they lie."""
    if PurePath(source).name.startswith(ENVIRONMENT):
        return ENVIRONMENT
    return _NUMBERS.sub("#", _RUN_FOLDER.sub("run", source))
