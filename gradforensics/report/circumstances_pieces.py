"""Settings, environment, events and notices of a run, and the inventory of files."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from gradforensics.report.circumstances import Stated, is_listed, kinds, stated
from gradforensics.report.markup import Tables, cell, joined, soft, tag, where
from gradforensics.report.model import RunReport, SettingRow
from gradforensics.report.words import magnitude, shorten
from gradforensics.tables import Source

# How many rows of each kind a page shows; the JSON report has them all.
NOTICES, SOURCES, SETTINGS, EVENTS, PACKAGES, CONSPICUOUS = 60, 300, 300, 200, 400, 30
_PLACES = 3  # places that remarks of one kind name
_WRITERS = 4  # hosts that a fact names


class CircumstancePieces(Tables):
    """Builds the pieces of these sections."""

    # -- settings ------------------------------------------------------------------------------------------------------

    def conspicuous(self, run: RunReport, anchor: str) -> Markup:
        """The settings to look at first, each with why; empty where there are none."""
        found = conspicuous(run)
        if not found:
            return Markup("")
        rows = [
            tag(
                "tr",
                tag("th", self._key(row), scope="row"),
                tag("td", self._value(row)),
                tag("td", self._why(run, row, anchor)),
                tag("td", where(row.source, row.line)),
                kind="off" if row.overridden else "",
            )
            for row in found
        ]
        return self.table(("key", "value", "looked_why", "where"), rows)

    def settings(self, run: RunReport) -> Markup:
        """The other settings."""
        others = self.others(run)
        rows = [
            tag(
                "tr",
                tag("th", self._key(row), scope="row"),
                tag("td", self._value(row)),
                tag("td", where(row.source, row.line)),
                kind="off" if row.overridden else "",
            )
            for row in others[:SETTINGS]
        ]
        return self.table(("key", "value", "where"), rows) + self.cut(len(others), SETTINGS)

    def others(self, run: RunReport) -> list[SettingRow]:
        """The settings that are not among the conspicuous ones."""
        shown = set(map(id, conspicuous(run)))
        return [row for row in run.settings if id(row) not in shown]

    def _key(self, row: SettingRow) -> Markup:
        key = tag("code", shorten(row.key, 120))
        return joined([key, soft(tag("code", shorten(row.name, 120)))]) if row.name != row.key else key

    def _value(self, row: SettingRow) -> Markup:
        return tag("code", shorten(_as_written(row.value), 300))

    def _why(self, run: RunReport, row: SettingRow, anchor: str) -> Markup:
        links = [tag("a", rule, href=f"#{anchor}-{rule}") for rule in row.rules]
        told = [joined([self.words("basis_of"), joined(links, ", ")])] if links else []
        there = tag("code", shorten(_as_written(row.there), 120))
        told += [joined([self.words("differs_there"), there])] if row.there is not None else []
        told += [self._overridden(run, row)] if row.overridden else []
        return joined(told, "; ")

    def _overridden(self, run: RunReport, row: SettingRow) -> Markup:
        """That a setting does not count, and the one that does."""
        valid = next((one for one in run.settings if one.key == row.key and not one.overridden), None)
        if valid is None:
            return self.words("overridden")
        return joined([self.words("overridden_by"), self._value(valid), where(valid.source, valid.line)])

    def differences(self, run: RunReport) -> Markup:
        """The settings in which this run and the compared one differ."""
        found = run.compared.differences if run.compared else ()
        rows = [
            tag("tr", *(tag("td", tag("code", shorten(str(v), 80))) for v in (one.key, one.here, one.there)))
            for one in found[:SETTINGS]
        ]
        return self.table(("key", "here", "there"), rows) + self.cut(len(found), SETTINGS)

    # -- environment, events, notices ----------------------------------------------------------------------------------

    def environment(self, run: RunReport) -> Markup:
        """Where the run ran and on what, then the versions of its packages, each once for all ranks that state it."""
        facts = [f for f in run.environment if not is_listed(f)]
        lists = [f for f in run.environment if is_listed(f)]
        few, many = stated(facts), stated(lists)
        told = self._facts(few, SETTINGS) if few else Markup("")
        if not many:
            return told
        summary = tag("summary", self.words.count("packages", len(many)))
        return told + tag("details", summary, self._facts(many, PACKAGES), kind="fold", open=None if few else "")

    def _facts(self, facts: Sequence[Stated], most: int) -> Markup:
        rows = [
            tag(
                "tr",
                tag("th", tag("code", fact.key), scope="row"),
                tag("td", tag("code", shorten(fact.value, 300))),
                tag("td", tag("code", _writers(fact))),
                tag("td", where(fact.source, fact.line)),
            )
            for fact in facts[:most]
        ]
        return self.table(("key", "value", "rank_host", "where"), rows) + self.cut(len(facts), most)

    def events(self, run: RunReport) -> Markup:
        """What the logs tell besides numbers, in the order in which it was read; above it, how often each kind."""
        counts = Counter(e.kind for e in run.events).most_common()
        told = [joined([tag("code", kind), f" × {n:,}"], "") for kind, n in counts]
        rows = []
        for e in run.events[:EVENTS]:
            writer = ", ".join(filter(None, ("" if e.rank is None else str(e.rank), e.host or "")))
            text = tag("code", shorten(e.text, 300))
            cells = (
                tag("code", e.kind, kind="need"),
                "" if e.step is None else str(e.step),
                tag("code", writer) if writer else "",
            )
            rows.append(tag("tr", *(tag("td", c) for c in (*cells, text, where(e.source, e.line)))))
        table = self.table(("event", "step_head", "rank_host", "text", "where"), rows)
        return (
            (tag("p", joined(told, ", ")) if len(told) < len(rows) else "") + table + self.cut(len(run.events), EVENTS)
        )

    def notices(self, run: RunReport) -> Markup:
        """The readers' remarks, those of one kind as one with the first places."""
        found = kinds(run.notices)
        items = []
        for kind in found[:NOTICES]:
            places = [where(*place) for place in dict.fromkeys(kind.places[:_PLACES])]
            more = len(kind.places) - _PLACES
            told = [joined(places, ", "), self.words.count("and_places", more) if more > 0 else ""]
            items.append(tag("li", joined([p for p in told if p]), " ", self.words.message(kind.text, 400)))
        return tag("ul", *items, kind="plain notices") + self.cut(len(found), NOTICES)

    # -- the inventory -------------------------------------------------------------------------------------------------

    def tally(self, sources: Sequence[Source]) -> Markup:
        """How many files were read, how many were not, and how large they are together."""
        unread = sum(s.reader is None for s in sources)
        size = f"{magnitude(sum(s.bytes for s in sources))}B"
        parts = [self.words.count("files_read", len(sources) - unread)]
        parts += [self.words.count("files_unread", unread)] if unread else []
        return joined([*parts, size], ", ")

    def sources(self, sources: Sequence[Source]) -> Markup:
        """The files that were looked at, those not read first; each digest in full."""
        ordered = sorted(sources, key=lambda s: s.reader is not None)
        rows = []
        for s in ordered[:SOURCES]:
            digest = tag("code", s.sha256, kind="sha") if s.sha256 else soft(self.words("not_hashed"))
            named = tag("th", tag("code", shorten(s.path, 200)), tag("div", digest), scope="row")
            rows.append(tag("tr", named, cell(f"{s.bytes:,}"), tag("td", self._read_as(s))))
        return self.table(("path_sha", "bytes", "reader"), rows, numeric=(1,)) + self.cut(len(sources), SOURCES)

    def _read_as(self, source: Source) -> Markup:
        if source.reader is None:
            reason = self._remark(source) if source.remark else self.words("no_reader")
            return joined([tag("b", self.words("unread")), ": ", reason], "")
        reader = tag("code", source.reader)
        return joined([reader, soft(self._remark(source))]) if source.remark else reader

    def _remark(self, source: Source) -> Markup:
        return self.words.message(source.remark, 400)


def conspicuous(run: RunReport) -> list[SettingRow]:
    """The settings to look at first: those that findings rest on, those that differ, those that were overridden.

    An empty value (None) that another one replaces is as it should be.
    """
    found = sorted(
        (r for r in run.settings if r.conspicuous and not (r.overridden and r.value is None)),
        key=lambda r: (not r.rules, r.there is None),
    )
    return found[:CONSPICUOUS]


def _writers(fact: Stated) -> str:
    """Ranks and hosts in few letters: "0-7; node1, node2"."""
    ranks = fact.ranks
    whole = len(ranks) > 2 and ranks[-1] - ranks[0] == len(ranks) - 1
    told = f"{ranks[0]}-{ranks[-1]}" if whole else ", ".join(map(str, ranks[:_WRITERS]))
    told += "" if whole or len(ranks) <= _WRITERS else f" … ({len(ranks)})"
    hosts = ", ".join(fact.hosts[:_WRITERS]) + (f" … ({len(fact.hosts)})" if len(fact.hosts) > _WRITERS else "")
    return "; ".join(filter(None, (told, hosts)))


def _as_written(value: Any) -> str:
    """A setting as its file might write it."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
