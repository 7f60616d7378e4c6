"""The rows of the tables of checkpoints as the checks read them, and what their words mean (a leaf)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gradforensics.parameter_names import Kind

SURE = frozenset({"exact", "confirmed"})
"""Of `checkpoints.naming_sure`: the optimizer's states belong to the parameters whose names they carry."""

FULL = frozenset({"float32", "float64"})
"""Element types that keep a single update of a usual size."""

HALF = frozenset({"bfloat16", "float16"})
"""Element types of 16 bits, which round many of them away."""


class Saved(NamedTuple):
    """One checkpoint. naming: whether its states' names are certain, see SURE; "" where it holds no states.

    complete: None where nothing tells. nonfinite: NaN and infinities in its model and optimizer, None where they were
    not counted.
    """

    path: str
    step: int | None
    format: str
    complete: bool | None
    naming: str
    source: str | None
    nonfinite: int | None = None


@dataclass(frozen=True, slots=True)
class Weight:
    """One parameter in one checkpoint, measured; all numbers are of its finite elements.

    dtype: as the model stores it; measured: that of the tensor that was measured, which is the float32 master where
    there is one. kind, layer: see `parameter_names`. nonfinite: but for -inf in masks. zero, one: elements that are
    exactly 0 or 1. min, max, mean, std, l2: None where no element is finite. fingerprint: CRC-32 of the bytes, equal
    only for equal bytes of the same type. zero_rows, row_l2_min, row_l2_max: of matrices, else None. optimized: it
    stands in a group of the optimizer; None where that is not certain.
    """

    checkpoint: str
    step: int | None
    rank: int | None
    name: str
    kind: Kind
    layer: tuple[str, int] | None
    dtype: str
    measured: str
    shape: tuple[int, ...]
    count: int
    nonfinite: int
    zero: int
    one: int
    min: float | None
    max: float | None
    mean: float | None
    std: float | None
    l2: float | None
    fingerprint: str
    row_l2_min: float | None
    row_l2_max: float | None
    row_l2_max_index: int | None
    zero_rows: int | None
    optimized: bool | None
    source: str


@dataclass(frozen=True, slots=True)
class Average:
    """An averaged copy (EMA, SWA) of a checkpoint's weights that was saved beside them.

    key: the key or path under which it lies. pairs: each averaged weight with the live one. updates: how often it was
    updated, None where it keeps no count.
    """

    checkpoint: str
    step: int | None
    key: str
    pairs: tuple[tuple[Weight, Weight], ...]
    updates: int | None


class Group(NamedTuple):
    """One parameter group of one checkpoint's optimizer, as the table of groups has it; names: () where unknown.

    values: everything else that the group holds, such as {"initial_lr": 1e-3, "decoupled_weight_decay": True}.
    """

    checkpoint: str
    rank: int | None
    number: int
    optimizer: str
    lr: float | None
    betas: tuple[float, float] | None
    eps: float | None
    weight_decay: float | None
    momentum: float | None
    names: tuple[str, ...]
    step_min: int | None
    step_max: int | None
    values: Mapping[str, Any]

    @property
    def corrections(self) -> tuple[float, float] | None:
        """By what Adam divides m and v for their start: 1 - beta1^t and 1 - beta2^t; None where t is not known.

        So v / (1 - beta2^t) is a running mean of squared gradients (Kingma and Ba, 2015).
        """
        if self.betas is None or not self.step_max:
            return None
        return 1.0 - self.betas[0] ** self.step_max, 1.0 - self.betas[1] ** self.step_max


@dataclass(frozen=True, slots=True)
class Pair:
    """Two neighbouring checkpoints of one run that were compared parameter by parameter.

    rows: of the table of travels, by parameter. copies: those of averaged copies of the weights, which no optimizer
    moves. one_update: at least one state is exactly one optimizer step further. naming: of both, the less certain one;
    "" where neither holds states.
    """

    first: Saved
    last: Saved
    rows: Mapping[str, Mapping[str, Any]]
    copies: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def steps(self) -> int:
        """Steps from the first to the last one."""
        return (self.last.step or 0) - (self.first.step or 0)

    @property
    def one_update(self) -> bool:  # noqa: D102  # the class says it
        return any(row["grad_l2"] is not None for row in self.rows.values())

    @property
    def named(self) -> bool:
        """Whether the states of both belong for certain to the parameters whose names they carry."""
        return self.first.naming in SURE and self.last.naming in SURE
