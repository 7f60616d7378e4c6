"""Settings with what makes some of them conspicuous; facts, and remarks of one kind, put together. No judging."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gradforensics.diagnosis.judge import Verdict
from gradforensics.diagnosis.setting_differences import differences
from gradforensics.patterns import lazy
from gradforensics.report.model import SettingRow
from gradforensics.tables import Evidence, Fact, Notice, Setting

_VARYING = lazy(r"\d+|'[^']*'|\"[^\"]*\"|“[^”]*”")
_LISTS = ("package:", "conda:", "pin:")


def is_listed(fact: Fact) -> bool:
    """Whether a fact is one of hundreds of a list of packages, which stand behind the others."""
    return fact.key.startswith(_LISTS)


@dataclass
class _Resting:
    """What the findings rest on: settings by key, by name and by place, each with the rules."""

    keys: dict[str, list[str]] = field(default_factory=dict)
    places: dict[tuple[str, int], list[str]] = field(default_factory=dict)

    def rules(self, setting: Setting) -> tuple[str, ...]:
        """The rules that fired on a setting."""
        found = [*self.keys.get(setting.key, ()), *self.keys.get(setting.name, ())]
        found += self.places.get((setting.source, setting.line), ()) if setting.line is not None else ()
        return tuple(dict.fromkeys(found))


def _resting(findings: Sequence[Verdict]) -> _Resting:
    """The signs that hold name settings in their needs, their hits name one as a fact or by its place."""
    rests = _Resting()
    for verdict in findings:
        for holding in verdict.holdings:
            needed = [need.name for need in holding.sign.test.needs if need.kind == "settings" and not need.baseline]
            named = [n for hit in holding.hits if isinstance(n := hit.facts.get("name"), str)]
            for key in dict.fromkeys([*needed, *named]):
                rests.keys.setdefault(key, []).append(verdict.rule.id)
            for hit in holding.hits:
                if hit.source is not None and hit.line is not None and hit.series is None:
                    rests.places.setdefault((hit.source, hit.line), []).append(verdict.rule.id)
    return rests


def setting_rows(evidence: Evidence, findings: Sequence[Verdict]) -> tuple[SettingRow, ...]:
    """The settings by key, of each the one in force first; findings: the verdicts that fired, the gravest first."""
    settings = evidence.settings or []
    several = {key for key, n in Counter(s.key for s in settings).items() if n > 1}
    in_force: Mapping[str, object] = {key: evidence.setting(key) for key in several}
    rests = _resting(findings)
    other = evidence.baseline
    there = {} if other is None else {one.key: one.there for one in differences(evidence, other)}
    rows = [
        SettingRow(
            s.key,
            s.name,
            s.value,
            s.source,
            s.line,
            s.origin,
            overridden=s.key in several and s.value != in_force[s.key],
            rules=rests.rules(s),
            there=there.get(s.key),
        )
        for s in settings
    ]
    return tuple(sorted(rows, key=lambda row: (row.key, row.overridden)))


@dataclass(frozen=True, slots=True)
class Alike:
    """Remarks of one kind: they differ in their numbers and in what they quote."""

    text: str
    places: tuple[tuple[str, int | None], ...]


def kinds(notices: Sequence[Notice]) -> list[Alike]:
    """The notices by kind, in the order in which each kind was first met; the text is that of the first one."""
    found: dict[str, list[Notice]] = {}
    for notice in notices:
        found.setdefault(_VARYING.sub("#", notice.text), []).append(notice)
    return [Alike(those[0].text, tuple((n.source, n.line) for n in those)) for those in found.values()]


@dataclass(frozen=True, slots=True)
class Stated:
    """A fact of the environment, and who of the ranks and hosts states it."""

    key: str
    value: str
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    source: str
    line: int | None


def stated(facts: Sequence[Fact]) -> list[Stated]:
    """The facts, those of one key and value once, the values of one key beside each other."""
    found: dict[tuple[str, str], list[Fact]] = {}
    order = {key: i for i, key in enumerate(dict.fromkeys(fact.key for fact in facts))}
    for fact in sorted(facts, key=lambda one: order[one.key]):
        found.setdefault((fact.key, fact.value), []).append(fact)
    return [
        Stated(
            key,
            value,
            tuple(sorted({f.rank for f in those if f.rank is not None})),
            tuple(sorted({f.host for f in those if f.host})),
            those[0].source,
            those[0].line,
        )
        for (key, value), those in found.items()
    ]
