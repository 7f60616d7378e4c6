"""Where a non-finite value comes from: every tensor that holds one has a record, with the records of its inputs.

An infinity that was put there on purpose (a mask of -inf, a constant) is no fault as long as it stays in its place. A
record without followed inputs is a root: it made NaN of inputs without NaN, or Inf of finite ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from gradforensics.replay.tracing_ops import Operator
from gradforensics.replay.tracing_values import Kind, Place, Summary

Phase: TypeAlias = Literal["forward", "backward", "state", "batch"]


@dataclass(eq=False, slots=True)
class Record:
    """A tensor that holds a non-finite value, and what made it.

    order: how many records there were before. kind: of its worst value. operation: readable, of a node of the graph in
    the backward. aten: the operator, "" where there was none (phases state and batch: then operation says what it is,
    and module whose). source_line: the user's. parents: what brought the value here, none for a root. intended: an
    infinity that was put there. inputs, place, note: of roots only; note says why, where that can be seen.
    """

    order: int
    phase: Phase
    kind: Kind
    operation: str
    aten: str = ""
    module: str = ""
    source_line: str = ""
    micro: int = 0
    intended: bool = False
    parents: tuple[Record, ...] = ()
    inputs: tuple[Summary, ...] = ()
    place: Place = field(default_factory=Place)
    note: str = ""

    @property
    def followed(self) -> list[Record]:
        """The parents that lead on to the root; the backward's search ends where the backward began."""
        own_phase = self.phase == "backward"
        return [p for p in self.parents if not p.intended and not (own_phase and p.phase == "forward")]


@dataclass(frozen=True, slots=True)
class Input:
    """A tensor that went into an operation, as it was before. record: where its non-finite value comes from."""

    name: str
    tensor: torch.Tensor
    kind: Kind
    record: Record | None
    summary: Summary | None = None  # where the operation has changed it since


class Lineage:
    """The records of all tensors that hold a non-finite value, by storage: views and saved tensors share it.

    A weak reference to every storage keeps its address from being used again; it does not keep its memory.
    """

    def __init__(self) -> None:
        self._held: dict[int, tuple[StorageWeakRef, dict[bool, Record]]] = {}
        self.count = 0

    def put(self, tensor: torch.Tensor, record: Record) -> None:
        """From now on, a non-finite value in the tensor's storage comes from this."""
        storage = tensor.untyped_storage()
        _, records = self._held.setdefault(storage._cdata, (StorageWeakRef(storage), {}))  # type: ignore[no-untyped-call]  # torch's own  # noqa: SLF001  the address of the storage itself
        records[record.kind == "nan"] = record
        self.count += 1

    def get(self, tensor: torch.Tensor, kind: Kind) -> Record | None:
        """Where a value of this kind in the tensor comes from, None where that was not seen."""
        records = self._held.get(tensor.untyped_storage()._cdata, (None, {}))[1]  # noqa: SLF001  likewise
        same = records.get(kind == "nan")
        return same if same is not None else next(iter(records.values()), None)


def origin(kind: Kind, operator: Operator, inputs: Iterable[Input], size: int, *, constant: bool) -> tuple[
    bool, tuple[Record, ...]
]:  # fmt: skip
    """Whether a result of this kind is intended, and the records that brought its value.

    size: number of elements of the result. constant: the call was given an infinity as a plain number.
    """
    held = [(i, i.record) for i in inputs if i.record is not None]
    spoiled = tuple(r for i, r in held if i.kind == "nan")
    infinite = [(i, r) for i, r in held if i.kind in ("posinf", "neginf")]
    unintended = tuple(r for _, r in infinite if not r.intended)
    if kind == "nan":
        return False, spoiled or unintended
    if spoiled or unintended:
        return False, spoiled + unintended
    if infinite:
        stays = not operator.contracting and size >= max(i.tensor.numel() for i, _ in infinite)
        return stays, tuple(r for _, r in infinite)
    return constant, ()


def root_of(record: Record) -> tuple[Record, Record | None]:
    """The earliest root from which the value in a record comes, and where its infinity became NaN, if it did."""
    pending, seen, roots = [record], {id(record)}, list[Record]()
    reached = [record]
    while pending:
        one = pending.pop()
        before = one.followed
        if not before:
            roots.append(one)
        for parent in before:
            if id(parent) not in seen:
                seen.add(id(parent))
                pending.append(parent)
                reached.append(parent)
    root = min(roots, key=lambda r: r.order)
    return root, None if root.kind == "nan" else first_nan(reached)


def first_nan(records: Sequence[Record]) -> Record | None:
    """The earliest record that made NaN of infinities."""
    made = [r for r in records if r.kind == "nan" and not any(p.kind == "nan" for p in r.parents)]
    return min(made, key=lambda r: r.order, default=None)
