"""A run and the healthy one that the user gave to compare it with (--baseline)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gradforensics.diagnosis.causes import diagnose
from gradforensics.diagnosis.rules import Rule
from gradforensics.errors import UsageError
from gradforensics.tables import Evidence, Notice

# Settings that name a run or a place: they differ between any two runs and explain nothing.
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
