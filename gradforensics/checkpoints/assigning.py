"""The optimizer states of a run's checkpoints get the names of their parameters, and checksums go to their tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from gradforensics.checkpoints import naming, sharing, tree
from gradforensics.checkpoints.load import Loaded, Optimizer
from gradforensics.checkpoints.model import Checkpoint, Naming, Tensor
from gradforensics.checkpoints.optimizer import role_of
from gradforensics.checkpoints.refs import Lost, TensorRef
from gradforensics.untrusted.files import RefusedError


def name(loaded: Sequence[Loaded]) -> None:
    """Give the optimizer states of checkpoints of one run, in order, the names of their parameters.

    Two neighbouring checkpoints help where order does not tell (see naming.name_states). Groups whose betas a schedule
    moves are marked on the way.
    """
    _mark_varied(loaded)
    optimizers = [(index, optimizer) for index, one in enumerate(loaded) for optimizer in one.optimizers]
    found = [_names(optimizer, _pair(loaded, index, optimizer)) for index, optimizer in optimizers]
    told = [
        sharing.Told(optimizer.state, _like(optimizer), _shapes(loaded[index].checkpoint, optimizer.rank), *names)
        for (index, optimizer), names in zip(optimizers, found, strict=True)
    ]
    for (index, optimizer), (names, naming_) in zip(optimizers, sharing.shared(told), strict=True):
        _apply(loaded[index].checkpoint, optimizer, names, naming_)
    for one in loaded:
        _note_behind(one.checkpoint)
        _group_checksums(one)


def _note_behind(checkpoint: Checkpoint) -> None:
    """Keep the counters of the parameters that had fewer steps than others."""
    most = max(checkpoint.counters.values(), default=0)
    behind = {parameter: step for parameter, step in checkpoint.counters.items() if step < most}
    if behind:
        checkpoint.facts["optimizer.behind"] = behind


def _mark_varied(loaded: Sequence[Loaded]) -> None:
    """Mark the groups whose betas differ between checkpoints, or which OneCycleLR or CyclicLR say that they move."""
    betas: dict[tuple[str, int | None, int], set[tuple[float, float] | None]] = {}
    every = [
        (one.checkpoint, (*_like(optimizer), group.group), group)
        for one in loaded
        for optimizer in one.optimizers
        for group in optimizer.state.groups
    ]
    # groups that stand flattened in the file are known already
    every += [(one.checkpoint, ("", g.rank, g.group), g) for one in loaded for g in one.checkpoint.groups]
    for _, place, group in every:
        betas.setdefault(place, set()).add(group.betas)
    for checkpoint, place, group in every:
        cycled = any(key.endswith(".cycle_momentum") and value for key, value in checkpoint.facts.items())
        group.varied = cycled or "max_momentum" in group.values or len(betas[place]) > 1


def _like(optimizer: Optimizer) -> tuple[str, int | None]:
    """What the same optimizer has in other checkpoints of a run: where in the file it stands, and its rank."""
    return optimizer.key, optimizer.rank


def _pair(loaded: Sequence[Loaded], index: int, optimizer: Optimizer) -> naming.Pair | None:
    """The weights of one rank in a checkpoint and in the one before it, else in the one behind it."""
    rank = optimizer.rank
    for other in (index - 1, index + 1):
        if not 0 <= other < len(loaded):
            continue
        first, second = (loaded[i].checkpoint for i in sorted((index, other)))
        if first.step is not None and second.step is not None and first.step < second.step:
            before, after = _weights(first, rank), _weights(second, rank)
            if before.keys() & after.keys():
                further = _one_update(loaded[other], optimizer) if other < index else frozenset()
                return naming.Pair(before, after, further)
    return None


def _one_update(earlier: Loaded, optimizer: Optimizer) -> frozenset[str]:
    """The ids of the states that are one update further than they, or the absence of a state, were in `earlier`."""
    same = next((other for other in earlier.optimizers if _like(other) == _like(optimizer)), None)
    theirs = [] if same is None else [group.names for group in same.state.groups]
    if same is None or theirs != [group.names for group in optimizer.state.groups[: len(theirs)]]:
        return frozenset()  # groups may have joined; ids of others would be other parameters'
    before, after = same.state.steps, optimizer.state.steps
    return frozenset(identity for identity, step in after.items() if step == before.get(identity, 0) + 1)


def _shapes(checkpoint: Checkpoint, rank: int | None) -> dict[str, tuple[int, ...]]:
    """Of every parameter, by name."""
    return {name: ref.shape for name, ref in _weights(checkpoint, rank).items()}


def _weights(checkpoint: Checkpoint, rank: int | None) -> dict[str, TensorRef]:
    return {t.name: t.ref for t in checkpoint.tensors if t.role == "param" and not t.lost and t.rank in (rank, None)}


def _names(optimizer: Optimizer, pair: naming.Pair | None) -> tuple[dict[str, str], Naming]:
    try:
        return naming.name_states(optimizer.state, optimizer.sources, pair=pair)
    except RefusedError as error:
        return {}, Naming(f"No names: {error}", "none")


def _apply(checkpoint: Checkpoint, optimizer: Optimizer, names: Mapping[str, str], found: Naming) -> None:
    """Write the names into the checkpoint, with its groups and states."""
    state = optimizer.state
    if found.sure in ("none", "likely") and _may_ask(checkpoint, optimizer.sources):
        found = replace(found, how=f"{found.how} --names-from-config asks transformers, which may know more.")
    if checkpoint.naming is None or found.sure == "none":
        checkpoint.naming = found
    groups = naming.with_names(state.groups, names)
    for position, (group, ids) in enumerate(zip(groups, state.groups, strict=True)):
        group.group, group.rank = len(checkpoint.groups), optimizer.rank
        checkpoint.groups.append(group)
        for place, identity in enumerate(ids.names):
            master = optimizer.masters.get((position, place))
            if master is not None and identity in names:
                master.name = names[identity]
    for identity, tensors in state.states.items():
        parameter = names.get(identity)
        for key, ref in tensors.items():
            path = f"{optimizer.key}.state.{identity}.{key}".lstrip(".")
            tensor = Tensor(
                parameter or path, role_of(key, ref.dtype), _held(ref), optimizer.file, path, optimizer.rank
            )
            tensor.lost = ref.why if isinstance(ref, Lost) else ""
            checkpoint.tensors.append(tensor)
    for identity, step in state.steps.items():
        if identity in names:
            checkpoint.counters[names[identity]] = step


def _may_ask(checkpoint: Checkpoint, sources: Sequence[naming.NameSource]) -> bool:
    """Whether there is a model's config.json that was not asked for the order of the parameters."""
    described = any(PurePosixPath(file).name == "config.json" for file in checkpoint.files)
    return described and not any(source.kind == "config" for source in sources)


def _held(ref: TensorRef | Lost) -> TensorRef:
    return TensorRef(ref.dtype, ref.shape, ()) if isinstance(ref, Lost) else ref


def _group_checksums(loaded: Loaded) -> None:
    """Checksums that cover exactly one tensor go with it: its bytes are then read once."""
    by_place = {(id(c.file), c.offset): c for c in loaded.checks}
    for tensor in loaded.checkpoint.tensors:
        run = tensor.ref.runs[0] if len(tensor.ref.runs) == 1 else None
        check = by_place.get((id(run.file), run.offset)) if run else None
        if check is not None and tree.covers(tensor.ref, check):
            tensor.checksum = check
            by_place.pop((id(check.file), check.offset))
    loaded.checkpoint.checksums = list(by_place.values())
