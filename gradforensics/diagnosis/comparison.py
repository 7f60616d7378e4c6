"""A run and a healthy one to compare it with: that of --baseline, or a sibling in the same analysis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gradforensics.diagnosis.causes import Diagnosis, diagnose
from gradforensics.diagnosis.rules import Rule
from gradforensics.errors import UsageError
from gradforensics.tables import Evidence, Notice

# Settings that name a run or a place: they differ between any two runs and explain nothing.
_SHARED = 5  # settings that two runs must both state to count as runs of one task
_APART = 3  # settings in which such runs may differ: beyond, too much could explain what parts them
_POINTS = 20  # of the sibling's loss
_NAMES = frozenset({"output_dir", "logging_dir", "run_name", "name", "experiment_name", "exp_name", "hub_model_id"})


@dataclass(frozen=True, slots=True)
class Difference:
    """A setting that both runs state, with different values."""

    key: str
    here: Any
    there: Any


def the_one(found: Sequence[Evidence], wanted: str) -> Evidence:
    """The only run that --baseline names; raises UsageError where its folder holds several."""
    if len(found) > 1:
        names = ", ".join(one.name for one in found[:8])
        raise UsageError(
            f"--baseline {wanted} holds {len(found)} runs ({names}); name the folder or the file of one of them"
        )
    return found[0]


def compare_with(baseline: Evidence, runs: Sequence[Evidence], rules: Sequence[Rule]) -> None:
    """Let every run be judged beside the baseline; a baseline that raises alarms itself is no measure, and noted."""
    alarms = [verdict.rule.id for verdict in diagnose(baseline, rules).alarms]
    for run in runs:
        if same_run(run, baseline):
            text = "this is the run that --baseline names: it is not compared with itself"
        elif alarms:
            text = f"the run {baseline.name} raises alarms itself ({', '.join(alarms)}): nothing is compared with it"
        else:
            run.baseline = baseline
            continue
        run.notices.append(Notice("--baseline", None, text))


def beside_siblings(diagnoses: Sequence[Diagnosis], rules: Sequence[Rule]) -> list[Diagnosis]:
    """Judge the runs with a grave finding again, each beside its nearest healthy sibling; all others stay as they are.

    A sweep has better and worse runs: one without a finding of S1 or S2, if only a suspect, is not made sick by its
    siblings. A sibling is a run of the same analysis that raises no alarm, logged the same loss and states nearly the
    same settings: its level is a better reference than any general number.
    """
    healthy = [d.evidence for d in diagnoses if not d.alarms and any(v.outcome == "clear" for v in d.verdicts)]
    found: list[Diagnosis] = []
    for diagnosis in diagnoses:
        run = diagnosis.evidence
        if run.baseline is None and any(v.severity in ("S1", "S2") for v in diagnosis.verdicts):
            sibling = _nearest(run, healthy)
            if sibling is not None:
                run.baseline, run.baseline_is_sibling = sibling, True
                diagnosis = diagnose(run, rules)  # noqa: PLW2901  the verdicts beside the sibling take their place
        found.append(diagnosis)
    return found


def _nearest(run: Evidence, healthy: Sequence[Evidence]) -> Evidence | None:
    """The healthy run whose settings differ least; of equals the one that went furthest, None where all are too far."""
    loss = run.series("loss")
    ranked: list[tuple[int, int, int, Evidence]] = []
    for place, other in enumerate(healthy):
        theirs = other.series("loss")
        if other is run or loss is None or theirs is None or theirs.tag != loss.tag or len(theirs.good) < _POINTS:
            continue
        shared = {s.key for s in run.settings or []} & {s.key for s in other.settings or []}
        apart = len(differences(run, other))
        if len(shared) >= _SHARED and apart <= _APART and not same_run(run, other):
            ranked.append((apart, -int(theirs.steps[-1]), place, other))
    return min(ranked, key=lambda one: one[:3])[3] if ranked else None


def same_run(run: Evidence, other: Evidence) -> bool:
    """Whether two readings are of one run: the same files of series, by their contents or their names."""
    mine, theirs = _files(run), _files(other)
    return bool(mine) and mine == theirs


def _files(run: Evidence) -> set[str]:
    logged = {key.source for key in run.frames}
    return {source.sha256 or source.path for source in run.sources if source.path in logged}


def differences(run: Evidence, other: Evidence) -> list[Difference]:
    """The settings that both runs state with different values, by key; names and folders of runs left out."""
    keys = {s.key for s in run.settings or []} & {s.key for s in other.settings or []}
    found: list[Difference] = []
    for key in sorted(keys - _NAMES):
        here, there = run.setting(key), other.setting(key)
        if here is None or there is None or _alike(here, there) or any(_is_path(v) for v in (here, there)):
            continue
        found.append(Difference(key, here, there))
    return found


def _alike(here: Any, there: Any) -> bool:
    try:
        return here == there or float(here) == float(there)
    except (TypeError, ValueError):
        return str(here) == str(there)


def _is_path(value: Any) -> bool:
    return isinstance(value, str) and ("/" in value or "\\" in value)
