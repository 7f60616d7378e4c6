"""Heatmaps with their text alternative, as markup."""

from __future__ import annotations

from markupsafe import Markup

from gradforensics.report import heatmap_svg
from gradforensics.report.heatmaps import Column, Grid, Quantity
from gradforensics.report.markup import Tables, cell, joined, tag
from gradforensics.report.words import compact, shorten

ROWS, COLUMNS = 60, 10  # of a table that a page shows; the JSON report has them all


class HeatmapPieces(Tables):
    """Builds the section from the pieces of the page."""

    def title(self, quantity: Quantity, of: str) -> Markup:
        """What a map shows."""
        if quantity == "nonfinite":
            return self.words("heat_nonfinite_counts" if of == "checkpoints" else "heat_nonfinite_logged")
        return self.words(f"heat_{quantity}")

    def drawing(self, grid: Grid, quantity: Quantity, name: str) -> Markup:
        """One map; `name`: id of its heading."""
        drawing = heatmap_svg.draw(grid, quantity, name, self.words.first)
        return Markup(drawing)  # noqa: S704  # heatmap_svg escapes every text that it draws

    def merged(self, grid: Grid, of: str) -> Markup:
        """What was put together, if anything was."""
        rows, columns = len(grid.layers), len(grid.columns)
        told = []
        if grid.layers_of > rows:
            told.append(self.words("heat_merged_layers", n=f"{grid.layers_of:,}", rows=rows))
        if grid.columns_of > columns:
            told.append(self.words(f"heat_merged_{of}", n=f"{grid.columns_of:,}", columns=columns))
        return joined(["", *told, self.words("heat_merged_how")]) if told else Markup("")

    def numbers(self, grid: Grid, quantity: Quantity) -> Markup:
        """The numbers of one map as a table: some of its columns, where there are many."""
        places = heatmap_svg.picked(len(grid.columns), COLUMNS, (grid.last_good, grid.first_bad))
        heads = [tag("th", _head(grid.columns[place]), kind="n", scope="col") for place in places]
        head = tag("thead", tag("tr", tag("th", self.words("heat_layer"), scope="col"), *heads))
        rows = [
            tag(
                "tr",
                tag("th", tag("code", shorten(layer, 80)), scope="row"),
                *(self._value(quantity, values[place]) for place in places),
            )
            for layer, values in list(zip(grid.layers, grid.values[quantity], strict=True))[:ROWS]
        ]
        table = tag("div", tag("table", head, tag("tbody", *rows)), kind="scroll", tabindex="0")
        return table + self.cut(len(grid.layers), ROWS) + self.cut(len(grid.columns), len(places), "heat_more_columns")

    def _value(self, quantity: Quantity, value: float | None) -> Markup:
        if quantity == "nonfinite":
            return cell(None if value is None else f"{value:,.0f}", "bad" if value else "")
        return cell(compact(value))


def _head(column: Column) -> Markup:
    if column.first is None or column.first != column.last:
        return tag("code", heatmap_svg.named(column))
    return tag("span", column.first, translate="no")
