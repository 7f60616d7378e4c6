"""Files that are the ranks of one job: found by their names, and where the names leave it open by what they hold."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import PurePosixPath

import numpy as np

from gradforensics.evidence import ranks
from gradforensics.evidence.agreement import agreement, common
from gradforensics.evidence.pieces import Piece
from gradforensics.evidence.ranks import Place

_ASKED = 32  # members of a family whose content is compared with that of the first
_FEW = 3  # common steps that are too few to tell
_LAST_NUMBER = re.compile(r"\d+(?=\D*$)")
_NO_RANKS = re.compile(
    r"(?:runs?|versions?|v|epochs?|seeds?|folds?|trials?|exps?|experiments?|steps?|iters?|ckpt|checkpoints?|parts?|"
    r"shards?|splits?|jobs?|lr|attempts?|configs?|rounds?|stages?|phases?|models?|of|log|csv)[._=-]?$"
)
_LOCKSTEP = 0.25  # of the time from one step to the next, by which synchronous ranks may be apart
_CLOCK = 1.5  # seconds by which the clocks of one job, or the rounding of times, may be apart


@dataclass(eq=False)
class Family:
    """The files of one job. pattern: their name with a * for the number; lead: the one that stands for the others."""

    pattern: str
    pieces: list[Piece]
    lead: Piece

    @property
    def said(self) -> str:
        """What they are, in words."""
        known = sorted({p.rank for p in self.pieces if p.rank is not None})
        if not known:
            return f"{len(self.pieces)} files {self.pattern} are the nodes of one job"
        which = f"rank {known[0]}" if len(known) == 1 else f"ranks {_spans(known)}"
        return f"{len(self.pieces)} files {self.pattern} are the {which} of one job"


def _spans(numbers: Sequence[int]) -> str:
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][-1] + 1:
            spans[-1] = [spans[-1][0], number]
        else:
            spans.append([number])
    shown = ", ".join(f"{s[0]} to {s[-1]}" if len(s) > 1 else str(s[0]) for s in spans[:4])
    return shown if len(spans) <= 4 else f"{shown} ..."


def settle(pieces: Sequence[Piece]) -> list[Family]:
    """Give ranks, hosts and the folder of their job to the pieces; the families of more than one file."""
    by_name: dict[str, list[tuple[Piece, Place]]] = {}
    for piece in pieces:
        if not piece.run:
            place = ranks.of_name(piece.file.name)
            piece.host = place.host
            by_name.setdefault(place.family, []).append((piece, place))
    families: list[Family] = []
    plain: list[Piece] = []
    for pattern, members in by_name.items():
        if "*" in pattern and _named(pattern, members):
            families += _family(pattern, [piece for piece, _ in members])
        else:
            plain += [piece for piece, _ in members]
    for pattern, numbered in _numbered(plain).items():
        if _in_lockstep(list(numbered.values())):
            for number, piece in numbered.items():
                piece.rank = number
            families += _family(pattern, list(numbered.values()))
    _by_settings(plain)
    return families


def _named(pattern: str, members: Sequence[tuple[Piece, Place]]) -> bool:
    """Whether the numbers in these names are those of ranks or nodes, which the pieces are then given."""
    places = [place for _, place in members]
    local = ranks.of_local(places)
    if not any(p.rank is not None for p in places):
        nodes = sorted({p.node for p in places if p.node is not None})
        if not local and (len(nodes) < 2 or not ranks.counts_through(nodes)):
            return False
    elif not ranks.are_ranks(places) or (not all(p.sure for p in places) and _contradict([p for p, _ in members])):
        return False
    stars = pattern.split("/")
    cut = next(i for i, part in enumerate(stars) if "*" in part)
    for piece, place in members:
        piece.rank = place.rank
        if place.rank is None and place.local is not None:
            piece.rank = local[place.node or 0, place.local]
        piece.attempt = place.attempt
        piece.folder = PurePosixPath(*PurePosixPath(piece.file.name).parts[:cut])
    return True


def _family(pattern: str, pieces: list[Piece]) -> list[Family]:
    """The family, where it has more than one member. The lowest rank that logs a series stands for the others."""
    if len(pieces) < 2:
        return []
    pieces.sort(key=lambda p: (p.attempt or 0, -1 if p.rank is None else p.rank, p.file.name))
    lead = min(pieces, key=lambda p: (not p.is_series, not p.reading.speaks_of_training))  # the first of the best
    return [Family(pattern, pieces, lead)]


def _asked(pieces: Sequence[Piece]) -> list[Piece]:
    """A few members that hold a series, spread over the family."""
    known = [p for p in pieces if p.is_series]
    return known[:: max(1, len(known) // _ASKED)]


def _contradict(pieces: Sequence[Piece]) -> bool:
    """Whether files log different learning rates at the same steps, as the ranks of one job do not."""
    rates = [p.curves["train", "lr"] for p in _asked(pieces) if ("train", "lr") in p.curves]
    for one, two in pairwise(rates):
        x, y = common(one, two)
        if len(x) >= _FEW and agreement(one.values[x], two.values[y], max(one.grain, two.grain)) < 1:
            return True
    return False


def _numbered(pieces: Sequence[Piece]) -> dict[str, dict[int, Piece]]:
    """Pieces of one folder whose names differ in the last number only, which counts from 0 or 1."""
    found: dict[str, dict[int, Piece]] = {}
    for piece in pieces:
        name = PurePosixPath(piece.file.name).name
        number = _LAST_NUMBER.search(name.lower())
        if not piece.is_series or number is None or len(number[0]) > 6:
            continue
        if _NO_RANKS.search(name[: number.start()].lower()):
            continue
        pattern = f"{name[: number.start()]}*{name[number.end() :]}"
        found.setdefault(str(PurePosixPath(piece.file.name).with_name(pattern)), {})[int(number[0])] = piece
    return {
        pattern: dict(sorted(numbered.items()))
        for pattern, numbered in found.items()
        if len(numbered) > 1 and ranks.counts_through(sorted(numbered))
    }


def _in_lockstep(pieces: Sequence[Piece]) -> bool:
    """Whether all files reach their steps at the same times, which only the ranks of one job do."""
    first, *others = _asked(pieces)
    keys = [key for key in first.curves if np.isfinite(first.curves[key].times).sum() > _FEW]
    if not others or not keys or _contradict(pieces):
        return False
    one = first.curves[keys[0]]
    pace = float(np.nanmedian(np.diff(one.times) / np.diff(one.steps)))
    span = float(np.nanmax(one.times) - np.nanmin(one.times))
    limit = max(_CLOCK, _LOCKSTEP * pace)
    for other in others:
        two = other.curves.get(keys[0])
        x, y = common(one, two) if two is not None else (np.zeros(0), np.zeros(0))
        if two is None or len(x) <= _FEW or span < 10 * limit:
            return False
        apart = np.abs(one.times[x] - two.times[y])
        if not np.nanmedian(apart) <= limit:
            return False
    return True


def _by_settings(pieces: Sequence[Piece]) -> None:
    """The rank that files state among their settings, where several files of a folder state different ones."""
    stated = [(p, ranks.of_settings(p.reading.settings or [])) for p in pieces]
    told = sorted(((str(p.folder), p.file.name), p, rank) for p, rank in stated if rank is not None)
    for _, members in groupby(told, key=lambda one: one[0][0]):
        listed = list(members)
        if len({rank for _, _, rank in listed}) == len(listed) > 1:
            for _, piece, rank in listed:
                piece.rank = rank
