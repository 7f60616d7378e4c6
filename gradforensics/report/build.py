"""Diagnosis -> the model of a report. It selects and arranges; it judges nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias, cast

from gradforensics import experiment_rows
from gradforensics.diagnosis import needs
from gradforensics.diagnosis.causes import Diagnosis
from gradforensics.diagnosis.frameworks import code_for, framework_of
from gradforensics.diagnosis.judge import Verdict
from gradforensics.diagnosis.rules import SEVERITIES, STRENGTHS, LookAlike, Rule, Severity, Sign
from gradforensics.diagnosis.setting_differences import differences
from gradforensics.diagnosis.two_runs.contrast import contrast
from gradforensics.diagnosis.vocabulary import Hit
from gradforensics.languages import LANGUAGES, NOTHING, Language, Text, both
from gradforensics.report.bracket import bracket
from gradforensics.report.charts import zooms
from gradforensics.report.checkpoints import checkpoints
from gradforensics.report.circumstances import is_listed, setting_rows
from gradforensics.report.comparison.overlay import overlay
from gradforensics.report.data_rows import data_rows
from gradforensics.report.drain import drain
from gradforensics.report.heatmaps import checkpoint_grid, logged_grid
from gradforensics.report.marked import Span, spans, window
from gradforensics.report.model import (
    TOOL,
    Compared,
    Gap,
    HitRow,
    LookAlikeRow,
    PairAdvice,
    Report,
    RuleRow,
    RunReport,
    SeriesRow,
    VerdictRow,
)
from gradforensics.report.overview import WHOLE, by_weight, sparkline
from gradforensics.report.provenance import Provenance
from gradforensics.report.ranks import ranks
from gradforensics.report.replays import ReplayRow, by_replay_alone, replayed_steps, replays, verified_fixes
from gradforensics.report.timeline import TIMELINE_POINTS, timeline
from gradforensics.report.unnamed import unnamed_loss
from gradforensics.tables import Evidence, SeriesFrame, Source

Place: TypeAlias = tuple[str, int]
_HITS = 24  # hits of a finding whose lines are quoted
_EXCERPT = 600  # characters of a line that are quoted
_BASELINES = 3  # runs that are offered for comparison
_MANY_RUNS = 6  # from here on the charts get fewer points, so that the file stays small


def places(diagnosis: Diagnosis) -> list[Place]:
    """The lines of the evidence that the report on a run quotes: those of the hits of its findings."""
    hits = (h for v in _weighed(diagnosis) for h in [h for one in v.holdings for h in one.hits][:_HITS])
    return list(dict.fromkeys((h.source, h.line) for h in hits if h.source and h.line))


def build(
    diagnoses: Sequence[Diagnosis],
    sources: Sequence[Source],
    *,
    language: Language = "en",
    fail_on: Severity = "S2",
    made: Provenance | None = None,
    lines: Sequence[Mapping[Place, str]] = (),
) -> Report:
    """Turn diagnoses into the model that every format is rendered from.

    language: the one that a reader sees first; lines: for each diagnosis the text of those
    `places` of its evidence that could be read.
    """
    points = TIMELINE_POINTS if len(diagnoses) < _MANY_RUNS else TIMELINE_POINTS // 4
    whole = {id(d) for d in by_weight(diagnoses)[:WHOLE]}
    quoted = zip(diagnoses, lines or [{}] * len(diagnoses), strict=True)
    runs = [_run(d, points, quotes, whole=id(d) in whole) for d, quotes in quoted]
    runs = [replace(run, baselines=_baselines(run, runs)) for run in runs]
    rules = {v.rule.id: v.rule for d in diagnoses for v in d.verdicts}
    return Report(TOOL, language, tuple(runs), tuple(sources), tuple(_rule(r) for r in rules.values()), fail_on, made)


def _rule(rule: Rule) -> RuleRow:
    texts = {language: rule.text(language) for language in LANGUAGES}
    return RuleRow(
        rule=rule.id,
        slug=rule.slug,
        family=rule.family,
        severity=rule.severity,
        title=both(lambda language: texts[language].title),
        why=both(lambda language: texts[language].why),
        fix=tuple(map(Text, texts["en"].fix, texts["zh"].fix)),
        false_alarms=rule.false_alarms,
        references=rule.references,
    )


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
        judged = not other.alarms and not other.ignored and other.having("clear")
        if other is not run and judged and ("train", "loss") in mine & theirs:
            found.append((not reaches, other.ending.kind != "completed", -len(mine & theirs), other.name))
    return tuple(name for *_, name in sorted(found)[:_BASELINES])


def _run(diagnosis: Diagnosis, points: int, lines: Mapping[Place, str], *, whole: bool) -> RunReport:
    """The report on one run; without its charts where a page of many runs does not show the whole of it."""
    evidence = diagnosis.evidence
    titles = {v.rule.id: _title(v) for v in diagnosis.verdicts}
    told = replays(evidence)
    quotes = _Quotes(evidence, told, lines)
    weighed = _weighed(diagnosis)
    fixes = verified_fixes(diagnosis)
    onset = None if diagnosis.primary is None else diagnosis.primary.onset
    rows = {
        v.rule.id: replace(
            _verdict(v, evidence, onset, titles, quotes),
            verified=fixes.get(v.rule.id, ()),
            charts=zooms(evidence, v) if whole and v.outcome == "fired" else (),
        )
        for v in diagnosis.verdicts
    }
    primary = None if diagnosis.primary is None else rows[diagnosis.primary.rule.id]
    series = _series(evidence)
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
        series=series,
        unnamed=unnamed_loss(series),
        settings=setting_rows(evidence, weighed),
        notices=tuple(evidence.notices),
        events=tuple(evidence.events or ()),
        environment=tuple(sorted(evidence.environment or (), key=is_listed)),
        checkpoints=checkpoints(evidence, diagnosis.last_good_checkpoint),
        bracket=bracket(diagnosis),
        heatmaps=checkpoint_grid(diagnosis),
        gradient_norms=logged_grid(evidence),
        ranks=ranks(diagnosis),
        drain=drain(diagnosis),
        pair=_pair(diagnosis),
        replays=told,
        compared=_compared(evidence),
        data=data_rows(evidence),
        timeline=timeline(evidence, weighed, diagnosis.primary, points, diagnosis.last_good_checkpoint)
        if whole
        else (),
        loss=sparkline(evidence),
        path=evidence.path,
        whole=whole,
    )


def _pair(diagnosis: Diagnosis) -> PairAdvice | None:
    """What a pair of checkpoints one update apart would help to judge, where there is none and one can be made."""
    need, evidence = "travels:one-update", diagnosis.evidence
    rules = tuple(v.rule.id for v in diagnosis.verdicts if need in v.missing)
    checkpoint = _resumable(evidence)
    if checkpoint is None or not rules:
        return None
    return PairAdvice(checkpoint.path, rules, _advice(need, evidence, None))


def _resumable(evidence: Evidence) -> needs.Resumable | None:
    return evidence.once("resumable", lambda: needs.resumable(evidence))


def _compared(evidence: Evidence) -> Compared | None:
    other = evidence.baseline
    if other is None:
        return None
    found = contrast(evidence, other)
    return Compared(
        other.name,
        other.path,
        tuple(differences(evidence, other)),
        evidence.baseline_is_sibling,
        found,
        overlay(evidence, other, found),
    )


def _weighed(diagnosis: Diagnosis) -> list[Verdict]:
    """The fired verdicts: the primary case, other alarms by onset, the rest by weight, then the ignored."""

    def order(verdict: Verdict) -> tuple[bool, bool, bool, int, int, int, str]:
        onset = verdict.onset if verdict.onset is not None else 2**62
        severity = SEVERITIES.index(verdict.severity or "S4")
        strength = -STRENGTHS.index(verdict.strength or "suspect")
        first = (0, 0) if verdict.alarm else (severity, strength)
        return (
            verdict is not diagnosis.primary,
            bool(verdict.ignored),
            not verdict.alarm,
            *first,
            onset,
            verdict.rule.id,
        )

    return sorted((v for v in diagnosis.verdicts if v.outcome == "fired"), key=order)


def _verdict(
    verdict: Verdict,
    evidence: Evidence,
    step: int | None,
    titles: Mapping[str, Text],
    quotes: _Quotes,
) -> VerdictRow:
    rule, fired = verdict.rule, verdict.outcome == "fired"
    texts = {language: verdict.texts(language) for language in LANGUAGES}

    def look_alikes(those: Sequence[LookAlike]) -> tuple[LookAlikeRow, ...]:
        return tuple(LookAlikeRow(one.case, titles.get(one.case, NOTHING), one.tell) for one in those)

    looked_at, by_eye = _other_look_alikes(verdict)
    hits = tuple(quotes.row(holding.sign, hit) for holding in verdict.holdings for hit in holding.hits)
    return VerdictRow(
        rule=rule.id,
        slug=rule.slug,
        family=rule.family,
        title=_title(verdict),
        outcome=verdict.outcome,
        variant=verdict.variant,
        severity=verdict.severity,
        strength=verdict.strength,
        alarm=verdict.alarm,
        onset=verdict.onset,
        onset_after=verdict.onset_after,
        what=both(lambda language: texts[language].what) if fired else NOTHING,
        why=both(lambda language: texts[language].why),
        fix=tuple(map(Text, texts["en"].fix, texts["zh"].fix)) if fired else (),
        verify=both(verdict.verify) if fired else NOTHING,
        false_alarms=rule.false_alarms,
        references=rule.references,
        hits=hits,
        refuted_by=look_alikes(verdict.refuted_by),
        not_excluded=look_alikes(verdict.not_excluded),
        missing=tuple(Gap(m, _advice(m, evidence, step)) for m in verdict.missing),
        judged_signs=verdict.judged_signs,
        testable=bool(rule.signs),
        code=code_for(_framework(evidence), rule.code(verdict.variant)) if fired else (),
        excluded=look_alikes(looked_at),
        by_eye=look_alikes(by_eye),
        replayed=replayed_steps(verdict, evidence),
        by_replay_alone=by_replay_alone(verdict),
        ignored=verdict.ignored,
    )


def _other_look_alikes(verdict: Verdict) -> tuple[list[LookAlike], list[LookAlike]]:
    """Of a fired verdict, the look-alikes that a test excluded, and those that no test knows of."""
    holding = {one.sign.name for one in verdict.holdings}
    told = (*verdict.refuted_by, *verdict.not_excluded)
    concerned = [
        one
        for one in verdict.rule.look_alikes
        if one not in told and (not one.signs or holding.intersection(one.signs))
    ]
    if not holding:
        return [], []
    return [one for one in concerned if one.unless is not None], [one for one in concerned if one.unless is None]


class _Quotes:
    """The lines of the evidence that hits name: of events and replays as they were read, others as `lines` has them."""

    def __init__(self, evidence: Evidence, told: Sequence[ReplayRow], lines: Mapping[Place, str]) -> None:
        self._events = {(e.source, e.line): e for e in evidence.events or [] if e.line is not None}
        self._replays = {(one.source, one.line): one.told for replay in told for one in replay.results}
        self._lines = lines

    def row(self, sign: Sign, hit: Hit) -> HitRow:
        """A hit with what its line says."""
        place = (hit.source or "", hit.line or 0)
        event = self._events.get(place)
        text = self._replays.get(place) or (event.text if event else self._lines.get(place, ""))
        text = window(text, _spans(text, hit), _EXCERPT)
        return HitRow(
            sign=sign.name,
            strength=sign.strength,
            series=hit.series,
            tag=hit.tag,
            step=hit.step,
            after=hit.after,
            value=hit.value,
            source=hit.source,
            line=hit.line,
            tensor=hit.tensor,
            facts=dict(hit.facts),
            excerpt=text,
            marked=tuple(_spans(text, hit)),
            rank=event.rank if event else None,
            host=event.host if event else None,
        )


def _spans(text: str, hit: Hit) -> list[Span]:
    """What to mark in the line of a hit: its value; facts where it has none or, without a step, names a share."""
    names = tuple(filter(None, (hit.tag, hit.series)))
    found = spans(text, hit.value, names, hit.facts)
    return found if found or hit.step is not None else spans(text, None, facts=hit.facts)


def _framework(evidence: Evidence) -> str:
    named: str = evidence.once("framework", lambda: framework_of(evidence))
    return named


def _title(verdict: Verdict) -> Text:
    return both(lambda language: verdict.texts(language).title)


def _advice(need: str, evidence: Evidence, step: int | None) -> Text:
    """How to have what was missing; nothing where an experiment was run and gave no answer: the replays say why."""
    ran = {f"experiments:{one.result.experiment}" for one in experiment_rows.results(evidence)}
    if need in ran:
        return NOTHING
    framework = _framework(evidence)
    checkpoint = _resumable(evidence)
    return both(
        lambda language: needs.advice(
            need, evidence.path, step, framework=framework, language=language, checkpoint=checkpoint
        )
    )


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
