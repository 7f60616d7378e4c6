"""Verdicts -> Diagnosis: which alarm is the primary case, and which alarms follow from it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import polars as pl

from gradforensics.diagnosis import needs
from gradforensics.diagnosis.judge import Verdict, judge
from gradforensics.diagnosis.rules import SEVERITIES, STRENGTHS, Rule
from gradforensics.tables import Evidence


@dataclass(frozen=True)
class Diagnosis:
    """All verdicts on one run, the primary case and the chain of consequences (cause, effect) among the alarms."""

    evidence: Evidence
    verdicts: tuple[Verdict, ...]
    primary: Verdict | None = None
    chain: tuple[tuple[str, str], ...] = ()
    last_good_checkpoint: str | None = None

    @property
    def alarms(self) -> list[Verdict]:
        """Verdicts that are alarms, in the order of the rules."""
        return [v for v in self.verdicts if v.alarm]


def diagnose(evidence: Evidence, rules: Sequence[Rule]) -> Diagnosis:
    """Judge every rule on one run and order the alarms by cause."""
    verdicts = tuple(judge(rule, evidence) for rule in rules)
    primary, chain = ordered(verdicts)
    return Diagnosis(evidence, verdicts, primary, chain, _last_good(evidence, [v for v in verdicts if v.alarm]))


def ordered(verdicts: Sequence[Verdict]) -> tuple[Verdict | None, tuple[tuple[str, str], ...]]:
    """The primary case and the chain of consequences (cause, effect) among the alarms of these verdicts."""
    alarms = [v for v in verdicts if v.alarm]
    edges = tuple((cause.rule.id, effect.rule.id) for cause in alarms for effect in alarms if may_cause(cause, effect))
    return _primary(alarms, edges), edges


def may_cause(cause: Verdict, effect: Verdict) -> bool:
    """Whether the rules name this edge and the onsets allow it: a cause may not start after its effect.

    The cause started at the earliest right after its last good logged step, so it is ruled out only where even that
    lies at or after the step at which the effect shows.
    """
    if effect.rule.id not in cause.rule.effects(cause.variant):
        return False
    if cause.onset is None or effect.onset is None or cause.onset <= effect.onset:
        return True
    return cause.onset_after is None or cause.onset_after < effect.onset


def _last_good(evidence: Evidence, alarms: Sequence[Verdict]) -> str | None:
    """The newest checkpoint that is complete, finite and from before every alarm began; None where none is known to be.

    An alarm may have begun right after its last good logged step; without one, at any step before its onset. Where the
    lower end of its onset is a checkpoint that was looked at, that one is good.
    """
    table = evidence.table("checkpoints")
    if table is None:
        return None
    good = table.filter(pl.col("complete") & (pl.col("nonfinite") == 0) & (pl.col("parameters") > 0))
    for alarm in alarms:
        if alarm.onset is not None:
            first_bad = alarm.onset_after if alarm.onset_after is not None else 0
            seen = any(
                h.series in needs.OF_CHECKPOINTS and h.step == alarm.onset for one in alarm.holdings for h in one.hits
            )
            good = good.filter(pl.col("step") < first_bad + seen)
    newest = good.filter(pl.col("step").is_not_null()).sort("step")
    if newest.height:
        return str(newest["path"][-1])
    return str(good["path"][0]) if good.height == 1 and not alarms else None


def _primary(alarms: Sequence[Verdict], edges: Iterable[tuple[str, str]]) -> Verdict | None:
    caused = {effect for _, effect in edges}
    roots = [v for v in alarms if v.rule.id not in caused]

    def order(verdict: Verdict) -> tuple[int, int, int, str]:
        strength = STRENGTHS.index(verdict.strength or "suspect")
        severity = SEVERITIES.index(verdict.severity or "S4")
        onset = verdict.onset if verdict.onset is not None else 2**62
        return (onset, -strength, severity, verdict.rule.id)

    return min(roots, key=order, default=None)
