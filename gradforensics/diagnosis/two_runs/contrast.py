"""Two runs beside each other, whole: partings, changes, checkpoints, and the candidates for a cause."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gradforensics.diagnosis.two_runs.candidates import Candidate, candidates
from gradforensics.diagnosis.two_runs.changes import Changes, changes
from gradforensics.diagnosis.two_runs.partings import Parting, partings
from gradforensics.diagnosis.two_runs.restarts import restarts
from gradforensics.diagnosis.two_runs.weights import SharedStep, shared_checkpoints
from gradforensics.tables import Evidence

_RESULTS = ("loss", "grad_norm", "eval/loss")  # what is looked at first for where two runs part


@dataclass(frozen=True, slots=True)
class Contrast:
    """How two runs compare.

    partings: every shared series; result: that of the series in which the results are compared, None without one;
    earliest: of the series that are equal at first, the one that parts first; changes: in what else they differ;
    weights: the checkpoints of shared steps; candidates: what could explain it, the likeliest first.
    """

    partings: tuple[Parting, ...]
    result: Parting | None
    earliest: Parting | None
    changes: Changes
    weights: tuple[SharedStep, ...]
    candidates: tuple[Candidate, ...]

    @property
    def equal_weights(self) -> SharedStep | None:
        """The last shared checkpoint before any that differs whose models are equal."""
        before = [one for one in self.weights if self.unequal_weights is None or one.step < self.unequal_weights.step]
        return next((one for one in reversed(before) if one.same), None)

    @property
    def unequal_weights(self) -> SharedStep | None:
        """The first shared checkpoint whose models differ."""
        return next((one for one in self.weights if one.same is False), None)

    @property
    def parted(self) -> bool:
        """Whether any series or any weight differs."""
        differ = any(one.course in ("parts", "never_identical") for one in self.partings)
        return differ or any(one.same is False for one in self.weights)


def contrast(here: Evidence, there: Evidence) -> Contrast:
    """Compare two runs. Nothing is read but their evidence."""
    found = partings(here, there)
    weights = shared_checkpoints(here, there)
    differ = changes(here, there)
    result = _result(found)
    causes = candidates(found, result, differ, weights, restarts(here, there, result))
    return Contrast(tuple(found), result, _earliest(found), differ, tuple(weights), tuple(causes))


def _result(found: Sequence[Parting]) -> Parting | None:
    judged = {one.label: one for one in found if one.course != "not_judged" and not one.scheduled}
    named = next((judged[name] for name in _RESULTS if name in judged), None)
    return named or max(judged.values(), key=lambda one: one.points, default=None)


def _earliest(found: Sequence[Parting]) -> Parting | None:
    """The series whose first difference comes first; a result, where a schedule differs at the same step."""
    apart = [one for one in found if one.step is not None and one.course in ("parts", "never_identical")]
    return min(apart, key=lambda one: (one.step, one.course == "parts", one.scheduled), default=None)
