"""Checks on the samples and tokens of an optimizer step: by the settings, by the plan, and by what was counted."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import dataclass

import numpy as np

from gradforensics.diagnosis.vocabulary import Answer, Check, Fact, Hit, Missing, check, hit_at
from gradforensics.languages import Text
from gradforensics.patterns import lazy
from gradforensics.tables import Evidence, Series

# Names under which a batch is that of one device and one pass; a bare "batch_size" may be that of all devices.
_PER_DEVICE = lazy(
    r"(?:^|\.)(?:per_device_train_batch_size|(?:train_)?micro_batch_size(?:_per_gpu|_per_device)?"
    r"|local_batch_size|instantaneous batch size per device)$",
    re.IGNORECASE,
)
_MODEL_PARALLEL = lazy(
    r"(?:^|\.)(?:(?:tensor|pipeline|context|sequence)(?:_model)?_parallel(?:_size|_degree)?|tp|pp|cp|tp_size|pp_size"
    r"|cp_size|tp_degree|pp_degree)$",
    re.IGNORECASE,
)
_RAMP = lazy(r"(?:^|\.)(?:rampup_batch_size|batch_size_(?:warmup|schedule|ramp\w*))$", re.IGNORECASE)
_TOKENS_SEEN = lazy(
    r"(?:^|[/_. ])(?:num_input_tokens_seen|n_tokens_seen|num_tokens_seen|tokens_seen|consumed_tokens|consumed tokens)$",
    re.IGNORECASE,
)
_SAMPLES_SEEN = lazy(
    r"(?:^|[/_. ])(?:consumed_(?:train_)?samples|consumed samples|samples_seen|n_samples_seen|num_samples_seen)$",
    re.IGNORECASE,
)
_SMALL_NORM = lazy(r"^(?:micro|local|micro_batch|microbatch|per_rank)_?grad(?:ient)?_?norm$", re.IGNORECASE)
_EVEN = 1e-6  # relative; a counter that grows by the same amount at every step has no padding in it


@dataclass(frozen=True, slots=True)
class _Batch:
    """Samples (or tokens) per optimizer step, and where the number is from. at: the series point that shows it."""

    size: float
    text: Text
    error: float = 0.0
    at: Hit | None = None


def _by_settings(evidence: Evidence) -> _Batch | Missing:
    """Micro-batch x accumulation steps x data-parallel ranks; Missing where one of them is not stated."""
    micro = _stated_micro(evidence)
    k, world = evidence.number("gradient_accumulation_steps"), evidence.number("world_size")
    lacking = [
        f"settings:{key}"
        for key, value in (
            ("per_device_train_batch_size", micro),
            ("gradient_accumulation_steps", k),
            ("world_size", world),
        )
        if not value or value < 1
    ]
    if lacking or micro is None or k is None or world is None:
        return Missing(*lacking)
    model = _model_parallel(evidence)
    if world % model:
        return Missing(f"data-parallel ranks ({world:.0f} ranks do not divide by {model} of model parallelism)")
    ranks = world / model
    return _Batch(micro * k * ranks, _product(micro, k, ranks))


def _product(micro: float, k: float, ranks: float) -> Text:
    return Text(
        f"{micro:.0f} x {k:.0f} accumulation steps x {ranks:.0f} ranks",
        f"{micro:.0f} x {k:.0f} 个累积步 x {ranks:.0f} 个 rank",
    )


def _stated_micro(evidence: Evidence) -> float | None:
    """The batch of one device and one pass, where a setting says so by its name."""
    for setting in evidence.settings or []:
        if setting.key == "per_device_train_batch_size" and (
            setting.origin == "user" or _PER_DEVICE.search(setting.name)
        ):
            return evidence.number("per_device_train_batch_size")
    return None


def _model_parallel(evidence: Evidence) -> int:
    """Ranks that share one copy of the model: of tensor, pipeline and context parallelism together."""
    found: dict[str, int] = {}
    for setting in evidence.settings or []:
        kind = setting.name.rpartition(".")[2].lower().lstrip("_")[0:1]
        if _MODEL_PARALLEL.search(setting.name) and isinstance(setting.value, int) and setting.value > 1:
            found[kind] = setting.value
    return math.prod(found.values())


def _length(evidence: Evidence) -> float | None:
    length = evidence.number("max_seq_length")
    return length if length and length > 1 else None


def _counted(evidence: Evidence) -> _Batch | None:
    """Samples per step that the log counted: a counter of samples or tokens, epochs, or the Trainer's last row."""
    return _by_counter(evidence) or _by_epochs(evidence) or _by_last_row(evidence)


def _by_counter(evidence: Evidence) -> _Batch | None:
    length = _length(evidence)
    samples, tokens = Text("samples", "样本"), Text("tokens", " token")
    for pattern, per_sample, what in ((_SAMPLES_SEEN, 1.0, samples), (_TOKENS_SEEN, length, tokens)):
        for name in evidence.names("train"):
            series = evidence.series(name)
            if series is None or not pattern.search(series.tag) or per_sample is None:
                continue
            growth = _growth(series)
            if growth is not None:
                each = what is tokens and length
                text = Text(
                    f"{growth:.6g} {what.en} per step in {series.tag}"
                    + (f", {length:.0f} per sequence" if each else ""),
                    f"{series.tag} 每步 {growth:.6g} 个{what.zh}" + (f"，每条序列 {length:.0f} 个" if each else ""),
                )
                return _Batch(growth / per_sample, text, _EVEN, hit_at(series.good, 0))
    return None


def _growth(series: Series) -> float | None:
    """Growth per step of a counter that grows by the same amount at every step, else None."""
    good = series.good
    if series.step_unit != "step" or len(good) < 5 or len(np.unique(good.attempts)) > 1:
        return None
    steps, grown = np.diff(good.steps), np.diff(good.values)
    rates = grown / np.maximum(steps, 1)
    typical = float(np.median(rates))
    even = np.abs(rates - typical) <= _EVEN * abs(typical)
    return typical if typical > 0 and float(np.mean(even)) >= 0.9 else None


@dataclass(frozen=True, slots=True)
class _Epochs:
    """Fractional epochs over the steps of one attempt: per_step, their growth; error: its relative uncertainty."""

    part: Series
    per_step: float
    error: float


def _epochs(evidence: Evidence) -> list[_Epochs | None]:
    """How the epoch grows in every attempt, None where too little was logged; from rows of the loss or a series."""
    parts = evidence.attempts("loss")
    if not any(np.isfinite(part.epochs).any() for part in parts):
        return [_growth_of_epochs(part, part.values) for part in evidence.attempts("epoch")]
    return [_growth_of_epochs(part, part.epochs) for part in parts]


def _growth_of_epochs(part: Series, epochs: np.ndarray) -> _Epochs | None:
    known = np.flatnonzero(np.isfinite(epochs))
    if len(known) < 5 or part.step_unit != "step" or not bool((epochs[known] % 1 > 0).any()):
        return None
    span = float(epochs[known[-1]] - epochs[known[0]])
    steps = float(part.steps[known[-1]] - part.steps[known[0]])
    if span <= 0 or steps <= 0:
        return None
    # epochs are often logged with two digits, and the last batch of an epoch may be shorter or dropped
    return _Epochs(part, span / steps, 0.02 / span + 1.5 * span / steps)


def _by_epochs(evidence: Evidence) -> _Batch | None:
    """Growth of the logged epoch per step times the number of training samples."""
    samples, attempts = _dataset_size(evidence), _epochs(evidence)
    if not samples or len(attempts) != 1 or attempts[0] is None:
        return None
    found = attempts[0]
    text = Text(
        f"{1 / found.per_step:.6g} steps per epoch over {samples:.0f} samples",
        f"每个 epoch {1 / found.per_step:.6g} 步，共 {samples:.0f} 个样本",
    )
    return _Batch(samples * found.per_step, text, found.error, hit_at(found.part, 0))


def _dataset_size(evidence: Evidence) -> float | None:
    stated = evidence.number("dataset_size")
    if stated:
        return stated
    logged = evidence.series("train_samples")
    return float(logged.good.values[-1]) if logged is not None and len(logged.good) else None


def _by_last_row(evidence: Evidence) -> _Batch | None:
    """What the Trainer says at its end: samples per second / steps per second, over all ranks.

    Both count the same steps: all of the run in older versions, those of the last launch in newer ones.
    """
    rate, pace = evidence.series("train_samples_per_second"), evidence.series("train_steps_per_second")
    if rate is None or pace is None or not len(rate.good) or not len(pace.good):
        return None
    total = evidence.number("max_steps")
    if not total or evidence.steps is None or evidence.steps[1] < total:
        return None
    samples, steps = float(rate.good.values[-1]), float(pace.good.values[-1])
    if samples <= 0 or steps <= 0:
        return None
    # the rates are rounded to three digits behind the point, and every epoch may end with a shorter batch
    error = 0.0005 / samples + 0.0005 / steps + 1.5 * (evidence.number("num_train_epochs") or 1.0) / total
    text = Text(f"{samples:.6g} samples and {steps:.6g} steps per second", f"每秒 {samples:.6g} 个样本、{steps:.6g} 步")
    return _Batch(samples / steps, text, error, hit_at(rate.good, -1))


def _planned(evidence: Evidence) -> float | None:
    return evidence.number("global_batch_size")


def _declares_a_ramp(evidence: Evidence) -> bool:
    return any(_RAMP.search(s.name) and s.value for s in evidence.settings or [])


@check(needs=[], facts=["size", "planned", "ratio", "of"])
def batch_differs_from_plan(evidence: Evidence, *, tolerance: float) -> Answer:
    """The planned batch (global_batch_size) is not the one by the settings or by what the log counted.

    tolerance: relative. A plan in tokens is compared with the tokens of a sequence. Batches that ramp up as declared
    are not judged.
    """
    planned = _planned(evidence)
    if not planned:
        return Missing("settings:global_batch_size")
    if _declares_a_ramp(evidence):
        return Missing("a batch that stays the same (this run declares a ramp)")
    counted = _counted(evidence)
    stated = _by_settings(evidence)
    found = counted or stated
    if isinstance(found, Missing):
        return found
    margin = tolerance + found.error
    length = _length(evidence)
    if _equal(found.size, planned, margin) or (length and _equal(found.size * length, planned, margin)):
        return []
    if length is None and planned > 50 * found.size:
        return Missing("settings:max_seq_length")
    if length and planned > 50 * found.size:
        planned /= length
    facts: dict[str, Fact] = {"size": found.size, "planned": planned, "ratio": found.size / planned, "of": found.text}
    return [_hit(found, facts)]


@check(needs=[], facts=["size", "planned", "ratio", "of", "settings"])
def batch_differs_from_settings(evidence: Evidence, *, tolerance: float) -> Answer:
    """What the log counted per step is not micro-batch x accumulation steps x ranks.

    Where the ranks are not known, any whole number of them will do.
    """
    if _declares_a_ramp(evidence):
        return Missing("a batch that stays the same (this run declares a ramp)")
    stated, counted = _by_settings(evidence), _counted(evidence)
    if counted is None:
        return Missing(*(stated.what if isinstance(stated, Missing) else ()), "settings:dataset_size")
    if isinstance(stated, Missing):
        stated = _with_implied_ranks(evidence, counted) or stated
    if isinstance(stated, Missing):
        return stated
    if _equal(counted.size, stated.size, tolerance + counted.error):
        return []
    facts: dict[str, Fact] = {"size": counted.size, "planned": stated.size, "ratio": counted.size / stated.size}
    return [_hit(counted, facts | {"of": counted.text, "settings": stated.text})]


def _with_implied_ranks(evidence: Evidence, counted: _Batch) -> _Batch | None:
    """Micro-batch x accumulation steps x the whole number of ranks that comes nearest to what was counted."""
    micro, k = _stated_micro(evidence), evidence.number("gradient_accumulation_steps")
    if not micro or not k or evidence.number("world_size") is not None:
        return None
    ranks = max(1, round(counted.size / (micro * k)))
    return _Batch(micro * k * ranks, _product(micro, k, ranks))


def _hit(found: _Batch, facts: dict[str, Fact]) -> Hit:
    if found.at is None:
        return Hit(None, facts=facts)
    return Hit(found.at.step, None, found.at.series, found.at.tag, None, found.at.source, found.at.line, None, facts)


def _equal(value: float, expected: float, margin: float) -> bool:
    return abs(value / expected - 1) <= margin


@check(needs=["series:loss"], facts=["before", "now", "ratio", "attempt"])
def batch_changed_on_resume(evidence: Evidence, *, tolerance: float) -> Answer:
    """From one attempt to the next the epoch grows faster or slower per step: the batch is another one.

    tolerance: relative; epochs are logged with few digits, so that short attempts are not judged.
    """
    if len(evidence.attempts("loss")) < 2:
        return []
    known = [found for found in _epochs(evidence) if found is not None]
    if len(known) < 2:
        return Missing("epochs as fractions beside every loss, in both attempts")
    if _declares_a_ramp(evidence):
        return Missing("a batch that stays the same (this run declares a ramp)")
    hits = []
    for before, now in itertools.pairwise(known):
        if not _equal(now.per_step, before.per_step, tolerance + now.error + before.error):
            facts: dict[str, Fact] = {"before": 1 / before.per_step, "now": 1 / now.per_step}
            facts |= {"ratio": now.per_step / before.per_step, "attempt": int(now.part.attempts[0])}
            hits.append(hit_at(now.part, 0, facts))
    return hits


@check(needs=["series:grad_norm:points>=20"], facts=["noise_scale", "size", "ratio", "small"])
def batch_far_from_noise_scale(evidence: Evidence, *, side: str, times: float, points: int) -> Answer:
    """The batch is `times` below ("below") or above ("above") the gradient noise scale (detector D20).

    Needs the gradient norm of a micro-batch (or of one rank) beside that of the whole step. With the squared norms
    G_small and G_big for B_small and B_big samples: |G|^2 = (B_big G_big - B_small G_small) / (B_big - B_small),
    tr S = (G_small - G_big) / (1/B_small - 1/B_big), B_simple = tr S / |G|^2 (McCandlish et al., arXiv 1812.06162,
    appendix A.1), from means over the record: single steps are far too noisy. |G|^2 is a small difference of large
    numbers; its value two standard errors off, in the direction that acquits, is taken.
    """
    small = next((n for n in evidence.names("train") if _SMALL_NORM.match(n)), None)
    if small is None:
        return Missing("series:micro_grad_norm (of one micro-batch)")
    norm, part = evidence.series("grad_norm"), evidence.series(small)
    whole, micro = _by_settings(evidence), _stated_micro(evidence)
    if isinstance(whole, Missing):
        return whole
    if norm is None or part is None or micro is None or whole.size <= micro:
        return Missing("settings:gradient_accumulation_steps")
    _, left, right = np.intersect1d(norm.good.steps, part.good.steps, return_indices=True)
    if len(left) < points:
        return Missing(f"series:{small}:points>={points}")
    big, little = norm.good.values[left] ** 2, part.good.values[right] ** 2
    signals = (whole.size * big - micro * little) / (whole.size - micro)
    error = 2.0 * float(np.std(signals)) / math.sqrt(len(signals))
    signal = float(np.mean(signals)) + (error if side == "below" else -error)
    variance = float(np.mean(little - big)) / (1 / micro - 1 / whole.size)
    if signal <= 0 or variance <= 0:
        return []  # nothing but noise, or no noise to speak of: no number can be given
    scale = variance / signal
    off = whole.size < scale / times if side == "below" else whole.size > scale * times
    if not off:
        return []
    facts: dict[str, Fact] = {"noise_scale": scale, "size": whole.size, "ratio": whole.size / scale, "small": micro}
    return [hit_at(norm.good, 0, facts)]


CHECKS: tuple[Check, ...] = (
    batch_differs_from_plan,
    batch_differs_from_settings,
    batch_changed_on_resume,
    batch_far_from_noise_scale,
)
