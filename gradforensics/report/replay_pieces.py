"""The section on replays as markup."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from gradforensics.report.markup import Tables, chip, evidence, joined, soft, tag, where
from gradforensics.report.replays import ReplayRow, ResultRow
from gradforensics.report.words import shorten

# How many rows a page shows; the JSON report has them all.
RESULTS, NOTICES, ENVIRONMENT = 60, 40, 60
_TEXT = 700
_COLOURS = {"fault": "alarm", "clean": "good", "verified": "good"}


class ReplayPieces(Tables):
    """Builds the tables of the section from the pieces of the page."""

    def circumstances(self, replay: ReplayRow) -> Markup:
        """From which state, on which device, with which code."""
        code = [
            joined(
                [
                    tag("code", shorten(f"{c.file}:{c.function}", 160)),
                    tag("code", f"sha256 {c.sha256[:12]}…", title=c.sha256, kind="soft") if c.sha256 else "",
                    evidence(shorten(c.allowed_by, 80), kind="soft"),
                ]
            )
            for c in replay.code
        ]
        facts = (
            ("state", tag("code", shorten(replay.state, 160)) if replay.state else ""),
            ("device", evidence(shorten(replay.device, 80)) if replay.device else ""),
            ("code_ran", joined(code, Markup("<br>")) if code else self.words("no_code")),
            ("folder", tag("code", shorten(replay.folder, 160))),
        )
        cells = [tag("div", tag("dt", self.words(key)), tag("dd", value)) for key, value in facts if value]
        return tag("dl", *cells, kind="facts")

    def results(self, replay: ReplayRow) -> Markup:
        """Question, what was changed, result, conclusion; a question that repeats is asked once."""
        rows: list[Markup] = []
        before = None
        for one in replay.told[:RESULTS]:
            rows.append(self._row(one, asks=one.experiment != before, first=before is None))
            before = one.experiment
        table = self.table(("question", "changed", "result", "conclusion"), rows)
        return tag("div", table, kind="replay") + self.cut(len(replay.told), RESULTS)

    def _row(self, one: ResultRow, *, asks: bool, first: bool) -> Markup:
        said = self.words.message
        asked = (
            joined([said(one.question, _TEXT), evidence(one.experiment, kind="soft")], Markup("<br>")) if asks else ""
        )
        outcome = chip(self.words(f"out_{one.outcome}"), _COLOURS.get(one.outcome, ""))
        cells = (
            asked,
            said(one.changed, _TEXT),
            said(one.result, _TEXT),
            joined([outcome, said(one.conclusion, _TEXT)]),
        )
        return tag("tr", *(tag("td", cell) for cell in cells), kind="opens" if asks and not first else "")

    def left_out(self, replay: ReplayRow) -> Markup:
        """What was not run or broke off, and why."""
        items = [
            tag(
                "li",
                chip(self.words(f"out_{one.outcome}")),
                " ",
                evidence(one.experiment, name="b"),
                " ",
                self.words.message(one.conclusion or one.result, _TEXT),
            )
            for one in replay.left_out[:RESULTS]
        ]
        return tag("ul", *items, kind="plain") + self.cut(len(replay.left_out), RESULTS)

    def notices(self, replay: ReplayRow) -> Markup:
        """What the replay itself remarks."""
        items = [tag("li", self.words.message(text, 400)) for text in replay.notices[:NOTICES]]
        return tag("ul", *items, kind="plain notices") + self.cut(len(replay.notices), NOTICES)

    def environment(self, replay: ReplayRow) -> Markup:
        """Versions and machine of the replay, which need not be those of the run."""
        shown = list(replay.environment.items())[:ENVIRONMENT]
        told = joined((evidence(f"{key} ", tag("b", shorten(value, 80)), kind="fact") for key, value in shown), " ")
        return tag("p", told, kind="soft")

    def fixes(self, rows: Sequence[ResultRow]) -> Markup:
        """The changes that a replay verified."""
        items = [
            tag(
                "li",
                joined(
                    [
                        chip(self.words("out_verified"), "good"),
                        tag("b", self.words.message(one.changed, _TEXT)),
                        self.words.message(one.result, _TEXT),
                        joined(["(", self.words("step_n", n=one.step), ")"], ""),
                        soft(self.words.message(one.conclusion, _TEXT)),
                        where(one.source, one.line),
                    ]
                ),
            )
            for one in rows[:RESULTS]
        ]
        return tag("ul", *items, kind="plain")
