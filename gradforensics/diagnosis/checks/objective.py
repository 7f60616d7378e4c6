"""Checks on what the logged loss is: a mean per token in nats, or a multiple of it, another unit, or another target."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gradforensics import signals
from gradforensics.diagnosis.checks.loss import descending_loss, of_trainer, parts_of_loss, predicts_tokens
from gradforensics.diagnosis.vocabulary import Answer, Check, Fact, Hit, Missing, check, hit_at
from gradforensics.languages import Text
from gradforensics.tables import Evidence, Phase, Series

_SETTLED = 0.25  # |ln| of the change of the training loss around an evaluation beyond which no ratio is read
_CONSTANT = 0.1  # standard deviation of ln(train / eval); healthy public runs 0.004 to 0.05, overfitting ones 0.4 to 2
_MANY = 1000  # evaluations beyond which only some are compared
_BITS = 1.0 / math.log(2.0)  # bits per nat
_BITS_PER_TOKEN = Text("bits per token", "每 token 的比特")
_LEAST_NATS = 0.1  # below it a rounded perplexity says too little of its logarithm
_LEAST_VOCABULARY = 256  # below it V lies too close to ln V times a few
_AGREE = 0.1  # of the first value


def _positive(series: Series | None) -> Series | None:
    """The finite points above 0, None where there are none."""
    if series is None:
        return None
    kept = series.finite & (series.values > 0)
    if not kept.any():
        return None
    return series if kept.all() else series.where(kept)


@dataclass(frozen=True, slots=True)
class Ratios:
    """Training loss over evaluation loss wherever the training loss stands still enough to be compared.

    typical: their median; spread: standard deviation of their logarithms; held_out: the evaluations compared;
    eval_range: the largest of all evaluations over the smallest.
    """

    loss: Series
    held_out: Series
    typical: float
    spread: float
    eval_range: float


def _ratios(evidence: Evidence, evals: int) -> Ratios | Missing:
    """The ratios of the run, from at least so many evaluations."""
    found = evidence.once("train/eval", lambda: _compare(evidence))
    if isinstance(found, Missing):
        return found
    if found is None or len(found.held_out) < evals:
        return Missing(f"series:eval/loss:points>={evals}")
    return found


def _compare(evidence: Evidence) -> Ratios | Missing | None:
    loss = descending_loss(evidence)
    if isinstance(loss, Missing):
        return loss
    train, held_out = _positive(loss), _positive(evidence.series("loss", "eval"))
    if train is None:
        return Missing("series:loss")
    if held_out is None or train.step_unit != held_out.step_unit:
        return None
    if len(held_out) > _MANY:
        held_out = held_out.where(np.arange(len(held_out)) % -(-len(held_out) // _MANY) == 0)
    levels, change = signals.levels_around(train.steps, train.values, held_out.steps)
    settled = change < _SETTLED
    if not settled.any():
        return None
    logs = np.log(levels[settled] / held_out.values[settled])
    wide = float(held_out.values.max() / held_out.values.min())
    typical, spread = float(math.exp(np.median(logs))), float(np.std(logs))
    return Ratios(train, held_out.where(settled), typical, spread, wide)


def _multiples(evidence: Evidence, of: str) -> list[tuple[int, Text]] | Missing:
    """The whole numbers that a logged loss may be multiplied by, with what each of them is."""
    accumulation, ranks = evidence.number("gradient_accumulation_steps"), evidence.number("world_size")
    k, world = int(accumulation or 1), int(ranks or 1)
    if of == "ranks":
        if ranks is None:
            return Missing("settings:world_size")
        return [(world, Text(f"the {world} ranks", f"{world} 个 rank"))] if world > 1 and world != k else []
    if accumulation is None:
        return Missing("settings:gradient_accumulation_steps")
    found = [(k, _accumulated(k))] if k > 1 else []
    if k > 1 and world > 1:
        found.append((k * world, Text(f"{k} accumulation steps x {world} ranks", f"{k} 个累积步 x {world} 个 rank")))
    return found


def _accumulated(steps: int) -> Text:
    return Text(f"the {steps} accumulation steps", f"{steps} 个累积步")


def _near(value: float, expected: float, tolerance: float) -> bool:
    return abs(value / expected - 1) <= tolerance


@check(needs=[], facts=["ratio", "expected", "of", "train", "eval", "evals"])
def train_loss_is_multiple_of_eval(
    evidence: Evidence, *, of: str, least: float, tolerance: float, evals: int, record: str
) -> Answer:
    """Training loss / evaluation loss is constant and within `tolerance` of a number that multiplies (detector D23).

    of: "accumulation" (steps, or steps x ranks) or "ranks"; least: the smallest such number; evals: so many evaluations
    while the training loss is settled; record: "trainer" asks for a record of the Hugging Face Trainer, which logs the
    loss that it calls backward on, "other" for any other, "any" for either.
    """
    numbers = _multiples(evidence, of)
    if isinstance(numbers, Missing):
        return numbers
    numbers = [(n, text) for n, text in numbers if n >= least]
    if not numbers or (record != "any" and (record == "trainer") != of_trainer(evidence)):
        return []  # nothing multiplies, or another sign speaks of such records
    found = _ratios(evidence, evals)
    if isinstance(found, Missing):
        return found
    return _ratio_hits(found, [(n, t) for n, t in numbers if _near(found.typical, n, tolerance)])


@check(needs=[], facts=["ratio", "expected", "of", "train", "eval", "evals"])
def train_loss_is_fraction_of_eval(evidence: Evidence, *, least: float, tolerance: float, evals: int) -> Answer:
    """As train_loss_is_multiple_of_eval, of a record of the Trainer and 1 / the accumulation steps: divided twice."""
    numbers = _multiples(evidence, "accumulation")
    if isinstance(numbers, Missing):
        return numbers
    numbers = [(n, text) for n, text in numbers if n >= least]
    if not numbers or not of_trainer(evidence):
        return []
    found = _ratios(evidence, evals)
    if isinstance(found, Missing):
        return found
    return _ratio_hits(found, [(n, t) for n, t in numbers if _near(found.typical * n, 1.0, tolerance)])


def _ratio_hits(found: Ratios, matching: list[tuple[int, Text]]) -> list[Hit]:
    if not matching or found.spread > _CONSTANT:
        return []
    number, text = matching[0]
    last = float(found.held_out.values[-1])
    facts: dict[str, Fact] = {"ratio": found.typical, "expected": number, "of": text, "eval": last}
    facts |= {"train": float(found.loss.values[-1]), "evals": len(found.held_out)}
    return [hit_at(found.loss, 0, facts)]


@check(needs=[], facts=["ratio", "inverse", "train", "eval", "evals"])
def train_and_eval_scales_differ(
    evidence: Evidence, *, times: float, evals: int, eval_range: float, tolerance: float
) -> Answer:
    """Training and evaluation loss fall together at a constant ratio of `times` or more, up or down.

    eval_range: the largest evaluation over the smallest, below which nothing shows that they fall together. A ratio
    within `tolerance` of the accumulation steps or the ranks is left to the signs that name these.
    """
    found = _ratios(evidence, evals)
    if isinstance(found, Missing):
        return found
    far = max(found.typical, 1.0 / found.typical)
    if far < times or found.spread > _CONSTANT or found.eval_range < eval_range:
        return []
    for of in ("accumulation", "ranks"):
        numbers = _multiples(evidence, of)
        if not isinstance(numbers, Missing) and any(_near(far, n, tolerance) for n, _ in numbers):
            return []
    last = float(found.held_out.values[-1])
    facts: dict[str, Fact] = {"ratio": found.typical, "inverse": 1.0 / found.typical, "eval": last}
    facts |= {"train": float(found.loss.values[-1]), "evals": len(found.held_out)}
    return [hit_at(found.loss, 0, facts)]


@dataclass(frozen=True, slots=True)
class Start:
    """How the loss of a model of tokens begins: r0 = first value / ln V, the same of the evaluation where known."""

    loss: Series
    first: float
    chance: float
    vocabulary: float
    ratio: float
    eval_ratio: float | None


def _start(evidence: Evidence) -> Start | Missing:
    return evidence.once("start", lambda: _begun(evidence))


def _begun(evidence: Evidence) -> Start | Missing:
    loss = descending_loss(evidence)
    if isinstance(loss, Missing):
        return loss
    train, vocabulary = _positive(loss), evidence.number("vocab_size")
    if train is None:
        return Missing("series:loss")
    if vocabulary is None or vocabulary < 2 or not predicts_tokens(evidence):
        return Missing("settings:vocab_size")
    if parts := parts_of_loss(evidence, train):
        return Missing(f"a loss that is one mean over tokens (this one has parts: {', '.join(parts[:3])})")
    chance = math.log(vocabulary)
    held_out = _positive(evidence.series("loss", "eval"))
    # an evaluation before or right after the first logged step is of the untrained model as well
    early = held_out is not None and held_out.steps[0] <= train.steps[min(1, len(train) - 1)]
    eval_ratio = float(held_out.values[0]) / chance if held_out is not None and early else None
    first = float(train.values[0])
    return Start(train, first, chance, vocabulary, first / chance, eval_ratio)


@check(needs=["series:loss:points>=5"], facts=["start", "chance", "ratio", "expected", "of"])
def starts_at_multiple_of_chance(evidence: Evidence, *, of: str, least: float, low: float, high: float) -> Answer:
    """The first loss is ln V times a number that multiplies (detector D14): between `low` and `high` times it.

    of, least: as in train_loss_is_multiple_of_eval. An evaluation of the untrained model must not be multiplied.
    """
    numbers = _multiples(evidence, of)
    if isinstance(numbers, Missing):
        return numbers
    numbers = [(n, text) for n, text in numbers if n >= least]
    if not numbers:
        return []
    start = _start(evidence)
    if isinstance(start, Missing):
        return start
    matching = [(n, t) for n, t in numbers if low * n <= start.ratio <= high * n]
    if not matching or (start.eval_ratio is not None and start.eval_ratio > high):
        return []
    number, text = matching[0]
    facts: dict[str, Fact] = {"start": start.first, "chance": start.chance, "ratio": start.ratio}
    return [hit_at(start.loss, 0, facts, expected=number, of=text)]


def _token_counts(evidence: Evidence) -> list[tuple[float, Text]]:
    """Counts of tokens that a sum may run over, by the settings: of a sequence, a micro-batch, a step."""
    batch, length = evidence.number("per_device_train_batch_size"), evidence.number("max_seq_length")
    if not length or length < 2:
        return []
    found = [(length, Text(f"{length:.0f} tokens of a sequence", f"一条序列的 {length:.0f} 个 token"))]
    if batch:
        size = f"{batch:.0f} x {length:.0f}"
        found.append((batch * length, Text(f"{size} tokens of a micro-batch", f"一个微批次的 {size} 个 token")))
        k = evidence.number("gradient_accumulation_steps") or 1.0
        if k > 1:
            size = f"{k:.0f} x {size}"
            found.append((batch * length * k, Text(f"{size} tokens of a step", f"一步的 {size} 个 token")))
    return found


@check(needs=["series:loss:points>=5"], facts=["start", "chance", "ratio", "expected", "of"])
def starts_at_sum_over_tokens(evidence: Evidence, *, least: float, low: float, high: float) -> Answer:
    """The first loss is ln V times the number of tokens of a sequence, a micro-batch or a step (detector D14).

    least: the smallest such count that tells a sum from a bad start.
    """
    start = _start(evidence)
    if isinstance(start, Missing):
        return start
    counts = [(n, text) for n, text in _token_counts(evidence) if n >= least]
    if not counts:
        return [] if start.ratio < least else Missing("settings:max_seq_length")
    matching = [(n, t) for n, t in counts if low * n <= start.ratio <= high * n]
    if not matching:
        return []
    number, text = min(matching, key=lambda pair: abs(math.log(start.ratio / pair[0])))
    facts: dict[str, Fact] = {"start": start.first, "chance": start.chance, "ratio": start.ratio}
    return [hit_at(start.loss, 0, facts, expected=int(number), of=text)]


@check(needs=["series:loss:points>=5"], facts=["start", "chance", "ratio"])
def starts_beyond_any_mean(evidence: Evidence, *, times: float) -> Answer:
    """The first loss is more than `times` ln V, and no count of tokens explains it: it is no mean per token."""
    start = _start(evidence)
    if isinstance(start, Missing):
        return start
    if start.ratio <= times:
        return []
    return [hit_at(start.loss, 0, start=start.first, chance=start.chance, ratio=start.ratio)]


@check(needs=["series:loss:points>=10"], facts=["unit", "factor", "start"])
def loss_differs_from_log_perplexity(evidence: Evidence, *, points: int) -> Answer:
    """The perplexity logged beside the loss is 2 to the loss, not e to it: the loss is in bits."""
    phases: tuple[Phase, ...] = ("train", "eval")
    for phase in phases:
        loss, perplexity = _positive(evidence.series("loss", phase)), _positive(evidence.series("perplexity", phase))
        if loss is None or perplexity is None:
            continue
        _, left, right = np.intersect1d(loss.steps, perplexity.steps, return_indices=True)
        nats = np.log(perplexity.values[right])
        keep = nats > _LEAST_NATS
        if int(keep.sum()) < points:
            continue
        factor = loss.values[left][keep] / nats[keep]
        typical = float(np.median(factor))
        if typical <= 0 or float(np.std(np.log(factor))) > _CONSTANT:
            continue
        if not _near(typical, _BITS, 0.05):
            return []
        return [hit_at(loss, 0, unit=_BITS_PER_TOKEN, factor=typical, start=float(loss.values[0]))]
    return Missing("series:perplexity")


@check(needs=["series:loss:points>=10"], facts=["unit", "factor", "start"])
def starts_in_other_units(evidence: Evidence, *, low: float, high: float) -> Answer:
    """The first losses lie at ln V / ln 2 (bits) or at V (a perplexity) instead of at ln V, within `low` to `high`.

    Only training from scratch starts there; the first three points must agree, since a confident model that meets wrong
    labels may start anywhere.
    """
    start = _start(evidence)
    if isinstance(start, Missing):
        return start
    if float(np.ptp(start.loss.values[:3])) > _AGREE * start.first:
        return []
    if low <= start.first / start.vocabulary <= high and start.vocabulary >= _LEAST_VOCABULARY:
        return [hit_at(start.loss, 0, unit=Text("a perplexity", "困惑度"), factor=None, start=start.first)]
    if low <= start.ratio / _BITS <= high:
        return [hit_at(start.loss, 0, unit=_BITS_PER_TOKEN, factor=_BITS, start=start.first)]
    return []


@check(needs=["series:loss:points>=20"], facts=["level", "floor", "start", "chance", "epoch"])
def falls_below_floor(
    evidence: Evidence, *, floor: float, start: float, most: float, least_vocabulary: float, epoch: float, part: float
) -> Answer:
    """From a start near ln V the loss falls below `floor` within the first epoch, and stays there (detector D16).

    start, most: band of the first loss, in ln V, that shows training from scratch: a model that was trained before may
    begin anywhere, and an adapter or an encoder-decoder may answer with a few easy words; least_vocabulary: smaller
    ones belong to synthetic tasks that can be solved; epoch: up to which no sample was seen twice; part: of the planned
    steps, where no epochs are known. An evaluation loss that stays above the floor acquits: a model that has learnt its
    samples by heart shows none of it there, a leak does.
    """
    begun = _start(evidence)
    if isinstance(begun, Missing):
        return begun
    if evidence.setting("peft_type") is not None or "ConditionalGeneration" in str(evidence.setting("architectures")):
        return []
    if begun.vocabulary < least_vocabulary or not start <= begun.ratio <= most:
        return []
    loss = begun.loss
    level = signals.rolling_median(loss.values, 5)
    below = level < floor
    if not below.any():
        return []
    first = int(np.argmax(below))
    seen = _epochs_at(evidence, loss, first)
    if seen is None:
        return Missing("settings:num_train_epochs")
    early, text = seen
    if early > (epoch if text == "epochs" else part) or float(np.mean(below[first:])) < 0.9:
        return []
    held_out = _positive(evidence.series("loss", "eval"))
    if held_out is not None:
        after = held_out.values[held_out.steps >= loss.steps[first]]
        if len(after) and float(after.min()) > 2 * floor:
            return []
    facts: dict[str, Fact] = {"level": float(np.median(level[first:])), "floor": floor}
    facts |= {"start": begun.first, "chance": begun.chance, "epoch": early if text == "epochs" else None}
    return [hit_at(loss, first, facts)]


def _epochs_at(evidence: Evidence, loss: Series, index: int) -> tuple[float, str] | None:
    """Epochs passed at a point of the loss, or the part of the planned steps; None where neither is known."""
    logged = float(loss.epochs[index])
    fractional = loss.epochs[np.isfinite(loss.epochs)]
    if math.isfinite(logged) and len(fractional) and bool((fractional % 1 > 0).any()):
        return logged, "epochs"
    total, planned = evidence.number("max_steps"), evidence.number("num_train_epochs")
    if not total:
        return None
    done = float(loss.steps[index]) / total
    return (done * planned, "epochs") if planned else (done, "part")


@check(needs=["events:console"], facts=["message"])
def loss_is_no_scalar(evidence: Evidence) -> Answer:
    """backward() was called on a loss with more than one element, and torch refused."""
    return [
        Hit(e.step, source=e.source, line=e.line, facts={"message": e.text.strip()[:200]})
        for e in evidence.events_of("autograd_error")
        if e.data.get("error") == "not_scalar"
    ][:5]


@check(
    needs=["series:loss:points>=5", "baseline:series:loss:points>=5"],
    facts=["ratio", "expected", "of", "start", "start_then", "norm_ratio"],
)
def loss_is_multiple_of_baseline(evidence: Evidence, *, tolerance: float, points: int) -> Answer:
    """From the first step on, loss and gradient norm are the accumulation steps' multiple of the healthy run's.

    points: so many first steps that both runs logged are compared; tolerance: relative, of both ratios. Both runs must
    name their accumulation steps, and the ratio is of these: a healthy run may accumulate as well, and rightly.
    """
    other = evidence.baseline
    steps = evidence.number("gradient_accumulation_steps")
    if other is None or steps is None:
        return Missing("settings:gradient_accumulation_steps")
    if steps < 2:
        return []
    loss = _ratio_to(evidence, other, "loss", points)
    if loss is None:
        return Missing("baseline:series:loss:points>=5")
    norm = _ratio_to(evidence, other, "grad_norm", points)
    if norm is None:
        return Missing("series:grad_norm")
    if not _near(loss, steps, tolerance) or not _near(norm, steps, tolerance):
        return []
    series = descending_loss(evidence)
    if isinstance(series, Missing):
        return series
    then = other.series("loss")
    facts: dict[str, Fact] = {"ratio": loss, "norm_ratio": norm, "expected": int(steps)}
    facts |= {"of": _accumulated(int(steps)), "start": float(series.values[0])}
    return [hit_at(series, 0, facts, start_then=None if then is None else float(then.good.values[0]))]


def _ratio_to(evidence: Evidence, other: Evidence, name: str, points: int) -> float | None:
    """Median ratio of a series to that of another run over the first steps that both logged."""
    mine, theirs = _positive(evidence.series(name)), _positive(other.series(name))
    if mine is None or theirs is None:
        return None
    _, left, right = np.intersect1d(mine.steps, theirs.steps, return_indices=True)
    if len(left) < min(points, 5):
        return None
    return float(np.median(mine.values[left[:points]] / theirs.values[right[:points]]))


CHECKS: tuple[Check, ...] = (
    train_loss_is_multiple_of_eval,
    train_loss_is_fraction_of_eval,
    train_and_eval_scales_differ,
    starts_at_multiple_of_chance,
    starts_at_sum_over_tokens,
    starts_beyond_any_mean,
    loss_differs_from_log_perplexity,
    starts_in_other_units,
    falls_below_floor,
    loss_is_no_scalar,
    loss_is_multiple_of_baseline,
)
