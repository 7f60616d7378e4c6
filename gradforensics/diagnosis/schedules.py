"""The learning-rate schedules that a configuration can declare, as functions of the optimizer step.

Definitions follow the get_*_schedule functions of transformers.optimization and torch.optim.lr_scheduler.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gradforensics.tables import Evidence

_SHAPES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    # fraction of the decay phase that is done, 0..1 -> multiple of the peak
    "linear": lambda done: 1.0 - done,
    "cosine": lambda done: 0.5 * (1.0 + np.cos(np.pi * done)),
    "constant": np.ones_like,
}
_NAMES = {
    "linear": "linear", "linear_with_warmup": "linear", "polynomial": "linear", "linear_warmup_decay": "linear",
    "cosine": "cosine", "cosine_with_warmup": "cosine", "cosine_warmup": "cosine", "cosineannealinglr": "cosine",
    "cosine_with_min_lr": "cosine",
    "constant": "constant", "constant_with_warmup": "constant", "constant_warmup": "constant", "none": "constant",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Schedule:
    """A declared schedule. peak, floor: rate after the warm-up and at the end; warmup, total: optimizer steps."""

    shape: str
    name: str
    peak: float
    warmup: float
    total: float
    floor: float = 0.0

    def at(self, steps: np.ndarray, speed: float = 1.0) -> np.ndarray:
        """Learning rate at the given steps, float64 (n,), the schedule run `speed` times as fast as it should."""
        t = np.clip(steps.astype(float) * speed, 0.0, self.total)
        done = np.clip((t - self.warmup) / max(self.total - self.warmup, 1.0), 0.0, 1.0)
        up = t / self.warmup if self.warmup > 0 else np.ones_like(t)
        falling = self.floor + (self.peak - self.floor) * _SHAPES[self.shape](done)
        rates: np.ndarray = np.where(t < self.warmup, self.peak * up, falling)
        return rates


def declared(evidence: Evidence) -> Schedule | list[str]:
    """The schedule that the settings declare, or the list of what is missing to know it."""
    name = evidence.setting("lr_scheduler_type")
    total, peak = evidence.number("max_steps"), evidence.number("learning_rate")
    missing = [
        f"settings:{key}"
        for key, value in (("lr_scheduler_type", name), ("max_steps", total), ("learning_rate", peak))
        if value is None or (isinstance(value, float) and value <= 0 and key == "max_steps")
    ]
    if missing or total is None or peak is None:
        return missing
    shape = _NAMES.get(str(name).lower().rsplit(".", 1)[-1])
    if shape is None:
        return [f"a schedule of a known shape (this one is {name!r})"]
    bare = str(name).lower() in ("constant", "none")  # transformers ignores the warm-up of a plain constant schedule
    total = evidence.number("decay_steps") or total
    warmup = 0.0 if bare else evidence.number("warmup_steps") or 0.0
    if 0.0 < warmup < 1.0:  # transformers 5 reads a fraction as a share of all steps
        warmup *= total
    if warmup == 0.0 and not bare:
        warmup = (evidence.number("warmup_ratio") or 0.0) * total
    floor = evidence.number("min_lr") or evidence.number("lr_end") or (evidence.number("min_lr_rate") or 0.0) * peak
    return Schedule(shape, str(name), peak, warmup, total, floor if floor < peak else 0.0)


def worst_departure(schedule: Schedule, steps: np.ndarray, values: np.ndarray, speed: float = 1.0) -> np.ndarray:
    """|logged - expected| / peak at every point, float64 (n,).

    A log names step s for the rate used in it or for the one that comes next, depending on the framework, so that each
    point may match from step s - 1 to s + 1. A rate that moves in stairs (a scheduler stepped once per epoch on
    purpose) may match any step back to where its stair began; stairs count up to a fifth of the schedule.
    """
    hold = min(_longest_stair(steps, values), schedule.total / 5)
    shifts = np.unique(np.concatenate([[-1.0, 0.0, 1.0], np.linspace(-hold, 0.0, 9)]))
    expected = np.array([schedule.at(steps + shift, speed) for shift in shifts])
    gap: np.ndarray = np.maximum(np.maximum(expected.min(axis=0) - values, values - expected.max(axis=0)), 0.0)
    return gap / schedule.peak if schedule.peak > 0 else gap


def _longest_stair(steps: np.ndarray, values: np.ndarray) -> float:
    """Longest stretch, in steps, over which a rate stands still before it moves again; 0 where it never does."""
    moves = np.flatnonzero(np.diff(values) != 0)
    if len(moves) < 2:
        return 0.0
    return float(np.max(steps[moves[1:]] - steps[moves[:-1]]))
