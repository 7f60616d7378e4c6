"""The learning-rate schedules that a configuration can declare, as functions of the optimizer step.

Definitions follow the get_*_schedule functions of transformers.optimization and torch.optim.lr_scheduler; the names are
those of transformers, Megatron-LM and torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from gradforensics.tables import Evidence, Setting

Shape: TypeAlias = Callable[[np.ndarray, "Schedule"], np.ndarray]

# fraction of the decay phase that is done, 0..1 -> multiple of the peak
_SHAPES: dict[str, Shape] = {
    "linear": lambda done, _: 1.0 - done,
    "cosine": lambda done, it: np.maximum(0.0, 0.5 * (1.0 + np.cos(2.0 * np.pi * it.cycles * done))),
    "restarts": lambda done, it: np.where(done < 1.0, 0.5 * (1.0 + np.cos(np.pi * ((it.cycles * done) % 1.0))), 0.0),
    "polynomial": lambda done, it: (1.0 - done) ** it.power,
    "root": lambda done, _: 1.0 - np.sqrt(done),
    "constant": lambda done, _: np.ones_like(done),
}
_ENDLESS = ("constant", "inverse_sqrt")  # they do not end at `total`
_NAMES = {
    "linear": "linear", "linear_with_warmup": "linear", "linear_warmup_decay": "linear",
    "polynomial": "polynomial", "polynomial_decay": "polynomial", "poly": "polynomial",
    "cosine": "cosine", "cosine_with_warmup": "cosine", "cosine_warmup": "cosine", "cosineannealinglr": "cosine",
    "cosine_with_min_lr": "cosine", "cosine_warmup_with_min_lr": "cosine", "cosine_decay": "cosine",
    "cosine_with_restarts": "restarts",
    "inverse_sqrt": "inverse_sqrt", "inverse_square_root": "inverse_sqrt",
    "warmup_stable_decay": "wsd", "wsd": "wsd",
    "constant": "constant", "constant_with_warmup": "constant", "constant_warmup": "constant", "none": "constant",
}  # fmt: skip
_WSD_DECAYS = {
    "linear": "linear", "cosine": "cosine", "1-sqrt": "root", "1_sqrt": "root", "sqrt": "root", "minus_sqrt": "root",
}  # fmt: skip
_HF_TIMESCALE = 10_000.0  # what inverse_sqrt takes where there is no warm-up
_SHARP = 0.02  # relative error of the steps per epoch that a plan may be derived with


@dataclass(frozen=True, slots=True)
class Schedule:
    """A declared schedule. peak, floor: rate after the warm-up and at the end; warmup, stable, total: optimizer steps.

    stable: steps at the peak between warm-up and decay; derived: the total was not declared but follows from the epochs
    and the steps that the log counts in each; wraps: a cosine that is stepped beyond its end goes on as a wave.
    """

    shape: str
    name: str
    peak: float
    warmup: float
    total: float
    floor: float = 0.0
    stable: float = 0.0
    power: float = 1.0
    cycles: float = 0.5
    derived: bool = False
    wraps: bool = False

    def at(self, steps: np.ndarray, speed: float = 1.0) -> np.ndarray:
        """Learning rate at the given steps, float64 (n,), the schedule run `speed` times as fast as it should."""
        t = np.maximum(steps.astype(float) * speed, 0.0)
        if self.shape not in _ENDLESS and not self.wraps:
            t = np.minimum(t, self.total)
        up = t / self.warmup if self.warmup > 0 else np.ones_like(t)
        rates: np.ndarray = np.where(t < self.warmup, self.peak * up, self._after(t))
        return rates

    def _after(self, t: np.ndarray) -> np.ndarray:
        """Learning rate after the warm-up at the moments `t`."""
        if self.shape == "inverse_sqrt":
            scale = self.warmup or _HF_TIMESCALE
            rates: np.ndarray = self.peak / np.sqrt(np.maximum(t + scale - self.warmup, 1.0) / scale)
            return rates
        begin = self.warmup + self.stable
        done = np.maximum((t - begin) / max(self.total - begin, 1.0), 0.0)
        done = done if self.wraps else np.minimum(done, 1.0)
        falling: np.ndarray = self.floor + (self.peak - self.floor) * _SHAPES[self.shape](done, self)
        return falling


def declared(evidence: Evidence) -> Schedule | list[str]:
    """The schedule that the settings declare, or the list of what is missing to know it."""
    return _declared(evidence, evidence.setting)


def others_declared(evidence: Evidence) -> list[Schedule]:
    """Schedules that other files of settings declare, each with what the main settings say beside it.

    A second launch with another rate leaves another file; what the user states with --set beats them all.
    """
    main = min((s for s in evidence.settings or [] if s.key == "learning_rate"), key=_rank, default=None)
    if main is None or main.origin == "user":
        return []
    files: dict[tuple[str, int | None], dict[str, Any]] = {}
    for setting in evidence.settings or []:
        if setting.origin == main.origin and setting.value is not None:
            files.setdefault((setting.source, setting.attempt), {}).setdefault(setting.key, setting.value)
    found = []
    for values in files.values():
        if "learning_rate" in values:
            other = _declared(evidence, lambda key, values=values: values.get(key, evidence.setting(key)))  # type: ignore[misc]  # mypy infers no type for a default
            if isinstance(other, Schedule):
                found.append(other)
    return [s for s in found if s != declared(evidence)]


def _rank(setting: Setting) -> int:
    return ("user", "runtime", "config").index(setting.origin)


def planned_steps(evidence: Evidence) -> tuple[float, bool] | None:
    """(planned optimizer steps, whether they were derived from the epochs), or None where neither is known."""
    total = evidence.number("max_steps")
    if total is not None and total > 0:
        return total, False
    epochs, per_epoch = evidence.number("num_train_epochs"), steps_per_epoch(evidence)
    if epochs is None or epochs <= 0 or per_epoch is None:
        return None
    return float(math.ceil(epochs * per_epoch - 1e-6)), True


def steps_per_epoch(evidence: Evidence) -> float | None:
    """Steps of one epoch in the unit in which the log counts them, or None where the log does not show it well."""
    return evidence.once("steps_per_epoch", lambda: _steps_per_epoch(evidence))


def _steps_per_epoch(evidence: Evidence) -> float | None:
    for name in ("lr", "loss"):
        series = evidence.series(name)
        if series is None or series.step_unit != "step":
            continue
        known = np.isfinite(series.epochs)
        steps, epochs = series.steps[known].astype(float), series.epochs[known]
        if len(steps) < 10 or epochs[-1] <= epochs[0]:
            continue
        if bool((epochs == np.floor(epochs)).all()):  # whole numbers: count from one change to the last
            turns = np.flatnonzero(np.diff(epochs) > 0) + 1
            if len(turns) < 2:
                continue
            steps, epochs = steps[turns], epochs[turns]
        span, passed = float(steps[-1] - steps[0]), float(epochs[-1] - epochs[0])
        if passed > 0 and span > 0 and series.cadence <= _SHARP * span:
            return span / passed
    return None


def _declared(evidence: Evidence, setting: Callable[[str], Any]) -> Schedule | list[str]:
    def number(*keys: str) -> float | None:
        return next((v for key in keys if (v := _number(setting(key))) is not None), None)

    name, peak, plan = setting("lr_scheduler_type"), number("learning_rate"), planned_steps(evidence)
    total = number("max_steps")
    derived = total is None or total <= 0
    if derived:
        total = plan[0] if plan else None
    known = (("lr_scheduler_type", name), ("max_steps", total), ("learning_rate", peak))
    missing = [f"settings:{key}" for key, value in known if value is None]
    if missing or total is None or peak is None:
        return missing
    bare = str(name).lower().rsplit(".", 1)[-1].replace("-", "_").replace(" ", "_")
    shape = _NAMES.get(bare)
    if shape is None:
        return [f"a schedule of a known shape (this one is {name!r})"]
    decay, epochs = number("decay_steps"), number("num_train_epochs")
    if decay is not None and decay > 0:  # a T_max that equals the number of epochs counts epochs
        total = decay if decay != epochs or decay >= total else total
    warmup = 0.0 if bare in ("constant", "none") else _warmup(number, total)  # transformers ignores it there
    return _shaped(Schedule(shape, str(name), peak, warmup, total, derived=derived), number, setting)


def _number(value: Any) -> float | None:
    if value is None or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _warmup(number: Callable[..., float | None], total: float) -> float:
    warmup = number("warmup_steps") or 0.0
    if 0.0 < warmup < 1.0:  # transformers 5 reads a fraction as a share of all steps
        warmup *= total
    return warmup or (number("warmup_ratio") or 0.0) * total


def _shaped(
    plain: Schedule, number: Callable[..., float | None], setting: Callable[[str], Any]
) -> Schedule | list[str]:
    """The schedule with the further arguments that its shape takes."""
    peak = plain.peak

    def argument(*names: str) -> float | None:
        return number(*(f"{at}{name}" for at in ("lr_scheduler_kwargs.", "lr_scheduler.", "") for name in names))

    floor = number("min_lr", "lr_end") or (number("min_lr_rate") or argument("min_lr_ratio") or 0.0) * peak
    floor = floor if floor < peak else 0.0
    shape, stable, cycles = plain.shape, 0.0, 0.5
    if shape in ("cosine", "restarts"):
        cycles = argument("num_cycles") or (0.5 if shape == "cosine" else 1.0)
    power = (argument("power", "lr_power") or 1.0) if shape == "polynomial" else 1.0
    total = plain.total
    if shape == "wsd":
        decay = argument("num_decay_steps", "lr_wsd_decay_iters", "wsd_decay_steps", "decay_steps")
        style = str(setting("lr_scheduler_kwargs.decay_type") or setting("lr_wsd_decay_style") or "cosine")
        if decay is None or style.lower() not in _WSD_DECAYS:
            return ["settings:num_decay_steps"] if decay is None else [f"a decay of a known shape ({style!r})"]
        held = argument("num_stable_steps")
        shape = _WSD_DECAYS[style.lower()]
        stable = held if held is not None else max(0.0, total - plain.warmup - decay)
        total = plain.warmup + stable + decay
    return Schedule(
        shape, plain.name, peak, plain.warmup, total, floor, stable, power, cycles, plain.derived
    )  # fmt: skip


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
