"""One event at a time: where in its bytes the wall time, the step and the values stand. Nothing is copied.

Only the wire format is walked, with the few field numbers that matter; whatever breaks it raises MalformedError.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from gradforensics.evidence.protobuf import BYTES, FIXED32, FIXED64, VARINT, fields, signed, varint

Span = tuple[int, int]  # (from, to), in bytes


# -- tensors ----------------------------------------------------------------------------------------------------------

BFLOAT16 = "bfloat16"
_DTYPES = {  # of tensor_content
    1: "<f4", 2: "<f8", 3: "<i4", 4: "u1", 5: "<i2", 6: "i1", 9: "<i8", 10: "u1", 14: BFLOAT16, 17: "<u2", 19: "<f2",
    22: "<u4", 23: "<u8",
}  # fmt: skip
_FIXED = {5: "<f4", 6: "<f8"}  # float_val, double_val
_NUMBERED = frozenset({7, 10, 11, 13, 16, 17})  # int_val, int64_val, bool_val, half_val, uint32_val, uint64_val
_TENSOR_ELEMENTS = 1 << 20  # a larger tensor is not read


@dataclass(slots=True)
class Tensor:
    """A TensorProto. elements: as its shape says; code: of the numbers in `spans`, "" where they are varints."""

    dtype: int = 0
    elements: int = 1
    code: str = ""
    spans: list[Span] = field(default_factory=list)
    strings: list[Span] = field(default_factory=list)

    @property
    def numeric(self) -> bool:
        """Whether its elements are real numbers."""
        return self.dtype in _DTYPES


def tensor(data: bytes, at: int, end: int) -> Tensor:
    """The TensorProto between two places."""
    found = Tensor()
    content: Span | None = None
    for number, wire, first, last in fields(data, at, end):
        if number == 1 and wire == VARINT:
            found.dtype = varint(data, first, last)[0]
        elif number == 2 and wire == BYTES:
            found.elements = _elements(data, first, last)
        elif number == 4 and wire == BYTES:
            content = (first, last)
        elif (number in _FIXED and wire != VARINT) or (number in _NUMBERED and wire in (VARINT, BYTES)):
            found.code = _FIXED.get(number, "")
            found.spans.append((first, last))
        elif number == 8 and wire == BYTES:
            found.strings.append((first, last))
    if content is not None and content[1] > content[0]:
        found.code, found.spans = _DTYPES.get(found.dtype, ""), [content]
    return found


def _elements(data: bytes, at: int, end: int) -> int:
    """How many elements a TensorShapeProto means."""
    found = 1
    for number, wire, first, last in fields(data, at, end):
        if number != 2 or wire != BYTES:
            continue
        size = 0
        for inner, inner_wire, start, stop in fields(data, first, last):
            if inner == 1 and inner_wire == VARINT:
                size = varint(data, start, stop)[0]
        found = min(found * size, 1 << 62)
    return found


def decoded(code: str, raw: np.ndarray) -> np.ndarray:
    """float64 (n,): numbers stored as `code`. raw: uint8, as many bytes as they take."""
    found = raw.view(storage(code))
    if code == BFLOAT16:
        found = (found.astype(np.uint32) << np.uint32(16)).view(np.float32)
    with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one
        return found.astype(np.float64)


def storage(code: str) -> str:
    """The type of NumPy that takes as many bytes as one number."""
    return "<u2" if code == BFLOAT16 else code


def width(code: str) -> int:
    """Bytes of one number."""
    return np.dtype(storage(code)).itemsize


def place(found: Tensor) -> tuple[str, int] | None:
    """(code, where) of the only element of a tensor, where its bytes stand as they are."""
    if found.elements == 1 and found.numeric and len(found.spans) == 1 and found.code:
        first, last = found.spans[0]
        if last - first == width(found.code):
            return found.code, first
    return None


def array(data: bytes, found: Tensor) -> np.ndarray | None:
    """float64 (elements,): all numbers of a tensor; None where it holds none, or a number of them that does not fit.

    The last of fewer numbers stands for the rest, and 0 for all where there are none (Tensor::FromProto).
    """
    if not found.numeric or found.elements > _TENSOR_ELEMENTS:
        return None
    if found.code:
        raw = b"".join(data[first:last] for first, last in found.spans)
        if len(raw) % width(found.code):
            return None
        numbers = decoded(found.code, np.frombuffer(raw, dtype=np.uint8))
    else:
        numbers = _varints(data, found)
    if len(numbers) > found.elements:
        return None
    rest = found.elements - len(numbers)
    return np.concatenate([numbers, np.full(rest, numbers[-1] if len(numbers) else 0.0)]) if rest else numbers


def _varints(data: bytes, found: Tensor) -> np.ndarray:
    numbers: list[int] = []
    for first, last in found.spans:
        at = first
        while at < last and len(numbers) <= found.elements:
            number, at = varint(data, at, last)
            numbers.append(number)
    code = _DTYPES[found.dtype]
    if code in ("<f2", BFLOAT16):
        return decoded(code, np.array([n & 0xFFFF for n in numbers], dtype="<u2").view(np.uint8))
    if not code.startswith(("u", "<u")):
        numbers = [signed(n) for n in numbers]
    return np.array([float(n) for n in numbers], dtype=np.float64)


# -- events -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Value:
    """A Summary.Value. scalar: (code, where) of its number, where that stands as it is.

    kind: which of the alternatives it holds ("" for none), in the words of summary.proto; body: of that alternative.
    """

    tag: Span = (0, 0)
    kind: str = ""
    body: Span = (0, 0)
    scalar: tuple[str, int] | None = None
    tensor: Tensor | None = None
    plugin: Span = (0, 0)
    content: Span = (0, 0)


@dataclass(slots=True)
class Event:
    """An Event. time: where its wall time stands, -1 for nowhere; step: the bytes of its varint, none for step 0."""

    time: int = -1
    step: Span = (0, 0)
    values: list[Value] = field(default_factory=list)


_KINDS = {4: "image", 5: "histo", 6: "audio", 8: "tensor"}


def event(data: bytes, at: int, end: int) -> Event:
    """The Event between two places. Raises MalformedError."""
    found = Event()
    for number, wire, first, last in fields(data, at, end):
        if number == 1 and wire == FIXED64:
            found.time = first
        elif number == 2 and wire == VARINT:
            found.step = (first, last)
        elif number == 5 and wire == BYTES:
            for inner, inner_wire, start, stop in fields(data, first, last):
                if inner == 1 and inner_wire == BYTES:
                    found.values.append(_value(data, start, stop))
    return found


def _value(data: bytes, at: int, end: int) -> Value:
    found = Value()
    for number, wire, first, last in fields(data, at, end):
        if number == 1 and wire == BYTES:
            found.tag = (first, last)
        elif number == 2 and wire == FIXED32:
            found.kind, found.scalar = "simple_value", ("<f4", first)
        elif number in _KINDS and wire == BYTES:
            found.kind, found.body = _KINDS[number], (first, last)
            found.tensor = tensor(data, first, last) if number == 8 else None
            found.scalar = place(found.tensor) if found.tensor is not None else None
        elif number == 9 and wire == BYTES:
            found.plugin, found.content = _plugin(data, first, last)
    return found


def _plugin(data: bytes, at: int, end: int) -> tuple[Span, Span]:
    """The name and the content of the plugin data in a SummaryMetadata."""
    name, content = (0, 0), (0, 0)
    for number, wire, first, last in fields(data, at, end):
        if number == 1 and wire == BYTES:
            for inner, inner_wire, start, stop in fields(data, first, last):
                if inner == 1 and inner_wire == BYTES:
                    name = (start, stop)
                elif inner == 2 and inner_wire == BYTES:
                    content = (start, stop)
    return name, content
