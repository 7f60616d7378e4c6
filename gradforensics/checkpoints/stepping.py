"""Whose optimizer state is it? Told exactly by one update: a parameter moves by -lr (u + wd w), with its state's own u.

Between two checkpoints one update apart, rounding of float32 leaves 1e-6 to 2e-4 of a movement unexplained by the right
state (measured at a rate of 7e-4; the gains most, whose weights are near 1), and any other state leaves nearly all of
it: of n numbers, two fitted coefficients explain all but 1 % by chance in one of 10^(2 (n - 2)) pairs. Vectors that all
drift one way come closer, down to 0.013 of 8 numbers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from gradforensics.checkpoints.adam import Hyper, adam
from gradforensics.checkpoints.model import Group
from gradforensics.checkpoints.optimizer import OptimizerState, State
from gradforensics.checkpoints.refs import TensorRef
from gradforensics.checkpoints.samples import sample

_SAMPLE = 1024  # elements per tensor
_LEAST = 8  # elements that a tensor has: see above
_MAX_CLASS = 1024  # tensors of one shape: each is compared with each
EXPLAINED = 0.003  # share of the movement's norm that the right state may leave
RIVAL = 0.01  # and that any other pair with the same state or parameter must leave,
APART = 30.0  # which is also so many times what the right one leaves
_SPREAD = (
    0.05  # of |u|, as a share of its mean: below it (as in Adam's first step) the signs alone tell one from another
)
_SIGNS = 32  # and so many are needed, that two are not alike by chance
_KINDS = ("adam", "adamw", "amsgrad")
_TYPES = ("float32", "float64")

Vector: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]


class _Move(NamedTuple):
    """Samples of how a parameter moved, and of the parameter before."""

    change: Vector
    weight: Vector


def names(
    optimizer: OptimizerState,
    identities: Collection[str],
    before: Mapping[str, TensorRef],
    after: Mapping[str, TensorRef],
) -> dict[str, str]:
    """Names of the states that are one update further than the weights `before`, where the update proves them.

    identities: of those states; optimizer: with the states of the weights `after`. Only Adam, AdamW and AMSGrad with
    weights in float32 or float64.
    """
    updates: dict[tuple[int, ...], dict[str, Vector]] = defaultdict(dict)
    for group in optimizer.groups:
        for identity in group.names:
            found = _update(optimizer, group, identity) if identity in identities else None
            if found is not None:
                updates[found[0]][identity] = found[1]
    moves: dict[tuple[int, ...], dict[str, _Move]] = defaultdict(dict)
    for name, ref in after.items():
        if ref.shape in updates and name in before:
            move = _move(before[name], ref)
            if move is not None:
                moves[ref.shape][name] = move
    proven: dict[str, str] = {}
    for shape, rows in updates.items():
        proven |= _match(rows, moves[shape])
    return proven


def _update(optimizer: OptimizerState, group: Group, identity: str) -> tuple[tuple[int, ...], Vector] | None:
    """The shape of a state and a sample of its u = m_hat / (sqrt(v_hat) + eps); None where it does not tell."""
    state = optimizer.states.get(identity, {})
    first = _moment(state, "exp_avg")
    second = _moment(state, "max_exp_avg_sq" if group.optimizer == "amsgrad" else "exp_avg_sq")
    if group.optimizer not in _KINDS or group.betas is None or group.varied or first is None or second is None:
        return None
    hyper = Hyper(*group.betas, group.eps, optimizer.steps.get(identity))
    constants = adam(hyper, first.dtype, second.dtype)
    m, v = sample(first, _SAMPLE), sample(second, _SAMPLE)
    if constants is None or constants.eps is None or m is None or v is None or m.shape != v.shape or m.size < _LEAST:
        return None
    with np.errstate(all="ignore"):
        u = np.where(m == 0.0, 0.0, constants.scale * m / (np.sqrt(v) + constants.eps))
    if not np.isfinite(u).all():
        return None
    size = np.abs(u)
    return (first.shape, u) if u.size >= _SIGNS or size.std() > _SPREAD * size.mean() else None


def _moment(state: Mapping[str, State], key: str) -> TensorRef | None:
    ref = state.get(key)
    return ref if isinstance(ref, TensorRef) and ref.dtype in _TYPES else None


def _move(before: TensorRef, after: TensorRef) -> _Move | None:
    if before.dtype not in _TYPES or after.dtype not in _TYPES or before.shape != after.shape:
        return None
    first, second = sample(before, _SAMPLE), sample(after, _SAMPLE)
    if first is None or second is None or first.shape != second.shape:
        return None
    with np.errstate(all="ignore"):
        change = second - first
    return _Move(change, first) if np.isfinite(change).all() and change.any() else None


def _match(updates: Mapping[str, Vector], moves: Mapping[str, _Move]) -> dict[str, str]:
    """id -> name for the pairs of one shape of which the state explains the movement, and no other pair comes near."""
    if not updates or not moves or max(len(updates), len(moves)) > _MAX_CLASS:
        return {}
    ids, known = list(updates), list(moves)
    u = np.array(list(updates.values()))
    d = np.array([move.change for move in moves.values()])
    w = np.array([move.weight for move in moves.values()])
    if u.shape[1] != d.shape[1]:
        return {}
    left = _unexplained(u, d, w)
    found = {}
    for row, column in enumerate(np.argmin(left, axis=1)):
        others = min(np.delete(left[row], column).min(initial=1.0), np.delete(left[:, column], row).min(initial=1.0))
        if left[row, column] <= EXPLAINED and others >= max(RIVAL, APART * left[row, column]):
            found[ids[row]] = known[column]
    return found


def _unexplained(u: np.ndarray, d: np.ndarray, w: np.ndarray) -> np.ndarray:
    """‖d + a u + b w‖ / ‖d‖ at the best a and b, for each u (rows) and each d and w (columns); 1 where a is not > 0."""
    uu, ww, dd = (np.einsum("ij,ij->i", x, x) for x in (u, w, d))
    uw, ud, wd = u @ w.T, u @ d.T, np.einsum("ij,ij->i", w, d)
    with np.errstate(all="ignore"):
        determinant = uu[:, None] * ww - uw * uw
        single = determinant <= 1e-9 * uu[:, None] * ww  # parallel, or w is 0: a alone
        a = np.where(single, -ud / uu[:, None], (uw * wd - ud * ww) / determinant)
        b = np.where(single, 0.0, (uw * ud - wd * uu[:, None]) / determinant)
        left = np.sqrt(np.maximum(dd + a * ud + b * wd, 0.0) / dd)
    return np.where((a > 0.0) & np.isfinite(left), left, 1.0)
