"""The model of a comparison of two runs: every format of `gradforensics compare` is rendered from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gradforensics.diagnosis.two_runs.contrast import Contrast, contrast
from gradforensics.languages import Language
from gradforensics.report.charts import Chart
from gradforensics.report.comparison.overlay import overlay
from gradforensics.report.model import TOOL
from gradforensics.report.provenance import Provenance
from gradforensics.tables import Ending, Evidence, Notice, Source


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two runs. path: how the user named its folder."""

    name: str
    path: str
    steps: tuple[int, int] | None
    attempts: int
    ending: Ending
    notices: tuple[Notice, ...]
    sources: tuple[Source, ...]


@dataclass(frozen=True)
class Comparison:
    """Two runs, A (`here`) and B (`there`), and how they compare."""

    tool: str
    language: Language
    here: Side
    there: Side
    contrast: Contrast
    made: Provenance | None = None
    charts: tuple[Chart, ...] = field(default=(), compare=False)


def build(here: Evidence, there: Evidence, *, language: Language = "en", made: Provenance | None = None) -> Comparison:
    """Compare two runs and arrange what is shown; language: the one that a reader sees first; made: when and how."""
    found = contrast(here, there)
    return Comparison(TOOL, language, _side(here), _side(there), found, made, overlay(here, there, found))


def _side(evidence: Evidence) -> Side:
    attempts = {a for stored in evidence.frames.values() for a in stored.frame["attempt"].unique().to_list()}
    return Side(
        evidence.name,
        evidence.path,
        evidence.steps,
        max(1, len(attempts)),
        evidence.ending,
        tuple(evidence.notices),
        tuple(evidence.sources),
    )


def paths(sides: Sequence[Side]) -> list[str]:
    """How the two runs are called in one place: by their names or, where these are equal, by their paths."""
    names = [side.name for side in sides]
    return names if len(set(names)) == len(names) else [side.path or side.name for side in sides]
