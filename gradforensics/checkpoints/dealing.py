"""Dealing names in model order to the groups of an optimizer, as a dealer deals cards: each group keeps the order.

An optimizer numbers its parameters group by group, within a group in the order in which the training code listed them,
which is the model's order unless somebody changed it. Shapes of the states tell which ways to deal are possible.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

Shape = tuple[int, ...]
Named = tuple[str, Shape]

_MAX_NUMBERS = 1_000_000  # of all cursors that are followed, one number per group each


class Dealing(NamedTuple):
    """ways: 0, 1 or 2 for more than one (or too many to follow). dealt: of the only way, the names of each group."""

    ways: int
    dealt: list[list[str]] | None = None


def deal(names: Sequence[Named], groups: Sequence[Sequence[Shape | None]]) -> Dealing:
    """Deal ordered names to groups of slots with known (or unknown, None) shapes, so that every slot gets one.

    Where there are more names than slots, some are left out: allowed only if one single way fits then. Counted by
    dynamic programming over how far each group is filled.
    """
    slots = sum(len(group) for group in groups)
    spare = len(names) - slots
    if spare < 0:
        return Dealing(0)
    layers: list[dict[tuple[int, ...], int]] = [{tuple(0 for _ in groups): 1}]
    followed = 0
    for index, (_, shape) in enumerate(names):
        following: dict[tuple[int, ...], int] = {}
        for cursor, ways in layers[-1].items():
            for after in _moves(cursor, shape, groups, spare - (index - sum(cursor))):
                following[after] = min(following.get(after, 0) + ways, 2)
                if (followed + len(following)) * len(groups) > _MAX_NUMBERS:
                    return Dealing(2)
        followed += len(following)
        layers.append(following)
    end = tuple(len(group) for group in groups)
    ways = layers[-1].get(end, 0)
    return Dealing(ways, _back(names, groups, layers, end)) if ways == 1 else Dealing(ways)


def _moves(
    cursor: tuple[int, ...], shape: Shape, groups: Sequence[Sequence[Shape | None]], spare: int
) -> Iterator[tuple[int, ...]]:
    """Where the cursors may stand after one more name: it fills the next slot of a group, or is left out (`spare`)."""
    if spare > 0:
        yield cursor
    for number, (at, group) in enumerate(zip(cursor, groups, strict=True)):
        if at < len(group) and (group[at] is None or group[at] == shape):
            yield (*cursor[:number], at + 1, *cursor[number + 1 :])


def _back(
    names: Sequence[Named],
    groups: Sequence[Sequence[Shape | None]],
    layers: Sequence[dict[tuple[int, ...], int]],
    cursor: tuple[int, ...],
) -> list[list[str]]:
    """The only way, followed back from its end: each step has one predecessor, or there would be two ways."""
    dealt: list[list[str]] = [[] for _ in groups]
    for index in range(len(names) - 1, -1, -1):
        before = layers[index]
        name, shape = names[index]
        for number, group in enumerate(groups):
            at = cursor[number] - 1
            previous = (*cursor[:number], at, *cursor[number + 1 :])
            if at >= 0 and previous in before and (group[at] is None or group[at] == shape):
                dealt[number].append(name)
                cursor = previous
                break
    return [list(reversed(group)) for group in dealt]


# -- rules ------------------------------------------------------------------------------------------------------------


# transformers.Trainer.get_decay_parameter_names, since 4.46
_TRAINER = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)")

Rule = tuple[str, Callable[[Named, frozenset[Named]], bool]]

# (in words, whether a parameter gets no weight decay, given all of them), the plainest first: it names what several say
RULES: tuple[Rule, ...] = (
    ("no weight decay for biases", lambda named, _: "bias" in named[0]),
    ("no weight decay for biases and LayerNorms", lambda named, every: "bias" in named[0] or _layer_norm(named, every)),
    ("no weight decay for biases and norms, by name", lambda named, _: bool(_TRAINER.search(named[0].lower()))),
    ("no weight decay for parameters of less than two dimensions", lambda named, _: len(named[1]) < 2),
    (
        "no weight decay for biases and parameters of one dimension",
        lambda named, _: len(named[1]) == 1 or named[0].endswith(".bias"),
    ),
)


def _layer_norm(named: Named, every: frozenset[Named]) -> bool:
    """Whether this is the weight of a module with one-dimensional weight and bias, as LayerNorm is."""
    name, shape = named
    stem = name.removesuffix("weight")
    return len(shape) == 1 and stem != name and (f"{stem}bias", shape) in every


def deal_by_rule(
    names: Sequence[Named], groups: Sequence[Sequence[Shape | None]], decays: Sequence[float | None]
) -> tuple[str, list[list[str]]] | None:
    """The rule and the names of each group, where exactly one outcome of RULES fits two groups; else None.

    decays: each group's weight decay. Where the two differ, the smaller one is that of the group without decay.
    """
    if len(groups) != 2 or len(names) != sum(len(group) for group in groups):
        return None
    every = frozenset(names)
    first, second = decays
    outcomes: dict[tuple[tuple[str, ...], ...], str] = {}
    for words, spared in RULES:
        parts = (
            [named for named in names if not spared(named, every)],
            [named for named in names if spared(named, every)],
        )
        for pair, allowed in (
            (parts, first is None or second is None or first >= second),
            (parts[::-1], first is None or second is None or second >= first),
        ):
            if allowed and _fits(pair, groups):
                outcomes.setdefault(tuple(tuple(name for name, _ in part) for part in pair), words)
    if len(outcomes) != 1:
        return None
    dealt, words = next(iter(outcomes.items()))
    return words, [list(part) for part in dealt]


def _fits(parts: Sequence[Sequence[Named]], groups: Sequence[Sequence[Shape | None]]) -> bool:
    return all(
        len(part) == len(group)
        and all(slot is None or slot == shape for (_, shape), slot in zip(part, group, strict=True))
        for part, group in zip(parts, groups, strict=True)
    )
