"""The label table of the reports in both languages: one module for each section, joined here."""

from __future__ import annotations

from collections.abc import Mapping

from gradforensics.report.labels import (
    charts,
    checkpoints,
    commands,
    comparison,
    data,
    heatmaps,
    needs,
    outputs,
    page,
    ranks,
    replay,
    rules,
    screen,
    sections,
)

SECTIONS: tuple[Mapping[str, tuple[str, str]], ...] = (
    page.LABELS,
    charts.LABELS,
    checkpoints.LABELS,
    commands.LABELS,
    comparison.LABELS,
    data.LABELS,
    heatmaps.LABELS,
    needs.LABELS,
    outputs.LABELS,
    ranks.LABELS,
    replay.LABELS,
    rules.LABELS,
    screen.LABELS,
    sections.LABELS,
)
"""A key belongs to one section only."""
LABELS: Mapping[str, tuple[str, str]] = {key: label for section in SECTIONS for key, label in section.items()}
"""key -> (English, Chinese)."""
