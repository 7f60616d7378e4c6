"""Walking what a file holds: containers, records and tensors, each container once, whatever refers to whatever."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any, TypeAlias

from gradforensics.checkpoints.model import Checksum
from gradforensics.checkpoints.refs import Lost, TensorRef, strided
from gradforensics.checkpoints.samples import elements
from gradforensics.untrusted.dtypes import FLOATS, ITEMSIZE
from gradforensics.untrusted.files import Readable, RefusedError, Window
from gradforensics.untrusted.inert import Array, Global, Record, Storage, Tensor

Leaf: TypeAlias = Tensor | Array | TensorRef | Lost
LEAVES = (Tensor, Array, TensorRef, Lost)
Path: TypeAlias = tuple[str, ...]

_MAX_DEPTH = 64
_MODULE_PARTS = ("_parameters", "_buffers", "_modules")  # of a pickled nn.Module: no part of a parameter's name
_LOCAL = ("_local_tensor", "_tensor")  # of a pickled DTensor: this rank's part


def children(value: Any) -> Iterator[tuple[str, Any]]:
    """The parts of a container with their keys as text; nothing for anything else."""
    if isinstance(value, Mapping):
        yield from ((_text(key), item) for key, item in value.items())
    elif isinstance(value, (list, tuple)):
        yield from ((str(index), item) for index, item in enumerate(value))
    elif isinstance(value, Record):
        yield from _of_record(value)


def _text(key: Any) -> str:
    """A key as a part of a path."""
    if isinstance(key, Global):
        return key.path
    if isinstance(key, tuple):
        return f"({', '.join(map(_text, key))})"
    return "?" if isinstance(key, Record) else str(key)


def _of_record(record: Record) -> Iterator[tuple[str, Any]]:
    attributes = record.attributes()
    yield from ((str(key), item) for key, item in attributes.items() if key not in _MODULE_PARTS)
    for part in _MODULE_PARTS:
        if isinstance(attributes.get(part), Mapping):
            yield from children(attributes[part])
    if not attributes and isinstance(record.state, (list, tuple)):
        yield from children(record.state)
    yield from ((str(key), item) for key, item in record.pairs if isinstance(key, (str, int)))
    yield from children(record.items)
    yield from children(record.args)


def walk(root: Any, *, into: Any = None) -> Iterator[tuple[Path, Any, Any]]:
    """Every container and every tensor below `root`, with its path and its parent, in file order; each object once.

    into: called with a container; where it answers False its parts are left out.
    """
    seen: set[int] = set()
    stack: list[tuple[Path, Any, Any]] = [((), root, None)]
    while stack:
        path, value, parent = stack.pop()
        is_leaf = isinstance(value, LEAVES)
        if not is_leaf and not isinstance(value, (Mapping, list, tuple, Record)):
            continue
        if id(value) in seen and not is_leaf:
            continue
        seen.add(id(value))
        yield path, value, parent
        if is_leaf or len(path) >= _MAX_DEPTH or (into is not None and not into(value)):
            continue
        stack.extend(reversed([((*path, key), item, value) for key, item in children(value)]))


def reference(leaf: Leaf, name: str) -> TensorRef:
    """Where a tensor's elements lie. Raises RefusedError where they are not there or not to be read."""
    if isinstance(leaf, TensorRef):
        return leaf
    if isinstance(leaf, Lost):
        raise RefusedError(leaf.why)
    if isinstance(leaf, Array):
        if not leaf.dtype:
            raise RefusedError("an array of Python objects")
        leaf = leaf.tensor(name)
    storage = leaf.storage
    if not prod(leaf.shape):
        return TensorRef(leaf.dtype, leaf.shape, ())
    if storage.file is None or storage.offset is None:
        raise RefusedError(
            "its bytes are not in the file" if storage.device != "meta" else "a meta tensor has no bytes"
        )
    file, offset = storage.file, storage.offset
    whole, offset = _whole(file, offset)
    return strided(whole, offset + leaf.offset * ITEMSIZE[leaf.dtype], leaf.dtype, leaf.shape, leaf.stride)


def _whole(file: Readable, offset: int) -> tuple[Readable, int]:
    """The file that a part of one lies in, and the byte there."""
    return (file.whole, file.start + offset) if isinstance(file, Window) else (file, offset)


def number(leaf: Any) -> float | int | None:
    """The value of a number or of a tensor of one element, None for anything else."""
    if isinstance(leaf, bool):
        return None
    if isinstance(leaf, (int, float)):
        return leaf
    if not isinstance(leaf, LEAVES) or prod(leaf.shape) != 1:
        return None
    try:
        value = float(elements(reference(leaf, ""))[0])
    except (RefusedError, OSError, IndexError):
        return None
    return value if leaf.dtype in FLOATS else int(value)


def record_checksum(storage: Storage) -> Checksum | None:
    """The stated CRC-32 of the record in which a storage lies, or None."""
    if storage.crc is None or storage.record is None or storage.offset is None or storage.file is None:
        return None
    file, offset = _whole(storage.file, storage.offset)
    return Checksum(file, offset, storage.record, storage.crc)


def covers(ref: TensorRef, check: Checksum) -> bool:
    """Whether a tensor's bytes, in reading order, are exactly those of a checksum."""
    if len(ref.runs) != 1 or ref.runs[0].step != 1:
        return False
    run = ref.runs[0]
    return run.offset == check.offset and run.count * ref.itemsize == check.count


def local_part(value: Any) -> Leaf | None:
    """This rank's part of a pickled DTensor or ShardedTensor, or None where the value is neither."""
    if not isinstance(value, Record):
        return None
    if value.path.endswith(".DTensor"):
        for key in _LOCAL:
            part = value.get(key)
            if isinstance(part, (Tensor, Array)):
                return part
    if value.path.endswith(".ShardedTensor") and isinstance(value.state, tuple) and value.state:
        shards = value.state[0]
        if isinstance(shards, list) and len(shards) == 1 and isinstance(shards[0], Record):
            part = shards[0].get("tensor")
            return part if isinstance(part, (Tensor, Array)) else None
    return None


def scalar(value: Any) -> Any:
    """A setting's value as plain data: of an enum its value, of anything that is no scalar None."""
    if isinstance(value, (str, bool, int, float)) or value is None:
        return value
    if isinstance(value, Global):
        return value.name if value.module == "torch" else value.path
    if isinstance(value, Record) and len(value.args) == 1 and isinstance(value.args[0], (str, int, float)):
        return value.args[0]
    return None


def is_scalar(value: Any) -> bool:
    """Whether `scalar` has an answer for it."""
    return value is None or scalar(value) is not None


def flatten(value: Any, limit: int = 2000) -> Iterator[tuple[str, Any]]:
    """The scalars and short lists of scalars below a mapping or record, names joined with dots."""
    count = 0
    for path, item, _ in walk(value):
        if not isinstance(item, (Mapping, Record)):
            continue
        entries = item.items() if isinstance(item, Mapping) else item.attributes().items()
        for key, entry in entries:
            if isinstance(key, (Record, Global)) or count >= limit:
                continue
            name = ".".join((*path, str(key)))
            if is_scalar(entry):
                count += 1
                yield name, scalar(entry)
            elif isinstance(entry, (list, tuple)) and len(entry) <= 16 and all(is_scalar(part) for part in entry):
                count += 1
                yield name, [scalar(part) for part in entry]
