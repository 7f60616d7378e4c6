"""Checks on evaluation losses beside the training loss."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np

from gradforensics import signals
from gradforensics.diagnosis.checks.loss import descending_loss
from gradforensics.diagnosis.checks.order import epochs_of
from gradforensics.diagnosis.vocabulary import Answer, Check, Hit, Missing, check, hit_at, label
from gradforensics.patterns import lazy
from gradforensics.tables import Evidence, Series

_OLD_TASK = lazy(
    r"(?:^|[_/ .-])(?:old|general|base|pretrain\w*|source|retain|previous|original|replay)(?:$|[_/ .-])", re.IGNORECASE
)
_LEAST = 5  # evaluations below which no trend is read


def _losses(evidence: Evidence) -> list[Series]:
    """Every evaluation loss with enough points: "loss" itself and those of named sets ("g0_loss")."""
    names = [n for n in evidence.names("eval") if n == "loss" or n.endswith("_loss") or n.startswith("loss_")]
    series = [evidence.series(n, "eval") for n in names]
    return [s.good for s in series if s is not None and len(s.good) >= _LEAST]


@dataclass(frozen=True, slots=True)
class Rise:
    """How an evaluation loss left its minimum: index of the best and of the first evaluation above the margin."""

    best: int
    first: int
    rise: float


def _rise(held_out: Series, least: float, errors: float, evals: int) -> Rise | None:
    """A lasting rise above the minimum by more than `least` of it and `errors` standard deviations of the noise."""
    values = held_out.values
    best = int(np.argmin(values))
    low = float(values[best])
    # near 0 a fraction of the minimum says nothing: then a part of what was gained before counts
    margin = max(least * max(abs(low), 0.1 * (float(values[0]) - low)), errors * signals.noise_sd(values))
    above = values > low + margin
    end = float(np.median(values[-min(evals, 2) :]))
    if len(values) - 1 - best < evals or end <= low + margin or not above[-1] or _other_set(held_out, best, end - low):
        return None
    return Rise(best, best + int(np.argmax(above[best:])), (end - low) / max(abs(low), 1e-12))


def _other_set(held_out: Series, best: int, rise: float) -> bool:
    """Whether nearly all of a rise happens from one launch to the next: the evaluation set or its size was changed."""
    changes = np.diff(held_out.values[best:])
    launch = np.flatnonzero(np.diff(held_out.attempts[best:]) != 0)
    return bool(len(launch)) and float(changes[launch].max()) >= 0.8 * rise


def _train_falls(evidence: Evidence, since: int) -> tuple[float, float] | Missing | None:
    """Training loss around step `since` and at the end, or None where it does not fall in between."""
    loss = evidence.series("loss")
    if loss is None or len(loss.good) < _LEAST:
        return Missing("series:loss")
    good = loss.good
    width = max(2, len(good) // 20)
    place = int(np.searchsorted(good.steps, since))
    then = float(np.median(good.values[max(0, place - width) : place + width]))
    now = float(np.median(good.values[-2 * width :]))
    return (then, now) if now < then else None


@check(
    needs=["series:loss"],
    facts=["rise", "best_step", "best", "end", "wasted", "train_then", "train_now", "risen", "total"],
)
def eval_rises(evidence: Evidence, *, rise: float, errors: float, evals: int, accuracy: str) -> Answer:
    """Evaluation losses leave their minimum for good while the training loss goes on falling.

    rise: least rise at the end, as a fraction of the minimum; errors: and in standard deviations of the evaluations;
    evals: so many evaluations must follow the best one. With several evaluation sets at least half of them must rise.
    accuracy: "falls" asks that a logged evaluation accuracy is not better at the end than at the best loss.
    """
    if isinstance(descending := descending_loss(evidence), Missing):
        return descending
    sets = [s for s in _losses(evidence) if not _OLD_TASK.search(s.tag)] or _losses(evidence)
    if not sets:
        return Missing("series:eval/loss:points>=5")
    found = [(s, r) for s in sets if (r := _rise(s, rise, errors, evals)) is not None]
    if not found or 2 * len(found) < len(sets):
        return []
    hits: list[Hit] = []
    for series, risen in found:
        trained = _train_falls(evidence, int(series.steps[risen.best]))
        if isinstance(trained, Missing):
            return trained
        if trained is None or (accuracy == "falls" and _accuracy_kept(evidence, series, risen.best)):
            continue
        end = int(series.steps[-1])
        hits.append(
            hit_at(
                series,
                risen.first,
                after=int(series.steps[risen.best]),
                rise=risen.rise,
                best_step=int(series.steps[risen.best]),
                best=float(series.values[risen.best]),
                end=float(series.values[-1]),
                wasted=(end - int(series.steps[risen.best])) / end if end > 0 else None,
                train_then=trained[0],
                train_now=trained[1],
                risen=len(found),
                total=len(sets),
            )
        )
    return sorted(hits, key=lambda h: h.step or 0)


def _accuracy_kept(evidence: Evidence, held_out: Series, best: int) -> bool:
    """Whether the accuracy of the same evaluation set is better at the end than it was at the best loss."""
    name = "accuracy" if held_out.name == "loss" else held_out.name.replace("loss", "accuracy")
    accuracy = evidence.series(name, "eval")
    if accuracy is None or len(accuracy.good) < _LEAST:
        return False
    good = accuracy.good
    then = float(np.interp(held_out.steps[best], good.steps, good.values))
    return float(np.median(good.values[-3:])) > then


@check(needs=[], facts=["rise", "best_step", "best", "end", "old", "new", "new_fall"])
def old_task_forgotten(evidence: Evidence, *, rise: float, errors: float, evals: int) -> Answer:
    """The loss of an evaluation set named as the old or general task rises while another one falls."""
    losses = _losses(evidence)
    if not losses:
        return Missing("series:eval/loss:points>=5")
    old = [s for s in losses if _OLD_TASK.search(s.tag)]
    new = [s for s in losses if s not in old]
    if not old or not new:
        return Missing("series of an old and of a new task (eval_old_loss and eval_new_loss)")
    falls = [(s, 1 - float(np.median(s.values[-3:])) / float(s.values[0])) for s in new if s.values[0] > 0]
    best_new = max(falls, key=lambda pair: pair[1], default=None)
    hits: list[Hit] = []
    for series in old:
        # what was known before the fine-tuning is the reference: the first evaluation, not the minimum
        first = float(series.values[0])
        margin = max(rise * abs(first), errors * signals.noise_sd(series.values))
        above = np.flatnonzero(series.values > first + margin)
        if best_new is None or best_new[1] <= 0 or len(above) < evals or above[-1] != len(series) - 1:
            continue
        end = float(np.median(series.values[-3:]))
        hits.append(
            hit_at(
                series,
                int(above[0]),
                rise=(end - first) / max(abs(first), 1e-12),
                best_step=int(series.steps[0]),
                best=first,
                end=end,
                old=label(series),
                new=label(best_new[0]),
                new_fall=best_new[1],
            )
        )
    return hits


@check(
    needs=["baseline:series:eval/loss:points>=5", "series:loss"],
    facts=["rise", "best_step", "best", "end", "wasted", "train_then", "train_now", "risen", "total", "baseline_rise"],
)
def eval_rises_unlike_baseline(evidence: Evidence, *, rise: float, errors: float, evals: int, times: float) -> Answer:
    """The evaluation loss rises as in `eval_rises`, and by `times` as much as that of the run of --baseline."""
    theirs = None if evidence.baseline is None else evidence.baseline.series("loss", "eval")
    if theirs is None or len(theirs.good) < _LEAST:
        return Missing("baseline:series:eval/loss:points>=5")
    low = float(theirs.good.values.min())
    usual = (float(np.median(theirs.good.values[-2:])) - low) / max(abs(low), 1e-12)
    answer = eval_rises.function(evidence, rise=rise, errors=errors, evals=evals, accuracy="falls")
    if isinstance(answer, Missing):
        return answer
    return [
        replace(hit, facts={**hit.facts, "baseline_rise": usual})
        for hit in answer
        if isinstance(found := hit.facts["rise"], float) and found >= times * max(usual, rise / times)
    ]


@check(needs=["series:loss:points>=64"], facts=["epochs", "stairs", "first_level", "last_level", "drop"])
def train_falls_in_stairs(evidence: Evidence, *, epochs: int, share: float, drop: float, left: float) -> Answer:
    """The training loss falls at epoch boundaries and hardly within the epochs, down to `left` of its first epoch.

    Samples that are seen again are then remembered. epochs: whole epochs that must be logged; share: part of the
    boundaries that are stairs; drop: least fall at a stair, as a fraction of the level, and it must exceed what the
    epoch before it gained from its first to its last quarter.
    """
    loss = descending_loss(evidence)
    if isinstance(loss, Missing):
        return loss
    told = epochs_of(evidence, loss)
    if told is None:
        return Missing("the epoch beside every loss")
    number = np.floor(told - 1e-9).astype(int)
    if number[-1] - number[0] + 1 < epochs or (np.diff(number) < 0).any():
        return []
    quarters = _quarters(loss, number)
    if quarters is None or len(quarters) < epochs:
        return Missing("series:loss at eight points of each epoch")
    begins, ends, levels = quarters[:, 0], quarters[:, 1], quarters[:, 2]
    falls = (ends[:-1] - begins[1:]) / np.maximum(np.abs(ends[:-1]), 1e-12)
    within = (begins[1:] - ends[1:]) / np.maximum(np.abs(begins[1:]), 1e-12)
    stairs = (falls >= drop) & (falls > within)
    if levels[-1] > left * levels[0] or levels[0] <= 0 or float(np.mean(stairs[: epochs - 1])) < share:
        return []
    first = int(np.flatnonzero(stairs)[0])
    index = int(np.searchsorted(number, first + 1))
    return [
        hit_at(
            loss,
            min(index, len(loss) - 1),
            epochs=len(quarters),
            stairs=int(stairs.sum()),
            first_level=float(levels[0]),
            last_level=float(levels[-1]),
            drop=float(falls[first]),
        )
    ]


def _quarters(loss: Series, number: np.ndarray) -> np.ndarray | None:
    """Medians of the first and the last quarter and of all of every whole epoch, float64 (epochs, 3)."""
    edges = np.searchsorted(number, np.arange(number[0], number[-1] + 2))
    sizes = np.diff(edges)
    whole = sizes >= 0.9 * np.max(sizes)
    if np.max(sizes) < 8 or not whole[: max(1, len(whole) - 1)].all():
        return None
    rows: list[tuple[float, float, float]] = []
    for begin, size in zip(edges[:-1][whole].tolist(), sizes[whole].tolist(), strict=True):
        quarter = max(2, size // 4)
        part = loss.values[begin : begin + size]
        rows.append((float(np.median(part[:quarter])), float(np.median(part[-quarter:])), float(np.median(part))))
    return np.array(rows)


CHECKS: tuple[Check, ...] = (
    eval_rises,
    eval_rises_unlike_baseline,
    train_falls_in_stairs,
    old_task_forgotten,
)
