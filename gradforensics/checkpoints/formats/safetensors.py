"""The header of a safetensors file: 8 bytes of length, JSON of names, types, shapes and byte ranges, then the bytes.

Own reader, because the library maps the file and tells nothing of what it refuses. Format: the project's README.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from math import prod
from typing import Any

from gradforensics.checkpoints.refs import Run, TensorRef
from gradforensics.untrusted import dtypes
from gradforensics.untrusted.files import DamagedError, Readable, RefusedError

_MAX_HEADER = 25_000_000  # the library takes 100 MB; parsing takes six to eight times as much
_MAX_TENSORS = 200_000
_MAX_SHOWN = 120


@dataclass(slots=True)
class SafetensorsFile:
    """Tensors by name in header order, the metadata of the header, and what is wrong with the file."""

    tensors: dict[str, TensorRef]
    metadata: dict[str, str] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)
    complete: bool = True


def read(file: Readable) -> SafetensorsFile:
    """Read the header. Tensors that lie beyond the end of a cut file are left out, with a notice.

    Raises RefusedError where the header contradicts itself, OSError.
    """
    with file.open() as opened:
        if opened.size < 8:
            raise DamagedError("cut", "too short for a safetensors header")
        length = int.from_bytes(opened.read(0, 8), "little")
        if length > _MAX_HEADER:
            text = f"a safetensors header of {length} bytes"
            raise DamagedError("changed", text) if length > opened.size else RefusedError(text)
        header = _parsed(opened.read(8, length))
        size = opened.size - 8 - length
    metadata = header.pop("__metadata__", None)
    items = metadata.items() if isinstance(metadata, dict) else ()
    found = SafetensorsFile({}, {key: value for key, value in items if _is_text(key) and _is_text(value)})
    spans: list[tuple[int, int, str]] = []
    for name, entry in header.items():
        dtype, shape, begin, end = _entry(name, entry)
        spans.append((begin, end, name))
        if end <= size:
            count = prod(shape)
            found.tensors[name] = TensorRef(dtype, shape, (Run(file, 8 + length + begin, count),) if count else ())
    last = _check_spans(spans)
    cut = [name for _, end, name in spans if end > size]
    if cut:
        found.complete = False
        found.notices.append(
            f"the file is cut: {size} of {last} bytes of data are there; {len(cut)} of {len(spans)} tensors are lost, "
            f"such as {_shown(cut[0])}"
        )
    elif size > last:
        found.notices.append(f"{size - last} bytes behind the last tensor belong to none")
    return found


def _parsed(raw: bytes) -> dict[str, Any]:
    if not raw.isascii() and 4 * len(raw) > _MAX_HEADER:  # one wide character makes the whole text wide
        raise RefusedError(f"a safetensors header of {len(raw)} bytes, not all of them ASCII")
    containers, keys, items = raw.count(b"{") + raw.count(b"["), raw.count(b":"), raw.count(b",")
    if max(containers / 3, keys / 4, items / 10) > _MAX_TENSORS:
        raise RefusedError("a safetensors header with more tensors than can be")
    try:
        header = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        text = f"the safetensors header is no valid JSON ({type(error).__name__})"
        raise DamagedError("changed", text) if isinstance(error, ValueError) else RefusedError(text) from None
    if not isinstance(header, dict):
        raise RefusedError("the safetensors header is no JSON object")
    return header


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise RefusedError("a safetensors header that names a key twice")
    return found


def _is_text(value: Any) -> bool:
    """Whether it is a text that can be written: JSON's escapes can also make halves of characters."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shown(name: str) -> str:
    return repr(name if len(name) <= _MAX_SHOWN else name[:_MAX_SHOWN] + "...")


def _entry(name: str, entry: Any) -> tuple[str, tuple[int, ...], int, int]:
    """Type, shape and byte range of one tensor. Raises RefusedError where they are none or disagree."""
    if not _is_text(name) or not isinstance(entry, dict):
        raise RefusedError(f"tensor {_shown(name)}: no name, or no entry")
    kind, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    dtype = dtypes.of_safetensors(kind) if isinstance(kind, str) else None
    if dtype is None:
        what = _shown(kind) if isinstance(kind, str) else type(kind).__name__
        raise RefusedError(f"tensor {_shown(name)}: element type {what} is not known")
    sizes, places = _numbers(shape), _numbers(offsets)
    if sizes is None or places is None or len(places) != 2 or len(sizes) > 64:
        raise RefusedError(f"tensor {_shown(name)}: its shape or its offsets are no list of integers")
    begin, end = places
    if begin > end or prod(sizes) * dtypes.ITEMSIZE[dtype] != end - begin:
        text = f"tensor {_shown(name)}: shape {list(sizes)} and the range {begin}..{end} do not fit"
        raise DamagedError("changed", text)
    return dtype, sizes, begin, end


def _numbers(value: Any) -> tuple[int, ...] | None:
    if isinstance(value, list) and all(type(n) is int and 0 <= n < 1 << 62 for n in value):
        return tuple(value)
    return None


def _check_spans(spans: list[tuple[int, int, str]]) -> int:
    """End of the last tensor. Raises RefusedError where two overlap or bytes between them belong to none."""
    spans.sort()
    last = 0
    for begin, end, name in spans:
        if begin != last:
            what = "overlaps the one before" if begin < last else "does not begin where the one before ends"
            raise DamagedError("changed", f"tensor {_shown(name)} {what}")
        last = end
    return last
