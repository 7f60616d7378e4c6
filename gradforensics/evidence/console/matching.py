"""Which lines of a block are of a known shape, and what the others need: the part that may run ahead in a thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from gradforensics.evidence.console.blocks import Block, Marks
from gradforensics.evidence.console.templates import LONGEST, Template, Templates
from gradforensics.evidence.console.templates import Block as Values

_BATCH = 2048  # lines that are compared at once: more do not fit into the processor's cache
_BAR_TOTAL = r"(?:^|[^\d])\d{1,15}/(\d{1,15}) \["  # as lines.bar() has it


@dataclass
class Prepared:
    """A block with what is known of it before its other lines are read one by one.

    owned: bool (n,), the lines that a template read; values: what they say, their lines counted within the block;
    wanted: int64, ascending, the other lines that can mean something; made: how many templates there were then.
    """

    block: Block
    owned: np.ndarray
    wanted: np.ndarray
    made: int
    values: list[Values] = field(default_factory=list)


def prepare(raw: bytes, templates: Templates, marks: Marks, speaking: Marks) -> Prepared:
    """Everything about a block that does not depend on the lines before it. speaking: see without_motion()."""
    block = Block(raw)
    found = Prepared(block, np.zeros(len(block), dtype=bool), np.zeros(0, dtype=np.int64), templates.made)
    if lengths := sorted(templates.lengths()):
        short = np.minimum(block.lengths, LONGEST + 1).astype(np.uint16)  # numbers so small are sorted much faster
        order = np.argsort(short, kind="stable")
        edges = np.searchsorted(short[order], np.array([lengths, [length + 1 for length in lengths]]).ravel())
        for length, start, stop in zip(lengths, edges[: len(lengths)], edges[len(lengths) :], strict=True):
            found.values += match(block, found.owned, order[start:stop], templates.of_length(length))
    found.wanted = marks.candidates(block, np.flatnonzero(~found.owned))
    if b"%|" in raw:
        found.wanted = without_motion(block, found.wanted, speaking)
    return found


def match(block: Block, owned: np.ndarray, rows: np.ndarray, templates: Sequence[Template]) -> list[Values]:
    """Read those of the lines that a template reads, and mark them as owned."""
    found: list[Values] = []
    for template in templates:
        rows = block.fits(rows[~owned[rows]], template.width)
        for start in range(0, len(rows), _BATCH):
            batch = rows[start : start + _BATCH]
            same, digits = template.match(block.windows(batch, template.width))
            if not same.any():
                continue
            if not same.all():
                batch, digits = batch[same], digits[same]
            owned[batch] = True
            template.hits += len(batch)
            found.append(template.block(digits, block.feeds[batch]))
    return found


def without_motion(block: Block, wanted: np.ndarray, speaking: Marks) -> np.ndarray:
    """The candidates without the states of a progress bar between its first and its last one in a row.

    speaking: literals with one of which a state is more than motion.
    """
    if not len(wanted):
        return wanted
    texts = pl.Series([block.text(index) for index in wanted.tolist()], dtype=pl.String)
    totals = texts.str.extract(_BAR_TOTAL).cast(pl.Int64).fill_null(-1).to_numpy()
    bare = texts.str.contains("%|", literal=True).to_numpy() & ~speaking.found(texts) & (totals >= 0)
    same = bare[1:] & bare[:-1] & (totals[1:] == totals[:-1])
    inside = np.zeros(len(wanted), dtype=bool)
    inside[1:-1] = same[1:] & same[:-1]
    return np.asarray(wanted[~inside])
