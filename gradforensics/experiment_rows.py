"""The table `experiments` of the evidence: one row per quantity of a result of a replay, and back.

A value that is not finite stands as null, as everywhere in the tables; its text then says "nan", "inf" or "-inf".
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple, cast

import polars as pl

from gradforensics.experiments import OUTCOMES, Quantity, Result, number_to_json
from gradforensics.tables import TABLES, Evidence

TABLE = "experiments"
_SPELLED = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class Located(NamedTuple):
    """A result and where it stands: file (None where not known) and line."""

    result: Result
    source: str | None
    line: int | None


def frame(results: Iterable[Located]) -> pl.DataFrame:
    """The table of these results; a result without a quantity has one row, its `quantity` null."""
    rows = [
        (
            r.experiment, r.step, q.name if q else None, q.variation if q else None, _finite(q.value) if q else None,
            q.unit if q else None, r.outcome, _text(q) if q else None, r.question, r.changed, r.result, r.conclusion,
            source, line,
        )
        for r, source, line in results
        for q in (r.quantities or (None,))
    ]  # fmt: skip
    return pl.DataFrame(rows, schema=TABLES[TABLE], orient="row")


def results(evidence: Evidence, experiment: str | None = None) -> list[Located]:
    """The results of the table `experiments`, of one experiment or of all, in the order of its rows."""
    table = evidence.table(TABLE)
    if table is None:
        return []
    found: list[Located] = evidence.once(TABLE, lambda: list(_results(table)))
    return [one for one in found if experiment in (None, one.result.experiment)]


def _results(table: pl.DataFrame) -> Iterator[Located]:
    """Rows that agree in all but their quantity, one after the other, are one result."""
    own = ("experiment", "step", "verdict", "question", "changed", "result", "conclusion", "source", "line")
    before: tuple[object, ...] | None = None
    quantities: list[Quantity] = []
    for row in table.iter_rows(named=True):
        head = tuple(row[name] for name in own)
        if before is not None and head != before:
            yield _located(before, quantities)
            quantities = []
        before = head
        if row["quantity"] is not None:
            value = row["value"] if row["value"] is not None else _SPELLED.get(row["text"] or "")
            texts = (row[name] or "" for name in ("unit", "variation", "text"))
            quantities.append(Quantity(row["quantity"], value, *texts))
    if before is not None:
        yield _located(before, quantities)


def _located(head: tuple[object, ...], quantities: list[Quantity]) -> Located:
    experiment, step, verdict, question, changed, result, conclusion, source, line = head
    made = Result(
        experiment=str(experiment or ""),
        step=cast("int", step or 0),
        question=str(question or ""),
        changed=str(changed or ""),
        result=str(result or ""),
        conclusion=str(conclusion or ""),
        outcome=verdict if verdict in OUTCOMES else "inconclusive",
        quantities=tuple(quantities),
    )
    return Located(made, cast("str | None", source), cast("int | None", line))


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _text(quantity: Quantity) -> str:
    spelled = number_to_json(quantity.value)
    return quantity.text or (spelled if isinstance(spelled, str) else "")
