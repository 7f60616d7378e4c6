"""The pieces of the first screen: how sure the verdict is and why, what speaks against it, what was not judged."""

from __future__ import annotations

from collections.abc import Iterable

from markupsafe import Markup

from gradforensics.report.finding_pieces import FindingPieces
from gradforensics.report.markup import chip, evidence, joined, soft, tag, where
from gradforensics.report.messages import message
from gradforensics.report.model import RunReport, SignRow, VerdictRow
from gradforensics.report.need_words import needs_in_words
from gradforensics.report.words import shorten

_SIGNS, _QUIET, _LOOK_ALIKES, _SUSPICIONS, _ALARMS, _CLEAR = 3, 4, 2, 3, 4, 12


class ScreenPieces(FindingPieces):
    """Builds the first screen of one run."""

    def state(self, run: RunReport) -> str:
        """The class of the screen: sick, warm (no alarm, but something), calm or blind."""
        if run.primary:
            return "sick"
        if not run.having("clear") and not run.findings:
            return "blind"
        return "calm" if run.calm else "warm"

    def onset(self, run: RunReport, verdict: VerdictRow) -> Markup:
        """From which step; where the record has no steps at all, that."""
        if run.steps is None and verdict.onset is None:
            return self.words("onset_no_steps")
        return self.words.onset(verdict)

    def ending(self, run: RunReport) -> Markup:
        """How the run ended, with the line that shows it."""
        told = [joined([self.words(run.ending.kind), self.words("colon") if run.ending.text else ""], "")]
        text = run.ending.text
        quoted = self.words.message(text, 160) if message(text).zh else tag("q", shorten(text, 160)) if text else ""
        return joined([p for p in (*told, quoted, where(run.ending.source, run.ending.line)) if p])

    def last_good(self, run: RunReport) -> Markup:
        """The checkpoint to go back to, or why there is none."""
        if run.last_good_checkpoint:
            return self.words.checkpoint(run.last_good_checkpoint)
        return self.words("no_good" if run.checkpoints else "no_checkpoint")

    def others(self, run: RunReport, anchor: str) -> Markup:
        """The other alarms as links, each with its onset."""
        others = [v for v in run.alarms if v is not run.primary]
        links = [joined([self._link(v, anchor), self._at(v)]) for v in others[:_ALARMS]]
        more = [self.words("and_more", n=len(others) - _ALARMS)] if len(others) > _ALARMS else []
        return joined([*links, *more], ", ")

    def _link(self, verdict: VerdictRow, anchor: str) -> Markup:
        return tag("a", verdict.rule, href=f"#{anchor}-{verdict.rule}")

    def _at(self, verdict: VerdictRow) -> Markup:
        return self.words("step_n", n=verdict.onset) if verdict.onset is not None else Markup("")

    def step_of(self, run: RunReport, rule: str, anchor: str) -> Markup:
        """A case of the chain in words: its number as a link, its slug, its onset."""
        verdict = run.verdict(rule)
        if verdict is None:
            return tag("b", rule)
        at = soft("(", self._at(verdict), ")") if verdict.onset is not None else ""
        return joined([one for one in (self._link(verdict, anchor), evidence(verdict.slug), at) if one])

    # -- how sure ------------------------------------------------------------------------------------------------------

    def sure(self, run: RunReport, verdict: VerdictRow, anchor: str) -> Markup:
        """Why to believe a verdict and why not, as a list of terms."""
        text = self.words.text
        resembling = [joined([tag("b", v.rule), self.words.text(v.title), soft(self.words.text(one.tell))])
                      for v, one in run.resembling(verdict.rule)]  # fmt: skip
        excluded = [*map(self.look_alike, verdict.excluded), *resembling]
        against = [*map(self.look_alike, (*verdict.not_excluded, *verdict.refuted_by))]
        rows = [
            ("speaks_for", self._few([self._proof(sign) for sign in verdict.signs], _SIGNS, verdict, anchor)),
            ("found_nothing", self._quiet(verdict)),
            ("look_not_excluded", self._few(against, _LOOK_ALIKES, verdict, anchor)),
            ("false_alarm_if", text(verdict.false_alarms[0]) if verdict.false_alarms else Markup("")),
            ("look_excluded", self._few(excluded, _LOOK_ALIKES - bool(against), verdict, anchor)),
            ("unjudged", self._unjudged(run, verdict, anchor)),
        ]
        return tag("dl", *(tag("div", tag("dt", self.words(key)), tag("dd", told)) for key, told in rows if told))

    def _proof(self, sign: SignRow) -> Markup:
        more = soft(self.words("times", n=len(sign.hits))) if len(sign.hits) > 1 else ""
        told = [
            evidence(sign.name.replace("_", " ")),
            chip(self.words(sign.strength), sign.strength),
            self.place(sign.hits[0]),
            more,
        ]
        return joined([one for one in told if one])

    def _few(self, items: Iterable[Markup], most: int, verdict: VerdictRow, anchor: str) -> Markup:
        """The first items of a list, the others behind a link to the finding."""
        items = list(items)
        more = tag("a", self.words("and_more", n=len(items) - most), href=f"#{anchor}-{verdict.rule}")
        shown = items[:most] + ([more] if len(items) > most else [])
        return tag("ul", *(tag("li", one) for one in shown), kind="plain") if items else Markup("")

    def _quiet(self, verdict: VerdictRow) -> Markup:
        """The signs of the case that looked and found nothing."""
        quiet = _apart(verdict)
        names = [evidence(name.replace("_", " ")) for name in quiet[:_QUIET]]
        rest = len(quiet) - _QUIET
        return joined([*names, *([self.words("and_more", n=rest)] if rest > 0 else [])], ", ")

    def rest(self, verdict: VerdictRow, anchor: str) -> Markup:
        """Where the other steps of the fix and everything else on the case stand."""
        return tag("a", self.words("all_of_it", rule=verdict.rule), href=f"#{anchor}-{verdict.rule}")

    def _unjudged(self, run: RunReport, verdict: VerdictRow, anchor: str) -> Markup:
        """How many rules, and what further signs of this case lacked."""
        lacked = self.words.named(needs_in_words(g.need for g in verdict.missing[:2]))
        told = [joined([self.words("signs_lacked"), lacked], "")] if lacked else []
        return joined([self.blind(run, anchor), *told], " · ")

    def blind(self, run: RunReport, anchor: str) -> Markup:
        """How many rules were not judged, with a link to the catalogue."""
        blind = len(run.having("not_judged"))
        if not blind:
            return Markup("")
        told = self.words.of(lambda words: words("t_of", n=blind, rules=words.count("rules", len(run.verdicts))))
        return tag("a", told, href=f"#{anchor}-catalogue")

    # -- without an alarm ----------------------------------------------------------------------------------------------

    def suspicions(self, run: RunReport, anchor: str) -> Markup:
        """The findings below alarm level, the gravest first, each with what would settle it."""
        items = []
        for v in run.findings[:_SUSPICIONS]:
            settle = [self.words.text(line) for line in dict.fromkeys(g.advice for g in v.missing if g.advice.en)][:1]
            settle = settle or ([self.verify(v)] if v.verify.en else [])
            label = joined([self.words("would_settle")])
            if v.strength != "suspect" and v.fix:  # what is known well enough is to be mended
                label, settle = joined([self.words("next"), self.words("colon")], ""), [self.words.text(v.fix[0])]
            told = [joined([self._link(v, anchor), self.chips(v), self.words.text(v.what)])]
            told += [tag("div", soft(label), " ", *settle, kind="settle")] if settle else []
            items.append(tag("li", *told))
        rest = len(run.findings) - _SUSPICIONS
        if rest > 0:
            items.append(tag("li", tag("a", self.words("and_more", n=rest), href=f"#{anchor}-findings")))
        return tag("ul", *items, kind="plain suspicions")

    def clear(self, run: RunReport, anchor: str) -> Markup:
        """The cases that were looked for and not found."""
        clear = run.having("clear")
        items = [tag("li", self._link(v, anchor), " ", self.words.text(v.title)) for v in clear[:_CLEAR]]
        rest = len(clear) - _CLEAR
        if rest > 0:
            items.append(tag("li", tag("a", self.words("and_more", n=rest), href=f"#{anchor}-catalogue")))
        return tag("ul", *items, kind="plain")


def _apart(verdict: VerdictRow) -> list[str]:
    """The signs that found nothing, without kin of one that holds or is named already: "lost" of "lost by xid"."""
    told: list[str] = []
    holding = [sign.name for sign in verdict.signs]
    for name in sorted(verdict.quiet, key=len):
        if not any(f"{name}_".startswith(f"{one}_") or f"{one}_".startswith(f"{name}_") for one in (*holding, *told)):
            told.append(name)
    return sorted(told, key=verdict.quiet.index)
