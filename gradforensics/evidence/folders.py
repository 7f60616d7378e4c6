"""Which folder of the input a file speaks of: loggers spread one run over folders of their own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from gradforensics.evidence import names
from gradforensics.evidence.pieces import TENSORBOARD, Piece
from gradforensics.evidence.readings import Track
from gradforensics.tables import Phase

_CHECKPOINT = re.compile(
    r"^(?:(?:tmp-)?checkpoint|ckpt|global_?step|step|iter|epoch)[-_=]?\d[\w=.-]*$|"
    r"^(?:checkpoints?|weights|last|best|final)$"
)
_CHECKPOINT_OR_RANK = re.compile(rf"{_CHECKPOINT.pattern}|^rank[._-]?\d{{1,6}}$")
_LOG_FOLDERS = frozenset(
    {
        "log",
        "logs",
        "logging",
        "console",
        "stdout",
        "stderr",
        "slurm",
        "config",
        "configs",
        "csv",
        "metrics",
        "files",
    }
)
_ALWAYS = frozenset({".hydra"})
_WANDB_RUN = re.compile(r"^(?:offline-)?run-\d{8}_\d{6}-\w+$")
_WANDB_PARTS = frozenset({"files", "logs", "tmp"})
_HPARAMS = re.compile(r"^\d{10}\.\d+$")  # torch.utils.tensorboard calls the folder after time.time()
_PHASES: dict[str, Phase] = {
    "train": "train",
    "training": "train",
    "validation": "eval",
    "val": "eval",
    "valid": "eval",
    "eval": "eval",
    "evaluation": "eval",
    "test": "test",
}


def fold(pieces: Sequence[Piece]) -> None:
    """Give every piece the folder of its run."""
    for piece in pieces:
        if not piece.run:
            piece.folder = _taken_down(_folded(piece.folder, _CHECKPOINT))
    _event_folders([p for p in pieces if p.reader == TENSORBOARD and not p.run])
    homes = {p.folder for p in pieces}
    for piece in pieces:
        if piece.folder.name.lower() in _LOG_FOLDERS and piece.folder.parent in homes and piece.folder.parts:
            piece.folder = piece.folder.parent


def folded(folder: PurePosixPath) -> PurePosixPath:
    """The folder of the run that a folder of a checkpoint, or of a rank's part of one, belongs to."""
    return _folded(folder, _CHECKPOINT_OR_RANK)


def _folded(folder: PurePosixPath, inner: re.Pattern[str]) -> PurePosixPath:
    while folder.parts and inner.match(folder.name.lower()):
        folder = folder.parent
    return folder


def _taken_down(folder: PurePosixPath) -> PurePosixPath:
    """Without the folders that a logger makes inside of the folder of every run."""
    if folder.name in _ALWAYS:
        folder = folder.parent
    for above in (folder, *folder.parents):
        if _WANDB_RUN.match(above.parent.name) and above.name in _WANDB_PARTS:
            return above.parent
    return folder


# -- TensorBoard -----------------------------------------------------------------------------------------------------


def _event_folders(pieces: Sequence[Piece]) -> None:
    """Sub-folders of event files that are parts of the run above them: phases, one scalar of several, parameters."""
    homes = {p.folder for p in pieces}
    phases: dict[PurePosixPath, set[Phase]] = {}
    for home in homes:
        if home.name.lower() in _PHASES:
            phases.setdefault(home.parent, set()).add(_PHASES[home.name.lower()])
    for piece in pieces:
        folder = piece.folder
        if not folder.parts:
            continue
        phase = _PHASES.get(folder.name.lower())
        beside = phases.get(folder.parent, set())
        if (group := _scalar_group(piece)) is not None:
            key = folder.name[len(group) + 1 :]
            piece.reading.tracks = [_member(track, key) for track in piece.reading.tracks]
        elif phase is not None and (folder.parent in homes or ("train" in beside and len(beside) > 1)):
            for track in piece.reading.tracks:
                track.phase = phase if track.phase == "train" else track.phase
        elif not _HPARAMS.match(folder.name):
            continue
        piece.folder = folder.parent


def _scalar_group(piece: Piece) -> str | None:
    """What add_scalars(tag, {key: ...}) calls the folder of a key: the tag, without slashes, and the key behind it."""
    tags = {track.tag for track in piece.reading.tracks}
    if len(tags) != 1:
        return None
    group = tags.pop().replace("/", "_").replace(" ", "_")
    return group if piece.folder.name.replace(" ", "_").startswith(f"{group}_") else None


def _member(track: Track, key: str) -> Track:
    """One of the scalars of a group, called after the group and its key."""
    tag = f"{track.tag}/{key}"
    phase, series = names.series_of(tag)
    return replace(track, tag=tag, phase=phase or track.phase, series=series)
