"""Rule x Evidence -> Verdict: fired, clear or not judged, with the hits and with everything that was missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from gradforensics import experiment_rows
from gradforensics.diagnosis import needs as needs_
from gradforensics.diagnosis.rules import (
    SEVERITIES,
    STRENGTHS,
    LookAlike,
    Rule,
    Severity,
    Sign,
    Strength,
    Test,
    Texts,
    fill,
)
from gradforensics.diagnosis.vocabulary import Answer, Fact, Hit, Missing
from gradforensics.languages import Language, Text
from gradforensics.tables import Evidence

Outcome: TypeAlias = Literal["fired", "clear", "not_judged"]


@dataclass(frozen=True)
class Holding:
    """A sign that holds, with its hits (at least one, earliest first)."""

    sign: Sign
    hits: tuple[Hit, ...]

    @property
    def onset(self) -> int | None:
        """First step of its hits."""
        return self.hits[0].step


@dataclass(frozen=True)
class Verdict:
    """A rule's outcome on a run.

    onset, onset_after: the step at which the log first shows the fault lies after `onset_after` (the last good logged
    step, None where there is none) and not after `onset`. refuted_by: look-alikes whose tell holds; not_excluded: those
    whose tell could not be judged. ignored: the reason that the user gave for ignoring it, empty where it counts.
    """

    rule: Rule
    outcome: Outcome
    variant: str | None = None
    severity: Severity | None = None
    strength: Strength | None = None
    onset: int | None = None
    onset_after: int | None = None
    holdings: tuple[Holding, ...] = ()
    refuted_by: tuple[LookAlike, ...] = ()
    not_excluded: tuple[LookAlike, ...] = ()
    missing: tuple[str, ...] = ()
    judged_signs: tuple[str, ...] = ()
    facts: Mapping[str, Fact] = field(default_factory=dict)
    ignored: str = ""

    @property
    def alarm(self) -> bool:
        """Fired, severity S1 or S2, proven or probable, and not ignored."""
        grave = self.severity in ("S1", "S2") and self.strength in ("proven", "probable")
        return self.outcome == "fired" and grave and not self.ignored

    def texts(self, language: Language = "en") -> Texts:
        """The rule's texts for this verdict, facts filled in."""
        texts = self.rule.text(language, self.variant)
        if self.outcome != "fired":
            return texts
        return Texts(
            texts.title,
            fill(texts.what, self._told, language),
            texts.why,
            tuple(fill(f, self._told, language) for f in texts.fix),
        )

    @property
    def _told(self) -> Mapping[str, Fact]:
        """The facts as texts tell them: a host without a name is that of the file which shows the fault."""
        source = self.holdings[0].hits[0].source if self.holdings else None
        if source is None or self.facts.get("host", source) is not None:
            return self.facts
        return {**self.facts, "host": Text(f"of {source}", f"（见 {source}）")}

    def verify(self, language: Language = "en") -> str:
        """How to check the verdict, ready to paste; empty where this version lacks the command, or a replay did it.

        The step of a command is the onset; N stands for it where the onset is not known.
        """
        if not self.rule.verifiable or (self.holdings and self.holdings[0].sign.experiments):
            return ""
        verify = self.rule.verify.in_(language)
        if self.outcome != "fired":
            return verify
        facts = {**self.facts, "onset": "N" if self.onset is None else self.onset}
        return fill(verify.replace("--step N", "--step {onset}"), facts, language, quote_run=True)


def judge(rule: Rule, evidence: Evidence) -> Verdict:
    """Judge one rule on one run."""
    if not rule.signs:
        return Verdict(
            rule, "not_judged", missing=tuple(n for n in rule.needs if not needs_.satisfied(needs_.parse(n), evidence))
        )
    holdings: list[Holding] = []
    missing: list[str] = []
    judged: list[str] = []
    acquitted = False
    for sign in rule.signs:
        answer = _ask(sign.test, evidence)
        if isinstance(answer, Missing):
            missing += [m for m in answer.what if m not in missing]
            continue
        judged.append(sign.name)
        if answer:
            holdings.append(Holding(sign, tuple(sorted(answer, key=lambda h: (h.step is None, h.step or 0)))))
        else:
            acquitted = acquitted or (sign.acquits and _looked_clean(sign, evidence))
    refuted: list[LookAlike] = []
    open_: list[LookAlike] = []
    for look_alike in rule.look_alikes:
        concerned = [h for h in holdings if not look_alike.signs or h.sign.name in look_alike.signs]
        if look_alike.unless is None or not concerned:
            continue
        answer = _ask(look_alike.unless, evidence)
        if isinstance(answer, Missing):
            open_.append(look_alike)
        elif answer:
            refuted.append(look_alike)
            holdings = [h for h in holdings if h not in concerned]
            acquitted = True
    rest = {"missing": tuple(missing), "judged_signs": tuple(judged), "refuted_by": tuple(refuted)}
    if not holdings:
        return Verdict(rule, "clear" if acquitted else "not_judged", **rest)  # type: ignore[arg-type]  # names of fields
    return _fired(rule, evidence, holdings, tuple(open_), rest)


def _fired(
    rule: Rule, evidence: Evidence, holdings: list[Holding], open_: tuple[LookAlike, ...], rest: Mapping[str, object]
) -> Verdict:
    def severity_of(sign: Sign) -> Severity:
        return sign.severity or rule.variant_severity.get(sign.variant or "", rule.severity)

    def merit(holding: Holding) -> tuple[bool, int, int, int]:
        severity, strength = severity_of(holding.sign), holding.sign.strength
        grave = severity in ("S1", "S2") and strength != "suspect"
        # a replay names more than a log, whose steps may be counted from 0 where the replay's are from 1
        onset = (holding.onset or 0) - bool(holding.sign.experiments)
        return (grave, STRENGTHS.index(strength), -SEVERITIES.index(severity), -onset)

    best = max(holdings, key=merit)
    strength = best.sign.strength
    if strength == "suspect" and _two_suspects_agree(holdings):
        strength = "probable"
    # the onset is that of the fault the text speaks of: of its variant, and of signs no weaker than an alarm needs
    same = [h for h in holdings if merit(h)[0] == merit(best)[0] and h.sign.variant == best.sign.variant]
    onset, after = _onset(same)
    facts: dict[str, Fact] = {**best.hits[0].facts, "run": evidence.path or evidence.name, "onset": onset}
    return Verdict(
        rule, "fired", best.sign.variant, severity_of(best.sign), strength, onset, after,
        tuple(sorted(holdings, key=merit, reverse=True)), not_excluded=open_, facts=facts,
        **rest,  # type: ignore[arg-type]  # names of fields
    )  # fmt: skip


def _looked_clean(sign: Sign, evidence: Evidence) -> bool:
    """Whether every experiment that the sign reads looked and found nothing, neither its fault nor another one."""
    outcomes = [{one.result.outcome for one in experiment_rows.results(evidence, name)} for name in sign.experiments]
    return all("clean" in found and "fault" not in found for found in outcomes)


def _ask(test: Test, evidence: Evidence) -> Answer:
    lacking = [n.text for n in test.needs if not needs_.satisfied(n, evidence)]
    if lacking:
        return Missing(*lacking)
    try:
        return test.check(evidence, **test.arguments)
    except Exception as error:  # noqa: BLE001  # a defect of one check must not cost the user all verdicts
        return Missing(f"the check {test.check.name} failed, which is a defect of this tool: {error!r}")


def _two_suspects_agree(holdings: Iterable[Holding]) -> bool:
    """Two suspect signs make a probable one if they read disjoint evidence (settings apart) and are not both seeds."""
    read = [
        (
            h.sign.test.seed,
            {(n.kind, n.phase, n.name) for n in h.sign.test.needs if n.kind != "settings" and not n.baseline},
        )
        for h in holdings
    ]
    return any(
        not (seed_a and seed_b) and a.isdisjoint(b) for i, (seed_a, a) in enumerate(read) for seed_b, b in read[i + 1 :]
    )


def _onset(holdings: Iterable[Holding]) -> tuple[int | None, int | None]:
    """Earliest onset of these signs, and the last good step before it."""
    firsts = [h.hits[0] for h in holdings if h.hits[0].step is not None]
    if not firsts:
        return None, None
    first = min(firsts, key=lambda h: (h.step, -1 if h.after is None else h.after))
    return first.step, first.after
