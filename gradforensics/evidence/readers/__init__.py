"""The readers, in the order in which they are asked. A reader that says "not mine" leaves the file to the next one."""

from __future__ import annotations

from typing import Protocol

from gradforensics.evidence.files import File
from gradforensics.evidence.readers import (
    ascii_table,
    config,
    console,
    csv_table,
    deepspeed_config,
    environment_files,
    hf_trainer_state,
    json_lines,
    json_results,
    json_series,
    kernel_log,
    llamafactory,
    mlflow_store,
    nvidia_smi,
    openmmlab,
    package_lists,
    stack_dump,
    stylegan,
    wandb_files,
)
from gradforensics.evidence.readings import Reading


class Reader(Protocol):
    """What a reader module offers.

    sniff() looks at the name and the head of a file only. read() never raises on bad content; a Reading whose `claimed`
    is False says that the file is not of this format after all.
    """

    @property
    def name(self) -> str:
        """Machine name, shown as the reader of a source."""

    def sniff(self, file: File) -> bool:
        """Whether the file may be of this format."""

    def read(self, file: File) -> Reading:
        """Everything that the file tells."""


def binary_readers() -> tuple[Reader, ...]:
    """The readers that are asked for the files whose content is no text; loaded only where there is such a file."""
    from gradforensics.evidence.readers import mlflow_database, tensorboard, wandb_log  # noqa: PLC0415  see above

    return tensorboard, wandb_log, mlflow_database


READERS: tuple[Reader, ...] = (
    mlflow_store,  # first: its files are called as the user called the metrics
    wandb_files,
    environment_files,
    package_lists,
    hf_trainer_state,
    llamafactory,
    openmmlab,
    stylegan,
    json_results,
    json_series,
    deepspeed_config,
    config,
    json_lines,
    kernel_log,
    nvidia_smi,
    stack_dump,
    csv_table,
    ascii_table,
    console,
)
