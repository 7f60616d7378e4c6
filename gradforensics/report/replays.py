"""The replays of one run as rows of the report: selected from the evidence, nothing judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gradforensics import experiment_rows
from gradforensics.diagnosis.causes import Diagnosis
from gradforensics.diagnosis.judge import Verdict
from gradforensics.experiments import JUDGED, RESULTS, Code, Outcome, Quantity, Result
from gradforensics.tables import Evidence

_LEFT_OUT = ("not-run", "failed")


@dataclass(frozen=True, slots=True)
class ResultRow:
    """One result of an experiment, and the line of the replay directory that holds it."""

    experiment: str
    step: int
    question: str
    changed: str
    result: str
    conclusion: str
    outcome: Outcome
    quantities: tuple[Quantity, ...]
    source: str | None
    line: int | None

    @property
    def told(self) -> str:
        """What came out and what follows from it."""
        stop = "" if self.result.endswith((".", "!", "?")) else "."
        return " ".join(filter(None, (f"{self.result}{stop}" if self.result else "", self.conclusion)))


@dataclass(frozen=True, slots=True)
class ReplayRow:
    """One replay directory. state: the capsule or checkpoint that it started from; code: what it ran of the user's."""

    folder: str
    run: str
    step: int
    tool: str
    device: str
    state: str
    finished: bool
    code: tuple[Code, ...]
    environment: Mapping[str, str]
    notices: tuple[str, ...]
    results: tuple[ResultRow, ...]

    @property
    def told(self) -> tuple[ResultRow, ...]:
        """The results of what ran to its end."""
        return tuple(one for one in self.results if one.outcome not in _LEFT_OUT)

    @property
    def left_out(self) -> tuple[ResultRow, ...]:
        """What was not run, or broke off; the conclusion says why."""
        return tuple(one for one in self.results if one.outcome in _LEFT_OUT)

    @property
    def fault(self) -> ResultRow | None:
        """The result that tells most of a fault: the first value that is not finite, else the first fault."""
        faults = [one for one in self.results if one.outcome == "fault"]
        return next((one for one in faults if one.experiment == "anomaly"), faults[0] if faults else None)

    @property
    def telling(self) -> ResultRow | None:
        """The result to show where only one can be: the fault, else what a change did to a failure."""
        return self.fault or next((one for one in self.results if one.outcome in ("unverified", "verified")), None)

    @property
    def verified(self) -> tuple[ResultRow, ...]:
        """The changes with which a failure is gone that is there without them."""
        return tuple(one for one in self.results if one.outcome == "verified")


def replays(evidence: Evidence) -> tuple[ReplayRow, ...]:
    """The replays of a run, by step."""
    return tuple(
        ReplayRow(
            folder=one.folder,
            run=one.replay.run,
            step=one.replay.step,
            tool=one.replay.tool,
            device=one.replay.device,
            state=one.replay.state,
            finished=one.replay.finished,
            code=tuple(one.replay.code),
            environment=dict(one.replay.environment),
            notices=tuple(one.replay.notices),
            results=tuple(
                _row(result, f"{one.folder}/{RESULTS}", line)
                for result, line in zip(one.replay.results, one.lines, strict=True)
            ),
        )
        for one in evidence.replays
    )


def _row(result: Result, source: str | None, line: int | None) -> ResultRow:
    return ResultRow(
        result.experiment, result.step, result.question, result.changed, result.result, result.conclusion,
        result.outcome, result.quantities, source, line,
    )  # fmt: skip


def verified_fixes(diagnosis: Diagnosis) -> dict[str, tuple[ResultRow, ...]]:
    """The verified results by the rule of the finding that each belongs to.

    That is the one that rests on the same experiment at the same step. What no rule rests on (a sample left out,
    another program) belongs to the primary case. Neither holds where the finding had not begun at that step.
    """
    found: dict[str, list[ResultRow]] = {}
    fired = [v for v in diagnosis.verdicts if v.outcome == "fired"]
    ruled = {name for v in diagnosis.verdicts for sign in v.rule.signs for name in sign.experiments}
    for one in experiment_rows.results(diagnosis.evidence):
        if one.result.outcome == "verified":
            of = one.result.text("experiment") or one.result.experiment  # `fix` names the experiment that it repeated
            owners = [v for v in fired if _rests_on(v, of, one.result.step)] if of in ruled else [diagnosis.primary]
            for owner in owners:
                if owner is not None and one.result.step >= (owner.onset_after or 0):
                    found.setdefault(owner.rule.id, []).append(_row(*one))
    return {rule: tuple(rows) for rule, rows in found.items()}


def _rests_on(verdict: Verdict, experiment: str, step: int) -> bool:
    return any(experiment in h.sign.experiments and step in (hit.step for hit in h.hits) for h in verdict.holdings)


def replayed_steps(verdict: Verdict, evidence: Evidence) -> tuple[int, ...]:
    """The steps whose replay judged signs of this verdict; where it did not fire, the clean ones."""
    names = {name for s in verdict.rule.signs if s.name in verdict.judged_signs for name in s.experiments}
    found: dict[int, set[Outcome]] = {}
    for one in experiment_rows.results(evidence) if names else []:
        if one.result.experiment in names and one.result.outcome in JUDGED:
            found.setdefault(one.result.step, set()).add(one.result.outcome)
    fired = verdict.outcome == "fired"
    return tuple(
        sorted(s for s, outcomes in found.items() if fired or ("clean" in outcomes and "fault" not in outcomes))
    )


def by_replay_alone(verdict: Verdict) -> bool:
    """Whether nothing but replays judged the rule: then a clear verdict speaks of the replayed steps only."""
    return all(s.experiments for s in verdict.rule.signs if s.name in verdict.judged_signs)
