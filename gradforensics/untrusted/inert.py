"""What a pickle becomes here: plain data, records for everything else, and tensors that say where their bytes lie.

Whatever a pickle asks to be imported is a `Global`, a name and no more; whatever it asks to be called is a `Record` of
the call, unless the name is in CALLS: those few builders of plain data and tensors are re-implemented below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from gradforensics.untrusted import dtypes
from gradforensics.untrusted.files import Memory, Readable, RefusedError

MAX_DIMENSIONS = 64
_MAX_PATH = 1 << 15
_NUMPY = {
    "f8": "float64", "f4": "float32", "f2": "float16", "i8": "int64", "i4": "int32", "i2": "int16", "i1": "int8",
    "u8": "uint64", "u4": "uint32", "u2": "uint16", "u1": "uint8", "b1": "bool", "c8": "complex64",
    "c16": "complex128",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Global:
    """A name that the pickle would have imported."""

    module: str
    name: str

    @property
    def path(self) -> str:
        """Module and name, with a dot."""
        return f"{self.module}.{self.name}"


class TupleKey(tuple[Any, ...]):
    """A tuple as a key. Its hash is that of its text, which Python salts: keys cannot be made to collide."""

    __slots__ = ()

    def __hash__(self) -> int:
        return hash(repr(self))

    def __eq__(self, other: object) -> bool:
        return tuple.__eq__(self, other) is True


@dataclass(slots=True, eq=False)
class Record:
    """What the pickle would have built by calling `cls(*args)` and setting its state: data, compared by identity."""

    cls: Any
    args: tuple[Any, ...] = ()
    state: Any = None
    items: list[Any] = field(default_factory=list)
    pairs: list[tuple[Any, Any]] = field(default_factory=list)

    @property
    def path(self) -> str:
        """Name of the class or function, "" where it is no plain name."""
        return self.cls.path if isinstance(self.cls, Global) else ""

    def attributes(self) -> Mapping[Any, Any]:
        """Its state as attributes: of a (dict, slots) pair both together; empty where it has none."""
        state = self.state
        if isinstance(state, tuple) and len(state) == 2:
            parts = [part for part in state if isinstance(part, dict)]
            return {key: value for part in parts for key, value in part.items()}
        return state if isinstance(state, dict) else {}

    def get(self, name: str, default: Any = None) -> Any:
        """One attribute of its state."""
        return self.attributes().get(name, default)


@dataclass(slots=True, eq=False)
class Storage:
    """The bytes that tensors lie in. `offset` is None where they are missing, or not known yet (legacy: at the end).

    record, crc: size and stated CRC-32 of the zip record that begins at `offset`, where the file has one.
    """

    key: str
    dtype: str
    nbytes: int
    device: str
    file: Readable | None = None
    offset: int | None = None
    record: int | None = None
    crc: int | None = None


@dataclass(slots=True, eq=False)
class Tensor:
    """A tensor of a pickle: offset and stride in elements. `wrapped` names a subclass around it (Parameter is none)."""

    storage: Storage
    dtype: str
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    requires_grad: bool = False
    wrapped: str = ""


@dataclass(slots=True, eq=False)
class Array:
    """A NumPy array: little-endian bytes, C order unless `fortran`. `dtype` is "" where its elements are no numbers."""

    dtype: str = ""
    shape: tuple[int, ...] = ()
    data: bytes = b""
    fortran: bool = False

    def build(self, state: Any) -> None:
        """Fill the empty array of numpy's _reconstruct() with (version, shape, dtype, fortran, bytes)."""
        if isinstance(state, tuple) and len(state) == 5 and isinstance(state[4], bytes):
            self.fill(state[4], state[2], state[1], fortran=state[3] is True)

    def fill(self, data: bytes, dtype: Any, shape: Any, *, fortran: bool) -> None:
        """Set shape and bytes; RefusedError where they disagree."""
        if not isinstance(dtype, _Dtype) or dtype.name is None:
            return
        sizes = whole_numbers(shape, "size")
        if prod(sizes) * dtypes.ITEMSIZE[dtype.name] != len(data):
            raise RefusedError(f"an array of shape {list(sizes)} with {len(data)} bytes")
        if dtype.big_endian:
            data = np.frombuffer(data, dtype.numpy).byteswap().tobytes()
        self.dtype, self.shape, self.data, self.fortran = dtype.name, sizes, data, fortran

    def tensor(self, name: str) -> Tensor:
        """The array as a tensor in memory."""
        memory = Memory(name, self.data)
        storage = Storage("", self.dtype, len(self.data), "cpu", memory, 0)
        return Tensor(storage, self.dtype, 0, self.shape, _dense_stride(self.shape, fortran=self.fortran))


@dataclass(slots=True, eq=False)
class _Dtype:
    """numpy.dtype('f4') while it is built: its state adds the byte order."""

    text: str
    big_endian: bool = False

    @property
    def name(self) -> str | None:
        return _NUMPY.get(self.text.lstrip("<>|="))

    @property
    def numpy(self) -> np.dtype[Any]:
        return np.dtype((">" if self.big_endian else "<") + self.text.lstrip("<>|="))

    def build(self, state: Any) -> None:
        """Take the byte order from the state (version, order, ...)."""
        if isinstance(state, tuple) and len(state) > 1 and state[1] == ">":
            self.big_endian = True


def _dense_stride(shape: tuple[int, ...], *, fortran: bool = False) -> tuple[int, ...]:
    stride, step = [0] * len(shape), 1
    for axis in range(len(shape)) if fortran else reversed(range(len(shape))):
        stride[axis] = step
        step *= shape[axis]
    return tuple(stride)


def whole_numbers(value: Any, what: str) -> tuple[int, ...]:
    """A torch.Size or a stride: a tuple of integers, none negative. Raises RefusedError."""
    if isinstance(value, Record) and value.path == "torch.Size" and value.args:
        value = value.args[0]
    if isinstance(value, (tuple, list)) and len(value) > MAX_DIMENSIONS:
        raise RefusedError(f"a tensor of {len(value)} dimensions")
    if not isinstance(value, (tuple, list)) or any(type(i) is not int for i in value):
        raise RefusedError(f"the {what} of a tensor is no tuple of integers")
    if any(i < 0 or i >= 1 << 62 for i in value):
        raise RefusedError(f"the {what} of a tensor holds an impossible number")
    return tuple(value)


def dtype_of(value: Any) -> str | None:
    """The element type of the global torch.float32, or None."""
    return dtypes.of_torch(value.name) if isinstance(value, Global) and value.module == "torch" else None


def make_tensor(storage: Any, offset: Any, size: Any, stride: Any, dtype: str | None = None) -> Tensor:
    """A tensor whose every element lies inside its storage. Raises RefusedError otherwise."""
    if not isinstance(storage, Storage):
        raise RefusedError("a tensor whose storage is no storage")
    shape, steps = whole_numbers(size, "size"), whole_numbers(stride, "stride")
    if len(shape) != len(steps):
        raise RefusedError("a tensor with more sizes than strides")
    if type(offset) is not int or not 0 <= offset < 1 << 62:
        raise RefusedError("a tensor with an impossible storage offset")
    kind = dtype or storage.dtype
    if prod(shape):
        last = offset + sum((n - 1) * s for n, s in zip(shape, steps, strict=True))
        needed = (last + 1) * dtypes.ITEMSIZE[kind]
        if needed > storage.nbytes:
            raise RefusedError(f"a tensor of shape {list(shape)} needs {needed} bytes of a storage of {storage.nbytes}")
    return Tensor(storage, kind, offset, shape, steps)


Buildable = (Array, _Dtype)

# -- the calls that are carried out, all of them code of this file ----------------------------------------------------


def _tensor(args: tuple[Any, ...]) -> Tensor:
    tensor = make_tensor(args[0], args[1], args[2], args[3])
    tensor.requires_grad = len(args) > 4 and args[4] is True
    return tensor


def _tensor_v3(args: tuple[Any, ...]) -> Tensor:
    dtype = dtype_of(args[6])
    if dtype is None:
        raise RefusedError("a tensor of an unknown element type")
    return make_tensor(args[0], args[1], args[2], args[3], dtype)


def _quantised(args: tuple[Any, ...]) -> Tensor:
    return make_tensor(args[0], args[1], args[2], args[3])


def _parameter(args: tuple[Any, ...]) -> Any:
    if isinstance(args[0], Tensor):
        args[0].requires_grad = args[1] is True
    return args[0]


def _from_type(args: tuple[Any, ...]) -> Any:
    function, kind, inner, state = args
    rebuilds = isinstance(function, Global) and function.path.startswith("torch._utils._rebuild_")
    made = call(function, inner) if rebuilds and isinstance(inner, tuple) else None
    if isinstance(made, Tensor) and isinstance(kind, Global):
        made.wrapped = kind.path
        return made
    return Record(kind, inner if isinstance(inner, tuple) else (inner,), state)


def _from_numpy(args: tuple[Any, ...]) -> Any:
    return args[0].tensor("") if isinstance(args[0], Array) else Record(Global("torch", "Tensor"), args)


def _pairs(args: tuple[Any, ...]) -> dict[Any, Any]:
    """OrderedDict(), OrderedDict([[key, value], ...]) or Counter({...})."""
    if not args:
        return {}
    if isinstance(args[0], dict):
        return dict(args[0])
    return {safe_key(pair[0]): pair[1] for pair in args[0]}


def _members(args: tuple[Any, ...]) -> set[Any]:
    return {safe_key(item) for item in args[0]} if args and isinstance(args[0], (list, tuple)) else set()


def _encode(args: tuple[Any, ...]) -> bytes:
    if isinstance(args[0], str) and args[1] in ("latin1", "latin-1"):
        return args[0].encode("latin1")
    raise RefusedError("_codecs.encode with another encoding than latin1")


def _bytes(args: tuple[Any, ...]) -> bytes:
    """bytes() and bytearray(bytes), or of a text where the pickle protocol had no bytes yet."""
    if not args:
        return b""
    return args[0] if isinstance(args[0], bytes) else _encode(args)


def _path(args: tuple[Any, ...]) -> str:
    if sum(len(part) for part in args if isinstance(part, str)) > _MAX_PATH:
        raise RefusedError("a path that is longer than one can be")
    return "/".join(str(part) for part in args if isinstance(part, str)).replace("//", "/")


def _complex(args: tuple[Any, ...]) -> complex:
    return complex(float(args[0]), float(args[1]))


def _dtype(args: tuple[Any, ...]) -> _Dtype | Record:
    return _Dtype(args[0]) if isinstance(args[0], str) else Record(Global("numpy", "dtype"), args)


def _scalar(args: tuple[Any, ...]) -> Any:
    dtype, data = args[0], args[1] if len(args) > 1 else None
    if isinstance(dtype, _Dtype) and dtype.name and isinstance(data, bytes) and len(data) == dtype.numpy.itemsize:
        return np.frombuffer(data, dtype.numpy)[0].item()
    return Record(Global("numpy", "generic"), args)


def _from_buffer(args: tuple[Any, ...]) -> Any:
    """numpy's _frombuffer(bytes, dtype, shape, order) of pickle protocol 5."""
    array = Array()
    if isinstance(args[0], bytes):
        array.fill(args[0], args[1], args[2], fortran=args[3] == "F")
    return array


CALLS: dict[str, Callable[[tuple[Any, ...]], Any]] = {
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_tensor_v3": _tensor_v3,
    "torch._utils._rebuild_qtensor": _quantised,
    "torch._utils._rebuild_parameter": _parameter,
    "torch._utils._rebuild_parameter_with_state": _parameter,
    "torch._utils._rebuild_device_tensor_from_numpy": _from_numpy,
    "torch._utils._rebuild_device_tensor_from_cpu_tensor": lambda args: args[0],
    "torch._tensor._rebuild_from_type_v2": _from_type,
    "torch.Size": lambda args: whole_numbers(args[0], "size"),
    "torch.device": lambda args: ":".join(str(a) for a in args if isinstance(a, (str, int))),
    "torch.serialization._get_layout": lambda args: args[0] if isinstance(args[0], str) else "",
    "collections.OrderedDict": _pairs,
    "collections.Counter": _pairs,
    "collections.defaultdict": lambda _: {},
    "builtins.dict": _pairs,
    "builtins.set": _members,
    "builtins.frozenset": _members,
    "builtins.complex": _complex,
    "builtins.bytes": _bytes,
    "builtins.bytearray": _bytes,
    "builtins.list": lambda args: list(args[0]) if args and isinstance(args[0], (list, tuple)) else [],
    "builtins.tuple": lambda args: tuple(args[0]) if args and isinstance(args[0], (list, tuple)) else (),
    "_codecs.encode": _encode,
    "pathlib.PosixPath": _path,
    "pathlib.PurePosixPath": _path,
    "pathlib.WindowsPath": _path,
    "pathlib.Path": _path,
    "pathlib._local.PosixPath": _path,
    "pathlib._local.WindowsPath": _path,
    "numpy.dtype": _dtype,
    "numpy.core.multiarray._reconstruct": lambda _: Array(),
    "numpy._core.multiarray._reconstruct": lambda _: Array(),
    "numpy.core.multiarray.scalar": _scalar,
    "numpy._core.multiarray.scalar": _scalar,
    "numpy.core.numeric._frombuffer": _from_buffer,
    "numpy._core.numeric._frombuffer": _from_buffer,
}
# Python 2 names of the same builders, as old checkpoints hold them
CALLS |= {name.replace("builtins.", "__builtin__."): f for name, f in CALLS.items() if name.startswith("builtins.")}


def width(text: str) -> int:
    """Bytes that a text takes at most, beside the head of an ASCII one."""
    return len(text) if text.isascii() else 4 * len(text) + 32


def copied(args: Any) -> int:
    """Estimated bytes of what a builder copies out of its arguments, or an object out of its state."""
    size = 0
    for value in args if isinstance(args, tuple) else (args,):
        if isinstance(value, str):
            size += width(value)
        elif isinstance(value, bytes):
            size += len(value)
        elif isinstance(value, (list, tuple, dict, set, frozenset)):
            size += 100 * len(value)
    return size


def call(function: Global, args: tuple[Any, ...]) -> Any:
    """What calling `function` would have given: data for the builders above, else a Record. Raises RefusedError."""
    builder = CALLS.get(function.path)
    if builder is None:
        return Record(function, args)
    try:
        return builder(args)
    except (IndexError, TypeError, ValueError, OverflowError) as error:
        raise RefusedError(f"{function.path} with impossible arguments ({type(error).__name__})") from None


_SCALARS = (str, int, float, bytes, bool, type(None), complex, Global)
_SMALL = 1 << 60  # integers below it hash to themselves: no two share a hash
_TUPLE_KEY_LENGTH = 64
_TUPLE_KEY_TEXT = 4096


def safe_key(key: Any) -> Any:
    """The key as one whose hash cannot be chosen by the file's author. Raises RefusedError for what cannot be a key."""
    if isinstance(key, (str, Global, Record)):
        return key
    if type(key) is tuple:
        if len(key) > _TUPLE_KEY_LENGTH or not all(isinstance(part, _SCALARS) for part in key):
            raise RefusedError("a key that is a long or nested tuple")
        if sum(len(part) for part in key if isinstance(part, (str, bytes))) > _TUPLE_KEY_TEXT:
            raise RefusedError("a key that is a tuple of long texts")
        return TupleKey(key)
    if type(key) is int and not -_SMALL < key < _SMALL:
        raise RefusedError("a key that is a huge integer")
    if isinstance(key, complex):
        raise RefusedError("a key that is a complex number")
    if isinstance(key, _SCALARS):
        return key
    if isinstance(key, frozenset):
        raise RefusedError("a key that is a set")
    raise RefusedError(f"a key that cannot be one ({type(key).__name__})")


def describe(values: Iterable[Any], limit: int = 120) -> str:
    """Arguments as short text for a report: scalars as they are, everything else by its kind."""
    shown: list[str] = []
    room = limit
    for value in values:
        if isinstance(value, str):
            text = repr(value[:limit])
        elif isinstance(value, bytes):
            text = repr(value[:40])
        elif isinstance(value, (bool, int, float, type(None))):
            text = repr(value) if not isinstance(value, int) or -_SMALL < value < _SMALL else "a huge integer"
        elif isinstance(value, Global):
            text = value.path[:limit]
        elif isinstance(value, Record):
            text = f"{value.path[:limit]}(...)"
        else:
            text = type(value).__name__
        shown.append(text)
        room -= len(text)
        if room < 0:
            shown.append("...")
            break
    return ", ".join(shown)
