"""From a run directory to Evidence: discovery, readers, runs and attempts, settings, events, and how a run ended."""

from __future__ import annotations

from gradforensics.evidence.gather import gather

__all__ = ["gather"]
