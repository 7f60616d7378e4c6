"""Forensics of training runs: from a run directory to the cause, with proof."""

__version__ = "0.1.0"

# The commands of this version. Rule files are written for all that the tool will have: a `verify` that needs another
# command is not offered to a user who could not run it.
COMMANDS = ("analyze", "scan", "diff", "rules")
