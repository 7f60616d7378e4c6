"""A run and a healthy one to compare it with: that of --baseline, or a sibling in the same analysis."""

from __future__ import annotations

from collections.abc import Sequence

from gradforensics.diagnosis.causes import Diagnosis, diagnose
from gradforensics.diagnosis.rules import Rule
from gradforensics.diagnosis.setting_differences import differences, telling
from gradforensics.errors import UsageError
from gradforensics.tables import Evidence, Notice

_SHARED = 5  # settings that two runs must both state to count as runs of one task
_APART = 3  # settings in which such runs may differ: beyond, too much could explain what parts them
_POINTS = 20  # of the sibling's loss


def the_one(found: Sequence[Evidence], wanted: str, *, by: str = "--baseline") -> Evidence:
    """The only run of a folder; raises UsageError where it holds several. by: the argument that named it."""
    if len(found) > 1:
        names = ", ".join(one.name for one in found[:8])
        raise UsageError(f"{by} {wanted} holds {len(found)} runs ({names}); name the folder or the file of one of them")
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
        shared, apart = telling(run).keys() & telling(other).keys(), len(differences(run, other))
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
