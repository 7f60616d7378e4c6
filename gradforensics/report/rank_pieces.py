"""Ranks over the steps and the nodes to drain, as markup."""

from __future__ import annotations

from datetime import UTC, datetime

from markupsafe import Markup

from gradforensics.report import rank_svg
from gradforensics.report.drain import Drain
from gradforensics.report.markup import Tables, cell, chip, joined, tag, where
from gradforensics.report.model import RunReport
from gradforensics.report.ranks import RankRow, Ranks
from gradforensics.report.words import compact, place, ranges, shorten

_NODES = 60  # of the list that a page shows; the JSON report has them all


class RankPieces(Tables):
    """Builds the sections from the pieces of the page."""

    def faulty(self, run: RunReport) -> bool:
        """Whether the hardware of a node is at fault: one that is only silent or slow may run faulty code."""
        return any(one.reason in ("hardware", "outlived") for one in run.drain)

    def drain_title(self, run: RunReport) -> str:
        """The label of the heading: nodes to drain, or ranks to look at where no node is known to be faulty."""
        return "drain" if self.faulty(run) else "drain_look"

    def drain(self, run: RunReport) -> Markup:
        """The nodes to drain as a table: the host, its ranks, why, the finding and the line that tells it."""
        shown = run.drain[:_NODES]
        heads = ["drain_host", "drain_ranks", "drain_why", "drain_finding", "drain_evidence"]
        if not any(one.ranks for one in shown):
            heads.remove("drain_ranks")
        rows = [self._node(one, ranks="drain_ranks" in heads) for one in shown]
        told = self.table(heads, rows) + self.cut(len(run.drain), _NODES)
        unknown = any(one.host is None for one in run.drain)
        return told + (tag("p", self.words("drain_no_hosts"), kind="soft") if unknown else "")

    def _node(self, one: Drain, *, ranks: bool) -> Markup:
        words = self.words
        host = tag("code", one.host) if one.host else tag("span", words("drain_unknown"), kind="soft")
        why = words(f"drain_{one.reason}", **({"excess": f"{one.excess:.0%}"} if one.excess is not None else {}))
        device = tag("code", one.device) if one.device else ""
        line = tag("div", tag("q", shorten(one.message, 200))) if one.message else ""
        return tag(
            "tr",
            tag("th", host, scope="row"),
            tag("td", tag("span", ranges(one.ranks), translate="no")) if ranks else "",
            tag("td", joined([why, device])),
            tag("td", joined([tag("b", one.rule), chip(one.severity), chip(words(one.strength), one.strength)])),
            tag("td", where(one.source, one.line), line),
        )

    def lead(self, found: Ranks) -> Markup:
        """What the rows are, and which ranks are not among them."""
        words = self.words
        if found.series:
            told = [words("ranks_lead_times", series=found.series)]
        else:
            told = [words("ranks_lead_logged" if found.windows else "ranks_lead_named")]
        if found.world is not None and found.world > found.known:
            told.append(words("ranks_of_world", known=f"{found.known:,}", world=f"{found.world:,}"))
        if found.rest is not None:
            counts = {"shown": len(found.rows), "deviating": found.deviating, "known": found.known}
            told.append(words("ranks_cut", **{name: f"{n:,}" for name, n in counts.items()}))
        if all(row.host is None for row in found.rows):
            told.append(words("ranks_no_hosts"))
        return joined(told)

    def drawing(self, found: Ranks, name: str) -> Markup:
        """The rows on the axis of steps; `name`: id of the heading."""
        drawing = rank_svg.draw(found, name, self.words.first)
        return Markup(drawing)  # noqa: S704  # rank_svg escapes every text that it draws

    def numbers(self, found: Ranks) -> Markup:
        """The ranks as a table; columns without any value are left out."""
        rows = [*found.rows, *([found.rest] if found.rest else [])]
        wanted = {
            "ranks_host": any(row.host for row in rows),
            "rank_state": any(row.state for row in rows),
            "rank_last_step": any(row.last_step is not None for row in rows),
            "rank_last_time": any(row.last_time is not None for row in rows),
            "rank_collective": any(row.collective for row in rows),
            "rank_step_time": any(row.step_time is not None for row in rows),
            "rank_errors": any(row.errors for row in rows),
        }
        columns = [name for name, used in wanted.items() if used]
        return self.table(["rank", *columns], [self._row(row, columns, rest=row is found.rest) for row in rows])

    def _row(self, row: RankRow, columns: list[str], *, rest: bool) -> Markup:
        words = self.words
        name = words("ranks_rest", n=f"{len(row.ranks):,}") if rest else tag("span", row.ranks[0], translate="no")
        bad = row.state in ("silent", "parted", "failed")
        cells = {
            "ranks_host": tag("td", tag("code", row.host) if row.host else ""),
            "rank_state": tag("td", chip(words(f"rank_{row.state}"), "alarm" if bad else "") if row.state else ""),
            "rank_last_step": cell(row.last_step),
            "rank_last_time": tag("td", tag("span", _moment(row.last_time), translate="no")),
            "rank_collective": tag("td", self._call(row)),
            "rank_step_time": cell(compact(row.step_time)),
            "rank_errors": tag(
                "td",
                joined((tag("code", f"{e.kind} {shorten(place(e.source, e.line), 80)}") for e in row.errors), ", "),
            ),
        }
        return tag("tr", tag("th", name, scope="row"), *(cells[column] for column in columns))

    def _call(self, row: RankRow) -> Markup:
        if row.state == "silent" and row.collective:
            return self.words("rank_missed", call=row.collective)
        return tag("code", row.collective) if row.collective else Markup("")


def _moment(time: float | None) -> str:
    """A moment to the second; nothing where it is not known or no date."""
    if time is None or not 0 <= time < 1e11:
        return ""
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M:%S")
