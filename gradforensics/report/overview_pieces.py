"""The overview of many runs, and the cards of those that have no article of their own."""

from __future__ import annotations

import re
import shlex
from collections import Counter

import numpy as np
from markupsafe import Markup

from gradforensics.report.catalogue_pieces import SHAPES
from gradforensics.report.charts import Line
from gradforensics.report.markup import Tables, cell, joined, soft, tag
from gradforensics.report.model import Report, RunReport
from gradforensics.report.overview import by_weight
from gradforensics.report.palette import LIGHT
from gradforensics.report.words import shorten

RUNS, CARDS = 2000, 400  # rows of the overview and cards that a page shows; the JSON report has every run
_WIDTH, _HEIGHT = 96, 22  # of a sparkline, in px
_DECADES = 50.0  # a loss that spans more than this factor is drawn on a log scale
_NO_FILE_NAME = re.compile(r"[^\w.-]+")


class OverviewPieces(Tables):
    """Builds the pieces of the overview."""

    def ordered(self, report: Report) -> list[tuple[str, RunReport]]:
        """The runs with their anchors, those with the gravest alarms first; anchors follow the order of the input."""
        anchors = {id(run): f"r{i}" for i, run in enumerate(report.runs, 1)}
        return [(anchors[id(run)], run) for run in by_weight(report.runs)]

    def tally(self, report: Report) -> Markup:
        """How many runs have an alarm, findings below alarm level, no alarm, no verdict."""
        counts = Counter(map(_state, report.runs))
        told = [
            joined([self._shape(state), self.words(f"tally_{state}", n=counts[state])])
            for state in ("alarm", "weak", "clear", "not_judged")
            if counts[state]
        ]
        return joined(told, ", ")

    def cases(self, report: Report) -> Markup:
        """How often each rule fired, the most alarms first; empty where none did."""
        alarms: Counter[str] = Counter()
        weaker: Counter[str] = Counter()
        titles = {}
        for run in report.runs:
            for v in run.findings:
                (alarms if v.alarm else weaker)[v.rule] += 1
                titles[v.rule] = v.title
        rows = [
            tag(
                "tr",
                tag("th", rule, scope="row"),
                tag("td", self.words.text(titles[rule])),
                cell(alarms[rule] or ""),
                cell(weaker[rule] or ""),
            )
            for rule in sorted(titles, key=lambda rule: (-alarms[rule], -weaker[rule], rule))
        ]
        if not rows:
            return Markup("")
        summary = tag("summary", self.words.count("cases_fired", len(rows)))
        table = self.table(("rule", "title", "with_alarm", "below_alarm"), rows, numeric=(2, 3))
        return tag("details", summary, table, kind="fold")

    def overview(self, report: Report) -> Markup:
        """One row per run, linked to what the page tells of it."""
        told = self.ordered(report)
        linked = {anchor for anchor, run in told if run.whole} | {anchor for anchor, _ in self.cards(report)}
        rows = [self._row(anchor, run, linked=anchor in linked) for anchor, run in told[:RUNS]]
        heads = ("run", "verdict", "onset_step", "ending", "step_range", "loss")
        return self.table(heads, rows, numeric=(2, 4)) + self.cut(len(report.runs), RUNS)

    def _row(self, anchor: str, run: RunReport, *, linked: bool) -> Markup:
        name = shorten(run.name, 120)
        return tag(
            "tr",
            tag("th", tag("a", name, href=f"#{anchor}") if linked else name, scope="row", translate="no"),
            tag("td", self._verdict(run)),
            cell(_onset(run)),
            tag("td", self.words(run.ending.kind)),
            cell("" if run.steps is None else f"{run.steps[0]}–{run.steps[1]}"),
            tag("td", spark(run.loss)),
        )

    def _verdict(self, run: RunReport) -> Markup:
        state = _state(run)
        v = run.primary
        if v is not None:
            told = [tag("b", v.rule), self.words.text(v.title), soft(self.words(v.strength or "suspect"))]
        elif state == "not_judged":
            told = [self.words("no_verdict")]
        else:
            told = [self.words("no_alarm")]
            told += [soft(", ".join(f.rule for f in run.findings), " ", self.words("below_alarm"))] * (state == "weak")
        return joined([self._shape(state), *told])

    def _shape(self, state: str) -> Markup:
        return tag("span", SHAPES[state], kind=f"shape {state}", **{"aria-hidden": "true"})

    # -- runs without an article of their own --------------------------------------------------------------------------

    def cards(self, report: Report) -> list[tuple[str, RunReport]]:
        """The runs that are told in short."""
        return [(anchor, run) for anchor, run in self.ordered(report) if not run.whole][:CARDS]

    def shortened(self, report: Report) -> Markup:
        """How many runs are told in short and how to have everything on one of them; empty where all are whole."""
        short = [run for _, run in self.ordered(report) if not run.whole]
        if not short:
            return Markup("")
        lead = tag("p", self.words.count("told_in_short", len(short)))
        command = self.command(report, short[0])
        return lead + command if command else lead

    def command(self, report: Report, run: RunReport) -> Markup:
        """The command that makes a report on one run alone; empty where it is not known."""
        if not run.path or report.made is None or not report.made.again:
            return Markup("")
        given = [run.path]
        if run.compared is not None and run.compared.sibling and run.compared.path:
            given += ["--baseline", run.compared.path]
        given += ["-o", f"gradforensics-{_NO_FILE_NAME.sub('-', run.name).strip('-.')[:100] or 'run'}.html"]
        return tag("pre", tag("code", f"{report.made.again} {shlex.join(given)}"))

    def counts(self, run: RunReport) -> Markup:
        """How many rules have which outcome."""
        alarms = len(run.alarms)
        told = [self.words.count("alarms_n", alarms)]
        weaker = len(run.findings) - alarms
        told += [joined([self.words.count("findings_n", weaker), self.words("below_alarm")])] if weaker else []
        told += [joined([len(run.having(o)), self.words(o)]) for o in ("clear", "not_judged")]
        return joined(told, ", ")


def _state(run: RunReport) -> str:
    if run.primary is not None:
        return "alarm"
    return "weak" if run.findings else "clear" if run.having("clear") else "not_judged"


def _onset(run: RunReport) -> str:
    """The steps between which the primary case began: "115–120"."""
    if run.primary is None or run.primary.onset is None:
        return ""
    onset, after = run.primary.onset, run.primary.onset_after
    return str(onset) if after is None or onset - after <= 1 else f"{after}–{onset}"


def spark(line: Line | None) -> Markup:
    """The loss as a tiny drawing; the row says in words what there is to know."""
    if line is None or len(line.values) < 2:
        return Markup("")
    values = line.values
    low, high = float(values.min()), float(values.max())
    if low > 0 and high > _DECADES * low:
        values = np.log(values)
        low, high = float(values.min()), float(values.max())
    first, last = int(line.steps[0]), int(line.steps[-1])
    x = (line.steps - first) / max(1, last - first) * (_WIDTH - 2) + 1
    y = (_HEIGHT - 2) - (values - low) / ((high - low) or 1.0) * (_HEIGHT - 4)
    opens = np.diff(line.segment, prepend=line.segment[0] - 1) != 0
    path = "".join(f"{'M' if new else 'L'}{a:.0f} {b:.0f}" for new, a, b in zip(opens, x, y, strict=True))
    drawn = tag("path", d=path, fill="none", stroke=LIGHT["l0"], **{"stroke-width": "1.5", "class": "l0"})
    return tag("svg", drawn, kind="spark", width=_WIDTH, height=_HEIGHT, **{"aria-hidden": "true"})
