"""Files whose containers lie, whose tensors lie, or that cost more to read than they are worth."""

from __future__ import annotations

import gzip
import pickle
import random
import struct
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from tests.untrusted.assembly import (
    BUILD,
    EMPTY_ARRAY,
    EMPTY_DICT,
    EMPTY_LIST,
    EMPTY_TUPLE,
    FALSE,
    FLOAT4,
    LAUGH,
    LAUGHS,
    MARK,
    NONE,
    PERSID,
    POP,
    PROTO2,
    REDUCE,
    SYSTEM,
    Record,
    archive,
    call,
    evil,
    legacy,
    name,
    number,
    octets,
    real,
    storage,
    tensor,
    text,
    torch_zip,
    tupled,
    whole,
)
from tests.untrusted.hostile import Case

_CALLED = ("posix.system",)
_DATA = {"0": b"\0" * 16}


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


def _array(shape: bytes, dtype: bytes, data: bytes) -> bytes:
    return EMPTY_ARRAY + tupled(number(1), shape, dtype, FALSE, data) + BUILD


ARRAYS = [
    _tensor("array-shape-lies", _array(tupled(number(1 << 40)), FLOAT4, octets(b"\0" * 16)), "an array of shape"),
    _tensor("array-shape-negative", _array(tupled(number(-4)), FLOAT4, octets(b"\0" * 16)), "impossible number"),
    _tensor("array-of-objects", _array(tupled(number(1)), call(name("numpy", "dtype"), text("O8")), EMPTY_LIST)),
    _tensor("array-of-void", _array(tupled(number(1)), call(name("numpy", "dtype"), text("V16")), octets(b"\0" * 16))),
    Case(
        "tensor-array-of-calls.pt",
        lambda c: torch_zip(
            whole(_array(tupled(number(1)), call(name("numpy", "dtype"), text("O8")), call(SYSTEM, text(c))))
        ),
        danger=_CALLED,
    ),
    Case("array-of-objects.npy", lambda c: b"\x93NUMPY\x01\x00\x0e\x00{'descr':'|O'}" + evil(c), "empty stack"),
]

# -- zip archives that tell two stories -------------------------------------------------------------------------------


def _zip(
    file: str, make: Callable[[str], bytes], refused: str = "", notice: str = "", danger: tuple[str, ...] = ()
) -> Case:
    return Case(f"zip-{file}.pt", make, refused, danger, notice=notice)


def _said(command: str, **lies: Any) -> bytes:
    return archive(Record(b"archive/data.pkl", evil(command), **lies), Record(b"archive/version", b"3\n"))


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
    _zip("classic", lambda c: torch_zip(evil(c)), danger=_CALLED),
    _zip(
        "two-pickles-of-one-name",
        lambda c: archive(Record(b"a/data.pkl", whole(EMPTY_LIST)), Record(b"a/data.pkl", evil(c))),
        "two zip records",
    ),
    _zip(
        "two-pickles-in-two-folders",
        lambda c: archive(Record(b"a/data.pkl", whole(EMPTY_LIST)), Record(b"b/data.pkl", evil(c))),
        "without a data.pkl",
    ),
    _zip("no-pickle", lambda _: archive(Record(b"a/version", b"3\n")), "without a data.pkl"),
    _zip("pickle-at-the-top", lambda c: archive(Record(b"data.pkl", evil(c))), "without a data.pkl"),
    _zip(
        "pickle-of-another-name-CVE-2025-1889",
        lambda c: archive(Record(b"a/data.pkl", whole(EMPTY_LIST)), Record(b"a/config.p", evil(c))),
    ),
    _zip("name-differs-CVE-2025-1944", lambda c: _said(c, local_name=b"archive/datap.kl"), "tells otherwise"),
    _zip("flag-1-in-the-directory-CVE-2025-1945", lambda c: _said(c, flags=1, local_flags=0), "marked as encrypted"),
    _zip("flag-1-in-the-record-CVE-2025-1945", lambda c: _said(c, local_flags=1), "marked as encrypted"),
    _zip("flag-20-CVE-2025-1945", lambda c: _said(c, flags=0x20), danger=_CALLED),
    _zip("flag-40-CVE-2025-1945", lambda c: _said(c, flags=0x40), danger=_CALLED),
    _zip("crc-wrong-CVE-2025-10156", lambda c: _said(c, crc=0x01020304), "CRC-32 is wrong", danger=_CALLED),
    _zip(
        "crc-wrong-and-broken",
        lambda c: archive(Record(b"a/data.pkl", evil(c)[:-1] + b"\xff", crc=1)),
        "CRC-32 is wrong",
        danger=_CALLED,
    ),
    _zip(
        "byteorder-crc-wrong",
        lambda c: archive(Record(b"a/data.pkl", evil(c)), Record(b"a/byteorder", b"little", crc=1)),
        "CRC-32 is wrong",
    ),
    _zip(
        "byteorder-big",
        lambda c: archive(Record(b"a/data.pkl", evil(c)), Record(b"a/byteorder", b"big")),
        "big-endian",
    ),
    _zip(
        "byteorder-long",
        lambda c: archive(Record(b"a/data.pkl", evil(c)), Record(b"a/byteorder", b"little" * 100)),
        "would be 600 bytes",
    ),
    _zip("method-lzma", lambda c: _said(c, method=14), "compressed|not known"),
    _zip("method-99", lambda c: _said(c, method=99), "compressed|not known"),
    _zip("prepended", lambda c: b"#" * 100 + _said(c), "no pickle opcode"),
    _zip("prepended-record", lambda c: b"PK\3\4" + b"\0" * 96 + _said(c), "belong to no record"),
    _zip("prepended-pickle", lambda c: evil(c) + _said(c), notice="behind the end", danger=_CALLED),
    _zip("appended", lambda c: _said(c) + b"#" * 100, danger=_CALLED),
    _zip(
        "comment-with-an-end",
        lambda c: archive(Record(b"a/data.pkl", evil(c)), comment=b"PK\5\6" + b"\0" * 18),
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
        lambda c: archive(Record(b"a/data.pkl", evil(c)), Record(b"a/data/0", where=1)),
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
            (d := archive(Record(b"a/data.pkl", evil(c)), wide=True))
            and _patched(d, d.rfind(b"PK\6\7") + 8, b"\xff" * 8)
        ),
        notice="zip64 end record",
        danger=_CALLED,
    ),
    _zip("sizes-of-2-63", _wide_lie, "overlap|outside"),
    _zip(
        "name-of-2000-bytes",
        lambda c: archive(Record(b"a/data.pkl", evil(c)), Record(b"a/" + b"n" * 2000)),
        "name of 2002 bytes",
    ),
    _zip(
        "names-that-lead-outside",
        lambda c: archive(
            Record(b"a/data.pkl", evil(c)),
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
        lambda c: archive(Record(b"a/data.pkl", evil(c)), Record(b"a/data/0", b"/etc/passwd", mode=0o120777)),
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
        lambda c: archive(Record(b"a/data.pkl", torch_zip(evil(c)))),
        "no valid pickle",
    ),
    _zip("salvage-bomb", lambda _: _salvage_bomb(300_000), notice="no end record"),
    _zip("cut-in-the-directory", lambda c: _cut(c, -30), notice="no end record", danger=_CALLED),
    _zip("cut-in-the-pickle", lambda c: _cut(c, 30 + 16 + 25), "are left", danger=_CALLED),
    _zip("cut-in-the-header", lambda c: _cut(c, 20), "no end record"),
    _zip("only-an-end", lambda _: b"PK\3\4" + archive()[-22:], "without a data.pkl|belong to no record"),
    _zip(
        "torchscript-with-evil-constants",
        lambda c: archive(Record(b"a/data.pkl", whole(EMPTY_LIST)), Record(b"a/constants.pkl", evil(c))),
    ),
]

# -- other containers, and none ---------------------------------------------------------------------------------------


def _tar(command: str) -> bytes:
    """torch's oldest format, which CVE-2025-32434 reached behind weights_only."""
    data = evil(command)
    head = b"storages".ljust(100, b"\0") + b"0000644\0" * 3 + b"%011o\0" % len(data) + b"0" * 12
    return (head.ljust(257, b"\0") + b"ustar\00000").ljust(512, b"\0") + data.ljust(512, b"\0") + b"\0" * 1024


def _file(
    file: str, make: Callable[[str], bytes], refused: str = "", notice: str = "", danger: tuple[str, ...] = ()
) -> Case:
    return Case(file, make, refused, danger, notice=notice)


OTHERS = [
    _file("other-7z-nullifAI.pt", lambda c: b"7z\xbc\xaf\x27\x1c\0\4" + evil(c), "no pickle opcode"),
    _file("other-tar-CVE-2025-32434.pt", _tar, "empty stack"),
    _file("other-gzip.pt", lambda c: gzip.compress(evil(c)), "no pickle opcode"),
    _file("other-zlib-of-joblib.pkl", lambda c: zlib.compress(evil(c)), "no pickle opcode"),
    _file("other-png-picklescan-18.pt", lambda _: b"\x89PNG\r\n\x1a\n" + b"\0" * 64, "no pickle opcode"),
    _file("other-pickle-named-bin-CVE-2025-10155.bin", evil, danger=_CALLED),
    _file("other-random.pt", lambda _: b"\x80\x02" + random.Random(0).randbytes(4096), "."),
    _file("legacy-cut-in-the-root.pt", lambda c: legacy(evil(c)[:-4]), ".", danger=_CALLED),
    _file("legacy-cut-in-the-system.pt", lambda _: legacy(b"")[:40], "are left"),
    _file("other-empty.pt", lambda _: b"", "breaks off"),
    _file("other-one-byte.pt", lambda _: b"\x80", "breaks off"),
    _file("other-zeros.pt", lambda _: b"\0" * 4096, "no pickle opcode"),
    _file("legacy-evil-root.pt", lambda c: legacy(evil(c)), danger=_CALLED),
    _file(
        "legacy-evil-system.pt", lambda c: legacy(whole(EMPTY_DICT), system=evil(c)), "system record", danger=_CALLED
    ),
    _file(
        "legacy-evil-behind-a-good-system.pt",
        lambda c: legacy(
            whole(EMPTY_DICT),
            system=PROTO2 + call(SYSTEM, text(c)) + POP + pickle.dumps({"little_endian": True}, 2)[2:],
        ),
        danger=_CALLED,
    ),
    _file("legacy-evil-version.pt", lambda c: legacy(whole(EMPTY_DICT), version=evil(c)), "protocol", danger=_CALLED),
    _file("legacy-evil-keys.pt", lambda c: legacy(whole(EMPTY_DICT), keys=evil(c)), danger=_CALLED, notice="torn"),
    _file(
        "legacy-evil-magic.pt",
        lambda c: PROTO2 + call(SYSTEM, text(c)) + POP + legacy(b"")[2:],
        notice="breaks off",
        danger=_CALLED,
    ),
    _file(
        "legacy-magic-of-another-kind.pt",
        lambda c: evil(c) + legacy(whole(EMPTY_DICT)),
        notice="behind the end",
        danger=_CALLED,
    ),
    _file("legacy-version-of-laughs.pt", lambda _: legacy(whole(EMPTY_DICT), version=whole(LAUGHS, LAUGH)), "protocol"),
    _file(
        "legacy-keys-of-laughs.pt",
        lambda _: legacy(whole(EMPTY_DICT), keys=whole(LAUGHS, MARK, LAUGH, b"l")),
        notice="torn",
    ),
    _file(
        "legacy-keys-are-deep.pt",
        lambda _: legacy(whole(EMPTY_DICT), keys=whole(MARK, EMPTY_TUPLE, b"\x85" * 100_000, b"l")),
        notice="torn",
    ),
    _file("legacy-device-of-laughs.pt", lambda _: legacy(whole(LAUGHS, storage(device=LAUGH))), notice="torn"),
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
    inner = legacy(evil(command))
    for _ in range(depth):
        inner = legacy(whole(call(name("torch.storage", "_load_from_bytes"), octets(inner))))
    return inner


FILES = [*TENSORS, *ARRAYS, *ZIPS, *OTHERS]
