"""What a check needs to see before it can judge: `series:eval/loss:points>=5`, `settings:max_steps`, `travels` ...

series:[eval/|test/]NAME[:points>=N][:ranks>=N]     settings:KEY     events:console|kernel     experiments:NAME
TABLE[:rows>=N][:ranks>=N]     baseline:NEED (the same of the run that --baseline names)
travels:one-update (two checkpoints with Adam states exactly one optimizer step apart)
checkpoints:named (the optimizer's states belong for certain to the parameters whose names they carry)

An experiment counts only where it came to a result: one that failed or was not run acquits nobody.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

from gradforensics import experiment_rows
from gradforensics.checkpoint_signals import SURE, adam_like, checkpoints, groups_of
from gradforensics.diagnosis import frameworks
from gradforensics.experiments import JUDGED
from gradforensics.languages import Language
from gradforensics.tables import TABLES, Evidence, Phase

OF_CHECKPOINTS = frozenset({"checkpoints", "tensors", "moments", "travels", "groups", "facts", "calls"})
_CONDITION = re.compile(r"(points|ranks|rows)>=(\d+)")
_SERIES = re.compile(r"(?:(eval|test)/)?(.+)")


@dataclass(frozen=True, slots=True)
class Need:
    """One parsed need: `kind` is series, settings, events, experiments or table; `baseline`: of the other run.

    one_update: a pair of checkpoints must be one optimizer step apart; named: a checkpoint's states must have names.
    """

    text: str
    kind: str
    name: str
    phase: Phase = "train"
    points: int = 1
    ranks: int = 0
    rows: int = 0
    baseline: bool = False
    one_update: bool = False
    named: bool = False


@cache  # rules ask for the same needs for every run
def parse(text: str) -> Need:
    """Parse one need; raises ValueError with a message for the rule's author."""
    if text.startswith("baseline:"):
        return replace(parse(text.removeprefix("baseline:")), text=text, baseline=True)
    head, *rest = text.split(":")
    counts = {"points": 1, "ranks": 0, "rows": 0}
    kind, name = (
        (head, rest.pop(0) if rest else "")
        if head in ("series", "settings", "events", "experiments")
        else ("table", head)
    )
    if not name:
        raise ValueError(f"the need {text!r} names nothing")
    if kind == "table" and name not in TABLES:
        raise ValueError(
            f"the need {text!r} names no table ({', '.join(TABLES)}) and is no series, settings, events or experiments"
        )
    if kind == "events" and name not in ("console", "kernel"):
        raise ValueError(f"the need {text!r} must be events:console or events:kernel")
    one_update, named = (name, rest) == ("travels", ["one-update"]), (name, rest) == ("checkpoints", ["named"])
    for part in () if one_update or named else rest:
        condition = _CONDITION.fullmatch(part)
        if not condition:
            raise ValueError(f"the need {text!r} has the unknown condition {part!r} (points>=N, ranks>=N, rows>=N)")
        counts[condition[1]] = int(condition[2])
    phase: Phase = "train"
    if kind == "series":
        match = _SERIES.fullmatch(name)
        if match and match[1]:
            phase, name = ("eval" if match[1] == "eval" else "test"), match[2]
    return Need(
        text, kind, name, phase, counts["points"], counts["ranks"], counts["rows"], one_update=one_update, named=named
    )


# Kinds of events that a machine tells of itself, in its kernel log or through nvidia-smi.
_KERNEL = (
    "xid", "sxid", "ecc", "gpu_fallen", "gpu_driver", "thermal", "hung_task", "lockup", "panic", "segfault",
    "oom_killer", "mce", "pcie_error", "io_error", "file_system", "link_down",
)  # fmt: skip
_NO_CONSOLE = (*_KERNEL, "stack", "collective_timeout", "collective_mismatch")  # stacks, Flight Recorder dumps
_MACHINE_READERS = frozenset({"kernel-log", "nvidia-smi", "stack-dump", "flight-recorder"})


def satisfied(need: Need, evidence: Evidence) -> bool:
    """Whether the evidence holds what is needed."""
    if need.baseline:
        return evidence.baseline is not None and satisfied(replace(need, baseline=False), evidence.baseline)
    match need.kind:
        case "series":
            if need.ranks and len(evidence.ranks(need.name, need.phase)) < need.ranks:
                return False
            series = evidence.series(need.name, need.phase)
            return series is not None and len(series) >= need.points
        case "settings":
            return evidence.setting(need.name) is not None
        case "events":
            if evidence.events is None:
                return False
            readers = {source.reader for source in evidence.sources}
            if need.name == "kernel":
                return "kernel-log" in readers or any(e.kind in _KERNEL for e in evidence.events)
            if "console" in readers or any(e.kind not in _NO_CONSOLE for e in evidence.events):
                return True
            return not evidence.events and not readers & _MACHINE_READERS
        case "experiments":
            return any(
                one.result.experiment == need.name and one.result.outcome in JUDGED
                for one in experiment_rows.results(evidence)
            )
    table = evidence.table(need.name)
    if table is None or table.height < need.rows or (need.one_update and table["grad_l2"].drop_nulls().is_empty()):
        return False
    if need.named and not table["naming_sure"].is_in(sorted(SURE)).any():
        return False
    return not need.ranks or ("rank" in table.columns and table["rank"].drop_nulls().n_unique() >= need.ranks)


class Resumable(NamedTuple):
    """A checkpoint to go on from: how its path is called, and its step."""

    path: str
    step: int


def resumable(evidence: Evidence) -> Resumable | None:
    """The newest complete, finite checkpoint with Adam's state, or None: of other optimizers a pair proves nothing."""
    rows = [
        Resumable(one.path, one.step)
        for one in checkpoints(evidence) or []
        if one.step is not None
        and one.complete is not False
        and not one.nonfinite
        and any(map(adam_like, groups_of(evidence, one.path)))
    ]
    return max(rows, key=lambda row: row.step, default=None)


def advice(
    text: str,
    run: str = "",
    step: int | None = None,
    *,
    framework: str = frameworks.GENERAL,
    language: Language = "en",
    checkpoint: Resumable | None = None,
) -> str:
    """One line that says how to have this evidence next time; empty where the need speaks for itself.

    run, step: the run directory and the step that a command is to name, where they are known. framework: of the user,
    see frameworks.py. checkpoint: the one to resume from for a pair that is one update apart; without any the line is
    that for checkpoints. Needs that differ in their points alone share one line; the report shows the need beside it.
    """
    try:
        need = parse(text.partition(" ")[0] if text.startswith("series:") else text)  # without the remark behind it
    except ValueError:
        return ""
    where = f"{shlex.quote(run) if run else 'RUN'} --step {'N' if step is None else step}"
    found = frameworks.line(framework, language, _keys(need, pairable=checkpoint is not None))
    path, at = checkpoint or ("", 0)
    return found.format(name=need.name, where=where, checkpoint=path, next=at + 1)


def _keys(need: Need, *, pairable: bool) -> tuple[str, ...]:
    """The keys of advice.toml that answer a need, the closest first. pairable: a checkpoint can be resumed from."""
    if need.baseline:
        return ("baseline",)
    match need.kind:
        case "series" if need.ranks:
            return ("ranks",)
        case "series" if need.phase == "train":
            return (need.name, "series")
        case "series":
            return (f"eval/{need.name}", "eval") if need.phase == "eval" else ("series",)
        case "settings" | "experiments":
            return (need.kind,)
    if need.one_update and pairable:
        return ("one_update",)
    if need.named:
        return ("named",)
    return ("checkpoints",) if need.name in OF_CHECKPOINTS else (need.name,)
