"""What several checkpoints of one run tell about the names of an optimizer's states, put together.

The states of a run's checkpoints belong to the same parameters as long as the groups hold the same ids in the same
order and the shapes agree: what one checkpoint tells holds for the others. Where two contradict each other, neither is
believed for the others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from gradforensics.checkpoints.model import Naming
from gradforensics.checkpoints.optimizer import OptimizerState, parameter_shape

_LEAST = 0.5  # share of the states whose certain names are preferred to likely ones for more of them

_Found: TypeAlias = tuple[Mapping[str, str], Naming]
_Place: TypeAlias = tuple[tuple[str, int | None], tuple[tuple[str, ...], ...]]


class Told(NamedTuple):
    """One checkpoint's optimizer: its state, what it is called in every checkpoint, and the names that were found.

    shapes: of the parameters of its checkpoint, by name. names: by id.
    """

    state: OptimizerState
    like: tuple[str, int | None]
    shapes: Mapping[str, tuple[int, ...]]
    names: Mapping[str, str]
    naming: Naming


def shared(told: Sequence[Told]) -> list[_Found]:
    """The names of each, with those that its neighbours know; in the order in which they were given."""
    runs: dict[_Place, list[int]] = defaultdict(list)
    for index, one in enumerate(told):
        if not one.state.named_by and one.state.groups:
            runs[one.like, tuple(tuple(group.names) for group in one.state.groups)].append(index)
    found: list[_Found] = [(one.names, one.naming) for one in told]
    for places in runs.values():
        if len(places) > 1:
            part = [told[place] for place in places]
            shapes = _agreed_shapes(part)
            sure = _merged([one for one in part if one.naming.sure == "confirmed"])
            likely = _merged(part)
            for place, one in zip(places, part, strict=True):
                found[place] = _best(one, shapes, sure, likely)
    return found


def _agreed_shapes(part: Sequence[Told]) -> dict[str, tuple[int, ...] | None] | None:
    """The shape of every id where a state tells it; None where two checkpoints differ: they are of two models."""
    shapes: dict[str, tuple[int, ...] | None] = {}
    for one in part:
        for identity, state in one.state.states.items():
            shape = parameter_shape(state)
            if shape is not None and shapes.setdefault(identity, shape) != shape:
                return None
    return shapes


def _merged(part: Sequence[Told]) -> dict[str, str]:
    """The names of all of them; empty where they contradict each other, or give one name to two ids."""
    names: dict[str, str] = {}
    for one in part:
        for identity, name in one.names.items():
            if names.setdefault(identity, name) != name:
                return {}
    return names if len(set(names.values())) == len(names) else {}


def _best(
    one: Told, shapes: Mapping[str, tuple[int, ...] | None] | None, sure: Mapping[str, str], likely: Mapping[str, str]
) -> _Found:
    """The names that hold for this checkpoint: the certain ones where they are many, else all."""
    count = sum(len(group.names) for group in one.state.groups)
    if shapes is None or one.naming.sure == "exact":
        return one.names, one.naming
    if len(sure) >= _LEAST * count and _holds(sure, one, shapes):
        if one.naming.sure == "confirmed" and len(one.names) >= len(sure):
            return one.names, one.naming
        return sure, Naming(_how(sure, count), "confirmed")
    if one.naming.sure != "confirmed" and len(likely) > len(one.names) and _holds(likely, one, shapes):
        return likely, Naming(_how(likely, count), "likely")
    return one.names, one.naming


def _holds(names: Mapping[str, str], one: Told, shapes: Mapping[str, tuple[int, ...] | None]) -> bool:
    """Whether a checkpoint's own names do not contradict these, and its parameters have the shapes of the states."""
    return all(
        one.names.get(identity, name) == name and name in one.shapes and one.shapes[name] == shapes.get(identity)
        for identity, name in names.items()
    )


def _how(names: Mapping[str, str], count: int) -> str:
    keeping = f"; {count - len(names)} keep their ids" if count > len(names) else ""
    return f"{len(names)} of {count} states have a name, by what all checkpoints with these groups tell{keeping}."
