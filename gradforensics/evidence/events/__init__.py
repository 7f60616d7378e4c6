"""Remarkable lines of a log: what stopped a run, what it skipped, where it began again, what its machine reported."""

from gradforensics.evidence.events.kinds import TERMINAL, ending_kind
from gradforensics.evidence.events.lines import MARKS, classify, suspicious
from gradforensics.evidence.events.scanner import Scanner, without_prefix
from gradforensics.evidence.prefixes import rank_of

__all__ = [
    "MARKS",
    "TERMINAL",
    "Scanner",
    "classify",
    "ending_kind",
    "rank_of",
    "suspicious",
    "without_prefix",
]
