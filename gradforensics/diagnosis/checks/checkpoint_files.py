"""Checks on the files of checkpoints: what was damaged on disk, and what was never written to its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Any

import polars as pl

from gradforensics.diagnosis import evidence_words
from gradforensics.diagnosis.vocabulary import Answer, Check, Fact, Hit, Missing, check
from gradforensics.tables import Evidence

_UNWRITTEN = ("cut", "empty", "missing")  # what a save that broke off leaves
_NAME_OTHERS = (
    ".index.json",
    ".metadata",
    "optim_states.pt",
)  # ends of names of files that speak of others beside them
_STATES = ["exp_avg", "exp_avg_sq", "momentum", "state"]


@check(needs=["checkpoints"], facts=["checkpoint", "file", "damage", "checkpoints"])
def checkpoint_damaged(evidence: Evidence, *, kinds: str) -> Answer:
    """A checkpoint that was saved to its end has a damaged file, once for each.

    kinds: words of `untrusted.files.Damage`. What looks like a save that broke off is none: see checkpoint_unfinished;
    nor is a file that was perhaps never copied: see checkpoint_partly_there.
    """
    return _hits(
        evidence,
        kinds.split(),
        lambda row, rows: not _broke_off(evidence, row, rows) and not _apart(evidence, row, rows),
    )


@check(needs=["checkpoints"], facts=["checkpoint", "file", "damage", "checkpoints"])
def checkpoint_partly_there(evidence: Evidence) -> Answer:
    """A checkpoint that names files which are not there, and nothing in the run tells that they were ever beside it."""
    return _hits(
        evidence, ["missing"], lambda row, rows: not _broke_off(evidence, row, rows) and _apart(evidence, row, rows)
    )


@check(needs=["checkpoints"], facts=["checkpoint", "file", "damage", "checkpoints"])
def checkpoint_unfinished(evidence: Evidence) -> Answer:
    """A checkpoint whose saving broke off: its folder is called so, or it is the last one and the log ends there."""
    return _hits(evidence, [*_UNWRITTEN, "unfinished"], lambda row, rows: _broke_off(evidence, row, rows))


def _hits(
    evidence: Evidence, kinds: list[str], wanted: Callable[[Mapping[str, Any], list[dict[str, Any]]], bool]
) -> Answer:
    table = evidence.table("checkpoints")
    if table is None or not table.height:
        return Missing("checkpoints")
    rows = table.to_dicts()
    bad = [row for row in rows if row["damage"] in kinds and wanted(row, rows)]
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
    damage = evidence_words.damage(row["damage"], row["damage_text"])
    facts: dict[str, Fact] = {
        "checkpoint": row["path"], "file": row["damaged"], "damage": damage, "checkpoints": count,
    }  # fmt: skip
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


def _apart(evidence: Evidence, row: Mapping[str, Any], rows: list[dict[str, Any]]) -> bool:
    """Whether missing files may be a matter of the copy: one node's files, a download of some of the shards.

    They are not where another checkpoint of the same kind is whole, or where the weights miss a shard beside the whole
    state of the optimizer, which is larger and which nobody fetches for the weights.
    """
    if row["damage"] != "missing" or not row["damaged"].endswith(_NAME_OTHERS):
        return False
    if any(other["format"] == row["format"] and other["complete"] for other in rows):
        return False
    tensors = evidence.table("tensors")
    if tensors is None or not row["damaged"].endswith(".index.json"):
        return True
    return not tensors.filter((pl.col("checkpoint") == row["path"]) & pl.col("role").is_in(_STATES)).height


CHECKS: tuple[Check, ...] = (checkpoint_damaged, checkpoint_unfinished, checkpoint_partly_there)
