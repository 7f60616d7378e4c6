"""Files that cost more to read than they are worth, and safetensors headers that lie."""

from __future__ import annotations

import json
import pickle
import struct
from collections.abc import Callable
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
    MEMOIZE,
    NONE,
    POP,
    PROTO2,
    PROTO4,
    PROTO5,
    REDUCE,
    SETITEM,
    STOP,
    STORAGE,
    TRUE,
    evil,
    get,
    legacy,
    name,
    number,
    octets,
    put,
    real,
    text,
    torch_zip,
    tupled,
    whole,
)
from tests.untrusted.hostile import Case

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


def _slow_legacy() -> bytes:
    """A version number that takes as long as a whole file may."""
    slow = (MARK + b"1") * 4_000_000
    return legacy(whole(EMPTY_DICT), version=PROTO2 + slow + pickle.dumps(1001, 2)[2:])


def _large_legacy() -> bytes:
    """A system record that holds as much as the root may."""
    large = text("a" * 20_000_000)
    system = whole(EMPTY_DICT, text("little_endian"), TRUE, SETITEM, text("a"), large, SETITEM)
    return legacy(whole(MARK, large, b"l"), system=system)


def _names(count: int) -> bytes:
    return whole(*(name("a", f"b{i}") + POP for i in range(count)))


def _swapped_arrays() -> bytes:
    big = FLOAT4 + tupled(number(3), text(">"), NONE, NONE, NONE) + BUILD
    state = tupled(number(1), tupled(number(2_500_000)), big, FALSE, octets(b"\0" * 10_000_000))
    return whole(state, put(1), POP, (EMPTY_ARRAY + get(1) + BUILD) * 100)


COSTS = [
    Case("cost-legacy-slow.pt", lambda _: _slow_legacy(), "4 MB of memory"),
    Case("cost-legacy-large.pt", lambda _: _large_legacy(), "4 MB of memory"),
    _costs("laughs", lambda: whole(LAUGHS, LAUGH)),
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
    Case("safe-pickle.safetensors", evil, "header of"),
    Case("safe-zip.safetensors", lambda c: torch_zip(evil(c)), "header of"),
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
