"""The one internal model of a report: every format is rendered from it. build.py makes it; nothing here judges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import Any

from gradforensics import __version__
from gradforensics.diagnosis.frameworks import Code
from gradforensics.diagnosis.judge import Outcome
from gradforensics.diagnosis.rules import Severity, Strength
from gradforensics.diagnosis.setting_differences import Difference
from gradforensics.diagnosis.two_runs.contrast import Contrast
from gradforensics.diagnosis.vocabulary import Fact
from gradforensics.languages import NOTHING, Language, Text
from gradforensics.report.bracket import Bracket
from gradforensics.report.charts import Chart, Line
from gradforensics.report.checkpoints import Checkpoints
from gradforensics.report.data_rows import DataRow
from gradforensics.report.drain import Drain
from gradforensics.report.heatmaps import Grid
from gradforensics.report.messages import message
from gradforensics.report.need_words import BASELINE, need_in_words
from gradforensics.report.provenance import Provenance
from gradforensics.report.ranks import Ranks
from gradforensics.report.replays import ReplayRow, ResultRow
from gradforensics.tables import Ending, Event, Notice, Source
from gradforensics.tables import Fact as Circumstance

TOOL = f"gradforensics {__version__}"


@dataclass(frozen=True, slots=True)
class HitRow:
    """One hit with the sign that it belongs to.

    excerpt: the log line where the record holds it or it could be read again, or its part around what is marked;
    marked: the parts (start, end) of the excerpt that hold the value or the facts; rank, host: who wrote the line.
    """

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
    marked: tuple[tuple[int, int], ...] = ()
    rank: int | None = None
    host: str | None = None


@dataclass(frozen=True, slots=True)
class SignRow:
    """A sign that holds, with its hits."""

    name: str
    strength: Strength
    hits: tuple[HitRow, ...]


@dataclass(frozen=True, slots=True)
class LookAlikeRow:
    """A case that looks the same, its title where the catalogue has it, and how to tell."""

    case: str
    title: Text
    tell: Text


@dataclass(frozen=True, slots=True)
class Gap:
    """Something that was missing, and how to have it next time (empty where the need speaks for itself)."""

    need: str
    advice: Text

    @property
    def told(self) -> Text:
        """The need in words."""
        return need_in_words(self.need)

    def key(self, language: Language) -> str:
        """The need as programs read it: a key with its remark, or a remark alone, which is in a language."""
        bare = self.need.removeprefix(BASELINE)
        return self.need.removesuffix(bare) + message(bare).in_(language)


@dataclass(frozen=True)
class VerdictRow:
    """One rule's verdict with its texts.

    what, fix, code and verify are empty unless the rule fired. testable: whether this version has a test
    for the rule.
    refuted_by: look-alikes whose tell holds; excluded: those whose tell was tested and does not hold; not_excluded:
    those whose tell could not be tested; by_eye: those whose tell is for the reader, no test of this version knows it.
    verified: what a replay changed to make the failure go away; replayed: the steps whose replay judged signs of it;
    by_replay_alone: whether nothing else did. ignored: the reason in the user's ignore file, empty where it counts.
    """

    rule: str
    slug: str
    family: str
    title: Text
    outcome: Outcome
    variant: str | None
    severity: Severity | None
    strength: Strength | None
    alarm: bool
    onset: int | None
    onset_after: int | None
    what: Text
    why: Text
    fix: tuple[Text, ...]
    verify: Text
    false_alarms: tuple[Text, ...]
    references: tuple[str, ...]
    hits: tuple[HitRow, ...]
    refuted_by: tuple[LookAlikeRow, ...]
    not_excluded: tuple[LookAlikeRow, ...]
    missing: tuple[Gap, ...]
    judged_signs: tuple[str, ...]
    testable: bool
    code: tuple[Code, ...] = ()
    excluded: tuple[LookAlikeRow, ...] = ()
    by_eye: tuple[LookAlikeRow, ...] = ()
    verified: tuple[ResultRow, ...] = ()
    replayed: tuple[int, ...] = ()
    by_replay_alone: bool = False
    ignored: str = ""
    charts: tuple[Chart, ...] = field(default=(), compare=False)

    @property
    def signs(self) -> tuple[SignRow, ...]:
        """The signs that hold, the weightiest first, each with its hits."""
        return tuple(
            SignRow(name, hits[0].strength, hits)
            for name, hits in ((key, tuple(group)) for key, group in groupby(self.hits, key=attrgetter("sign")))
        )

    @property
    def quiet(self) -> tuple[str, ...]:
        """The signs that looked and found nothing."""
        holding = {hit.sign for hit in self.hits}
        return tuple(name for name in self.judged_signs if name not in holding)


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
    """One setting; `overridden` when another one of the same key is in force.

    rules: the rules that fired on it; there: what the compared run states, None where that is the same or nothing.
    """

    key: str
    name: str
    value: Any
    source: str
    line: int | None
    origin: str
    overridden: bool
    rules: tuple[str, ...] = ()
    there: Any = None

    @property
    def conspicuous(self) -> bool:
        """Whether a reader should look at it first."""
        return bool(self.rules) or (self.overridden and self.value is not None) or self.there is not None


@dataclass(frozen=True, slots=True)
class Compared:
    """The healthy run that this one was judged beside, and the settings in which they differ.

    sibling: it is a run of the same analysis that was chosen for them, not that of --baseline. contrast: how the two
    compare, step by step; this run is A in the charts.
    """

    name: str
    path: str
    differences: tuple[Difference, ...]
    sibling: bool = False
    contrast: Contrast | None = None
    charts: tuple[Chart, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class PairAdvice:
    """How to have a checkpoint one optimizer step after the newest one, and which rules it would help."""

    checkpoint: str
    rules: tuple[str, ...]
    advice: Text


@dataclass(frozen=True)
class RunReport:
    """Everything that a report says about one run. `verdicts` follow the catalogue, `findings` their weight.

    baselines: names of runs of the same analysis that raise no alarm and logged the same, of a run that does;
    compared: the healthy run that it was judged beside, where there is one. path: how the user can name its folder on a
    command line, "" where that is not known. heatmaps: layers x checkpoints; gradient_norms: layers x steps, where they
    were logged. ranks: where a finding speaks of ranks; drain: nodes to take out of the job, the gravest reason first.
    whole: whether a page of many runs tells everything about it; of the others it has no charts. unnamed: how to say
    which series is the training loss, where none was recognised.
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
    heatmaps: Grid | None = None
    gradient_norms: Grid | None = None
    ranks: Ranks | None = None
    drain: tuple[Drain, ...] = ()
    pair: PairAdvice | None = None
    replays: tuple[ReplayRow, ...] = ()
    data: tuple[DataRow, ...] | None = None
    timeline: tuple[Chart, ...] = field(default=(), compare=False)
    loss: Line | None = field(default=None, compare=False)
    path: str = ""
    whole: bool = True
    unnamed: Text = NOTHING

    @property
    def alarms(self) -> tuple[VerdictRow, ...]:
        """The findings that are alarms."""
        return tuple(v for v in self.findings if v.alarm)

    @property
    def ignored(self) -> tuple[VerdictRow, ...]:
        """The findings that the user's ignore file silences."""
        return tuple(v for v in self.findings if v.ignored)

    @property
    def weaker(self) -> tuple[VerdictRow, ...]:
        """The findings below alarm level that are not ignored."""
        return tuple(v for v in self.findings if not v.alarm and not v.ignored)

    @property
    def suspicions(self) -> tuple[VerdictRow, ...]:
        """The findings that would be alarms if they were more than suspected."""
        return tuple(v for v in self.findings if not v.alarm and not v.ignored and v.severity in ("S1", "S2"))

    @property
    def broke_off(self) -> bool:
        """Whether the run did not come to its end, as far as the record says."""
        return self.ending.kind not in ("completed", "unknown")

    @property
    def calm(self) -> bool:
        """Whether something was judged and nothing at all is to be told: no alarm, no suspicion, an end as planned."""
        return bool(self.having("clear")) and not self.alarms and not self.suspicions and not self.broke_off

    def resembling(self, rule: str) -> tuple[tuple[VerdictRow, LookAlikeRow], ...]:
        """The cases whose signs hold, too, and which one of these look-alikes refutes: that is `rule`."""
        return tuple((v, one) for v in self.having("clear") for one in v.refuted_by if one.case == rule)

    def having(self, outcome: Outcome) -> tuple[VerdictRow, ...]:
        """The verdicts with this outcome."""
        return tuple(v for v in self.verdicts if v.outcome == outcome)

    def verdict(self, rule: str) -> VerdictRow | None:
        """The verdict of one rule."""
        return next((v for v in self.verdicts if v.rule == rule), None)

    def advice(self) -> list[tuple[Text, tuple[str, ...]]]:
        """What to log next time and which rules it would help to judge, the most useful line first.

        Before all of them: what can be said at once, where the loss was logged under a name of its own.
        """
        helped: dict[Text, list[str]] = {}
        blind = [verdict for verdict in self.having("not_judged") if verdict.testable]
        of_loss = tuple(v.rule for v in blind if any(map(_of_loss, v.missing)))
        first = [(self.unnamed, of_loss)] if self.unnamed.en and of_loss else []
        for verdict in blind:
            lacked = [gap for gap in verdict.missing if gap.advice.en and not (first and _of_loss(gap))]
            for line in dict.fromkeys(gap.advice for gap in lacked):
                helped.setdefault(line, []).append(verdict.rule)
        return first + sorted(((line, tuple(rules)) for line, rules in helped.items()), key=lambda one: -len(one[1]))


def _of_loss(gap: Gap) -> bool:
    return gap.need == "series:loss" or gap.need.startswith("series:loss:")


@dataclass(frozen=True, slots=True)
class RuleRow:
    """What the catalogue says about one case, whatever a run shows. fix: with the placeholders of its facts."""

    rule: str
    slug: str
    family: str
    severity: Severity
    title: Text
    why: Text
    fix: tuple[Text, ...]
    false_alarms: tuple[Text, ...]
    references: tuple[str, ...]


@dataclass(frozen=True)
class Report:
    """All runs of one analysis, every file that was looked at, and the rules that judged.

    fail_on: from this severity on a proven or probable finding fails the analysis. made: when and how, where that is
    known.
    """

    tool: str
    language: Language
    runs: tuple[RunReport, ...]
    sources: tuple[Source, ...]
    rules: tuple[RuleRow, ...] = ()
    fail_on: Severity = "S2"
    made: Provenance | None = None

    def fails(self, verdict: VerdictRow) -> bool:
        """Whether a verdict fails the analysis: proven or probable, at least as grave as `fail_on`, not ignored."""
        fired = verdict.outcome == "fired" and verdict.strength != "suspect" and not verdict.ignored
        return fired and verdict.severity is not None and verdict.severity <= self.fail_on

    @property
    def exit_code(self) -> int:
        """1 where a verdict fails the analysis, else 0."""
        return int(any(self.fails(verdict) for run in self.runs for verdict in run.verdicts))
