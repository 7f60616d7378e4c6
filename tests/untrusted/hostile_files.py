"""Files whose containers lie, whose tensors lie, or that cost more to read than they are worth."""

from __future__ import annotations

import gzip
import json
import pickle
import random
import struct
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from tests.untrusted.assembly import (
    BUILD,
    EMPTY_DICT,
    EMPTY_LIST,
    EMPTY_TUPLE,
    FALSE,
    MARK,
    MEMOIZE,
    NONE,
    PERSID,
    POP,
    PROTO2,
    PROTO4,
    PROTO5,
    REDUCE,
    SETITEM,
    STOP,
    STORAGE,
    Record,
    archive,
    call,
    get,
    legacy,
    name,
    number,
    octets,
    put,
    real,
    storage,
    tensor,
    text,
    torch_zip,
    tupled,
    whole,
)
from tests.untrusted.hostile import Case

_SYSTEM = name("posix", "system")
_CALLED = ("posix.system",)
_DATA = {"0": b"\0" * 16}


def _evil(command: str) -> bytes:
    return whole(call(_SYSTEM, text(command)))


# -- tensors that lie about their size or place -----------------------------------------------------------------------


def _tensor(file: str, root: bytes, refused: str = "", notice: str = "", data: Mapping[str, bytes] = _DATA) -> Case:
    return Case(f"tensor-{file}.pt", lambda _: torch_zip(whole(root), data), refused, notice=notice)


def _quantised(stride: int) -> bytes:
    scheme = tupled(name("torch", "per_channel_affine"), EMPTY_LIST, EMPTY_LIST, number(0))
    size, strides = tupled(number(3), number(4)), tupled(number(stride), number(1))
    store = storage(12, kind="QUInt8Storage")
    return call(name("torch._utils", "_rebuild_qtensor"), store, number(0), size, strides, scheme)


def _rebuilds(times: int) -> bytes:
    """A rebuild of a rebuild of a rebuild ..., each inside of the arguments of the one before."""
    again = name("torch._tensor", "_rebuild_from_type_v2")
    inner = (MARK + again + NONE) * times + EMPTY_TUPLE + (NONE + b"t") * times
    return again + inner + REDUCE


_V2 = name("torch._utils", "_rebuild_tensor_v2")

TENSORS = [
    _tensor("huge-shape", tensor((10**6, 10**6), (10**6, 1)), "needs"),
    _tensor("negative-stride", tensor((4,), (-1,), 3), "impossible number"),
    _tensor("negative-size", tensor((-4,)), "impossible number"),
    _tensor("negative-offset", tensor((1,), (1,), -1000), "offset"),
    _tensor("offset-beyond", tensor((4,), (1,), 1_000_000), "needs"),
    _tensor("expanded-to-2-40", tensor((2**40,), (0,))),
    _tensor("overlapping-strides", tensor((2, 3), (1, 1))),
    _tensor("elements-lie", tensor((2**20,), (1,), 0, 2**20), "its record has 16"),
    _tensor("elements-lie-by-far", tensor((4,), (1,), 0, 2 * 10**12), "its record has 16"),
    _tensor("elements-overflow-pytorch-181310", tensor((4,), (1,), 0, 0x4000000000000001), "size is none"),
    _tensor("elements-negative", tensor((4,), (1,), 0, -4), "size is none"),
    _tensor("shape-overflow", tensor((2**62, 4), (4, 1)), "impossible number"),
    _tensor("shape-product-overflow", tensor((2**61, 2**61), (1, 1)), "needs"),
    _tensor("missing-record", tensor(key="7"), notice="1 storages have no record"),
    _tensor("key-leads-outside", tensor(key="../../../../../../etc/passwd"), notice="1 storages have no record"),
    _tensor("key-is-long", tensor(key="k" * 100_000), "key is none"),
    _tensor("100-dimensions", tensor((1,) * 100, (1,) * 100), "100 dimensions"),
    _tensor("100000-dimensions", tensor((1,) * 100_000), "100000 dimensions"),
    _tensor("more-sizes-than-strides", tensor((2, 2), (1,)), "more sizes than strides"),
    _tensor("shape-of-floats", call(_V2, storage(), number(0), tupled(real(1.0)), tupled(number(1))), "no tuple of"),
    _tensor("no-storage", call(_V2, NONE, number(0), EMPTY_TUPLE, EMPTY_TUPLE), "no storage"),
    _tensor("too-few-arguments", call(_V2, storage()), "impossible arguments"),
    _tensor("quantised-stride-pytorch-184652", _quantised(1 << 40), "needs", data={"0": b"\0" * 12}),
    _tensor("rebuild-from-nothing", call(name("torch._tensor", "_rebuild_from_type_v2")), "impossible arguments"),
    _tensor("rebuilds-of-rebuilds", _rebuilds(20_000)),
    Case(
        "tensor-unknown-storage-class.pt",
        lambda _: torch_zip(whole(storage(kind="EvilStorage"))),
        "unknown class",
        other=("torch.EvilStorage",),
    ),
    _tensor("meta-device", tensor().replace(text("cpu"), text("meta"))),
    _tensor("device-is-a-list", storage(device=EMPTY_LIST)),
    Case(
        "tensor-compressed-to-a-bomb.pt",
        lambda _: archive(
            Record(b"a/data.pkl", whole(tensor((1 << 22,), (1,), 0, 1 << 22))),
            Record(b"a/data/0", b"\0" * (1 << 24), method=8),
        ),
        "compressed, which torch never does",
    ),
]

# -- numpy arrays -----------------------------------------------------------------------------------------------------

_FLOAT4 = call(name("numpy", "dtype"), text("f4"))
_MADE = call(name("numpy._core.multiarray", "_reconstruct"), name("numpy", "ndarray"), tupled(number(0)), octets(b"b"))


def _array(shape: bytes, dtype: bytes, data: bytes) -> bytes:
    return _MADE + tupled(number(1), shape, dtype, FALSE, data) + BUILD


ARRAYS = [
    _tensor("array-shape-lies", _array(tupled(number(1 << 40)), _FLOAT4, octets(b"\0" * 16)), "an array of shape"),
    _tensor("array-shape-negative", _array(tupled(number(-4)), _FLOAT4, octets(b"\0" * 16)), "impossible number"),
    _tensor("array-of-objects", _array(tupled(number(1)), call(name("numpy", "dtype"), text("O8")), EMPTY_LIST)),
    _tensor("array-of-void", _array(tupled(number(1)), call(name("numpy", "dtype"), text("V16")), octets(b"\0" * 16))),
    Case(
        "tensor-array-of-calls.pt",
        lambda c: torch_zip(
            whole(_array(tupled(number(1)), call(name("numpy", "dtype"), text("O8")), call(_SYSTEM, text(c))))
        ),
        danger=_CALLED,
    ),
    Case("array-of-objects.npy", lambda c: b"\x93NUMPY\x01\x00\x0e\x00{'descr':'|O'}" + _evil(c), "empty stack"),
]

# -- zip archives that tell two stories -------------------------------------------------------------------------------


def _zip(
    file: str, make: Callable[[str], bytes], refused: str = "", notice: str = "", danger: tuple[str, ...] = ()
) -> Case:
    return Case(f"zip-{file}.pt", make, refused, danger, notice=notice)


def _said(command: str, **lies: Any) -> bytes:
    return archive(Record(b"archive/data.pkl", _evil(command), **lies), Record(b"archive/version", b"3\n"))


def _many(count: int) -> bytes:
    return archive(
        Record(b"a/data.pkl", whole(EMPTY_LIST)), *(Record(b"a/data/%d" % i) for i in range(count)), wide=True
    )


def _overlapping(count: int) -> bytes:
    first = Record(b"a/data.pkl", whole(EMPTY_LIST))
    start = 30 + len(first.name) + len(first.data)
    data = Record(b"a/data/0", b"\0" * (1 << 14))
    others = [Record(b"a/data/%d" % i, data.data, where=start) for i in range(1, count)]
    return archive(first, data, *others, wide=True)


def _patched(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


def _end_fields(data: bytes, at: int, new: bytes) -> bytes:
    return _patched(data, data.rfind(b"PK\5\6") + at, new)


def _wide_lie(command: str) -> bytes:
    """Sizes of 2^63 in the 64-bit extra field."""
    data = _said(command)
    at = data.find(b"PK\1\2")
    name_length = struct.unpack_from("<H", data, at + 28)[0]
    extra = struct.pack("<HHQQ", 1, 16, 1 << 63, 1 << 63)
    head = _patched(_patched(data[at : at + 46], 20, b"\xff" * 8), 30, struct.pack("<H", len(extra)))
    end = data.rfind(b"PK\5\6")
    directory = head + data[at + 46 : at + 46 + name_length] + extra + data[at + 46 + name_length : end]
    return data[:at] + directory + _patched(data[end:], 12, struct.pack("<I", len(directory)))


def _liar(stated: int, real_size: int) -> bytes:
    """data.pkl, deflated: the directory states another size than what comes out."""
    return archive(Record(b"a/data.pkl", b"\x80\x02" + b"N" * real_size + b".", method=8, size=stated))


def _salvage_bomb(count: int) -> bytes:
    first = b"PK\3\4" + struct.pack("<HHHHHIIIHH", 20, 8, 0, 0, 0, 0, 0, 0, 10, 0) + b"a/data.pkl" + whole(EMPTY_LIST)
    return first + b"PK\7\x08" + b"\0" * 12 + (b"PK\3\4" + b"\0" * 26) * count


def _cut(command: str, keep: int) -> bytes:
    return _said(command)[:keep]


ZIPS = [
    _zip("classic", lambda c: torch_zip(_evil(c)), danger=_CALLED),
    _zip(
        "two-pickles-of-one-name",
        lambda c: archive(Record(b"a/data.pkl", whole(EMPTY_LIST)), Record(b"a/data.pkl", _evil(c))),
        "two zip records",
    ),
    _zip(
        "two-pickles-in-two-folders",
        lambda c: archive(Record(b"a/data.pkl", whole(EMPTY_LIST)), Record(b"b/data.pkl", _evil(c))),
        "without a data.pkl",
    ),
    _zip("no-pickle", lambda _: archive(Record(b"a/version", b"3\n")), "without a data.pkl"),
    _zip("pickle-at-the-top", lambda c: archive(Record(b"data.pkl", _evil(c))), "without a data.pkl"),
    _zip(
        "pickle-of-another-name-CVE-2025-1889",
        lambda c: archive(Record(b"a/data.pkl", whole(EMPTY_LIST)), Record(b"a/config.p", _evil(c))),
    ),
    _zip("name-differs-CVE-2025-1944", lambda c: _said(c, local_name=b"archive/datap.kl"), "tells otherwise"),
    _zip("flag-1-in-the-directory-CVE-2025-1945", lambda c: _said(c, flags=1, local_flags=0), "marked as encrypted"),
    _zip("flag-1-in-the-record-CVE-2025-1945", lambda c: _said(c, local_flags=1), "marked as encrypted"),
    _zip("flag-20-CVE-2025-1945", lambda c: _said(c, flags=0x20), danger=_CALLED),
    _zip("flag-40-CVE-2025-1945", lambda c: _said(c, flags=0x40), danger=_CALLED),
    _zip("crc-wrong-CVE-2025-10156", lambda c: _said(c, crc=0x01020304), "CRC-32 is wrong", danger=_CALLED),
    _zip(
        "crc-wrong-and-broken",
        lambda c: archive(Record(b"a/data.pkl", _evil(c)[:-1] + b"\xff", crc=1)),
        "CRC-32 is wrong",
        danger=_CALLED,
    ),
    _zip(
        "byteorder-crc-wrong",
        lambda c: archive(Record(b"a/data.pkl", _evil(c)), Record(b"a/byteorder", b"little", crc=1)),
        "CRC-32 is wrong",
    ),
    _zip(
        "byteorder-big",
        lambda c: archive(Record(b"a/data.pkl", _evil(c)), Record(b"a/byteorder", b"big")),
        "big-endian",
    ),
    _zip(
        "byteorder-long",
        lambda c: archive(Record(b"a/data.pkl", _evil(c)), Record(b"a/byteorder", b"little" * 100)),
        "would be 600 bytes",
    ),
    _zip("method-lzma", lambda c: _said(c, method=14), "compressed|not known"),
    _zip("method-99", lambda c: _said(c, method=99), "compressed|not known"),
    _zip("prepended", lambda c: b"#" * 100 + _said(c), "no pickle opcode"),
    _zip("prepended-record", lambda c: b"PK\3\4" + b"\0" * 96 + _said(c), "belong to no record"),
    _zip("prepended-pickle", lambda c: _evil(c) + _said(c), notice="behind the end", danger=_CALLED),
    _zip("appended", lambda c: _said(c) + b"#" * 100, danger=_CALLED),
    _zip(
        "comment-with-an-end",
        lambda c: archive(Record(b"a/data.pkl", _evil(c)), comment=b"PK\5\6" + b"\0" * 18),
        "belong to no record",
    ),
    _zip("overlapping-records", lambda _: _overlapping(2000), "overlap"),
    _zip(
        "record-outside",
        lambda _: archive(Record(b"a/data.pkl", whole(EMPTY_LIST)), Record(b"a/data/0", where=1 << 30)),
        "outside",
    ),
    _zip(
        "record-where-none-is",
        lambda c: archive(Record(b"a/data.pkl", _evil(c)), Record(b"a/data/0", where=1)),
        "overlap",
    ),
    _zip("70000-records", lambda _: _many(70_000)),
    _zip(
        "400000-records",
        lambda _: archive(Record(b"a/data.pkl", whole(EMPTY_LIST)), wide=True, count=400_000),
        "archive of 400000 records",
    ),
    _zip(
        "count-too-large", lambda c: _end_fields(_said(c), 10, b"\xff\x7f"), notice="directory is torn", danger=_CALLED
    ),
    _zip(
        "directory-too-large",
        lambda c: _end_fields(_said(c), 12, b"\xff\xff\xff\x7f"),
        notice="outside of the file",
        danger=_CALLED,
    ),
    _zip("directory-elsewhere", lambda c: _end_fields(_said(c), 16, b"\0\0\0\0"), "belong to no record"),
    _zip(
        "end64-elsewhere",
        lambda c: (
            (d := archive(Record(b"a/data.pkl", _evil(c)), wide=True))
            and _patched(d, d.rfind(b"PK\6\7") + 8, b"\xff" * 8)
        ),
        notice="zip64 end record",
        danger=_CALLED,
    ),
    _zip("sizes-of-2-63", _wide_lie, "overlap|outside"),
    _zip(
        "name-of-2000-bytes",
        lambda c: archive(Record(b"a/data.pkl", _evil(c)), Record(b"a/" + b"n" * 2000)),
        "name of 2002 bytes",
    ),
    _zip(
        "names-that-lead-outside",
        lambda c: archive(
            Record(b"a/data.pkl", _evil(c)),
            Record(b"../../../../CANARY", b"x"),
            Record(b"/tmp/CANARY", b"x"),
            Record(b"C:\\CANARY", b"x"),
            Record(b"a/data/0:stream", b"x"),
            Record(b"CON", b"x"),
            Record(b"a/\0/CANARY", b"x"),
        ),
        danger=_CALLED,
    ),
    _zip(
        "symbolic-link",
        lambda c: archive(Record(b"a/data.pkl", _evil(c)), Record(b"a/data/0", b"/etc/passwd", mode=0o120777)),
        danger=_CALLED,
    ),
    _zip("bomb-1-to-1000", lambda _: _liar(1 << 25, (1 << 25) - 3), "would be 33554432 bytes"),
    _zip("bomb-that-lies", lambda _: _liar(1000, 1 << 25), "has not the size"),
    _zip(
        "bomb-of-bombs",
        lambda _: archive(Record(b"a/data.pkl", whole(octets(zlib.compress(b"\0" * (1 << 24)))))),
    ),
    _zip(
        "archive-in-an-archive",
        lambda c: archive(Record(b"a/data.pkl", torch_zip(_evil(c)))),
        "no valid pickle",
    ),
    _zip("salvage-bomb", lambda _: _salvage_bomb(300_000), notice="no end record"),
    _zip("cut-in-the-directory", lambda c: _cut(c, -30), notice="no end record", danger=_CALLED),
    _zip("cut-in-the-pickle", lambda c: _cut(c, 30 + 16 + 25), "are left", danger=_CALLED),
    _zip("cut-in-the-header", lambda c: _cut(c, 20), "no end record"),
    _zip("only-an-end", lambda _: b"PK\3\4" + archive()[-22:], "without a data.pkl|belong to no record"),
    _zip(
        "torchscript-with-evil-constants",
        lambda c: archive(Record(b"a/data.pkl", whole(EMPTY_LIST)), Record(b"a/constants.pkl", _evil(c))),
    ),
]

# -- other containers, and none ---------------------------------------------------------------------------------------


def _tar(command: str) -> bytes:
    """torch's oldest format, which CVE-2025-32434 reached behind weights_only."""
    data = _evil(command)
    head = b"storages".ljust(100, b"\0") + b"0000644\0" * 3 + b"%011o\0" % len(data) + b"0" * 12
    return (head.ljust(257, b"\0") + b"ustar\00000").ljust(512, b"\0") + data.ljust(512, b"\0") + b"\0" * 1024


_LAUGHS = text("lol") + put(0) + POP + b"".join(MARK + get(i) * 10 + b"t" + put(i + 1) + POP for i in range(30))
_LAUGH = get(30)


def _file(
    file: str, make: Callable[[str], bytes], refused: str = "", notice: str = "", danger: tuple[str, ...] = ()
) -> Case:
    return Case(file, make, refused, danger, notice=notice)


OTHERS = [
    _file("other-7z-nullifAI.pt", lambda c: b"7z\xbc\xaf\x27\x1c\0\4" + _evil(c), "no pickle opcode"),
    _file("other-tar-CVE-2025-32434.pt", _tar, "empty stack"),
    _file("other-gzip.pt", lambda c: gzip.compress(_evil(c)), "no pickle opcode"),
    _file("other-zlib-of-joblib.pkl", lambda c: zlib.compress(_evil(c)), "no pickle opcode"),
    _file("other-png-picklescan-18.pt", lambda _: b"\x89PNG\r\n\x1a\n" + b"\0" * 64, "no pickle opcode"),
    _file("other-pickle-named-bin-CVE-2025-10155.bin", _evil, danger=_CALLED),
    _file("other-random.pt", lambda _: b"\x80\x02" + random.Random(0).randbytes(4096), "."),
    _file("legacy-cut-in-the-root.pt", lambda c: legacy(_evil(c)[:-4]), ".", danger=_CALLED),
    _file("legacy-cut-in-the-system.pt", lambda _: legacy(b"")[:40], "are left"),
    _file("other-empty.pt", lambda _: b"", "breaks off"),
    _file("other-one-byte.pt", lambda _: b"\x80", "breaks off"),
    _file("other-zeros.pt", lambda _: b"\0" * 4096, "no pickle opcode"),
    _file("legacy-evil-root.pt", lambda c: legacy(_evil(c)), danger=_CALLED),
    _file(
        "legacy-evil-system.pt", lambda c: legacy(whole(EMPTY_DICT), system=_evil(c)), "system record", danger=_CALLED
    ),
    _file(
        "legacy-evil-behind-a-good-system.pt",
        lambda c: legacy(
            whole(EMPTY_DICT),
            system=PROTO2 + call(_SYSTEM, text(c)) + POP + pickle.dumps({"little_endian": True}, 2)[2:],
        ),
        danger=_CALLED,
    ),
    _file("legacy-evil-version.pt", lambda c: legacy(whole(EMPTY_DICT), version=_evil(c)), "protocol", danger=_CALLED),
    _file("legacy-evil-keys.pt", lambda c: legacy(whole(EMPTY_DICT), keys=_evil(c)), danger=_CALLED, notice="torn"),
    _file(
        "legacy-evil-magic.pt",
        lambda c: PROTO2 + call(_SYSTEM, text(c)) + POP + legacy(b"")[2:],
        notice="breaks off",
        danger=_CALLED,
    ),
    _file(
        "legacy-magic-of-another-kind.pt",
        lambda c: _evil(c) + legacy(whole(EMPTY_DICT)),
        notice="behind the end",
        danger=_CALLED,
    ),
    _file(
        "legacy-version-of-laughs.pt", lambda _: legacy(whole(EMPTY_DICT), version=whole(_LAUGHS, _LAUGH)), "protocol"
    ),
    _file(
        "legacy-keys-of-laughs.pt",
        lambda _: legacy(whole(EMPTY_DICT), keys=whole(_LAUGHS, MARK, _LAUGH, b"l")),
        notice="torn",
    ),
    _file(
        "legacy-keys-are-deep.pt",
        lambda _: legacy(whole(EMPTY_DICT), keys=whole(MARK, EMPTY_TUPLE, b"\x85" * 100_000, b"l")),
        notice="torn",
    ),
    _file("legacy-device-of-laughs.pt", lambda _: legacy(whole(_LAUGHS, storage(device=_LAUGH))), notice="torn"),
    _file(
        "legacy-elements-lie.pt",
        lambda _: legacy(whole(storage(1)), keys=pickle.dumps(["0"], 2), data=struct.pack("<q", 1 << 62)),
        notice="tensors say otherwise",
    ),
    _file(
        "legacy-storage-cut.pt",
        lambda _: legacy(whole(storage(4)), keys=pickle.dumps(["0"], 2), data=struct.pack("<q", 4)),
        notice="inside of storage",
    ),
    _file(
        "legacy-key-twice.pt",
        lambda _: legacy(whole(storage(0)), keys=pickle.dumps(["0", "0"], 2), data=b"\0" * 16),
        notice="names others",
    ),
    _file(
        "legacy-view-outside.pt",
        lambda _: legacy(
            whole(storage(4).replace(b"t" + PERSID, tupled(text("v"), number(3), number(2)) + b"t" + PERSID))
        ),
        "view that reaches beyond",
    ),
    _file(
        "legacy-big-endian.pt",
        lambda _: legacy(whole(EMPTY_DICT), system=pickle.dumps({"little_endian": False}, 2)),
        "big-endian",
    ),
    _file("legacy-inside-of-legacy.pt", lambda c: _nested(c, 40), danger=("torch.storage._load_from_bytes",)),
]


def _nested(command: str, depth: int) -> bytes:
    inner = legacy(_evil(command))
    for _ in range(depth):
        inner = legacy(whole(call(name("torch.storage", "_load_from_bytes"), octets(inner))))
    return inner


# -- what costs more than it is worth ---------------------------------------------------------------------------------


def _costs(file: str, make: Callable[[], bytes], refused: str = "") -> Case:
    return Case(f"cost-{file}.pkl", lambda _: make(), refused)


def _copies(builder: bytes, arguments: bytes, times: int = 3_000) -> bytes:
    """A call with the same large argument, again and again."""
    return whole(arguments, put(1), POP, builder, put(0), POP, (get(0) + get(1) + REDUCE) * times)


_HUNDRED_THOUSAND = EMPTY_LIST + MARK + NONE * 100_000 + b"e"


def _colliding_complex(count: int) -> bytes:
    """Complex numbers of one hash: that of the real part and 1000003 times that of the imaginary part cancel out."""
    made = (get(0) + tupled(real(-1000003.0 * j), real(float(j))) + REDUCE + NONE for j in range(1, count))
    return whole(name("builtins", "complex"), put(0), POP, EMPTY_DICT, MARK, *made, b"u")


def _colliding_integers(count: int) -> bytes:
    made = (b"\x8a\x0a" + (k * (2**61 - 1)).to_bytes(10, "little", signed=True) + NONE for k in range(count))
    return whole(EMPTY_DICT, MARK, *made, b"u")


def _names(count: int) -> bytes:
    return whole(*(name("a", f"b{i}") + POP for i in range(count)))


def _swapped_arrays() -> bytes:
    big = _FLOAT4 + tupled(number(3), text(">"), NONE, NONE, NONE) + BUILD
    state = tupled(number(1), tupled(number(2_500_000)), big, FALSE, octets(b"\0" * 10_000_000))
    return whole(state, put(1), POP, _MADE.removesuffix(REDUCE), POP, (_MADE + get(1) + BUILD) * 100)


COSTS = [
    _costs("laughs", lambda: whole(_LAUGHS, _LAUGH)),
    _costs("list-in-itself", lambda: whole(EMPTY_LIST, put(0), get(0), b"a")),
    _costs("dict-in-itself", lambda: whole(EMPTY_DICT, put(0), text("a"), get(0), SETITEM)),
    Case(
        "cost-record-in-itself.pkl",
        lambda _: whole(name("m", "f"), EMPTY_TUPLE, REDUCE, put(0), get(0), BUILD),
        other=("m.f",),
    ),
    _costs("depth-of-300000", lambda: whole(EMPTY_TUPLE, b"\x85" * 300_000)),
    _costs("depth-of-lists", lambda: whole(EMPTY_LIST * 100_000, b"a" * 99_999)),
    Case(
        "cost-depth-of-records.pkl",
        lambda _: whole(
            name("m", "f") + put(0) + POP, NONE, (b"\x85" + put(1) + POP + get(0) + get(1) + REDUCE) * 20_000
        ),
        other=("m.f",),
    ),
    _costs("memo-number-of-2-31", lambda: whole(NONE, b"r\xfe\xff\xff\x7f")),
    _costs("memo-number-as-text", lambda: whole(NONE, b"p99999999999999999999\n"), "memo number"),
    _costs("memo-flood", lambda: whole(NONE, MEMOIZE * 2_000_000, protocol=PROTO4), "memory"),
    _costs("text-of-2-60", lambda: PROTO4 + b"\x8d" + struct.pack("<Q", 1 << 60) + STOP, "are left"),
    _costs("bytearray-of-2-36", lambda: PROTO5 + b"\x96" + struct.pack("<Q", 1 << 36) + STOP, "are left"),
    _costs("bytes-of-2-63", lambda: PROTO4 + b"\x8e" + b"\xff" * 8 + STOP, "are left"),
    _costs("text-of-negative-length", lambda: PROTO2 + b"T\xff\xff\xff\xff" + STOP, "negative length"),
    _costs("text-that-grows-fourfold", lambda: whole(text("a" * 40_000_000 + "\U0001f600")), "memory"),
    _costs(
        "integer-of-8-megabytes",
        lambda: whole(b"\x8b" + struct.pack("<i", 8 << 20) + b"\x7f" * (8 << 20)),
        "integer of",
    ),
    _costs("integer-of-negative-length", lambda: whole(b"\x8b" + struct.pack("<i", -1)), "integer of -1"),
    _costs("integer-of-2000000-digits", lambda: whole(b"I" + b"9" * 2_000_000 + b"\n"), "longer than a name"),
    _costs("integers-of-4000-digits", lambda: whole((b"I" + b"9" * 3999 + b"\n" + POP) * 1_500, NONE)),
    _costs("integers-that-collide", lambda: _colliding_integers(40_000), "huge integer"),
    _costs("complex-numbers-that-collide", lambda: _colliding_complex(30_000), "complex"),
    _costs("deep-key", lambda: whole(EMPTY_DICT, EMPTY_TUPLE, b"\x85" * 200_000, NONE, SETITEM), "nested tuple"),
    _costs(
        "wide-key",
        lambda: whole(text("a" * 20_000_000), put(0), POP, EMPTY_DICT, MARK, get(0) * 64, b"t", NONE, SETITEM),
        "long texts",
    ),
    _costs("set-in-a-set", lambda: whole(MARK, MARK, NONE, b"\x91\x91", protocol=PROTO4), "key that is a set"),
    _costs("marks", lambda: whole(MARK * 5_000_000), "marks"),
    _costs("marks-and-pops", lambda: whole((MARK + b"1") * 100_000, NONE)),
    _costs("memo-never-stored", lambda: whole(get(5)), "never stored"),
    _costs(
        "list-copied-again-and-again", lambda: _copies(name("builtins", "list"), _HUNDRED_THOUSAND + b"\x85"), "memory"
    ),
    _costs(
        "tuple-copied-again-and-again",
        lambda: _copies(name("builtins", "tuple"), _HUNDRED_THOUSAND + b"\x85"),
        "memory",
    ),
    _costs(
        "dict-copied-again-and-again",
        lambda: _copies(
            name("collections", "OrderedDict"),
            EMPTY_DICT + MARK + b"".join(number(i) + NONE for i in range(10_000)) + b"u\x85",
        ),
        "memory",
    ),
    _costs(
        "set-copied-again-and-again",
        lambda: _copies(
            name("builtins", "set"), EMPTY_LIST + MARK + b"".join(number(i) for i in range(50_000)) + b"e\x85"
        ),
        "memory",
    ),
    _costs(
        "text-encoded-again-and-again",
        lambda: _copies(name("_codecs", "encode"), tupled(text("a" * 1_000_000), text("latin1"))),
        "memory",
    ),
    _costs(
        "path-joined-again-and-again",
        lambda: _copies(name("pathlib", "PosixPath"), tupled(text("//" * 500_000))),
        "longer than one can be",
    ),
    _costs(
        "list-copied-inside-of-a-rebuild",
        lambda: _copies(
            name("torch._tensor", "_rebuild_from_type_v2"),
            tupled(name("builtins", "list"), NONE, _HUNDRED_THOUSAND + b"\x85", NONE),
        ),
    ),
    _costs("arrays-swapped-again-and-again", _swapped_arrays, "memory"),
    Case(
        "cost-21000-names.pkl",
        lambda _: _names(21_000),
        "imports more than",
        other=tuple(sorted(f"a.b{i}" for i in range(20_000))[:1000]),
    ),
    _costs("name-of-5000-letters", lambda: whole(name("m" * 3000, "n" * 2000)), "name is no text"),
    _costs("line-without-an-end", lambda: PROTO2 + b"c" + b"m" * 3_000_000, "longer than a name"),
    _costs(
        "storages-inside-of-bytes",
        lambda: _copies(name("torch.storage", "_load_from_bytes"), octets(STORAGE) + b"\x85", 2_000),
    ),
]

# -- safetensors ------------------------------------------------------------------------------------------------------


def _header(header: bytes | dict[str, Any], data: bytes = b"", length: int | None = None) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def _entry(shape: list[int], begin: int, end: int, dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def _safe(file: str, header: bytes | dict[str, Any], data: bytes = b"", refused: str = "", notice: str = "") -> Case:
    return Case(f"safe-{file}.safetensors", lambda _: _header(header, data), refused, notice=notice)


def _large(file: str, header: Callable[[], bytes], refused: str) -> Case:
    return Case(f"safe-{file}.safetensors", lambda _: _header(header()), refused)


_ONE = {"a": _entry([4], 0, 16)}
_16 = b"\0" * 16
_DIRT = "\x1b]0;owned\x07\x1b[2J<script>alert(1)</script>\u202e"

SAFETENSORS = [
    Case(
        "safe-length-of-2-63.safetensors", lambda _: _header(_ONE, _16, 1 << 63), "header of 9223372036854775808 bytes"
    ),
    Case("safe-length-beyond.safetensors", lambda _: _header(_ONE, _16, 10**6), "ends at byte"),
    Case("safe-length-short.safetensors", lambda _: _header(_ONE, _16, 20), "no valid JSON"),
    Case("safe-length-0.safetensors", lambda _: _header(b""), "no valid JSON"),
    Case("safe-too-short.safetensors", lambda _: b"\1\0\0", "too short"),
    Case("safe-pickle.safetensors", _evil, "header of"),
    Case("safe-zip.safetensors", lambda c: torch_zip(_evil(c)), "header of"),
    _safe("overlap", _ONE | {"b": _entry([4], 8, 24)}, b"\0" * 24, "overlaps"),
    _safe("hole", _ONE | {"b": _entry([4], 32, 48)}, b"\0" * 48, "does not begin"),
    _safe("huge-shape", {"a": _entry([2**40, 2**40], 0, 16)}, _16, "do not fit"),
    _safe("negative-shape", {"a": _entry([-4], 0, 16)}, _16, "no list of integers"),
    _safe("shape-of-1000", {"a": _entry([1] * 1000, 0, 4)}, _16, "no list of integers"),
    _safe(
        "shape-of-booleans",
        b'{"a":{"dtype":"F32","shape":[true],"data_offsets":[0,4]}}',
        b"\0" * 4,
        "no list of integers",
    ),
    _safe("offset-beyond", _ONE | {"b": _entry([4], 16, 32)}, _16, notice="the file is cut"),
    _safe("key-twice", b'{"a":1,"a":1}', _16, "names a key twice"),
    _safe("deep", b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", b"", "no valid JSON"),
    _safe(
        "deep-type",
        b'{"a":{"dtype":' + b"[" * 900 + b"]" * 900 + b',"shape":[],"data_offsets":[0,4]}}',
        b"",
        "type list is not known|no valid JSON",
    ),
    _safe("tail", _ONE, b"\0" * 100, notice="belong to none"),
    _safe("unknown-type", {"a": _entry([4], 0, 16, "F33")}, _16, "type 'F33' is not known"),
    _safe("type-of-a-megabyte", {"a": _entry([4], 0, 16, "F" * 1_000_000)}, _16, "is not known"),
    _safe("size-differs", {"a": _entry([4], 0, 12)}, b"\0" * 12, "do not fit"),
    _safe("offsets-swapped", {"a": _entry([4], 16, 0)}, _16, "do not fit"),
    _safe("no-object", b"[1]", b"", "no JSON object"),
    _safe("entry-is-text", {"a": "F32"}, b"", "no entry"),
    _large("integer-of-5000000-digits", lambda: b'{"a":' + b"9" * 5_000_000 + b"}", "no valid JSON"),
    _safe("constants", b'{"a":{"dtype":"F32","shape":[NaN],"data_offsets":[0,Infinity]}}', b"", "no list of integers"),
    _safe("half-a-character", b'{"\\ud800":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}', _16, "no name"),
    _safe("name-of-a-megabyte", {"n" * 1_000_000: _entry([4], 0, 12)}, _16, r"tensor '.{100,140}'"),
    _safe(
        "code-in-the-metadata",
        {"__metadata__": {"format": "__import__('os').system('true')", "title": _DIRT}} | _ONE,
        _16,
    ),
    _safe("metadata-of-another-kind", {"__metadata__": {"a": [1], "b": {"c": {}}}} | _ONE, _16),
    _large("a-million-keys", lambda: b"{" + b'"":1,' * 1_000_000 + b'"":1}', "more tensors than can be"),
    _large("a-million-lists", lambda: b'{"a":[' + b"[]," * 1_000_000 + b"1]}", "more tensors than can be"),
    _large("wide-characters", lambda: b'{"a":"' + b"a" * 20_000_000 + b'\xf0\x9f\x98\x80"}', "not all of them ASCII"),
]

FILES = [*TENSORS, *ARRAYS, *ZIPS, *OTHERS, *COSTS, *SAFETENSORS]
