"""Checks on the training loss, alone or beside the gradient norm and the learning rate."""

from __future__ import annotations

import math
import re

import numpy as np

from gradforensics import signals
from gradforensics.diagnosis.vocabulary import Answer, Check, Fact, Hit, Missing, check, hit_at
from gradforensics.patterns import lazy
from gradforensics.tables import Evidence, Series

# Names that only reinforcement learning, adversarial training and annealed objectives log: such losses need not fall.
_NOT_DESCENDING = lazy(
    r"(?:^|[/_. -])(?:rewards?|episode|ep_rew|ep_len|returns?|advantages?|clip_?frac(?:tion)?|explained_variance"
    r"|td_error|q_values?|discriminator|generator|critic|actor|policy|vf_loss|[dg]_?loss|loss_?[dg]|err_?[dg]|gan"
    r"|disc\w*_loss|gen\w*_loss|adv\w*|epsilon|kld|kl_weight|recon\w*_loss)(?:$|[/_. -])"
    r"|Loss/[DG](?:/|$)",
    re.IGNORECASE,
)
_TRAINER_READERS = frozenset({"hf-trainer-state", "llamafactory-log"})
_TOKEN_SETTINGS = ("vocab_size", "unigram_entropy")
_CLASSES = ("num_classes", "num_labels", "n_classes", "nb_classes", "num_class")
_TOKEN_LOSS = lazy(r"(?:^|[/_. ])m?lm[ _]loss$", re.IGNORECASE)
_TOKEN_MODELS = lazy(r"CausalLM|LMHead|ConditionalGeneration|MaskedLM|CAUSAL_LM|SEQ_2_SEQ_LM")


def descending_loss(evidence: Evidence) -> Series | Missing:
    """The finite points of a training loss that is meant to fall; Missing for rewards and adversarial losses."""
    series = evidence.series("loss")
    if series is None:
        return Missing("series:loss")
    tags = [key.tag for key in evidence.frames]
    preference = any("rewards/margins" in tag for tag in tags)  # DPO and its kin log rewards beside a loss that falls
    if not preference and any(_NOT_DESCENDING.search(tag) for tag in tags):
        return Missing("a loss that is meant to fall (this run logs rewards, a policy or an adversary)")
    return series.good if series.finite.any() else Missing("series:loss with finite values")


def loss_and_norm(evidence: Evidence, *, finite: bool) -> tuple[Series, Series] | Missing:
    """The finite points of a loss that is meant to fall and the gradient norm at their common steps.

    finite: leave out the steps at which the norm is NaN or infinite.
    """
    loss, norm = descending_loss(evidence), evidence.series("grad_norm")
    if isinstance(loss, Missing):
        return loss
    if norm is None:
        return Missing("series:grad_norm")
    norm = norm.good if finite else norm
    left, right = signals.common_places(loss.steps, norm.steps)
    if not len(left):
        return Missing("series:grad_norm at the steps of the loss")
    return loss.at(left), norm.at(right)


def _left(
    evidence: Evidence, loss: Series, noise: float, rise: float, share: float, times: float, far: float
) -> signals.Departure | None:
    """A lasting departure over `share` of the record.

    A quarter of that (10 points at least) will do for one that ends at more than `times` the best and the first level.
    """
    wanted = ("departure", noise, rise, far)
    found = evidence.once(wanted, lambda: signals.departure(loss.steps, loss.values, noise, rise, far))
    if found is None:
        return None
    late = found.points >= 10 and found.share >= share / 4 and found.end > times * max(found.best, found.initial) > 0
    return found if found.share >= share or late else None


@check(needs=["series:loss:points>=20"], facts=["best", "level", "rise", "best_step"])
def left_best_level(evidence: Evidence, *, noise: float, rise: float, share: float, times: float, far: float) -> Answer:
    """The loss rose far above its best level and stayed there for at least `share` of the record."""
    loss = descending_loss(evidence)
    if isinstance(loss, Missing):
        return loss
    found = _left(evidence, loss, noise, rise, share, times, far)
    return [_departure_hit(loss, found)] if found else []


@check(needs=["series:loss:points>=20"], facts=["best", "level", "rise", "best_step", "initial"])
def left_far_above_its_start(
    evidence: Evidence, *, noise: float, rise: float, share: float, times: float, far: float
) -> Answer:
    """As left_best_level, and the record ends at `times` its first level: worse than no training at all."""
    loss = descending_loss(evidence)
    if isinstance(loss, Missing):
        return loss
    found = _left(evidence, loss, noise, rise, share, times, far)
    if found is None or found.initial <= 0 or found.end < times * found.initial:
        return []
    return [_departure_hit(loss, found, initial=found.initial)]


@check(needs=["series:loss:points>=20", "series:lr"], facts=["best", "level", "rise", "best_step", "lr", "peak_lr"])
def left_best_level_at_high_lr(
    evidence: Evidence, *, noise: float, rise: float, share: float, times: float, far: float, high: float
) -> Answer:
    """As left_best_level, at `high` of the peak learning rate or more, and the loss rose above its first level.

    A rate that is too high makes a model worse than it began; a change of the data or of the objective rarely does.
    """
    found = made_worse(evidence, noise, rise, share, times, far)
    if isinstance(found, Missing):
        return found
    return [hit for hit, here, peak in found if here >= high * peak > 0]


def made_worse(
    evidence: Evidence, noise: float, rise: float, share: float, times: float, far: float
) -> list[tuple[Hit, float, float]] | Missing:
    """A lasting departure to above the first level as (hit, rate where it starts, peak rate); [] where there is none.

    The arguments are those of left_best_level; the hit has the facts lr and peak_lr besides.
    """
    loss, lr = descending_loss(evidence), evidence.series("lr")
    if isinstance(loss, Missing) or lr is None:
        return loss if isinstance(loss, Missing) else Missing("series:lr")
    found = _left(evidence, loss, noise, rise, share, times, far)
    if found is None or found.peak <= found.initial or not len(lr.good):
        return []
    peak = float(lr.good.values.max())
    here = float(np.interp(loss.steps[found.start], lr.good.steps, lr.good.values))
    return [(_departure_hit(loss, found, lr=here, peak_lr=peak), here, peak)]


def _departure_hit(loss: Series, found: signals.Departure, **more: Fact) -> Hit:
    return hit_at(
        loss,
        found.start,
        more,
        best=found.best,
        level=found.end,
        rise=found.rise,
        best_step=int(loss.steps[found.best_index]),
    )


@check(
    needs=["series:loss:points>=20", "series:grad_norm:points>=20"],
    facts=["best", "level", "rise", "best_step", "norm_before", "norm_peak"],
)
def left_best_level_with_gradient(
    evidence: Evidence, *, noise: float, rise: float, share: float, times: float, far: float, factor: float
) -> Answer:
    """As left_best_level, and from its best on the gradient norm rose to `factor` times its lowest level before."""
    loss, norm = descending_loss(evidence), evidence.series("grad_norm")
    if isinstance(loss, Missing):
        return loss
    if norm is None or len(norm.good) < 20:
        return Missing("series:grad_norm:points>=20")
    found = _left(evidence, loss, noise, rise, share, times, far)
    if found is None:
        return []
    level = signals.rolling_median(norm.good.values, 3)
    since = norm.good.steps >= loss.steps[found.best_index]
    if not since.any():
        return []
    lowest = float(level[: int(np.argmax(since)) + 1].min())  # of the healthy part, up to the best loss
    peak = float(level[since].max())
    if lowest <= 0 or peak < factor * lowest:
        return []
    return [_departure_hit(loss, found, norm_before=lowest, norm_peak=peak)]


@check(
    needs=["series:loss:points>=20", "settings:unigram_entropy", "settings:vocab_size"],
    facts=["level", "entropy", "chance"],
)
def parks_at_unigram(evidence: Evidence, *, tolerance: float, share: float) -> Answer:
    """The last `share` of the loss lies flat within `tolerance` of the unigram entropy of the labels (detector D15).

    It must lie nearer to the unigram entropy than to ln V: a model that has not moved at all sits at ln V.
    """
    return parked(evidence, tolerance, share)


def parked(evidence: Evidence, tolerance: float, share: float) -> Answer:
    """What parks_at_unigram answers; checks that ask more build on it."""
    loss, entropy = descending_loss(evidence), evidence.number("unigram_entropy")
    vocabulary = evidence.number("vocab_size")
    if isinstance(loss, Missing):
        return loss
    if entropy is None or vocabulary is None or vocabulary < 2:
        return Missing("settings:unigram_entropy", "settings:vocab_size")
    chance = math.log(vocabulary)
    tail = loss.where(np.arange(len(loss)) >= int(len(loss) * (1 - share)))
    level = float(np.median(tail.values))
    if abs(level / entropy - 1) > tolerance or abs(level - entropy) >= abs(level - chance):
        return []
    near = np.abs(loss.values / entropy - 1) <= tolerance
    start = len(loss) - int(np.argmin(near[::-1])) if not near.all() else 0
    start = min(start, len(loss) - len(tail))
    return [hit_at(loss, start, level=level, entropy=entropy, chance=chance)]


@check(needs=["series:loss:points>=100"], facts=["correlation", "amplitude"])
def bounces(evidence: Evidence, *, correlation: float, amplitude: float, points: int) -> Answer:
    """The loss bounces with period 2: differences anticorrelated beyond white noise (-0.5) over `points` points.

    amplitude: least standard deviation of the differences, as a fraction of the level.
    """
    loss = descending_loss(evidence)
    if isinstance(loss, Missing):
        return loss
    if len(loss) < points:
        return []
    every = max(1, points // 4, len(loss) // 2000)
    windows = np.lib.stride_tricks.sliding_window_view(loss.values, points)[::every]
    for index in np.flatnonzero(signals.lag1_of_differences(windows) < correlation).tolist():
        part = windows[index]
        level = abs(float(np.median(part)))
        swing = float(np.std(np.diff(part))) / level if level > 0 else 0.0
        if swing > amplitude:
            found = float(signals.lag1_of_differences(part))
            return [hit_at(loss, index * every, correlation=found, amplitude=swing)]
    return []


@check(needs=["series:loss:points>=4"], facts=["best", "last", "growth", "first_bad"])
def rises_to_nonfinite(evidence: Evidence, *, growth: float, points: int, steep: float) -> Answer:
    """Before the first lasting NaN or infinity the loss had risen to `growth` times its best over `points` points.

    A rise to `steep` times its best needs only three points.
    """
    for loss in evidence.attempts("loss"):
        start = lasting_bad(loss)
        if start is None:
            continue
        before = loss.where(np.arange(len(loss)) < start).good
        if len(before) < 3:
            continue
        level = signals.rolling_median(before.values, 3)
        best_index = int(np.argmin(level))
        best, last = float(level[best_index]), float(before.values[-1])
        rising = before.values[best_index:]
        if best <= 0 or last < growth * best or len(rising) < (points if last < steep * best else 3):
            continue
        if float(np.mean(np.diff(rising) > 0)) < 0.5:
            continue
        above = np.flatnonzero(level > 1.1 * best)
        above = above[above > best_index]
        first = int(above[0]) if len(above) else best_index
        bad = float(loss.steps[start])
        return [hit_at(before, first, best=best, last=last, growth=last / best, first_bad=int(bad))]
    return []


def lasting_bad(series: Series) -> int | None:
    """Index of the first point from which on the series is non-finite to its end, or nearly so (nine points in ten).

    A non-finite stretch that ends is none: weights that had taken it would not give finite values again.
    """
    bad = series.bad
    if not bad.any():
        return None
    share = np.cumsum(bad[::-1])[::-1] / np.arange(len(bad), 0, -1)
    found = np.flatnonzero(bad & (share >= 0.9))
    return int(found[0]) if len(found) and bad[-1] else None


def predicts_tokens(evidence: Evidence) -> bool:
    """Whether the run speaks of a model that predicts tokens, so that the loss can be read as nats per token."""
    if any(evidence.setting(k) is not None for k in _TOKEN_SETTINGS):
        architectures = str(evidence.setting("architectures") or "")
        return not architectures or bool(_TOKEN_MODELS.search(architectures))
    if _TOKEN_MODELS.search(f"{evidence.setting('task_type')} {evidence.setting('architectures')}"):
        return True
    return of_trainer(evidence) or any(_TOKEN_LOSS.search(key.tag) for key in evidence.keys("loss"))


def classes(evidence: Evidence) -> float | None:
    """Among how many a model chooses that begins at ln of them: tokens of the vocabulary, or the classes of settings.

    None where that is not known, and for preference training, which begins at ln 2 by design.
    """
    if any("rewards/" in key.tag for key in evidence.frames):
        return None
    tokens = ("vocab_size",) if predicts_tokens(evidence) else ()
    known = (evidence.number(key) for key in (*tokens, *_CLASSES))
    return next((count for count in known if count is not None and count >= 2), None)


def of_trainer(evidence: Evidence) -> bool:
    """Whether the Hugging Face Trainer wrote this record."""
    return any(s.reader in _TRAINER_READERS for s in evidence.sources)


def _as_long(evidence: Evidence, name: str, loss: Series) -> bool:
    """Whether this series goes along with the loss; a summary row at the end does not."""
    other = evidence.series(name)
    return other is not None and 2 * len(other) >= len(loss)


def parts_of_loss(evidence: Evidence, loss: Series) -> list[str]:
    """Names of other losses that were logged beside this one: then it may be a sum of terms."""
    return [
        n
        for n in evidence.names("train")
        if n not in ("loss", "loss_scale") and "loss" in n and _as_long(evidence, n, loss)
    ]


@check(needs=["series:loss:points>=20"], facts=["start", "chance", "level", "vocabulary"])
def starts_worse_than_chance(
    evidence: Evidence,
    *,
    excess: float,
    most: float,
    largest_vocabulary: float,
    usual_vocabulary: float,
    park: float,
    drift: float,
) -> Answer:
    """The loss starts above `excess` x ln V and then lies flat at `park` x ln V or more (detectors D14 and D15).

    Without a known vocabulary the start must exceed the ln V of `largest_vocabulary`, and the level `park` x ln of
    `usual_vocabulary`. Starts above `most` x ln V are sums, not means, and another fault. drift: the largest change
    between the first quarter and the end, as a fraction of the level, that still counts as flat.
    """
    loss = descending_loss(evidence)
    if isinstance(loss, Missing):
        return loss
    if not predicts_tokens(evidence):
        return Missing("settings:vocab_size")
    parts = parts_of_loss(evidence, loss)
    if parts:
        return Missing(f"a loss that is one mean over tokens (this one has parts: {', '.join(parts[:3])})")
    vocabulary = evidence.number("vocab_size")
    if vocabulary is not None and vocabulary < 2:
        return Missing("settings:vocab_size")
    chance = math.log(vocabulary or largest_vocabulary)
    start = float(np.median(loss.values[:3]))
    width = max(3, len(loss) // 20)
    quarter = len(loss) // 4
    early = float(np.median(loss.values[quarter - width : quarter + width]))
    level = float(np.median(loss.values[-2 * width :]))
    if abs(early - level) > drift * level:  # it learns on: no wrong labels, whatever the vocabulary
        return []
    low = park * math.log(vocabulary or usual_vocabulary)
    over = start > (excess * chance if vocabulary else chance) and start < most * chance
    if not over or not low <= level < chance:
        # a start below the ln V of every vocabulary may still lie above the ln V of this one
        return [] if over or vocabulary else Missing("settings:vocab_size")
    return [hit_at(loss, 0, start=start, chance=chance, level=level, vocabulary=vocabulary)]


CHECKS: tuple[Check, ...] = (
    left_best_level,
    left_best_level_at_high_lr,
    left_best_level_with_gradient,
    left_far_above_its_start,
    parks_at_unigram,
    bounces,
    rises_to_nonfinite,
    starts_worse_than_chance,
)
