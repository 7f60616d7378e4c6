"""Files of torch.save, zip and legacy, and plain pickles: one root value in which the tensors are references.

Zip layout: data.pkl first, then one stored record per storage in order of first use. Legacy layout: magic number,
protocol, system, root and list of storage keys as five pickles, then every storage as its length and its bytes.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gradforensics.checkpoints import tree
from gradforensics.checkpoints.model import Checksum
from gradforensics.untrusted import dtypes, pickles, zips
from gradforensics.untrusted.files import Damage, DamagedError, Memory, Opened, Readable, RefusedError
from gradforensics.untrusted.inert import Global, Storage

_MAGIC = 0x1950A86A20F9469CFC6C
_LEGACY_PROTOCOL = 1001
_ZIP_START = b"PK\x03\x04"
_MAX_PICKLE = 256 << 20
_MAX_INFLATED = 16 << 20  # torch stores data.pkl
_MAX_KEY = 200
_INNER = pickles.Limits(memory=4 << 20, seconds=0.5)  # the small pickles of a legacy file, and files inside of a pickle
_KEYS = pickles.Limits(memory=32 << 20, seconds=0.5)
_MAX_SMALL_RECORDS = 100


@dataclass(slots=True)
class TorchFile:
    """What one file holds. kind: torch-zip, torchscript-zip, torch-legacy or pickle.

    uses: the names that loading it would import; storages: every storage by its key; missing: keys of those whose bytes
    are not there (a cut file, or a record that does not exist); notices: what is wrong with the file.
    """

    kind: str
    root: Any
    uses: dict[str, pickles.Use]
    storages: dict[str, Storage] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    damage: Damage | None = None

    @property
    def complete(self) -> bool:
        """Whether all that the file should hold is there."""
        return self.damage is None

    def checks(self) -> list[Checksum]:
        """The stated checksums of all storages whose bytes are there, each record once."""
        found: dict[int, Checksum] = {}
        for storage in self.storages.values():
            check = tree.record_checksum(storage)
            if check is not None:
                found[check.offset] = check
        return list(found.values())


def looks_like_one(head: bytes) -> bool:
    """Whether a file that begins so may be one of these formats (a zip archive or a pickle of protocol 2 and later)."""
    return head[:4] == _ZIP_START or (head[:1] == b"\x80" and len(head) > 1 and 2 <= head[1] <= 5)


def read(file: Readable, *, limits: pickles.Limits = pickles.ORDINARY) -> TorchFile:
    """Read the structure of a file, none of its tensors. Raises RefusedError, OSError."""
    with file.open() as opened:
        head = opened.read(0, min(4, opened.size))
        if head == _ZIP_START:
            return _zip(file, opened, limits)
        began = time.thread_time()
        first = pickles.load(opened, limits=limits, nested=_nested_storage)
        if first.value == _MAGIC:
            left = max(0.0, limits.seconds - (time.thread_time() - began))
            return _legacy(file, opened, first, pickles.Limits(limits.memory, left))
        found = TorchFile("pickle", first.value, first.uses)
        if first.end < opened.size:
            found.notices.append(f"{opened.size - first.end} bytes behind the end of the pickle are not read")
        return found


class _Storages:
    """The storages of one file by key, as persistent ids ask for them."""

    def __init__(self, file: Readable, find: Callable[[Storage], None]) -> None:
        self.file, self.find = file, find
        self.known: dict[str, Storage] = {}
        self.views: list[tuple[Storage, Storage, int]] = []

    def __call__(self, identifier: Any) -> Any:
        """What ("storage", class, key, device, elements[, view]) or ("module", class, ...) stands for."""
        if not isinstance(identifier, tuple) or not identifier or identifier[0] not in ("storage", "module"):
            raise RefusedError("a persistent id that is none of torch's")
        if identifier[0] == "module":
            return identifier[1] if len(identifier) > 1 else None
        if len(identifier) < 5:
            raise RefusedError("a storage without its class, key and size")
        kind, key, device, elements = identifier[1:5]
        dtype = dtypes.of_storage(kind.name) if isinstance(kind, Global) else None
        if dtype is None or type(elements) is not int or not 0 <= elements < 1 << 60:
            raise RefusedError("a storage of an unknown class, or whose size is none")
        if not isinstance(key, str) or len(key) > _MAX_KEY:
            raise RefusedError("a storage whose key is none")
        storage = self.known.get(key)
        if storage is None:
            size = elements * dtypes.ITEMSIZE[dtype]
            place = device[:40] if isinstance(device, str) else ""
            storage = self.known[key] = Storage(key, dtype, size, place, self.file)
            self.find(storage)
        view = identifier[5] if len(identifier) > 5 else None
        return storage if view is None else self._view(storage, view)

    def _view(self, storage: Storage, view: Any) -> Storage:
        """A part of a storage: (key, first element, elements), as files of torch before 0.4 hold it."""
        itemsize = dtypes.ITEMSIZE[storage.dtype]
        if (
            not isinstance(view, tuple)
            or len(view) != 3
            or any(type(n) is not int or n < 0 for n in view[1:])
            or (view[1] + view[2]) * itemsize > storage.nbytes
        ):
            raise RefusedError("a view that reaches beyond its storage")
        part = Storage(storage.key, storage.dtype, view[2] * itemsize, storage.device, self.file)
        self.views.append((part, storage, view[1] * itemsize))
        return part


# -- zip --------------------------------------------------------------------------------------------------------------


def _zip(file: Readable, opened: Opened, limits: pickles.Limits) -> TorchFile:
    try:
        archive = zips.read_directory(opened)
    except zips.CutError as error:
        return _salvage(file, opened, limits, str(error))
    names = [name for name in archive.entries if name.count("/") == 1 and name.endswith("/data.pkl")]
    if len(names) != 1:
        raise RefusedError("a zip archive without a data.pkl: not written by torch.save")
    prefix = names[0].removesuffix("data.pkl")
    order = archive.entries.get(f"{prefix}byteorder")
    if order is not None and archive.content(opened, order, 16) != b"little":
        raise RefusedError("big-endian tensors are not read")
    found = TorchFile("torchscript-zip" if f"{prefix}constants.pkl" in archive.entries else "torch-zip", None, {})

    def find(storage: Storage) -> None:
        entry = archive.entries.get(f"{prefix}data/{storage.key}")
        if storage.device == "meta":
            return
        if entry is None:
            found.missing.append(storage.key)
            return
        offset = archive.stored(opened, entry)
        if storage.nbytes > entry.size:
            raise RefusedError(
                f"storage {storage.key!r} should hold {storage.nbytes} bytes, its record has {entry.size}"
            )
        storage.offset, storage.record, storage.crc = offset, entry.size, entry.crc

    storages = _Storages(file, find)
    loaded = _data_pickle(opened, archive, names[0], limits, storages)
    found.root, found.uses, found.storages = loaded.value, loaded.uses, storages.known
    if found.missing:
        found.damage = "missing"
        found.notices.append(f"{len(found.missing)} storages have no record, such as {found.missing[0]!r}")
    return found


def _data_pickle(
    opened: Opened, archive: zips.Archive, name: str, limits: pickles.Limits, storages: _Storages
) -> pickles.Loaded:
    entry = archive.entries[name]
    if entry.size > _MAX_PICKLE:
        raise RefusedError(f"a data.pkl of {entry.size} bytes")
    if entry.method:
        data = Memory(name, archive.content(opened, entry, _MAX_INFLATED))
        with data.open() as pickle:
            return pickles.load(pickle, limits=limits, persistent=storages)
    start = archive.stored(opened, entry)
    sound = archive.is_sound(opened, entry, start)
    try:
        loaded = pickles.load(opened, start, start + entry.size, limits=limits, persistent=storages)
    except RefusedError as error:
        if sound:
            raise
        uses = error.uses
    else:
        if sound:
            return loaded
        uses = loaded.uses
    changed = DamagedError("changed", f"zip record {name!r}: its CRC-32 is wrong: the content was changed or damaged")
    changed.uses = uses
    raise changed


def _refused(text: str, uses: Mapping[str, pickles.Use]) -> RefusedError:
    error = RefusedError(text)
    error.uses = uses
    return error


def _salvage(file: Readable, opened: Opened, limits: pickles.Limits, why: str) -> TorchFile:
    """A zip archive without its directory: data.pkl is its first record, and tells the sizes of those that follow."""
    first = zips.local_record(opened, 0)
    if first is None or not first.name.endswith("/data.pkl") or first.name.count("/") != 1:
        raise RefusedError(why)
    storages = _Storages(file, lambda _: None)
    loaded = pickles.load(opened, first.start, limits=limits, persistent=storages)
    found = TorchFile("torch-zip", loaded.value, loaded.uses, storages.known, damage="cut")
    prefix = first.name.removesuffix("data.pkl")
    wanted = {f"{prefix}data/{key}": storage for key, storage in storages.known.items()}
    _, at = zips.descriptor(opened, loaded.end)
    small = 0
    while small < _MAX_SMALL_RECORDS and (record := zips.local_record(opened, at)) is not None:
        storage = wanted.pop(record.name, None)
        if storage is None:
            small += 1
            at = _end_of_small(opened, record.start)
            continue
        if record.start + storage.nbytes > opened.size:
            break
        storage.offset = record.start
        crc, at = zips.descriptor(opened, record.start + storage.nbytes)
        if crc is not None:
            storage.record, storage.crc = storage.nbytes, crc
    found.missing = [s.key for s in storages.known.values() if s.offset is None and s.device != "meta"]
    found.notices.append(
        f"{why}; {len(storages.known) - len(found.missing)} of {len(storages.known)} storages are whole"
    )
    return found


def _end_of_small(opened: Opened, start: int) -> int:
    """End of a short record of unknown size (the byte order ...): where the next header or descriptor stands."""
    head = opened.read(start, min(4096, opened.size - start))
    at = head.find(zips.DESCRIPTOR)
    if at < 0:
        following = head.find(_ZIP_START)
        return start + following if following >= 0 else opened.size
    return zips.descriptor(opened, start + at)[1]


# -- legacy -----------------------------------------------------------------------------------------------------------


def _legacy(file: Readable, opened: Opened, first: pickles.Loaded, limits: pickles.Limits) -> TorchFile:
    uses = dict(first.uses)

    def following(
        before: pickles.Loaded, within: pickles.Limits, persistent: _Storages | None = None
    ) -> pickles.Loaded:
        try:
            loaded = pickles.load(opened, before.end, limits=within, persistent=persistent)
        except RefusedError as error:
            _add(uses, error.uses)
            error.uses = uses
            raise
        _add(uses, loaded.uses)
        return loaded

    version = following(first, _INNER)
    if version.value != _LEGACY_PROTOCOL:
        raise _refused("a torch file of a protocol that is not known", uses)
    system = following(version, _INNER)
    if not isinstance(system.value, dict) or system.value.get("little_endian") is not True:
        raise _refused("a torch file whose system record is none, or that is big-endian", uses)
    storages = _Storages(file, lambda _: None)
    root = following(system, limits, storages)
    found = TorchFile("torch-legacy", root.value, uses, storages.known)
    try:
        _legacy_storages(opened, following(root, _KEYS), found)
    except RefusedError as error:
        found.damage = error.damage or "changed"
        found.notices.append(f"its storages are cut or torn: {error}")
    found.missing = [s.key for s in storages.known.values() if s.offset is None and s.device != "meta"]
    for part, whole, shift in storages.views:
        part.offset = None if whole.offset is None else whole.offset + shift
    return found


def _legacy_storages(opened: Opened, keys: pickles.Loaded, found: TorchFile) -> None:
    names = [key for key in keys.value if isinstance(key, str)] if isinstance(keys.value, list) else []
    if not isinstance(keys.value, list) or len(names) < len(keys.value) or sorted(names) != sorted(found.storages):
        raise RefusedError("the list of storages names others than the tensors use")
    at = keys.end
    for name in names:
        storage = found.storages[name]
        (elements,) = struct.unpack("<q", opened.read(at, 8))
        if storage.nbytes not in (elements, elements * dtypes.ITEMSIZE[storage.dtype]):
            raise RefusedError(f"storage {storage.key!r} has {elements} elements, its tensors say otherwise")
        if at + 8 + storage.nbytes > opened.size:
            raise DamagedError("cut", f"the file ends at byte {opened.size}, inside of storage {storage.key!r}")
        storage.offset = at + 8
        at += 8 + storage.nbytes


def _add(uses: dict[str, pickles.Use], more: Mapping[str, pickles.Use]) -> None:
    """Join the names of two pickles; a call of a name counts, whichever of them makes it."""
    for name, use in more.items():
        if use.times_called or name not in uses:
            uses[name] = use


def _nested_storage(data: bytes) -> pickles.Loaded:
    """The storage inside the bytes of torch.storage._load_from_bytes: a legacy file whose root is a storage."""
    memory = Memory("bytes inside of a pickle", data)
    with memory.open() as opened:
        first = pickles.load(opened, limits=_INNER)
        if first.value != _MAGIC:
            raise _refused("bytes inside of a pickle that hold no storage", first.uses)
        inner = _legacy(memory, opened, first, _INNER)
    if not isinstance(inner.root, Storage):
        raise _refused("bytes inside of a pickle that hold no storage", inner.uses)
    return pickles.Loaded(inner.root, len(data), inner.uses)
