"""What could explain that two runs part: each candidate with what speaks for it and against it.

Timing speaks, it does not prove: what is called likely here is the only difference that was recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from gradforensics.diagnosis.two_runs.changes import Change, Changes, Kind
from gradforensics.diagnosis.two_runs.partings import Parting
from gradforensics.diagnosis.two_runs.restarts import Restart
from gradforensics.diagnosis.two_runs.weights import SharedStep

What: TypeAlias = Literal[
    "setting", "rate", "batch", "seed", "data", "environment", "code", "restart", "rounding", "sample", "start",
    "order", "unrecorded",
]  # fmt: skip
Weight: TypeAlias = Literal["likely", "possible", "unlikely"]

_EARLY = (
    3  # equal points up to which a cause may act from the first update on: step 1 precedes it, a rate may begin at 0
)
ROUNDING = 1e-5  # fraction: sums in single precision in another order differ in the seventh digit, and grow from there
AT_ONCE = 1e-3  # fraction: one other sample among some hundred changes the loss by as much


@dataclass(frozen=True, slots=True)
class Sign:
    """One observation about a candidate; the report has a sentence for each key."""

    key: str
    against: bool = False
    facts: Mapping[str, str | int | float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One thing that could explain the difference. changed: what was recorded of it; empty for what nobody records."""

    what: What
    weight: Weight
    changed: tuple[Change, ...] = ()
    signs: tuple[Sign, ...] = ()


def candidates(
    found: Sequence[Parting],
    result: Parting | None,
    changes: Changes,
    weights: Sequence[SharedStep],
    restarts: Sequence[Restart],
) -> list[Candidate]:
    """The candidates, the likeliest first; none where the results do not differ."""
    if result is None or result.course not in ("parts", "never_identical"):
        return []
    rate = next((one for one in found if one.label == "lr"), None)
    alone = len(changes.things) == 1 and not restarts and "setting" not in changes.unknown
    # runs that never were equal may differ in a seed that nobody recorded, unless they part for good
    alone = alone and (result.course == "parts" or "seed" not in changes.unknown or result.beyond is not None)
    made = [_recorded(thing, result, rate, alone=alone) for thing in changes.things]
    made += [
        Candidate("restart", "possible", (), (Sign("restarted", facts={"step": one.step, "here": int(one.here)}),))
        for one in restarts
    ]
    if not any(one.weight == "likely" for one in made):
        made += _unrecorded(result, changes, weights)
    return sorted(made, key=lambda one: _WEIGHTS.index(one.weight))


_WEIGHTS: tuple[Weight, ...] = ("likely", "possible", "unlikely")


def _recorded(thing: tuple[Change, ...], result: Parting, rate: Parting | None, *, alone: bool) -> Candidate:
    kind = thing[0].kind
    signs = [*_timing(kind, result, rate), *_lasting(kind, result)]
    if signs and all(sign.against for sign in signs):
        return Candidate(kind, "unlikely", thing, tuple(signs))
    if alone and not any(sign.against for sign in signs):
        return Candidate(kind, "likely", thing, (Sign("only_difference"), *signs))
    return Candidate(kind, "possible", thing, tuple(signs))


def _timing(kind: Kind, result: Parting, rate: Parting | None) -> Iterator[Sign]:
    """What the step at which the results part says of a change of this kind."""
    step, until = result.step or 0, result.until or 0
    if kind == "rate" and rate is not None and rate.course != "not_judged":
        yield from _rates(rate, step)
    elif kind == "environment":
        if result.size is not None and result.size <= ROUNDING:
            yield Sign("last_digits", facts={"size": result.size, "step": step})
    elif result.course == "never_identical":
        yield Sign("from_the_start", facts={"step": step})
    elif result.equal_points <= _EARLY:
        yield Sign("from_the_first_update", facts={"until": until, "step": step})
    elif kind == "data":
        yield Sign("late_data", facts={"until": until, "step": step})
    elif kind in ("setting", "batch", "seed"):
        yield Sign("starts_late", against=True, facts={"until": until, "step": step})


def _rates(rate: Parting, step: int) -> Iterator[Sign]:
    if rate.course == "identical" or rate.step is None:
        yield Sign("rates_identical", against=True, facts={"points": rate.points})
    elif rate.step <= step:
        yield Sign("rates_part_first", facts={"rate": rate.step, "step": step})
    else:
        yield Sign("rates_part_later", against=True, facts={"rate": rate.step, "step": step})


def _lasting(kind: Kind, result: Parting) -> Iterator[Sign]:
    """Whether the difference outlives the noise: seeds alone hardly part two runs for good."""
    if result.beyond is not None and kind != "environment":
        yield Sign("lasting", against=kind == "seed", facts={"step": result.beyond})


def _unrecorded(result: Parting, changes: Changes, weights: Sequence[SharedStep]) -> Iterator[Candidate]:
    """What no record names: kernels that round differently, one other sample, other first weights, another order."""
    size = result.size
    facts: dict[str, str | int | float] = {"size": size or 0.0, "step": result.step or 0}
    if size is not None and size <= ROUNDING:
        yield Candidate("rounding", "possible", (), (Sign("last_digits", facts=facts),))
        return
    if result.course == "parts":
        if size is None or size < AT_ONCE:
            yield Candidate("rounding", "possible")
            yield Candidate("sample", "possible")
        else:
            yield Candidate("sample", "possible", (), (Sign("at_once", facts=facts),))
        return
    if result.beyond is not None:
        yield Candidate("unrecorded", "possible", (), (Sign("lasting", facts={"step": result.beyond}),))
    if any(change.kind == "seed" for change in changes.counted):
        return  # first weights and order are what a seed decides
    against = [Sign("lasting", against=True, facts={"step": result.beyond})] if result.beyond is not None else []
    weight: Weight = "unlikely" if against else "possible"
    first = weights[0] if weights and weights[0].step == 0 else None
    if first is None or first.same is None:
        known = [Sign("seeds_equal", against=True)] if "seed" not in changes.unknown else []
        yield Candidate("start", weight, (), (*known, *against))
        yield Candidate("order", weight, (), tuple(against))
    elif first.same:
        yield Candidate("order", weight, (), (Sign("start_equal"), *against))
    else:
        yield Candidate("start", weight, (), (Sign("start_differs"), *against))
