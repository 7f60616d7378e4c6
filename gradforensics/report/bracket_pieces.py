"""The way from the log to the checkpoints around a finding, as markup."""

from __future__ import annotations

from markupsafe import Markup

from gradforensics.report.bracket import Bracket, LayerRow, Node
from gradforensics.report.markup import Tables, cell, evidence, joined, soft, tag
from gradforensics.report.words import compact, shorten

LAYERS = 60  # rows that a page shows; the JSON report has them all


class BracketPieces(Tables):
    """Builds the section from the pieces of the page."""

    def way(self, found: Bracket) -> Markup:
        """The logged points and the checkpoints, in the order of their steps."""
        return tag("p", joined([self._node(node) for node in found.nodes], " → "), kind="chain")

    def _node(self, node: Node) -> Markup:
        words = self.words
        if node.kind == "log":
            told = joined([words("logged"), evidence(node.name), compact(node.value, 6)])
        else:
            bad = words("not_measured") if node.nonfinite is None else words("nonfinite_n", n=f"{node.nonfinite:,}")
            told = joined([tag("code", shorten(node.name, 80)), soft(bad)])
        return tag("span", told, ", ", soft(words("step_n", n=node.step)), kind="node bad" if node.late else "node")

    def layers(self, found: Bracket) -> Markup:
        """Every layer before and after."""
        rows = [self._layer(row) for row in found.layers[:LAYERS]]
        heads = ("layer", "parameters", "weight_rms", "travel", "changed_share", "gradient_rms", "nonfinite")
        table = self.table(heads, rows, numeric=range(1, 7))
        return table + self.cut(len(found.layers), LAYERS)

    def _layer(self, row: LayerRow) -> Markup:
        bad = [None if n is None else f"{n:,}" for n in row.nonfinite]
        return tag(
            "tr",
            tag("td", tag("code", shorten(row.layer, 80))),
            cell(f"{row.parameters:,}"),
            cell(_change(*(compact(x) for x in row.weight_rms))),
            cell(compact(row.travel)),
            cell("" if row.changed is None else f"{row.changed:.1%}"),
            cell(_change(*(compact(x) for x in row.gradient_rms))),
            cell(_change(*(n or "" for n in bad)), "bad" if any(row.nonfinite) else ""),
        )


def _change(before: str, after: str) -> str:
    """Both with an arrow between them, or the one that is known."""
    return f"{before} → {after}" if before and after else before or after
