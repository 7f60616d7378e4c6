"""Pieces of markup for the comparison of two runs: in the report of one with a baseline, and on a page of its own."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

from markupsafe import Markup

from gradforensics.diagnosis.two_runs.candidates import Candidate
from gradforensics.diagnosis.two_runs.changes import Change
from gradforensics.diagnosis.two_runs.contrast import Contrast
from gradforensics.languages import Text
from gradforensics.report.comparison import told
from gradforensics.report.comparison.model import Comparison, Side
from gradforensics.report.markup import Tables, cell, chip, joined, soft, tag, where
from gradforensics.report.model import Compared
from gradforensics.report.words import Words, number, shorten

_ROWS, _NOTICES = 200, 50  # of each kind that a page shows; the JSON has them all
_LOOK = {"likely": "proven", "possible": "suspect", "unlikely": "refuted"}  # the chip of each weight
_QUOTED = re.compile(f"{told.QUOTES[0]}([^{told.QUOTES[1]}]*){told.QUOTES[1]}")


class ContrastPieces(Tables):
    """Builds the pieces of one page."""

    def beside(self, compared: Compared) -> Markup:
        """The head of the section: with which run this one is compared."""
        return self._sentence(lambda words: words("beside", name=told.quoted(shorten(compared.name, 120))))

    def letters(self, compared: Compared) -> Markup:
        """Which of the two is A and which is B."""
        return self._sentence(lambda words: words("cmp_letters", name=told.quoted(shorten(compared.name, 120))))

    def headline(self, found: Contrast) -> Markup:
        """From which step on the runs differ."""
        return self._sentence(partial(told.headline, found=found))

    def details(self, found: Contrast) -> list[Markup]:
        """What belongs to it, sentence by sentence."""
        return self._sentences(partial(told.details, found=found))

    def verdict(self, found: Contrast) -> Markup:
        """What else differs, and what nobody recorded."""
        differ = found.changes
        mark = chip(self.words("confounded"), "suspect") if differ.confounded else ""
        parts = [mark, self._sentence(partial(told.verdict, differ=differ))]
        parts.append(soft(self.words.of(partial(told.unknown, differ=differ))) if differ.unknown else "")
        return tag("p", joined([part for part in parts if part]))

    def _sentences(self, of: Callable[[Words], list[str]]) -> list[Markup]:
        count = len(of(self.words.plain))
        return [self._sentence(partial(_nth, of, i)) for i in range(count)]

    def _sentence(self, of: Callable[[Words], str]) -> Markup:
        """A sentence in both languages; what stems from the runs stands as code between its parts."""
        texts = [_QUOTED.split(of(words)) for words in self.words.each]
        first, second = texts
        if first[1::2] != second[1::2]:
            return self.words.of(lambda words: told.bare(of(words)))
        parts = [
            tag("code", en) if i % 2 else self.words.text(Text(en, zh or " "))  # "" would mean: not translated
            for i, (en, zh) in enumerate(zip(first, second, strict=True))
        ]
        return joined(parts, "")

    def sides(self, found: Comparison) -> Markup:
        """Which run is A and which is B."""
        return tag("dl", self._side("A", found.here), self._side("B", found.there), kind="sides")

    def _side(self, letter: str, side: Side) -> Markup:
        span = self.words("no_steps") if side.steps is None else self._steps(side.steps)
        facts = joined([span, self.words.count("attempts", side.attempts), self.words(side.ending.kind)], ", ")
        return tag("div", tag("dt", letter), tag("dd", tag("code", shorten(side.name, 200)), " ", soft(facts)))

    def _steps(self, steps: tuple[int, int]) -> Markup:
        return self.words("steps", first=steps[0], last=steps[1])

    def causes(self, found: Contrast) -> Markup:
        """The candidates with what speaks for and against each."""
        rows = [tag("tr", *self._cause(one)) for one in found.candidates]
        return self.table(("cmp_cause", "cmp_weight", "cmp_speaks"), rows)

    def _cause(self, one: Candidate) -> list[Markup]:
        signs = [tag("li", sign) for sign in self._sentences(partial(told.signs, candidate=one))]
        weight = chip(self.words(f"cmp_{one.weight}"), _LOOK[one.weight])
        return [
            tag("td", self._sentence(partial(told.cause, candidate=one))),
            tag("td", weight),
            tag("td", tag("ul", *signs, kind="signs")),
        ]

    def _key(self, change: Change) -> Markup:
        return self.words("cmp_logged_rate") if told.logged(change) else tag("code", shorten(change.key, 120))

    def series(self, found: Contrast) -> Markup:
        """Every shared series: up to which step it is equal, and whether the difference lasts."""
        rows = [
            tag(
                "tr",
                tag("td", tag("code", shorten(one.label, 120))),
                tag("td", self.words.of(partial(told.course, one=one))),
                cell(number(one.points)),
                cell(number(one.here)),
                cell(number(one.there)),
                tag("td", self.words.of(partial(told.noise, one=one))),
            )
            for one in found.partings[:_ROWS]
        ]
        heads = ("series", "cmp_course", "cmp_shared", "cmp_a_there", "cmp_b_there", "cmp_noise")
        return self.table(heads, rows, numeric=(2, 3, 4)) + self.cut(len(found.partings), _ROWS)

    def changes(self, found: Contrast) -> Markup:
        """What both runs state, differently; what may not matter stands below."""
        differ = [(one, True) for one in found.changes.counted] + [(one, False) for one in found.changes.uncertain]
        if not differ:
            return tag("p", self.words("cmp_no_changes"), kind="soft")
        rows = [
            tag(
                "tr",
                tag("td", self._key(one)),
                tag("td", tag("code", told.value(one.here))),
                tag("td", tag("code", told.value(one.there))),
                tag("td", self.words(f"cmp_kind_{one.kind}")),
                tag("td", self.words("cmp_counts") if counts else soft(self.words("cmp_uncertain"))),
            )
            for one, counts in differ[:_ROWS]
        ]
        return self.table(("key", "cmp_a", "cmp_b", "cmp_kind", "cmp_counted"), rows) + self.cut(len(differ), _ROWS)

    def one_sided(self, found: Contrast) -> Markup:
        """The settings that one of the runs states only."""
        those = found.changes.one_sided
        rows = [
            tag(
                "tr",
                tag("td", tag("code", shorten(one.key, 120))),
                tag("td", tag("code", told.value(one.value) if one.here else "")),
                tag("td", tag("code", "" if one.here else told.value(one.value))),
            )
            for one in those[:_ROWS]
        ]
        return self.table(("key", "cmp_a", "cmp_b"), rows) + self.cut(len(those), _ROWS)

    def weights(self, found: Contrast) -> Markup:
        """Up to which checkpoint the weights are equal."""
        return self.words.of(partial(told.checkpoints, found=found))

    def checkpoints(self, found: Contrast) -> Markup:
        """The checkpoints that both runs wrote at one step."""
        rows = [
            tag(
                "tr",
                cell(number(one.step)),
                tag("td", self.words.of(partial(told.models, one=one))),
                tag("td", self.words.of(partial(told.states, one=one))),
                tag("td", tag("code", told.widest(one))),
            )
            for one in found.weights[:_ROWS]
        ]
        heads = ("step_head", "cmp_weights", "cmp_states", "cmp_widest")
        return self.table(heads, rows, numeric=(0,)) + self.cut(len(found.weights), _ROWS)

    def notices(self, found: Comparison) -> Markup:
        """The readers' remarks on either run."""
        those = [(letter, n) for letter, side in (("A", found.here), ("B", found.there)) for n in side.notices]
        if not those:
            return tag("p", self.words("no_notices"), kind="soft")
        items = [
            tag("li", f"{letter}: ", where(one.source, one.line), " ", self.words.message(one.text, 400))
            for letter, one in those[:_NOTICES]
        ]
        return tag("ul", *items, kind="plain notices") + self.cut(len(those), _NOTICES)


def _nth(of: Callable[[Words], list[str]], place: int, words: Words) -> str:
    return of(words)[place]
