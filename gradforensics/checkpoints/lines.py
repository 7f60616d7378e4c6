"""Which checkpoints of one folder may be of one training: several trainings are told apart by the names of their files.

Examples: seed1_step30.pt and seed1_step60.pt beside seed2_step30.pt and seed2_step60.pt; model000100.pt and
opt000100.pt of guided-diffusion, which hold the weights and the optimizer's states of one training.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from gradforensics.patterns import lazy

_MARK = lazy(  # what one training keeps, with its value: seed1, lr1e-3, fold_2, stage-0
    r"(?<![a-z])(seed|fold|lr|wd|bs|stage|phase|task|width|depth|dropout)[_=-]?(\d+(?:\.\d+)?(?:e[+-]?\d+)?)",
    re.IGNORECASE,
)


def lines(saved: Sequence[tuple[str, int | None]]) -> Mapping[str, str]:
    """By path, the line that a checkpoint is on: its path without its step. Empty where there is but one line.

    saved: paths with their steps. A line has two checkpoints at least; lines are told apart where they share a step,
    for a resume may well go on under another name. What is on no such line, as best.pt, has no entry.
    """
    found: dict[str, dict[int, str]] = {}
    for path, step in saved:
        if step is not None and (name := without_step(path, step)) != path:
            found.setdefault(name, {})[step] = path
    several = {name: rows for name, rows in found.items() if len(rows) > 1}
    counts: dict[int, int] = {}
    for rows in several.values():
        for step in rows:
            counts[step] = counts.get(step, 0) + 1
    apart = {name: rows for name, rows in several.items() if any(counts[step] > 1 for step in rows)}
    return {path: name for name, rows in apart.items() for path in rows.values()}


def without_step(path: str, step: int | None) -> str:
    """A path with # in place of its step, whatever zeros lead it."""
    return path if step is None else re.sub(rf"(?<!\d)0*{step}(?!\d)", "#", path)


def told_apart(first: str, last: str) -> bool:
    """Whether two names say that they are of two trainings, or of two stages: by another seed, fold, rate, stage."""
    marks = [{mark[1].lower(): float(mark[2]) for mark in _MARK.finditer(path)} for path in (first, last)]
    return any(marks[1].get(word, value) != value for word, value in marks[0].items())
