"""Which capsules and checkpoints are written, and what the log says where one is not."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import torch

from gradforensics.recorder.judge import Finding
from gradforensics.recorder.past import Past
from gradforensics.recorder.state import State
from gradforensics.recorder.steps import StepRecord
from gradforensics.recorder.writing import NotWrittenError, Setting, save_checkpoint, write

_LOG = logging.getLogger("gradforensics.recorder")


class Capsules:
    """Writes within the bounds, and goes on where something cannot be written.

    most: capsules that are written without being asked for. sharded: how the parameters are sharded, "" where not.
    """

    def __init__(self, setting: Setting, most: int, sharded: str) -> None:
        self._setting, self._most, self._sharded = setting, most, sharded
        self._unasked = 0
        self._written: dict[int, str] = {}

    def has(self, step: int) -> bool:
        """Whether a capsule of this step was written."""
        return step in self._written

    def write(
        self, record: StepRecord, finding: Finding, steps: Sequence[StepRecord], start: State,
        gradients: Mapping[str, torch.Tensor] | None,
    ) -> None:  # fmt: skip
        """Write a capsule of `steps`, the last of which is `record`, from the state `start` before the first."""
        asked = finding.reason in ("request", "at_step")
        # the last one is kept for something worse than a spike
        left = self._most - self._unasked - (finding.reason == "spike" and self._most > 1)
        why = next((step.unrecordable for step in steps if step.unrecordable), "")
        if self._sharded or why or not all(step.micros for step in steps):
            self.refused(record, finding, why or self._sharded or "recorder.batch() was not called")
        elif self.has(record.step):  # the one that was written first is nearer to the cause
            self.refused(record, finding, f"{self._written[record.step]} is of this step")
        elif not asked and left <= 0:
            self.refused(record, finding, f"max_capsules is {self._most}")
        else:
            self._write(record, finding, steps, start, gradients, asked=asked)

    def _write(
        self, record: StepRecord, finding: Finding, steps: Sequence[StepRecord], start: State,
        gradients: Mapping[str, torch.Tensor] | None, *, asked: bool,
    ) -> None:  # fmt: skip
        try:
            path = write(self._setting, finding, steps, start, gradients)
        except RuntimeError:  # of a device that fails: there may be another way
            raise
        except Exception as error:  # noqa: BLE001  a full disk, a dtype that safetensors lacks: the recorder goes on
            self.refused(record, finding, _said(error))
            return
        self._unasked += not asked
        self._written[record.step] = record.remarks["capsule"] = path.name
        level = logging.INFO if asked else logging.WARNING
        _LOG.log(level, "step %d: %s: %s; recorded in %s", record.step, finding.reason, finding.text, path)

    def rescue(self, past: Past, current: StepRecord | None, finding: Finding) -> StepRecord | None:
        """After the device has failed, write what the host has of the first step whose numbers had not arrived.

        Returns that step, None where all had arrived and no step was running.
        """
        lost = past.oldest or current
        if lost is None:
            return None
        chain = past.rescue(lost.step, current)
        if chain is None:
            lost.forget_the_device()
            self.refused(lost, finding, "no state before it was kept")
        else:
            self.write(lost, finding, chain[1], chain[0], None)
        return lost

    def refused(self, record: StepRecord, finding: Finding, why: str) -> None:
        """Say why there is no capsule."""
        record.remarks["capsule_not_written"] = f"{finding.reason}: {why}"[:200]
        _LOG.warning("step %d: %s: %s; no capsule: %s", record.step, finding.reason, finding.text, why)

    def save_pair(self, record: StepRecord, buffers: Mapping[str, torch.Tensor] | None) -> None:
        """Save the checkpoint after a step or, with the buffers of then, before it. The first rank does."""
        if self._sharded or self._setting.rank:
            return
        step = record.step - (buffers is not None)
        folder = self._setting.folder.parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
            save_checkpoint(folder / f"checkpoint-{step}.pt", self._setting, buffers, step)
        except Exception as error:  # noqa: BLE001  a full disk, an option that cannot be pickled: the recorder goes on
            record.remarks["checkpoint_not_written"] = _said(error)[:200]
            _LOG.warning("checkpoint of step %d not written: %s", step, _said(error))


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, (NotWrittenError, OSError)) else f"{type(error).__name__}: {error}"
