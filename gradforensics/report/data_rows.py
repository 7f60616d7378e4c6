"""What a report says of the training data: the table of the audit, row by row."""

from __future__ import annotations

from dataclasses import dataclass

from gradforensics.tables import Evidence


@dataclass(frozen=True, slots=True)
class DataRow:
    """One quantity of one file of training data, as the table `data` has it."""

    file: str
    column: str
    quantity: str
    value: float
    unit: str
    count: int
    row: int | None
    line: int | None
    text: str


def data_rows(evidence: Evidence) -> tuple[DataRow, ...] | None:
    """What the audit measured; None where no training data were audited."""
    table = evidence.table("data")
    return None if table is None else tuple(DataRow(*values) for values in table.iter_rows())
