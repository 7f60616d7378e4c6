"""One JSON line per step, as `gradforensics analyze` reads it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, TextIO

import torch

from gradforensics.experiments import number_to_json
from gradforensics.own_files import STEP_LOG
from gradforensics.recorder.steps import StepRecord


class StepLog:
    """gradforensics-steps.jsonl, with -rank3 where there are several ranks; opened at the first line.

    total: log the sum over the micro-batches as the loss, where each is its part of the step's loss.
    """

    def __init__(self, folder: Path, rank: int, world_size: int) -> None:
        self._path = folder / (STEP_LOG + (f"-rank{rank}" if world_size > 1 else "") + ".jsonl")
        self._file: TextIO | None = None
        self._skipped = 0
        self.total = False

    def write(self, record: StepRecord, *, scaled: bool) -> None:
        """Add the line of a step; it is handed to the system at once, so that a crash loses none."""
        self._skipped += record.skipped
        row: dict[str, Any] = {"step": record.step}
        loss = record.loss
        if loss is not None:
            row["loss"] = number_to_json(loss * len(record.micros) if self.total else loss)
        if record.norm is not None:  # a clipped norm among others would look like a fall of the gradient
            row["grad_norm_clipped" if record.clipped_only else "grad_norm"] = number_to_json(record.norm)
        rates = [group["lr"] for group in record.options if isinstance(group.get("lr"), (int, float))]
        if rates:
            row["lr"] = number_to_json(float(rates[0]))
        if scaled:
            row |= {"loss_scale": number_to_json(record.scale), "skipped_steps": self._skipped}
        row |= {f"grad_norm/{name}": number_to_json(norm) for name, norm in by_module(record.layers).items()}
        row |= record.memory
        row |= record.remarks
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("a", encoding="utf-8", buffering=1)
        self._file.write(json.dumps(row, allow_nan=False) + "\n")

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def by_module(norms: dict[str, float]) -> dict[str, float]:
    """Norms of parameters as one L2 norm per module that holds them."""
    squares: dict[str, float] = {}
    for name, norm in norms.items():
        module = name.rpartition(".")[0] or name
        squares[module] = squares.get(module, 0.0) + norm * norm
    return {module: math.sqrt(square) for module, square in squares.items()}


def memory(device: torch.device, phase: str) -> dict[str, int]:
    """Allocated and reserved bytes of a CUDA device, named after the phase of the step ("" for its end)."""
    if device.type != "cuda":
        return {}
    return {
        f"memory_allocated{phase}": torch.cuda.memory_allocated(device),
        f"memory_reserved{phase}": torch.cuda.memory_reserved(device),
    }
