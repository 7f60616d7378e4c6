"""The tables and lists of the page that belong to no section with pieces of its own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from gradforensics.report.markup import Tables, cell, chip, evidence, joined, soft, tag, where
from gradforensics.report.messages import message
from gradforensics.report.model import HitRow, Report, RunReport, VerdictRow
from gradforensics.report.words import number, shorten
from gradforensics.tables import Source

# How many rows a page shows; the JSON report has them all.
SERIES = 100


class Pieces(Tables):
    """Builds the pieces of one page."""

    # -- small ones ----------------------------------------------------------------------------------------------------

    def chips(self, verdict: VerdictRow) -> Markup:
        """Severity and strength."""
        strength = verdict.strength or "suspect"
        return joined(
            [
                chip(self.words(verdict.severity or "S4"), "alarm" if verdict.alarm else "weak"),
                chip(self.words(strength), strength),
            ]
        )

    def ending(self, run: RunReport) -> Markup:
        """How the run ended, with the line that shows it."""
        told = [joined([self.words(run.ending.kind), ":" if run.ending.text else ""], "")]
        text = run.ending.text
        quoted: Markup | str = ""
        if text:
            quoted = self.words.message(text, 300) if message(text).zh else tag("q", shorten(text, 300))
        return joined([p for p in (*told, quoted, where(run.ending.source, run.ending.line)) if p])

    def verify(self, verdict: VerdictRow) -> Markup:
        """How to verify: a command to copy, or prose."""
        verify = self.words.text(verdict.verify)
        return tag("pre", tag("code", verify)) if is_command(verdict.verify.en) else tag("p", verify)

    def advice(self, run: RunReport, most: int) -> Markup:
        """What to log next time and which rules it would help to judge."""
        items = [
            tag("li", self.words.text(line), " ", soft(self._helped(rules))) for line, rules in run.advice()[:most]
        ]
        return tag("ul", *items, kind="advice")

    def _helped(self, rules: Sequence[str]) -> Markup:
        return self.words.of(lambda words: words.helped(rules))

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
        named = (
            joined([evidence(hit.sign.replace("_", " "), name="b"), soft(self.words(hit.strength))]) if opens else ""
        )
        read = [shorten(hit.series or hit.tensor or "", 200)] + (
            [soft(hit.tag)] if hit.tag and hit.tag != hit.series else []
        )
        cells = [
            tag("td", named),
            evidence(joined(read), name="td", kind="named"),
            cell(number(hit.step)),
            cell(number(hit.value)),
            tag("td", where(hit.source, hit.line)),
        ]
        rows = [tag("tr", *cells, kind="opens" if opens and not first else "")]
        facts = [(k.replace("_", " "), self._fact(v)) for k, v in hit.facts.items() if v is not None] if opens else []
        if facts:
            told = joined(evidence(f"{name} ", tag("b", value), kind="fact") for name, value in facts)
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

    def _fact(self, value: Fact) -> Markup | str:
        return self.words.text(value) if isinstance(value, Text) else shorten(number(value), 80)

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

    def settings(self, run: RunReport) -> Markup:
        """Every setting, those that another one overrides struck out."""
        rows = []
        for s in run.settings[:SETTINGS]:
            key = joined([s.key, soft(s.name)]) if s.name != s.key else s.key
            value = joined(
                [
                    tag("code", shorten(_as_written(s.value), 300)),
                    soft(self.words("overridden")) if s.overridden else "",
                ]
            )
            rows.append(
                tag(
                    "tr",
                    evidence(key, name="td"),
                    tag("td", value),
                    tag("td", where(s.source, s.line)),
                    kind="off" if s.overridden else "",
                )
            )
        return self.table(("key", "value", "where"), rows) + self.cut(len(run.settings), SETTINGS)

    def events(self, run: RunReport) -> Markup:
        """What the logs tell besides numbers, in the order in which it was read."""
        rows = []
        for e in run.events[:EVENTS]:
            writer = ", ".join(filter(None, ("" if e.rank is None else str(e.rank), e.host or "")))
            told = tag("code", shorten(e.text, 300))
            step = "" if e.step is None else str(e.step)
            cells = (evidence(e.kind), step, evidence(writer), told, where(e.source, e.line))
            rows.append(tag("tr", *(tag("td", c) for c in cells)))
        heads = ("event", "step", "rank_host", "text", "where")
        return self.table(heads, rows) + self.cut(len(run.events), EVENTS)

    def environment(self, run: RunReport) -> Markup:
        """Where the run ran, on what, with which versions."""
        rows = []
        for fact in run.environment[:SETTINGS]:
            writer = ", ".join(filter(None, ("" if fact.rank is None else str(fact.rank), fact.host or "")))
            value = tag("code", shorten(fact.value, 300))
            cells = (evidence(fact.key), value, evidence(writer), where(fact.source, fact.line))
            rows.append(tag("tr", *(tag("td", c) for c in cells)))
        return self.table(("key", "value", "rank_host", "where"), rows) + self.cut(len(run.environment), SETTINGS)

    def notices(self, run: RunReport) -> Markup:
        """The readers' remarks."""
        items = [
            tag("li", where(n.source, n.line), " ", self.words.message(n.text, 400)) for n in run.notices[:NOTICES]
        ]
        return tag("ul", *items, kind="plain notices") + self.cut(len(run.notices), NOTICES)

    def sources(self, sources: Sequence[Source]) -> Markup:
        """The inventory of files."""
        rows = []
        for s in sources[:SOURCES]:
            digest = tag("code", f"{s.sha256[:12]}…", title=s.sha256) if s.sha256 else soft(self.words("not_hashed"))
            reader = evidence(s.reader) if s.reader else self.words("unread")
            read = joined([reader, soft(self.words.message(s.remark, 400))] if s.remark else [reader])
            rows.append(
                tag(
                    "tr",
                    tag("td", tag("code", shorten(s.path, 200))),
                    cell(f"{s.bytes:,}"),
                    tag("td", digest),
                    tag("td", read),
                )
            )
        return self.table(("path", "bytes", "sha256", "reader"), rows, numeric=(1,)) + self.cut(len(sources), SOURCES)

    def overview(self, report: Report) -> Markup:
        """All runs, each with its verdict and a link."""
        rows = []
        for i, run in enumerate(report.runs[:RUNS], 1):
            state = "alarm" if run.primary else ("clear" if run.having("clear") else "")
            verdict = joined([tag("b", run.primary.rule) if run.primary else "", self.words.headline(run)])
            onset = self.words.onset(run.primary) if run.primary else ""
            cells = (
                tag("a", run.name, href=f"#r{i}", translate="no"),
                tag("span", tag("span", kind=f"dot {state}".strip()), verdict),
                onset,
            )
            rows.append(
                tag("tr", *(tag("td", c) for c in (*cells, self.words(run.ending.kind), self.words.steps(run))))
            )
        return self.table(("run", "verdict", "onset", "ending", "record"), rows) + self.cut(len(report.runs), RUNS)

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

    def differences(self, run: RunReport) -> Markup:
        """The settings in which this run and the one of --baseline differ."""
        found = run.compared.differences if run.compared else ()
        rows = [
            tag("tr", *(tag("td", tag("code", shorten(str(v), 80))) for v in (one.key, one.here, one.there)))
            for one in found[:SETTINGS]
        ]
        return self.table(("key", "here", "there"), rows) + self.cut(len(found), SETTINGS)

    # -- the catalogue -------------------------------------------------------------------------------------------------

    def matrix(self, run: RunReport, anchor: str) -> Markup:
        """One cell per rule, grouped by family in the order of the catalogue."""
        families: dict[str, list[Markup]] = {}
        for v in run.verdicts:
            state = ("alarm" if v.alarm else "weak") if v.outcome == "fired" else v.outcome
            told = self.words(v.strength or (v.outcome if v.testable or v.outcome != "not_judged" else "no_test_short"))
            link = tag("a", tag("b", v.rule), " ", tag("i", told), " ", evidence(v.slug), href=f"#{anchor}-{v.rule}")
            families.setdefault(v.family, []).append(tag("li", link, kind=f"cell {state}"))
        rows = [
            tag("div", tag("h4", name.replace("-", " ").capitalize()), tag("ul", *cells), kind="family")
            for name, cells in families.items()
        ]
        return tag("div", *rows, kind="matrix")

    def clear(self, run: RunReport, anchor: str) -> Markup:
        """The rules judged clear: which tests looked, which look-alike refuted the rest."""

        def row(v: VerdictRow) -> Markup:
            refuted = [
                joined(
                    [
                        Markup("<br>"),
                        chip(joined([self.words("refuted_by"), one.case]), "refuted"),
                        soft(self.words.text(one.tell)),
                    ]
                )
                for one in v.refuted_by
            ]
            signs = ", ".join(v.judged_signs).replace("_", " ")
            looked = [joined([self.words("judged_by"), ": ", tag("code", signs)], "")] if signs else []
            at = "clear_at" if v.by_replay_alone else "clean_at"
            looked += [self.words(at, steps=_listed(v.replayed))] if v.replayed else []
            needs = self.needs(v)
            lacked = [joined([self.words("also_missing"), ": ", needs], "")] if needs else []
            return self._row(
                v,
                anchor,
                tag("td", self.words.text(v.title), *refuted),
                tag("td", joined(looked + lacked, Markup("<br>")), kind="soft"),
            )

        return self.table(("", "", ""), map(row, run.having("clear")))

    def blind(self, run: RunReport, anchor: str) -> Markup:
        """The rules not judged: what was missing and how to have it next time."""

        def row(v: VerdictRow) -> Markup:
            if not v.testable:
                return self._row(
                    v,
                    anchor,
                    tag("td", self.words.text(v.title)),
                    tag("td", self.words("no_test"), colspan=2),
                    kind="soft",
                )
            needs = joined((self.words.need(g.need) for g in v.missing), Markup("<br>"))
            if v.replayed:
                found = self.words("clean_at", steps=_listed(v.replayed))
                needs = joined([p for p in (needs, soft(found)) if p], Markup("<br>"))
            advice = joined(self.words.text(one) for one in dict.fromkeys(g.advice for g in v.missing if g.advice.en))
            title = self.words.text(v.title)
            return self._row(v, anchor, tag("td", title), tag("td", needs), tag("td", advice))

        blind = sorted(run.having("not_judged"), key=lambda v: not v.testable)
        return self.table(("rule", "title", "missing", "advice"), map(row, blind))

    def _row(self, verdict: VerdictRow, anchor: str, *cells: Markup, kind: str = "") -> Markup:
        return tag("tr", tag("td", tag("b", verdict.rule)), *cells, kind=kind, id=f"{anchor}-{verdict.rule}")


def _listed(steps: Sequence[int]) -> str:
    return ", ".join(map(str, steps[:8])) + (", …" if len(steps) > 8 else "")


def _as_written(value: Any) -> str:
    """A setting as its file might write it."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
