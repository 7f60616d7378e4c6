"""Which of many runs come first, and of which a page tells everything. Selection; no judging."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from gradforensics.diagnosis.judge import Outcome
from gradforensics.diagnosis.rules import SEVERITIES, STRENGTHS, Severity, Strength
from gradforensics.report.charts import Line, line_of
from gradforensics.tables import Evidence

WHOLE = 16
"""How many runs have an article of their own on a page: with some 100 kB each, a page of 400 runs stays below 3 MB."""
_SPARK = 40  # points of a sparkline


class _Judged(Protocol):
    """A verdict, or its row in a report."""

    @property
    def outcome(self) -> Outcome: ...
    @property
    def severity(self) -> Severity | None: ...
    @property
    def strength(self) -> Strength | None: ...


class _Diagnosed(Protocol):
    """A diagnosis, or the report on a run."""

    @property
    def primary(self) -> _Judged | None: ...
    @property
    def verdicts(self) -> Sequence[_Judged]: ...


D = TypeVar("D", bound=_Diagnosed)


def by_weight(runs: Sequence[D]) -> list[D]:
    """The runs with an alarm by severity and strength of the primary case, then those with findings, then the others.

    Runs of one weight keep their order. Those of which nothing could be judged come last.
    """
    return sorted(runs, key=_weight)


def _weight(run: _Diagnosed) -> tuple[int, int, int]:
    if run.primary is not None:
        severity, strength = run.primary.severity or "S4", run.primary.strength or "suspect"
        return 0, SEVERITIES.index(severity), -STRENGTHS.index(strength)
    outcomes = {v.outcome for v in run.verdicts}
    return (1 if "fired" in outcomes else 2 if "clear" in outcomes else 3), 0, 0


def sparkline(evidence: Evidence) -> Line | None:
    """The training loss (else that of the evaluation) in few points; None where no two were logged."""
    series = evidence.series("loss") or evidence.series("loss", "eval")
    return None if series is None or len(series) < 2 else line_of(series, _SPARK)
