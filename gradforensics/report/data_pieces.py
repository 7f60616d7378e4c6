"""The section on the training data as markup."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from gradforensics.report.data_rows import DataRow
from gradforensics.report.markup import Tables, cell, evidence, joined, tag, where
from gradforensics.report.words import number, shorten

ROWS = 400  # that a page shows; the JSON report has them all


class DataPieces(Tables):
    """Builds the table of the section from the pieces of the page."""

    def quantities(self, rows: Sequence[DataRow]) -> Markup:
        """All quantities, a file and a column named once."""
        shown: list[Markup] = []
        before: tuple[str, str] | None = None
        for one in rows[:ROWS]:
            opens = (one.file, one.column) != before
            named = (
                joined([tag("code", shorten(one.file, 160)), evidence(shorten(one.column, 80), kind="soft")])
                if opens
                else ""
            )
            place = where(one.file, one.line) if one.line else ""
            text = self.words.message(one.text, 160) if one.text else ""
            cells = [
                tag("td", named, kind="named"),
                tag("td", self.words(f"data_{one.quantity}")),
                cell(number(one.value)),
                tag("td", self.words.message(one.unit, 80), kind="soft"),
                cell(one.count or ""),
                cell("" if one.row is None else one.row),
                tag("td", joined([p for p in (text, place) if p])),
            ]
            shown.append(tag("tr", *cells, kind="opens" if opens and before is not None else ""))
            before = (one.file, one.column)
        heads = ("path", "quantity", "value", "unit", "count", "sample", "note")
        return self.table(heads, shown, numeric=(2, 4, 5)) + self.cut(len(rows), ROWS)
