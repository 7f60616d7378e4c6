"""Pickles, torch files and zip archives put together byte by byte: what no honest writer would write."""

from __future__ import annotations

import pickle
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

PROTO2, PROTO4, PROTO5 = b"\x80\x02", b"\x80\x04", b"\x80\x05"
STOP, MARK, POP, REDUCE, BUILD, EMPTY_DICT, SETITEM, PERSID = b".", b"(", b"0", b"R", b"b", b"}", b"s", b"Q"
STACK_GLOBAL, MEMOIZE, NONE, TRUE, FALSE, EMPTY_TUPLE, EMPTY_LIST = b"\x93", b"\x94", b"N", b"\x88", b"\x89", b")", b"]"


def text(value: str) -> bytes:
    """BINUNICODE."""
    raw = value.encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<I", len(raw)) + raw


def octets(value: bytes) -> bytes:
    """BINBYTES."""
    return b"B" + struct.pack("<I", len(value)) + value


def number(value: int) -> bytes:
    """BININT or LONG1."""
    if -(1 << 31) <= value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    return b"\x8a\x09" + value.to_bytes(9, "little", signed=True)


def real(value: float) -> bytes:
    """BINFLOAT."""
    return b"G" + struct.pack(">d", value)


def name(module: str, attribute: str) -> bytes:
    """GLOBAL."""
    return f"c{module}\n{attribute}\n".encode()


def stack_name(module: str, attribute: str) -> bytes:
    """STACK_GLOBAL of two texts."""
    return text(module) + text(attribute) + STACK_GLOBAL


def put(index: int) -> bytes:
    """BINPUT."""
    return b"q" + bytes([index])


def get(index: int) -> bytes:
    """BINGET."""
    return b"h" + bytes([index])


def tupled(*items: bytes) -> bytes:
    """TUPLE from a mark on."""
    return MARK + b"".join(items) + b"t"


def call(function: bytes, *arguments: bytes) -> bytes:
    """REDUCE of a function on the stack."""
    return function + tupled(*arguments) + REDUCE


def whole(*parts: bytes, protocol: bytes = PROTO2) -> bytes:
    """The parts between PROTO and STOP."""
    return protocol + b"".join(parts) + STOP


def storage(elements: int = 4, *, kind: str = "FloatStorage", key: str = "0", device: bytes | None = None) -> bytes:
    """The persistent id of a torch storage."""
    place = text("cpu") if device is None else device
    return tupled(text("storage"), name("torch", kind), text(key), place, number(elements)) + PERSID


def tensor(
    size: Sequence[int] = (4,), stride: Sequence[int] = (1,), offset: int = 0, elements: int = 4, key: str = "0"
) -> bytes:
    """torch._utils._rebuild_tensor_v2() of a storage."""
    return call(
        name("torch._utils", "_rebuild_tensor_v2"),
        storage(elements, key=key),
        number(offset),
        tupled(*map(number, size)),
        tupled(*map(number, stride)),
        FALSE,
        name("collections", "OrderedDict") + EMPTY_TUPLE + REDUCE,
    )


def legacy(
    root: bytes,
    *,
    version: bytes | None = None,
    system: bytes | None = None,
    keys: bytes | None = None,
    data: bytes = b"",
) -> bytes:
    """A file of torch.save's old format: five pickles and the storages."""
    magic = pickle.dumps(0x1950A86A20F9469CFC6C, 2)
    version = pickle.dumps(1001, 2) if version is None else version
    system = pickle.dumps({"protocol_version": 1001, "little_endian": True}, 2) if system is None else system
    return magic + version + system + root + (pickle.dumps([], 2) if keys is None else keys) + data


STORAGE = legacy(whole(storage(1)), keys=pickle.dumps(["0"], 2), data=struct.pack("<q", 1) + b"\0" * 4)


class Record(NamedTuple):
    """One zip record and what its headers say, where that is not the truth. where: another record's header."""

    name: bytes
    data: bytes = b""
    method: int = 0
    size: int | None = None
    crc: int | None = None
    flags: int = 0
    local_flags: int | None = None
    local_name: bytes | None = None
    where: int | None = None
    mode: int = 0


def archive(*records: Record, wide: bool = False, comment: bytes = b"", count: int | None = None) -> bytes:
    """A zip archive of the records. wide: with the 64-bit end record. count: as its end states it."""
    out, directory = bytearray(), bytearray()
    for record in records:
        at = len(out)
        packed = _deflated(record.data) if record.method == 8 else record.data
        size = len(record.data) if record.size is None else record.size
        crc = zlib.crc32(record.data) if record.crc is None else record.crc
        fields = struct.pack("<HHHIII", record.method, 0, 0, crc, len(packed), size)
        local = record.name if record.local_name is None else record.local_name
        flags = record.flags if record.local_flags is None else record.local_flags
        if record.where is None:
            out += b"PK\3\4" + struct.pack("<HH", 20, flags) + fields + struct.pack("<HH", len(local), 0) + local
            out += packed
        header = at if record.where is None else record.where
        directory += b"PK\1\2" + struct.pack("<HHH", 3 << 8 | 20, 20, record.flags) + fields
        directory += struct.pack("<HHHHHII", len(record.name), 0, 0, 0, 0, record.mode << 16, header) + record.name
    start, number_of = len(out), len(records) if count is None else count
    end = bytes(out + directory)
    if wide:
        end += b"PK\6\6" + struct.pack("<QHHIIQQQQ", 44, 20, 20, 0, 0, number_of, number_of, len(directory), start)
        end += b"PK\6\7" + struct.pack("<IQI", 0, start + len(directory), 1)
    short = min(number_of, 0xFFFF)
    return end + b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, short, short, len(directory), start, len(comment)) + comment


def _deflated(data: bytes) -> bytes:
    packer = zlib.compressobj(6, wbits=-15)
    return packer.compress(data) + packer.flush()


def torch_zip(root: bytes, storages: Mapping[str, bytes] | None = None, *more: Record) -> bytes:
    """An archive as torch.save writes it: data.pkl first, then the storages by key."""
    records = [Record(b"archive/data.pkl", root), Record(b"archive/byteorder", b"little")]
    records += [Record(f"archive/data/{key}".encode(), data) for key, data in (storages or {}).items()]
    return archive(*records, Record(b"archive/version", b"3\n"), *more)


SYSTEM = name("posix", "system")
FLOAT4 = call(name("numpy", "dtype"), text("f4"))
_NDARRAY = name("numpy", "ndarray")
EMPTY_ARRAY = call(name("numpy._core.multiarray", "_reconstruct"), _NDARRAY, tupled(number(0)), octets(b"b"))
# a text, ten of it, ten of those ...: stored in the memo, the last of them under number 30
LAUGHS = text("lol") + put(0) + POP + b"".join(MARK + get(i) * 10 + b"t" + put(i + 1) + POP for i in range(30))
LAUGH = get(30)


def evil(command: str) -> bytes:
    """A pickle that would run the command."""
    return whole(call(SYSTEM, text(command)))
