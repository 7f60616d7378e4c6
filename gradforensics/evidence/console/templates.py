"""Lines that differ in their digits only, read a block at a time: the millionth line of a log costs next to nothing.

A template is made of one line that was read the slow way. It holds where the digits of the numbers stand; everything
else of the line is fixed. All lines of a block that have its length are compared with it at once, and their numbers are
computed column by column, exactly as float() would.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gradforensics.evidence.console.lines import Line

Span = tuple[int, int]

LONGEST = 2000  # bytes of a line that is worth a template
_EXACT_DIGITS = 15  # so many digits are a float64 without rounding
_EXACT_POWER = 22  # so is this power of ten: one division or product is then rounded once, as the true value is
_POWERS = 10.0 ** np.arange(_EXACT_POWER + 1)
_NUMBER = re.compile(rb"([-+]?)([\d,]*)(?:\.(\d*))?(?:[eE]([-+]?)(\d+))?$")
_ZERO, _NINE = 48, 57
_DAYS_BEFORE = np.array([0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334])


class Number:
    """How one number of a line is computed from the columns of its digits."""

    def __init__(self, raw: bytes, span: Span, factor: float | None) -> None:
        start, stop = span
        self.span = span
        self.factor = factor
        token = raw[start:stop]
        parts = _NUMBER.match(token)
        digits = [start + i for i, byte in enumerate(token) if _ZERO <= byte <= _NINE]
        self.constant = None if parts and digits else float(token)  # "nan" and "inf" have no digits
        if parts is None or not digits:
            return
        exponent = len(parts[5] or b"")
        self.mantissa = np.array(digits[: len(digits) - exponent], dtype=np.int64)
        self.exponent = np.array(digits[len(digits) - exponent :], dtype=np.int64)
        self.decimals = len(parts[3] or b"")
        self.sign = -1.0 if parts[1] == b"-" else 1.0
        self.exponent_sign = -1 if parts[4] == b"-" else 1
        self.commas = b"," in token
        # what turns the differences from the template into the characters of the number
        self._text = np.frombuffer(re.sub(rb"\d", b"0", token), dtype=np.uint8)

    def values(self, lines: np.ndarray) -> np.ndarray:
        """float64 (m,) from uint8 (m, width), the lines with their digits as numbers."""
        if self.constant is not None:
            found = np.full(len(lines), self.constant)
        elif len(self.mantissa) > _EXACT_DIGITS:
            found = self._slow(lines)
        else:
            found = self._fast(lines)
        return found if self.factor is None else found * self.factor

    def _fast(self, lines: np.ndarray) -> np.ndarray:
        whole = _digits(lines, self.mantissa)
        if not len(self.exponent):
            return np.asarray(self.sign * (whole / _POWERS[self.decimals]))
        power = self.exponent_sign * _digits(lines, self.exponent).astype(np.int64) - self.decimals
        exact = np.abs(power) <= _EXACT_POWER
        by = _POWERS[np.minimum(np.abs(power), _EXACT_POWER)]
        found = self.sign * np.where(power < 0, whole / by, whole * by)
        if not exact.all():
            found[~exact] = self._slow(lines[~exact])
        return np.asarray(found)

    def _slow(self, lines: np.ndarray) -> np.ndarray:
        start, stop = self.span
        cells = lines[:, start:stop] + self._text  # the digits as characters again, between the fixed ones
        texts = np.ascontiguousarray(cells).view(f"S{stop - start}").ravel()
        if self.commas:
            texts = np.char.replace(texts, b",", b"")
        return texts.astype(np.float64)


def _digits(lines: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """float64 (m,): the whole number that the digits in these columns spell, at most 15 of them."""
    weights = _POWERS[: len(columns)][::-1]
    return np.asarray(lines[:, columns].astype(np.float64) @ weights)


def moments(lines: np.ndarray, span: Span) -> np.ndarray:
    """float64 (m,): Unix seconds of "2024-05-02 10:11:12.345" in these columns, as UTC; NaN where it is no date."""
    start, stop = span
    year, month, day, hour, minute, second = (
        _digits(lines, np.arange(start + at, start + at + size)).astype(np.int64)
        for at, size in ((0, 4), (5, 2), (8, 2), (11, 2), (14, 2), (17, 2))
    )
    sound = (month >= 1) & (month <= 12) & (day >= 1) & (day <= 31) & (hour < 24) & (minute < 60) & (second < 60)
    leap = (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))
    past = year - 1
    days = past * 365 + past // 4 - past // 100 + past // 400 + _DAYS_BEFORE[np.where(sound, month, 1) - 1]
    days += day - 1 + (leap & (month > 2)) - 719162  # days from 0001-01-01 to 1970-01-01
    decimals = min(max(stop - start - 20, 0), 6)  # as many as datetime keeps
    micro = _digits(lines, np.arange(start + 20, start + 20 + decimals)) * _POWERS[6 - decimals]
    whole = (days * 86400 + hour * 3600 + minute * 60 + second).astype(np.float64)
    return np.where(sound, (whole * 1e6 + micro) / 1e6, np.nan)


@dataclass
class Block:
    """Many lines of one template.

    said: what a line of it says, for all that they have in common; lines: their numbers; steps, epochs,
    times: float64 (m,), None where the lines have none; values: float64 (m,) by name; task: the rank is a bare number
    at the front.
    """

    said: Line
    rank: int | None
    lines: np.ndarray
    steps: np.ndarray | None
    epochs: np.ndarray | None
    times: np.ndarray | None
    values: Mapping[str, np.ndarray]
    task: bool = False


class Space:
    """Memory for large intermediate arrays that is used again and again: to get it anew costs more than the work."""

    def __init__(self) -> None:
        self._buffers: dict[str, np.ndarray] = {}

    def words(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """uint64 of this shape, with any content; valid until the name is asked for again."""
        size = shape[0] * shape[1]
        buffer = self._buffers.get(name)
        if buffer is None or len(buffer) < size:
            buffer = self._buffers[name] = np.empty(max(size, 1 << 17), dtype=np.uint64)
        return buffer[:size].reshape(shape)


class Template:
    """One shape of lines.

    raw: a line of it; said: what that line says, with the spans of its numbers in `raw`; free: spans within which
    digits may differ besides those of the values; moment: where a date and time stands; shift: seconds to add to it
    for its zone.
    """

    def __init__(
        self,
        raw: bytes,
        said: Line,
        *,
        rank: int | None,
        task: bool = False,
        free: Sequence[Span],
        moment: Span | None,
        shift: float = 0.0,
        factors: Mapping[str, float],
    ) -> None:
        self.length = len(raw)
        self.said = said
        self.rank = rank
        self.task = task
        self.moment = moment
        self.shift = shift
        self.hits = 0
        width = -(-self.length // 8) * 8
        zero = np.zeros(width, dtype=np.uint8)
        zero[: self.length] = np.frombuffer(raw, dtype=np.uint8)
        fixed = np.zeros(width, dtype=np.uint8)
        fixed[: self.length] = 255
        varying = [span for name, span in said.spans.items() if name not in ("<total>", "<epochs>")]
        for start, stop in [*varying, *free]:
            part = zero[start:stop]
            digits = (part >= _ZERO) & (part <= _NINE)
            fixed[start:stop][digits] = 0
            part[digits] = _ZERO
        spelt = (fixed == 0) & (np.arange(width) < self.length)
        self._zero = zero.view(np.uint64)
        self._fixed = fixed.view(np.uint64)
        self._add = np.where(spelt, np.uint8(0x76), np.uint8(0)).view(np.uint64)
        self._high = np.where(spelt, np.uint8(0x80), np.uint8(0)).view(np.uint64)
        self._numbers = {
            name: Number(raw, span, factors.get(name))
            for name, span in said.spans.items()
            if name in ("<step>", "<epoch>") or name in said.values
        }

    def match(self, windows: np.ndarray, space: Space) -> tuple[np.ndarray, np.ndarray]:
        """(bool (m,): which lines are of this shape; uint8 (m, width): all lines with their digits as numbers).

        windows: uint8 (m, width), the lines and what follows them; the second result lies in `space` and lasts until
        the next call. Eight bytes are compared at once: what differs from the fixed text must be 0, and in the place of
        a digit at most 9, which adding 0x76 shows in the highest bit.
        """
        words = windows.view(np.uint64)
        digits = np.bitwise_xor(words, self._zero, out=space.words("digits", words.shape))
        wrong = np.add(digits, self._add, out=space.words("wrong", words.shape))
        wrong |= digits
        wrong &= self._high
        wrong |= np.bitwise_and(digits, self._fixed, out=space.words("fixed", words.shape))
        return ~wrong.any(axis=1), digits.view(np.uint8)

    @property
    def width(self) -> int:
        """Bytes of a window that match() wants."""
        return len(self._zero) * 8

    def block(self, digits: np.ndarray, lines: np.ndarray) -> Block:
        """What lines of this shape say. digits: uint8 (m, width) of match(); lines: their numbers."""
        found = {name: number.values(digits) for name, number in self._numbers.items()}
        return Block(
            said=self.said,
            rank=self.rank,
            lines=lines,
            steps=found.pop("<step>", None),
            epochs=found.pop("<epoch>", None),
            times=None if self.moment is None else moments(digits, self.moment) + self.shift,
            values=found,
            task=self.task,
        )


class Templates:
    """The templates of one log by their length; those that were met last are tried first."""

    MOST = 400

    def __init__(self) -> None:
        self._of_length: dict[int, list[Template]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, template: Template) -> None:
        """Remember a template; when there are too many, those that matched least are forgotten."""
        if self._count >= self.MOST:
            every = sorted((t for ts in self._of_length.values() for t in ts), key=lambda t: -t.hits)
            self._of_length = {}
            self._count = 0
            for kept in every[: self.MOST // 2]:
                kept.hits = 0
                self._put(kept)
        self._put(template)

    def _put(self, template: Template) -> None:
        self._of_length.setdefault(template.length, []).insert(0, template)
        self._count += 1

    def lengths(self) -> Sequence[int]:
        """The lengths of lines for which there is a template."""
        return tuple(self._of_length)

    def of_length(self, length: int) -> Sequence[Template]:
        """The templates for lines of this length."""
        return self._of_length.get(length, ())
