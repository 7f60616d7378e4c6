"""The numbers of small tensors, and samples of large ones, as float64."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradforensics.checkpoints import refs
from gradforensics.checkpoints.numbers import FORMATS, decode
from gradforensics.checkpoints.refs import TensorRef
from gradforensics.untrusted.files import RefusedError


def elements(ref: TensorRef) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The stored elements of a small tensor in reading order, (n,).

    Raises RefusedError for complex, quantised and packed types, for more than 64 MiB and for cut files, OSError.
    """
    form = FORMATS.get(ref.dtype)
    if form is None or form.parts != 1:
        raise RefusedError(f"elements of type {ref.dtype} are not read as numbers")
    out = np.empty(ref.stored * form.work.itemsize, np.uint8)
    return decode(refs.read(ref), form, out).astype(np.float64)


def scalar(value: object) -> float | None:
    """A number, or a tensor of one element, as a float; None for anything else, and where it cannot be read."""
    if isinstance(value, TensorRef):
        if value.count != 1 or value.stored != 1:
            return None
        try:
            return float(elements(value)[0])
        except (RefusedError, OSError):
            return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def sample(ref: TensorRef, most: int, parts: int = 8) -> np.ndarray[Any, np.dtype[np.float64]] | None:
    """At most about `most` elements of a tensor in row-major order, from `parts` places spread evenly, (n,).

    Tensors of one shape are sampled at the same indices. None where the elements do not lie in row-major order (those
    sampled would be others), and where they cannot be read.
    """
    if ref.order is not None or ref.repeat != 1 or not ref.stored:
        return None
    runs = ref.runs
    if ref.stored > most:
        spread = refs.pieces(ref, -(-ref.stored // parts))
        runs = tuple(run for piece in spread for run in _first(piece.runs, most // parts))
    try:
        return elements(TensorRef(ref.dtype, (sum(run.count for run in runs),), runs))
    except (RefusedError, OSError):
        return None


def _first(runs: tuple[refs.Run, ...], count: int) -> list[refs.Run]:
    """The first `count` elements of the runs."""
    kept = []
    for run in runs:
        if count <= 0:
            break
        kept.append(run._replace(count=min(run.count, count)))
        count -= run.count
    return kept
