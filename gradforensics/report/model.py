"""The one internal model of a report: every format is rendered from it. It selects and formats; it judges nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, cast

from gradforensics import __version__, experiment_rows
from gradforensics.diagnosis import needs
from gradforensics.diagnosis.causes import Diagnosis
from gradforensics.diagnosis.frameworks import framework_of
from gradforensics.diagnosis.judge import Outcome, Verdict
from gradforensics.diagnosis.rules import SEVERITIES, STRENGTHS, Language, LookAlike, Severity, Strength
from gradforensics.diagnosis.setting_differences import Difference, differences
from gradforensics.diagnosis.vocabulary import Fact
from gradforensics.report.bracket import Bracket, bracket
from gradforensics.report.charts import TIMELINE_POINTS, Chart, timeline, zooms
from gradforensics.report.checkpoints import Checkpoints, checkpoints
from gradforensics.report.data_rows import DataRow, data_rows
from gradforensics.report.replays import (
    ReplayRow,
    ResultRow,
    by_replay_alone,
    replayed_steps,
    replays,
    verified_fixes,
)
from gradforensics.tables import Ending, Event, Evidence, Notice, SeriesFrame, Source
from gradforensics.tables import Fact as Circumstance

TOOL = f"gradforensics {__version__}"
Excerpts: TypeAlias = Mapping[tuple[str, int | None], str]
_BASELINES = 3  # runs that are offered for comparison
_MANY_RUNS = 6  # from here on the charts get fewer points, so that the file stays small


@dataclass(frozen=True, slots=True)
class HitRow:
    """One hit with the sign that it belongs to; `excerpt` is the log line where the record holds it."""

    sign: str
    strength: Strength
    series: str | None
    tag: str | None
    step: int | None
    after: int | None
    value: float | None
    source: str | None
    line: int | None
    tensor: str | None
    facts: Mapping[str, Fact]
    excerpt: str = ""


@dataclass(frozen=True, slots=True)
class LookAlikeRow:
    """A case that looks the same, its title where the catalogue has it, and how to tell."""

    case: str
    title: str
    tell: str


@dataclass(frozen=True, slots=True)
class Gap:
    """Something that was missing, and how to have it next time (empty where the need speaks for itself)."""

    need: str
    advice: str


@dataclass(frozen=True)
class VerdictRow:
    """One rule's verdict with its texts in the report's language.

    what, fix and verify are empty unless the rule fired. testable: whether this version has a test for the rule.
    verified: what a replay changed to make the failure go away; replayed: the steps whose replay judged signs of it;
    by_replay_alone: whether nothing else did.
    """

    rule: str
    slug: str
    family: str
    title: str
    outcome: Outcome
    variant: str | None
    severity: Severity | None
    strength: Strength | None
    alarm: bool
    onset: int | None
    onset_after: int | None
    what: str
    why: str
    fix: tuple[str, ...]
    verify: str
    false_alarms: tuple[str, ...]
    references: tuple[str, ...]
    hits: tuple[HitRow, ...]
    refuted_by: tuple[LookAlikeRow, ...]
    not_excluded: tuple[LookAlikeRow, ...]
    missing: tuple[Gap, ...]
    judged_signs: tuple[str, ...]
    testable: bool
    verified: tuple[ResultRow, ...] = ()
    replayed: tuple[int, ...] = ()
    by_replay_alone: bool = False
    charts: tuple[Chart, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class SeriesRow:
    """What one logged series holds; of several sources the one with most points.

    first, last, min, max: over the finite points, in file order. points: all logged points, non-finite ones too.
    """

    series: str
    tag: str
    phase: str
    source: str
    step_unit: str
    points: int
    first: float | None
    last: float | None
    min: float | None
    max: float | None
    nonfinite: int
    first_step: int | None
    last_step: int | None


@dataclass(frozen=True, slots=True)
class SettingRow:
    """One setting; `overridden` when another one of the same key is in force."""

    key: str
    name: str
    value: Any
    source: str
    line: int | None
    origin: str
    overridden: bool


@dataclass(frozen=True, slots=True)
class Compared:
    """The healthy run that this one was judged beside, and the settings in which they differ.

    sibling: it is a run of the same analysis that was chosen for them, not that of --baseline.
    """

    name: str
    path: str
    differences: tuple[Difference, ...]
    sibling: bool = False


@dataclass(frozen=True, slots=True)
class PairAdvice:
    """How to have a checkpoint one optimizer step after the newest one, and which rules it would help."""

    checkpoint: str
    rules: tuple[str, ...]
    advice: str


@dataclass(frozen=True)
class RunReport:
    """Everything that a report says about one run. `verdicts` follow the catalogue, `findings` their weight.

    baselines: names of runs of the same analysis that raise no alarm and logged the same, of a run that does;
    compared: the healthy run that it was judged beside, where there is one.
    """

    name: str
    steps: tuple[int, int] | None
    attempts: int
    ending: Ending
    primary: VerdictRow | None
    chain: tuple[tuple[str, str], ...]
    last_good_checkpoint: str | None
    verdicts: tuple[VerdictRow, ...]
    findings: tuple[VerdictRow, ...]
    series: tuple[SeriesRow, ...]
    settings: tuple[SettingRow, ...]
    notices: tuple[Notice, ...]
    events: tuple[Event, ...] = ()
    environment: tuple[Circumstance, ...] = ()
    baselines: tuple[str, ...] = ()
    compared: Compared | None = None
    checkpoints: Checkpoints | None = None
    bracket: Bracket | None = None
    pair: PairAdvice | None = None
    replays: tuple[ReplayRow, ...] = ()
    data: tuple[DataRow, ...] | None = None
    timeline: tuple[Chart, ...] = field(default=(), compare=False)

    @property
    def alarms(self) -> tuple[VerdictRow, ...]:
        """The findings that are alarms."""
        return tuple(v for v in self.findings if v.alarm)

    def having(self, outcome: Outcome) -> tuple[VerdictRow, ...]:
        """The verdicts with this outcome."""
        return tuple(v for v in self.verdicts if v.outcome == outcome)

    def verdict(self, rule: str) -> VerdictRow | None:
        """The verdict of one rule."""
        return next((v for v in self.verdicts if v.rule == rule), None)

    def advice(self) -> list[tuple[str, tuple[str, ...]]]:
        """What to log next time and which rules it would help to judge, the most useful line first."""
        helped: dict[str, list[str]] = {}
        for verdict in self.having("not_judged"):
            if verdict.testable:
                for line in dict.fromkeys(g.advice for g in verdict.missing if g.advice):
                    helped.setdefault(line, []).append(verdict.rule)
        return sorted(((line, tuple(rules)) for line, rules in helped.items()), key=lambda item: -len(item[1]))


@dataclass(frozen=True)
class Report:
    """All runs of one analysis, and every file that was looked at."""

    tool: str
    language: Language
    runs: tuple[RunReport, ...]
    sources: tuple[Source, ...]


def build(diagnoses: Sequence[Diagnosis], sources: Sequence[Source], *, language: Language = "en") -> Report:
    """Turn diagnoses into the model that every format is rendered from."""
    points = TIMELINE_POINTS if len(diagnoses) < _MANY_RUNS else TIMELINE_POINTS // 4
    runs = [_run(d, language, points) for d in diagnoses]
    runs = [replace(run, baselines=_baselines(run, runs)) for run in runs]
    return Report(TOOL, language, tuple(runs), tuple(sources))


def _baselines(run: RunReport, runs: Sequence[RunReport]) -> tuple[str, ...]:
    """The runs without an alarm that a run with one can be compared with, the best first.

    They logged a loss; best are those that went beyond the onset, came to their end and share most series.
    """
    if not run.alarms:
        return ()
    mine = {(row.phase, row.series) for row in run.series}
    onset = run.primary.onset if run.primary is not None else None
    found: list[tuple[bool, bool, int, str]] = []
    for other in runs:
        theirs = {(row.phase, row.series) for row in other.series}
        reaches = onset is None or (other.steps is not None and other.steps[1] >= onset)
        judged = not other.alarms and other.having("clear")
        if other is not run and judged and ("train", "loss") in mine & theirs:
            found.append((not reaches, other.ending.kind != "completed", -len(mine & theirs), other.name))
    return tuple(name for *_, name in sorted(found)[:_BASELINES])


def _run(diagnosis: Diagnosis, language: Language, points: int) -> RunReport:
    evidence = diagnosis.evidence
    titles = {v.rule.id: v.rule.text(language).title for v in diagnosis.verdicts}
    told = replays(evidence)
    excerpts: Excerpts = {
        **{(e.source, e.line): e.text for e in evidence.events or [] if e.line is not None},
        **{(one.source or "", one.line): one.told for replay in told for one in replay.results},
    }
    weighed = _weighed(diagnosis)
    fixes = verified_fixes(diagnosis)
    onset = None if diagnosis.primary is None else diagnosis.primary.onset
    rows = {
        v.rule.id: replace(_verdict(v, evidence, onset, language, titles, excerpts), verified=fixes.get(v.rule.id, ()))
        for v in diagnosis.verdicts
    }
    primary = None if diagnosis.primary is None else rows[diagnosis.primary.rule.id]
    attempts = {a for f in evidence.frames.values() for a in f.frame["attempt"].unique().to_list()}
    return RunReport(
        name=evidence.name,
        steps=evidence.steps,
        attempts=max(1, len(attempts)),
        ending=evidence.ending,
        primary=primary,
        chain=diagnosis.chain,
        last_good_checkpoint=diagnosis.last_good_checkpoint,
        verdicts=tuple(rows.values()),
        findings=tuple(rows[v.rule.id] for v in weighed),
        series=_series(evidence),
        settings=tuple(_settings(evidence)),
        notices=tuple(evidence.notices),
        events=tuple(evidence.events or ()),
        environment=tuple(sorted(evidence.environment or (), key=_is_listed)),
        checkpoints=checkpoints(evidence, diagnosis.last_good_checkpoint),
        bracket=bracket(diagnosis),
        pair=_pair(diagnosis, language),
        replays=told,
        compared=_compared(evidence),
        data=data_rows(evidence),
        timeline=timeline(evidence, weighed, diagnosis.primary, points),
    )


def _pair(diagnosis: Diagnosis, language: Language) -> PairAdvice | None:
    """What a pair of checkpoints one update apart would help to judge, where there is none and one can be made."""
    need, evidence = "travels:one-update", diagnosis.evidence
    rules = tuple(v.rule.id for v in diagnosis.verdicts if need in v.missing)
    checkpoint = _resumable(evidence)
    if checkpoint is None or not rules:
        return None
    return PairAdvice(checkpoint.path, rules, _advice(need, evidence, None, language))


def _resumable(evidence: Evidence) -> needs.Resumable | None:
    return evidence.once("resumable", lambda: needs.resumable(evidence))


def _compared(evidence: Evidence) -> Compared | None:
    other = evidence.baseline
    return (
        None
        if other is None
        else Compared(other.name, other.path, tuple(differences(evidence, other)), evidence.baseline_is_sibling)
    )


def _weighed(diagnosis: Diagnosis) -> list[Verdict]:
    """The fired verdicts: the primary case, the other alarms by onset, then the rest by severity and strength."""

    def order(verdict: Verdict) -> tuple[bool, bool, int, int, int, str]:
        onset = verdict.onset if verdict.onset is not None else 2**62
        severity = SEVERITIES.index(verdict.severity or "S4")
        strength = -STRENGTHS.index(verdict.strength or "suspect")
        first = (0, 0) if verdict.alarm else (severity, strength)
        return (verdict is not diagnosis.primary, not verdict.alarm, *first, onset, verdict.rule.id)

    return sorted((v for v in diagnosis.verdicts if v.outcome == "fired"), key=order)


def _verdict(
    verdict: Verdict,
    evidence: Evidence,
    step: int | None,
    language: Language,
    titles: Mapping[str, str],
    excerpts: Excerpts,
) -> VerdictRow:
    rule, fired = verdict.rule, verdict.outcome == "fired"
    texts = verdict.texts(language)

    def look_alikes(those: Sequence[LookAlike]) -> tuple[LookAlikeRow, ...]:
        return tuple(LookAlikeRow(one.case, titles.get(one.case, ""), one.tell) for one in those)

    hits = tuple(
        HitRow(
            sign=holding.sign.name,
            strength=holding.sign.strength,
            series=h.series,
            tag=h.tag,
            step=h.step,
            after=h.after,
            value=h.value,
            source=h.source,
            line=h.line,
            tensor=h.tensor,
            facts=dict(h.facts),
            excerpt=excerpts.get((h.source or "", h.line), ""),
        )
        for holding in verdict.holdings
        for h in holding.hits
    )
    return VerdictRow(
        rule=rule.id,
        slug=rule.slug,
        family=rule.family,
        title=texts.title,
        outcome=verdict.outcome,
        variant=verdict.variant,
        severity=verdict.severity,
        strength=verdict.strength,
        alarm=verdict.alarm,
        onset=verdict.onset,
        onset_after=verdict.onset_after,
        what=texts.what if fired else "",
        why=texts.why,
        fix=texts.fix if fired else (),
        verify=verdict.verify() if fired else "",
        false_alarms=rule.false_alarms,
        references=rule.references,
        hits=hits,
        refuted_by=look_alikes(verdict.refuted_by),
        not_excluded=look_alikes(verdict.not_excluded),
        missing=tuple(Gap(m, _advice(m, evidence, step, language)) for m in verdict.missing),
        judged_signs=verdict.judged_signs,
        testable=bool(rule.signs),
        replayed=replayed_steps(verdict, evidence),
        by_replay_alone=by_replay_alone(verdict),
        charts=zooms(evidence, verdict) if fired else (),
    )


def _advice(need: str, evidence: Evidence, step: int | None, language: Language) -> str:
    """How to have what was missing; nothing where an experiment was run and gave no answer: the replays say why."""
    ran = {f"experiments:{one.result.experiment}" for one in experiment_rows.results(evidence)}
    if need in ran:
        return ""
    framework = evidence.once("framework", lambda: framework_of(evidence))
    checkpoint = _resumable(evidence)
    return needs.advice(need, evidence.path, step, framework=framework, language=language, checkpoint=checkpoint)


def _is_listed(fact: Circumstance) -> bool:
    """Whether a fact is one of hundreds of a list of packages, which stand behind the others."""
    return fact.key.startswith(("package:", "conda:", "pin:"))


def _series(evidence: Evidence) -> tuple[SeriesRow, ...]:
    best: dict[tuple[str, str, str], SeriesRow] = {}
    for key, stored in evidence.frames.items():
        row = _series_row(key.series, key.tag, key.phase, key.source, stored)
        known = best.get((key.phase, key.series, key.tag))
        if known is None or row.points > known.points:
            best[key.phase, key.series, key.tag] = row
    return tuple(best.values()) or _no_loss(evidence)


def _no_loss(evidence: Evidence) -> tuple[SeriesRow, ...]:
    """A loss without a point, where the log of a training was read and holds no series at all: that was looked for."""
    log = next((s.path for s in evidence.sources if s.reader == "console"), None)
    if log is None:
        return ()
    return (SeriesRow("loss", "loss", "train", log, "step", 0, None, None, None, None, 0, None, None),)


def _series_row(series: str, tag: str, phase: str, source: str, stored: SeriesFrame) -> SeriesRow:
    frame = stored.frame
    ranks = frame["rank"]
    if not ranks.null_count() and ranks.n_unique() > 1:  # the ranks' copies of one series would interleave
        frame = frame.filter(ranks == ranks.min())
    missing = frame["kind"] == "missing"
    if missing.any():
        frame = frame.filter(~missing)
    finite, steps = frame["value"].drop_nulls(), frame["step"].drop_nulls()  # a value is null unless it is finite
    extremes = cast("tuple[float | None, float | None]", (finite.min(), finite.max()))
    return SeriesRow(
        series=series,
        tag=tag,
        phase=phase,
        source=source,
        step_unit=stored.step_unit,
        points=frame.height,
        first=finite[0] if len(finite) else None,
        last=finite[-1] if len(finite) else None,
        min=extremes[0],
        max=extremes[1],
        nonfinite=frame.height - len(finite),
        first_step=steps[0] if len(steps) else None,
        last_step=steps[-1] if len(steps) else None,
    )


def _settings(evidence: Evidence) -> list[SettingRow]:
    settings = evidence.settings or []
    several = {key for key, n in Counter(s.key for s in settings).items() if n > 1}
    in_force = {key: evidence.setting(key) for key in several}
    rows = [
        SettingRow(s.key, s.name, s.value, s.source, s.line, s.origin, s.key in several and s.value != in_force[s.key])
        for s in settings
    ]
    return sorted(rows, key=lambda row: (row.key, row.overridden))
