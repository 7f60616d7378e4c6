"""The tables and lists of the page that belong to no section with pieces of its own."""

from __future__ import annotations

from markupsafe import Markup

from gradforensics.report.markup import Tables, cell, chip, joined, soft, tag, where
from gradforensics.report.model import HitRow, Report, RunReport, VerdictRow
from gradforensics.report.words import is_command, number, shorten

# How many rows of each kind a page shows; the JSON report has them all.
HITS, SERIES = 12, 100


class Pieces(Tables):
    """Builds the pieces of one page."""

    # -- small ones ----------------------------------------------------------------------------------------------------

    def chips(self, verdict: VerdictRow) -> Markup:
        """Severity and strength, and whether it is ignored."""
        strength = verdict.strength or "suspect"
        return joined(
            [
                chip(self.words(verdict.severity or "S4"), "alarm" if verdict.alarm else "weak"),
                chip(self.words(strength), strength),
                *([chip(self.words("ignored"), "weak")] if verdict.ignored else []),
            ]
        )

    def ending(self, run: RunReport) -> Markup:
        """How the run ended, with the line that shows it."""
        told = [joined([self.words(run.ending.kind), ":" if run.ending.text else ""], "")]
        quoted = tag("q", shorten(run.ending.text, 300)) if run.ending.text else ""
        return joined([p for p in (*told, quoted, where(run.ending.source, run.ending.line)) if p])

    def verify(self, verdict: VerdictRow) -> Markup:
        """How to verify: a command to copy, or prose."""
        verify = self.words.text(verdict.verify)
        return tag("pre", tag("code", verify)) if is_command(verdict.verify.en) else tag("p", verify)

    def advice(self, run: RunReport, most: int) -> Markup:
        """What to log next time and which rules it would help to judge."""
        items = [
            tag("li", self.words.text(line), " ", soft(self.words("would_judge"), " ", ", ".join(rules)))
            for line, rules in run.advice()[:most]
        ]
        return tag("ul", *items, kind="advice")

    def node(self, run: RunReport, rule: str, anchor: str) -> Markup:
        """One case of the chain, linked to its finding."""
        verdict = run.verdict(rule)
        slug = verdict.slug if verdict else ""
        step = soft(self.words("step_n", n=verdict.onset)) if verdict and verdict.onset is not None else ""
        return tag("a", tag("b", rule), f" {slug} ", step, kind="node", href=f"#{anchor}-{rule}")

    def look_alikes(self, verdict: VerdictRow) -> Markup:
        """The look-alikes of a finding, refuted or not excluded."""
        those = [(one, "refuted") for one in verdict.refuted_by] + [
            (one, "not_excluded") for one in verdict.not_excluded
        ]
        text = self.words.text
        items = [
            tag(
                "li",
                joined([chip(self.words(state), state), tag("b", one.case), text(one.title), soft(text(one.tell))]),
            )
            for one, state in those
        ]
        return tag("ul", *items, kind="plain")

    # -- tables --------------------------------------------------------------------------------------------------------

    def hits(self, verdict: VerdictRow) -> Markup:
        """The evidence of a finding."""
        rows: list[Markup] = []
        before = None
        for hit in verdict.hits[:HITS]:
            rows += self._hit(hit, opens=hit.sign != before, first=before is None)
            before = hit.sign
        table = self.table(("sign", "series", "step_head", "value", "where"), rows, numeric=(2, 3))
        return table + self.cut(len(verdict.hits), HITS, "more_hits")

    def _hit(self, hit: HitRow, *, opens: bool, first: bool) -> list[Markup]:
        named = joined([tag("b", hit.sign.replace("_", " ")), soft(self.words(hit.strength))]) if opens else ""
        read = [shorten(hit.series or hit.tensor or "", 200)] + (
            [soft(hit.tag)] if hit.tag and hit.tag != hit.series else []
        )
        cells = [
            tag("td", named),
            tag("td", joined(read), kind="named"),
            cell(number(hit.step)),
            cell(number(hit.value)),
            tag("td", where(hit.source, hit.line)),
        ]
        rows = [tag("tr", *cells, kind="opens" if opens and not first else "")]
        facts = (
            [(k.replace("_", " "), shorten(number(v), 80)) for k, v in hit.facts.items() if v is not None]
            if opens
            else []
        )
        if facts:
            told = joined(tag("span", f"{name} ", tag("b", value), kind="fact") for name, value in facts)
            rows.append(tag("tr", tag("td"), tag("td", told, colspan=4), kind="more"))
        if hit.excerpt:
            rows.append(
                tag(
                    "tr",
                    tag("td"),
                    tag("td", tag("pre", shorten(hit.excerpt, 600), kind="excerpt"), colspan=4),
                    kind="more",
                )
            )
        return rows

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
                    tag("td", name),
                    tag("td", s.tag, kind="soft"),
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
        links = joined([tag("a", name, href=anchors[name]) for name in run.baselines], ", ")
        return joined([links, soft(self.words("baselines_why"), "; ", self.words("baselines_how"))])

    def compared(self, run: RunReport) -> Markup:
        """The run of --baseline, and how many settings differ."""
        if run.compared is None:
            return Markup("")
        told = self.words.count("differs", len(run.compared.differences))
        return joined(
            [run.compared.name, soft(joined([self.words("sibling"), told], "; ") if run.compared.sibling else told)]
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
