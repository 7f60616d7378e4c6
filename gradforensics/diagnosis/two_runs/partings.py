"""From which step on two runs differ, series by series.

Two things are told apart. Runs of one program, seed and machine are equal, digit by digit, until something parts them:
the first step that differs is then exact. Runs with other seeds or other data are never equal: there the step is looked
for from which their difference has left the noise for good.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, TypedDict

import numpy as np

from gradforensics import signals
from gradforensics.patterns import lazy
from gradforensics.tables import Evidence, Phase, Series, StepUnit

Course: TypeAlias = Literal["identical", "parts", "never_identical", "not_judged"]
PHASES: tuple[Phase, ...] = ("train", "eval", "test")

# Series that measure the machine and the clock: they differ between any two runs.
_OF_THE_MACHINE = lazy(
    r"time|elapsed|throughput|per_sec|second|memory|\bmem\b|_mem_|runtime|mfu|tflops|total_flos|epoch|gpu|cpu|speed|"
    r"step_avg|timestamp|latency|_ms$",
)
# Series that a schedule dictates: they carry no noise, and equal values of them prove nothing about the runs.
_SCHEDULED = lazy(r"^lr|learning_rate|momentum|weight_decay|loss_scale|temperature|batch_size|^beta|tokens|samples")

POINTS = 20  # shared points below which nothing is said about noise
NOISE = 5.0  # standard deviations of the level; siblings that differ in their seed alone end within 1.9 (17 pairs)
FLOOR = 0.02  # relative; levels of siblings that differ in their seed alone end within 0.01 (loss, 240 points)
_WANDER = 2.0  # times the usual wander of the level; siblings within 1.0
_CHANCE = 0.01  # probability from which on equal points at the beginning are called a chance of coarse printing
_SAMPLE = 256  # values that are looked at for how they were written
_EXACT = 15  # significant digits from which on a decimal number stands for one double
_FEW = 8  # significant digits up to which a writer rounded; more belong to numbers of single or double precision
_MEDIAN = math.sqrt(math.pi / 2)  # the standard error of a median of normal numbers, in that of their mean


@dataclass(frozen=True, slots=True)
class Parting:
    """How one series of two runs compares, over the steps that both logged.

    first, last: the first and last shared step; points: how many there are. until: the last step up to which all shared
    points are equal, step: the first that differs (both None for identical ones; until is None where the first differs
    already). rounded: equal only as far as the values were printed. here, there: the values at `step`; size: their
    distance there as a fraction of the larger one. beyond: the step from which the difference has left the noise for
    good, None where it never does; noise_judged: whether there were enough points to say so. gap: the level of `here`
    above that of `there` at the end, as a fraction; None where the values have no common sign. why: what prevented a
    judgement.
    """

    phase: Phase
    name: str
    course: Course
    unit: StepUnit
    points: int = 0
    first: int | None = None
    last: int | None = None
    until: int | None = None
    step: int | None = None
    here: float | None = None
    there: float | None = None
    size: float | None = None
    rounded: bool = False
    equal_points: int = 0
    noise_judged: bool = False
    beyond: int | None = None
    gap: float | None = None
    why: Literal["", "no_shared_steps", "other_units"] = ""

    @property
    def label(self) -> str:
        """The phase-qualified name: "loss", "eval/loss"."""
        return self.name if self.phase == "train" else f"{self.phase}/{self.name}"

    @property
    def scheduled(self) -> bool:
        """Whether a schedule dictates the series: its differences are no result of the training."""
        return _SCHEDULED.search(self.name) is not None


def partings(here: Evidence, there: Evidence) -> list[Parting]:
    """Every series that both runs logged, in the order of the first run, but those of the machine and the clock."""
    return [_compare(mine, theirs) for mine, theirs in _shared(here, there)]


def parting(here: Evidence, there: Evidence, name: str) -> Parting | None:
    """One series of the training, None where not both runs logged it."""
    mine, theirs = here.series(name), there.series(name)
    return None if mine is None or theirs is None else _compare(mine, theirs)


def _shared(here: Evidence, there: Evidence) -> Iterator[tuple[Series, Series]]:
    for phase in PHASES:
        for name in here.names(phase):
            if _OF_THE_MACHINE.search(name):
                continue
            mine, theirs = here.series(name, phase), there.series(name, phase)
            if mine is not None and theirs is not None:
                yield mine, theirs


def _compare(mine: Series, theirs: Series) -> Parting:
    blank = Parting(mine.phase, mine.name, "not_judged", mine.step_unit)
    if mine.step_unit != theirs.step_unit:
        return replace(blank, why="other_units")
    left, right = signals.common_places(mine.steps, theirs.steps)
    if not len(left):
        return replace(blank, why="no_shared_steps")
    mine, theirs = mine.at(left), theirs.at(right)
    steps = mine.steps
    equal, rounded = _equal(mine, theirs)
    found = replace(blank, points=len(steps), first=int(steps[0]), last=int(steps[-1]), rounded=rounded)
    if bool(equal.all()):
        return replace(found, course="identical", until=found.last, equal_points=len(steps))
    place = int(np.argmin(equal))
    known = 0 if not found.scheduled and _by_chance(equal, place) else place
    found = replace(
        found,
        course="parts" if known else "never_identical",
        until=int(steps[known - 1]) if known else None,
        equal_points=known,
        step=int(steps[place]),
        **_values(mine, theirs, place),
    )
    return found if found.scheduled else replace(found, **_noise(mine, theirs))


def _equal(mine: Series, theirs: Series) -> tuple[np.ndarray, bool]:
    """bool (n,): where two series hold the same, as far as both were written; and whether either was rounded."""
    a, b = mine.values, theirs.values
    both = mine.finite & theirs.finite
    if _single(a[both]) != _single(b[both]):  # one of them was kept in single precision, as TensorBoard does
        a, b = a.astype(np.float32).astype(float), b.astype(np.float32).astype(float)
    one, other = _written(mine), _written(theirs)
    tolerance = np.zeros(len(a))
    if one != other:  # each number stands for all that are printed like it; like numbers of one format are equal
        for values, how in ((a, one), (b, other)):
            tolerance = tolerance + 0.5 * _unit(values, *how) * (1 + 1e-9)
    with np.errstate(invalid="ignore"):
        near = np.where(both, np.abs(a - b) <= tolerance, mine.codes == theirs.codes)
    rounded = any(resolution or digits < _EXACT for resolution, digits in (one, other))
    return near, rounded


def _single(values: np.ndarray) -> bool:
    """Whether all values are numbers of single precision."""
    with np.errstate(over="ignore"):
        return bool((values.astype(np.float32) == values).all()) if len(values) else False


def _written(series: Series) -> tuple[float, int]:
    """How a series was written: its resolution (0: no fixed decimals), and its significant digits, _EXACT at most."""
    if series.resolution:
        return series.resolution, _EXACT
    sample = series.values[series.finite]
    sample = sample[:: max(1, len(sample) // _SAMPLE)]
    if len(set(sample.tolist())) < POINTS:  # a few round numbers are exact, such as the rates of a schedule
        return 0.0, _EXACT
    digits = (f"{value:.{_EXACT - 1}e}".partition("e")[0].replace(".", "").lstrip("-").rstrip("0") for value in sample)
    longest = max((len(text) for text in digits), default=_EXACT)
    return 0.0, longest if longest <= _FEW else _EXACT


def _unit(values: np.ndarray, resolution: float, digits: int) -> np.ndarray:
    """The distance between two numbers that can be told apart around each value, float64 (n,)."""
    if resolution:
        return np.full(len(values), resolution)
    if digits >= _EXACT:
        return np.zeros(len(values))
    size = np.abs(np.where(np.isfinite(values), values, 0.0))
    exponent = np.floor(np.log10(np.where(size > 0, size, 1.0)))
    return np.asarray(10.0 ** (exponent - digits + 1))


def _by_chance(equal: np.ndarray, place: int) -> bool:
    """Whether as many equal points as there are before `place` come about by chance, going by the points after it."""
    return bool(float(equal[place:].mean()) ** place > _CHANCE) if place else True


class _Values(TypedDict):
    here: float | None
    there: float | None
    size: float | None


def _values(mine: Series, theirs: Series, place: int) -> _Values:
    here, there = (float(series.values[place]) if series.finite[place] else None for series in (mine, theirs))
    if here is None or there is None:
        return {"here": here, "there": there, "size": None}
    larger = max(abs(here), abs(there))
    return {"here": here, "there": there, "size": abs(here - there) / larger if larger else 0.0}


class _Noise(TypedDict, total=False):
    noise_judged: bool
    beyond: int | None
    gap: float | None


def _noise(mine: Series, theirs: Series) -> _Noise:
    """From which step on the difference of two series has left the noise for good.

    The difference is that of the logarithms where both are positive, else a fraction of the typical size. Its level (a
    rolling median) must end beyond NOISE standard deviations of its noise, FLOOR, and twice its usual wander.
    """
    both = mine.finite & theirs.finite
    if int(both.sum()) < POINTS:
        return {}
    steps, a, b = mine.steps[both], mine.values[both], theirs.values[both]
    if bool((a > 0).all() and (b > 0).all()):
        apart = np.log(a / b)
    else:
        apart = (a - b) / (float(np.median(np.maximum(np.abs(a), np.abs(b)))) or 1.0)
    n = len(apart)
    window = max(3, min(101, n // 20)) | 1
    level = signals.rolling_median(apart, window)
    noise = signals.noise_sd(apart) * _MEDIAN / math.sqrt(window)
    wander = signals.MAD_TO_SD * float(np.median(np.abs(level[window:] - level[:-window]))) if n > 4 * window else 0.0
    margin = max(NOISE * noise, FLOOR, _WANDER * wander)
    end = float(np.median(apart[-max(5, n // 10) :]))
    found: _Noise = {"noise_judged": True, "gap": math.expm1(min(end, 700.0))}
    within = np.flatnonzero(np.abs(level) <= margin)
    start = int(within[-1]) + 1 if len(within) else 0
    # the same side throughout: a difference that swings from one side to the other is not apart for good
    sides = np.flatnonzero(np.sign(level) != math.copysign(1.0, end))
    start = max(start, int(sides[-1]) + 1 if len(sides) else 0)
    if abs(end) > margin and n - start >= max(5, window):
        found["beyond"] = int(steps[start])
    return found
