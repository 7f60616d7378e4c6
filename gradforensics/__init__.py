"""Forensics of training runs: from a run directory to the cause, with proof."""

__version__ = "0.1.0"
