"""Checks on which samples a run sees and in what order, as far as its losses show it."""

from __future__ import annotations

import re

import numpy as np

from gradforensics import signals, trend_signals
from gradforensics.diagnosis.checks.loss import descending_loss
from gradforensics.diagnosis.vocabulary import Answer, Check, Fact, Missing, check, hit_at
from gradforensics.patterns import lazy
from gradforensics.tables import Evidence, Series

_LOCAL = lazy(r"local|(?:^|[_/ .-])(?:own|micro|rank|shard|unreduced)(?:$|[_/ .-])", re.IGNORECASE)
_REDUCED = lazy(r"global|reduced|(?:^|[_/ .-])(?:all|avg|mean|max|sum|synced?)(?:$|[_/ .-])", re.IGNORECASE)
_PROFILE = 400  # points of an epoch that are compared
_EPOCHS = 40  # epochs that are compared


# ------------------------------------------------------------------------------------------------- order of an epoch


def epochs_of(evidence: Evidence, loss: Series) -> np.ndarray | None:
    """Epoch of every point of the loss, float64 (n,), from its own column or from a logged series of epochs."""
    if np.isfinite(loss.epochs).all() and len(loss):
        return loss.epochs
    told = evidence.series("epoch")
    if told is None or len(told.good) < 2:
        return None
    # a counter of whole epochs: the epoch of a point is the last one told at or before it
    place = np.searchsorted(told.good.steps, loss.steps, side="right") - 1
    return told.good.values[np.maximum(place, 0)]


def _period(evidence: Evidence, loss: Series) -> float | None:
    """Optimizer steps per epoch, None where the log does not tell."""
    epochs = epochs_of(evidence, loss)
    if epochs is None or not epochs.max() > epochs.min():
        return None
    whole = float(np.mean(epochs == np.round(epochs))) > 0.9
    if not whole:  # fractions of an epoch: the slope is exact but for the rounding of the log
        return float((loss.steps[-1] - loss.steps[0]) / (epochs[-1] - epochs[0]))
    starts = loss.steps[1:][np.diff(epochs) > 0]
    return float(np.median(np.diff(starts))) if len(starts) > 1 else None


def _profiles(loss: Series, period: int, skip: int) -> np.ndarray | None:
    """Losses by epoch, float64 (epochs, points): whole epochs only, without the first `skip`; None for too few."""
    cadence = round(loss.cadence)
    if len(loss) > 2 and loss.steps[1] - loss.steps[0] != cadence:  # logging_first_step
        loss = loss.where(np.arange(len(loss)) > 0)
    if cadence < 1 or period % cadence or not (np.diff(loss.steps) == cadence).all():
        return None
    points = period // cadence
    # a point at step s holds the steps up to s: the first epoch is that of steps 1 ... period, or 0 ... period - 1
    first = int(np.argmax((loss.steps - (0 if loss.steps[0] == 0 else cadence)) % period == 0))
    count = (len(loss) - first) // points
    if points < 8 or count - skip < 3:
        return None
    grid = loss.values[first : first + count * points].reshape(count, points)[skip:]
    return grid[-_EPOCHS:, :_PROFILE]


@check(needs=["series:loss:points>=64"], facts=["correlation", "epochs", "period", "errors", "shuffle"])
def epochs_repeat_one_order(evidence: Evidence, *, correlation: float, errors: float, skip: int) -> Answer:
    """The ups and downs of the loss within an epoch are the same in every epoch (detector D18).

    The losses of each epoch, freed of slow shapes, are compared by rank correlation; correlation, errors: their least
    mean, also in standard errors of unrelated noise; skip: first epochs to leave out. A configuration that says
    shuffle: false means it so.
    """
    loss = descending_loss(evidence)
    if isinstance(loss, Missing):
        return loss
    period = _period(evidence, loss)
    if period is None:
        return Missing("the epoch beside every loss")
    profiles = _profiles(loss, round(period), skip)
    if profiles is None:
        return Missing("series:loss at every step of three whole epochs")
    found = trend_signals.likeness(profiles)
    if found.correlation < correlation or found.errors < errors:
        return []
    shuffle = evidence.setting("shuffle")
    if shuffle is False or str(shuffle).lower() in ("false", "0", "no", "sequential"):
        return []
    facts: dict[str, Fact] = {
        "correlation": found.correlation,
        "errors": found.errors,
        "epochs": len(profiles) + skip,
        "period": round(period),
        "shuffle": None if shuffle is None else str(shuffle),
    }
    index = min(int(np.searchsorted(loss.steps, loss.steps[0] + round(period))), len(loss) - 1)
    return [hit_at(loss, index, facts)]


# ------------------------------------------------------------------------------------------------------------- ranks


@check(needs=["series:loss:ranks>=2"], facts=["ranks", "points", "tag"])
def ranks_log_one_loss(evidence: Evidence, *, points: int, share: float, kind: str) -> Answer:
    """The losses of two or more ranks are the same number at `share` of their common steps.

    Losses of different samples differ. kind: "local" judges series whose name says that they are of one rank
    (local_loss), "plain" all others but those whose name says that they were reduced (global_avg_loss): equal values
    there may have been averaged before they were logged.
    """
    tags = {k.tag for name in _loss_names(evidence) for k in evidence.keys(name)}
    local = sorted(t for t in tags if _LOCAL.search(t))
    if kind == "plain" and (local or all(_REDUCED.search(t) for t in tags)):
        return Missing("series:local_loss:ranks>=2")
    if kind == "local" and not local:
        return Missing("series:local_loss:ranks>=2")
    names = [n for n in _loss_names(evidence) if (kind == "plain") == (n == "loss") or _LOCAL.search(n)]
    for name in names:
        series = [s.good for r in evidence.ranks(name) if (s := evidence.series(name, rank=r)) is not None]
        if len(series) < 2 or (kind == "local" and not _LOCAL.search(series[0].tag)):
            continue
        hit = _first_equal(series, points, share)
        if hit is not None:
            index, count = hit
            return [hit_at(series[0], index, ranks=len(series), points=count, tag=series[0].tag)]
    return []


def _loss_names(evidence: Evidence) -> list[str]:
    return [n for n in evidence.names("train") if n == "loss" or (n.endswith("loss") and _LOCAL.search(n))]


def _first_equal(series: list[Series], points: int, share: float) -> tuple[int, int] | None:
    """(index of the first common step, number of common steps) where two ranks agree at nearly all of them."""
    first = series[0]
    for other in series[1:]:
        common, mine, its = np.intersect1d(first.steps, other.steps, return_indices=True)
        if len(common) < points:
            continue
        a, b = first.values[mine], other.values[its]
        # a loss that hardly moves in the digits shown is equal by chance
        distinct = len(np.unique(a)) >= 0.8 * len(a)
        if distinct and float(np.mean(a == b)) >= share:
            return int(mine[0]), len(common)
    return None


# ------------------------------------------------------------------------------------------------------------ resume


def _resumes(evidence: Evidence, loss: Series) -> list[int]:
    """Index of the first point of every launch but the first: attempts, resume lines, elapsed times that begin anew."""
    firsts = [int(s.steps[0]) for s in evidence.attempts("loss")[1:] if len(s)]
    firsts += [e.step + 1 for e in evidence.events_of("resume") if e.step is not None]
    elapsed = evidence.series("elapsed")
    if elapsed is not None and len(elapsed.good) > 1:
        firsts += [int(v) for v in elapsed.good.steps[1:][np.diff(elapsed.good.values) < 0]]
    places = np.searchsorted(loss.steps, sorted(set(firsts)))
    return [int(i) for i in np.unique(places) if 8 <= i <= len(loss) - 8]


@check(needs=["series:loss:points>=64"], facts=["resumed", "correlation", "errors", "points", "first_step"])
def resume_restarts_the_data(evidence: Evidence, *, correlation: float, errors: float, points: int) -> Answer:
    """After a resume the loss has the ups and downs of the first steps of the run: the data began again.

    The first points after the resume, freed of slow shapes, are compared by rank correlation with as many points of the
    beginning of the run, at the same distance of steps. Where the epochs show one order (P steps each) and the resume
    lies at an epoch boundary, they are alike by right.
    """
    loss = descending_loss(evidence)
    if isinstance(loss, Missing):
        return loss
    resumes = _resumes(evidence, loss)
    if not resumes:
        return Missing("a resumed run (two launches)")
    period = _period(evidence, loss)
    judged = False
    for place in resumes:
        offset = int(loss.steps[place] - loss.steps[0])
        if period is not None and offset % round(period) < loss.cadence:
            continue
        common, first, again = np.intersect1d(loss.steps[:place] + offset, loss.steps[place:], return_indices=True)
        if len(common) < points:
            continue
        judged = True
        pair = np.stack([loss.values[first[:_PROFILE]], loss.values[place + again[:_PROFILE]]])
        found = trend_signals.likeness(pair)
        if found.correlation >= correlation and found.errors >= errors:
            facts: dict[str, Fact] = {
                "resumed": int(loss.steps[place]),
                "correlation": found.correlation,
                "errors": found.errors,
                "points": pair.shape[1],
                "first_step": int(loss.steps[0]),
            }
            return [hit_at(loss, place, facts)]
    return [] if judged else Missing("series:loss at every step around a resume")


@check(needs=["series:loss:points>=64"], facts=["resumed", "before", "dropped_to", "back_at", "back_to"])
def resume_drops_then_returns(evidence: Evidence, *, errors: float, drop: float, width: int) -> Answer:
    """The loss drops at a resume and later steps up to where it was, without a spike (detector D19).

    It is lower on samples that the model has seen before, until new ones begin. errors, drop: least height of both
    steps, in standard errors and as a fraction of the loss; width: points on each side that are compared.
    """
    loss = descending_loss(evidence)
    if isinstance(loss, Missing):
        return loss
    resumes = _resumes(evidence, loss)
    if not resumes:
        return Missing("a resumed run (two launches)")
    judged = False
    for index in resumes:
        resumed = int(loss.steps[index])
        down = trend_signals.jump_at(loss.steps, loss.values, index, width)
        if down is None or len(loss) - index < 3 * width:
            continue
        judged = True
        if down.errors > -errors or -down.height < drop * abs(down.before) or _rate_jumps(evidence, resumed):
            continue
        back = _returns(loss, index + width, down.before, -down.height, errors, width)
        if back is not None:
            facts: dict[str, Fact] = {
                "resumed": resumed,
                "before": down.before,
                "dropped_to": down.before + down.height,
                "back_at": int(loss.steps[back]),
                "back_to": float(np.median(loss.values[back : back + width])),
            }
            return [hit_at(loss, index, facts)]
    return [] if judged else Missing("series:loss at every step around a resume")


def _returns(loss: Series, begin: int, level: float, height: float, errors: float, width: int) -> int | None:
    """Index behind `begin` at which the loss steps up by half of `height` or more and stays near `level`; or None."""
    half = width // 2
    middles = signals.rolling_median(loss.values, width)
    places = np.arange(begin, len(loss) - width)
    rises = middles[places + half] - middles[places - half - 1]
    steep = places[rises >= 0.5 * height]
    # neighbouring places are one step, which lies where it shows most clearly
    for group in np.split(steep, np.flatnonzero(np.diff(steep) > 1) + 1)[:20]:
        tried = [(i, trend_signals.jump_at(loss.steps, loss.values, i, width)) for i in group[: 4 * width].tolist()]
        ups = [(up.errors, i, up.height) for i, up in tried if up is not None]
        if not ups:
            continue
        clearness, index, rise = max(ups)
        later = float(np.median(loss.values[index : index + 2 * width]))
        if clearness >= errors and rise >= 0.5 * height and abs(later - level) <= 0.5 * height:
            return int(index)
    return None


def _rate_jumps(evidence: Evidence, step: int) -> bool:
    """Whether the learning rate changes by more than a tenth at this step."""
    lr = evidence.series("lr")
    if lr is None or len(lr.good) < 4:
        return False
    index = int(np.searchsorted(lr.good.steps, step))
    if not 2 <= index < len(lr.good) - 2:
        return False
    before, after = float(lr.good.values[index - 1]), float(lr.good.values[index])
    return abs(after - before) > 0.1 * max(abs(before), abs(after))


CHECKS: tuple[Check, ...] = (
    epochs_repeat_one_order,
    ranks_log_one_loss,
    resume_restarts_the_data,
    resume_drops_then_returns,
)
