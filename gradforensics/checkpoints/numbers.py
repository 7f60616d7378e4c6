"""The number formats of tensors: stored bytes -> arrays of float32 or float64 that hold exactly the same values.

Of the 8-bit floats, e4m3fn and e5m2 follow Micikevicius et al., "FP8 Formats for Deep Learning" (2022), e4m3fnuz and
e5m2fnuz Noune et al., "8-bit Numerical Formats for Deep Neural Networks" (2022), e8m0fnu the OCP specification
"Microscaling Formats" (2023).
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np


class Bits(NamedTuple):
    """Numbers seen as integers of sign and magnitude; the magnitudes are ordered as the numbers' are (IEEE 754).

    unsigned, signed: numpy types of the integers. sign: the sign bit. infinite, normal, one: the magnitude of infinity
    (those of NaN are above), of the smallest normal number, and of 1. code, dropped: struct's letter for the type, less
    so many of its last bits.
    """

    unsigned: np.dtype[Any]
    signed: np.dtype[Any]
    sign: int
    infinite: int
    normal: int
    one: int
    code: str
    dropped: int = 0

    def value(self, bits: int) -> float:
        """The number that these bits stand for."""
        raw = (bits << self.dropped).to_bytes(struct.calcsize(self.code), "little")
        number: float = struct.unpack("<" + self.code, raw)[0]
        return number


@dataclass(frozen=True, slots=True, eq=False)
class Format:
    """How the bytes of one element type become numbers.

    stored: numpy type of one stored number. work: float32 or float64, which holds each of its values exactly (integers
    of 32 and 64 bits: float64, rounded beyond 2**53). bits: of the stored numbers where `ordered`, else of the decoded
    ones. parts: numbers per element, 2 for complex types. table: the value of each byte, for types of one byte that
    numpy does not know.
    """

    stored: np.dtype[Any]
    work: np.dtype[Any]
    bits: Bits
    ordered: bool = False
    parts: int = 1
    table: np.ndarray | None = None


_F2, _F4, _F8 = np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)


def _byte_floats(mantissa_bits: int, bias: int, *, infinity: bool = False, unsigned_zero: bool = False) -> np.ndarray:
    """float32 (256,): the value of each byte of a format with a sign; what mantissa and sign leave is the exponent.

    infinity: the highest exponent means infinity and NaN (e5m2), else only all bits set are NaN (e4m3fn).
    unsigned_zero: the byte 0x80 is the only NaN, and there is no infinity (the "fnuz" formats).
    """
    table = np.empty(256, np.float32)
    highest = (1 << (7 - mantissa_bits)) - 1
    for byte in range(256):
        exponent, mantissa = (byte & 0x7F) >> mantissa_bits, byte & ((1 << mantissa_bits) - 1)
        significand = mantissa + (1 << mantissa_bits if exponent else 0)
        value = math.ldexp(significand, max(exponent, 1) - bias - mantissa_bits)
        if unsigned_zero:
            value = math.nan if byte == 0x80 else value
        elif infinity and exponent == highest:
            value = math.nan if mantissa else math.inf
        elif byte & 0x7F == 0x7F:
            value = math.nan
        table[byte] = -value if byte & 0x80 else value
    return table


def _powers_of_two() -> np.ndarray:
    """float32 (256,): float8_e8m0fnu, which is an exponent alone: 2**-127 to 2**127, and NaN."""
    return np.array([*(math.ldexp(1.0, byte - 127) for byte in range(255)), math.nan], np.float32)


def _bits(number: np.dtype[Any], smallest_normal: float, dropped: int = 0) -> Bits:
    """The constants of a numpy float type without its last `dropped` bits (bfloat16 is float32 without 16)."""
    size = number.itemsize - dropped // 8
    known = np.array([math.inf, smallest_normal, 1.0], number).view(f"u{number.itemsize}")
    infinite, normal, one = (int(value) >> dropped for value in known)
    unsigned, signed = np.dtype(f"u{size}"), np.dtype(f"i{size}")
    return Bits(unsigned, signed, 1 << (8 * size - 1), infinite, normal, one, number.char, dropped)


def _float(number: np.dtype[Any], parts: int = 1) -> Format:
    work = _F8 if number == _F8 else _F4
    return Format(number, work, _bits(number, float(np.finfo(number).smallest_normal)), ordered=True, parts=parts)


def _byte_float(table: np.ndarray, smallest_normal: float) -> Format:
    return Format(np.dtype(np.uint8), _F4, _bits(_F4, smallest_normal), table=table)


def _integer(name: str) -> Format:
    """Integers have no subnormal numbers: the smallest "normal" magnitude is 1."""
    stored = np.dtype(np.uint8 if name == "bool" else name)
    work = _F4 if stored.itemsize <= 2 else _F8
    return Format(stored, work, _bits(work, 1.0))


BFLOAT16 = Format(np.dtype(np.uint16), _F4, _bits(_F4, 2.0**-126, 16), ordered=True)
_INTEGERS = ("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool")
FORMATS: dict[str, Format] = {
    "float64": _float(_F8),
    "float32": _float(_F4),
    "float16": _float(_F2),
    "bfloat16": BFLOAT16,
    "float8_e4m3fn": _byte_float(_byte_floats(3, 7), 2.0**-6),
    "float8_e5m2": _byte_float(_byte_floats(2, 15, infinity=True), 2.0**-14),
    "float8_e4m3fnuz": _byte_float(_byte_floats(3, 8, unsigned_zero=True), 2.0**-7),
    "float8_e5m2fnuz": _byte_float(_byte_floats(2, 16, unsigned_zero=True), 2.0**-15),
    "float8_e8m0fnu": _byte_float(_powers_of_two(), 2.0**-127),
    "complex128": _float(_F8, 2),
    "complex64": _float(_F4, 2),
    "complex32": _float(_F2, 2),
    **{name: _integer(name) for name in _INTEGERS},
}
"""The types whose values are known; quantised and packed ones are absent: their scales lie elsewhere."""


def decode(raw: np.ndarray, form: Format, out: np.ndarray) -> np.ndarray:
    """The numbers in `raw` (uint8, (n * itemsize,)) as form.work (n,).

    Of float32 and float64 this is a view of `raw`; all others are written to `out` (uint8, at least n of form.work).
    """
    stored = raw.view(form.stored)
    if form.stored == form.work:
        return stored
    values = out[: stored.size * form.work.itemsize].view(form.work)
    if form.table is not None:
        # "clip" only because it is faster than "raise": a byte is always an index
        np.take(form.table, stored, out=values, mode="clip")
    elif form.stored == _F2:
        _decode_half(stored, values)
    elif form is BFLOAT16:
        wide = values.view(np.uint32)
        np.copyto(wide, stored)
        np.left_shift(wide, np.uint32(16), out=wide)  # bfloat16 is the upper half of float32
    else:
        np.copyto(values, stored, casting="unsafe")
    return values


def decode_halves(raw: np.ndarray, out: np.ndarray) -> np.ndarray:
    """An even number of bfloat16 (uint8, (2 n,)) as float32 (n,) in `out`: the even ones first, then the odd ones.

    In half of decode's time, because no number moves within its 32 bits but by shifting them.
    """
    pairs = raw.view(np.uint32)
    wide = out[: 2 * raw.size].view(np.uint32)
    np.left_shift(pairs, np.uint32(16), out=wide[: pairs.size])
    np.bitwise_and(pairs, np.uint32(0xFFFF0000), out=wide[pairs.size :])
    return wide.view(np.float32)


def _decode_half(stored: np.ndarray, values: np.ndarray) -> None:
    """float16 -> float32, in a third of astype's time: move the bits, then multiply to mend the exponent's bias.

    Exact, subnormal numbers included. The highest exponent means infinity and NaN; where it occurs, astype does it.
    """
    bits = stored.view(np.int16)
    negative = stored.view(np.uint16)
    if np.maximum.reduce(bits, initial=0) >= 0x7C00 or np.maximum.reduce(negative, initial=0) >= 0xFC00:
        np.copyto(values, stored)
        return
    wide = values.view(np.int32)
    np.copyto(wide, bits)
    np.left_shift(wide, np.int32(13), out=wide)
    np.bitwise_and(wide, np.int32(~0x70000000), out=wide)  # the copies of the sign that the widening made
    np.multiply(values, np.float32(2.0**112), out=values)  # 127 - 15
