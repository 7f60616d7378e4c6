"""Statistics of one tensor in one pass over its bytes: counts, extremes, moments, row norms and a fingerprint.

The bytes go through in blocks that stay in a core's cache; where nothing is remarkable, half a dozen calls of numpy
look at each and only read it. Single-precision sums run over at most 1024 numbers; they are added in double precision,
blocks as in Chan, Golub and LeVeque, "Algorithms for computing the sample variance" (1983).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from zlib_ng import zlib_ng

from gradforensics.checkpoints.numbers import BFLOAT16, FORMATS, Bits, Format, decode, decode_halves
from gradforensics.checkpoints.refs import TensorRef, blocks

BLOCK_BYTES = 1 << 20  # of float32 or float64
_CHUNK = 1024  # numbers in one single-precision sum
_BATCH = 8  # such sums in one product of a matrix and a vector: OpenBLAS starts threads of its own from 9216 numbers on
_NARROW = 128  # numbers in a row; one product per shorter row costs more than it saves
_ONES: dict[int, np.ndarray] = {4: np.ones(_CHUNK, np.float32), 8: np.ones(_CHUNK, np.float64)}
_SHARE = 0.5  # of the mean square that is the mean's: above, the variance is computed from shifted numbers
_SHIFTS = 3  # the first may be off by rounding errors larger than the numbers' spread
_UNSCALED = {4: (2.0**-50, 2.0**54), 8: (2.0**-400, 2.0**450)}  # largest magnitudes whose squares need no scaling
_EXPONENTS = {4: 126, 8: 1022}  # powers of two that are normal numbers, as are their reciprocals


@dataclass(frozen=True, slots=True)
class Stats:
    """What one tensor holds.

    count: elements of the logical tensor. fingerprint: CRC-32 (zlib's polynomial) of the stored bytes in reading order,
    8 hexadecimal digits. measured: whether the values are known; of quantised and packed types they are not, and all
    that follows is None.

    nan, posinf, neginf, zero, one, subnormal: numbers of that kind in the logical tensor; subnormal ones are nonzero
    and below the smallest normal number of the tensor's own type. min, max, mean, std (population), l2: of the finite
    numbers, None where there are none. A complex element is two numbers, its real and its imaginary part.

    row_l2_min, row_l2_max, row_l2_max_index (the first row of that norm), zero_rows: of the rows of a matrix that hold
    no NaN or infinity. None unless the tensor has two dimensions, lies in row-major order, and a row has at least 2
    elements and at most BLOCK_BYTES as float32 (float64 where the stored numbers need it).
    """

    count: int
    fingerprint: str
    measured: bool = False
    nan: int | None = None
    posinf: int | None = None
    neginf: int | None = None
    zero: int | None = None
    one: int | None = None
    subnormal: int | None = None
    min: float | None = None
    max: float | None = None
    mean: float | None = None
    std: float | None = None
    l2: float | None = None
    row_l2_min: float | None = None
    row_l2_max: float | None = None
    row_l2_max_index: int | None = None
    zero_rows: int | None = None


class Layout(NamedTuple):
    """How a tensor is cut: elements in a block, and numbers in a row (0 where its rows are not looked at)."""

    elements: int
    columns: int


def layout(ref: TensorRef) -> Layout:
    """The tensor's blocks; where its rows are looked at, a block holds whole rows."""
    form = FORMATS.get(ref.dtype)
    if form is None:
        return Layout(BLOCK_BYTES // ref.itemsize, 0)
    elements = BLOCK_BYTES // form.work.itemsize // form.parts
    if len(ref.shape) == 2 and ref.order is None and ref.repeat == 1 and 2 <= ref.shape[1] <= elements:
        columns = ref.shape[1]
        return Layout(elements // columns * columns, columns * form.parts)
    return Layout(elements, 0)


class Workspace:
    """The buffers of one thread: a block as numbers, a copy of it, and a flag per number."""

    def __init__(self) -> None:
        self.values = np.empty(BLOCK_BYTES, np.uint8)
        self.spare = np.empty(BLOCK_BYTES, np.uint8)
        self.flags = np.empty(BLOCK_BYTES // 4, np.bool_)


@dataclass(slots=True)
class Part:
    """What some consecutive elements of a tensor hold; parts are added in reading order.

    finite: numbers that are; low, high, mean and std are theirs. row_low, row_high: extreme norms of its rows, row_at
    the index of the first row of the highest (-1 where there is none).
    """

    finite: int = 0
    nan: int = 0
    posinf: int = 0
    neginf: int = 0
    zero: int = 0
    one: int = 0
    subnormal: int = 0
    low: float = math.inf
    high: float = -math.inf
    mean: float = 0.0
    std: float = 0.0
    row_low: float = math.inf
    row_high: float = -1.0
    row_at: int = -1
    zero_rows: int = 0
    crc: int = 0
    nbytes: int = 0

    def add(self, other: Part) -> None:
        """Append the part that follows this one."""
        self._add_moments(other)
        self.nan += other.nan
        self.posinf += other.posinf
        self.neginf += other.neginf
        self.zero += other.zero
        self.one += other.one
        self.subnormal += other.subnormal
        self.low = min(self.low, other.low)
        self.high = max(self.high, other.high)
        self.row_low = min(self.row_low, other.row_low)
        if other.row_high > self.row_high:
            self.row_high, self.row_at = other.row_high, other.row_at
        self.zero_rows += other.zero_rows
        if other.nbytes:
            self.crc = zlib_ng.crc32_combine(self.crc, other.crc, other.nbytes) if self.nbytes else other.crc
            self.nbytes += other.nbytes

    def _add_moments(self, other: Part) -> None:
        """Chan's formula with weights below 1, so that nothing overflows and no large squares are subtracted."""
        if not other.finite or not self.finite:
            if other.finite:
                self.finite, self.mean, self.std = other.finite, other.mean, other.std
            return
        total = self.finite + other.finite
        ours, theirs = math.sqrt(self.finite / total), math.sqrt(other.finite / total)
        apart = ours * theirs * self.mean - ours * theirs * other.mean
        self.std = math.hypot(ours * self.std, theirs * other.std, apart)
        self.mean += (other.mean / 2 - self.mean / 2) * (2 * other.finite / total)
        self.finite = total


def crc32(raw: np.ndarray) -> int:
    """CRC-32 (zlib's polynomial) of uint8 (n,)."""
    return zlib_ng.crc32(raw)


def measure(ref: TensorRef, raw: np.ndarray, first: int, crc: int, workspace: Workspace) -> Part:
    """Measure consecutive elements of a tensor.

    raw: uint8 (n * itemsize,), their stored bytes in reading order; crc: CRC-32 of these. first: the index of the first
    element in reading order. Where rows are looked at, the elements are whole rows.
    """
    form = FORMATS.get(ref.dtype)
    total = Part(crc=crc, nbytes=raw.size)
    if form is not None:
        elements, columns = layout(ref)
        size = elements * ref.itemsize
        with np.errstate(all="ignore"):
            for start in range(0, raw.size, size):
                part = _block(raw[start : start + size], form, columns, workspace)
                if part.row_at >= 0:
                    part.row_at += (first + start // ref.itemsize) // ref.shape[1]
                total.add(part)
    return total


def finish(ref: TensorRef, part: Part) -> Stats:
    """The statistics of a tensor whose elements are all in `part`."""
    fingerprint = f"{part.crc:08x}"
    if ref.dtype not in FORMATS:
        return Stats(ref.count, fingerprint)
    some, rows = part.finite > 0, layout(ref).columns > 0
    return Stats(
        count=ref.count,
        fingerprint=fingerprint,
        measured=True,
        nan=part.nan * ref.repeat,
        posinf=part.posinf * ref.repeat,
        neginf=part.neginf * ref.repeat,
        zero=part.zero * ref.repeat,
        one=part.one * ref.repeat,
        subnormal=part.subnormal * ref.repeat,
        min=part.low if some else None,
        max=part.high if some else None,
        mean=part.mean if some else None,
        std=part.std if some else None,
        l2=math.sqrt(part.finite * ref.repeat) * math.hypot(part.mean, part.std) if some else None,
        row_l2_min=part.row_low if part.row_at >= 0 else None,
        row_l2_max=part.row_high if part.row_at >= 0 else None,
        row_l2_max_index=part.row_at if part.row_at >= 0 else None,
        zero_rows=part.zero_rows if rows else None,
    )


def stats(ref: TensorRef) -> Stats:
    """Read and measure one tensor in this thread. Raises RefusedError and OSError as reading does."""
    workspace, total, first = Workspace(), Part(), 0
    for raw in blocks(ref.runs, ref.itemsize, np.empty(layout(ref).elements * ref.itemsize, np.uint8)):
        total.add(measure(ref, raw, first, crc32(raw), workspace))
        first += raw.size // ref.itemsize
    return finish(ref, total)


def _block(raw: np.ndarray, form: Format, columns: int, workspace: Workspace) -> Part:
    """Measure one block: uint8 (n * itemsize,) of the stored type, whole rows where `columns` is not 0."""
    x = None if form.ordered else decode(raw, form, workspace.values)
    bits = (raw if x is None else x).view(form.bits.unsigned)
    extremes = _extremes(bits, form.bits)
    part = Part(finite=bits.size)
    if not extremes.finite:
        _measure_damaged(part, decode(raw, form, workspace.values), bits, form, columns, workspace)
        return part
    _count(part, bits, extremes, form, workspace)
    if form is BFLOAT16 and columns % 2 == 0 and bits.size % 2 == 0:
        x, planes = decode_halves(raw, workspace.values), 2
    else:
        x, planes = decode(raw, form, workspace.values) if x is None else x, 1
    _moments(part, x.reshape(planes, -1, (columns or x.size) // planes), workspace, rows=columns > 0)
    return part


def _measure_damaged(
    part: Part, x: np.ndarray, bits: np.ndarray, form: Format, columns: int, workspace: Workspace
) -> None:
    """Measure a block that holds NaN or infinities: its finite numbers, and its rows of nothing else."""
    finite = np.isfinite(x)
    good = x[finite]
    part.finite = good.size
    part.nan = int(np.count_nonzero(np.isnan(x)))
    part.posinf = int(np.count_nonzero(x == math.inf))
    part.neginf = int(np.count_nonzero(x == -math.inf))
    if good.size:
        bits = bits[finite]
        _count(part, bits, _extremes(bits, form.bits), form, workspace)
        _moments(part, good.reshape(1, 1, -1), workspace, rows=False)
    if columns:
        intact = np.flatnonzero(finite.reshape(-1, columns).all(axis=1))
        if intact.size:
            rows = Part(low=part.low, high=part.high)
            _moments(rows, x.reshape(1, -1, columns)[:, intact], workspace, rows=True)
            part.row_low, part.row_high, part.zero_rows = rows.row_low, rows.row_high, rows.zero_rows
            part.row_at = int(intact[rows.row_at])


class _Extremes(NamedTuple):
    """low, high: the bits of the lowest and the highest number. small: whether any is zero or subnormal."""

    low: int
    high: int
    finite: bool
    small: bool


def _extremes(bits: np.ndarray, form: Bits) -> _Extremes:
    """Four reductions of the bits (n,) tell which other questions need a test of every number.

    As unsigned integers the positive numbers come first, as signed ones the negative; magnitudes grow in both.
    """
    signed = bits.view(form.signed)
    least, most = int(np.minimum.reduce(bits)), int(np.maximum.reduce(bits))
    bottom, top = int(np.minimum.reduce(signed)), int(np.maximum.reduce(signed))
    return _Extremes(
        low=most if most >= form.sign else least,
        high=top if top >= 0 else least,
        finite=top < form.infinite and most < form.sign + form.infinite,
        small=least < form.normal or bottom + form.sign < form.normal,
    )


def _count(part: Part, bits: np.ndarray, extremes: _Extremes, form: Format, workspace: Workspace) -> None:
    """Extremes of finite numbers, and how many of them are zero, one and subnormal."""
    part.low, part.high = form.bits.value(extremes.low), form.bits.value(extremes.high)
    flags, number = workspace.flags[: bits.size], form.bits.unsigned.type
    if part.low <= 1.0 <= part.high:
        part.one = int(np.count_nonzero(np.equal(bits, number(form.bits.one), out=flags)))
    if extremes.small:
        # adding a number's bits to themselves drops the sign and keeps the order of magnitudes
        doubled = np.add(bits, bits, out=workspace.spare[: bits.nbytes].view(bits.dtype))
        small = int(np.count_nonzero(np.less(doubled, number(2 * form.bits.normal), out=flags)))
        part.zero = int(np.count_nonzero(np.equal(doubled, number(0), out=flags)))
        part.subnormal = small - part.zero


def _moments(part: Part, x: np.ndarray, workspace: Workspace, *, rows: bool) -> None:
    """Mean and standard deviation of finite x (planes, rows, n) between part.low and part.high, and its rows' norms.

    planes: 2 where the even and the odd numbers of all rows lie apart.
    """
    low, high, spare = part.low, part.high, workspace.spare[: x.nbytes].view(x.dtype).reshape(x.shape)
    number = x.dtype.type
    scale = _scale(max(-low, high), x.itemsize)
    y = x if scale == 1.0 else np.multiply(x, number(scale), out=spare)
    squares = _squares(y)
    if rows:
        _rows(part, x, np.sqrt(squares) / scale, scale)
    mean, square, base = _mean(y), float(np.add.reduce(squares)) / x.size, 0.0
    for _ in range(_SHIFTS):
        if mean * mean <= _SHARE * square:
            break
        # close together: x = base + y / scale with smaller y; the differences are exact
        centre = number(mean)
        y = np.subtract(y, centre, out=spare)
        base += float(centre) / scale
        further = _scale(max(base - low, high - base) * scale, x.itemsize)
        if further != 1.0:
            np.multiply(y, number(further), out=y)
            scale *= further
        mean, square = _mean(y), float(np.add.reduce(_squares(y))) / x.size
    part.mean, part.std = base + mean / scale, math.sqrt(max(square - mean * mean, 0.0)) / scale


def _scale(largest: float, itemsize: int) -> float:
    """The power of two that brings numbers near 1 whose squares would overflow or vanish; else 1."""
    low, high = _UNSCALED[itemsize]
    if low <= largest <= high or largest == 0.0:
        return 1.0
    most = _EXPONENTS[itemsize]
    return math.ldexp(1.0, max(-most, min(most, -math.frexp(largest)[1])))


def _mean(x: np.ndarray) -> float:
    """Of all numbers of x. A product with ones takes a third of the time of a sum."""
    x = x.reshape(-1)
    whole = x.size // (_BATCH * _CHUNK) * (_BATCH * _CHUNK)
    sums = np.matmul(x[:whole].reshape(-1, _BATCH, _CHUNK), _ONES[x.itemsize])
    return (float(np.add.reduce(sums, axis=None, dtype=np.float64)) + float(np.add.reduce(x[whole:]))) / x.size


def _squares(x: np.ndarray) -> np.ndarray:
    """float64 (rows,): the sums of the squares in each row of x (planes, rows, n)."""
    planes, rows, n = x.shape
    whole = n // _CHUNK * _CHUNK
    sums = np.zeros(rows, np.float64)
    if whole:
        np.add.reduce(_products(x[:, :, :whole].reshape(planes, rows, -1, _CHUNK)), axis=(0, 2), out=sums)
    if whole < n:
        sums += np.add.reduce(_products(x[:, :, whole:]), axis=0, dtype=np.float64)
    return sums


def _products(x: np.ndarray) -> np.ndarray:
    """The sums of squares along the last axis, in x's own precision."""
    products: np.ndarray
    if x.shape[-1] < _NARROW:
        products = np.einsum("...i,...i->...", x, x)
    else:
        products = np.matmul(x[..., None, :], x[..., None])[..., 0, 0]
    return products


def _rows(part: Part, x: np.ndarray, norms: np.ndarray, scale: float) -> None:
    """Extremes of the rows' norms (rows,).

    x: (planes, rows, n), whose squares were computed times scale squared.
    """
    certain = math.sqrt(x.size // x.shape[1] * float(np.finfo(x.dtype).tiny)) / scale
    if np.minimum.reduce(norms) <= certain:
        # squares of these rows' numbers may have vanished, and only a row of zeros counts as one
        filled = np.logical_or.reduce(x, axis=(0, 2))
        part.zero_rows = filled.size - int(np.count_nonzero(filled))
        faint = np.flatnonzero((norms <= certain) & filled)
        rows = x[:, faint].astype(np.float64)
        largest = np.maximum(np.maximum.reduce(rows, axis=(0, 2)), -np.minimum.reduce(rows, axis=(0, 2)))
        rows /= largest[:, None]
        norms[faint] = largest * np.sqrt((rows * rows).sum(axis=(0, 2)))
    part.row_at = int(norms.argmax())
    part.row_low, part.row_high = float(np.minimum.reduce(norms)), float(norms[part.row_at])
