"""What a check is: a named, NaN-safe test of the evidence that rule files may use.

A check answers with hits (it holds, and here), with an empty list (it looked and it does not hold) or with `Missing`
(it could not judge: what it lacked). It declares what it needs, so that a rule need not, and the facts that its hits
carry, so that a rule's texts can name them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from gradforensics.languages import Text
from gradforensics.tables import Evidence, Series

# A fact in words of our own stands in both languages; a name or a quote of the evidence is a string.
Fact: TypeAlias = str | float | int | Text | None


@dataclass(frozen=True)
class Hit:
    """Where a check holds: the step at which the log shows it, and the last logged step before at which it did not.

    `series` names what was read (phase-qualified as in "eval/loss"), `value` is what the log shows there.
    """

    step: int | None
    after: int | None = None
    series: str | None = None
    tag: str | None = None
    value: float | None = None
    source: str | None = None
    line: int | None = None
    tensor: str | None = None
    facts: Mapping[str, Fact] = field(default_factory=dict)


@dataclass(frozen=True)
class Missing:
    """The answer of a check that could not judge; `what` lists needs or plain words."""

    what: tuple[str, ...]

    def __init__(self, *what: str) -> None:
        object.__setattr__(self, "what", what)


Answer: TypeAlias = list[Hit] | Missing


@dataclass(frozen=True)
class Check:
    """A registered check: its name, its needs (templates over its arguments), the facts of its hits, its function."""

    name: str
    needs: tuple[str, ...]
    facts: frozenset[str]
    function: Callable[..., Answer]
    parameters: Mapping[str, type]

    def __call__(self, evidence: Evidence, **arguments: Any) -> Answer:  # noqa: D102  # the class says it
        return self.function(evidence, **arguments)


_TYPES: dict[str, type] = {"float": float, "int": int, "str": str}


def check(*, needs: Iterable[str], facts: Iterable[str] = ()) -> Callable[[Callable[..., Answer]], Check]:
    """Declare a check. Parameters are keyword-only and annotated float, int or str."""

    def declare(function: Callable[..., Answer]) -> Check:
        keywords = [p for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]
        parameters = {p.name: _TYPES[str(p.annotation)] for p in keywords}
        return Check(function.__name__, tuple(needs), frozenset(facts), function, parameters)

    return declare


def label(series: Series) -> str:
    """The phase-qualified name that needs and reports use: "loss", "eval/loss"."""
    return series.name if series.phase == "train" else f"{series.phase}/{series.name}"


def hit_at(
    series: Series, index: int, shared: Mapping[str, Fact] | None = None, *, after: int | None = None, **facts: Fact
) -> Hit:
    """A hit at one point of a series; `after` defaults to the step of the point before it, `shared` are more facts."""
    if after is None and index > 0:
        after = int(series.steps[index - 1])
    value = float(series.values[index])
    if series.bad[index]:
        value = {"posinf": float("inf"), "neginf": float("-inf")}.get(series.kind(index), float("nan"))
    line = int(series.lines[index]) or None
    return Hit(
        int(series.steps[index]),
        after,
        label(series),
        series.tag,
        value,
        series.source,
        line,
        None,
        {**facts, **(shared or {})},
    )
