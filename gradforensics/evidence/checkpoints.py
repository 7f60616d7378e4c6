"""The checkpoints of an input: opened, given to their runs, and turned into tables of the evidence."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np

from gradforensics.evidence import names
from gradforensics.evidence import settings as configuration
from gradforensics.evidence.files import File
from gradforensics.evidence.folders import folded
from gradforensics.evidence.pieces import Group, Places
from gradforensics.evidence.readings import Reading
from gradforensics.evidence.records import looks_like_metrics, read_records
from gradforensics.logged_rates import at_every_step
from gradforensics.tables import Evidence, Notice, Progress
from gradforensics.untrusted.files import RegularFile

if TYPE_CHECKING:
    from gradforensics.checkpoints.load import Loaded
    from gradforensics.checkpoints.model import Checkpoint
    from gradforensics.checkpoints.model import Group as ParameterGroup
    from gradforensics.checkpoints.pairs import Applied


_POINTERS = ("latest", "latest_checkpointed_iteration.txt")
_MAX_POINTER = 200
_PLURAL = re.compile(r"_(?:history|hist|list)$")


def open_checkpoints(
    files: Sequence[File], progress: Progress | None, *, names_from_config: bool = False
) -> list[Loaded]:
    """Every checkpoint among the files of one input, none of its tensors read."""
    from gradforensics.checkpoints.measure import open_all  # noqa: PLC0415  loaded only where there are checkpoints

    found = open_all([RegularFile(f.path, f.name, f.size) for f in files], progress=progress)
    if names_from_config:
        from gradforensics.checkpoints.meta_names import ask_for_names  # noqa: PLC0415  only where it is wanted

        ask_for_names(found)
    return found


def speaks_of_training(checkpoint: Checkpoint) -> bool:
    """Whether a checkpoint is evidence on its own: it holds tensors, or a pickle that would run something."""
    return bool(checkpoint.tensors or checkpoint.groups) or any(call.danger for call in checkpoint.calls)


def dangling(files: Iterable[File], loaded: Iterable[Loaded]) -> Iterator[Notice]:
    """Where DeepSpeed or Megatron say which checkpoint is the latest, and it is not there: its saving broke off."""
    present = [PurePosixPath(name) for one in loaded for name in one.checkpoint.files]
    for file in files:
        if file.base not in _POINTERS or not 0 < file.size < _MAX_POINTER:
            continue
        said = file.start.strip()
        folder = f"iter_{int(said):07d}" if said.isdecimal() else said
        wanted = PurePosixPath(file.name).parent / folder
        if said.isprintable() and folder != "release" and not any(path.is_relative_to(wanted) for path in present):
            yield Notice(file.name, 1, f"names {said} as the latest checkpoint, which is not there")


def histories(loaded: Iterable[Loaded], files: Sequence[File]) -> Iterator[tuple[File, Reading]]:
    """The series in files of checkpoints: losses that a loop kept beside its weights."""
    by_name = {file.name: file for file in files}
    for one in loaded:
        for name, rows in one.checkpoint.histories:
            keys = {key for row in rows for key in row}
            if looks_like_metrics(map(_singular, keys), loose=True):
                file = by_name[name]
                columns = {key: _canonical(key) for key in keys if _singular(key) != key} | dict(file.columns)
                yield file, read_records([(0, row) for row in rows], columns, rounds=False)


def _singular(key: str) -> str:
    """The name of one of a list's numbers: a loop calls its list train_losses or loss_history."""
    return _PLURAL.sub("", key.replace("losses", "loss"))


def _canonical(key: str) -> str:
    phase, series = names.series_of(_singular(key))
    return series if phase in (None, "train") else f"{phase}/{series}"


def assign(loaded: Sequence[Loaded], groups: list[Group]) -> dict[int, list[Loaded]]:
    """The checkpoints of every run, by id() of its group; where no run is near, a folder of checkpoints is a run."""
    mine: dict[int, list[Loaded]] = {}
    places, own = Places(groups), Places()
    for one in loaded:
        folder = folded(_folder(one.checkpoint))
        near = places.around(folder) or own.around(folder)
        if not near:
            if not speaks_of_training(one.checkpoint):
                continue
            own.add(Group(folder, []))
            near = own.groups[-1:]
        mine.setdefault(id(near[0]), []).append(one)
    groups += own.groups
    return mine


def _folder(checkpoint: Checkpoint) -> PurePosixPath:
    return PurePosixPath(checkpoint.files[0]).parent if checkpoint.files else PurePosixPath()


def attach(
    evidence: Evidence, loaded: Iterable[Loaded], *, measured: bool, progress: Progress | None
) -> list[Checkpoint]:
    """Add the tables, settings and notices of a run's checkpoints; returns them in the order of their steps.

    measured: whether their tensors are read, and not only listed.
    """
    from gradforensics.checkpoints.measure import survey  # noqa: PLC0415  loaded only where there are checkpoints

    found = survey(loaded, measured=measured, applied=_applied(evidence), progress=progress)
    evidence.tables |= found.tables
    evidence.notices += found.notices
    settings = configuration.from_checkpoint(item for c in found.checkpoints for item in c.settings)
    if settings:
        evidence.settings = [*(evidence.settings or []), *settings]
    return found.checkpoints


def _applied(evidence: Evidence) -> Callable[[int, int, ParameterGroup], Applied | None]:
    """What the logged learning rate says that a group's steps did: the sum of its rates, the product of its decays."""

    def between(first: int, last: int, group: ParameterGroup) -> Any:
        from gradforensics.checkpoints.pairs import Applied  # noqa: PLC0415  loaded only where there are checkpoints

        rates = at_every_step(evidence, first, last)
        if rates is None or group.weight_decay is None:
            return None
        decay = float(np.prod(1.0 - rates * group.weight_decay))
        return Applied(float(rates.sum()), decay)

    return between
