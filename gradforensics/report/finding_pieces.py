"""The pieces of a finding: its signs with the lines that show them, its look-alikes, how to verify it."""

from __future__ import annotations

from collections.abc import Mapping

from markupsafe import Markup, escape

from gradforensics.diagnosis.rule_model import is_command
from gradforensics.diagnosis.vocabulary import Fact
from gradforensics.languages import Text
from gradforensics.report.markup import Tables, chip, evidence, joined, soft, tag, where
from gradforensics.report.model import HitRow, LookAlikeRow, SignRow, VerdictRow
from gradforensics.report.words import number, shorten

HITS, HITS_OF_SEVERAL = 12, 4
"""Hits that a page shows of the only sign, and of each of several; the JSON report has them all."""
_STATES = ("refuted_by", "not_excluded", "excluded", "by_eye")


class FindingPieces(Tables):
    """Builds the pieces of the findings of one page."""

    def chips(self, verdict: VerdictRow) -> Markup:
        """Severity and strength. Of what is only suspected the severity is that which it would have."""
        strength = verdict.strength or "suspect"
        severity = self.words(verdict.severity or "S4")
        if strength == "suspect":
            severity = joined([self.words("if_so"), severity], "")
        return joined([chip(severity, "alarm" if verdict.alarm else "weak"), chip(self.words(strength), strength)])

    def verify(self, verdict: VerdictRow) -> Markup:
        """How to verify: prose, and each command by itself to be copied."""
        english, chinese = (told.splitlines() for told in verdict.verify)
        lines = [Text(*both) for both in zip(english, chinese or english, strict=True)]
        return Markup("").join(
            tag("pre", tag("code", joined(map(_unbroken, line.en.split()))), kind="command", translate="no")
            if is_command(line.en)
            else tag("p", self.words.text(line))
            for line in lines
        )

    # -- evidence ------------------------------------------------------------------------------------------------------

    def evidence(self, verdict: VerdictRow) -> Markup:
        """The signs of a finding, each with its facts and with the places that show it."""
        signs = verdict.signs
        most = HITS if len(signs) == 1 else HITS_OF_SEVERAL
        return Markup("").join(self._sign(sign, most) for sign in signs)

    def _sign(self, sign: SignRow, most: int) -> Markup:
        name = tag("h4", evidence(sign.name.replace("_", " ")), " ", chip(self.words(sign.strength), sign.strength))
        hits = tag("ul", *(tag("li", self._hit(hit)) for hit in sign.hits[:most]), kind="plain hits")
        return tag(
            "div", name, self._facts(sign.hits[0]), hits, self.cut(len(sign.hits), most, "more_hits"), kind="sign"
        )

    def _hit(self, hit: HitRow) -> Markup:
        quoted = tag("pre", marked(hit), kind="excerpt") if hit.excerpt else ""
        return joined([self.place(hit), quoted], "")

    def place(self, hit: HitRow) -> Markup:
        """What a hit shows and where, in one line: series, value, step, rank, host, file and line."""
        read = [tag("code", shorten(hit.series or hit.tensor or "", 120))] if hit.series or hit.tensor else []
        read += [soft(tag("code", hit.tag))] if hit.tag and hit.tag != hit.series else []
        read += [tag("b", number(hit.value), kind="value", translate="no")] if hit.value is not None else []
        read += [self.words("step_n", n=hit.step)] if hit.step is not None else []
        read += [self.words("rank_n", n=hit.rank)] if hit.rank is not None else []
        read += [joined([self.words("host"), tag("code", hit.host)])] if hit.host else []
        return joined([*read, where(hit.source, hit.line)])

    # -- what looks alike ----------------------------------------------------------------------------------------------

    def look_alikes(self, verdict: VerdictRow) -> Markup:
        """The look-alikes of a finding: which were refuted, which were not, and what to look at oneself."""
        return tag(
            "ul",
            *(
                tag("li", chip(self.words(f"look_{state}"), state), " ", self.look_alike(one))
                for state in _STATES
                for one in getattr(verdict, state)
            ),
            kind="plain look-alikes",
        )

    def lacked(self, verdict: VerdictRow) -> Markup:
        """What further signs of the case needed to see, each with how to have it next time."""
        items = [tag("li", self._lack(g.told, g.advice)) for g in verdict.missing]
        return tag("p", self.words("lacked"), self.words("colon")) + tag("ul", *items)

    def _lack(self, told: Text, advice: Text) -> Markup:
        needed = self.words.named(told)
        if not advice.en:
            return needed
        return joined([joined([needed, self.words("colon")], ""), soft(self.words.text(advice))])

    def _facts(self, hit: HitRow) -> Markup:
        """What the check read there, apart from what the quoted line says."""
        told = _new(hit.facts, hit.excerpt)
        spans = (
            tag("span", evidence(name.replace("_", " ")), " ", tag("b", self._fact(value)), kind="fact")
            for name, value in told.items()
        )
        return tag("p", joined(spans), kind="read") if told else Markup("")

    def _fact(self, value: Fact) -> Markup:
        return (
            self.words.named(value)
            if isinstance(value, Text)
            else tag("span", shorten(number(value), 80), translate="no")
        )

    def look_alike(self, one: LookAlikeRow) -> Markup:
        """A case, its title and what tells it apart."""
        text = self.words.text
        return joined([tag("b", one.case), joined([text(one.title), self.words("colon")], ""), soft(text(one.tell))])


def _unbroken(word: str) -> Markup:
    """A word of a command; an option must not be broken at its hyphens."""
    return tag("span", word, kind="option") if word.startswith("-") else escape(word)


def marked(hit: HitRow) -> Markup:
    """The line that a hit names, the value marked."""
    parts: list[object] = []
    done = 0
    for start, end in hit.marked:
        parts += [hit.excerpt[done:start], tag("mark", hit.excerpt[start:end])]
        done = end
    return joined([*parts, hit.excerpt[done:]], "")


def _new(facts: Mapping[str, Fact], excerpt: str) -> dict[str, Fact]:
    return {
        k: v for k, v in facts.items() if v is not None and not (isinstance(v, str) and len(v) > 40 and v in excerpt)
    }
