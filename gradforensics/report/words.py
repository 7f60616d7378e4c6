"""The words of a report in both languages, and how numbers, places and onsets are written. Nothing here judges."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gradforensics.languages import Language
from gradforensics.report.labels import LABELS

if TYPE_CHECKING:
    from gradforensics.report.model import RunReport, VerdictRow

_NAMED = 4  # rules that a line of advice names
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2028\u2029\u2066-\u2069\ud800-\udfff\ufeff\ufffe\uffff]"
)


def printable(text: str) -> str:
    """The text with control, bidirectional, surrogate and non-characters spelled out: log text is hostile input."""
    return _UNPRINTABLE.sub(lambda m: f"\\x{ord(m[0]):02x}" if ord(m[0]) < 256 else f"\\u{ord(m[0]):04x}", text)


def shorten(text: str, limit: int) -> str:
    """At most `limit` characters, the end marked when some were cut."""
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"


def columns(text: str) -> int:
    """Width of a text in letters: CJK characters take two."""
    return sum(2 if ord(c) >= 0x2E80 else 1 for c in text)


def number(value: Any) -> str:
    """A number as tables show it: six significant digits, NaN and inf spelled out, nothing for None."""
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, int):
        return str(value)
    if math.isnan(value):
        return "NaN"
    return f"{value:.6g}"


def compact(value: float | None, digits: int = 3) -> str:
    """A number with few significant digits, NaN spelled out, nothing for None."""
    if value is None:
        return ""
    return "NaN" if math.isnan(value) else f"{value:.{digits}g}"


def share(part: int, whole: int) -> str:
    """A share in percent; 0% and 100% are said only where they are exact."""
    if not part or not whole:
        return "0%"
    if part == whole:
        return "100%"
    return "<0.1%" if part < 0.001 * whole else (">99.9%" if part > 0.999 * whole else f"{part / whole:.1%}")


def magnitude(value: int) -> str:
    """A count with the prefix of its size and a space: "4.2 G", to be followed by its unit."""
    for factor, prefix in ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k")):
        if value >= factor:
            return f"{value / factor:.3g} {prefix}"
    return f"{value} "


def counted(n: int, what: str) -> str:
    """An English count: "1 tensor", "1,200 tensors"."""
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers with their runs put together: "3, 5–8"."""
    parts: list[list[int]] = []
    for one in numbers:
        if parts and one == parts[-1][-1] + 1:
            parts[-1][1:] = [one]
        else:
            parts.append([one])
    return ", ".join("–".join(map(str, part)) for part in parts)


def place(source: str | None, line: int | None) -> str:
    """`source:line`, or what of it is known."""
    if source is None:
        return ""
    return f"{source}:{line}" if line else source


class Words:
    """The label table in one language: `words("onset")`, `words("steps", first=5, last=300)`."""

    def __init__(self, language: Language) -> None:
        self.language = language
        self._index = 1 if language == "zh" else 0

    def __call__(self, key: str, **facts: Any) -> str:
        """The label `key`, its placeholders filled in."""
        text = LABELS[key][self._index]
        return text.format(**facts) if facts else text

    def count(self, key: str, n: int) -> str:
        """`{n} rules` with the singular where English has one."""
        return self(f"{key}_one") if n == 1 else self(key, n=n)

    def onset(self, verdict: VerdictRow) -> str:
        """The onset interval of a verdict in words."""
        if verdict.onset is None:
            return self("onset_none")
        if verdict.onset_after is None:
            return self("onset_by", onset=verdict.onset)
        if verdict.onset - verdict.onset_after <= 1:
            return self("onset_at", onset=verdict.onset)
        return self("onset_between", after=verdict.onset_after, onset=verdict.onset)

    def headline(self, run: RunReport) -> str:
        """The verdict on a run in one sentence, with its strength in words."""
        if run.primary is not None:
            strength = self(run.primary.strength or "suspect")
            title = self.sentence(run.primary.title.in_(self.language))
            return self("headline", Strength=strength[:1].upper() + strength[1:], title=title)
        clear, blind = len(run.having("clear")), len(run.having("not_judged"))
        if not clear and not run.findings:
            return self("nothing_judged", rules=self.count("rules", len(run.verdicts)))
        suspicions = run.suspicions
        if suspicions:
            title = self.sentence(suspicions[0].title.in_(self.language))
            key = "suspicion" if len(suspicions) > 1 else "suspicion_one"
            return self(key, n=len(suspicions), title=title)
        if run.broke_off:
            return self("unexplained", ended=self(f"but_{run.ending.kind}"))
        if run.weaker:
            return self("noted", title=self.sentence(run.weaker[0].title.in_(self.language)))
        return self("healthy", clear=self.count("rules", clear), not_judged=blind)

    def clear_means(self, run: RunReport) -> str:
        """What "clear" means, and how many rules were judged where the headline does not say it."""
        if not run.having("clear") and not run.findings:
            return self("acquits_nobody")
        told = [self("clear_means"), self("still_open")]
        if not run.calm or run.findings:
            clear, blind = self.count("rules", len(run.having("clear"))), len(run.having("not_judged"))
            told.insert(0, self("judged", clear=clear, blind=blind))
        if run.ending.kind == "truncated" and not run.suspicions:
            told.insert(0, self("why_stopped"))
        if run.ignored:
            told.insert(0, self.sentence(self.count("ignored_n", len(run.ignored))))
        untested = sum(not v.testable for v in run.having("not_judged"))
        if untested:
            told.append(self.sentence(self.count("untested", untested)))
        return self.space.join(told)

    @property
    def space(self) -> str:
        """What stands between two sentences."""
        return "" if self.language == "zh" else " "

    def calm(self, run: RunReport) -> str:
        """The verdict on a run without an alarm, for a cell of a table."""
        clear, blind = len(run.having("clear")), len(run.having("not_judged"))
        if not clear and not run.findings:
            return self("no_verdict")
        told = self("no_alarm_of", clear=clear, blind=blind)
        below = ", ".join(v.rule for v in run.findings)
        return f"{told}; {below} {self('below_alarm')}" if below else told

    def ended(self, run: RunReport) -> str:
        """How a run ended, for a cell of a table: nothing where the record does not say."""
        return "" if run.ending.kind == "unknown" else self(run.ending.kind)

    def helped(self, rules: Sequence[str]) -> str:
        """What a line of advice would help to judge: few rules by name, many by their number."""
        told = ", ".join(rules) if len(rules) <= _NAMED else self.count("rules", len(rules))
        return f"{self('would_judge')} {told}"

    def differing(self, n: int) -> str:
        """In how many settings two runs differ."""
        return self.count("differs", n) if n else self("differs_none")

    def sentence(self, title: str) -> str:
        """A title as a sentence: titles carry no full stop of their own."""
        if title.endswith((".", "。", "!", "?")):
            return title
        return title + ("。" if self.language == "zh" else ".")

    def steps(self, run: RunReport) -> str:
        """The steps that the record covers."""
        return self("no_steps") if run.steps is None else self("steps", first=run.steps[0], last=run.steps[1])

    def record(self, run: RunReport) -> str:
        """What the record covers: steps and attempts."""
        return self("record_of", steps=self.steps(run), attempts=self.count("attempts", run.attempts))


def ordered_chain(chain: Sequence[tuple[str, str]]) -> list[tuple[str, list[str]]]:
    """The edges grouped by cause, causes in the order of the edges: [("GF05", ["GF11", "GF12"]), ...]."""
    grouped: dict[str, list[str]] = {}
    for cause, effect in chain:
        grouped.setdefault(cause, []).append(effect)
    return list(grouped.items())
