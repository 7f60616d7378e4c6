"""The tables and lists of the page that belong to no section with pieces of its own."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from gradforensics.report.markup import Tables, cell, evidence, joined, soft, tag
from gradforensics.report.model import Report, RunReport
from gradforensics.report.words import number

# How many rows a page shows; the JSON report has them all.
SERIES = 100


class Pieces(Tables):
    """Builds the pieces of one page."""

    # -- small ones ----------------------------------------------------------------------------------------------------

    def advice(self, run: RunReport, most: int) -> Markup:
        """What to log next time and which rules it would help to judge."""
        items = [
            tag("li", self.words.text(line), " ", soft(self._helped(rules))) for line, rules in run.advice()[:most]
        ]
        return tag("ul", *items, kind="advice")

    def _helped(self, rules: Sequence[str]) -> Markup:
        return self.words.of(lambda words: words.helped(rules))

    # -- tables --------------------------------------------------------------------------------------------------------

    def series(self, run: RunReport) -> Markup:
        """Every logged series."""
        rows = []
        for s in run.series[:SERIES]:
            name = s.series if s.phase == "train" else f"{s.phase}/{s.series}"
            span = "" if s.first_step is None else f"{s.first_step}–{s.last_step}"
            numbers = [cell(number(v)) for v in (s.points, s.first, s.last, s.min, s.max)]
            rows.append(
                tag(
                    "tr",
                    evidence(name, name="td"),
                    evidence(s.tag, name="td", kind="soft"),
                    *numbers,
                    cell(s.nonfinite, "bad" if s.nonfinite else ""),
                    cell(span),
                )
            )
        heads = ("series", "tag", "points", "first", "last", "min", "max", "nonfinite", "step_range")
        return self.table(heads, rows, numeric=range(2, 9)) + self.cut(len(run.series), SERIES)

    def baselines(self, report: Report, run: RunReport) -> Markup:
        """Runs that this one can be compared with, as links."""
        anchors = {other.name: f"#r{i}" for i, other in enumerate(report.runs, 1)}
        links = joined([tag("a", name, href=anchors[name], translate="no") for name in run.baselines], ", ")
        return joined([links, soft(self.words("baselines_why"), "; ", self.words("baselines_how"))])

    def compared(self, run: RunReport) -> Markup:
        """The run of --baseline, and how many settings differ."""
        if run.compared is None:
            return Markup("")
        differing = len(run.compared.differences)
        told = self.words.of(lambda words: words.differing(differing))
        return joined(
            [
                evidence(run.compared.name),
                soft(joined([self.words("sibling"), told], "; ") if run.compared.sibling else told),
            ]
        )

    def pair(self, run: RunReport) -> Markup:
        """What a checkpoint one optimizer step after the newest one would prove, and how to have it."""
        pair = run.pair
        if pair is None:
            return Markup("")
        rules = ", ".join(pair.rules)
        return self.words.of(
            lambda words: words("pair", checkpoint=pair.checkpoint, rules=rules, advice=pair.advice.in_(words.language))
        )
