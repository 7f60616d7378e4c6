r"""Console dialects as data: one TOML file each in evidence/dialects/, found by listing that folder.

A file says what lines of one framework look like:

    id = "megatron-lm"                       # the name that the report shows
    title = "Megatron-LM, Megatron-DeepSpeed"
    source = "training_log() in megatron/training/training.py"

    [[line]]                                 # one kind of line, tried in this order
    mark = "elapsed time per iteration"      # a literal that every such line holds: the cheap first look
    pattern = 'iteration +(?P<step>\d+)/ *(?P<total>\d+) \|(?P<pairs>.*)'
    pair = '([^|:]+?): *([^ |]+) *\\|'       # within <pairs>: name and number (or groups called name and value; a
                                             # group called free holds numbers of no meaning, such as a mean)

    [units]                                  # numbers with a unit become seconds, bytes and fractions; a number is a
    "elapsed time per iteration (ms)" = "ms" # factor of its own

    [names]                                  # names that mean something else than evidence/names.toml says
    "loss" = "eval/loss"

    skipped = ["eta"]                        # names that are no series
    epochs_from = 1                          # where steps count within an epoch: the number of the first one

    [[sample]]                               # a line that must parse, with what it says
    [[other]]                                # a line that must not
    [[log]]                                  # an excerpt, with the points that the whole reader must get out of it

Groups of a pattern: step, total, epoch, epochs, phase (a word such as "val"), pairs, dict (a Python dict as the Trainer
prints it); every other group is a value under its own name. The steps of a line with `bar = true` count the batches of
one epoch, as progress bars do. Patterns are searched in the line without colours and
without the prefix of a launcher. A line with `what = "header"` says where the lines below it stand; one with
`what = "ignored"` looks like values and holds none.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

import tomli

from gradforensics.evidence import names, numbers
from gradforensics.evidence.console import lines as grammar
from gradforensics.tables import Phase, StepUnit

What = Literal["values", "header", "ignored"]

FOLDER = Path(__file__).parent.parent / "dialects"
PLACES = frozenset({"step", "total", "epoch", "epochs", "phase", "pairs", "dict"})
_PAIR = r"(?<![\w./@%-])(?P<name>[A-Za-z_][\w./@%()\[\]-]*)\s*[:=]\s*(?P<value>[^\s,|;]+)"
_FACTORS = {
    "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0, "%": 0.01,
    "B": 1.0, "KB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30,
}  # fmt: skip
_KEYS = {
    "line": {"mark", "pattern", "pair", "what", "phase", "unit", "bar"},
    "": {"id", "title", "source", "line", "units", "names", "skipped", "epochs_from", "sample", "other", "log"},
}


class DialectError(ValueError):
    """A dialect file that breaks the format; the text names the file."""


@dataclass(frozen=True)
class LineKind:
    """One kind of line of a dialect."""

    mark: str
    pattern: re.Pattern[str]
    pair: re.Pattern[str]
    what: What = "values"
    phase: Phase | None = None
    unit: StepUnit = "step"
    bar: bool = False


@dataclass(frozen=True)
class Dialect:
    """What the lines of one framework look like.

    factors: what a number is multiplied with, by its name; mapping: names that mean something else than the alias table
    says; skipped: names that are no series; epochs_from: the number of the first epoch, where steps count within one;
    samples, others, logs: what the file promises, for the tests.
    """

    id: str
    title: str
    source: str
    kinds: tuple[LineKind, ...]
    factors: Mapping[str, float]
    mapping: Mapping[str, str]
    skipped: frozenset[str]
    epochs_from: int | None = None
    samples: Sequence[Mapping[str, Any]] = field(default=(), compare=False)
    others: Sequence[Mapping[str, Any]] = field(default=(), compare=False)
    logs: Sequence[Mapping[str, Any]] = field(default=(), compare=False)

    def read(self, text: str) -> tuple[LineKind, grammar.Line] | None:
        """What a line says, if it is one of this dialect."""
        for kind in self.kinds:
            if kind.mark in text and (match := kind.pattern.search(text)):
                said = self._line(kind, match)
                if said is not None:
                    return kind, said
        return None

    def _line(self, kind: LineKind, match: re.Match[str]) -> grammar.Line | None:
        said = grammar.Line(phase=kind.phase, dialect=self.id, bare=kind.bar)
        if kind.what == "ignored":
            return said
        for name, text in match.groupdict().items():
            if text is None:
                continue
            if name in PLACES:
                if not self._place(said, name, text, match.start(name), kind):
                    return None
            elif not self._value(said, name, text, match.start(name)):
                return None
        if kind.what == "values" and not said.values:
            return None
        tags = [tag for tag in said.values if names.is_metric(tag) or tag in self.mapping]
        said.has_metric = bool(tags)
        said.evaluation = said.phase in ("eval", "test")
        return said

    def _place(self, said: grammar.Line, name: str, text: str, start: int, kind: LineKind) -> bool:
        """Take one of the groups that are no values; False where its text cannot be what it should."""
        if name == "phase":
            said.phase = names.phase_word(text) or said.phase
            return True
        if name == "pairs":
            for pair in kind.pair.finditer(text):
                key, value = ("name", "value") if "name" in kind.pair.groupindex else (1, 2)
                self._value(said, pair[key].strip(), pair[value], start + pair.start(value), optional=True)
                if "free" in kind.pair.groupindex and pair["free"]:
                    said.free.append((start + pair.start("free"), start + pair.end("free")))
            return True
        if name == "dict":
            inner = grammar.read_dict(text)
            if inner is None:
                return False
            said.step, said.epoch = inner.step if said.step is None else said.step, inner.epoch
            said.values, said.texts, said.quoted = inner.values, inner.texts, inner.quoted
            said.is_dict = True
            return True
        try:
            number = numbers.parse_number(text.replace(",", ""))
        except ValueError:
            return False
        whole = numbers.whole(number)
        if name in ("step", "total", "epochs") and whole is None:
            return False
        setattr(said, name, number if name == "epoch" else whole)
        said.spans[f"<{name}>"] = (start, start + len(text))
        return True

    def _value(self, said: grammar.Line, tag: str, text: str, start: int, *, optional: bool = False) -> bool:
        """Take a value under its name; `optional` pairs that are no numbers are left out."""
        if tag in self.skipped:
            said.free.append((start, start + len(text)))
            return True
        if tag in said.values:
            return True
        try:
            value = numbers.parse_number(text.replace(",", ""))
        except ValueError:
            clock = numbers.clock_seconds(text)
            if clock is None:
                return optional
            said.values[tag] = clock
            return True
        factor = self.factors.get(tag)
        said.values[tag] = value if factor is None or value is None else value * factor
        if factor is None:
            said.texts[tag] = text
        said.spans[tag] = (start, start + len(text))
        return True


@cache
def dialects() -> tuple[Dialect, ...]:
    """All dialects, in the order of their file names."""
    return tuple(load(path) for path in sorted(FOLDER.glob("*.toml")))


def load(path: Path) -> Dialect:
    """One dialect file; DialectError where it breaks the format."""
    try:
        data = tomli.loads(path.read_text(encoding="utf-8"))
        _check(data, _KEYS[""], "")
        kinds = tuple(_kind(line) for line in data["line"])
        units = data.get("units", {})
        factors = {name: _FACTORS[unit] if isinstance(unit, str) else float(unit) for name, unit in units.items()}
        return Dialect(
            data["id"], data["title"], data["source"], kinds, factors, data.get("names", {}),
            frozenset(data.get("skipped", ())), data.get("epochs_from"),
            data.get("sample", ()), data.get("other", ()), data.get("log", ()),
        )  # fmt: skip
    except (KeyError, ValueError, TypeError, re.error) as error:
        raise DialectError(f"{path.name}: {type(error).__name__}: {error}") from error


def _kind(line: Mapping[str, Any]) -> LineKind:
    _check(line, _KEYS["line"], "[[line]]")
    what, phase, unit = line.get("what", "values"), line.get("phase"), line.get("unit", "step")
    for value, allowed in ((what, get_args(What)), (phase, (None, *names.PHASES)), (unit, get_args(StepUnit))):
        if value not in allowed:
            raise ValueError(f"{value!r} is none of {', '.join(map(str, allowed))}")
    pattern, pair = re.compile(line["pattern"]), re.compile(line.get("pair", _PAIR))
    return LineKind(line["mark"], pattern, pair, what, phase, unit, line.get("bar", False))


def _check(found: Mapping[str, Any], allowed: set[str], where: str) -> None:
    if unknown := sorted(set(found) - allowed):
        raise ValueError(f"unknown key {unknown[0]!r} {where}")


class Known:
    """The dialects while one log is read: the one that matched last is tried first."""

    def __init__(self) -> None:
        self._order = list(dialects())
        self._of_mark: dict[str, list[Dialect]] = {}
        for one in self._order:
            for mark in {kind.mark for kind in one.kinds}:
                self._of_mark.setdefault(mark, []).append(one)

    @property
    def marks(self) -> Collection[str]:
        """The literals of which a line of any dialect holds one."""
        return self._of_mark.keys()

    def fitting(self, text: str) -> list[Dialect]:
        """The dialects of which a line holds a mark."""
        return [one for mark, those in self._of_mark.items() if mark in text for one in those]

    def read(self, text: str, fitting: Collection[Dialect]) -> tuple[Dialect, LineKind, grammar.Line] | None:
        """The dialect, among those that fit, of a line without its prefix and what it says, or None."""
        ids = {one.id for one in fitting}
        for place, one in enumerate(self._order):
            if one.id in ids and (found := one.read(text)) is not None:
                if place:
                    self._order.insert(0, self._order.pop(place))
                return one, *found
        return None
