"""Checks on the files of checkpoints: what was damaged on disk, and what was never written to its end."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from gradforensics.diagnosis.vocabulary import Answer, Check, Hit, Missing, check
from gradforensics.tables import Evidence

_UNWRITTEN = ("cut", "empty", "missing")  # what a save that broke off leaves


@check(needs=["checkpoints"], facts=["checkpoint", "file", "damage", "checkpoints"])
def checkpoint_damaged(evidence: Evidence, *, kinds: str) -> Answer:
    """A checkpoint that was saved to its end has a damaged file, once for each.

    kinds: words of `untrusted.files.Damage`. What looks like a save that broke off is none: see checkpoint_unfinished.
    """
    return _hits(evidence, kinds.split(), unfinished=False)


@check(needs=["checkpoints"], facts=["checkpoint", "file", "damage", "checkpoints"])
def checkpoint_unfinished(evidence: Evidence) -> Answer:
    """A checkpoint whose saving broke off: its folder is called so, or it is the last one and the log ends there."""
    return _hits(evidence, [*_UNWRITTEN, "unfinished"], unfinished=True)


def _hits(evidence: Evidence, kinds: list[str], *, unfinished: bool) -> Answer:
    table = evidence.table("checkpoints")
    if table is None or not table.height:
        return Missing("checkpoints")
    rows = table.to_dicts()
    bad = [row for row in rows if row["damage"] in kinds and _broke_off(evidence, row, rows) == unfinished]
    if not bad and "changed" in kinds and _unread(evidence):
        return Missing("tensors")
    whole = [row["step"] for row in rows if row["damage"] is None and row["step"] is not None]
    return [_hit(row, whole, len(bad)) for row in sorted(bad, key=lambda r: (r["step"] is None, r["step"] or 0))]


def _unread(evidence: Evidence) -> bool:
    """Whether tensors were listed and not read, so that no checksum was compared."""
    table = evidence.table("tensors")
    return table is not None and table.height > 0 and table["nan"].null_count() == table.height


def _hit(row: Mapping[str, Any], whole: list[int], count: int) -> Hit:
    before = None if row["step"] is None else max((step for step in whole if step < row["step"]), default=None)
    facts = {"checkpoint": row["path"], "file": row["damaged"], "damage": row["damage_text"], "checkpoints": count}
    return Hit(row["step"], before, "checkpoints", source=row["damaged"], facts=facts)


def _broke_off(evidence: Evidence, row: Mapping[str, Any], rows: list[dict[str, Any]]) -> bool:
    """Whether the saving of a checkpoint did not come to its end, as far as names and the log tell."""
    if PurePosixPath(row["path"]).name.startswith("tmp-"):
        return True
    log = evidence.series("loss")
    if row["damage"] not in _UNWRITTEN or row["step"] is None or log is None or log.step_unit != "step" or not len(log):
        return False
    newest = all(other["step"] is None or other["step"] <= row["step"] for other in rows)
    after = float(log.steps[-1]) - row["step"]
    return newest and evidence.ending.kind != "completed" and after <= max(1.0, log.cadence)


CHECKS: tuple[Check, ...] = (checkpoint_damaged, checkpoint_unfinished)
