"""The sections of a run in their order: what the page includes and its navigation lists."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gradforensics.report.model import RunReport


def _always(_run: RunReport) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Section:
    """A section of a run: its anchor and template are called `name`, `label` is its heading."""

    name: str
    label: str
    has: Callable[[RunReport], bool] = _always

    @property
    def template(self) -> str:
        """The file of its template."""
        return f"{self.name}.html"


SECTIONS = (
    Section("timeline", "timeline", lambda run: bool(run.timeline) or any(row.points for row in run.series)),
    Section("chain", "chain", lambda run: len(run.alarms) > 1),
    Section("findings", "findings", lambda run: bool(run.findings)),
    Section("ranks", "ranks_named", lambda run: run.ranks is not None or bool(run.drain)),
    Section("bracket", "bracket", lambda run: run.bracket is not None),
    Section("comparison", "comparison", lambda run: run.compared is not None and run.compared.contrast is not None),
    Section("catalogue", "catalogue"),
    Section("checkpoints", "checkpoints", lambda run: run.checkpoints is not None),
    Section("heatmaps", "heatmaps", lambda run: run.heatmaps is not None or run.gradient_norms is not None),
    Section("replays", "replay", lambda run: bool(run.replays)),
    Section("data", "data", lambda run: bool(run.data)),
    Section("circumstances", "read"),
)


def sections(run: RunReport) -> list[Section]:
    """The sections that a run has."""
    return [section for section in SECTIONS if section.has(run)]
