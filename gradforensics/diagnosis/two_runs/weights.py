"""What the checkpoints of two runs say: at which step their weights are still equal, byte by byte, and where not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import polars as pl

from gradforensics.tables import Evidence

_WEIGHTS = ("param", "buffer", "master")


@dataclass(frozen=True, slots=True)
class SharedStep:
    """The checkpoints that both runs wrote at one step.

    here, there: their paths. files_equal: whether the files of the same names are equal (sha256), None where they were
    not hashed. equal, apart: tensors of the model that both hold, equal or not byte by byte; states_equal and
    states_apart: the same of the optimizer. unlike: tensors of one of them only, or of other shapes. widest, distance:
    the tensor of the model whose norms differ most, and by which fraction.
    """

    step: int
    here: str
    there: str
    files_equal: bool | None
    equal: int
    apart: int
    states_equal: int
    states_apart: int
    unlike: int
    widest: str | None
    distance: float | None

    @property
    def same(self) -> bool | None:
        """Whether the models are equal; None where nothing tells."""
        if self.apart or self.unlike:
            return False
        return True if self.equal or self.files_equal else None


def shared_checkpoints(here: Evidence, there: Evidence) -> list[SharedStep]:
    """The checkpoints of the steps at which both runs wrote one, by step."""
    mine, theirs = _by_step(here), _by_step(there)
    return [_compare(here, there, step, mine[step], theirs[step]) for step in sorted(mine.keys() & theirs.keys())]


def _by_step(evidence: Evidence) -> dict[int, str]:
    """The checkpoint of each step that has one; of several the first."""
    table = evidence.table("checkpoints")
    found: dict[int, str] = {}
    for path, step in [] if table is None else table.select("path", "step").iter_rows():
        if step is not None:
            found.setdefault(step, path)
    return found


def _compare(here: Evidence, there: Evidence, step: int, mine: str, theirs: str) -> SharedStep:
    left, right = _tensors(here, mine), _tensors(there, theirs)
    both = left.keys() & right.keys()
    alike = {key: left[key][0] == right[key][0] for key in both if left[key][0] and right[key][0]}
    models = [key for key in alike if key[0] in _WEIGHTS]
    states = [key for key in alike if key[0] not in _WEIGHTS]
    unlike = [key for key in left.keys() ^ right.keys() if key[0] in _WEIGHTS]
    widest, distance = _widest(left, right, [key for key in models if not alike[key]])
    return SharedStep(
        step, mine, theirs, _files_equal(here, there, mine, theirs),
        sum(alike[key] for key in models), sum(not alike[key] for key in models),
        sum(alike[key] for key in states), sum(not alike[key] for key in states),
        len({key[1] for key in unlike}), widest, distance,
    )  # fmt: skip


# (role, name, rank, shape, type)
_Key = tuple[str, str, int | None, tuple[int, ...], str]


def _tensors(evidence: Evidence, checkpoint: str) -> dict[_Key, tuple[str | None, float | None]]:
    """The fingerprint and the norm of every tensor; without a fingerprint where it was not read."""
    table = evidence.table("tensors")
    if table is None:
        return {}
    rows = table.filter(pl.col("checkpoint") == checkpoint)
    found = rows.select("role", "name", "rank", "shape", "dtype", "fingerprint", "l2").iter_rows()
    return {
        (role, name, rank, tuple(shape or ()), dtype): (mark, l2) for role, name, rank, shape, dtype, mark, l2 in found
    }


def _widest(
    left: dict[_Key, tuple[str | None, float | None]],
    right: dict[_Key, tuple[str | None, float | None]],
    keys: Iterable[_Key],
) -> tuple[str | None, float | None]:
    name, distance = None, None
    for key in keys:
        a, b = left[key][1], right[key][1]
        if a is None or b is None:
            continue
        apart = abs(a - b) / (max(abs(a), abs(b)) or 1.0)
        if distance is None or apart > distance:
            name, distance = key[1], apart
    return name, distance


def _files_equal(here: Evidence, there: Evidence, mine: str, theirs: str) -> bool | None:
    """Whether the files of the same names below two checkpoints are equal; None where no pair was hashed."""
    left, right = _hashes(here, mine), _hashes(there, theirs)
    both = left.keys() & right.keys()
    return all(left[name] == right[name] for name in both) if both else None


def _hashes(evidence: Evidence, checkpoint: str) -> dict[str, str]:
    """The sha256 of the files of a checkpoint, by their names within it ("" for a checkpoint that is a file)."""
    found = {}
    for source in evidence.sources:
        if source.sha256 and (source.path == checkpoint or source.path.startswith(f"{checkpoint}/")):
            found[source.path.removeprefix(checkpoint)] = source.sha256
    return found
