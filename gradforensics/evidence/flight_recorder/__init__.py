"""Dumps of PyTorch's Flight Recorder: reading them, and which rank misses which collective."""

from gradforensics.evidence.flight_recorder.analysis import analyse, notices
from gradforensics.evidence.flight_recorder.dumps import Dump, Entry, Group, Status, looks_like_one, read_dump

__all__ = ["Dump", "Entry", "Group", "Status", "analyse", "looks_like_one", "notices", "read_dump"]
