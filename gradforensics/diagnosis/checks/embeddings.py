"""Checks on the rows of token embeddings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from gradforensics import checkpoint_signals as cs
from gradforensics import logged_rates
from gradforensics.checkpoint_signals import SURE, Group, Saved, Weight
from gradforensics.diagnosis.vocabulary import Answer, Check, Fact, Hit, Missing, check
from gradforensics.tables import Evidence

_NO_TABLE = "a token embedding in a checkpoint"
_SMALL = 16  # rows: below, an embedding is rather of segments or classes
_TINY = 1e-6  # of the longest row: less is lost in the norm of all of them
_ALIGNED = 64  # vocabularies are padded to multiples of it


def _tables(evidence: Evidence) -> list[Weight] | Missing:
    """The token embeddings that lie in one piece, in the order of the checkpoints."""
    found = cs.weights(evidence)
    if found is None:
        return Missing("tensors")
    tables = [w for w in found if w.rank is None and cs.is_token_table(w) and w.shape[0] >= _SMALL and not w.nonfinite]
    return tables or Missing(_NO_TABLE)


class _State(NamedTuple):
    """A token embedding with Adam's second moment, whose name is certain. unseen: rows whose v is exactly zero."""

    table: Weight
    saved: Saved
    group: Group
    unseen: int
    source: str


def _states(evidence: Evidence) -> list[_State] | Missing:
    tables = _tables(evidence)
    if isinstance(tables, Missing):
        return tables
    saved = {one.path: one for one in cs.checkpoints(evidence) or [] if one.naming in SURE}
    second = cs.states(evidence, "exp_avg_sq")
    found: list[_State] = []
    for table in tables:
        group, one = cs.adam_groups_of(evidence, table.checkpoint).get(table.name), saved.get(table.checkpoint)
        row: Mapping[str, Any] | None = second.get((table.checkpoint, table.name, None))
        if (
            group is not None
            and group.rank is None
            and one is not None
            and row is not None
            and row["zero_rows"] is not None
        ):
            found.append(_State(table, one, group, row["zero_rows"], row["source"]))
    return found or Missing("Adam's states of a token embedding" if saved or not second else "checkpoints:named")


@check(needs=["tensors"], facts=["checkpoint", "name", "rows", "trained", "steps"])
def few_rows_trained(evidence: Evidence, *, most: float, steps: float) -> Answer:
    """After `steps` steps no more than `most` rows of a token embedding have ever had a gradient.

    All other rows of Adam's second moment are exactly zero. Rows of tokens that a text does not hold are so in any
    fine-tuning; that only one or two tokens were ever read is another matter.
    """
    states = _states(evidence)
    if isinstance(states, Missing):
        return states
    late = [one for one in states if (one.group.step_max or 0) >= steps]
    if not late:
        return Missing("a checkpoint late enough that many tokens should have been read")
    hits: list[Hit] = []
    for one in late:
        rows, trained = one.table.shape[0], one.table.shape[0] - one.unseen
        if 0 < trained <= most:
            facts: dict[str, Fact] = {
                "checkpoint": one.saved.path,
                "name": one.table.name,
                "rows": rows,
                "trained": trained,
                "steps": one.group.step_max,
            }
            hits.append(
                Hit(one.saved.step, None, "tensors", None, float(trained), one.source, None, one.table.name, facts)
            )
    return hits


@check(needs=["tensors"], facts=["checkpoint", "name", "rows", "unseen", "lost", "first_step", "norm", "decay"])
def unseen_rows_decay(evidence: Evidence, *, lost: float, share: float, error: float) -> Answer:
    """The smallest row of an embedding shrinks as decoupled weight decay alone does: rows of tokens that never occur.

    They shrink by 1 - lr wd a step though nothing trains them. Counted from the first checkpoint to the last one
    between which every interval fits; `error`: of the exponent, relative.
    """
    states = _states(evidence)
    if isinstance(states, Missing):
        return states
    by_name: dict[str, list[_State]] = {}
    for one in states:
        by_name.setdefault(one.table.name, []).append(one)
    judged, hits = False, list[Hit]()
    for mine in by_name.values():
        decaying = [one for one in mine if (one.group.weight_decay or 0) > 0 and one.saved.step is not None]
        for run in _runs(evidence, decaying, share, error):
            judged = True
            first, last = run[0].table.row_l2_min or 0.0, run[-1].table.row_l2_min or 0.0
            if len(run) > 1 and first > 0 and 1 - last / first >= lost:
                hits.append(_shrunk(run[0], run[-1], 1 - last / first))
    return hits if judged else Missing("two checkpoints with Adam's states of a token embedding that decays")


def _runs(evidence: Evidence, states: list[_State], share: float, error: float) -> Iterator[list[_State]]:
    """The longest rows of checkpoints between which the smallest row of an embedding decayed and did nothing else."""
    run: list[_State] = []
    for one in states:
        if run and not _only_decayed(evidence, run[-1], one, share, error):
            yield run
            run = []
        run.append(one)
    if len(states) > 1:
        yield run


def _only_decayed(evidence: Evidence, first: _State, last: _State, share: float, error: float) -> bool:
    a, b = first.table.row_l2_min or 0.0, last.table.row_l2_min or 0.0
    steps = (last.saved.step or 0) - (first.saved.step or 0)
    if not 0 < b < a or steps <= 0 or last.unseen < max(1.0, share * last.table.shape[0]):
        return False
    rates = [rate for rate in (first.group.lr, last.group.lr) if rate is not None]
    rates += logged_rates.between(evidence, first.saved.step or 0, last.saved.step or 0).tolist()
    decay = last.group.weight_decay or 0.0
    exponent = -math.log(b / a)
    low, high = (steps * decay * limit for limit in (min(rates, default=0.0), max(rates, default=0.0)))
    return low * (1 - error) <= exponent <= high * (1 + error)


def _shrunk(first: _State, last: _State, lost: float) -> Hit:
    facts: dict[str, Fact] = {
        "checkpoint": last.saved.path,
        "name": last.table.name,
        "rows": last.table.shape[0],
        "unseen": last.unseen,
        "lost": lost,
        "first_step": first.saved.step,
        "norm": last.table.row_l2_min,
        "decay": last.group.weight_decay,
    }
    table = last.table
    return Hit(last.saved.step, first.saved.step, "tensors", None, lost, table.source, None, table.name, facts)


@check(needs=["tensors"], facts=["checkpoint", "name", "row", "times", "before"])
def one_row_dominates(evidence: Evidence, *, times: float, growth: float) -> Answer:
    """One row of a token embedding is `times` as long as the others (root mean square), and `growth` times what it was.

    What it was: in the first checkpoint that holds the embedding.
    """
    tables = _tables(evidence)
    if isinstance(tables, Missing):
        return tables
    before: dict[str, tuple[float, int | None]] = {}
    judged, hits = False, list[Hit]()
    for table in tables:
        longest = table.row_l2_max
        if longest is None or longest <= 0:
            continue
        others = max((table.l2 or 0.0) ** 2 - longest**2, 0.0) / (table.shape[0] - 1)
        now = longest / max(math.sqrt(others), longest * _TINY)
        if table.name in before:
            judged = True
            was, step = before[table.name]
            if now >= times and now >= growth * was:
                facts: dict[str, Fact] = {
                    "checkpoint": table.checkpoint,
                    "name": table.name,
                    "row": table.row_l2_max_index,
                    "times": now,
                    "before": was,
                }
                hits.append(Hit(table.step, step, "tensors", None, now, table.source, None, table.name, facts))
        before.setdefault(table.name, (now, table.step))
    return hits if judged else Missing("two checkpoints with a token embedding")


@check(needs=["tensors"], facts=["checkpoint", "name", "rows", "zero"])
def rows_exactly_zero(evidence: Evidence, *, most: float) -> Answer:
    """More than `most` rows of a token embedding are exactly zero after training began, others are not.

    The one row of padding_idx is zero by design; so may be as many as the settings' vocab_size leaves, and the last
    rows of a table that is padded to a multiple of 64.
    """
    tables = _tables(evidence)
    if isinstance(tables, Missing):
        return tables
    trained = [table for table in tables if (table.step or 0) > 0 and table.zero_rows is not None]
    if not trained:
        return Missing("a token embedding in a checkpoint of a known step")
    vocabulary = evidence.number("vocab_size")
    hits: list[Hit] = []
    for table in trained:
        rows, zero = table.shape[0], table.zero_rows or 0
        beyond = rows - vocabulary if vocabulary is not None and vocabulary < rows else 0.0
        padded = rows % _ALIGNED == 0 and zero < _ALIGNED
        if max(most, beyond) < zero < rows and not padded:
            facts: dict[str, Fact] = {"checkpoint": table.checkpoint, "name": table.name, "rows": rows, "zero": zero}
            hits.append(Hit(table.step, None, "tensors", None, float(zero), table.source, None, table.name, facts))
    return hits


CHECKS: tuple[Check, ...] = (
    few_rows_trained,
    unseen_rows_decay,
    one_row_dominates,
    rows_exactly_zero,
)
