"""Two checkpoints: what changed and by how much, what did not, and what only one of them holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gradforensics.checkpoints import assigning, pairs
from gradforensics.checkpoints.load import Loaded
from gradforensics.checkpoints.measure import parameters
from gradforensics.checkpoints.model import Checkpoint, Group, Role, Tensor
from gradforensics.checkpoints.pairs import Skipped, Travel
from gradforensics.checkpoints.scan import scan
from gradforensics.checkpoints.stats import Stats
from gradforensics.notices import Progress

_NAMED = ("param", "buffer", "master", "grad", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum")
_PLACES = frozenset({"folder"})  # facts that tell where files lie, not what is in them
_GONE = ("it is not in the earlier checkpoint", "it is not in the later checkpoint")


class Change(NamedTuple):
    """Something that has another value in the later checkpoint; None where it is absent."""

    what: str
    before: Any
    after: Any


@dataclass(slots=True)
class Same:
    """The tensors of one role that both hold: those with the same bytes (the same CRC-32), and the others."""

    role: Role
    identical: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Difference:
    """What two checkpoints have in common and what not.

    ordered: whether their steps tell which one is older; else `older` is the first that was named.
    moved: the parameters (their float32 masters where there are any) that changed, the longest way first; identical:
    those in which every bit is the same. others: the tensors that are no such parameter, by role. appeared, vanished:
    tensors of the newer or of the older one only; reshaped: those of another shape or type. groups, facts, settings: of
    the optimizer, of schedulers, scalers and counters, of saved configurations. skipped: what could not be compared.
    """

    older: Checkpoint
    newer: Checkpoint
    ordered: bool
    moved: list[Travel] = field(default_factory=list)
    identical: list[str] = field(default_factory=list)
    others: list[Same] = field(default_factory=list)
    appeared: list[Tensor] = field(default_factory=list)
    vanished: list[Tensor] = field(default_factory=list)
    reshaped: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    groups: list[Change] = field(default_factory=list)
    facts: list[Change] = field(default_factory=list)
    settings: list[Change] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)


def compare(first: Loaded, second: Loaded, *, progress: Progress | None = None) -> Difference:
    """Name the optimizer states of both checkpoints and compare all that they hold; the older one comes first."""
    a, b = first.checkpoint.step, second.checkpoint.step
    if a is not None and b is not None and a > b:
        first, second = second, first
    assigning.name([first, second])
    found = Difference(first.checkpoint, second.checkpoint, ordered=a is not None and b is not None and a != b)
    common = _match(found)
    compared = _parameters(found, progress)
    _others(found, [pair for pair in common if id(pair[1]) not in compared], progress)
    found.groups = _groups(found.older.groups, found.newer.groups)
    found.facts = _changes(
        {key: value for key, value in found.older.facts.items() if key not in _PLACES},
        {key: value for key, value in found.newer.facts.items() if key not in _PLACES},
    )
    found.settings = _changes(*({n: v for n, v, _ in c.settings} for c in (found.older, found.newer)))
    return found


def called(tensor: Tensor) -> str:
    """The name of a tensor, with its rank where several ranks hold one, and the key of a state without a role."""
    name = tensor.name if tensor.rank is None else f"{tensor.name}@{tensor.rank}"
    return name if tensor.role in _NAMED or tensor.name == tensor.key else f"{name} {_last(tensor)}"


def label(tensor: Tensor) -> str:
    """`called`, with the role where the name is that of the parameter and the tensor is not."""
    own = tensor.role in ("param", "buffer") or tensor.role not in _NAMED or tensor.name == tensor.key
    return called(tensor) if own else f"{called(tensor)} {tensor.role}"


# -- tensors ----------------------------------------------------------------------------------------------------------


def _match(found: Difference) -> list[tuple[Tensor, Tensor]]:
    """The tensors that both hold in the same shape and type; what differs otherwise goes into `found`.

    States that have their parameter's name in one checkpoint only are matched by their ids.
    """
    common, old, new = _pair(found.older.tensors, found.newer.tensors, _identity)
    more, found.vanished, found.appeared = _pair(old, new, lambda tensor: (tensor.rank, tensor.role, tensor.key))
    alike = []
    for before, after in [*common, *more]:
        if (before.ref.shape, before.ref.dtype) == (after.ref.shape, after.ref.dtype):
            alike.append((before, after))
        else:
            found.reshaped.append((before, after))
    return alike


def _pair(
    before: Iterable[Tensor], after: Iterable[Tensor], identity: Callable[[Tensor], tuple[Any, ...]]
) -> tuple[list[tuple[Tensor, Tensor]], list[Tensor], list[Tensor]]:
    """Tensors of the same identity together, in the order of `after`, then those of either that are left over."""
    olds, news = _numbered(before, identity), _numbered(after, identity)
    return (
        [(olds[key], tensor) for key, tensor in news.items() if key in olds],
        [tensor for key, tensor in olds.items() if key not in news],
        [tensor for key, tensor in news.items() if key not in olds],
    )


def _numbered(
    tensors: Iterable[Tensor], identity: Callable[[Tensor], tuple[Any, ...]]
) -> dict[tuple[Any, ...], Tensor]:
    """Tensors by their identity and a number where that is not unique."""
    seen: Counter[tuple[Any, ...]] = Counter()
    found: dict[tuple[Any, ...], Tensor] = {}
    for tensor in tensors:
        key = identity(tensor)
        found[(*key, seen[key])] = tensor
        seen[key] += 1
    return found


def _identity(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.rank, tensor.role, tensor.name, "" if tensor.role in _NAMED else _last(tensor)


def _last(tensor: Tensor) -> str:
    return tensor.key.rpartition(".")[2]


def _parameters(found: Difference, progress: Progress | None) -> set[int]:
    """Measure how the parameters moved; returns the id()s of the newer's tensors that were compared so."""
    before, after = parameters(found.older), parameters(found.newer)
    told = _phase(progress, "comparing parameters")
    first_step, step = found.older.step or 0, found.newer.step or 0
    measured = pairs.travels(before, after, first_step=first_step, step=step, progress=told)
    found.moved = [travel for travel in measured.travels if travel.changed > 0.0]
    found.moved.sort(key=lambda travel: -_distance(travel))
    found.identical = [travel.name for travel in measured.travels if travel.changed == 0.0]
    reshaped = {label(new) for _, new in found.reshaped}
    found.skipped += [s for s in measured.skipped if s.reason not in _GONE and s.name not in reshaped]
    done = {travel.name for travel in measured.travels}
    weights = {id(parameter.weight) for parameter in after if parameter.name in done}
    return {id(tensor) for tensor in found.newer.tensors if id(tensor.ref) in weights}


def _distance(travel: Travel) -> float:
    """How far a parameter went, in its own norms; one that was zero or got a NaN went infinitely far."""
    return float("inf") if travel.rel_travel is None or travel.nonfinite else travel.rel_travel


def _others(found: Difference, common: Sequence[tuple[Tensor, Tensor]], progress: Progress | None) -> None:
    """Compare by fingerprints what is no parameter, or a parameter beside its master."""
    there = [pair for pair in common if not pair[0].lost and not pair[1].lost]
    found.skipped += [Skipped(label(new), old.lost or new.lost) for old, new in common if old.lost or new.lost]
    told = _phase(progress, "comparing other tensors")
    results = scan([tensor for pair in there for tensor in pair], progress=told).results
    by_role: dict[Role, Same] = {}
    for index, (old, new) in enumerate(there):
        one, other = results[2 * index], results[2 * index + 1]
        if not isinstance(one, Stats) or not isinstance(other, Stats):
            found.skipped.append(Skipped(label(new), str(one if not isinstance(one, Stats) else other)))
        elif (old.ref.order, old.ref.repeat) != (new.ref.order, new.ref.repeat):
            found.skipped.append(Skipped(label(new), "its elements lie in another order"))
        else:
            same = by_role.setdefault(new.role, Same(new.role))
            (same.identical if one.fingerprint == other.fingerprint else same.changed).append(called(new))
    found.others = list(by_role.values())


def _phase(progress: Progress | None, what: str) -> Callable[[int, int], None] | None:
    return None if progress is None else lambda done, total: progress(what, done, total)


# -- all else ---------------------------------------------------------------------------------------------------------


def _span(group: Group) -> Any:
    return group.step_max if group.step_min == group.step_max else (group.step_min, group.step_max)


_GROUP: Mapping[str, Callable[[Group], Any]] = {
    "optimizer": lambda g: g.optimizer or None, "lr": lambda g: g.lr, "betas": lambda g: g.betas,
    "eps": lambda g: g.eps, "weight_decay": lambda g: g.weight_decay, "momentum": lambda g: g.momentum, "step": _span,
    "parameters": lambda g: len(g.names),
}  # fmt: skip


def _groups(before: Iterable[Group], after: Iterable[Group]) -> list[Change]:
    """What changed in the groups of the same number and rank."""
    olds, news = ({(g.rank, g.group): g for g in groups} for groups in (before, after))
    changes: list[Change] = []
    for key in dict.fromkeys([*olds, *news]):
        rank, number = key
        name = f"group {number}" if rank is None else f"group {number}@{rank}"
        old, new = olds.get(key), news.get(key)
        if old is None or new is None:
            held = ("there" if old else None, "there" if new else None)
            changes.append(Change(name, *held))
            continue
        given = ({what: read(group) for what, read in _GROUP.items()} | dict(group.values) for group in (old, new))
        changes += [Change(f"{name} {what}", x, y) for what, x, y in _changes(*given)]
    return changes


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Change]:
    """The keys whose values differ. NaN is the same as NaN."""
    keys = dict.fromkeys([*before, *after])
    return [
        Change(key, before.get(key), after.get(key)) for key in keys if repr(before.get(key)) != repr(after.get(key))
    ]
