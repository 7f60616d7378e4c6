"""The readers, in the order in which they are asked. A reader that says "not mine" leaves the file to the next one."""

from __future__ import annotations

from typing import Protocol

from gradforensics.evidence.files import File
from gradforensics.evidence.readers import (
    config,
    console,
    csv_table,
    hf_trainer_state,
    json_lines,
    json_results,
    json_series,
    llamafactory,
)
from gradforensics.evidence.rows import Reading


class Reader(Protocol):
    """What a reader module offers.

    sniff() looks at the name and the head of a text file only. read() never raises on bad content; a Reading whose
    `claimed` is False says that the file is not of this format after all.
    """

    @property
    def name(self) -> str:
        """Machine name, shown as the reader of a source."""

    def sniff(self, file: File) -> bool:
        """Whether the file may be of this format."""

    def read(self, file: File) -> Reading:
        """Everything that the file tells."""


READERS: tuple[Reader, ...] = (
    hf_trainer_state,
    llamafactory,
    json_results,
    json_series,
    config,
    json_lines,
    csv_table,
    console,
)
