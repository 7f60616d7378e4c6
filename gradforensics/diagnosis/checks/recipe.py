"""Checks on the optimizer and its hyper-parameters, as the settings state them: what does not belong together."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import PurePath
from typing import Any, NamedTuple

from gradforensics import checkpoint_signals
from gradforensics.diagnosis.vocabulary import Answer, Check, Hit, Missing, check
from gradforensics.diagnosis.vocabulary import Fact as Told
from gradforensics.patterns import lazy
from gradforensics.tables import Evidence, Setting

# torch.optim.Adam and its kin add the decay to the gradient; the same words in other libraries may mean AdamW
_COUPLED = lazy(r"^torch\.optim\.(?:\w+\.)?(?:Adam|NAdam|RAdam|Adamax)$")
_ADAM = lazy(r"^(?:optim\.)?(?:Adam|adam)$")
_LION = lazy(r"(?<![A-Za-z])[Ll]ion(?![a-z])|(?<=[a-z])Lion(?![a-z])|(?<![A-Z])LION(?![A-Z])")
_ADAPTIVE = lazy(r"adam|lamb|adafactor|adagrad", re.IGNORECASE)
_SGD = lazy(r"(?<![a-z])sgd(?![a-z])", re.IGNORECASE)
_PURE_HALF = ("16-true", "fp16-true", "float16-true", "pure_fp16")
_DECOUPLING = lazy(r"Megatron|DeepSpeed|NeMo|fairseq|Keras")
_OF_DECOUPLING = lazy(r"(?:^|[._])(?:tensor_model_parallel_size|zero_optimization|use_distributed_optimizer)")
_LAYERS = lazy(
    r"(?:^|[._])(?:layer_?decay(?:_rate)?|layer_?wise_?(?:lr_?)?decay(?:_rate)?|layer_?lr_?decay|lr_layer_decay|llrd)$",
    re.IGNORECASE,
)
_REFUSED = (
    lazy(r"(?P<name>[\w.-]{1,60}) is not a valid OptimizerNames"),
    lazy(r"cannot instantiate unsupported optimizer: (?P<name>[\w.-]{1,60})"),
    lazy(r"module 'torch\.optim' has no attribute '(?P<name>\w{1,60})'"),
)
_CHECKPOINT = lazy(r"(?:checkpoint|step|iter)[-_]?(\d{1,12})$")


def _optimizer(evidence: Evidence) -> str:
    return str(evidence.setting("optim") or "")


def _stated(evidence: Evidence, key: str) -> Setting | None:
    """The setting that counts for a key, with the place where it stands."""
    value = evidence.setting(key)
    return next((s for s in evidence.settings or [] if s.key == key and s.value == value), None)


def _hit(evidence: Evidence, key: str, *, step: int | None = None, **facts: Any) -> Hit:
    found = _stated(evidence, key)
    return Hit(step, source=found.source if found else None, line=found.line if found else None, facts=facts)


def _named(evidence: Evidence, name: str) -> Any:
    """The value of a setting by the end of its name as it was written, None where there is none."""
    return next((s.value for s in evidence.settings or [] if s.name.rpartition(".")[2] == name), None)


@check(needs=["settings:optim"], facts=["optimizer", "decay"])
def decay_coupled_in_adam(evidence: Evidence, *, least: float) -> Answer:
    """PyTorch's own Adam, not AdamW, runs with a weight decay of `least` or more.

    Exact only where the settings give the class of PyTorch, or DeepSpeed's Adam with adam_w_mode off: elsewhere "adam"
    often means AdamW (Megatron, fairseq, DeepSpeed by default, Keras). Any other known optimizer is acquitted.
    """
    optimizer, decay = _optimizer(evidence), evidence.number("weight_decay")
    exact = _COUPLED.match(optimizer) is not None or (
        _ADAM.match(optimizer) is not None and _named(evidence, "adam_w_mode") is False
    )
    if _named(evidence, "decoupled_weight_decay") is True:
        return []
    if not exact:
        return Missing(f"which Adam {optimizer!r} is") if _unclear(evidence) else []
    if decay is None:
        return Missing("settings:weight_decay")
    return [_hit(evidence, "weight_decay", optimizer=optimizer, decay=decay)] if decay >= least else []


@check(needs=["settings:optim"], facts=["optimizer", "decay"])
def decay_in_an_unclear_adam(evidence: Evidence, *, least: float) -> Answer:
    """The settings say "adam" and a weight decay of `least` or more, and nothing tells whether the decay is decoupled.

    Not asked of runs of Megatron, DeepSpeed, NeMo, fairseq and Keras, whose Adam is AdamW.
    """
    decay = evidence.number("weight_decay")
    if decay is None:
        return Missing("settings:weight_decay")
    if decay < least or not _unclear(evidence) or _decouples(evidence):
        return []
    return [_hit(evidence, "weight_decay", optimizer=_optimizer(evidence), decay=decay)]


def _decouples(evidence: Evidence) -> bool:
    """Whether the run is one of a library that calls AdamW adam."""
    written = (source.remark for source in evidence.sources)
    names = (setting.name for setting in evidence.settings or [])
    return any(map(_DECOUPLING.search, written)) or any(map(_OF_DECOUPLING.search, names))


def _unclear(evidence: Evidence) -> bool:
    """Whether the settings call an optimizer "adam" without saying whether its decay is decoupled, and it decays."""
    decay = evidence.number("weight_decay")
    known = _named(evidence, "adam_w_mode") is not None
    return _ADAM.match(_optimizer(evidence)) is not None and not known and (decay is None or decay > 0)


@check(needs=["settings:optim"], facts=["optimizer", "rate", "most"])
def lion_above_its_rates(evidence: Evidence, *, most: float) -> Answer:
    """Lion runs at a learning rate above `most`: its steps have the size of the rate in every coordinate."""
    optimizer = _optimizer(evidence)
    if not _LION.search(optimizer):
        return []
    rate = _peak(evidence)
    if rate is None:
        return Missing("settings:learning_rate")
    return [_hit(evidence, "learning_rate", optimizer=optimizer, rate=rate, most=most)] if rate > most else []


def _peak(evidence: Evidence) -> float | None:
    """The highest learning rate that was logged, else the configured one."""
    lr = evidence.series("lr")
    if lr is not None and len(lr.good):
        return float(lr.good.values.max())
    return evidence.number("learning_rate")


@check(needs=["settings:peft_type", "settings:optim"], facts=["optimizer", "rate", "most"])
def adapter_above_its_rates(evidence: Evidence, *, most: float) -> Answer:
    """Adapters (LoRA and its kin) are trained by an adaptive optimizer at a learning rate above `most`."""
    optimizer, rate = _optimizer(evidence), _peak(evidence)
    if "lora" not in str(evidence.setting("peft_type")).lower() or not _ADAPTIVE.search(optimizer):
        return []
    if rate is None:
        return Missing("settings:learning_rate")
    return [_hit(evidence, "learning_rate", optimizer=optimizer, rate=rate, most=most)] if rate > most else []


@check(needs=["settings:adam_epsilon", "settings:optim"], facts=["eps", "most"])
def adam_eps_above_default(evidence: Evidence, *, most: float) -> Answer:
    """Adam's eps lies above `most`: where the root of the second moment is smaller, it decides the size of the step.

    Weights in fp16 need it, and runs with rewards take 1e-5 by habit: both are acquitted.
    """
    eps = evidence.number("adam_epsilon")
    if eps is None:
        return Missing("settings:adam_epsilon")
    half = str(evidence.setting("precision") or "").lower() in _PURE_HALF
    if half or not _ADAPTIVE.search(_optimizer(evidence)) or evidence.series("reward") is not None:
        return []
    return [_hit(evidence, "adam_epsilon", eps=eps, most=most)] if eps > most else []


@check(needs=["settings:optim"], facts=["name", "factor"])
def layer_decay_inverted(evidence: Evidence) -> Answer:
    """The factor by which the learning rate falls from layer to layer towards the input is above 1: there it grows."""
    hits = []
    for setting in evidence.settings or []:
        value = setting.value
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if number and value > 1 and _LAYERS.search(setting.name):
            facts: dict[str, Told] = {"name": setting.name, "factor": float(value)}
            hits.append(Hit(None, source=setting.source, line=setting.line, facts=facts))
    return hits


@check(needs=[], facts=["before", "now", "rate"])
def optimizer_switched_at_same_rate(evidence: Evidence, *, factor: float) -> Answer:
    """From one launch or checkpoint to the next the optimizer is of another kind and the learning rate nearly the same.

    Kinds: those that divide by the second moment, SGD, Lion, whose learning rates differ by orders of magnitude.
    factor: how far the two rates may lie apart. Read from the settings of launches and checkpoints, else from the
    optimizer states of checkpoints.
    """
    stated = sorted(_launches(evidence)) or sorted(_saved(evidence))
    if len(stated) < 2:
        return Missing("the optimizer of two launches or checkpoints")
    hits = []
    for before, now in pairwise(stated):
        kinds = _kind(before.optimizer), _kind(now.optimizer)
        if None in kinds or kinds[0] == kinds[1] or not (before.rate and now.rate):
            continue
        if max(before.rate, now.rate) <= factor * min(before.rate, now.rate):
            facts: dict[str, Told] = {"before": before.optimizer, "now": now.optimizer, "rate": now.rate}
            step = now.step or _first_step(evidence, now.attempt)
            hits.append(Hit(step, source=now.source or None, line=now.line, facts=facts))
    return hits


def _first_step(evidence: Evidence, attempt: int) -> int | None:
    """The first step that a launch logged."""
    parts = [part for part in evidence.attempts("loss") if len(part) and int(part.attempts[0]) == attempt]
    return int(parts[0].steps[0]) if parts else None


class _Launch(NamedTuple):
    """Which optimizer was in force, from when on. step: of the checkpoint that says so, 0 where it is a launch."""

    attempt: int
    step: int
    optimizer: str
    rate: float
    source: str
    line: int | None


def _launches(evidence: Evidence) -> Iterator[_Launch]:
    """The optimizer and learning rate of every launch and checkpoint that states its own settings."""
    stated = [(place, s) for s in evidence.settings or [] if (place := _place(s)) is not None]
    rates = {place: s.value for place, s in reversed(stated) if s.key == "learning_rate"}
    chosen = {place: s for place, s in reversed(stated) if s.key == "optim"}
    for place, setting in chosen.items():
        rate = rates.get(place)
        known = float(rate) if isinstance(rate, (int, float)) else 0.0
        yield _Launch(*place, str(setting.value), known, setting.source, setting.line)


def _saved(evidence: Evidence) -> Iterator[_Launch]:
    """The kind of optimizer and the rate of its first group in every checkpoint whose step is known.

    Nothing where checkpoints of one step have optimizers of several kinds, or their names differ in more than numbers:
    then they may be of several trainings.
    """
    steps = {one.path: one.step for one in checkpoint_signals.checkpoints(evidence) or []}
    found: dict[str, _Launch] = {}
    for group in checkpoint_signals.groups(evidence) or []:
        named = _CHECKPOINT.search(group.checkpoint.rstrip("/"))
        step = steps.get(group.checkpoint) or (int(named[1]) if named else None)
        if step is not None and group.optimizer and group.checkpoint not in found:
            found[group.checkpoint] = _Launch(0, step, group.optimizer, group.lr or 0.0, group.checkpoint, None)
    kinds = {(one.step, _kind(one.optimizer)) for one in found.values()}
    stems = {re.sub(r"\d+", "", path) for path in found}
    if len(kinds) == len({step for step, _ in kinds}) and len(stems) == 1:
        yield from found.values()


def _place(setting: Setting) -> tuple[int, int] | None:
    """(attempt, step) of a setting, None where nothing says when it was in force."""
    step = _CHECKPOINT.search(PurePath(setting.source).parent.name)
    if setting.attempt is None and step is None:
        return None
    return setting.attempt or 0, int(step[1]) if step else 0


def _kind(optimizer: Any) -> str | None:
    name = str(optimizer)
    kinds = (("lion", _LION), ("adaptive", _ADAPTIVE), ("sgd", _SGD))
    return next((kind for kind, pattern in kinds if pattern.search(name)), None)


@check(needs=["events:console"], facts=["name", "message"])
def optimizer_name_refused(evidence: Evidence) -> Answer:
    """The program stopped because there is no optimizer of the name that it was given."""
    hits = []
    for event in evidence.events_of("exception"):
        message = str(event.data.get("message") or event.text)
        found = next((found for pattern in _REFUSED if (found := pattern.search(message))), None)
        if found is not None and evidence.steps is None:
            facts = {"name": found["name"], "message": message[:300]}
            hits.append(Hit(event.step, source=event.source, line=event.line, facts=facts))
    return hits


CHECKS: tuple[Check, ...] = (
    decay_coupled_in_adam,
    decay_in_an_unclear_adam,
    lion_above_its_rates,
    adapter_above_its_rates,
    adam_eps_above_default,
    layer_decay_inverted,
    optimizer_switched_at_same_rate,
    optimizer_name_refused,
)
