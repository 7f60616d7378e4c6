"""One micro-batch beside what its run saw: where the labels of the loss lie among its samples and tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gradforensics.replay.batches import Fields, fields_of, size
from gradforensics.replay.losses import Grid, LossCall, Watched, grid, run
from gradforensics.replay.recording import Micro
from gradforensics.replay.step import StepRunner


@dataclass(slots=True)
class Part:
    """One micro-batch: its data, its run, and how the labels of its largest cross-entropy call lie in it."""

    index: int
    micro: Micro
    watched: Watched
    fields: Fields
    ids: torch.Tensor | None
    samples: int
    call: LossCall | None = None
    grid: Grid | None = None

    @property
    def counted(self) -> torch.Tensor | None:
        """Which labels count in the loss, bool (samples, columns); None where they cannot be laid over the samples."""
        if self.call is None or self.grid is None:
            return None
        return self.call.counted.reshape(self.samples, self.grid.columns)

    @property
    def target(self) -> torch.Tensor | None:
        """The labels as the loss got them, int64 (samples, columns)."""
        if self.call is None or self.grid is None:
            return None
        return self.call.target.reshape(self.samples, self.grid.columns)


def part_of(runner: StepRunner, index: int, micro: Micro) -> Part:
    """Run the micro-batch alone, with ids and labels outside of their tables replaced."""
    watched = run(runner, [micro], repair=True, weights=[1.0])
    fields, samples = fields_of(micro.batch), size(micro.batch)
    lookups = [one.ids for one in watched.seen.lookups if one.ids.dim() == 2 and one.ids.shape[0] == samples]
    ids = fields.ids if fields.ids is not None else (lookups[0] if lookups else None)
    part = Part(index, micro, watched, fields, None if ids is None else ids.cpu(), samples)
    part.call = max(watched.seen.losses, key=lambda call: call.target.numel(), default=None)
    if part.call is not None:
        references = [one for one in (fields.labels, part.ids) if one is not None]
        part.grid = grid(part.call.target, samples, part.call.shape, references)
    return part
