"""Layers x checkpoints, and modules x steps: what the heatmaps show. Selected and put together; nothing is judged."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, TypeAlias

import numpy as np

from gradforensics import checkpoint_signals as saved
from gradforensics import weight_copies
from gradforensics.diagnosis.causes import Diagnosis
from gradforensics.parameter_names import module_of
from gradforensics.report import layers
from gradforensics.tables import Evidence, Series

Quantity: TypeAlias = Literal["gradient_rms", "update_rms", "travel", "gradient_norm", "nonfinite"]
Rows: TypeAlias = tuple[tuple[float | None, ...], ...]
"""One row per layer, one value per column; None where it was not measured."""

ROWS, COLUMNS = 100, 50  # of one grid; what is more is put together with its neighbours
_LOGGED = "grad_norm/"  # what the recorder calls the gradient norm of a module
_PARAMETERS = ("weight", "bias")


@dataclass(frozen=True, slots=True)
class Column:
    """A checkpoint (name: its path) or a step (name: ""), or several neighbours, the first and last of which it names.

    first, last: steps; None where a checkpoint tells none.
    """

    name: str
    last_name: str
    first: int | None
    last: int | None


@dataclass(frozen=True)
class Grid:
    """Values of layers (rows, in the order of the network) at checkpoints or steps (columns, in order).

    values: gradient_rms: root of the mean of Adam's v, corrected for its start; update_rms: root mean square of Adam's
    update before the learning rate; travel: since the checkpoint before, in norms of the weights; gradient_norm: as
    logged, the largest around the step; nonfinite: NaN and infinities in weights and moments, or logged ones. Where
    neighbours were put together, the largest of them; counts are added. last_good, first_bad: places of columns.
    layers_of, columns_of: how many there were before.
    """

    layers: tuple[str, ...]
    columns: tuple[Column, ...]
    values: Mapping[Quantity, Rows]
    layers_of: int
    columns_of: int
    last_good: int | None = None
    first_bad: int | None = None

    @property
    def shown(self) -> tuple[Quantity, ...]:
        """The quantities that say something: measured ones, and counts where something is not finite."""
        return tuple(name for name, rows in self.values.items() if _tells(name, rows))

    @property
    def bad(self) -> Rows:
        """NaN and infinities of every cell."""
        return self.values["nonfinite"]


def _tells(name: Quantity, rows: Rows) -> bool:
    return any(value if name == "nonfinite" else value is not None for row in rows for value in row)


def checkpoint_grid(diagnosis: Diagnosis) -> Grid | None:
    """Layers x checkpoints; None where nothing that a map could show was measured."""
    evidence = diagnosis.evidence
    measured = saved.weights_by_checkpoint(evidence)
    held = [one for one in saved.checkpoints(evidence) or [] if one.path in measured or _damaged(one)]
    names = layers.in_order(evidence)
    if not names:
        return None
    sums = [layers.sums(evidence, one.path) for one in held]
    moved = _moved(evidence, held)

    def rows(told: Callable[[layers.Sums], float | None]) -> list[list[float | None]]:
        return [[None if name not in one else told(one[name]) for one in sums] for name in names]

    values: dict[Quantity, list[list[float | None]]] = {
        "gradient_rms": rows(lambda one: one.gradient_rms),
        "update_rms": rows(lambda one: one.update_rms),
        "travel": [[None if one is None else one.get(name) for one in moved] for name in names],
        "nonfinite": rows(lambda one: one.nonfinite),
    }
    good = next((i for i, one in enumerate(held) if one.path == diagnosis.last_good_checkpoint), None)
    bad = _first_bad(diagnosis, held)
    columns = [Column(one.path, one.path, one.step, one.step) for one in held]
    grid = put_together(names, columns, values, good, bad)
    return grid if grid.shown else None


def _damaged(one: saved.Saved) -> bool:
    """Whether a checkpoint of which no weight was measured belongs among the others, as a column without values."""
    incomplete = one.complete is False or one.nonfinite is None
    return incomplete and one.step is not None and not weight_copies.is_copy_path(one.path)


def _moved(evidence: Evidence, held: Sequence[saved.Saved]) -> list[Mapping[str, float | None] | None]:
    """By checkpoint, how far every layer is from where it was in the one that it was compared with."""
    found: dict[str, Mapping[str, float | None]] = {}
    for pair in saved.pairs(evidence) or []:
        found[pair.last.path] = {name: travel for name, (travel, _) in layers.travels(evidence, pair).items()}
    return [found.get(one.path) for one in held]


def _first_bad(diagnosis: Diagnosis, held: Sequence[saved.Saved]) -> int | None:
    """The first checkpoint at or after the onset of the primary case, or the first that is not finite."""
    onset = None if diagnosis.primary is None else diagnosis.primary.onset
    for place, one in enumerate(held):
        if one.nonfinite or (onset is not None and one.step is not None and one.step >= onset):
            return place
    return None


# -- logged by the recorder -------------------------------------------------------------------------------------------


def logged_grid(evidence: Evidence) -> Grid | None:
    """Modules x steps: gradient norms that were logged module by module; None where fewer than two were."""
    series = [s for name in evidence.names("train") if name.startswith(_LOGGED) and (s := evidence.series(name))]
    if len(series) < 2 or len({one.step_unit for one in series}) > 1:
        return None
    modules: dict[str, list[Series]] = {}
    for one in series:
        modules.setdefault(_layer(one.name.removeprefix(_LOGGED)), []).append(one)
    names = layers.ordered(f"{_module(one.name.removeprefix(_LOGGED))}.weight" for one in series)
    steps = np.unique(np.concatenate([one.steps for one in series]))
    size = -(-len(steps) // COLUMNS)
    starts = steps[::size]
    values: dict[Quantity, list[list[float | None]]] = {"gradient_norm": [], "nonfinite": []}
    for name in names:
        norms, bad = _binned(modules[name], starts)
        values["gradient_norm"].append(norms)
        values["nonfinite"].append(bad)
    ends = [*(starts[1:] - 1), steps[-1]]
    columns = [
        Column("", "", int(low), int(steps[np.searchsorted(steps, high, "right") - 1]))
        for low, high in zip(starts, ends, strict=True)
    ]
    grid = put_together(names, columns, values, None, None)
    return Grid(grid.layers, grid.columns, grid.values, grid.layers_of, len(steps))


def _module(logged: str) -> str:
    return module_of(logged) if logged.rpartition(".")[2] in _PARAMETERS else logged


def _layer(logged: str) -> str:
    return layers.layer_name(f"{_module(logged)}.weight")


def _binned(parts: Sequence[Series], starts: np.ndarray) -> tuple[list[float | None], list[float | None]]:
    """The largest norm of a layer within each stretch of steps, and the points that are not finite.

    The norm of a layer is the root of the sum of the squares of its modules' norms, each the largest of its stretch.
    """
    squares, known, bad = (np.zeros(len(starts)) for _ in range(3))
    for one in parts:
        places = np.searchsorted(starts, one.steps, "right") - 1
        most = np.zeros(len(starts))
        np.maximum.at(most, places[one.finite], one.values[one.finite])
        squares += most**2
        np.add.at(known, places[one.finite], 1)
        np.add.at(bad, places[one.bad], 1)
    norms = [math.sqrt(s) if n else None for s, n in zip(squares.tolist(), known.tolist(), strict=True)]
    seen = (known + bad) > 0
    return norms, [int(n) if was else None for n, was in zip(bad.tolist(), seen.tolist(), strict=True)]


# -- putting neighbours together --------------------------------------------------------------------------------------


def put_together(
    names: Sequence[str],
    columns: Sequence[Column],
    values: Mapping[Quantity, list[list[float | None]]],
    good: int | None,
    bad: int | None,
) -> Grid:
    """A grid of at most about ROWS x COLUMNS cells; the last good and the first bad checkpoint keep their places."""
    down = _blocks(len(names), ROWS, ())
    across = _blocks(len(columns), COLUMNS, [cut for cut in (bad, None if good is None else good + 1) if cut])
    return Grid(
        tuple(names[a] if b - a == 1 else f"{names[a]} – {names[b - 1]}" for a, b in down),
        tuple(
            Column(columns[a].name, columns[b - 1].last_name, columns[a].first, columns[b - 1].last) for a, b in across
        ),
        {name: _merged(name, rows, down, across) for name, rows in values.items()},
        len(names),
        len(columns),
        _place(across, good),
        _place(across, bad),
    )


def _blocks(count: int, most: int, cuts: Sequence[int]) -> list[tuple[int, int]]:
    """Stretches of neighbours, at most `most` and one for each cut."""
    size = max(1, -(-count // most))
    return list(pairwise(sorted({*range(0, count, size), *cuts, count})))


def _place(blocks: Sequence[tuple[int, int]], index: int | None) -> int | None:
    return None if index is None else next(i for i, (a, b) in enumerate(blocks) if a <= index < b)


def _merged(
    name: Quantity,
    rows: Sequence[Sequence[float | None]],
    down: Sequence[tuple[int, int]],
    across: Sequence[tuple[int, int]],
) -> Rows:
    def cell(top: tuple[int, int], side: tuple[int, int]) -> float | None:
        held = [value for row in rows[top[0] : top[1]] for value in row[side[0] : side[1]] if value is not None]
        if not held:
            return None
        return sum(held) if name == "nonfinite" else max(held)

    return tuple(tuple(cell(top, side) for side in across) for top in down)
