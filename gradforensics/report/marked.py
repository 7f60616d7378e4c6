"""What of a quoted line is marked: the value that a hit names, or the facts that its check read there."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from gradforensics.diagnosis.vocabulary import Fact
from gradforensics.languages import Text

Span = tuple[int, int]
_NUMBER = re.compile(
    r"(?<![\w.])[-+]?(?:nan|inf(?:inity)?|(?:\d+(?:,\d{3})+|\d+)(?:\.\d*)?(?:e[-+]?\d+)?|\.\d+(?:e[-+]?\d+)?)(?![\w.]*\w)",
    re.IGNORECASE,
)
_BEFORE = 24  # characters before a number in which the name of its series may stand
_FACTS = 3  # facts that are marked in one line


def spans(
    text: str, value: float | None, names: tuple[str, ...] = (), facts: Mapping[str, Fact] | None = None
) -> list[Span]:
    """The parts (start, end) of a line to mark, in order: where `value` stands, else where facts do.

    names: what the series is called; of several equal numbers the one behind its name is meant, and a number that
    says less than two digits of the value counts nowhere else.
    """
    if value is not None:
        best = max(
            ((_merit(text, m, value, names), -m.start(), m.span()) for m in _NUMBER.finditer(text)), default=((0, 0),)
        )
        return [best[2]] if len(best) == 3 and best[0] > (0, 0) else []
    return _of_facts(text, facts or {})


def window(text: str, marked: list[Span], limit: int) -> str:
    """At most about `limit` characters of a line, those around what is marked; what was cut off shows as "…"."""
    if len(text) <= limit:
        return text
    middle = marked[0][0] if marked else 0
    start = min(max(0, middle - limit // 2), len(text) - limit)
    return ("…" if start else "") + text[start : start + limit] + ("…" if start + limit < len(text) else "")


def _merit(text: str, found: re.Match[str], value: float, names: tuple[str, ...]) -> tuple[int, int]:
    """How well a number of the line fits: whether the series' name stands before it, and its digits; (0, 0) if not."""
    told = found[0].replace(",", "")
    number = float(told)
    if math.isnan(value) or math.isinf(value):
        same = (math.isnan(number) and math.isnan(value)) or number == value
        digits = 2 if same else 0
    else:
        mantissa, _, exponent = told.lower().partition("e")
        last = 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))
        same = math.isfinite(number) and (
            abs(number - value) <= 0.5000001 * last or math.isclose(number, value, rel_tol=1e-6)
        )
        digits = len(mantissa.lstrip("+-0.").replace(".", "")) or 1
    if not same:
        return (0, 0)
    before = text[max(0, found.start() - _BEFORE) : found.start()].lower()
    named = any(name and name.lower() in before for name in names)
    return (int(named), digits) if named or digits >= 2 else (0, 0)


def _of_facts(text: str, facts: Mapping[str, Fact]) -> list[Span]:
    found: list[Span] = []
    for fact in facts.values():
        told = "" if fact is None or isinstance(fact, (bool, Text)) else str(fact)
        if len(told) < 2 or "\n" in told or len(told) > len(text) // 2:
            continue
        match = re.search(rf"(?<![\w.]){re.escape(told)}(?![\w])", text)
        if match and all(match.end() <= a or match.start() >= b for a, b in found):
            found.append(match.span())
        if len(found) == _FACTS:
            break
    return sorted(found)
