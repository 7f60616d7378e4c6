"""Numbers as logs spell them: every kind of NaN, infinity and absence, and how fine a printed number is."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

MISSING = frozenset({"", "none", "null", "na", "n/a", "-", "--", "<na>"})
_NAN = frozenset({"1.#qnan", "-1.#ind", "1.#ind", "nan(ind)", "-nan(ind)", "nan%"})
_WRAPPED = re.compile(r"(?:tensor|(?:np|numpy|jnp|torch)\.\w+)\(([-+.\w]+)")
_CLOCK = re.compile(r"(?:(\d+) days?,? )?(\d+):(\d\d)(?::(\d\d)(?:\.\d+)?)?$")


def parse_number(text: str) -> float | None:
    """The float that `text` spells, None where it spells an absent value; ValueError where it is no number.

    "-0.0" stays a finite number and "1e999" is an infinity, as Python's float has it.
    """
    bare = text.strip()
    low = bare.lower()
    if low in MISSING:
        return None
    if low in _NAN:
        return math.nan
    if "_" in bare:  # float() would read 1_000, which no log means as a number
        raise ValueError(text)
    try:
        return float(bare)
    except ValueError:
        wrapped = _WRAPPED.match(bare)
        if wrapped is None:
            raise
        return parse_number(wrapped[1])


def scalar(value: object) -> float | None:
    """A JSON scalar as a float: None for null, ValueError for booleans, containers and strings that are no numbers."""
    if value is None:
        return None
    if isinstance(value, bool):
        raise ValueError(value)  # noqa: TRY004  one error for all that is no number
    if isinstance(value, int):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    if isinstance(value, float):
        return value
    if isinstance(value, str) and len(value) <= 64:
        return parse_number(value)
    raise ValueError(value)


def clock_seconds(text: str) -> float | None:
    """Seconds of "0:01:48" or "3 days, 17:51:32"; None for anything else."""
    match = _CLOCK.match(text.strip())
    if match is None:
        return None
    days, first, second, third = match.groups()
    if third is None:
        return float(int(first) * 60 + int(second))
    return float(int(days or 0) * 86400 + int(first) * 3600 + int(second) * 60 + int(third))


def whole(value: float | None) -> int | None:
    """The value as an int where it is a whole number that fits 64 bits, else None."""
    if value is None or not math.isfinite(value) or value != math.floor(value) or abs(value) >= 2**63:
        return None
    return int(value)


def text_resolution(texts: Iterable[str]) -> float:
    """Distance of two neighbours in fixed notation (0.0001 for "0.0310"); 0 where the numbers look exact.

    Exponents, integers and more than seven decimals are taken as exact: nothing was rounded away that matters. So is
    "0.0", which is how programs write the number itself; one that rounds prints more of a small number.
    """
    decimals = 0
    for text in texts:
        low = text.lower()
        if low in ("0.0", "-0.0"):
            continue
        if "e" in low and not low.startswith(("nan", "inf", "-inf")):
            return 0.0
        point = text.find(".")
        if point >= 0:
            decimals = max(decimals, len(text) - point - 1)
            if decimals > 7:
                return 0.0
    return 10.0**-decimals if decimals else 0.0


def rounded_to(values: Iterable[float | None], decimals: int, at_least: int = 8) -> bool:
    """Whether all finite values are multiples of 10**-decimals, with at least `at_least` of them, some of them fine."""
    count, fine = 0, 0
    for value in values:
        if value is None or not math.isfinite(value):
            continue
        text = repr(value)
        if "e" in text or len(text) - text.find(".") - 1 > decimals:
            return False
        count += 1
        fine += len(text) - text.find(".") - 1 == decimals
    return count >= at_least and fine > 0
