"""A record without a training loss may hold it under a name of its own: what to say to have it read."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Protocol

from gradforensics.evidence.names import is_loss, table
from gradforensics.languages import NOTHING, Text, both
from gradforensics.report.words import Words, shorten

_NAMES = 3  # series that the line names
_LONGEST = 80  # letters of a name to copy


class _Logged(Protocol):
    """A logged series, as a report lists it."""

    @property
    def series(self) -> str: ...
    @property
    def tag(self) -> str: ...
    @property
    def phase(self) -> str: ...
    @property
    def points(self) -> int: ...


def unnamed_loss(rows: Iterable[_Logged]) -> Text:
    """How to say which series is the training loss, "loss" in a name comes first; empty where one is known."""
    of_training = [row for row in rows if row.phase == "train" and row.points]
    if any(row.series == "loss" for row in of_training):
        return NOTHING
    known = table()["series"]
    tags = dict.fromkeys(row.tag for row in of_training if row.points > 1 and row.series not in known)
    found = sorted(tags, key=lambda tag: (not tag.lower().endswith("loss"), not is_loss(tag)))
    if not found:
        return NOTHING
    names = ", ".join(shorten(tag, 40) for tag in found[:_NAMES])
    only = found[0] if len(found) == 1 and len(found[0]) <= _LONGEST else "NAME"
    option = f"--map {shlex.quote(f'{only}=loss')}"

    def told(words: Words) -> str:
        more = f" {words('and_more', n=len(found) - _NAMES)}" if len(found) > _NAMES else ""
        return words("unnamed_loss", names=names + more, option=option)

    return both(lambda language: told(Words(language)))
