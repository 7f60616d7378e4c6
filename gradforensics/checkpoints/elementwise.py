"""Sums over a block of elements of a checkpoint's weights and Adam moments, and of those of the checkpoint before.

A block stays in a core's cache; each pass over it is one call of numpy that writes into a buffer made beforehand.
Single-precision sums run over at most 1024 numbers, everything above is added in double precision. A block in which
a number is not finite, or a result overflows, is measured once more in float64 without the elements that are not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from gradforensics.checkpoints.adam import Adam, Fit, Spread, solve

_ROW = 1024  # numbers in one single-precision sum
_BATCH = 8  # rows in one product: OpenBLAS starts threads of its own from 9216 numbers on
_NEAR = 0.5  # share of the mean square that is the mean's: above, the mean is subtracted before numbers are squared
_FAINT = 1e-30  # mean square below which squares of float32 may have vanished


class Workspace:
    """The buffers for blocks of up to `size` numbers of one type, float32 or float64."""

    def __init__(self, size: int, dtype: np.dtype[Any]) -> None:
        self.root, self.update, self.moved, self.x = (np.empty(size, dtype) for _ in range(4))
        self.flags = np.empty(size, np.bool_)
        self.ones = np.ones(_ROW, dtype)


class Block(NamedTuple):
    """Arrays (n,) of one type, float32 or float64: weights and moments of the checkpoint before (a) and after (b).

    v_max: the maximum of v that amsgrad divides by, of b.
    """

    w_a: np.ndarray
    w_b: np.ndarray
    m_a: np.ndarray
    v_a: np.ndarray
    m_b: np.ndarray
    v_b: np.ndarray
    v_max: np.ndarray | None = None


@dataclass(slots=True)
class MomentSums:
    """Of m and v: count of elements, and how many of them are no numbers or have v < 0; the rest is without those.

    top: largest |m| / sqrt(v). over: how often it exceeds the bound; v_zero: how often with v = 0. small: how often
    sqrt(v_hat) < 10 eps. squares: of the update without its scale.
    """

    count: int = 0
    nonfinite: int = 0
    negative: int = 0
    top: float = 0.0
    over: int = 0
    v_zero: int = 0
    small: int = 0
    squares: float = 0.0

    def add(self, other: MomentSums) -> None:
        """Take in other elements."""
        self.count += other.count
        self.nonfinite += other.nonfinite
        self.negative += other.negative
        self.top = max(self.top, other.top)
        self.over += other.over
        self.v_zero += other.v_zero
        self.small += other.small
        self.squares += other.squares


@dataclass(slots=True)
class TravelSums:
    """Of the weights before (w) and after: count of elements, how many changed a bit, how many are finite in both.

    Of the finite ones: squares of the movement and of w; spread: of the quotient after / w, less 1, where w is not 0;
    reach: largest |after - decay w|, largest: largest |w|.
    """

    count: int = 0
    changed: int = 0
    finite: int = 0
    moved: float = 0.0
    weight: float = 0.0
    spread: Spread = field(default_factory=Spread)
    reach: float = 0.0
    largest: float = 0.0

    def add(self, other: TravelSums) -> None:
        """Take in other elements."""
        self.count += other.count
        self.changed += other.changed
        self.finite += other.finite
        self.moved += other.moved
        self.weight += other.weight
        self.spread.add(other.spread)
        self.reach = max(self.reach, other.reach)
        self.largest = max(self.largest, other.largest)


@dataclass(slots=True)
class StepSums:
    """Of two states one update apart, where all is finite: sums of ((1 - beta1) g)², of v_b, and of v's error.

    v_error: |v_b - beta2 v_a - (1 - beta2) g²|. surprise: ((1 - beta1) g)² / max(v_b, eps²), eps as in `adam.Adam`, 0
    where that is not known. fit: of the movement. v, v_error, surprise and fit may be of fewer elements, the same for
    all four.
    """

    count: int = 0
    gradient: float = 0.0
    v_error: float = 0.0
    v: float = 0.0
    surprise: float = 0.0
    fit: Fit = field(default_factory=Fit)

    def add(self, other: StepSums) -> None:
        """Take in other elements."""
        self.count += other.count
        self.gradient += other.gradient
        self.v_error += other.v_error
        self.v += other.v
        self.surprise += other.surprise
        self.fit.add(other.fit)


def dot(x: np.ndarray, y: np.ndarray) -> float:
    """The dot product of x and y (n,), in double precision above 1024 numbers."""
    whole = x.size // _ROW * _ROW
    rest = float(x[whole:].dot(y[whole:])) if whole < x.size else 0.0
    if not whole:
        return rest
    rows = np.matmul(x[:whole].reshape(-1, 1, _ROW), y[:whole].reshape(-1, _ROW, 1))
    return rest + float(np.add.reduce(rows, axis=None, dtype=np.float64))


def total(x: np.ndarray, work: Workspace) -> float:
    """The sum of x (n,), likewise: products with ones are several times as fast as np.sum."""
    whole = x.size // (_BATCH * _ROW) * (_BATCH * _ROW)
    rest = float(np.add.reduce(x[whole:], dtype=np.float64)) if whole < x.size else 0.0
    if not whole:
        return rest
    rows = np.matmul(x[:whole].reshape(-1, _BATCH, _ROW), work.ones)
    return rest + float(np.add.reduce(rows, axis=None, dtype=np.float64))


def squares(x: np.ndarray) -> float:
    """The sum of squares of x (n,), also where they vanish in single precision."""
    found = dot(x, x)
    if found < _FAINT * x.size and x.dtype == np.float32:
        x = x.astype(np.float64)
        found = dot(x, x)
    return found


def peak(x: np.ndarray) -> float:
    """The largest magnitude in x (n,)."""
    return max(float(np.maximum.reduce(x)), -float(np.minimum.reduce(x)))


def measure_moments(
    m: np.ndarray, v: np.ndarray, v_max: np.ndarray | None, adam: Adam, work: Workspace
) -> tuple[MomentSums, np.ndarray | None]:
    """Measure m and v (n,), v_max where amsgrad keeps it; and return the update without its scale.

    The update is None where eps or the step is not known, or where an element of the block is not to be used.
    """
    sums, root = MomentSums(), work.root[: m.size]
    if _bounded(sums, m, v, root, adam, work) and _updates(sums, m, v_max, root, adam, work):
        sums.count = m.size
        return sums, None if adam.eps is None else work.update[: m.size]
    states = [m, v] if v_max is None else [m, v, v_max]
    finite = np.logical_and.reduce([np.isfinite(x) for x in states])
    good = finite & np.logical_and.reduce([x >= 0 for x in states[1:]])
    states = [x[good].astype(np.float64) for x in states]
    sums, root = MomentSums(), np.empty_like(states[0])
    if root.size:
        spare = Workspace(root.size, root.dtype)
        _bounded(sums, states[0], states[1], root, adam, spare)
        _updates(sums, states[0], states[2] if v_max is not None else None, root, adam, spare)
    sums.count, whole = m.size, int(np.count_nonzero(finite))
    sums.nonfinite, sums.negative = m.size - whole, whole - root.size
    return sums, None


def _bounded(sums: MomentSums, m: np.ndarray, v: np.ndarray, root: np.ndarray, adam: Adam, work: Workspace) -> bool:
    """Compare |m| with sqrt(v), which is left in `root`; False where a number is not finite or v < 0."""
    np.add(v, adam.floor, out=root)
    np.sqrt(root, out=root)
    ratio = np.divide(m, root, out=work.update[: m.size])
    sums.top = peak(ratio)
    limit = 1.0 if adam.bound is None else adam.limit
    if sums.top > limit:
        above = np.abs(ratio) > limit
        sums.v_zero = int(np.count_nonzero(v[above] == 0))
        sums.over = 0 if adam.bound is None else int(np.count_nonzero(above))
    return math.isfinite(sums.top + float(np.maximum.reduce(root)))  # the ratio to an infinite v is 0


def _updates(
    sums: MomentSums, m: np.ndarray, v_max: np.ndarray | None, root: np.ndarray, adam: Adam, work: Workspace
) -> bool:
    """Measure the update, which is left in work.update; False where it is not finite. `root`: sqrt(v)."""
    if adam.eps is None:
        return True
    probe = 0.0
    if v_max is not None:
        np.add(v_max, adam.floor, out=root)
        np.sqrt(root, out=root)
        probe = float(np.maximum.reduce(root))
    sums.small = int(np.count_nonzero(np.less(root, 10.0 * adam.eps, out=work.flags[: m.size])))
    np.add(root, adam.eps, out=root)
    step = np.divide(m, root, out=work.update[: m.size])
    sums.squares = squares(step)
    return math.isfinite(sums.squares + probe)


def measure_travel(
    before: np.ndarray, after: np.ndarray, changed: int, decay: float | None, work: Workspace
) -> tuple[TravelSums, np.ndarray | None]:
    """Measure the weights before and after (n,), of which `changed` differ in a bit; and return the movement.

    decay: what weight decay alone would have left, as a factor; None: no reach is measured. The movement, after -
    before, is None where a weight is not finite.
    """
    sums = TravelSums()
    if _travel(sums, before, after, changed, decay, work):
        sums.count, sums.changed = before.size, changed
        return sums, work.moved[: before.size]
    good = np.isfinite(before) & np.isfinite(after)
    before, after, count = before[good].astype(np.float64), after[good].astype(np.float64), before.size
    sums = TravelSums()
    if before.size:
        _travel(sums, before, after, changed, decay, Workspace(before.size, before.dtype))
    sums.count, sums.changed = count, changed
    return sums, None


def _travel(
    sums: TravelSums, before: np.ndarray, after: np.ndarray, changed: int, decay: float | None, work: Workspace
) -> bool:
    """Measure it; False where a number is not finite."""
    sums.finite, sums.weight = before.size, squares(before)
    moved, x = work.moved[: before.size], work.x[: before.size]
    if changed:
        np.subtract(after, before, out=moved)
        sums.moved = squares(moved)
        sums.spread = _quotients(moved, before, x, work)
    else:
        moved.fill(0.0)
        sums.spread = Spread(int(np.count_nonzero(before)))
    if decay is not None:
        np.multiply(before, decay, out=x)
        np.subtract(after, x, out=x)
        sums.reach, sums.largest = peak(x), peak(before)
    return math.isfinite(sums.weight + sums.moved)


def _quotients(moved: np.ndarray, before: np.ndarray, x: np.ndarray, work: Workspace) -> Spread:
    """after / before - 1 = moved / before where before is not 0: no digit is lost to the 1."""
    np.divide(moved, before, out=x)
    mean, square = total(x, work) / x.size, squares(x)
    if mean * mean * x.size < _NEAR * square < math.inf:
        return Spread(x.size, mean, square - mean * mean * x.size)
    centre = x.dtype.type(mean)
    np.subtract(x, centre, out=x)
    rest, square = total(x, work) / x.size, squares(x)
    if math.isfinite(square):
        return Spread(x.size, float(centre) + rest, square - rest * rest * x.size)
    some = np.isfinite(moved) & (before != 0)
    if not some.any():
        return Spread()
    exact = moved[some].astype(np.float64) / before[some]
    mean = float(exact.mean())
    return Spread(exact.size, mean, squares(exact - mean))


def measure_step(
    block: Block,
    moments: MomentSums,
    update: np.ndarray | None,
    travel: TravelSums,
    moved: np.ndarray | None,
    adam: Adam,
    work: Workspace,
    *,
    fitted: bool = True,
) -> StepSums:
    """Measure two states one update apart, after measure_moments and measure_travel, from what these returned.

    fitted: whether v's error and the fit are measured too, which cost more than all the rest.
    """
    if moved is not None and (update is not None or adam.eps is None):
        sums = _gradients(block, adam, work, checked=fitted)
        if update is not None and fitted:
            fit = Fit(moved.size, uu=moments.squares, ww=travel.weight, dd=travel.moved)
            _regress(fit, block.w_a, moved, update, work)
            sums.fit = fit
        if math.isfinite(sums.gradient + sums.v_error + sums.v + sums.surprise + sums.fit.rr):
            return sums
    arrays = [x for x in block if x is not None]
    good = np.logical_and.reduce([np.isfinite(x) for x in arrays]) & (block.v_b >= 0)
    if not good.any():
        return StepSums()
    block = Block(**{name: x[good].astype(np.float64) for name, x in block._asdict().items() if x is not None})
    work = Workspace(block.w_a.size, block.w_a.dtype)
    sums = _gradients(block, adam, work)
    if adam.eps is not None:
        v = block.v_b if block.v_max is None else np.maximum(block.v_max, 0.0)
        update, moved = block.m_b / (np.sqrt(v + adam.floor) + adam.eps), block.w_b - block.w_a
        fit = Fit(moved.size, uu=squares(update), ww=squares(block.w_a), dd=squares(moved))
        _regress(fit, block.w_a, moved, update, work)
        sums.fit = fit
    return sums


def _gradients(block: Block, adam: Adam, work: Workspace, *, checked: bool = True) -> StepSums:
    """The gradient that m tells and, where that is `checked`, whether v agrees and how far v lags behind it."""
    x, y = work.x[: block.m_b.size], work.root[: block.m_b.size]
    np.multiply(block.m_a, adam.beta1, out=x)
    np.subtract(block.m_b, x, out=x)  # (1 - beta1) g
    gradient = squares(x)
    if not checked:
        return StepSums(x.size, gradient)
    np.multiply(x, x, out=x)
    surprise = 0.0
    if adam.eps is not None:
        np.maximum(block.v_b, max(adam.eps * adam.eps, adam.floor), out=y)
        np.divide(x, y, out=y)
        surprise = total(y, work)
    np.multiply(x, (1.0 - adam.beta2) / (1.0 - adam.beta1) ** 2, out=x)
    np.multiply(block.v_a, adam.beta2, out=y)
    np.add(x, y, out=x)
    np.subtract(x, block.v_b, out=x)
    np.abs(x, out=x)
    return StepSums(x.size, gradient, total(x, work), total(block.v_b, work), surprise)


def _regress(fit: Fit, w: np.ndarray, moved: np.ndarray, update: np.ndarray, work: Workspace) -> None:
    """Complete the fit: the block's own solution, rounded to the arrays' type, and what it leaves over."""
    x, y = work.x[: w.size], work.root[: w.size]
    fit.uw = dot(update, w)
    a, b = solve(fit.uu, fit.uw, fit.ww, -dot(update, moved), -dot(w, moved))
    fit.a, fit.b = float(w.dtype.type(a)), float(w.dtype.type(b))
    np.multiply(update, fit.a, out=x)
    np.add(x, moved, out=x)
    np.multiply(w, fit.b, out=y)
    np.add(x, y, out=x)
    fit.ur, fit.wr, fit.rr = dot(update, x), dot(w, x), squares(x)
