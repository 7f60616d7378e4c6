"""DeepSpeed directories: the partitions of ZeRO 1 to 3 joined to parameters.

ZeRO 1 and 2: every rank of a data-parallel group holds one part of each group's flat vector; the parts one after
the other are the parameters of `param_shapes` in order. ZeRO 3: every parameter is cut into as many equal parts as
there are ranks (the last one padded); each rank's flat vector holds its parts in the order of `param_shapes`. Both as
deepspeed.utils.zero_to_fp32 puts them together.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from gradforensics.checkpoints import layout, tree
from gradforensics.checkpoints.formats import torch_file
from gradforensics.checkpoints.layout import Content, Found
from gradforensics.checkpoints.model import Fault
from gradforensics.checkpoints.refs import Lost, Run, TensorRef
from gradforensics.untrusted import pickles
from gradforensics.untrusted.files import Readable, RefusedError
from gradforensics.untrusted.inert import Record, Tensor, whole_numbers

NAME = re.compile(
    r"^(?:bf16_)?(?:zero_pp_rank_(?P<data>\d+)_)?mp_rank_(?P<model>\d+)_(?P<kind>model|optim)_states\.pt$"
)
_KINDS = ("exp_avg", "exp_avg_sq", "momentum_buffer")


@dataclass(slots=True)
class Part:
    """What one model-parallel rank's files hold, joined over its data-parallel ranks. `file` is the model's file."""

    content: Content
    file: str
    rank: int


@dataclass(slots=True)
class DeepSpeedDirectory:
    """One part per model-parallel rank; what is missing or contradicts. `uses`: of files that could not be read."""

    parts: list[Part] = field(default_factory=list)
    opened: list[tuple[str, torch_file.TorchFile]] = field(default_factory=list)
    uses: list[tuple[str, Mapping[str, pickles.Use]]] = field(default_factory=list)
    notices: list[tuple[str, str]] = field(default_factory=list)
    complete: bool = True
    faults: list[Fault] = field(default_factory=list)


def read(files: Mapping[str, Readable]) -> DeepSpeedDirectory:
    """Read the files of one directory, by name. A file that cannot be read is left out with a notice."""
    found = DeepSpeedDirectory()
    models: dict[int, list[tuple[int, str, Any]]] = {}
    states: dict[int, list[tuple[int, str, Any]]] = {}
    for name, file in files.items():
        matched = NAME.match(name)
        if matched is None:
            continue
        try:
            opened = torch_file.read(file)
        except RefusedError as error:
            found.notices.append((file.name, f"not read: {error}"))
            found.uses.append((file.name, error.uses))
            found.complete = False
            if error.damage is not None:
                found.faults.append(Fault(error.damage, file.name, f"not read: {error}"))
            continue
        found.opened.append((file.name, opened))
        target = models if matched["kind"] == "model" else states
        target.setdefault(int(matched["model"]), []).append((int(matched["data"] or 0), file.name, opened.root))
    for rank in sorted(models.keys() | states.keys()):
        _part(found, rank, sorted(models.get(rank, []), key=_rank), sorted(states.get(rank, []), key=_rank))
    return found


def _rank(item: tuple[int, str, Any]) -> int:
    return item[0]


def _part(
    found: DeepSpeedDirectory, rank: int, models: Sequence[tuple[int, str, Any]], states: Sequence[tuple[int, str, Any]]
) -> None:
    if not models:
        found.complete = False
        found.notices.append((states[0][1], f"the model states of model-parallel rank {rank} are missing"))
    first = models[0] if models else states[0]
    content = layout.understand(first[2])
    settings = [layout.understand(root).settings for _, _, root in states[:1]]
    content.settings += [item for part in settings for item in part if item not in content.settings]
    if states:
        root = first[2] if isinstance(first[2], dict) else {}
        try:
            _join(content, root, states, found)
        except RefusedError as error:
            found.complete = False
            found.notices.append((states[0][1], f"its partitions cannot be joined: {error}"))
    found.parts.append(Part(content, first[1], rank))


def _join(
    content: Content, model: Mapping[Any, Any], states: Sequence[tuple[int, str, Any]], found: DeepSpeedDirectory
) -> None:
    optimizers = [root.get("optimizer_state_dict") if isinstance(root, dict) else None for _, _, root in states]
    ranks: list[Mapping[Any, Any]] = [o for o in optimizers if isinstance(o, Mapping)]
    if len(ranks) < len(states):
        raise RefusedError("a rank's file holds no optimizer state")
    world = _world(model, ranks[0])
    steps = sorted({n for _, _, root in states if (n := _steps(root)) is not None})
    if world is not None and world != len(ranks):
        found.complete = False
        text = f"{len(ranks)} of {world} ranks have saved their partition"
        found.faults.append(Fault("missing", states[0][1], text))
        raise RefusedError(text)
    if len(steps) > 1:
        found.complete = False
        found.notices.append((states[0][1], f"its ranks saved different steps: {steps}"))
    shapes = _shapes(model.get("param_shapes"))
    stage3 = "fp32_flat_groups" in ranks[0]
    if stage3:  # the model's file holds empty tensors in their place
        partitioned = {name for group in shapes for name in group}
        content.tensors = [t for t in content.tensors if t.name not in partitioned or 0 not in t.leaf.shape]
    inner = [_inner(rank, stage3=stage3) for rank in ranks]
    groups: list[dict[str, Any]] = []
    named: dict[str, dict[str, Any]] = {}
    for index, group in enumerate(shapes):
        for kind in ("master", *_KINDS):
            flats = [_flat(rank, state, index, kind, stage3=stage3) for rank, state in zip(ranks, inner, strict=True)]
            whole = [flat for flat in flats if flat is not None]
            if len(whole) < len(flats):
                continue
            for name, ref in _cut(group, whole, stage3=stage3):
                if kind == "master":
                    content.tensors.append(Found(("master", name), ref, "master", name))
                else:
                    named.setdefault(name, {})[kind] = ref
        step = tree.number(_state(inner[0], index).get("step"))
        for name in group:
            if step is not None:
                named.setdefault(name, {})["step"] = step
        groups.append({**_hyper(inner[0], index), "params": list(group)})
    if named or any(groups):
        content.optimizers = [(("optimizer",), {"state": named, "param_groups": groups})]
    scaler = ranks[0].get("loss_scaler")
    if isinstance(scaler, Record):
        for key, value in scaler.attributes().items():
            if isinstance(key, str) and (single := tree.number(value)) is not None:
                content.facts.setdefault(f"scaler.{key}", single)


def _world(model: Mapping[Any, Any], rank: Mapping[Any, Any]) -> int | None:
    stated = model.get("dp_world_size")
    if type(stated) is int:
        return stated
    count = rank.get("partition_count")
    count = count[0] if isinstance(count, list) and count else count
    return count if type(count) is int else None


def _steps(root: Any) -> int | None:
    inner = root.get("optimizer_state_dict") if isinstance(root, dict) else None
    state = _state(_inner(inner, stage3="fp32_flat_groups" in inner), 0) if isinstance(inner, Mapping) else {}
    step = tree.number(state.get("step"))
    return None if step is None else int(step)


def _shapes(value: Any) -> list[dict[str, tuple[int, ...]]]:
    """Names and shapes of the trainable parameters, group by group."""
    groups = value if isinstance(value, list) else [value]
    found: list[dict[str, tuple[int, ...]]] = []
    for group in groups:
        if not isinstance(group, Mapping):
            raise RefusedError("the model's file does not name the parameters (param_shapes)")
        found.append({str(name): whole_numbers(shape, "size") for name, shape in group.items()})
    return found


def _inner(rank: Mapping[Any, Any], *, stage3: bool) -> Mapping[Any, Any]:
    """The state dict of the optimizer that DeepSpeed wraps."""
    inner = rank.get("optimizer_state_dict" if stage3 else "base_optimizer_state")
    return inner if isinstance(inner, Mapping) else {}


def _state(inner: Mapping[Any, Any], index: int) -> Mapping[Any, Any]:
    states = inner.get("state")
    state = states.get(index) if isinstance(states, Mapping) else None
    return state if isinstance(state, Mapping) else {}


def _hyper(inner: Mapping[Any, Any], index: int) -> dict[str, Any]:
    groups = inner.get("param_groups")
    group = groups[index] if isinstance(groups, list) and index < len(groups) else None
    if not isinstance(group, Mapping):
        return {}
    return {str(key): tree.scalar(value) if tree.is_scalar(value) else value for key, value in group.items()}


def _flat(rank: Mapping[Any, Any], inner: Mapping[Any, Any], index: int, kind: str, *, stage3: bool) -> Any:
    """One rank's flat vector of one group, or None where it has none of this kind."""
    if kind == "master":
        parts = rank.get("fp32_flat_groups" if stage3 else "single_partition_of_fp32_groups")
        leaf = parts[index] if isinstance(parts, list) and index < len(parts) else None
    else:
        leaf = _state(inner, index).get(kind)
    return leaf if isinstance(leaf, Tensor) and len(leaf.shape) == 1 else None


def _cut(
    group: Mapping[str, tuple[int, ...]], flats: Sequence[Tensor], *, stage3: bool
) -> Iterator[tuple[str, TensorRef | Lost]]:
    """The parameters of a group out of the ranks' flat vectors."""
    dtype = flats[0].dtype
    vectors: list[TensorRef | None] = []
    for flat in flats:
        try:
            vectors.append(tree.reference(flat, ""))
        except RefusedError:
            vectors.append(None)  # a cut file: what lies in the other ranks' files is still read
    sizes = [flat.shape[0] for flat in flats]
    at = 0
    for name, shape in group.items():
        count = prod(shape)
        if stage3:
            part = -(-count // len(flats))
            pieces = [(rank, at, min(part, max(0, count - rank * part))) for rank in range(len(flats))]
            at += part
        else:
            pieces = list(_spread(sizes, at, count))
            at += count
        if any(start + size > sizes[rank] for rank, start, size in pieces) or sum(p[2] for p in pieces) != count:
            raise RefusedError("the parameters need more elements than the partitions hold")
        runs: list[Run] = []
        lost = False
        for rank, start, size in pieces:
            vector = vectors[rank]
            if vector is None:
                lost = lost or size > 0
            elif size:
                run = vector.runs[0]
                runs.append(Run(run.file, run.offset + start * vector.itemsize, size))
        yield name, Lost(dtype, shape, "a rank's file is cut") if lost else TensorRef(dtype, shape, tuple(runs))


def _spread(sizes: Sequence[int], at: int, count: int) -> Iterator[tuple[int, int, int]]:
    """(rank, first element, elements) of a range of the ranks' vectors laid end to end."""
    begin = 0
    for rank, size in enumerate(sizes):
        low, high = max(at, begin), min(at + count, begin + size)
        if low < high:
            yield rank, low - begin, high - low
        begin += size
