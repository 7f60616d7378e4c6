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
_HIGHEST = np.uint64(0x8080808080808080)
_DAYS_BEFORE = np.array([0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334])


class Number:
    """How one number of a line is computed from its digits.

    mantissa, exponent: columns of the line; whole numbers of either come from one product for all numbers of a line.
    """

    def __init__(self, raw: bytes, span: Span, factor: float | None = None) -> None:
        start, stop = span
        self.span = span
        self.factor = factor
        token = raw[start:stop]
        parts = _NUMBER.match(token)
        digits = [start + i for i, byte in enumerate(token) if _ZERO <= byte <= _NINE]
        self.constant = None if parts and digits else float(token)  # "nan" and "inf" have no digits
        self.mantissa: list[int] = []
        self.exponent: list[int] = []
        self.exact = True
        if parts is None or not digits:
            return
        exponent = len(parts[5] or b"")
        self.mantissa = digits[: len(digits) - exponent]
        self.exponent = digits[len(digits) - exponent :]
        self.exact = len(self.mantissa) <= _EXACT_DIGITS and exponent <= _EXACT_DIGITS
        self.decimals = len(parts[3] or b"")
        self.sign = -1.0 if parts[1] == b"-" else 1.0
        self.exponent_sign = -1.0 if parts[4] == b"-" else 1.0
        self.commas = b"," in token
        # what turns the differences from the template into the characters of the number
        self._text = np.frombuffer(re.sub(rb"\d", b"0", token), dtype=np.uint8)

    def values(self, lines: np.ndarray, mantissa: np.ndarray, exponent: np.ndarray) -> np.ndarray:
        """float64 (m,).

        lines: uint8 (m, width), with their digits as numbers; mantissa, exponent: float64 (m,), whole, of this number.
        """
        if self.constant is not None:
            found = np.full(len(lines), self.constant)
        elif not self.exact:
            found = self._slow(lines)
        elif not self.exponent:
            found = self.sign * (mantissa / _POWERS[min(self.decimals, _EXACT_POWER)])
        else:
            found = self._scaled(lines, mantissa, self.exponent_sign * exponent - self.decimals)
        return found if self.factor is None else found * self.factor

    def _scaled(self, lines: np.ndarray, mantissa: np.ndarray, power: np.ndarray) -> np.ndarray:
        size = np.abs(power)
        exact = size <= _EXACT_POWER
        by = _POWERS[np.minimum(size, _EXACT_POWER).astype(np.intp)]
        found: np.ndarray = self.sign * np.where(power < 0, mantissa / by, mantissa * by)
        if not exact.all():
            found[~exact] = self._slow(lines[~exact])
        return found

    def _slow(self, lines: np.ndarray) -> np.ndarray:
        start, stop = self.span
        cells = lines[:, start:stop] + self._text  # the digits as characters again, between the fixed ones
        texts = np.ascontiguousarray(cells).view(f"S{stop - start}").ravel()
        if self.commas:
            texts = np.char.replace(texts, b",", b"")
        return texts.astype(np.float64)


class Moment:
    """How the date and time of a line is computed: "2024-05-02 10:11:12.345", read as UTC."""

    PARTS = ((0, 4), (5, 2), (8, 2), (11, 2), (14, 2), (17, 2))

    def __init__(self, span: Span) -> None:
        start, stop = span
        self.decimals = min(max(stop - start - 20, 0), 6)  # as many as datetime keeps
        parts = [*self.PARTS, *([(20, self.decimals)] if self.decimals else [])]
        self.fields = [list(range(start + at, start + at + size)) for at, size in parts]

    def values(self, fields: Sequence[np.ndarray]) -> np.ndarray:
        """float64 (m,): Unix seconds, NaN where there is no such date. fields: six or seven whole float64 (m,)."""
        year, month, day, hour, minute, second = (field.astype(np.int64) for field in fields[:6])
        sound = (month >= 1) & (month <= 12) & (day >= 1) & (day <= 31) & (hour < 24) & (minute < 60) & (second < 60)
        leap = (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))
        past = year - 1
        days = past * 365 + past // 4 - past // 100 + past // 400 + _DAYS_BEFORE[np.where(sound, month, 1) - 1]
        days += day - 1 + (leap & (month > 2)) - 719162  # days from 0001-01-01 to 1970-01-01
        whole = (days * 86400 + hour * 3600 + minute * 60 + second).astype(np.float64)
        micro = fields[6] * _POWERS[6 - self.decimals] if self.decimals else 0.0
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
    values: dict[str, np.ndarray]
    task: bool = False


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
        self.shift = shift
        self.hits = 0
        width = -(-self.length // 8) * 8
        zero = np.zeros(width, dtype=np.uint8)
        zero[: self.length] = np.frombuffer(raw, dtype=np.uint8)
        # adding this to what differs from the template sets the highest bit of a byte that may not differ so much
        add = np.full(width, 0x7F, dtype=np.uint8)
        varying = [span for name, span in said.spans.items() if name not in ("<total>", "<epochs>")]
        for start, stop in [*varying, *free]:
            part = zero[start:stop]
            digits = (part >= _ZERO) & (part <= _NINE)
            add[start:stop][digits] = 0x76
            part[digits] = _ZERO
        within = np.where(np.arange(width) < self.length, np.uint8(0x80), np.uint8(0))
        self._zero = zero.view(np.uint64)
        self._add = add.view(np.uint64)
        self._last = within.view(np.uint64)[-1]
        self._numbers = {
            name: Number(raw, span, factors.get(name))
            for name, span in said.spans.items()
            if name in ("<step>", "<epoch>") or name in said.values
        }
        self._moment = None if moment is None else Moment(moment)
        self._plan()

    def _plan(self) -> None:
        """Which digits make which whole number: those of all fields are taken out of the lines at once."""
        self._fields: list[list[int]] = []
        self._at: dict[str, int] = {}
        for name, number in self._numbers.items():
            self._at[name] = len(self._fields)
            self._fields += [number.mantissa, number.exponent] if number.exact else [[], []]
        self._moment_at = len(self._fields)
        if self._moment is not None:
            self._fields += self._moment.fields
        self._columns = np.array([column for one in self._fields for column in one], dtype=np.intp)

    def _whole(self, digits: np.ndarray) -> list[np.ndarray]:
        """float64 (m,) for every field: the whole number that its digits spell, exact for at most 15 of them."""
        rows = np.ascontiguousarray(digits[:, self._columns].T)
        found: list[np.ndarray] = []
        at = 0
        for field in self._fields:
            value = np.zeros(len(digits))
            for row in rows[at : at + len(field)]:
                value *= 10.0
                value += row
            at += len(field)
            found.append(value)
        return found

    def match(self, windows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(bool (m,): which lines are of this shape; uint8 (m, width): all lines with their digits as numbers).

        windows: uint8 (m, width), the lines and what follows them. Eight bytes are compared at once: what differs from
        the fixed text must be 0, and in the place of a digit at most 9; the highest bit of every byte shows it.
        """
        digits = windows.view(np.uint64) ^ self._zero
        wrong = digits + self._add
        wrong |= digits
        wrong[:, -1] &= self._last
        return (np.bitwise_or.reduce(wrong, axis=1) & _HIGHEST) == 0, digits.view(np.uint8)

    @property
    def width(self) -> int:
        """Bytes of a window that match() wants."""
        return len(self._zero) * 8

    def block(self, digits: np.ndarray, lines: np.ndarray) -> Block:
        """What lines of this shape say. digits: uint8 (m, width) of match(); lines: their numbers."""
        whole = self._whole(digits)
        found = {
            name: number.values(digits, whole[self._at[name]], whole[self._at[name] + 1])
            for name, number in self._numbers.items()
        }
        times = None
        if self._moment is not None:
            times = self._moment.values(whole[self._moment_at :]) + self.shift
        return Block(
            said=self.said,
            rank=self.rank,
            lines=lines,
            steps=found.pop("<step>", None),
            epochs=found.pop("<epoch>", None),
            times=times,
            values=found,
            task=self.task,
        )


class Templates:
    """The templates of one log by their length; those that were made last are tried first."""

    MOST = 400

    def __init__(self) -> None:
        self._of_length: dict[int, list[Template]] = {}
        self._all: list[Template] = []
        self.made = 0

    def add(self, template: Template) -> None:
        """Remember a template; when there are too many, those that matched least are forgotten."""
        if len(self._all) >= self.MOST:
            best = sorted(self._all, key=lambda one: -one.hits)[: self.MOST // 2]
            kept = [one for one in self._all if one in best]
            lengths: dict[int, list[Template]] = {}
            for one in kept:
                one.hits = 0
                lengths.setdefault(one.length, []).insert(0, one)
            self._all, self._of_length = kept, lengths
        self._all.append(template)
        self._of_length.setdefault(template.length, []).insert(0, template)
        self.made += 1

    def since(self, made: int) -> Sequence[Template]:
        """The templates that were added when there had been `made`, as far as they are still known."""
        new = self.made - made
        return self._all[-new:] if new else []

    def lengths(self) -> Sequence[int]:
        """The lengths of lines for which there is a template."""
        return tuple(self._of_length)

    def of_length(self, length: int) -> Sequence[Template]:
        """The templates for lines of this length."""
        return tuple(self._of_length.get(length, ()))
