"""Ids of an optimizer's states -> names of the parameters.

In the order of trust: what the optimizer's file says; the parameters' order in a file of torch.save, or in the model
that config.json describes, dealt to the groups where all shapes leave one way only; then, without an order, the one
update between two checkpoints, which proves a name; shapes that occur once; and the correlation of each state's update
with the change of the weights between two checkpoints. Files of safetensors are sorted by type and name: their order
says nothing and is never used. What stays ambiguous keeps its id: a state under a wrong name would make a healthy state
look corrupt.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from gradforensics.checkpoints import correlating, dealing, stepping
from gradforensics.checkpoints.correlating import Vector
from gradforensics.checkpoints.dealing import Named, Shape
from gradforensics.checkpoints.model import Group, Naming
from gradforensics.checkpoints.optimizer import OptimizerState, parameter_shape
from gradforensics.checkpoints.refs import Lost, TensorRef
from gradforensics.parameter_names import bare, is_average, is_beside
from gradforensics.untrusted.dtypes import FLOATS

# Buffers of floating type that state dicts hold between the parameters: BatchNorm's statistics, rotary embeddings.
_BUFFERS = ("running_mean", "running_var", "inv_freq", "original_inv_freq")
_MAX_LEFT = 512  # names of one shape that are left, beyond which they are not tried
_ROUNDS = 8  # of naming what is left by the order of the layers; each name may leave another id one choice
_LEAST_KNOWN = 0.5  # share of the parameters whose shape a state tells, below which no order is accepted


@dataclass(frozen=True, slots=True)
class NameSource:
    """Names and shapes of possible parameters. kind: whose order it is.

    "saved": of a state dict by torch.save, which is the model's; "config": of the model that config.json describes;
    "unordered": of a file that sorts its tensors (safetensors, DCP).
    """

    kind: Literal["saved", "config", "unordered"]
    file: str
    names: tuple[Named, ...]


class Pair(NamedTuple):
    """Parameters of two checkpoints by name, `after` the later one; the optimizer's state is of either.

    one_update: ids of its states that are of the later one and exactly one update further than in the earlier one.
    """

    before: Mapping[str, TensorRef]
    after: Mapping[str, TensorRef]
    one_update: frozenset[str] = frozenset()


def saved_source(file: str, tensors: Mapping[str, TensorRef | Lost]) -> NameSource:
    """The parameters of a state dict in its order: floating types only, tied ones (the same bytes) once.

    A state dict whose names are sorted counts as unordered: it was made from a file that had lost the order.
    """
    seen: set[object] = set()
    names: list[Named] = []
    for name, ref in tensors.items():
        place = (ref.shape, ref.runs) if isinstance(ref, TensorRef) and ref.runs else name
        if ref.dtype not in FLOATS or place in seen:
            continue
        seen.add(place)
        names.append((name, ref.shape))
    is_sorted = len(names) > 1 and names == sorted(names)
    return NameSource("unordered" if is_sorted else "saved", file, tuple(names))


def unordered_source(file: str, tensors: Mapping[str, TensorRef | Lost]) -> NameSource:
    """The tensors of floating type of a file that does not keep their order."""
    return replace(saved_source(file, tensors), kind="unordered")


def config_source(file: str, parameters: Iterable[tuple[str, Shape, bool]]) -> NameSource:
    """Parameters (name, shape, whether it is trained) as `meta_names.names_from_config` gives them."""
    return NameSource("config", file, tuple((name, shape) for name, shape, trained in parameters if trained))


def name_states(
    optimizer: OptimizerState, sources: Sequence[NameSource], *, pair: Pair | None = None
) -> tuple[dict[str, str], Naming]:
    """Names by id, and how they were found. Ids that are not in the result keep their ids.

    pair: the weights of two checkpoints, one of them the optimizer's own. Names are spelled as the sources that hold
    weights ("saved" and "unordered") spell them.
    """
    held = {name: shape for source in sources if source.kind != "config" for name, shape in source.names}
    groups = [group.names for group in optimizer.groups] or [list(optimizer.states)]
    ids = [identity for group in groups for identity in group]
    if optimizer.named_by:
        return _as_said(optimizer, ids, held)
    if not ids:
        return {}, Naming("The optimizer holds no parameters.", "none")
    shapes = {identity: parameter_shape(states) for identity, states in optimizer.states.items()}
    known = sum(shapes.get(identity) is not None for identity in ids)
    if not known:
        return {}, Naming("The optimizer keeps no state that tells a shape: nothing could confirm a name.", "none")
    slots = [[shapes.get(identity) for identity in group] for group in groups]
    moved = {} if pair is None else _matched(optimizer, shapes, held, pair)
    proven = {} if pair is None else _proven(optimizer, held, pair)
    taken = set(proven.values())
    moved = {identity: name for identity, name in moved.items() if name not in taken} | proven
    why = f"only {known} of {len(ids)} parameters have a state that tells their shape"
    if known >= _LEAST_KNOWN * len(ids):
        decays = [group.weight_decay for group in optimizer.groups] or [None]
        dealt, why = _by_order(slots, decays, sources, held)
        names = dict(zip(ids, (name for group in dealt or [] for name in group), strict=bool(dealt)))
        against = [identity for identity in moved if identity in names and names[identity] != moved[identity]]
        if len(against) == 1 and against[0] not in proven:
            against = []  # a wrong order misplaces two at least; far apart, one may correlate with another's by chance
        if names and not against:
            agreeing = sum(names.get(identity) == name for identity, name in moved.items())
            agrees = f"; {agreeing} of them moved between two checkpoints as their states say" if agreeing else ""
            return names, Naming(f"{why}{agrees}.", "confirmed")
        if against:
            why = f"{why[:1].lower()}{why[1:]}, but {len(against)} of them moved between two checkpoints as others say"
    certain = _certain(groups, shapes, held, proven)
    if proven and len(certain) >= _LEAST_KNOWN * len(ids):
        return certain, _how_certain(len(proven), len(certain), len(ids))
    return _without_order(groups, shapes, held, moved, why)


def with_names(groups: Iterable[Group], names: Mapping[str, str]) -> list[Group]:
    """The groups with names in place of ids, where they are known."""
    return [replace(group, names=[names.get(identity, identity) for identity in group.names]) for group in groups]


# -- what the file says -----------------------------------------------------------------------------------------------


def _as_said(optimizer: OptimizerState, ids: Sequence[str], held: Mapping[str, Shape]) -> tuple[dict[str, str], Naming]:
    spelled = aligned(optimizer.names.values(), held)
    names = {identity: spelled.get(name, name) for identity, name in optimizer.names.items()}
    how = (
        "The optimizer's groups hold the names of their parameters"
        if optimizer.named_by == "param_names"
        else "The optimizer's states stand under the names of their parameters"
    )
    missing = sum(identity not in names for identity in ids)
    return names, Naming(f"{how}{f'; {missing} have none' if missing else ''}.", "exact")


def aligned(names: Iterable[str], held: Collection[str]) -> dict[str, str]:
    """Each name as the files with weights spell it: with or without the parts of wrappers, where that is unique."""
    spelled: dict[str, set[str]] = defaultdict(set)
    for name in held:
        spelled[bare(name)].add(name)
    found = {}
    for name in names:
        options = spelled.get(bare(name), set())
        if name in options:
            found[name] = name
        elif len(options) == 1:
            found[name] = next(iter(options))
    return found


# -- by order ---------------------------------------------------------------------------------------------------------

_Slots = Sequence[Sequence[Shape | None]]
_Dealt = list[list[str]]


def _by_order(
    slots: _Slots, decays: Sequence[float | None], sources: Sequence[NameSource], held: Mapping[str, Shape]
) -> tuple[_Dealt | None, str]:
    """The names of each group by the order of the most trusted kind of source that fits; how, or why there are none."""
    why = "no file keeps the order of the parameters"
    for kind in ("saved", "config"):
        ordered = [source for source in sources if source.kind == kind]
        ordered = [one for one in ordered if any(_may_be_trained(name) for name, _ in one.names)] or ordered
        answers = [_deal(source, slots, decays, held) for source in ordered]
        if len(ordered) > 1 and all(dealt is None for dealt, _ in answers):
            answers = [_deal(_joined(ordered), slots, decays, held)]
        fits = [(source, answer) for source, answer in zip(ordered, answers, strict=False) if answer[0] is not None]
        if len(fits) > 1:  # of a model and its copy, the optimizer is the model's
            fits = [fit for fit in fits if not _is_beside(fit[0])] or fits
        fitting = {repr(answer[0]): answer for _, answer in fits}
        if len(fitting) == 1:
            return next(iter(fitting.values()))
        if answers:
            why = "several state dicts fit, with different names" if fitting else answers[-1][1]
    return None, why


def _is_beside(source: NameSource) -> bool:
    return all(is_beside(name) for name, _ in source.names)


def _joined(sources: Sequence[NameSource]) -> NameSource:
    """The shards of one state dict in the order of their files, as transformers cuts it."""
    shards = sorted(sources, key=lambda source: source.file)
    names = {name: shape for shard in shards for name, shape in shard.names}
    return NameSource(sources[0].kind, f"{shards[0].file} and the others", tuple(names.items()))


def _deal(
    source: NameSource, slots: _Slots, decays: Sequence[float | None], held: Mapping[str, Shape]
) -> tuple[_Dealt | None, str]:
    """The names of each group by one source's order; how, or why not."""
    names = source.names
    if source.kind == "config" and held:
        spelled = aligned((name for name, _ in names), held)
        names = tuple((spelled[name], shape) for name, shape in names if held.get(spelled.get(name, "")) == shape)
        if len(names) < len(source.names):
            return None, f"the model of {source.file} has other parameters than the files with weights"
    ways = 0
    for candidates in ([named for named in names if _may_be_trained(named[0])], names):
        dealing_ = dealing.deal(candidates, slots)
        if dealing_.dealt is not None:
            left = len(candidates) - sum(len(group) for group in slots)
            return dealing_.dealt, _how(source, len(slots), "in the only way in which all shapes fit", left)
        by_rule = dealing.deal_by_rule(candidates, slots, decays) if dealing_.ways else None
        if by_rule is not None:
            return by_rule[1], _how(source, len(slots), f"by the rule {by_rule[0]!r}, and all shapes fit", 0)
        ways = max(ways, dealing_.ways)
    return None, f"the order of {source.file} fits the shapes of the states in {'several ways' if ways else 'no way'}"


def _may_be_trained(name: str) -> bool:
    return name.rpartition(".")[2] not in _BUFFERS and not is_average(name)


def _how(source: NameSource, groups: int, way: str, left: int) -> str:
    order = f"The model that {source.file} describes" if source.kind == "config" else f"The order of {source.file}"
    among = f"dealt to {groups} groups " if groups > 1 else ""
    rest = f"; {left} tensors are not the optimizer's" if left else ""
    return f"{order} names the states, {among}{way}{rest}"


# -- without order ----------------------------------------------------------------------------------------------------


def _proven(optimizer: OptimizerState, held: Mapping[str, Shape], pair: Pair) -> dict[str, str]:
    """Names that the one update between the two checkpoints proves."""
    if not pair.one_update:
        return {}
    after = {name: ref for name, ref in pair.after.items() if name in held or not held}
    return stepping.names(optimizer, pair.one_update, pair.before, after)


def _certain(
    groups: Sequence[Sequence[str]],
    shapes: Mapping[str, Shape | None],
    held: Mapping[str, Shape],
    proven: Mapping[str, str],
) -> dict[str, str]:
    """The proven names, and where one state and one parameter of a shape are left, that name."""
    ids = [identity for group in groups for identity in group]
    options = {name: shape for name, shape in held.items() if _may_be_trained(name)}
    if Counter(options.values()) != Counter(shapes.get(identity) for identity in ids):
        return dict(proven)
    names, taken = dict(proven), set(proven.values())
    left_ids: dict[Shape | None, list[str]] = defaultdict(list)
    left_names: dict[Shape | None, list[str]] = defaultdict(list)
    for identity in ids:
        if identity not in names:
            left_ids[shapes.get(identity)].append(identity)
    for name in options.keys() - taken:
        left_names[options[name]].append(name)
    for shape, left in left_ids.items():
        if len(left) == len(left_names[shape]) == 1:
            names[left[0]] = left_names[shape][0]
    return names


def _how_certain(proven: int, named: int, count: int) -> Naming:
    rest = f", {named - proven} as the only one of a shape that is left" if named > proven else ""
    keeping = f"; {count - named} keep their ids" if count > named else ""
    return Naming(
        f"{named} of {count} states have a name: {proven} by the one update between two checkpoints, which moved their "
        f"parameters as they say{rest}{keeping}.",
        "confirmed",
    )


def _matched(
    optimizer: OptimizerState,
    shapes: Mapping[str, Shape | None],
    held: Mapping[str, Shape],
    pair: Pair,
) -> dict[str, str]:
    """Names of the ids whose update correlates with the change of one parameter only."""
    updates: dict[Shape, dict[str, Vector]] = defaultdict(dict)
    eps = {identity: group.eps for group in optimizer.groups for identity in group.names}
    for identity, shape in shapes.items():
        update = None if shape is None else correlating.update_of(optimizer.states[identity], eps.get(identity))
        if shape is not None and update is not None:
            updates[shape][identity] = update
    changes: dict[Shape, dict[str, Vector]] = defaultdict(dict)
    for name, after in pair.after.items():
        if name in pair.before and after.shape in updates and (name in held or not held):
            change = correlating.change_of(pair.before[name], after)
            if change is not None:
                changes[after.shape][name] = change
    found: dict[str, str] = {}
    for shape, rows in updates.items():
        found |= correlating.match(rows, changes[shape])
    return found


def _without_order(
    groups: Sequence[Sequence[str]],
    shapes: Mapping[str, Shape | None],
    held: Mapping[str, Shape],
    moved: Mapping[str, str],
    why: str,
) -> tuple[dict[str, str], Naming]:
    """Names by what moved and by shape; the rest of both is paired where one candidate is left."""
    ids = [identity for group in groups for identity in group]
    options = {name: shape for name, shape in held.items() if _may_be_trained(name)}
    have, want = Counter(options.values()), Counter(shapes.get(identity) for identity in ids)
    complete = have == want  # as many parameters of every shape: each id's own is among them
    by_shape = {shape: name for name, shape in options.items() if complete and have[shape] == 1}
    once = {identity: by_shape[shape] for identity in ids if (shape := shapes.get(identity)) in by_shape}
    names = {**moved, **once}
    if not all(correlating.in_order(group, names) for group in groups):
        names = dict(once)
    elif complete:
        for _ in range(_ROUNDS):
            names |= _filled(groups, shapes, options, names)
    if not names:
        return {}, Naming(f"The states keep their ids: {why}.", "none")
    by_move = len((moved.keys() & names.keys()) - once.keys())
    counts = [
        (by_move, "by how the weights moved between two checkpoints"),
        (len(once), "by a shape that occurs once"),
        (len(names) - by_move - len(once), "as the only one left in the order of the layers"),
    ]
    parts = ", ".join(f"{count} {words}" for count, words in counts if count)
    rest = len(ids) - len(names)
    keeping = f"; {rest} keep their ids" if rest else ""
    sure: Literal["confirmed", "likely"] = "confirmed" if names.keys() == once.keys() else "likely"
    return names, Naming(f"{len(names)} of {len(ids)} states have a name: {parts}{keeping}; {why}.", sure)


def _filled(
    groups: Sequence[Sequence[str]],
    shapes: Mapping[str, Shape | None],
    options: Mapping[str, Shape],
    names: Mapping[str, str],
) -> dict[str, str]:
    """Names for further ids, each the only one that its shape and the order of the layers leave."""
    free: dict[Shape | None, list[str]] = defaultdict(list)
    for name in options.keys() - set(names.values()):
        free[options[name]].append(name)
    found: dict[str, str] = {}
    for group in groups:
        candidates = {
            identity: free[shape]
            for identity in group
            if identity not in names and len(free[shape := shapes.get(identity)]) <= _MAX_LEFT
        }
        found |= correlating.fill(group, names, candidates)
    twice = {name for name, count in Counter(found.values()).items() if count > 1}
    return {identity: name for identity, name in found.items() if name not in twice}
