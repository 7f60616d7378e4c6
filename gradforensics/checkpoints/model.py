"""What one checkpoint holds: its tensors by role and name, its optimizer groups, and what was wrong with its files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from gradforensics.checkpoints.refs import TensorRef
from gradforensics.notices import Notice
from gradforensics.patterns import lazy
from gradforensics.untrusted.files import Damage, Readable

Role: TypeAlias = Literal[
    "param", "buffer", "master", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum", "grad", "state", "other"
]
Placement: TypeAlias = Literal["replicated", "sharded", "unknown"]


_MASK = lazy(r"mask|bias_k|causal", re.IGNORECASE)


def is_mask(name: str) -> bool:
    """Whether a tensor is named as a mask: kept beside the weights, and full of -inf on purpose."""
    return bool(_MASK.search(name))


@dataclass(frozen=True, slots=True)
class Checksum:
    """A stored CRC-32 over bytes of a file (a zip record)."""

    file: Readable
    offset: int
    count: int
    crc: int


@dataclass(slots=True)
class Tensor:
    """One tensor of a checkpoint.

    name: the parameter's name for parameters, masters, gradients and optimizer states whose parameter is known, else
    the path of keys that leads to the tensor. key: that path in any case. file: the file it was found in.
    checksum: of exactly the bytes of this tensor, where the file holds one.
    lost: why its bytes are not there, "" where they are: a lost tensor has a shape and cannot be measured.
    """

    name: str
    role: Role
    ref: TensorRef
    file: str
    key: str
    rank: int | None = None
    placement: Placement = "unknown"
    checksum: Checksum | None = None
    lost: str = ""


@dataclass(slots=True)
class Group:
    """One parameter group of an optimizer.

    optimizer: adam, adamw, sgd, adafactor, lion, rmsprop ... or "" where the state does not tell. names: of its
    parameters in order, or their ids as text where no name was found. step_min, step_max: of its step counters.
    values: everything else that the group holds, as plain data. varied: the betas are not the same throughout the run.
    """

    group: int
    names: list[str]
    optimizer: str = ""
    lr: float | None = None
    betas: tuple[float, float] | None = None
    eps: float | None = None
    weight_decay: float | None = None
    momentum: float | None = None
    step_min: int | None = None
    step_max: int | None = None
    rank: int | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    varied: bool = False


@dataclass(slots=True)
class Naming:
    """How optimizer states were given their parameters' names.

    how: a sentence for the report. sure: "exact" (the file says it), "confirmed" (order, and every full-shape state
    fits), "likely" (numbers agree) or "none" (ambiguous or contradicted: states keep their ids).
    """

    how: str
    sure: Literal["exact", "confirmed", "likely", "none"]


@dataclass(slots=True)
class Call:
    """Executable content of a pickle: a class or function that loading it would import and call; never done here."""

    file: str
    name: str
    danger: bool
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong with the files of a checkpoint: what, in which file (or folder), in words."""

    kind: Damage
    file: str
    text: str


@dataclass(slots=True)
class Checkpoint:
    """One checkpoint.

    path: relative to the input. complete: None where nothing tells; faults: what was damaged for certain. unread: files
    that could not be read at all.

    checksums: of zip records that are no single tensor, checked in the same scan. settings: (name, value, file) of
    pickled training arguments and configurations, names joined with dots. histories: (file, rows) of named numbers
    that a loop kept beside its weights. facts: scheduler, scaler and counters as
    plain data, such as {"scheduler.last_epoch": 6, "scaler.scale": 65536.0, "optimizer.step": 6}; "optimizer.behind"
    has the counters of the parameters that had fewer steps than others. counters: the optimizer's own step counter of
    every parameter, by name.
    """

    path: str
    format: str
    step: int | None = None
    complete: bool | None = None
    bytes: int = 0
    files: list[str] = field(default_factory=list)
    unread: set[str] = field(default_factory=set)
    faults: list[Fault] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    naming: Naming | None = None
    checksums: list[Checksum] = field(default_factory=list)
    settings: list[tuple[str, Any, str]] = field(default_factory=list)
    histories: list[tuple[str, list[dict[str, float]]]] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)
