"""The label table of the reports in both languages: one module for each section, joined here."""

from __future__ import annotations

from collections.abc import Mapping

from gradforensics.report.labels import checkpoints, commands, data, page, replay

SECTIONS: tuple[Mapping[str, tuple[str, str]], ...] = (
    page.LABELS,
    checkpoints.LABELS,
    replay.LABELS,
    data.LABELS,
    commands.LABELS,
)
"""A key belongs to one section only."""
LABELS: Mapping[str, tuple[str, str]] = {key: label for section in SECTIONS for key, label in section.items()}
"""key -> (English, Chinese)."""
