"""When a step is worth a capsule."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from gradforensics.capsule import Reason

_MAD_TO_SD = 1.4826  # the standard deviation of a normal sample is 1.4826 times its median absolute deviation


@dataclass(slots=True)
class Spikes:
    """The robust score of a value against the values before it: z = (x - median) / max(1.4826 MAD, 0.001 |median|).

    The median and the median absolute deviation are those of up to `window` values before x. Measured on 2400 healthy
    steps, the score stays below 3.7; with ten spikes in the window it still finds the eleventh, which mean and standard
    deviation do not. OLMo 2 counts values at least 7 standard deviations from the rolling mean as spikes.
    """

    threshold: float = 7.0
    window: int = 128
    fewest: int = 64
    silent: int = 100  # the first steps have no steady level yet
    _seen: int = 0
    _values: deque[float] = field(default_factory=deque)

    def score(self, value: float) -> float:
        """The score of the next value, 0 while it cannot be told; the value then belongs to the window."""
        found = 0.0
        if not math.isfinite(value):
            return found
        if self._seen >= self.silent and len(self._values) >= self.fewest:
            middle = _median(sorted(self._values))
            if value > middle:
                deviation = _median(sorted(abs(v - middle) for v in self._values))
                spread = max(_MAD_TO_SD * deviation, 1e-3 * abs(middle))
                found = (value - middle) / spread if spread > 0 else 0.0
        self._seen += 1
        self._values.append(value)
        if len(self._values) > self.window:
            self._values.popleft()
        return found


def _median(ordered: list[float]) -> float:
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


@dataclass(frozen=True, slots=True)
class Finding:
    """Why a step gets a capsule."""

    reason: Reason
    text: str


@dataclass(slots=True)
class Judge:
    """Looks at the steps in their order. A fault that lasts is reported at its first step only.

    skips: so many steps in a row that the gradient scaler skipped are a fault; a healthy scaler skips about one step
    per growth interval (2000 steps).
    """

    skips: int = 5
    losses: Spikes = field(default_factory=Spikes)
    norms: Spikes = field(default_factory=Spikes)
    _bad: bool = False
    _skipped: int = 0
    _quiet: int = 0

    def look(self, losses: Sequence[float], norm: float | None, *, skipped: bool, scaled: bool) -> Finding | None:
        """Judge the next step.

        losses: of its micro-batches. norm: of its gradient, None where unknown. skipped: by the scaler. scaled: whether
        there is a scaler, which skips steps with an infinite gradient by design.
        """
        self._skipped = self._skipped + 1 if skipped else 0
        self._quiet = max(self._quiet - 1, 0)
        found = nonfinite(losses, None if scaled else norm)
        bad, self._bad = self._bad, found is not None
        if found is not None:
            return None if bad else found
        if self._skipped == self.skips:
            return Finding("skipped_steps", f"the gradient scaler skipped {self.skips} steps in a row")
        return None if skipped else self._spike(losses, norm)

    def _spike(self, losses: Sequence[float], norm: float | None) -> Finding | None:
        """A spike, unless there was one within the last window: what stays high is told once."""
        loss = sum(losses) / len(losses) if losses else math.nan
        scores = [
            ("the loss", loss, self.losses.score(loss)),
            ("the gradient norm", norm or 0.0, 0.0 if norm is None else self.norms.score(norm)),
        ]
        name, value, score = max(scores, key=lambda item: item[2])
        if not score >= self.losses.threshold:
            return None
        quiet, self._quiet = self._quiet, self.losses.fewest
        return None if quiet else Finding("spike", f"{name} is {value:.6g}, a robust score of {score:.1f}")


def nonfinite(losses: Sequence[float | None], norm: float | None = None) -> Finding | None:
    """What is not finite among the losses of a step's micro-batches and its gradient norm; None stands for unknown."""
    for index, loss in enumerate(losses):
        if loss is not None and not math.isfinite(loss):
            which = f" of micro-batch {index}" if len(losses) > 1 else ""
            return Finding("nonfinite_loss", f"the loss{which} is {loss}")
    if norm is not None and not math.isfinite(norm):
        return Finding("nonfinite_gradient", f"the loss is finite and the gradient norm is {norm}")
    return None
