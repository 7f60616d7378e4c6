"""torch.distributed.checkpoint directories: `.metadata` names every tensor and where its chunks lie in `.distcp` files.

A chunk is a small torch.save archive inside a .distcp file. Megatron's dist-checkpointing writes the same, without the
planner's paths, and keeps what is no tensor in common.pt beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

from gradforensics.checkpoints.formats import torch_file
from gradforensics.checkpoints.model import Checksum, Fault
from gradforensics.checkpoints.refs import MAX_RUNS, Lost, Run, TensorRef
from gradforensics.checkpoints.tree import reference
from gradforensics.untrusted import dtypes, pickles
from gradforensics.untrusted.files import DamagedError, Readable, RefusedError, Window
from gradforensics.untrusted.inert import Global, Record, Tensor, dtype_of, whole_numbers

_MAX_ITEM = 64 << 20


@dataclass(slots=True)
class DcpDirectory:
    """`root`: nested dictionaries and lists by the planner's paths, or flat by name where there is no planner.

    Leaves are TensorRef, Lost or plain data. ordered: whether the names stand in the order of the saved state dict.
    checks: checksums of all chunks; uses: names that loading would import.
    """

    root: dict[str, Any]
    checks: list[Checksum] = field(default_factory=list)
    uses: dict[str, pickles.Use] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    complete: bool = True
    faults: list[Fault] = field(default_factory=list)
    ordered: bool = False


class _Place(NamedTuple):
    offset: tuple[int, ...] | None
    file: str
    start: int
    length: int


def read(metadata: Readable, payload: Mapping[str, Readable]) -> DcpDirectory:
    """Read a directory. payload: the files beside .metadata, by name. Raises RefusedError, OSError."""
    loaded = torch_file.read(metadata, limits=pickles.Limits.for_size(metadata.size))
    root = loaded.root
    if not isinstance(root, Record) or not isinstance(root.get("state_dict_metadata"), dict):
        raise RefusedError("a .metadata file that describes no state")
    found = DcpDirectory({}, uses=loaded.uses)
    places = _places(root.get("storage_data"), found)
    reader = _Chunks(payload, found)
    paths = root.get("planner_data")
    flat: dict[str, Any] = {}
    for name, entry in root.get("state_dict_metadata").items():
        if isinstance(name, str) and isinstance(entry, Record):
            flat[name] = reader.item(name, entry, places.get(name, []))
    found.ordered = isinstance(paths, dict)
    found.root = _nested(flat, paths) if isinstance(paths, dict) else flat
    found.files = sorted({place.file for parts in places.values() for place in parts})
    absent = [file for file in found.files if file not in payload]
    if absent:
        found.complete = False
        text = f"{len(absent)} of {len(found.files)} data files are missing, such as {absent[0]}"
        found.notices.append(text)
        if len(absent) < len(found.files):  # where none is there, the weights were left out on purpose
            found.faults.append(Fault("missing", metadata.name, text))
    if reader.damaged:
        found.complete = False
        found.notices.append(f"{len(reader.damaged)} chunks cannot be read, such as {reader.damaged[0]}")
    return found


def _places(storage: Any, found: DcpDirectory) -> dict[str, list[_Place]]:
    """Where the chunks of every name lie."""
    places: dict[str, list[_Place]] = {}
    torn = 0
    for index, info in (storage if isinstance(storage, dict) else {}).items():
        if not isinstance(index, Record) or not isinstance(info, Record):
            torn += 1
            continue
        name, offset = index.get("fqn"), index.get("offset")
        file, start, length = info.get("relative_path"), info.get("offset"), info.get("length")
        sizes = (start, length)
        if not isinstance(name, str) or not isinstance(file, str) or any(type(n) is not int or n < 0 for n in sizes):
            torn += 1
            continue
        at = None if offset is None else whole_numbers(offset, "offset")
        places.setdefault(name, []).append(_Place(at, file, start, length))
    if torn:
        found.complete = False
        found.notices.append(f"{torn} entries of its storage table are torn")
    return places


class _Chunks:
    """The chunks of one directory: opened, checked against what the metadata says, and joined."""

    def __init__(self, payload: Mapping[str, Readable], found: DcpDirectory) -> None:
        self.payload, self.found = payload, found
        self.damaged: list[str] = []

    def item(self, name: str, entry: Record, places: list[_Place]) -> Any:
        if entry.path.endswith("BytesStorageMetadata"):
            return self._bytes(name, places)
        shape = whole_numbers(entry.get("size"), "size")
        dtype = _dtype(entry.get("properties"))
        if dtype is None:
            return Lost("uint8", shape, "its element type is not known")
        parts: list[tuple[tuple[int, ...], tuple[int, ...], TensorRef]] = []
        for place in places:
            ref = self._tensor(name, place, dtype)
            if ref is not None:
                parts.append((place.offset or (0,) * len(shape), ref.shape, ref))
        if not parts:
            return Lost(dtype, shape, "its data file is missing or damaged")
        try:
            return join(dtype, shape, parts)
        except RefusedError as error:
            self.found.complete = False
            return Lost(dtype, shape, str(error))

    def _open(self, place: _Place) -> Window | None:
        file = self.payload.get(place.file)  # a name of this directory only: a path elsewhere is never followed
        if file is None:
            return None
        if place.start + place.length > file.size:
            text = f"{place.file} ends at byte {file.size}, a chunk at {place.start + place.length}"
            raise DamagedError("cut", text)
        return Window(file, place.start, place.length)

    def _bytes(self, name: str, places: list[_Place]) -> Any:
        for place in places:
            try:
                window = self._open(place)
                if window is None or not place.length or place.length > _MAX_ITEM:
                    continue
                with window.open() as opened:
                    head = opened.read(0, min(4, opened.size))
                if not torch_file.looks_like_one(head):
                    continue
                loaded = torch_file.read(window)
            except RefusedError as error:
                self._damaged(name, place, error)
                continue
            self.found.uses |= loaded.uses
            return loaded.root
        return None

    def _damaged(self, name: str, place: _Place, error: RefusedError) -> None:
        self.found.uses |= error.uses
        self.damaged.append(f"{name} in {place.file} ({error})")
        if error.damage is not None:
            file = self.payload[place.file].name if place.file in self.payload else place.file
            self.found.faults.append(Fault(error.damage, file, f"chunk {name}: {error}"))

    def _tensor(self, name: str, place: _Place, dtype: str) -> TensorRef | None:
        try:
            window = self._open(place)
            if window is None:
                return None
            opened = torch_file.read(window)
            ref = _reference(opened.root, dtype)
        except RefusedError as error:
            self._damaged(name, place, error)
            return None
        self.found.uses |= opened.uses
        self.found.checks += opened.checks()
        return ref


def _reference(tensor: Any, dtype: str) -> TensorRef:
    if not isinstance(tensor, Tensor) or tensor.dtype != dtype:
        raise RefusedError("it holds no tensor of the element type that the metadata states")
    return reference(tensor, "")


def _dtype(properties: Any) -> str | None:
    if not isinstance(properties, Record):
        return None
    state = properties.state
    kind = (
        properties.get("dtype")
        if isinstance(state, dict)
        else (state[0] if isinstance(state, tuple) and state else None)
    )
    return dtype_of(kind)


def _nested(flat: dict[str, Any], paths: Mapping[Any, Any]) -> dict[str, Any]:
    """The nested state by the planner's paths; a name without a path stays at the top."""
    root: dict[str, Any] = {}
    for name in [*(n for n in paths if n in flat), *(n for n in flat if n not in paths)]:
        value, path = flat[name], paths.get(name)
        if not isinstance(path, tuple) or not path or not all(isinstance(part, (str, int)) for part in path):
            root[name] = value
            continue
        node: Any = root
        for part in path[:-1]:
            following = node.get(part) if isinstance(node, dict) else None
            if not isinstance(following, dict):
                following = {}
                node[part] = following
            node = following
        node[path[-1]] = value
    listed = _lists(root)
    return listed if isinstance(listed, dict) else root


def _lists(value: Any, depth: int = 0) -> Any:
    """Dictionaries whose keys are 0, 1, 2 ... become the lists that they were, but not the states of an optimizer."""
    if not isinstance(value, dict) or depth > 32:
        return value
    made = {key: _lists(item, depth + 1) if key != "state" else item for key, item in value.items()}
    if made and list(made) == list(range(len(made))):
        return list(made.values())
    return made


# -- joining ----------------------------------------------------------------------------------------------------------


def join(
    dtype: str, shape: tuple[int, ...], parts: list[tuple[tuple[int, ...], tuple[int, ...], TensorRef]]
) -> TensorRef:
    """One tensor from its chunks, each (offset, size, reference). Raises RefusedError where they leave gaps."""
    placed: list[tuple[int, Run]] = []
    for offset, size, ref in parts:
        if len(offset) != len(shape) or len(size) != len(shape):
            raise RefusedError("a chunk with another number of dimensions than its tensor")
        if any(o + n > whole for o, n, whole in zip(offset, size, shape, strict=True)):
            raise RefusedError("a chunk that reaches beyond its tensor")
        if prod(size):
            placed.extend(_rows(shape, offset, size, ref))
        if len(placed) > MAX_RUNS:
            raise RefusedError("chunks whose rows lie in too many separate places")
    placed.sort(key=lambda item: item[0])
    runs: list[Run] = []
    at = 0
    for first, run in placed:
        if first < at:
            continue  # a replica of what another rank already gave
        if first > at:
            raise RefusedError(f"elements {at} to {first} of {prod(shape)} are in no chunk")
        at += run.count
        last = runs[-1] if runs else None
        if last and last.file is run.file and last.offset + last.count * dtypes.ITEMSIZE[dtype] == run.offset:
            runs[-1] = Run(last.file, last.offset, last.count + run.count)
        else:
            runs.append(run)
    if at != prod(shape):
        raise RefusedError(f"elements {at} to {prod(shape)} are in no chunk")
    return TensorRef(dtype, shape, tuple(runs))


def _rows(
    shape: tuple[int, ...], offset: tuple[int, ...], size: tuple[int, ...], ref: TensorRef
) -> Iterator[tuple[int, Run]]:
    """The contiguous pieces of a chunk with the index of their first element in the whole tensor."""
    if len(ref.runs) != 1 or ref.order is not None or ref.runs[0].step != 1:
        raise RefusedError("a chunk that is no contiguous tensor")
    strides = [prod(shape[axis + 1 :]) for axis in range(len(shape))]
    start = sum(o * s for o, s in zip(offset, strides, strict=True))
    axis = len(shape)
    while axis > 0 and size[axis - 1 :] == shape[axis - 1 :]:
        axis -= 1
    outer, length = size[: max(axis - 1, 0)], prod(size[max(axis - 1, 0) :])
    count = prod(outer)
    if count > MAX_RUNS:
        raise RefusedError("a chunk whose rows lie in too many separate places")
    run = ref.runs[0]
    for row in range(count):
        rest, first = row, start
        for place in reversed(range(len(outer))):
            rest, index = divmod(rest, outer[place])
            first += index * strides[place]
        yield first, Run(run.file, run.offset + row * length * ref.itemsize, length)


def is_metadata(value: Any) -> bool:
    """Whether the root of a pickle is the metadata of such a directory."""
    return (
        isinstance(value, Record)
        and isinstance(value.cls, Global)
        and value.path.endswith("checkpoint.metadata.Metadata")
    )
