"""The catalogue in the page: the matrix of the article's 27 cases, those beyond, and what stands behind each cell."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from gradforensics.report.markup import Tables, chip, joined, soft, tag
from gradforensics.report.model import RunReport, VerdictRow
from gradforensics.report.need_words import needs_in_words

CASES = frozenset(f"GF{n:02}" for n in range(1, 28))
"""The cases of the article that the catalogue reconstructs."""
ADVICE = 8  # lines that help most; each rule's own stand with it
# A shape per outcome, beside the word: the same filled where it weighs more.
SHAPES = {"alarm": "▲", "weak": "△", "clear": "●", "not_judged": "○", "untested": "–"}


def state(verdict: VerdictRow) -> str:
    """Which of SHAPES a verdict has."""
    if verdict.outcome == "fired":
        return "alarm" if verdict.alarm else "weak"
    return verdict.outcome if verdict.testable or verdict.outcome == "clear" else "untested"


class CataloguePieces(Tables):
    """Builds the pieces of the catalogue."""

    def matrix(self, run: RunReport, anchor: str) -> Markup:
        """One cell per case of the article, in its order."""
        cells = [self._cell(v, anchor) for v in run.verdicts if v.rule in CASES]
        return tag("ul", *cells, kind="matrix") if cells else Markup("")

    def beyond(self, run: RunReport, anchor: str) -> Markup:
        """One line per further rule; empty where there is none."""
        cells = [self._cell(v, anchor) for v in run.verdicts if v.rule not in CASES]
        return tag("ul", *cells, kind="matrix beyond") if cells else Markup("")

    def _cell(self, verdict: VerdictRow, anchor: str) -> Markup:
        found = state(verdict)
        word = verdict.strength or {"untested": "no_test_short"}.get(found, verdict.outcome)
        told = tag("i", self.shape(found), " ", self.words(word))
        title = tag("span", self.words.text(verdict.title), kind="name")
        link = tag("a", tag("b", verdict.rule), " ", told, " ", title, href=f"#{anchor}-{verdict.rule}")
        return tag("li", link, kind=f"cell {found}")

    def shape(self, found: str) -> Markup:
        """The shape of an outcome, which a screen reader leaves out: the word stands beside it."""
        return tag("span", SHAPES[found], kind=f"shape {found}", **{"aria-hidden": "true"})

    def legend(self, run: RunReport) -> Markup:
        """What the shapes that a run has mean."""
        here = set(map(state, run.verdicts))
        each = [tag("span", self.shape(one), " ", self.words(f"legend_{one}")) for one in SHAPES if one in here]
        return tag("p", joined(each), kind="legend soft")

    def advice(self, run: RunReport, anchor: str) -> Markup:
        """What to log next time, the most useful line first, each with the rules that it would help to judge."""
        items = [
            tag(
                "li",
                self.words.text(line),
                " ",
                soft(
                    self.words("would_judge"),
                    " ",
                    joined([tag("a", rule, href=f"#{anchor}-{rule}") for rule in rules], ", "),
                ),
            )
            for line, rules in run.advice()[:ADVICE]
        ]
        return tag("ul", *items, kind="advice")

    def blind(self, run: RunReport, anchor: str) -> Markup:
        """The rules not judged: what was missing and how to have it next time."""
        blind = sorted(run.having("not_judged"), key=lambda v: not v.testable)
        table = self.table(("rule", "title", "missing", "advice"), [self._blind(v, anchor) for v in blind])
        return tag("div", table, kind="stack")

    def _blind(self, verdict: VerdictRow, anchor: str) -> Markup:
        title = tag("td", self.words.text(verdict.title))
        if not verdict.testable:
            return self._row(verdict, anchor, title, tag("td", self.words("no_test"), colspan=2), kind="soft")
        needs = [self.words.named(gap.told) for gap in verdict.missing]
        if verdict.replayed:
            needs.append(soft(self.words("clean_at", steps=_listed(verdict.replayed))))
        advice = [self.words.text(one) for one in dict.fromkeys(g.advice for g in verdict.missing if g.advice.en)]
        return self._row(verdict, anchor, title, tag("td", joined(needs, Markup("<br>"))), tag("td", joined(advice)))

    def clear(self, run: RunReport, anchor: str) -> Markup:
        """The rules judged clear: which tests looked, which look-alike refuted the rest."""
        table = self.table(("rule", "title", "tests_looked"), [self._clear(v, anchor) for v in run.having("clear")])
        return tag("div", table, kind="stack")

    def _clear(self, verdict: VerdictRow, anchor: str) -> Markup:
        refuted = [
            tag(
                "div",
                chip(joined([self.words("refuted_by"), one.case]), "refuted"),
                " ",
                soft(self.words.text(one.tell)),
            )
            for one in verdict.refuted_by
        ]
        looked = [tag("code", name.replace("_", " "), translate="no") for name in verdict.judged_signs]
        told = [joined(looked, ", ")] if looked else []
        at = "clear_at" if verdict.by_replay_alone else "clean_at"
        told += [self.words(at, steps=_listed(verdict.replayed))] if verdict.replayed else []
        lacked = self.words.named(needs_in_words(gap.need for gap in verdict.missing))
        told += [joined([self.words("also_missing"), ": ", lacked], "")] if lacked else []
        return self._row(
            verdict,
            anchor,
            tag("td", self.words.text(verdict.title), *refuted),
            tag("td", joined(told, Markup("<br>")), kind="soft"),
        )

    def _row(self, verdict: VerdictRow, anchor: str, *cells: Markup, kind: str = "") -> Markup:
        head = tag("th", verdict.rule, scope="row")
        return tag("tr", head, *cells, kind=kind, id=f"{anchor}-{verdict.rule}")


def _listed(steps: Sequence[int]) -> str:
    return ", ".join(map(str, steps[:8])) + (", …" if len(steps) > 8 else "")
