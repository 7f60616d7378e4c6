"""Checks on the size of the learning rate: none, too little to move the loss, more than published recipes use."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from gradforensics import checkpoint_signals as cs
from gradforensics import signals
from gradforensics.diagnosis.checks.loss import classes, descending_loss, made_worse, parked
from gradforensics.diagnosis.setting_differences import alike, telling
from gradforensics.diagnosis.vocabulary import Answer, Check, Hit, Missing, check, hit_at
from gradforensics.patterns import lazy
from gradforensics.tables import Evidence, Series

_ADAM = lazy(r"adam|lamb|adafactor|\blion", re.IGNORECASE)
_LION = lazy(r"lion", re.IGNORECASE)
_RATE = lazy(r"(?:.*/)?(?:lr|learning_rate)\b|(?:.*/)?lr[-_]", re.IGNORECASE)
_NO_RATE_YET = "no learning rate before the first step"
_FEWEST = 3  # shared settings without which two configurations cannot be said to agree


def rates(evidence: Evidence, *, steps: bool = False) -> Series | Missing:
    """The finite learning rates; with `steps` only where the log counts optimizer steps."""
    lr = evidence.series("lr")
    if lr is None or not len(lr.good):
        return Missing("series:lr")
    if steps and lr.step_unit != "step":
        return Missing(f"series:lr over optimizer steps (this log counts {lr.step_unit}s)")
    return lr.good


@check(needs=["series:lr:points>=10"], facts=["points", "share"])
def lr_identically_zero(evidence: Evidence, *, share: float) -> Answer:
    """Every logged learning rate, of every parameter group, is exactly 0, over `share` of the run or more."""
    lr = rates(evidence)
    if isinstance(lr, Missing):
        return lr
    if any((evidence.frames[key].frame["value"] != 0).any() for key in evidence.keys("lr")):
        return []
    if another_group_trains(evidence, lr):
        return []
    if lr.resolution > 0:
        return Missing("series:lr with more digits (it is printed as 0 to the last digit)")
    if any(e.data.get("about") == _NO_RATE_YET for e in evidence.events_of("warning")):
        return Missing("series:lr after the first step (the log shows 0 in place of a rate that is not known yet)")
    span = evidence.steps or (0, 0)
    covered = (float(lr.steps[-1] - lr.steps[0]) / (span[1] - span[0])) if span[1] > span[0] else 1.0
    if covered < share:
        return []
    return [hit_at(lr, 0, points=len(lr), share=covered)]


def another_group_trains(evidence: Evidence, lr: Series) -> bool:
    """Whether the rate of another parameter group is above 0 at the end: groups may be frozen on purpose."""
    for key, stored in evidence.frames.items():
        if _RATE.match(key.tag) and (key.tag, key.source) != (lr.tag, lr.source) and key.phase == "train":
            last = stored.frame.filter(pl.col("step") >= int(lr.steps[-1]))["value"].drop_nulls()
            if len(last) and float(last[-1]) > 0:
                return True
    return False


def _still(loss: Series, change: float, errors: float) -> float | None:
    """Change of the loss from its first to its last tenth as a fraction of its level, None where it moves.

    change: the fraction that still counts as standing still; errors: so does one within so many standard errors.
    """
    level = float(np.median(loss.values))
    part = max(5, len(loss) // 10)
    fallen = float(np.median(loss.values[:part]) - np.median(loss.values[-part:]))
    # the median of k points of normal noise has a standard error of sqrt(pi / 2k) sd; two of them are compared
    doubt = signals.noise_sd(loss.values) * math.sqrt(math.pi / part)
    moved = fallen / max(abs(level), 1e-12)
    return None if abs(moved) > change and abs(fallen) > errors * doubt else -moved


def _stands_still(evidence: Evidence, tiny: float, change: float, errors: float) -> tuple[Series, float] | Answer:
    """(loss, its change) of a loss that stands still under rates of at most `tiny`; else the answer of the check."""
    loss = descending_loss(evidence)
    if isinstance(loss, Missing):
        return loss
    moved = _still(loss, change, errors)
    if moved is None:
        return []  # it falls, or it rises: either way the parameters move
    lr = rates(evidence)
    if isinstance(lr, Missing):
        return lr
    peak = float(lr.values.max())
    if not 0 < peak <= tiny:
        return []
    middle = float(lr.values[len(lr) // 2])
    if lr.values[-1] == peak and middle < 0.9 * peak and bool((np.diff(lr.values) >= 0).all()):
        return Missing("a record that goes beyond the warm-up of the learning rate")
    return loss, moved


@check(needs=["series:loss:points>=20"], facts=["peak", "change", "level"])
def stands_still_at_tiny_lr(evidence: Evidence, *, tiny: float, change: float, errors: float) -> Answer:
    """The loss does not move over the whole record, and the learning rate never exceeds `tiny` (and is not 0).

    A loss that moves acquits whatever the rate is. change, errors: improvement from the first to the last tenth that
    still counts as standing still, as a fraction of the level and in standard errors.
    """
    found = _stands_still(evidence, tiny, change, errors)
    if not isinstance(found, tuple):
        return found
    loss, moved = found
    return [hit_at(loss, 0, peak=_peak(evidence), change=moved, level=float(np.median(loss.values)))]


def _peak(evidence: Evidence) -> float:
    lr = rates(evidence)
    return 0.0 if isinstance(lr, Missing) else float(lr.values.max())


@check(needs=["series:loss:points>=50", "series:lr"], facts=["peak", "level", "chance", "classes"])
def stays_at_chance_at_tiny_lr(evidence: Evidence, *, tiny: float, change: float, errors: float, near: float) -> Answer:
    """As stands_still_at_tiny_lr, and the loss lies within `near` of ln of the vocabulary or of the classes.

    At a usual rate such a plateau has other causes (a cut graph, dead units, random labels, a rate that is too high);
    the rate is what separates them.
    """
    count = classes(evidence)
    if count is None:
        return Missing("settings:vocab_size")
    found = _stands_still(evidence, tiny, change, errors)
    if not isinstance(found, tuple):
        return found
    loss, _ = found
    level, chance = float(np.median(loss.values)), math.log(count)
    if abs(level / chance - 1) > near:
        return []
    return [hit_at(loss, 0, peak=_peak(evidence), level=level, chance=chance, classes=count)]


@check(
    needs=["travels", "tensors", "series:loss:points>=20", "series:lr"],
    facts=["travel", "steps", "share", "lr", "change", "level", "checkpoint"],
)
def weights_hardly_travel(
    evidence: Evidence, *, least: float, share: float, steps: int, late: float, change: float, errors: float
) -> Answer:
    """Between two checkpoints the trained weights move by less than `least` of themselves, and the loss stands still.

    share, steps: part of the run and number of steps that must lie between them; late: part of the peak below which a
    rate ends a decay, or begins a warm-up, and such a stretch does not count. change, errors: of the loss over the
    whole record, as in stands_still_at_tiny_lr. Weights that did not change at all, frozen or not, are left out.
    """
    lr, loss, found = rates(evidence, steps=True), descending_loss(evidence), cs.pairs(evidence)
    if isinstance(lr, Missing):
        return lr
    if isinstance(loss, Missing):
        return loss
    known, peak = cs.weights(evidence) or [], float(lr.values.max())
    if not found or not known:
        return Missing("travels")
    if peak <= 0:
        return []
    if any(w.measured in cs.HALF for w in known):
        return Missing("weights in float32: in a shorter type it is rounding that holds them")
    span = max(int(loss.steps[-1]), int(lr.steps[-1]), *(pair.last.step or 0 for pair in found))
    sizes = {(w.checkpoint, cs.labelled(w.name, w.rank)): w.l2 or 0.0 for w in known}
    best: tuple[float, int, int, cs.Saved] | None = None
    for chain in _at_full_rate(found, lr, late * peak):
        first, last = chain[0].first.step or 0, chain[-1].last.step or 0
        travel = _travel(chain, sizes)
        if travel is not None and last - first >= max(share * span, steps) and (best is None or travel < best[0]):
            best = travel, first, last, chain[-1].last
    if best is None:
        return Missing(f"two checkpoints {steps} steps and {share:.0%} of the run apart at the full learning rate")
    travel, first, last, saved = best
    if travel >= least or (moved := _still(loss, change, errors)) is None:
        return []
    facts: dict[str, Any] = {"travel": travel, "steps": last - first, "share": (last - first) / max(span, 1)}
    facts |= {"lr": peak, "change": moved, "level": float(np.median(loss.values)), "checkpoint": saved.path}
    return [Hit(last, first, "travels", None, travel, saved.source, facts=facts)]


def _at_full_rate(found: list[cs.Pair], lr: Series, low: float) -> Iterator[list[cs.Pair]]:
    """Runs of pairs that follow each other, over which no logged rate lies below `low`."""
    chain: list[cs.Pair] = []
    for pair in found:
        first, last = pair.first.step or 0, pair.last.step or 0
        inside = lr.values[(lr.steps >= first) & (lr.steps <= last)]
        full = len(inside) > 0 and float(inside.min()) >= low
        if chain and (not full or chain[-1].last.path != pair.first.path):
            yield chain
            chain = []
        chain += [pair] if full else []
    if chain:
        yield chain


def _travel(chain: list[cs.Pair], sizes: Mapping[tuple[str, str], float]) -> float | None:
    """The movement of all weights that moved as a part of their size, added up over the pairs; None where none did.

    That is the most that they can have moved from the first to the last checkpoint. sizes: norms of the parameters, by
    checkpoint and name.
    """
    whole = 0.0
    for pair in chain:
        rows = [r for r in pair.rows.values() if r["changed"] and r["rel_travel"] is not None and not r["nonfinite"]]
        held = [(row["rel_travel"], sizes.get((pair.first.path, row["name"]), 0.0)) for row in rows]
        size = math.fsum(norm**2 for _, norm in held)
        if not size:
            return None
        whole += math.sqrt(math.fsum((part * norm) ** 2 for part, norm in held) / size)
    return whole


@check(
    needs=["series:loss:points>=20", "series:lr", "baseline:series:loss:points>=20", "baseline:series:lr"],
    facts=["peak", "level", "reference", "reference_lr"],
)
def stays_above_baseline_at_lower_lr(evidence: Evidence, *, lower: float, part: float, gap: float) -> Answer:
    """The loss covers less than `part` of the way that the baseline's covers in as many steps, at a rate `lower` times.

    gap: of the baseline's level by which the run must stay above it. Both must start at the same level (within `gap`).
    """
    pair = _pair(evidence)
    if isinstance(pair, Missing):
        return pair
    loss, other, peak, reference_lr = pair
    start, other_start = _level(loss, 0), _level(other, 0)
    end, other_end = _level(loss, -1), _level(other, -1)
    scale = max(abs(other_end), 1e-12)
    if peak > lower * reference_lr or abs(start - other_start) > gap * scale or end - other_end <= gap * scale:
        return []
    if start - end >= part * (other_start - other_end):
        return []
    return [hit_at(loss, 0, peak=peak, level=end, reference=other_end, reference_lr=reference_lr)]


def _pair(evidence: Evidence) -> tuple[Series, Series, float, float] | Missing:
    """(loss, the baseline's loss, both up to the last step of the shorter, and the peak rates of the two)."""
    if evidence.baseline is None:
        return Missing("baseline:series:loss:points>=20")
    mine, other = descending_loss(evidence), descending_loss(evidence.baseline)
    lr, other_lr = rates(evidence), rates(evidence.baseline)
    if isinstance(mine, Missing) or isinstance(lr, Missing):
        return mine if isinstance(mine, Missing) else lr  # type: ignore[return-value]  # one of them is Missing
    if isinstance(other, Missing) or isinstance(other_lr, Missing):
        return Missing("baseline:series:loss:points>=20", "baseline:series:lr")
    last = min(int(mine.steps[-1]), int(other.steps[-1]))
    mine, other = mine.where(mine.steps <= last), other.where(other.steps <= last)
    if min(len(mine), len(other)) < 10:
        return Missing("baseline:series:loss over the same steps")
    return mine, other, float(lr.values.max()), float(other_lr.values.max())


def _level(loss: Series, end: int) -> float:
    """Median of the first (end 0) or last (end -1) twentieth of a loss, five points at least."""
    part = max(5, len(loss) // 20)
    return float(np.median(loss.values[:part] if end == 0 else loss.values[-part:]))


def is_adam(evidence: Evidence) -> bool:
    """Whether the optimizer normalises its steps as Adam does."""
    return bool(_ADAM.search(str(evidence.setting("optim") or "")))


class Recipe(NamedTuple):
    """Largest rates of published recipes for Adam-like optimizers.

    lora: for adapters; full: for full fine-tuning of a model of hidden size `large` or more; pretrain: from scratch at
    hidden size `width`, falling with its root; lion: part of these rates that Lion takes.
    """

    lora: float
    full: float
    large: float
    pretrain: float
    width: float
    lion: float


def recipe_bound(evidence: Evidence, recipe: Recipe) -> float | Missing:
    """The largest rate of published recipes for the optimizer and the size of the model."""
    optimizer, hidden = str(evidence.setting("optim")), evidence.number("hidden_size")
    if not _ADAM.search(optimizer):
        return Missing(f"a bound for the optimizer {optimizer!r}")
    part = recipe.lion if _LION.search(optimizer) else 1.0
    if evidence.setting("peft_type"):
        return part * recipe.lora
    if not hidden or hidden <= 0:
        return Missing("settings:hidden_size")
    if hidden >= recipe.large and _starts_trained(evidence):
        return part * recipe.full
    return part * recipe.pretrain * math.sqrt(recipe.width / hidden)


def _starts_trained(evidence: Evidence) -> bool:
    """Whether the loss begins where only a model that was trained before can begin: below half of ln V."""
    loss, vocabulary = evidence.series("loss"), evidence.number("vocab_size")
    if loss is None or not len(loss.good) or vocabulary is None or vocabulary < 2:
        return False
    return float(np.median(loss.good.values[:3])) < 0.5 * math.log(vocabulary)


@check(needs=["series:lr", "settings:optim", "series:loss"], facts=["peak", "bound", "optimizer"])
def lr_above_recipe(
    evidence: Evidence, *, lora: float, full: float, large: float, pretrain: float, width: float, lion: float
) -> Answer:
    """An Adam-like optimizer runs above the bound of published recipes, whose arguments are those of Recipe.

    Declared to read the loss too: a large rate alone is no evidence of harm, and so never confirms a sign of the loss.
    """
    lr, bound = rates(evidence), recipe_bound(evidence, Recipe(lora, full, large, pretrain, width, lion))
    if isinstance(lr, Missing):
        return lr
    if isinstance(bound, Missing):
        return bound
    above = np.flatnonzero(lr.values > bound)
    if not len(above):
        return []
    peak, optimizer = float(lr.values.max()), str(evidence.setting("optim"))
    return [hit_at(lr, int(above[0]), peak=peak, bound=bound, optimizer=optimizer)]


@check(
    needs=["series:loss:points>=20", "series:lr", "settings:optim"],
    facts=["best", "level", "rise", "best_step", "lr", "peak_lr", "bound"],
)
def left_best_level_above_recipe(
    evidence: Evidence,
    *,
    noise: float,
    rise: float,
    share: float,
    times: float,
    far: float,
    lora: float,
    full: float,
    large: float,
    pretrain: float,
    width: float,
    lion: float,
) -> Answer:
    """As left_best_level_at_high_lr, at a rate above every published recipe where the departure starts.

    That may be in the warm-up, far below the peak. The last six arguments are those of Recipe.
    """
    found = made_worse(evidence, noise, rise, share, times, far)
    bound = recipe_bound(evidence, Recipe(lora, full, large, pretrain, width, lion))
    if isinstance(found, Missing):
        return found
    if isinstance(bound, Missing):
        return bound
    return [replace(hit, facts={**hit.facts, "bound": bound}) for hit, here, _ in found if here > bound]


@check(
    needs=["series:loss:points>=20", "settings:unigram_entropy", "settings:vocab_size", "series:lr", "settings:optim"],
    facts=["level", "entropy", "chance", "peak_lr", "bound"],
)
def parks_at_unigram_above_recipe(
    evidence: Evidence,
    *,
    tolerance: float,
    share: float,
    lora: float,
    full: float,
    large: float,
    pretrain: float,
    width: float,
    lion: float,
) -> Answer:
    """As parks_at_unigram, at a learning rate above every published recipe for this optimizer (see Recipe)."""
    recipe = Recipe(lora, full, large, pretrain, width, lion)
    found, lr, bound = parked(evidence, tolerance, share), rates(evidence), recipe_bound(evidence, recipe)
    if isinstance(found, Missing) or not found:
        return found
    if isinstance(lr, Missing):
        return lr
    if isinstance(bound, Missing):
        return bound
    peak = float(lr.values.max())
    return [replace(hit, facts={**hit.facts, "peak_lr": peak, "bound": bound}) for hit in found] if peak > bound else []


@check(
    needs=["series:loss:points>=20", "series:lr", "baseline:series:loss:points>=20", "baseline:series:lr"],
    facts=["peak", "level", "reference", "reference_lr", "times"],
)
def worse_than_baseline_of_lower_lr(evidence: Evidence, *, times: float, gap: float, errors: float) -> Answer:
    """A run whose settings differ from the healthy baseline's in nothing but a higher learning rate ends worse.

    times: how many times higher the rate must be; gap, errors: how much worse, as a fraction of the baseline's level
    and in standard deviations of the noise. Settings that only name the run or a place do not count.
    """
    pair = _pair(evidence)
    if isinstance(pair, Missing):
        return pair
    loss, other, peak, reference_lr = pair
    if evidence.baseline is None or reference_lr <= 0 or peak < times * reference_lr:
        return []
    others = differing_settings(evidence, evidence.baseline)
    if isinstance(others, Missing):
        return others
    level, reference = _level(loss, -1), _level(other, -1)
    noise = max(signals.noise_sd(loss.values), signals.noise_sd(other.values))
    if others or level - reference <= max(gap * abs(reference), errors * noise):
        return []
    if reference >= _level(other, 0):
        return Missing("a baseline that learned")
    part = np.interp(loss.steps, other.steps, signals.rolling_median(other.values, 5))
    worse = signals.rolling_median(loss.values, 5) - part > max(gap * abs(reference), errors * noise)
    start = len(worse) - int(np.argmin(worse[::-1])) if not worse.all() else 0
    facts: dict[str, Any] = {"peak": peak, "reference_lr": reference_lr, "times": peak / reference_lr}
    return [hit_at(loss, min(start, len(loss) - 1), facts, level=level, reference=reference)]


def differing_settings(evidence: Evidence, other: Evidence) -> list[str] | Missing:
    """Settings, besides the learning rate and those that only name something, in which two runs differ."""
    mine, theirs = telling(evidence), telling(other)
    if len(mine.keys() & theirs.keys()) < _FEWEST:
        return Missing("settings of both runs")
    keys = sorted((mine.keys() | theirs.keys()) - {"learning_rate"})
    return [key for key in keys if not alike(mine.get(key), theirs.get(key))]


CHECKS: tuple[Check, ...] = (
    lr_identically_zero,
    stands_still_at_tiny_lr,
    stays_at_chance_at_tiny_lr,
    weights_hardly_travel,
    stays_above_baseline_at_lower_lr,
    lr_above_recipe,
    left_best_level_above_recipe,
    parks_at_unigram_above_recipe,
    worse_than_baseline_of_lower_lr,
)
