"""The tables and lists of the page as markup. Every text passes through `tag`, which escapes it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from markupsafe import Markup, escape

from gradforensics.report.model import HitRow, Report, RunReport, VerdictRow
from gradforensics.report.words import Words, is_command, number, place, printable, shorten
from gradforensics.tables import Source

# How many rows of each kind a page shows; the JSON report has them all.
HITS, NOTICES, SOURCES, SETTINGS, SERIES, RUNS, EVENTS = 12, 100, 300, 300, 100, 200, 200


def visible(value: Any) -> Any:
    """What may be put into the page: text with its control characters spelled out; markup of our own as it is."""
    if value is None:
        return ""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def tag(name: str, *children: object, kind: str = "", **attributes: object) -> Markup:
    """An element with escaped children and attributes; `kind` is its class."""
    given = {"class": kind, **attributes} if kind else attributes
    opening = "".join(
        f' {key.rstrip("_")}="{escape(visible(value))}"' for key, value in given.items() if value is not None
    )
    inner = "".join(escape(visible(c)) for c in children)
    return Markup(f"<{name}{opening}>{inner}</{name}>")  # noqa: S704  # both parts are escaped just above


def soft(*children: object) -> Markup:
    """Secondary text."""
    return tag("span", *children, kind="soft")


def joined(parts: Iterable[object], between: str = " ") -> Markup:
    """Parts escaped one by one and joined."""
    return escape(between).join(escape(visible(p)) for p in parts)


def where(source: str | None, line: int | None) -> Markup:
    """`source:line` as code; empty where no source is known."""
    return tag("code", shorten(place(source, line), 160), kind="where") if source else Markup("")


def chip(text: str, kind: str = "") -> Markup:
    """A short word in a frame."""
    return tag("span", text, kind=f"chip {kind}".strip())


class Pieces:
    """Builds the pieces of one page in one language."""

    def __init__(self, words: Words) -> None:
        self.words = words

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
        told = [self.words(run.ending.kind) + (":" if run.ending.text else "")]
        quoted = tag("q", shorten(run.ending.text, 300)) if run.ending.text else ""
        return joined([p for p in (*told, quoted, where(run.ending.source, run.ending.line)) if p])

    def verify(self, verdict: VerdictRow) -> Markup:
        """How to verify: a command to copy, or prose."""
        return tag("pre", tag("code", verdict.verify)) if is_command(verdict.verify) else tag("p", verdict.verify)

    def advice(self, run: RunReport, most: int) -> Markup:
        """What to log next time and which rules it would help to judge."""
        items = [
            tag("li", line, " ", soft(f"{self.words('would_judge')} {', '.join(rules)}"))
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
        items = [
            tag("li", joined([chip(self.words(state), state), tag("b", one.case), one.title, soft(one.tell)]))
            for one, state in those
        ]
        return tag("ul", *items, kind="plain")

    # -- tables --------------------------------------------------------------------------------------------------------

    def table(self, heads: Sequence[str], rows: Iterable[Markup], numeric: Sequence[int] = ()) -> Markup:
        """A table whose heads are keys of the label table."""
        cells = [tag("th", self.words(h) if h else "", kind="n" if i in numeric else "") for i, h in enumerate(heads)]
        head = tag("thead", tag("tr", *cells)) if any(heads) else ""
        return tag("div", tag("table", head, tag("tbody", *rows)), kind="scroll")

    def cut(self, total: int, shown: int, label: str = "more_rows") -> Markup:
        """A line that says how many rows were left out."""
        return tag("p", self.words(label, n=total - shown), kind="soft") if total > shown else Markup("")

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
                    tag("td", key),
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
            cells = (e.kind, "" if e.step is None else str(e.step), writer, told, where(e.source, e.line))
            rows.append(tag("tr", *(tag("td", c) for c in cells)))
        heads = ("event", "step", "rank_host", "text", "where")
        return self.table(heads, rows) + self.cut(len(run.events), EVENTS)

    def environment(self, run: RunReport) -> Markup:
        """Where the run ran, on what, with which versions."""
        rows = []
        for fact in run.environment[:SETTINGS]:
            writer = ", ".join(filter(None, ("" if fact.rank is None else str(fact.rank), fact.host or "")))
            value = tag("code", shorten(fact.value, 300))
            rows.append(tag("tr", *(tag("td", c) for c in (fact.key, value, writer, where(fact.source, fact.line)))))
        return self.table(("key", "value", "rank_host", "where"), rows) + self.cut(len(run.environment), SETTINGS)

    def notices(self, run: RunReport) -> Markup:
        """The readers' remarks."""
        items = [tag("li", where(n.source, n.line), " ", shorten(n.text, 400)) for n in run.notices[:NOTICES]]
        return tag("ul", *items, kind="plain notices") + self.cut(len(run.notices), NOTICES)

    def sources(self, sources: Sequence[Source]) -> Markup:
        """The inventory of files."""
        rows = []
        for s in sources[:SOURCES]:
            digest = tag("code", f"{s.sha256[:12]}…", title=s.sha256) if s.sha256 else soft(self.words("not_hashed"))
            read = joined(
                [s.reader or self.words("unread"), soft(s.remark)] if s.remark else [s.reader or self.words("unread")]
            )
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
                tag("a", run.name, href=f"#r{i}"),
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
        links = joined([tag("a", name, href=anchors[name]) for name in run.baselines], ", ")
        return joined([links, soft(f"{self.words('baselines_why')}; {self.words('baselines_how')}")])

    def compared(self, run: RunReport) -> Markup:
        """The run of --baseline, and how many settings differ."""
        if run.compared is None:
            return Markup("")
        told = self.words.count("differs", len(run.compared.differences))
        return joined([run.compared.name, soft(f"{self.words('sibling')}; {told}" if run.compared.sibling else told)])

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
            link = tag("a", tag("b", v.rule), " ", tag("i", told), " ", tag("span", v.slug), href=f"#{anchor}-{v.rule}")
            families.setdefault(v.family, []).append(tag("li", link, kind=f"cell {state}", title=v.title))
        rows = [
            tag("div", tag("h4", name.replace("-", " ").capitalize()), tag("ul", *cells), kind="family")
            for name, cells in families.items()
        ]
        return tag("div", *rows, kind="matrix")

    def clear(self, run: RunReport, anchor: str) -> Markup:
        """The rules judged clear: which tests looked, which look-alike refuted the rest."""

        def row(v: VerdictRow) -> Markup:
            refuted = [
                joined([Markup("<br>"), chip(f"{self.words('refuted_by')} {one.case}", "refuted"), soft(one.tell)])
                for one in v.refuted_by
            ]
            looked = (
                [f"{self.words('judged_by')}: {', '.join(v.judged_signs).replace('_', ' ')}"] if v.judged_signs else []
            )
            at = "clear_at" if v.by_replay_alone else "clean_at"
            looked += [self.words(at, steps=_listed(v.replayed))] if v.replayed else []
            lacked = [f"{self.words('also_missing')}: {', '.join(g.need for g in v.missing)}"] if v.missing else []
            return self._row(
                v, anchor, tag("td", v.title, *refuted), tag("td", joined(looked + lacked, Markup("<br>")), kind="soft")
            )

        return self.table(("", "", ""), map(row, run.having("clear")))

    def blind(self, run: RunReport, anchor: str) -> Markup:
        """The rules not judged: what was missing and how to have it next time."""

        def row(v: VerdictRow) -> Markup:
            if not v.testable:
                return self._row(
                    v, anchor, tag("td", v.title), tag("td", self.words("no_test"), colspan=2), kind="soft"
                )
            needs = joined((tag("code", g.need, kind="need") for g in v.missing), Markup("<br>"))
            if v.replayed:
                found = self.words("clean_at", steps=_listed(v.replayed))
                needs = joined([p for p in (needs, soft(found)) if p], Markup("<br>"))
            advice = " ".join(dict.fromkeys(g.advice for g in v.missing if g.advice))
            return self._row(v, anchor, tag("td", v.title), tag("td", needs), tag("td", advice))

        blind = sorted(run.having("not_judged"), key=lambda v: not v.testable)
        return self.table(("rule", "title", "missing", "advice"), map(row, blind))

    def _row(self, verdict: VerdictRow, anchor: str, *cells: Markup, kind: str = "") -> Markup:
        return tag("tr", tag("td", tag("b", verdict.rule)), *cells, kind=kind, id=f"{anchor}-{verdict.rule}")


def cell(value: object, kind: str = "") -> Markup:
    """A numeric table cell."""
    return tag("td", value, kind=f"n {kind}".strip())


def _listed(steps: Sequence[int]) -> str:
    return ", ".join(map(str, steps[:8])) + (", …" if len(steps) > 8 else "")


def _as_written(value: Any) -> str:
    """A setting as its file might write it."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
