"""Which findings the user ignores, and why: decided here, once, for the exit code and for every output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from fnmatch import fnmatchcase

from gradforensics.diagnosis.causes import Diagnosis, ordered
from gradforensics.diagnosis.judge import Verdict
from gradforensics.tables import Notice


@dataclass(frozen=True, slots=True)
class Ignore:
    """One entry of an ignore file.

    run: a glob for names of runs, "" for all; variant: "" for all; until: the last day on which it holds, None for
    ever; source, line: where it stands.
    """

    rule: str
    reason: str
    run: str = ""
    variant: str = ""
    until: date | None = None
    source: str = ""
    line: int | None = None

    def concerns(self, verdict: Verdict, run: str) -> bool:
        """Whether it names this finding of the run."""
        named = verdict.rule.id == self.rule and self.variant in ("", verdict.variant)
        return verdict.outcome == "fired" and named and (not self.run or fnmatchcase(run, self.run))


@dataclass(frozen=True, slots=True)
class Ignores:
    """All entries of the ignore file, and what is to be remarked on the file itself."""

    entries: tuple[Ignore, ...] = ()
    notices: tuple[Notice, ...] = ()


def ignoring(diagnoses: Sequence[Diagnosis], ignores: Ignores, today: date | None = None) -> list[Diagnosis]:
    """The diagnoses with their ignored findings marked: these are no alarm, no primary case and in no chain.

    The first entry that names a finding gives the reason. Every entry that names none, or no longer holds, becomes a
    notice of every run. today: by the clock where it is None. The last good checkpoint stays: that a finding is ignored
    does not make the weights good.
    """
    today = today or date.today()  # noqa: DTZ011  the user's calendar: an entry ends with the user's day
    holding = [one for one in ignores.entries if one.until is None or today <= one.until]
    used: set[int] = set()
    found: list[Diagnosis] = []
    for diagnosis in diagnoses:
        verdicts: list[Verdict] = []
        for verdict in diagnosis.verdicts:
            those = [one for one in holding if one.concerns(verdict, diagnosis.evidence.name)]
            used.update(map(id, those))
            verdicts.append(replace(verdict, ignored=those[0].reason) if those else verdict)
        primary, chain = ordered(verdicts)
        found.append(replace(diagnosis, verdicts=tuple(verdicts), primary=primary, chain=chain))
    notices = [*ignores.notices, *(_idle(one, today) for one in ignores.entries if id(one) not in used)]
    for diagnosis in found:
        diagnosis.evidence.notices += notices
    return found


def _idle(entry: Ignore, today: date) -> Notice:
    if entry.until is not None and entry.until < today:
        text = f"the entry for {entry.rule} held until {entry.until} and no longer holds: {entry.reason}"
    else:
        text = f"the entry for {entry.rule} names no finding of this analysis: {entry.reason}"
    return Notice(entry.source, entry.line, text)
