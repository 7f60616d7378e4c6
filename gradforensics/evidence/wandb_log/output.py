"""What the program printed: W&B keeps it piece by piece in the log, and once more in files/output.log."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any, BinaryIO, cast

from gradforensics.evidence import protobuf
from gradforensics.evidence.files import File
from gradforensics.evidence.wandb_log import framing, wire

RECORDS = frozenset({4, 13})  # output, output_raw
MEMBER = "output.log"
_HELD = 8 << 20  # bytes of output that are kept: more is read from the file once again


class Output:
    """Collects the printed pieces while a log is read."""

    def __init__(self) -> None:
        self._text = bytearray()
        self._more = False

    def add(self, message: bytes) -> None:
        """The piece of an output record."""
        piece = _piece(message)
        if len(self._text) + len(piece) > _HELD:
            self._more = True
        else:
            self._text += piece

    def file(self, log: File) -> File | None:
        """The text as a member of the log's file, None where nothing was printed."""
        if not self._text and not self._more:
            return None

        def opened() -> BinaryIO:
            if self._more:
                return cast("BinaryIO", io.BufferedReader(_Stream(log)))
            return io.BytesIO(self._text)

        return File(log.path, f"{log.name}/{MEMBER}", len(self._text), opener=opened)


class _Stream(io.RawIOBase):
    """The printed text, taken out of the log while it is read."""

    def __init__(self, log: File) -> None:
        super().__init__()
        self._pieces = _pieces(log)
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = piece
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


def _pieces(log: File) -> Iterator[bytes]:
    for record in framing.records(log):
        if isinstance(record, framing.Record):
            try:
                yield from (_piece(m) for n, m in wire.fields(record.data) if n in RECORDS and isinstance(m, bytes))
            except protobuf.MalformedError:
                continue


def _piece(message: bytes) -> bytes:
    return b"".join(value for number, value in wire.fields(message) if number == 3 and isinstance(value, bytes))
