"""The runs of MLflow's file store: the folder of a run is one run, whatever its files hold."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

from gradforensics.evidence.mlflow import layout
from gradforensics.evidence.pieces import Group, Piece

READER = "mlflow-store"


def taken(pieces: Sequence[Piece]) -> tuple[list[Group], list[Piece]]:
    """(the runs of file stores, all other pieces).

    A run without metrics that did not fail tells nothing; its parameters are those of no other run.
    """
    folders: dict[PurePosixPath, list[Piece]] = {}
    others: list[Piece] = []
    for piece in pieces:
        place = layout.place(piece.file) if piece.reader == READER else None
        if place is None:
            others.append(piece)
        else:
            piece.folder = place.folder
            folders.setdefault(place.folder, []).append(piece)
    groups = [Group(folder, found, title=_title(found)) for folder, found in folders.items() if _tells(found)]
    return sorted(groups, key=lambda g: str(g.folder)), others


def _tells(pieces: Sequence[Piece]) -> bool:
    return any(p.is_series or (p.reading.speaks_of_training and p.reading.events) for p in pieces)


def _title(pieces: Sequence[Piece]) -> str:
    """What MLflow calls the run, "" where it has no name."""
    return next((fact.value for p in pieces for fact in p.reading.facts if fact.key == "run_name"), "")
