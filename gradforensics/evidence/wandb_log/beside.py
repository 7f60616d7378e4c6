"""What the files of one run repeat: the output inside of the log and beside it, the last values of the history."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePosixPath

from gradforensics.evidence.pieces import Piece
from gradforensics.evidence.wandb_log.output import MEMBER

_LOG, _FILES, _CONSOLE = "wandb-log", "wandb-files", "console"


def without_repeats(pieces: Iterable[Piece]) -> list[Piece]:
    """The pieces, without the output inside of a log where files/output.log was read.

    Of a wandb-summary.json only the series stay that the log beside it does not hold.
    """
    kept = list(pieces)
    logs = [piece for piece in kept if piece.reader == _LOG]
    printed = {piece.file.name for piece in kept if piece.reader == _CONSOLE} if logs else set()
    repeated = {f"{log.file.name}/{MEMBER}" for log in logs if str(log.home / "files" / MEMBER) in printed}
    for piece in kept:
        if piece.reader == _FILES and piece.reading.tracks:
            folder = PurePosixPath(piece.file.name).parent.parent
            held = {track.tag for log in logs if log.home == folder for track in log.reading.tracks}
            piece.reading.tracks = [track for track in piece.reading.tracks if track.tag not in held]
    return [piece for piece in kept if piece.file.name not in repeated]
